"""Test the planning of the Spark source, without Spark: checkpoint offsets, limits, ranges, data loss."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.errors import ConfigError, OffsetOutOfRangeError
from liftpy.spark.offsets import OffsetSpec, StreamOffsets, parse_spec, share_out
from liftpy.spark.planning import (
    PartitionView,
    resolve_ends,
    resolve_starts,
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


def test_spark_stream_offsets_contain_known_leader_epochs() -> None:
    offsets = StreamOffsets(
        {("orders", 0): 7, ("orders", 1): 3, ("b", 0): 0}, {"orders": "u", "b": "v"}, {("orders", 1): 4, ("orders", 0): 0}
    )
    text = '{"b": {"0": 0, "uid": "v"}, "orders": {"0": 7, "1": 3, "epochs": {"1": 4}, "uid": "u"}}'
    assert json.dumps(offsets.to_json()) == text
    read = StreamOffsets.from_json(json.loads(text))
    assert (read.lasts, read.to_json()) == ({("orders", 1): (2, 4)}, offsets.to_json())
    for wrong in ({"1": "4"}, {"x": 4}, {"1": 0}, {"1": True}, [4], {"1": -4}):
        with pytest.raises(ConfigError, match="epochs"):
            StreamOffsets.from_json({"orders": {"0": 7, "uid": "u", "epochs": wrong}})


@pytest.mark.parametrize("document", [{"orders": {"0": 1}}, {"orders": 5}, {"orders": {"0": "1", "uid": "u"}}, {"a b": {}}])
def test_spark_stream_offsets_of_another_source_are_rejected(document: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        StreamOffsets.from_json(document)


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


def test_spark_micro_batch_record_limit_reads_a_small_partition_while_a_large_backlog_lasts() -> None:
    start, end = {("s", 0): 0, ("s", 1): 0}, {("s", 0): 1_000_000, ("s", 1): 3}
    for count in (1, 2, 3):
        end["s", 0] += 1000  # the backlog never gets smaller
        start = share_out(1000, start, end)
        assert start["s", 1] == count


@given(st.integers(1, 40), st.integers(1, 40))
def test_spark_micro_batches_with_fewer_records_than_partitions_read_each_partition_in_turn(
    partitions: int, limit: int
) -> None:
    backlog = {("s", number): 1000 * (number + 1) for number in range(partitions)}
    start = first = {key: 7 * count for key, count in backlog.items()}
    for _ in range(-(-partitions // limit)):
        start = share_out(limit, start, {key: start[key] + count for key, count in backlog.items()})
    assert all(start[key] > first[key] for key in start)


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
