"""Test every field between a follower and its leader: requests, answers, pieces, slots and tokens."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.replication.messages import EpochAnswer, FetchRefusal, FetchRequest, RefusalReason
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.batch import parse_header
from liftpy.core.wire.chunking import Piece
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.partition import replication
from sidecar.partition.replication import AnswerRouter, FetchClient, ReplicationHandler
from tests.batches import build_batch
from tests.scripts.replication_bench import FakeBus
from tests.unit.log.small_logs import a_log, add
from tests.unit.partition.shell_parts import KEY

FETCH = "liftpy.orders.3.replicate"
REPLY = "liftpy.inbox.n2.4.5"


class Leader:
    """The leader's bench, its log and what it has heard."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.bus: Any = FakeBus(max_payload)
        self.heard: list[Any] = []
        self.counters: Counter[str] = Counter()
        subjects = Subjects("liftpy")
        inboxes = InboxRule((subjects.inboxes(),))
        self.bench = ReplicationHandler(self.bus, subjects, KEY, inboxes, self.heard.append, self.counters)
        self.bench.start()
        self.log = a_log()

    def ask(self, request: Any, subject: str = FETCH) -> Any:
        self.bus.deliver(subject, frames.seal(request), f"liftpy.inbox.n2.4.{request.requestId or 5}")
        return self.heard.pop()

    def fetch(self, **more: Any) -> int:
        token: int = self.ask(pb.ReplicationRequest(replicaID="n2", partition=3, requestId=5, **more)).token
        return token

    def answer(self, token: int, from_offset: int = 0, max_bytes: int = 1 << 20) -> list[bytes]:
        effect = do.SendFetchResponse(token=token, from_offset=from_offset, max_bytes=max_bytes, leader_epoch=7)
        self.bench.send_response(effect, self.log, 9)
        return self.bus.take(REPLY)  # type: ignore[no-any-return]


# ---- what is answered ----------------------------------------------------------------------------------------------------------
def test_replication_server_logs_once_that_an_old_follower_cannot_get_a_large_batch(caplog: pytest.LogCaptureFixture) -> None:
    leader = Leader(max_payload=4096)
    for _ in range(2):
        add(leader.log, 1, size=9000)
    for offset in (0, 0, 1):
        assert leader.answer(leader.fetch(), from_offset=offset) == []
    assert leader.counters == {"batch_too_large_for_follower": 3}
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "batch too large for the follower partition=orders/3 offset=0 " in caplog.messages[0]


def test_replication_server_with_an_unreadable_log_counts_the_failed_read_and_sends_no_response() -> None:
    leader = Leader()
    add(leader.log, 1)
    leader.log.close()
    assert leader.answer(leader.fetch()) == []
    assert leader.counters == {"fetch_read_failed": 1}


def test_replication_server_drops_the_oldest_unanswered_requests_above_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "_MAX_TOKENS", 2)
    leader = Leader()
    first, second, third = leader.fetch(), leader.fetch(), leader.fetch()
    assert [len(leader.answer(token)) for token in (first, second, third)] == [0, 1, 1]


