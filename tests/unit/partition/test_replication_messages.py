"""Test fetches, answers, reads and confirmations between the shells of nodes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from types import SimpleNamespace
from typing import Any

from liftpy.config import ReplicationConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.batch import build_batch
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.partition.quiescence import FetchCombiner, FetchSender
from sidecar.partition.reads import ReadSubjects, ReadTools
from sidecar.partition.replication import _MAX_TOKENS, AnswerRouter, FetchClient
from tests.scripts.replication_bench import ReplicationBench
from tests.unit.partition.shell_parts import KEY, Clocked


async def test_replication_server_fetch_event_has_the_values_of_the_request() -> None:
    bench = ReplicationBench()
    request = replication_pb2.ReplicationRequest(
        replicaID="n2", offset=11, leaderEpoch=12, offsetEpoch=13, incarnation=14, requestId=15, maxBytes=16, streamUid="u",
        awaitsMore=True, badOffset=17, flushMicros=18, position=0, batchCrc=0,
    )  # fmt: skip
    bench.bus.deliver(bench.subjects.replicate("orders", 0), frames.encode(request), "liftpy.inbox.n2.1.1")
    found = bench.fetches.pop()
    assert dataclasses.replace(found, token=0) == events.FetchReceived(
        token=0, replica="n2", offset=11, leader_epoch=12, offset_epoch=13, incarnation=14, request_id=15, max_bytes=16, stream_uid="u",
        awaits_more=True, bad_offset=17, flush_ns=18_000,
    )  # fmt: skip


async def test_replication_server_drops_unanswered_requests_above_its_limit() -> None:
    bench = ReplicationBench()
    for number in range(_MAX_TOKENS + 50):
        bench.replication._token(b"liftpy.inbox.n2.1.%d" % number)
    assert len(bench.replication._tokens) == _MAX_TOKENS
    assert max(bench.replication._tokens) - min(bench.replication._tokens) == _MAX_TOKENS - 1, "the oldest are forgotten"


class NatsBus:
    """One connection: ``up`` says whether it takes what is sent."""

    inbox, max_payload = "liftpy.inbox.n1", 1 << 20

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.listening: dict[str, Any] = {}
        self.queues: dict[str, str] = {}
        self.up = True

    def listen(self, subject: str, sink: Any, queue: str = "", given_up: Any = None, refuser: Any = None) -> Any:
        self.listening[subject], self.queues[subject] = sink, queue
        return SimpleNamespace(close=lambda: self.listening.pop(subject, None), leave=lambda: None)

    def send(self, subject: str, pieces: Any, reply: str = "", *, keep: bool = False) -> bool:
        if self.up:
            self.sent.append((subject, b"".join(pieces), reply))
        return self.up


def fetch_client(bus: NatsBus, fed: list[Any], counters: Counter[str] | None = None) -> FetchClient:
    counters = Counter() if counters is None else counters
    return FetchClient(AnswerRouter(bus), Subjects(), KEY, "n1", fed.append, counters)  # type: ignore[arg-type]


FETCH = do.SendFetch(leader="n2", request_id=9, offset=4, leader_epoch=2, offset_epoch=1, max_bytes=1 << 16)


async def test_fetch_client_request_on_a_lost_connection_fails() -> None:
    bus, fed = NatsBus(), []
    client = fetch_client(bus, fed)
    bus.up = False
    client.send_fetch(FETCH, 5)
    assert fed == [events.RequestFailed(request_id=9, reason="not connected")]
    client.send_epoch_query(do.SendEpochQuery(leader="n2", request_id=10, asked_epoch=1, current_epoch=2))
    assert fed[1:] == [events.RequestFailed(request_id=10, reason="not connected")]


async def test_fetch_client_reports_the_offset_of_a_damaged_batch_in_a_response() -> None:
    bus, fed, counters = NatsBus(), [], Counter[str]()
    client = fetch_client(bus, fed, counters)
    batches = [build_batch([b"a"], base_offset=offset, leader_epoch=2) for offset in (5, 6)]
    spoilt = bytearray(batches[1])
    spoilt[-1] ^= 1
    body = batches[0] + bytes(spoilt)
    client._answer_arrived(9, frames.replication_response_header(2, 4, (body,)) + body, b"")
    (failed,) = fed
    assert isinstance(failed, events.RequestFailed)
    assert (failed.request_id, failed.bad_offset) == (9, 6)
    assert client.fetched == {}
    assert counters == {"fetched_damage": 1}


async def test_read_subject_of_the_partition_is_subscribed_only_while_the_replica_is_in_the_isr() -> None:
    bus, counters = NatsBus(), Counter[str]()
    source: Any = SimpleNamespace()
    tools = ReadTools(bus, Subjects(), InboxRule(("_INBOX.",)), Clocked(), counters)  # type: ignore[arg-type]
    reads = ReadSubjects(tools, KEY, "n1", source)  # type: ignore[arg-type]
    shared, own = "liftpy.orders.3.read", "liftpy.orders.3.read.n1"
    assert set(bus.listening) == {own}
    for wanted in (True, True, False, False, True):
        reads.share(wanted)
        assert (shared in bus.listening) is wanted
    assert bus.queues[shared] == shared
    bus.listening[own](own.encode(), b"orders", b"garbage", b"")
    assert bus.sent == []
    assert counters == {"refused: invalid reply subject": 1}
    source.log, source.high_watermark, source.leader_epoch, source.compacted, source.leader = (
        ReplicationBench().log,
        0,
        1,
        False,
        "n1",
    )
    bus.listening[own](own.encode(), b"_INBOX.a", b"garbage", b"")
    assert [to for to, *_ in bus.sent] == ["_INBOX.a"], "what can't be read is refused, not dropped"
    reads.close()
    assert bus.listening == {}


async def test_combined_fetch_confirmation_of_an_earlier_request_is_ignored() -> None:
    bus, delivered = NatsBus(), []
    confirm: set[int] = set()

    def deliver(stream: str, partition: int, uid: str, event: Any) -> None:
        delivered.append((partition, event))
        if partition in confirm:
            talk.confirm(do.ConfirmQuiescence(token=event.token))

    talk = FetchCombiner(
        AnswerRouter(bus),
        Subjects(),
        FetchSender("n1", 4),
        InboxRule(("liftpy.inbox.",)),
        ReplicationConfig(),
        Clocked(),
        deliver,
        Counter(),  # type: ignore[arg-type]
    )
    question = replication_pb2.QuietFetches(replicaID="n2", incarnation=7)
    for number in range(3):
        question.fetches.add(stream="orders", streamUid="u1", partition=number, leaderEpoch=5, requestId=6 + number)
    for confirmed, over in (({0, 2}, [1]), (set(), [0, 1, 2]), ({0, 1, 2}, [])):
        confirm.clear()
        confirm.update(confirmed)
        talk.answer_question(b"liftpy.inbox.n2.1.1", memoryview(question.SerializeToString()))
        answer = frames.decode(bus.sent.pop()[1], replication_pb2.QuietFetchesAnswer)
        assert (list(answer.over), answer.count) == (over, 3)
        assert len(talk._confirmed) <= 3, "those of the question before are forgotten"
    event = delivered[0][1]
    assert (event.replica, event.incarnation, event.leader_epoch, event.request_id) == ("n2", 7, 5, 6)
