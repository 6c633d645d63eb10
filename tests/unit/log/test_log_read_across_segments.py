"""Test that a read that stops inside a segment does not continue in the next one [D15, R2]."""

from __future__ import annotations

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import build_batch, split_batches


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
