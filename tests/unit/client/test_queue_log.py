"""Test the log of one partition as a queue worker reads it: cache limits, deleted records, waiting for the end."""

from __future__ import annotations

import asyncio

import pytest

from liftpy.client import queue_log as module
from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import ReadOptions
from liftpy.client.positions import Bounds
from liftpy.client.progress import RangeFacts, ReadProgress
from liftpy.client.queue_log import QueueLog
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import build_batch, parse_batch
from liftpy.errors import LiftError, OffsetOutOfRangeError, UnavailableError


class Reader:
    """A replacement of PartitionReader with two records per answer. ``fails`` has the errors of the next fetches."""

    def __init__(self, count: int = 40) -> None:
        self.count = count
        self.log_start = 0
        self.fails: list[LiftError] = []
        self.asked: list[tuple[int, int]] = []
        """(offset, floor of HW)."""
        self.grown = asyncio.Event()

    async def bounds(self, uid: str, *, last: tuple[int, int]) -> tuple[Bounds, int]:
        return Bounds("u1", "n1", "n1", 1, self.log_start, self.count - 1), 0

    async def fetch(self, progress: ReadProgress, max_bytes: int | None = None) -> list[BatchSlice]:
        self.asked.append((progress.next_offset, progress.floor_high_watermark))
        if self.fails:
            raise self.fails.pop()
        if progress.next_offset >= self.count:
            await self.grown.wait()
        if progress.next_offset < self.log_start:
            raise OffsetOutOfRangeError("gone")
        base = progress.next_offset & ~1
        made = build_batch([b"%d" % n + b"." * 500 for n in (base, base + 1)], base_offset=base, leader_epoch=1)
        found = BatchSlice.between(parse_batch(made), progress.next_offset, None)
        progress.next_offset, progress.high_watermark = base + 2, self.count - 1
        return [found] if found else []


def a_log(reader: Reader) -> QueueLog:
    return QueueLog(
        reader,  # type: ignore[arg-type]
        PartitionKey("jobs", "u1", 0),
        ReadOptions(),
    )


async def offsets(log: QueueLog, start: int, end: int) -> list[int]:
    return [record.offset for record in await log.records(start, end)]


async def test_queue_log_cache_is_bounded_and_rereads_evicted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_BUFFER_BYTES", 10_000)
    reader = Reader()
    log = a_log(reader)
    for start in range(0, 40, 2):
        assert await offsets(log, start, start + 1) == [start]
        assert log._held_bytes == sum(one.cost_bytes for one in log._spans) <= 10_000
    before = len(reader.asked)
    assert await offsets(log, 39, 40) == [39]
    assert await offsets(log, 38, 40) == [38, 39]
    assert len(reader.asked) == before, "it is here"
    assert await offsets(log, 0, 2) == [0, 1]
    assert len(reader.asked) == before + 1
    monkeypatch.setattr(module, "READ_BUFFER_BYTES", 1)
    assert await offsets(log, 4, 6) == [4, 5]
    assert len(log._spans) == 1, "the newest answer is kept, however large"


async def test_queue_log_skips_records_removed_by_retention() -> None:
    reader = Reader()
    log = a_log(reader)
    reader.log_start = 5
    async with asyncio.timeout(20):
        assert await offsets(log, 2, 9) == [5, 6, 7, 8]
        assert await offsets(log, 0, 4) == []


async def test_queue_log_comparison_with_a_record_that_retention_deletes_meanwhile_finds_no_loss() -> None:
    class ShrinkingReader(Reader):
        async def measure(self, start: int, end: int, uid: str) -> RangeFacts:
            self.log_start = end
            raise OffsetOutOfRangeError("gone")

    log = a_log(ShrinkingReader())
    await log.compare(9, 1)
    assert log.compared == (1, 9)


async def test_queue_log_reads_only_from_replicas_with_the_granted_offsets() -> None:
    reader = Reader()
    await offsets(a_log(reader), 2, 6)
    assert reader.asked == [(2, 5), (4, 5)]


async def test_queue_log_end_watch_started_twice_is_one_task_until_the_log_end_advances() -> None:
    reader = Reader(4)
    log = a_log(reader)
    await log.refresh_bounds()
    first = log.watch()
    assert log.watch() is first
    await asyncio.sleep(0)
    assert not first.done()
    reader.count = 6
    reader.grown.set()
    await asyncio.wait({first}, timeout=20)
    assert (log.end_offset, log.has_more) == (6, True)
    reader.grown.clear()
    second = log.watch()
    assert second is not first
    await asyncio.sleep(0)
    assert not second.done()
    assert log.close() is second
    await asyncio.wait({second}, timeout=20)
    assert second.cancelled()
    assert log.close() is None


async def test_queue_log_end_watch_whose_request_fails_waits_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the delay, a worker that takes in a loop sends requests without a pause."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    reader = Reader()
    log = a_log(reader)
    reader.fails = [UnavailableError("nobody")]
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    await log.watch()
    assert slept == [module._FAILED_S]
