"""Test how the leader's shell answers fetches that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.state_transfer import StateFetcher, StatePiece, StatePieceRequest, StateServer
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.replication.messages import EpochAnswer, FetchRefusal, FetchRequest
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.batch import split_batches
from liftpy.core.wire.chunking import Piece
from liftpy.core.wire.envelope import ChecksumError, MessageType
from liftpy.core.wire.frames import address
from liftpy.core.wire.subjects import Subjects
from sidecar.partition import replication
from sidecar.partition.replication import AnswerRouter, FetchClient
from sidecar.runtime.logs import WarningLogRateLimit
from tests.batches import build_batch
from tests.each import each
from tests.scripts.replication_bench import ReplicationBench

KEY = PartitionKey("s", "u1", 0)


def fetch(bench: ReplicationBench, replica: str, kept_for: str) -> bytes:
    """A fetch at the log end, kept for ``kept_for`` if that is somebody, and an empty answer."""
    request = pb.ReplicationRequest(
        replicaID=replica, offset=bench.log.newest_offset, leaderEpoch=1, requestId=1, awaitsMore=True
    )
    bench.bus.deliver(bench.subjects.replicate("orders", 0), frames.encode(request), f"liftpy.inbox.{replica}.1.1")
    event = bench.fetches.pop()
    assert event.awaits_more
    if kept_for:
        bench.replication.park(do.ParkFetch(token=event.token, replica=kept_for))
        assert bench.bus.take(f"liftpy.inbox.{replica}") == []
        bench.replication.send_high_watermark(do.SendHighWatermark(replica=kept_for, leader_epoch=1), bench.log.high_watermark)
    else:
        effect = do.SendFetchResponse(token=event.token, from_offset=event.offset + 1, max_bytes=1 << 20, leader_epoch=1)
        bench.replication.send_response(effect, bench.log, bench.log.high_watermark)
    (answer,) = bench.bus.take(f"liftpy.inbox.{replica}")
    return answer


@pytest.mark.parametrize("piece", [StatePiece(9, 4, 0, b"data"), None])
async def test_replication_server_answers_a_state_request_with_a_piece_or_asks_to_repeat_it(piece: StatePiece | None) -> None:
    bench = ReplicationBench()
    bench.replication.state_server = cast(StateServer, SimpleNamespace(read_piece=lambda question, most_bytes: piece))
    request = pb.StateRequest(replicaID="n2", streamUid=bench.key.uid, partition=0, requestId=5, maxBytes=1 << 20)
    bench.bus.deliver(bench.subjects.offset("orders", 0), frames.seal(request), "liftpy.inbox.n2.1.5")
    (payload,) = bench.bus.take("liftpy.inbox.n2")
    answer = frames.decode(payload, pb.StateResponse)
    assert (answer.requestId, answer.later, answer.data) == (5, piece is None, b"" if piece is None else b"data")


async def test_replication_server_that_leads_no_longer_asks_to_repeat_a_late_state_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To answer as a leader, it would drop the state that it gets as a follower."""
    bench, questions = ReplicationBench(), list[object]()
    served = SimpleNamespace(read_piece=lambda question, most_bytes: questions.append(question))
    bench.replication.state_server = cast(StateServer, served)
    request = pb.StateRequest(replicaID="n2", streamUid=bench.key.uid, partition=0, requestId=5, maxBytes=1 << 20)
    monkeypatch.setattr(bench.bus, "retire", lambda listeners: None)  # a connection closes them two round trips later
    bench.replication.stop()
    bench.bus.deliver(bench.subjects.offset("orders", 0), frames.seal(request), "liftpy.inbox.n2.1.5")
    (payload,) = bench.bus.take("liftpy.inbox.n2")
    assert (frames.decode(payload, pb.StateResponse).later, questions) == (True, [])


def more(bench: ReplicationBench, replica: str, from_offset: int) -> list[bytes]:
    bench.replication.answer_parked_fetch(
        do.AnswerParkedFetch(replica=replica, from_offset=from_offset, max_bytes=1 << 20, leader_epoch=1),
        bench.log,
        bench.log.high_watermark,
    )
    return bench.bus.take(f"liftpy.inbox.{replica}")


