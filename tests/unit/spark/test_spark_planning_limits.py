"""Test boundary values of planning and fetching: new partitions, end times, leader epochs, deleted records."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.batch_view import BatchSlice
from liftpy.client.positions import Bounds
from liftpy.client.progress import ReadProgress
from liftpy.core.wire.batch import build_batch, parse_batch
from liftpy.errors import ConfigError, DataLossError, ProtocolError
from liftpy.spark.catalog import _view_of
from liftpy.spark.options import SourceOptions
from liftpy.spark.planning import PlannedRange
from liftpy.spark.range_reader import FetchRules, _after_loss, _Span, check_pieces


def planned(*, epoch: int = 3, compacted: bool = False) -> PlannedRange:
    return PlannedRange("s", "u1", 0, 0, 50, epoch, "n1", ("n1", "n2"), compacted)


def piece(base: int, count: int, epoch: int, deltas: list[int] | None = None) -> BatchSlice:
    batch = parse_batch(build_batch([b"v"] * count, base_offset=base, leader_epoch=epoch, offset_deltas=deltas))
    found = BatchSlice.between(batch, 0, None)
    assert found is not None
    return found


@pytest.mark.parametrize(("ending_at", "end"), [(None, None), (3, 3), (20, 20), (21, 20), (99, 20)])
def test_spark_planned_range_end_by_timestamp_is_limited_to_committed_records(ending_at: int | None, end: int | None) -> None:
    stream: Any = SimpleNamespace(name="s")
    partition: Any = SimpleNamespace(partition=4, replicas=("n1", "n2"))
    view = _view_of(stream, partition, Bounds("u1", "n1", "n2", 7, 5, 19), 6, ending_at)
    assert (view.ending_at, view.starting_at, view.log_start_offset, view.end_offset) == (end, 6, 5, 20)
    assert (view.stream, view.uid, view.partition, view.replicas, view.leader_epoch) == ("s", "u1", 4, ("n1", "n2"), 7)


@pytest.mark.parametrize(
    ("epochs", "before", "error"),
    [((3,), 0, None), ((4,), 0, DataLossError), ((2, 1), 0, ProtocolError), ((2,), 3, ProtocolError), ((2, 2), 2, None)],
)
def test_spark_fetch_of_a_batch_with_a_lower_or_unplanned_leader_epoch_is_rejected(
    epochs: tuple[int, ...], before: int, error: Any
) -> None:
    pieces = [piece(at, 1, epoch) for at, epoch in enumerate(epochs)]
    if error is None:
        assert check_pieces(planned(), pieces, before) == epochs[-1]
    else:
        with pytest.raises(error):
            check_pieces(planned(), pieces, before)


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize(("log_start", "goes_on"), [(21, 21), (30, 30), (60, 50)])
def test_spark_fetch_of_deleted_records_raises_data_loss_only_with_fail_on_data_loss(
    fail: bool, log_start: int, goes_on: int
) -> None:
    async def bounds(uid: str) -> tuple[Bounds, None]:
        assert uid == "u1"
        return Bounds("u1", "n9", "n2", 7, log_start, 99), None

    reader: Any = SimpleNamespace(bounds=bounds, node="n2")
    progress = ReadProgress("s", 0, 20, 50, uid="u1")
    span = _Span(planned(), FetchRules(fail_on_data_loss=fail), 20, 50, "n2", 1)
    if fail:
        with pytest.raises(DataLossError, match=rf"offsets \[20, {goes_on}\) were deleted after planning"):
            asyncio.run(_after_loss(reader, progress, span, 1))
        assert progress.next_offset == 20
    else:
        asyncio.run(_after_loss(reader, progress, span, 1))
        assert progress.next_offset == goes_on


def test_spark_include_headers_option_adds_the_headers_column() -> None:
    def columns(**given: str) -> tuple[str, ...]:
        return SourceOptions.parse({"stream": "s", **given}).columns

    assert columns(columns="value, headers", includeHeaders="true") == ("value", "headers")
    assert columns(columns="value") == ("value",)
    assert "headers" in columns(includeHeaders="true")
    assert "headers" not in columns()
    with pytest.raises(ConfigError, match="columns does not contain headers"):
        columns(columns="value", includeHeaders="true")
