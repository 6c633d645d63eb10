"""Test the bounds, times and epochs of reads, as batches and as Arrow [D7]."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from liftpy.core.log import arrow
from liftpy.core.log.leader_epochs import EpochCache
from liftpy.core.log.reading import first_offset_at
from liftpy.core.log.segment import INDEX_INTERVAL_BYTES
from liftpy.core.log.storage import MemoryFile, MemoryStorage
from liftpy.core.wire.batch import RecordBatch, build_batch, parse_batch, split_batches
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
        cache.cut(end)
        assert len(cache.entries) == left


def three() -> list[RecordBatch]:
    made = [
        build_batch([b"a", b"b"], base_offset=0, leader_epoch=1, subjects=["x", "y"]),
        build_batch([b"-"], base_offset=2, leader_epoch=1, control=True),
        build_batch([b"c", b"d", b"e"], base_offset=3, leader_epoch=2, subjects=["y", "z", "z"]),
        build_batch([b"f"], base_offset=6, leader_epoch=2, subjects=["w"]),
    ]
    return [parse_batch(data) for data in made]


@each("start", [None, *range(8)])
@each("end", [None, *range(8)])
def test_to_arrow_range_includes_its_first_and_excludes_its_end_offset(start: int | None, end: int | None) -> None:
    rows = [(0, b"a", "x"), (1, b"b", "y"), (3, b"c", "y"), (4, b"d", "z"), (5, b"e", "z"), (6, b"f", "w")]
    table = arrow.to_arrow(three(), columns=("offset", "value", "subject"), from_offset=start, end_offset=end)
    wanted = [row for row in rows if row[0] >= (start or 0) and (end is None or row[0] < end)]
    assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == wanted


def test_to_arrow_with_a_column_above_2_gib_raises_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Column:
        ends = np.array([1 << 30], dtype=np.uint32)
        data = memoryview(b"")
        validity = None

    part: Any = arrow._ColumnPart(Column(), 0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 GiB"):
        arrow._bytes_array([part, part], arrow.pa.binary())
