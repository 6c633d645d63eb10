"""Test the sizes of offset ranges and the first offsets of their batches against a list of all batches."""

from __future__ import annotations

import itertools
import random

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import MAX_BOUNDARIES, RangeSize, measure
from liftpy.core.log.segment import log_name
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import CorruptionError
from tests.batches import build_batch
from tests.long import sampled


def filled(
    counts: list[int], *, segment_bytes: int = 1 << 30, value: bytes = b"v" * 50, storage: MemoryStorage | None = None
) -> Log:
    log, _ = Log.open(storage or MemoryStorage(), StreamConfig(segment_bytes=segment_bytes))
    for count in counts:
        log.append(build_batch([value] * count, base_offset=log.log_end_offset, leader_epoch=1))
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def batches_of(log: Log) -> list[tuple[int, int]]:
    """(base offset, size in bytes) of all batches."""
    return [(h.base_offset, h.size_bytes) for s in log.segments for _, h in s.batches(0, s.size_bytes)]


def model(log: Log, start: int, end: int, every_bytes: int = 0, every_records: int = 0) -> RangeSize:
    """The same by looking at every batch."""
    ends = [base for base, _ in batches_of(log)[1:]] + [log.log_end_offset]
    held = [(base, size) for (base, size), after in zip(batches_of(log), ends, strict=True) if base < end and after > start]
    positions = [0, *itertools.accumulate(size for _, size in held)]
    borders = [(base, at) for (base, _), at in zip(held, positions, strict=False) if base > start]
    found: list[tuple[int, int]] = []
    if every_bytes:
        for wanted in range(every_bytes, positions[-1], every_bytes):
            found += [b for b in borders if b[1] <= wanted][-1:]
    before = start
    while every_records and before + every_records < end:
        later = [b for b in borders if b[0] > before]
        step = [b for b in later if b[0] <= before + every_records][-1:] or later[:1]
        if not step:
            break
        found += step
        before = step[0][0]
    found = sorted(set(found))[:MAX_BOUNDARIES]
    return RangeSize(positions[-1], tuple(b for b, _ in found), tuple(p for _, p in found))


def test_measure_range_of_the_documented_example_returns_its_size_and_split_offsets() -> None:
    log = filled([10] * 10)
    size = batches_of(log)[0][1]
    found = measure(log, 5, 87, every_bytes=size * 5 // 2)
    assert found == RangeSize(9 * size, (20, 50, 70), (2 * size, 5 * size, 7 * size))
    assert measure(log, 5, 87, every_records=25).borders == (30, 50, 70)
    assert measure(log, 5, 85, every_records=80).borders == ()
    assert measure(log, 5, 87) == RangeSize(9 * size)
    assert measure(log, 7, 7, every_bytes=1) == RangeSize(0)


@pytest.mark.parametrize("seed", sampled(range(3), 3))
def test_measure_range_returns_the_same_split_offsets_for_any_segment_size(seed: int) -> None:
    rng = random.Random(seed)
    counts = [rng.choice((1, 1, 3, 40, 700)) for _ in range(120)]
    logs = [filled(counts, segment_bytes=size) for size in (1 << 30, 60_000, 20_000)]
    assert len(logs[2].segments) > len(logs[1].segments) > 1
    end = logs[0].log_end_offset
    for _ in sampled(range(40), 4):
        low, high = sorted(rng.sample(range(end + 1), 2))
        how = rng.choice(
            ({"every_bytes": rng.choice((1, 100, 5_000, 70_000, 10**7))}, {"every_records": rng.choice((1, 50, 900))})
        )
        wanted = model(logs[0], low, high, **how)
        for log in logs:
            assert measure(log, low, high, **how) == wanted


def test_measure_range_returns_a_bounded_number_of_split_offsets_and_continues_after_them() -> None:
    log = filled([1] * 300)
    found: list[int] = [0]
    while more := measure(log, found[-1], 300, every_bytes=1).borders:
        assert len(more) <= MAX_BOUNDARIES
        found += more
    assert found == list(range(300))


def test_measure_range_with_a_damaged_index_block_reports_damage() -> None:
    storage = MemoryStorage()
    log = filled([100] * 200, storage=storage)
    log.close()
    name = log_name(0)
    content = storage.files[name].data
    told: list[CorruptionError] = []
    reopened, _ = Log.open(storage, StreamConfig(), clean=True)
    reopened.on_damage = told.append
    reopened.segments[0].checked = False
    at = reopened.segments[0].entries[5].position
    content[at + 70] ^= 1  # within a value: only the CRC tells
    with pytest.raises(CorruptionError):
        measure(reopened, 0, 20_000, every_bytes=reopened.segments[0].entries[5].position + 1)
    assert told
