"""Test reads of uncommitted records from the leader, and the read events of an application."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import consumer as consumer_module
from liftpy.client.closest_replica import ReplicaSelector
from liftpy.client.consumer import Consumer, EventKind, PartitionReader, ReadEvent, ReadOptions
from liftpy.client.positions import Position
from liftpy.client.retrying import retry_attempts
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, LiftError, LogTruncatedError, OffsetOutOfRangeError, UnavailableError
from liftpy.nats.transport import RequestTimeoutError
from tests.batches import build_batch

_Error = client_pb2.ReadResponse.Error
_Isolation = client_pb2.ReadRequest.Isolation


class Log:
    """A partition on two nodes. ``leader`` has all of ``batches``, who follows up to HW; both answer as
    ``liftpy/core/partition/reads.py``."""

    def __init__(self, options: ReadOptions, nearest: ReplicaSelector | None = None) -> None:
        self.leader, self.high_watermark, self.epoch = "n1", 3, 1
        self.batches = [build_batch([b"v%d" % n, b"w"], base_offset=n, leader_epoch=1) for n in range(0, 8, 2)]
        self.asked: list[tuple[str, client_pb2.ReadRequest]] = []
        self.failing: list[Exception] = []
        transport: Any = SimpleNamespace(
            max_payload_bytes=1 << 20,
            counters=Counter(),
            must_be_usable=lambda: None,
            on_close=lambda callback: lambda: None,
        )
        self.reader = PartitionReader(transport, Subjects("x"), "s", 0, options, nearest=nearest)
        self.reader._answer = self.answer  # type: ignore[method-assign]

    def lose(self, from_offset: int) -> None:
        """Change to a leader whose log ends at this offset."""
        self.batches = [batch for batch in self.batches if parse_batch(batch).base_offset < from_offset]
        self.leader, self.epoch = "n2", 2
        self.batches.append(build_batch([b"new"], base_offset=from_offset, leader_epoch=2))

    async def answer(self, node: str, request: client_pb2.ReadRequest, wait_s: float) -> bytes:
        await asyncio.sleep(0)
        node = node or "n2"
        self.asked.append((node, client_pb2.ReadRequest.FromString(request.SerializeToString())))
        if self.failing:
            raise self.failing.pop(0)
        head = client_pb2.ReadResponse(
            streamUid="u", node=node, leader=self.leader, leaderEpoch=self.epoch, highWatermark=self.high_watermark,
            nextOffset=request.offset, stream="s", partition=0, requestId=request.requestId,
        )  # fmt: skip
        past = request.isolation == _Isolation.UNCOMMITTED
        end = 1 << 60 if past else self.high_watermark + 1
        found = [b for b in map(parse_batch, self.batches) if b.next_offset > request.offset and b.next_offset <= end]
        log_end = parse_batch(self.batches[-1]).next_offset
        if past and node != self.leader:
            head.error, found = _Error.NOT_LEADER, []
        elif request.lastEpoch and request.lastEpoch < self.epoch:
            cut = min(b.base_offset for b in map(parse_batch, self.batches) if b.leader_epoch > request.lastEpoch)
            if request.lastOffset >= cut:
                head.error, head.cutEndOffset, found = _Error.CUT, cut, []
        elif request.minHighWatermark > self.high_watermark:
            head.error, found = _Error.NOT_READY, []
        elif not request.boundsOnly and request.offset > (log_end if past else end):
            head.error, found = _Error.OFFSET_OUT_OF_RANGE, []
        return frames.read_response_header(head) + b"".join([] if request.boundsOnly else [bytes(b.view) for b in found])


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(*given: Any, **named: Any) -> Any:
        made = retry_attempts(*given, **named)
        made.wait = lambda state: 0.0  # type: ignore[assignment]
        return made

    monkeypatch.setattr(consumer_module, "retry_attempts", quick)


UNCOMMITTED = ReadOptions(isolation="uncommitted")


async def taken(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += [record.offset for record in await consumer.getmany(count - len(found))]
    return found


async def test_uncommitted_read_is_sent_only_to_the_leader() -> None:
    log = Log(UNCOMMITTED)
    consumer = Consumer(log.reader, "earliest", None)
    assert await taken(consumer, 8) == list(range(8))
    asked = [(node, request.isolation) for node, request in log.asked if not request.boundsOnly]
    assert set(asked) == {("n1", _Isolation.UNCOMMITTED)}
    assert all(request.minHighWatermark == -1 for _, request in log.asked)
    committed = Log(ReadOptions())
    assert await taken(Consumer(committed.reader, "earliest", "end"), 4) == [0, 1, 2, 3]
    assert {request.isolation for _, request in committed.asked} == {_Isolation.COMMITTED}


async def test_uncommitted_read_answered_by_a_follower_is_resent_to_the_leader() -> None:
    log = Log(UNCOMMITTED)
    consumer = Consumer(log.reader, "earliest", None)
    await consumer.begin()
    log.reader.node = "n2"
    assert await taken(consumer, 8) == list(range(8))
    assert [node for node, request in log.asked if not request.boundsOnly][:2] == ["n2", "n1"]


async def test_uncommitted_read_of_a_truncated_log_raises_with_the_offset_to_resume() -> None:
    log = Log(UNCOMMITTED)
    consumer = Consumer(log.reader, "earliest", None)
    assert await taken(consumer, 7) == list(range(7))
    log.lose(6)
    with pytest.raises(LogTruncatedError, match="not committed") as error:
        await taken(consumer, 8)
    assert error.value.end_offset == 6
    await consumer.seek(6)
    (record,) = await consumer.getmany(1)
    assert (record.offset, record.value, record.leader_epoch) == (6, b"new", 2)


async def test_uncommitted_read_resumes_from_a_stored_position_unless_the_log_was_truncated() -> None:
    log = Log(UNCOMMITTED)
    consumer = Consumer(log.reader, "earliest", None)
    assert await taken(consumer, 7) == list(range(7))
    position = Position.parse(str(await consumer.position()))
    assert (position.offset, position.leader_epoch) == (7, 1)
    assert await taken(Consumer(Log(UNCOMMITTED).reader, position, None), 1) == [7]
    with pytest.raises(OffsetOutOfRangeError):
        await Consumer(Log(ReadOptions()).reader, Position("u", 7), None).begin()
    log.lose(6)
    with pytest.raises(LogTruncatedError):
        await taken(Consumer(log.reader, position, None), 1)


@pytest.mark.parametrize(("start", "after_epoch", "is_lost"), [(2, 0, False), (2, 1, True), (Position("u", 2, 1), 0, True)])
async def test_consumer_start_behind_records_of_a_lost_epoch_raises_log_truncated(
    start: Any, after_epoch: int, is_lost: bool
) -> None:
    log = Log(ReadOptions())
    log.lose(0)
    log.batches.append(build_batch([b"new"] * 3, base_offset=1, leader_epoch=2))
    consumer = Consumer(log.reader, start, "end", after_epoch)
    if not is_lost:
        assert await taken(consumer, 2) == [2, 3]
        return
    with pytest.raises(LogTruncatedError) as error:
        await taken(consumer, 2)
    assert error.value.end_offset == 0


@pytest.mark.parametrize(
    ("start", "after_epoch"), [(5, -1), (5, 1 << 63), (5, "1"), (0, 1), ("earliest", 1), (-5, 1), ("-10m", 1), ("-5", 1)]
)
async def test_consumer_with_an_after_epoch_that_cannot_be_checked_raises_config_error(start: Any, after_epoch: Any) -> None:
    with pytest.raises(ConfigError, match="after_epoch"):
        Consumer(Log(ReadOptions()).reader, start, None, after_epoch)


def test_uncommitted_read_with_invalid_isolation_or_backwards_raises_config_error() -> None:
    wrong: Any = "read_committed"
    with pytest.raises(ConfigError, match=r"Invalid isolation 'read_committed'\. Use committed or uncommitted"):
        ReadOptions(isolation=wrong)

    async def backwards() -> None:
        Consumer(Log(UNCOMMITTED).reader, "latest", None, backwards=True)

    with pytest.raises(ConfigError, match="backwards=True cannot be combined with"):
        asyncio.run(backwards())


# ---- events --------------------------------------------------------------------------------------------------------------------
async def test_read_events_report_answers_failures_and_replica_changes() -> None:
    told: list[ReadEvent] = []
    log = Log(ReadOptions(on_event=told.append))
    consumer = Consumer(log.reader, "earliest", "end")
    await consumer.begin()
    log.reader.node = "n2"
    assert await taken(consumer, 4) == [0, 1, 2, 3]
    (first,) = told
    assert (first.kind, first.stream, first.partition, first.node, first.records) == (EventKind.ANSWERED, "s", 0, "n2", 4)
    assert first.size_bytes > sum(map(len, log.batches[:2]))
    assert first.took_s >= 0
    told.clear()
    log.failing = [RequestTimeoutError("no ack arrived")]
    log.high_watermark = 7
    consumer = Consumer(log.reader, 4, "end")
    await consumer.begin()
    log.failing, log.reader.node = [RequestTimeoutError("no ack arrived")], "n1"
    assert await taken(consumer, 4) == [4, 5, 6, 7]
    assert [(event.kind, event.node, event.detail) for event in told] == [
        (EventKind.FAILED, "n1", "REQUEST_TIMEOUT: no ack arrived"),
        (EventKind.ANSWERED, "n2", ""),
    ]
    told.clear()
    consumer = Consumer(log.reader, "earliest", "end")
    await consumer.begin()
    log.reader.node = "n1"
    await taken(consumer, 8)
    assert [(event.kind, event.node, event.detail) for event in told] == [
        (EventKind.MOVED, "n1", "n2"),
        (EventKind.ANSWERED, "n1", ""),
    ]


async def test_read_event_callback_that_raises_is_logged_and_the_read_continues(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def fails(event: ReadEvent) -> None:
        nonlocal calls
        calls += 1
        raise KeyError(event.kind)

    log = Log(ReadOptions(on_event=fails))
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            assert await taken(Consumer(log.reader, "earliest", "end"), 4) == [0, 1, 2, 3]
    assert calls == 5
    assert 1 <= len([record for record in caplog.records if "on_event" in record.message]) < 5


async def test_read_events_report_the_failure_that_ends_a_read() -> None:
    told: list[ReadEvent] = []
    log = Log(ReadOptions(on_event=told.append, patience_s=0.05))
    consumer = Consumer(log.reader, "earliest", "end")
    await consumer.begin()
    log.failing = [UnavailableError("no")] * 100_000
    with pytest.raises(LiftError):
        await consumer.getone()
    assert {event.kind for event in told} == {EventKind.FAILED}
