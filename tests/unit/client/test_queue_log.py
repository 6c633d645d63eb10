"""Test the log of one partition as a queue worker reads it: cache limits, deleted records, waiting for the end."""

from __future__ import annotations

import pytest

from liftpy.client import queue_log as module
from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import ReadOptions
from liftpy.client.positions import Bounds
from liftpy.client.progress import RangeFacts, ReadProgress
from liftpy.client.queue_log import QueueLog
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import parse_batch
from liftpy.errors import OffsetOutOfRangeError
from tests.batches import build_batch


class Reader:
    """A replacement of PartitionReader with 40 records, two per answer. ``asked`` has (offset, floor of HW) of each fetch."""

    def __init__(self) -> None:
        self.count, self.log_start = 40, 0
        self.asked: list[tuple[int, int]] = []

    async def bounds(self, uid: str, *, last: tuple[int, int]) -> tuple[Bounds, int]:
        return Bounds("u1", "n1", "n1", 1, self.log_start, self.count - 1), 0

    async def fetch(self, progress: ReadProgress, max_bytes: int | None = None) -> list[BatchSlice]:
        self.asked.append((progress.next_offset, progress.floor_high_watermark))
        base = progress.next_offset & ~1
        made = build_batch([b"%d" % n + b"." * 500 for n in (base, base + 1)], base_offset=base, leader_epoch=1)
        found = BatchSlice.between(parse_batch(made), progress.next_offset, None)
        progress.next_offset, progress.high_watermark = base + 2, self.count - 1
        return [found] if found else []


def a_log(reader: Reader) -> QueueLog:
    return QueueLog(reader, PartitionKey("jobs", "u1", 0), ReadOptions())  # type: ignore[arg-type]


async def offsets(log: QueueLog, start: int, end: int) -> list[int]:
    return [record.offset for record in await log.records(start, end)]


@pytest.mark.parametrize(("buffer_bytes", "cached"), [(10_000, [38, 36]), (1, [38])], ids=["of some answers", "of one"])
async def test_queue_log_cache_keeps_the_newest_answers_up_to_its_limit(
    buffer_bytes: int, cached: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BUFFER_BYTES", buffer_bytes)
    reader = Reader()
    log = a_log(reader)
    for start in range(0, 40, 2):
        assert await offsets(log, start, start + 1) == [start]
    before = len(reader.asked)
    for start in cached:
        assert await offsets(log, start, start + 2) == [start, start + 1]
    assert len(reader.asked) == before
    assert await offsets(log, 0, 2) == [0, 1]
    assert len(reader.asked) == before + 1


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