async def test_replication_server_responses_of_one_step_share_one_log_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = replication.read_portion
    monkeypatch.setattr(replication, "read_portion", lambda log, *a, **b: reads.append(a[0]) or read(log, *a, **b))
    bench = ReplicationBench()
    for end in (1, 2):
        for replica in ("n2", "n3", "n4"):
            fetch(bench, replica, replica)
        bench.replication.end_step()
        bench.publish(b"%d" % end)
        await bench.turn()
        before = len(bench.bus.held)
        sent = [more(bench, replica, from_offset) for replica, from_offset in (("n2", end - 1), ("n3", end - 1), ("n4", 0))]
        bench.replication.end_step()
        bench.replication.end_step()
        assert len(bench.bus.held) == before + 2, "held once, released once"
        first, same, _ = (bytes(frames.decode_replication_response(answer).batches) for (answer,) in sent)
        assert first == same
        assert [value for batch in split_batches(first) for value in batch.values()] == [b"%d" % end]
    fetch(bench, "n4", "n4")
    assert more(bench, "n4", 0)
    assert reads == [0, 1, 0, 0], "of the last step nothing is kept: the log may have been cut meanwhile"


@pytest.mark.parametrize("reply", ["_INBOX.x", "liftpy.inbox.n4.x", "liftpy.inbox.n2", "liftpy.inbox.n20.x", "orders", ""])
async def test_replication_server_answers_a_replica_only_in_its_own_inbox(reply: str) -> None:
    bench = ReplicationBench()
    for subject, request in (
        (bench.subjects.replicate("orders", 0), pb.ReplicationRequest(replicaID="n2", requestId=1)),
        (bench.subjects.offset("orders", 0), pb.LeaderEpochOffsetRequest(replicaID="n2")),
    ):
        bench.bus.deliver(subject, frames.encode(request), reply)
    assert bench.fetches == []
    assert bench.counters["refused: invalid reply subject"] == 2


async def test_replication_server_ignores_a_request_whose_reply_subject_has_another_request_id() -> None:
    bench = ReplicationBench()
    for subject, request in (
        (bench.subjects.replicate("orders", 0), pb.ReplicationRequest(replicaID="n2", requestId=7, partition=0)),
        (bench.subjects.offset("orders", 0), pb.LeaderEpochOffsetRequest(replicaID="n2", requestId=7, partition=0)),
    ):
        for reply in ("liftpy.inbox.n2.1.1", "liftpy.inbox.n2.nobody.17"):
            bench.bus.deliver(subject, frames.seal(request), reply)
        assert bench.fetches == []
        bench.bus.deliver(subject, frames.seal(request), "liftpy.inbox.n2.1.7")
        assert len(bench.fetches) == 1
        bench.fetches.clear()
    assert bench.counters["refused: invalid reply subject"] == 4


def follower() -> tuple[FetchClient, list[events.Event], Counter[str]]:
    bus: Any = SimpleNamespace(inbox="_INBOX.n", max_payload=1 << 20, listen=lambda *_: None, send=lambda *_: True)
    heard: list[events.Event] = []
    counters: Counter[str] = Counter()
    return FetchClient(AnswerRouter(bus), Subjects("liftpy"), KEY, "n2", heard.append, counters), heard, counters


def test_fetch_client_fetches_after_the_leader_has_sent_its_state() -> None:
    sent: list[tuple[str, str]] = []
    arrived: list[Callable[[bytes, bytes, bytes, bytes], None]] = []

    def send(subject: str, parts: object, reply: str) -> bool:
        sent.append((subject, reply))
        return True

    def listen(subject: str, handler: Callable[[bytes, bytes, bytes, bytes], None]) -> None:
        arrived.append(handler)

    questions, pieces = [StatePieceRequest(9, 0), None], list[StatePiece | None]()

    def add_piece(piece: StatePiece | None) -> bool:
        pieces.append(piece)
        return True

    bus: Any = SimpleNamespace(inbox="_INBOX.n", max_payload=1 << 20, listen=listen, send=send)
    client = FetchClient(AnswerRouter(bus), Subjects("liftpy"), KEY, "n2", lambda event: None, Counter())
    client.state_fetcher = cast(StateFetcher, SimpleNamespace(asks=lambda epoch: questions.pop(0), add_piece=add_piece))
    client.send_fetch(
        FetchRequest(
            replica="n2",
            offset=8,
            leader_epoch=1,
            offset_epoch=1,
            incarnation=3,
            request_id=5,
            max_bytes=1 << 20,
            stream_uid="u1",
        )
    )
    [(_, reply)] = sent
    answer = pb.StateResponse(streamUid=KEY.uid, partition=0, requestId=5, endOffset=9, totalBytes=4, data=b"data")
    arrived[0](reply.encode(), b"", frames.seal(answer), b"")
    assert [subject for subject, _ in sent] == ["liftpy.s.0.offset", "liftpy.s.0.replicate"]
    assert pieces == [StatePiece(9, 4, 0, b"data")]