# ---- the follower's side -------------------------------------------------------------------------------------------------------
class Follower:
    """A follower's client, what it has sent and heard."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.is_up = True
        self.bus: Any = SimpleNamespace(inbox="liftpy.inbox.n2", max_payload=max_payload, listen=self._listen, send=self._send)
        self.heard: list[Any] = []
        self.counters: Counter[str] = Counter()
        self.router = AnswerRouter(self.bus)
        self.client = FetchClient(self.router, Subjects("liftpy"), KEY, "n2", self.heard.append, self.counters)

    def _listen(self, subject: str, sink: Any) -> Any:
        self.subject, self.sink = subject, sink
        return SimpleNamespace(close=lambda: None)

    def _send(self, subject: str, pieces: Any, reply: str) -> bool:
        self.sent.append((subject, b"".join(pieces), reply))
        return self.is_up

    def fetch(self, request_id: int = 41, **more: Any) -> pb.ReplicationRequest:
        fields = {
            "replica": "n2", "incarnation": 46, "stream_uid": "u1", "request_id": request_id, "offset": 42, "offset_epoch": 43,
            "leader_epoch": 44, "max_bytes": 45, "awaits_more": True, "bad_offset": None, "flush_ns": 0, "copy_epoch": 47,
            "deletes_end": 48,
        }  # fmt: skip
        self.client.send_fetch(FetchRequest(**{**fields, **more}))  # type: ignore[arg-type]
        subject, frame, reply = self.sent.pop()
        assert (subject, reply) == (FETCH, f"liftpy.inbox.n2.1.{request_id}")
        return frames.decode(frame, pb.ReplicationRequest)

    def answered(self, frame: bytes, request_id: int = 41) -> Any:
        self.sink(f"liftpy.inbox.n2.1.{request_id}".encode(), b"", frame, b"")
        return self.heard.pop()


def test_fetch_client_rejection_with_an_unknown_reason_becomes_an_event() -> None:
    follower = Follower()
    refusal = pb.ReplicationRefusal(reason=RefusalReason.DIVERGED.value, leaderEpoch=7, logStartOffset=8)  # type: ignore[arg-type]
    assert follower.answered(frames.seal(refusal)) == FetchRefusal(
        request_id=41, reason=RefusalReason.DIVERGED, leader_epoch=7, log_start_offset=8
    )
    refusal.reason = 99  # type: ignore[assignment]
    assert follower.answered(frames.seal(refusal)).reason is RefusalReason.UNKNOWN, "of a later version"
    end = pb.LeaderEpochOffsetResponse(endOffset=1, leaderEpoch=2, currentEpoch=3, logStartOffset=4)
    assert follower.answered(frames.seal(end)) == EpochAnswer(
        request_id=41, leader_epoch=2, last_offset=1, current_epoch=3, log_start_offset=4
    )


# ---- pieces --------------------------------------------------------------------------------------------------------------------
def pieces_of(batch: bytes, size: int) -> list[bytes]:
    crc = parse_header(memoryview(batch)).crc
    found = []
    for at in range(0, len(batch), size):
        piece = Piece(crc, len(batch), at, memoryview(batch)[at : at + size])
        found.append(frames.replication_piece_header(44, 40, piece) + bytes(piece.data))
    return found


def test_fetch_client_last_fragment_completes_the_batch_and_frees_its_bytes() -> None:
    follower = Follower()
    batch = build_batch([b"v" * 2500], base_offset=43, leader_epoch=5)
    *first, last = pieces_of(batch, 1000)
    for number, frame in enumerate(first, 1):
        follower.fetch(40 + number)
        assert follower.answered(frame, 40 + number) == events.FetchPieceArrived(request_id=40 + number, leader_epoch=44)
        assert follower.router.fragment_reassembly_bytes == len(batch), "room for the whole"
        assert follower.client.fragment_reassembly_bytes == 1000 * number
    asked = follower.fetch(50)
    assert (asked.position, asked.batchCrc) == (1000 * len(first), parse_header(memoryview(batch)).crc)
    answer = follower.answered(last, 50)
    span = events.BatchSpan(base_offset=43, last_offset=43, leader_epoch=5)
    assert answer == events.FetchAnswered(
        token=1, request_id=50, leader_epoch=44, high_watermark=40, spans=(span,), size_bytes=len(batch)
    )
    assert bytes(follower.client.fetched[1].buffer) == batch
    assert (follower.router.fragment_reassembly_bytes, follower.client.fragment_reassembly_bytes) == (0, 0)
    assert follower.counters == {"batch_chunks_received": 3}


def test_fetch_client_unexpected_fragment_is_reported_and_dropped() -> None:
    follower = Follower()
    first, *_ = pieces_of(build_batch([b"v" * 2500], base_offset=43, leader_epoch=5), 1000)
    assert follower.answered(first) == events.FetchPieceArrived(request_id=41, leader_epoch=44)
    assert (follower.router.fragment_reassembly_bytes, follower.client.fragment_reassembly_bytes) == (0, 0)
    assert not follower.counters


def test_fetch_client_fragment_above_the_reassembly_limit_waits_unless_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "ASSEMBLING_BYTES", 5000)
    follower = Follower()
    assert follower.router.reserve(9, 5001), "one alone"
    batch = build_batch([b"v" * 2500], base_offset=43, leader_epoch=5)
    first, *_ = pieces_of(batch, 1000)
    follower.fetch()
    assert follower.answered(first) == events.FetchPieceArrived(request_id=41, leader_epoch=44, has_room=False)
    assert follower.counters == {"batch_chunks_delayed": 1}
    assert follower.router.reserve(9, 4000), "who has begun goes on"
    follower.router.reserve(9, 5000 - len(batch))
    follower.fetch(42)
    assert follower.answered(first, 42).has_room
    assert follower.router.fragment_reassembly_bytes == 5000
    follower.client.forget_pieces()
    assert follower.router.fragment_reassembly_bytes == 5000 - len(batch)


# ---- slots ---------------------------------------------------------------------------------------------------------------------
def test_response_router_finds_partition_and_request_by_subject() -> None:
    follower = Follower()
    told: list[Any] = []
    assert follower.subject == "liftpy.inbox.n2.*.*"
    slot = follower.router.add(lambda *answer: told.append(answer))
    assert slot == 2
    follower.sink(b"liftpy.inbox.n2.2.77", b"", b"payload", b"headers")
    assert told == [(77, b"payload", b"headers")]
    for wrong in (b"3.77", b"2.", b"2.x", b"2.-1", b"2." + b"1" * 20, b"2.1.1"):
        follower.sink(b"liftpy.inbox.n2." + wrong, b"", b"", b"")
    assert len(told) == 1
    follower.sink(b"liftpy.inbox.n2.2." + b"9" * 19, b"", b"", b"")
    assert told.pop()[0] == 10**19 - 1
    follower.router.remove(slot)
    follower.sink(b"liftpy.inbox.n2.2.78", b"", b"", b"")
    assert len(told) == 1


BATCH = build_batch([b"x" * 900], base_offset=5, leader_epoch=2)


def test_fetch_client_after_close_holds_no_bytes_and_reports_no_response() -> None:
    follower = Follower()
    answer = frames.replication_response_header(2, 4, (BATCH,)) + BATCH
    answered = follower.answered(answer)
    assert (answered.request_id, answered.leader_epoch, answered.high_watermark) == (41, 2, 4)
    assert answered.spans == (events.BatchSpan(base_offset=5, last_offset=5, leader_epoch=2),)
    assert list(follower.client.fetched) == [answered.token]
    follower.client.close()
    assert follower.client.fetched == {}
    follower.sink(b"liftpy.inbox.n2.1.41", b"", answer, b"")
    assert follower.heard == []


def test_fetch_client_request_fails_on_no_responders_and_not_on_an_unreadable_response() -> None:
    follower = Follower()
    for noise in (b"", b"x" * 30, envelope.encode(envelope.MessageType.STATUS_REQUEST, b"x")):
        follower.sink(b"liftpy.inbox.n2.1.9", b"", noise, b"")
    assert follower.heard == [], "anybody can send it: the response may still come"
    follower.sink(b"liftpy.inbox.n2.1.9", b"", b"", b"NATS/1.0 503\r\n\r\n")
    assert [(type(event), event.request_id) for event in follower.heard] == [(events.RequestFailed, 9)]
