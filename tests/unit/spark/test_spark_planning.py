"""Test the planning of the Spark source, without Spark: checkpoint offsets, limits, ranges, data loss."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.errors import ConfigError, DataLossError, NotFoundError, OffsetOutOfRangeError
from liftpy.spark.offsets import OffsetSpec, StreamOffsets, check_uids, parse_spec, raise_to_start, share_out
from liftpy.spark.planning import (
    PartitionView,
    PlannedRange,
    plan_ranges,
    resolve_ends,
    resolve_starts,
    split_ranges,
)


def view(partition: int = 0, start: int = 0, end: int = 100, stream: str = "orders", **more: object) -> PartitionView:
    return PartitionView(
        stream=stream, uid=f"uid-{stream}", partition=partition, replicas=("n1", "n2", "n3"), leader="n1",
        leader_epoch=4, log_start_offset=start, end_offset=end, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def views(*all_views: PartitionView) -> dict[tuple[str, int], PartitionView]:
    return {v.key: v for v in all_views}


def spec(text: str) -> OffsetSpec:
    return parse_spec(text, "startingOffsets", words=("earliest", "latest"), specials=(-2, -1))


# ---- checkpoint offsets ------------------------------------------------------------------------------------------------


def test_spark_stream_offsets_read_from_a_checkpoint_equal_the_written_offsets() -> None:
    offsets = StreamOffsets({("orders", 0): 7, ("orders", 1): 0}, {"orders": "u"})
    assert StreamOffsets.from_json(json.loads(json.dumps(offsets.to_json()))) == offsets


def test_spark_stream_offsets_contain_known_leader_epochs() -> None:
    offsets = StreamOffsets(
        {("orders", 0): 7, ("orders", 1): 3, ("b", 0): 0}, {"orders": "u", "b": "v"}, {("orders", 1): 4, ("orders", 0): 0}
    )
    text = '{"b": {"0": 0, "uid": "v"}, "orders": {"0": 7, "1": 3, "epochs": {"1": 4}, "uid": "u"}}'
    assert json.dumps(offsets.to_json()) == text
    assert StreamOffsets.from_json(json.loads(text)).lasts == {("orders", 1): (2, 4)}
    for wrong in ({"1": "4"}, {"x": 4}, {"1": 0}, {"1": True}, [4], {"1": -4}):
        with pytest.raises(ConfigError, match="epochs"):
            StreamOffsets.from_json({"orders": {"0": 7, "uid": "u", "epochs": wrong}})


@pytest.mark.parametrize("document", [{"orders": {"0": 1}}, {"orders": 5}, {"orders": {"0": "1", "uid": "u"}}, {"a b": {}}])
def test_spark_stream_offsets_of_another_source_are_rejected(document: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        StreamOffsets.from_json(document)


def test_spark_stream_offsets_of_a_recreated_stream_are_rejected() -> None:
    check_uids({"orders": "u1", "gone": "x"}, {"orders": "u1", "new": "u2"})
    with pytest.raises(NotFoundError, match="deleted and created again"):
        check_uids({"orders": "u1"}, {"orders": "u2"})


def test_spark_planned_offsets_never_decrease_and_contain_all_earlier_partitions() -> None:
    assert raise_to_start({("s", 0): 3, ("s", 1): 9, ("s", 2): 1}, {("s", 0): 5, ("s", 1): 9, ("s", 9): 4}) == {
        ("s", 0): 5, ("s", 1): 9, ("s", 2): 1, ("s", 9): 4,
    }  # fmt: skip


# ---- limits ------------------------------------------------------------------------------------------------------------
def test_spark_micro_batch_record_limit_is_divided_in_proportion_to_the_backlog() -> None:
    start, end = {("s", 0): 0, ("s", 1): 100}, {("s", 0): 900, ("s", 1): 200}
    assert share_out(100, start, end) == {("s", 0): 90, ("s", 1): 110}
    assert share_out(1000, start, end) == end
    assert share_out(1, start, end) == {("s", 0): 1, ("s", 1): 100}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1, max_size=6), st.integers(1, 300))
def test_spark_micro_batch_with_a_record_limit_has_exactly_that_many_records_until_the_last(
    sizes: list[tuple[int, int]], limit: int
) -> None:
    start = {("s", i): first for i, (first, _) in enumerate(sizes)}
    end = {("s", i): first + count for i, (first, count) in enumerate(sizes)}
    total = sum(count for _, count in sizes)
    batches = 0
    while start != end:
        step = share_out(limit, start, end)
        taken = [step[key] - start[key] for key in start]
        assert all(0 <= n <= end[key] - start[key] for key, n in zip(start, taken, strict=True))
        assert sum(taken) == min(limit, sum(end[key] - start[key] for key in start))
        start, batches = step, batches + 1
    assert batches == -(-total // limit)


# ---- starts and ends ---------------------------------------------------------------------------------------------------
def test_spark_offset_words_and_kafka_values_resolve_to_offsets() -> None:
    both = views(view(0, 10, 100), view(1, 0, 50))
    assert resolve_starts(spec("earliest"), both) == {("orders", 0): 10, ("orders", 1): 0}
    assert resolve_starts(spec("latest"), both) == {("orders", 0): 100, ("orders", 1): 50}
    given_offsets = spec('{"orders": {"0": -2, "1": 23}}')
    assert resolve_starts(given_offsets, both) == {("orders", 0): 10, ("orders", 1): 23}
    assert resolve_ends(spec('{"orders": {"0": -1, "1": 50}}'), both) == {("orders", 0): 100, ("orders", 1): 50}


def test_spark_source_timestamps_without_an_entry_for_each_partition_raise_config_error() -> None:
    at = OffsetSpec(times=((("orders", 0), 5), (("orders", 1), 7)))
    both = views(view(0, starting_at=42), view(1, starting_at=100))
    assert resolve_starts(at, both) == {("orders", 0): 42, ("orders", 1): 100}
    with pytest.raises(OffsetOutOfRangeError, match=r"of orders/1 has a time of 7 ns or later"):
        resolve_starts(replace(at, must_match=True), both)
    with pytest.raises(ConfigError, match="Missing: orders/2"):
        resolve_starts(at, {**both, **views(view(2))})
    with pytest.raises(ConfigError, match="do not exist or are not read: orders/1"):
        resolve_starts(at, views(view(0)))


def test_spark_relative_offsets_resolve_to_offsets_before_the_end() -> None:
    both = views(view(0, 10, 100), view(1, 95, 100))
    assert resolve_starts(OffsetSpec(back_records=30), both) == {("orders", 0): 70, ("orders", 1): 95}
    assert resolve_ends(OffsetSpec(back_records=30), both) == {("orders", 0): 70, ("orders", 1): 95}


def test_spark_starting_offset_past_the_high_watermark_raises_offset_out_of_range_error() -> None:
    past = spec('{"orders": {"0": 101}}')
    for resolve in (resolve_starts, resolve_ends):
        with pytest.raises(OffsetOutOfRangeError, match="offset 101 of orders/0 is beyond the committed end 100"):
            resolve(past, views(view(0)))


# ---- ranges ------------------------------------------------------------------------------------------------------------


def test_spark_planned_range_below_the_log_start_raises_data_loss_or_skips_by_option() -> None:
    cut = views(view(0, 40, 100))
    with pytest.raises(DataLossError, match=r"OFFSET_OUT_OF_RANGE orders/0: offsets \[10, 40\) were deleted"):
        plan_ranges(cut, {("orders", 0): 10}, {("orders", 0): 80}, fail_on_data_loss=True)
    ranges, losses = plan_ranges(cut, {("orders", 0): 10}, {("orders", 0): 80}, fail_on_data_loss=False)
    assert [(r.start_offset, r.end_offset) for r in ranges] == [(40, 80)]
    assert len(losses) == 1


def test_spark_planned_range_deleted_completely_is_skipped_with_a_warning() -> None:
    cut = views(view(0, 90, 100))
    ranges, losses = plan_ranges(cut, {("orders", 0): 10}, {("orders", 0): 20}, fail_on_data_loss=False)
    assert ranges == []
    assert "offsets [10, 20) were deleted" in losses[0]


def test_spark_planned_range_past_a_shrunk_log_raises_data_loss() -> None:
    shrunk = views(view(0, 0, 50))
    with pytest.raises(DataLossError, match=r"offsets \[50, 80\) were committed"):
        plan_ranges(shrunk, {("orders", 0): 10}, {("orders", 0): 80}, fail_on_data_loss=True)


def test_spark_planned_range_lost_by_an_unclean_election_raises_data_loss() -> None:
    """The logs of the old and new leader are equal up to offset 40 at most."""
    both = views(view(0, 0, 100, cut_at=40, lost_ends=(60, 80)))
    for start in (10, 60):
        with pytest.raises(
            DataLossError, match=r"an unclean election lost records .*Only records below offset 40 can be unchanged"
        ):
            plan_ranges(both, {("orders", 0): start}, {("orders", 0): 80}, fail_on_data_loss=True)
    ranges, losses = plan_ranges(both, {("orders", 0): 10}, {("orders", 0): 80}, fail_on_data_loss=False)
    assert [(r.start_offset, r.end_offset) for r in ranges] == [(10, 40)], "what is there beyond is another micro-batch's"
    assert len(losses) == 1
    ranges, losses = plan_ranges(both, {("orders", 0): 60}, {("orders", 0): 80}, fail_on_data_loss=False)
    assert (ranges, len(losses)) == ([], 1), "and of this one nothing is left"
    ranges, losses = plan_ranges(both, {("orders", 0): 60}, {("orders", 0): 90}, fail_on_data_loss=False)
    assert [(r.start_offset, r.end_offset) for r in ranges] == [(40, 90)], "none of the new records is left out"
    assert plan_ranges(both, {("orders", 0): 10}, {("orders", 0): 30}, fail_on_data_loss=True)[1] == []


def test_spark_min_partitions_option_splits_ranges_as_in_the_docs_example() -> None:
    ranges = [
        PlannedRange("s", "u", 0, 0, 900, 1, "n1", ("n1",)),
        PlannedRange("s", "u", 1, 0, 100, 1, "n1", ("n1",)),
    ]
    pieces = [(r.partition, r.start_offset, r.end_offset) for r in split_ranges(ranges, 5)]
    assert pieces == [(0, 0, 180), (0, 180, 360), (0, 360, 540), (0, 540, 720), (0, 720, 900), (1, 0, 100)]
    assert split_ranges(ranges, 2) == ranges
    assert [r.record_count for r in split_ranges(ranges, 0, 100)] == [100] * 10
    assert [r.record_count for r in split_ranges(ranges, 0, 400)] == [300] * 3 + [100]
    assert [r.record_count for r in split_ranges(ranges, 20, 400)] == [50] * 20
    huge = [PlannedRange("s", "u", 0, 0, 1 << 40, 1, "n1", ("n1",))]
    with pytest.raises(ConfigError, match="would be divided into"):
        split_ranges(huge, 0, 5)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.integers(0, 40), st.integers(0, 300))
def test_spark_planned_range_pieces_cover_the_range_without_gap_or_overlap(
    sizes: list[int], min_partitions: int, most: int
) -> None:
    ranges = [PlannedRange("s", "u", i, 7, 7 + size, 1, "n1", ("n1",)) for i, size in enumerate(sizes)]
    pieces = split_ranges(ranges, min_partitions, most)
    assert len(pieces) >= min(min_partitions, sum(sizes))
    assert not most or all(p.record_count <= most for p in pieces)
    assert all(p.record_count > 0 for p in pieces)
    for whole in ranges:
        own = [p for p in pieces if p.partition == whole.partition]
        assert own[0].start_offset == whole.start_offset
        assert own[-1].end_offset == whole.end_offset
        assert all(a.end_offset == b.start_offset for a, b in itertools.pairwise(own))
    assert pieces == split_ranges(ranges, min_partitions, most)