@each("at", range(12, 36))
def test_fetch_client_ignores_a_response_with_a_wrong_checksum(at: int) -> None:
    client, heard, counters = follower()
    batch = build_batch([b"v"], base_offset=0, leader_epoch=1, timestamp_ns=1)
    answer = bytearray(frames.replication_response_header(1, 5, (batch,)) + batch)
    client._answer_arrived(1, bytes(answer), b"")
    assert [type(event) for event in heard] == [events.FetchAnswered]
    answer[at] ^= 4
    client._answer_arrived(1, bytes(answer), b"")
    assert (len(heard), counters) == (1, {"refused: checksum": 1})


def test_fetch_client_logs_repeated_damage_once_per_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "_seldom", WarningLogRateLimit())  # another test may have said the same in this second
    client, heard, _ = follower()
    batch = bytearray(build_batch([b"v" * 50], base_offset=0, leader_epoch=1, timestamp_ns=1))
    batch[-1] ^= 1  # as the leader's disk has it: the envelope is right
    for _ in range(1000):
        client._answer_arrived(1, frames.replication_response_header(1, 5, (batch,)) + bytes(batch), b"")
    assert len(heard) == 1000
    assert 1 <= len([r for r in caplog.records if "batch from the leader damaged" in r.getMessage()]) <= 3


# ---- what requests and answers are for -----------------------------------------------------------------------------------------
def asked(bench: ReplicationBench, **fields: object) -> list[events.Event]:
    """Both requests of a follower, that name what they are for."""
    reply = "liftpy.inbox.n2.1.7"
    fetch_ = pb.ReplicationRequest(replicaID="n2", offset=-1, leaderEpoch=1, requestId=7, streamUid="uid-1", **fields)  # type: ignore[arg-type]
    query = pb.LeaderEpochOffsetRequest(replicaID="n2", currentEpoch=1, requestId=7, streamUid="uid-1", **fields)  # type: ignore[arg-type]
    bench.bus.deliver(bench.subjects.replicate("orders", 0), frames.seal(fetch_), reply)
    bench.bus.deliver(bench.subjects.offset("orders", 0), frames.seal(query), reply)
    found, bench.fetches[:] = list(bench.fetches), []
    return list(found)


async def test_replication_server_drops_and_counts_a_request_for_another_partition() -> None:
    bench = ReplicationBench()
    assert len(asked(bench, partition=0)) == len(asked(bench)) == 2
    assert asked(bench, partition=1) == []
    assert bench.counters == {"refused: addressee": 2}
    assert bench.bus.sent == [], "who is answered by the wrong partition would take it for his"


def _answers(uid: str, partition: int, request_id: int) -> list[bytes]:
    """Of every kind, for that fetch."""
    to = address(uid, partition, request_id)
    piece = Piece(9, 100, 0, memoryview(b"piece"))
    named = {"streamUid": uid, "partition": partition, "requestId": request_id}
    return [
        frames.replication_response_header(1, 5, (), to),
        frames.replication_piece_header(1, 5, piece, to) + b"piece",
        frames.seal(pb.ReplicationRefusal(leaderEpoch=9, **named)),  # type: ignore[arg-type]
        frames.seal(pb.LeaderEpochOffsetResponse(endOffset=3, **named)),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize(("uid", "partition", "request_id"), [("u2", 0, 7), ("u1", 1, 7), ("u1", 0, 8)])
def test_fetch_client_drops_a_response_to_another_fetch_and_accepts_the_right_one(
    uid: str, partition: int, request_id: int
) -> None:
    client, heard, counters = follower()
    for wrong in _answers(uid, partition, request_id):
        client._answer_arrived(7, wrong, b"")
    assert heard == [], "neither an event nor a failed request: the answer itself may still come"
    assert counters == {"refused: addressee": 4}
    for right in _answers("u1", 0, 7):
        client._answer_arrived(7, right, b"")
    kinds = [events.FetchAnswered, events.FetchPieceArrived, FetchRefusal, EpochAnswer]
    assert [type(event) for event in heard] == kinds
    client._answer_arrived(7, frames.replication_response_header(1, 5, ()), b"")
    assert len(heard) == 5, "of an older version, which does not say"


def test_replication_response_with_a_changed_partition_address_fails_its_checksum() -> None:
    frame = bytearray(frames.replication_response_header(1, 5, (), address("u1", 0, 7)))
    for at in range(12, 28):
        spoiled = bytes(frame[:at]) + bytes([frame[at] ^ 1]) + bytes(frame[at + 1 :])
        with pytest.raises(ChecksumError):
            envelope.decode(spoiled)
    frame[6] = 2  # an address without a sum
    with pytest.raises(envelope.EnvelopeError, match="needs a CRC"):
        envelope.decode(bytes(frame))
    with pytest.raises(envelope.EnvelopeError, match="needs a CRC"):
        envelope.decode(envelope.checked_header(MessageType.ACK, b"", (), b"short"))
