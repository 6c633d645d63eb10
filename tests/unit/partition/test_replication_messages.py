"""Test messages of a partition: failed fetches, read subjects, and messages of services."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import events
from liftpy.core.replication.messages import EpochQuery, FetchRequest
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2, service_pb2
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.partition.reads import ReadSubjects, ReadTools
from sidecar.partition.replication import AnswerRouter, FetchClient
from tests.batches import build_batch
from tests.scripts.replication_bench import FakeBus, ReplicationBench
from tests.unit.partition.shell_parts import KEY, Clocked
from tests.unit.replication.test_reads import Source
from tests.unit.services.test_service_endpoint import World, hello


class NatsBus:
    """One connection: ``up`` says whether it takes what is sent."""

    inbox, max_payload = "liftpy.inbox.n1", 1 << 20

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.listening: dict[str, Any] = {}
        self.queues: dict[str, str] = {}
        self.up = True

    def listen(self, subject: str, sink: Any, queue: str = "", on_dropped: Any = None, rejector: Any = None) -> Any:
        self.listening[subject], self.queues[subject] = sink, queue
        return SimpleNamespace(close=lambda: self.listening.pop(subject, None), leave=lambda: None)

    def send(self, subject: str, pieces: Any, reply: str = "") -> bool:
        if self.up:
            self.sent.append((subject, b"".join(pieces), reply))
        return self.up


def fetch_client(bus: NatsBus, fed: list[Any], counters: Counter[str] | None = None) -> FetchClient:
    counters = Counter() if counters is None else counters
    return FetchClient(AnswerRouter(bus), Subjects(), KEY, "n1", fed.append, counters)  # type: ignore[arg-type]


FETCH = FetchRequest(
    replica="n1", offset=4, leader_epoch=2, offset_epoch=1, incarnation=5, request_id=9, max_bytes=1 << 16, stream_uid=KEY.uid
)


async def test_fetch_client_request_on_a_lost_connection_fails() -> None:
    bus, fed = NatsBus(), []
    client = fetch_client(bus, fed)
    bus.up = False
    client.send_fetch(FETCH)
    assert fed == [events.RequestFailed(request_id=9, reason="not connected")]
    client.send_epoch_query(EpochQuery(replica="n1", request_id=10, requested_epoch=1, current_epoch=2, stream_uid=KEY.uid))
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


async def test_long_poll_read_is_answered_when_the_partition_closes() -> None:
    bus: Any = FakeBus()
    source: Any = Source()
    tools = ReadTools(bus, Subjects(), InboxRule(("_INBOX.",)), Clocked(), Counter())
    reads = ReadSubjects(tools, PartitionKey("s", "u1", 0), "n1", source)
    bus.deliver("liftpy.s.0.read.n1", frames.encode(client_pb2.ReadRequest(waitMs=10_000, minHighWatermark=-1)), "_INBOX.a")
    assert (reads.waiting_count, bus.sent) == (1, [])
    assert reads.waiting_bytes > 1000
    reads.close()
    ((to, answer),) = bus.sent
    head, _ = frames.decode_read_response(answer)
    assert (to, head.error, head.detail) == ("_INBOX.a", head.NO_SUCH_PARTITION, "this node is removing its replica")
    assert (reads.waiting_count, reads.waiting_bytes) == (0, 0)


def test_partition_services_ignore_messages_of_other_partitions_and_unknown_nodes() -> None:
    world = World()
    world.say(hello())
    world.say(frames.encode(service_pb2.ServiceAck(service="bank", stream="s", partition=7)))
    world.say(frames.encode(service_pb2.SnapshotRequest(service="bank", stream="s", partition=7)))
    assert world.counters == {}
    heard: list[Any] = []
    world.services._wellness = SimpleNamespace(record_states=lambda *told: heard.append(told))  # type: ignore[assignment]
    told = [service_pb2.ServiceReport.State(service="bank", position=4)]
    for node, uid in (("n2", "u0"), ("n1", "u1"), ("n9", "u1"), ("n2", "u1")):
        world.services.record_states(service_pb2.ServiceReport(node=node, streamUid=uid, services=told))
    assert [node for node, *_ in heard] == ["n2"]
