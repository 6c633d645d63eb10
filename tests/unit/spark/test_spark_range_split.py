"""Test the split of ranges and micro-batches by bytes at batch boundaries, without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.client.progress import RangeFacts
from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import measure
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import ConfigError
from liftpy.spark.offsets import Bounds
from liftpy.spark.planning import PlannedRange, RangeRequest, end_within_bytes, split_at_borders
from tests.batches import build_batch

UIDS = {"s": "u"}


class Logs:
    """The partitions of stream ``s`` with batches of these record counts. Each record has ``size`` bytes."""

    def __init__(self, *partitions: Sequence[int], size: int = 100) -> None:
        self.asked: list[RangeRequest] = []
        self.logs = []
        for counts in partitions:
            log, _ = Log.open(MemoryStorage(), StreamConfig())
            for count in counts:
                log.append(build_batch([b"v" * size] * count, base_offset=log.log_end_offset, leader_epoch=1))
            log.raise_high_watermark(log.newest_offset)
            self.logs.append(log)

    def measure(self, questions: Sequence[RangeRequest]) -> list[RangeFacts]:
        self.asked += questions
        found = []
        for q in questions:
            assert q.uid == "u"
            size = measure(self.logs[q.key[1]], q.start, q.end, every_bytes=q.every_bytes, every_records=q.every_records)
            found.append(RangeFacts(q.start, q.end, size.size_bytes, size.borders, size.positions))
        return found

    def whole(self, *, compacted: bool = False) -> list[PlannedRange]:
        return [
            PlannedRange("s", "u", i, 0, log.log_end_offset, 1, "n1", ("n1",), compacted=compacted)
            for i, log in enumerate(self.logs)
        ]

    def ends(self) -> Bounds:
        return {("s", i): log.log_end_offset for i, log in enumerate(self.logs)}

    def borders(self, number: int) -> set[int]:
        log = self.logs[number]
        return {h.base_offset for s in log.segments for _, h in s.batches(0, s.size_bytes)} | {log.log_end_offset}

    def bytes_of(self, starts: Bounds, ends: Bounds) -> int:
        return sum(measure(self.logs[key[1]], starts[key], end).size_bytes for key, end in ends.items())


def pieces(ranges: list[PlannedRange]) -> list[tuple[int, int, int]]:
    return [(r.partition, r.start_offset, r.end_offset) for r in ranges]


def test_spark_planned_range_split_equals_the_docs_example() -> None:
    logs = Logs([10] * 90, [10] * 10)
    assert pieces(split_at_borders(logs.whole(), 5, 0, logs.measure)) == [
        (0, 0, 180), (0, 180, 360), (0, 360, 540), (0, 540, 720), (0, 720, 900), (1, 0, 100),
    ]  # fmt: skip
    assert len(logs.asked) == 3, "one for the size of each partition, and one for the borders"


def test_spark_planned_range_split_is_even_by_bytes() -> None:
    log, _ = Log.open(MemoryStorage(), StreamConfig())
    for size in (10, 2000):
        for _ in range(50):
            log.append(build_batch([b"v" * size] * 10, base_offset=log.log_end_offset, leader_epoch=1))
    logs = Logs([1])
    logs.logs = [log]
    (first, second) = split_at_borders(logs.whole(), 2, 0, logs.measure)
    assert first.end_offset >= 740
    assert measure(log, 0, first.end_offset).size_bytes == pytest.approx(
        measure(log, second.start_offset, 1000).size_bytes, rel=0.1
    )


def test_spark_planned_range_split_into_one_piece_per_range_sends_no_request() -> None:
    logs = Logs([10] * 9, [10])
    assert split_at_borders(logs.whole(), 2, 90, logs.measure) == logs.whole()
    assert split_at_borders([], 5, 5, logs.measure) == []
    assert logs.asked == []


def test_spark_planned_range_split_cuts_inside_a_batch_only_without_a_batch_boundary() -> None:
    logs = Logs([50, 50])
    found = pieces(split_at_borders(logs.whole(), 5, 0, logs.measure))
    assert len(found) >= 5
    assert 50 in {start for _, start, _ in found}, "the border that there is"
    large = Logs([10, 100, 10])
    assert pieces(split_at_borders(large.whole(), 0, 40, large.measure)) == [
        (0, 0, 10), (0, 10, 43), (0, 43, 76), (0, 76, 110), (0, 110, 120),
    ]  # fmt: skip


def test_spark_planned_range_split_into_many_pieces_sends_several_requests() -> None:
    logs = Logs([1] * 1000)
    assert [r.record_count for r in split_at_borders(logs.whole(), 500, 0, logs.measure)] == [2] * 500
    assert pieces(split_at_borders(logs.whole(), 0, 1, logs.measure)) == [(0, i, i + 1) for i in range(1000)]
    uneven = Logs([1, 7, 3, 5, 11] * 200)
    cut = split_at_borders(uneven.whole(), 400, 0, uneven.measure)
    assert {r.start_offset for r in cut} <= uneven.borders(0), "also what a second answer told"
    assert len(cut) >= 400


@pytest.mark.parametrize("compacted", [True, False])
def test_spark_planned_range_split_of_compacted_or_unmeasured_partitions_is_even_by_offsets(compacted: bool) -> None:
    logs = Logs([70, 30])

    def silent(questions: Sequence[RangeRequest]) -> list[RangeFacts]:
        return [RangeFacts(q.start, q.end) for q in questions]

    asked = logs.measure if compacted else silent
    assert pieces(split_at_borders(logs.whole(compacted=compacted), 4, 0, asked)) == [(0, i, i + 25) for i in (0, 25, 50, 75)]
    assert pieces(split_at_borders(logs.whole(compacted=compacted), 0, 60, asked)) == [(0, 0, 50), (0, 50, 100)]


def test_spark_planned_range_split_into_too_many_pieces_raises_before_a_request() -> None:
    logs = Logs([1])
    huge = [PlannedRange("s", "u", 0, 0, 1 << 40, 1, "n1", ("n1",))]
    with pytest.raises(ConfigError, match="would be divided into"):
        split_at_borders(huge, 0, 5, logs.measure)
    assert logs.asked == []


counts = st.lists(st.lists(st.sampled_from([1, 2, 7, 60]), min_size=1, max_size=25), min_size=1, max_size=4)


@given(counts, st.integers(0, 40), st.integers(0, 80))
def test_spark_planned_range_split_covers_the_range_and_prefers_batch_boundaries(
    sizes: list[list[int]], least: int, most: int
) -> None:
    logs = Logs(*sizes)
    ranges = logs.whole()
    found = split_at_borders(ranges, least, most, logs.measure)
    assert len(found) >= min(least, sum(r.record_count for r in ranges))
    assert not most or all(p.record_count <= most for p in found)
    assert all(p.record_count > 0 for p in found)
    borders = [logs.borders(number) for number in range(len(sizes))]
    for whole in ranges:
        own = [p for p in found if p.partition == whole.partition]
        assert (own[0].start_offset, own[-1].end_offset) == (whole.start_offset, whole.end_offset)
        assert all(a.end_offset == b.start_offset for a, b in itertools.pairwise(own))
        inside = [p for p in own if p.start_offset not in borders[whole.partition]]
        own_counts = sizes[whole.partition]
        enough = len(set(own_counts)) == 1 and len(own_counts) >= least and (not most or max(own_counts) <= most)
        assert not inside or not enough
    assert found == split_at_borders(ranges, least, most, logs.measure)


# ---- maxBytesPerTrigger --------------------------------------------------------------------------------------------------
def test_spark_micro_batch_byte_limit_unused_by_small_partitions_is_divided_among_the_others() -> None:
    logs = Logs([10] * 90, [10] * 3, [10] * 20)
    one = logs.bytes_of({("s", 0): 0}, {("s", 0): 10})
    ends = end_within_bytes(33 * one, dict.fromkeys(logs.ends(), 0), logs.ends(), UIDS, logs.measure)
    assert ends == {("s", 0): 150, ("s", 1): 30, ("s", 2): 150}
    assert end_within_bytes(113 * one, dict.fromkeys(ends, 0), logs.ends(), UIDS, logs.measure) == logs.ends()


def test_spark_micro_batches_with_a_byte_limit_below_one_batch_read_batches_of_all_partitions() -> None:
    logs = Logs([10] * 3, [10] * 900)
    starts = dict.fromkeys(logs.ends(), 0)
    for _ in range(100):
        ends = end_within_bytes(1, starts, logs.ends(), UIDS, logs.measure)
        assert sum(ends.values()) == sum(starts.values()) + 10
        starts = ends
    assert starts["s", 0] == 30


def test_spark_micro_batch_byte_limit_reads_large_batches_while_others_have_small_ones() -> None:
    logs = Logs([900] * 3, [1] * 1500, [1] * 1500, [1] * 1500)
    starts = dict.fromkeys(logs.ends(), 0)
    limit = logs.bytes_of(starts, {("s", 0): 900}) * 11 // 10
    while not starts["s", 0]:
        starts = end_within_bytes(limit, starts, logs.ends(), UIDS, logs.measure)
    assert all(starts["s", number] < 1500 for number in (1, 2, 3)), "the others still have records"


@given(counts, st.integers(1, 20_000))
def test_spark_micro_batch_with_a_byte_limit_exceeds_the_limit_only_for_one_batch(sizes: list[list[int]], limit: int) -> None:
    logs = Logs(*sizes)
    starts = dict.fromkeys(logs.ends(), 0)
    borders = [logs.borders(number) for number in range(len(sizes))]
    for _ in range(sum(map(len, sizes)) + 1):
        ends = end_within_bytes(limit, starts, logs.ends(), UIDS, logs.measure)
        assert all(ends[key] >= starts[key] and ends[key] in borders[key[1]] for key in ends)
        moved = [key for key in ends if ends[key] > starts[key]]
        batches = sum(len([b for b in borders[key[1]] if starts[key] < b <= ends[key]]) for key in moved)
        assert logs.bytes_of(starts, ends) <= limit or batches == 1
        if ends == logs.ends():
            return
        assert moved, "a micro-batch takes something"
        starts = ends
    raise AssertionError("it does not come to an end")
