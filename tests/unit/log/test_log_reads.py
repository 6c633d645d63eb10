"""Test the bounds, times and epochs of reads, as batches and as Arrow [D7]."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from liftpy.config import StreamConfig
from liftpy.core.log import arrow
from liftpy.core.log.leader_epochs import EpochCache
from liftpy.core.log.log import Log
from liftpy.core.log.reading import first_offset_at, offset_before
from liftpy.core.log.segment import INDEX_INTERVAL_BYTES
from liftpy.core.log.storage import MemoryFile, MemoryStorage
from liftpy.core.wire.batch import split_batches
from tests.batches import build_batch
from tests.each import each
from tests.unit.log.small_logs import S, a_log, add, filled


@each("hw", range(-1, 8))
@each("max_bytes", [1, 300, 1 << 20])
def test_log_read_returns_no_record_above_the_high_watermark(hw: int, max_bytes: int) -> None:
    log = a_log()
    for count in (1, 3, 2, 2):
        add(log, count)
    log.flush()
    if hw >= 0:
        log.raise_high_watermark(hw)
    for start in range(hw + 2):
        result = log.read(start, max_bytes)
        batches = [batch for chunk in result.chunks for batch in split_batches(chunk)]
        assert all(batch.last_offset <= hw for batch in batches)
        part = log.read_part(start, 0, 10)
        assert part is None or part[0].last_offset <= hw
        ends = [0, 1, 4, 6, 8]
        if any(start < end <= hw + 1 for end in ends):
            assert batches or start >= max(end for end in ends if end <= hw + 1)


@pytest.mark.parametrize("max_bytes", [1, 250, 400, 700, 1 << 20])
def test_log_read_with_any_response_size_returns_every_batch_once(max_bytes: int) -> None:
    log = filled(12)
    found, at = [], 0
    while at <= log.high_watermark:
        result = log.read(at, max_bytes)
        batches = [batch for chunk in result.chunks for batch in split_batches(chunk)]
        assert batches[0].base_offset == at
        assert [b.next_offset for b in batches[:-1]] == [b.base_offset for b in batches[1:]]
        assert result.next_offset == batches[-1].next_offset
        assert result.size_bytes <= max(max_bytes, len(batches[0].view))
        found += batches
        at = result.next_offset
    assert [offset for batch in found for offset in batch.offsets().tolist()] == list(range(24))


def test_log_offset_for_timestamp_with_falling_timestamps_returns_the_first_match() -> None:
    log = a_log()
    times = [10, 20, 5, 30, 30, 7, 40]
    for number, time_s in enumerate(times):
        if number in (3, 5):
            log.roll()
        add(log, timestamp_ns=time_s * S, size=INDEX_INTERVAL_BYTES // 2)
    log.flush()
    for wanted_s in range(45):
        first = next((n for n, time_s in enumerate(times) if time_s >= wanted_s), None)
        assert first_offset_at(log.segments, wanted_s * S) == first, wanted_s
        assert offset_before(log.segments, wanted_s * S) <= (len(times) if first is None else first), wanted_s
    assert [segment.max_timestamp_ns // S for segment in log.segments] == [20, 30, 40]


def test_log_offset_for_timestamp_after_a_restart_reads_only_the_blocks_around_the_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node answers such requests on its event loop, and a segment has 256 MiB by default."""
    storage = MemoryStorage()
    log = a_log(storage)
    for number in range(100):
        add(log, timestamp_ns=number * S, size=INDEX_INTERVAL_BYTES // 2)
    log.roll()
    log.close()
    log, sizes, read = a_log(storage), list[int](), MemoryFile.read

    def counted(file: MemoryFile, position: int, size_bytes: int) -> memoryview:
        data = read(file, position, size_bytes)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(MemoryFile, "read", counted)
    assert [log.offset_for_timestamp(wanted_s * S) for wanted_s in (3, 40)] == [3, 40]
    assert sum(sizes) <= 2 * 6 * INDEX_INTERVAL_BYTES


def test_epoch_cache_returns_the_epoch_of_an_offset_and_the_end_offset_of_an_epoch() -> None:
    cache = EpochCache([(1, 0), (4, 7), (6, 9)])
    assert [cache.epoch_at(offset) for offset in (0, 6, 7, 8, 9, 20)] == [1, 1, 4, 4, 6, 6]
    assert [cache.end_offset_for(epoch, 12) for epoch in (0, 1, 3, 4, 5, 6, 9)] == [
        (0, 0), (1, 7), (1, 7), (4, 9), (4, 9), (6, 12), (6, 12),
    ]  # fmt: skip
    for end, left in ((12, 3), (10, 3), (9, 2), (8, 2), (7, 1), (1, 1), (0, 0)):
        cache = EpochCache([(1, 0), (4, 7), (6, 9)])
        cache.truncate(end)
        assert len(cache.entries) == left


def test_to_arrow_with_a_column_above_2_gib_raises_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Column:
        ends = np.array([1 << 30], dtype=np.uint32)
        data = memoryview(b"")
        validity = None

    part: Any = arrow._ColumnPart(Column(), 0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 GiB"):
        arrow._bytes_array([part, part], arrow.pa.binary())


# ---- across segments -------------------------------------------------------------------------------------------------------
def test_log_read_with_any_size_limit_returns_contiguous_batches_across_segments() -> None:
    log, _ = Log.open(MemoryStorage(), StreamConfig(segment_bytes=4096))
    for offset in range(200):
        log.append(build_batch([b"x" * (10 if offset % 7 else 900)], base_offset=offset, leader_epoch=1))
    log.flush()
    assert len(log.segments) > 3
    for max_bytes in (1, 500, 1000, 4000, 5000, 9000):
        for start in range(0, 200, 3):
            result = log.read(start, max_bytes, end_offset=200)
            offsets = [batch.base_offset for chunk in result.chunks for batch in split_batches(chunk)]
            assert offsets == list(range(start, result.next_offset)), (start, max_bytes)


def test_segment_locate_with_cached_positions_equals_a_scan() -> None:
    log, _ = Log.open(MemoryStorage(), StreamConfig())
    offset = 0
    for number in range(100):
        count = 1 + number % 5
        log.append(build_batch([b"x" * (number % 11)] * count, base_offset=offset, leader_epoch=1))
        offset += count
    (segment,) = log.segments
    quick = [segment.locate(wanted) for wanted in range(offset + 2)]
    segment.recent.clear()
    assert quick == [segment.locate(wanted) for wanted in range(offset + 2)]
    assert quick[-2:] == [segment.size_bytes] * 2
