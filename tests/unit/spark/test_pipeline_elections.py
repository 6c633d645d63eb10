"""Test archives of streams that have lost archived records by an unclean election. No JVM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from liftpy.errors import DataLossError
from liftpy.spark.failures import SourceError
from liftpy.spark.pipelines import compact
from liftpy.spark.pipelines.archive import ArchivePlan, outlook, start_archive, whole
from liftpy.spark.pipelines.tables import table_at
from liftpy.spark.source import LiftDataSource
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakePartition
from tests.unit.spark.test_pipeline_foreign_commits import plan
from tests.unit.spark.test_pipeline_tombstones import archive_until_now

__all__ = ["plan"]


@pytest.fixture
def kind() -> str:
    return "delta"


@pytest.fixture
def log(plan: ArchivePlan, node: FakeNode) -> FakePartition:
    """Return the only partition of the stream ``orders``. The table of the plan has all of its ten records."""
    log = node.add_stream("orders", uid="uid").partitions[0]
    append(log, 0, 5, 1)
    append(log, 5, 10, 1)
    archive_until_now(plan, 0, None)
    return log


def append(log: FakePartition, start: int, end: int, epoch: int) -> None:
    log.append(build_batch([b"v"] * (end - start), base_offset=start, leader_epoch=epoch))


def lose_records(log: FakePartition) -> None:
    """Replace the records from offset 5 on, as an unclean election does."""
    log.batches.pop()
    log.leader_epoch = 4
    append(log, 5, 15, 4)


def accepting(plan: ArchivePlan) -> ArchivePlan:
    return replace(plan, source={**plan.source, "failOnDataLoss": "false"})


def start_of(plan: ArchivePlan) -> str:
    """Start the archive with a new checkpoint, and return the option startingOffsets of its query."""
    spark = MagicMock()
    spark.sparkContext.defaultParallelism = 1
    start_archive(spark, plan)
    return str(spark.readStream.format.return_value.options.call_args.kwargs["startingOffsets"])


def planned_ranges(plan: ArchivePlan, options: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the ranges that the query of ``whole`` reads from the stream."""
    spark = MagicMock()
    whole(spark, plan.table, "orders", options)
    given = spark.read.format.return_value.options.call_args.kwargs
    source = LiftDataSource({name.lower(): text for name, text in given.items()})
    return [(one.value.start_offset, one.value.end_offset) for one in source.reader(source.schema()).partitions()]


def test_spark_archive_with_a_new_checkpoint_after_an_unclean_election_raises_data_loss(
    plan: ArchivePlan, log: FakePartition
) -> None:
    """The table has records that the stream lacks, and would lack those that replaced them."""
    append(log, 10, 12, 2)
    assert outlook(plan).starts == {("orders", 0): 10}
    assert '"0": 10' in start_of(plan)
    log.batches.pop()
    lose_records(log)
    for continue_archive in (outlook, start_of):
        with pytest.raises(DataLossError, match=r"orders/0: an unclean election lost .*below offset 5 .*failOnDataLoss=false"):
            continue_archive(plan)
        continue_archive(accepting(plan))


def test_spark_frame_of_an_archive_and_its_stream_after_an_unclean_election_raises_data_loss(
    plan: ArchivePlan, log: FakePartition
) -> None:
    assert planned_ranges(plan, dict(plan.source)) == []
    lose_records(log)
    with pytest.raises(SourceError, match=r"^\[DATA_LOSS\].*an unclean election lost"):
        planned_ranges(plan, dict(plan.source))
    assert planned_ranges(plan, dict(accepting(plan).source)) == [(10, 15)]


def test_spark_compact_of_an_archive_after_an_unclean_election_raises_data_loss(
    plan: ArchivePlan, log: FakePartition, tmp_path: Path
) -> None:
    output = table_at(tmp_path / "latest")
    step = compact.CompactPlan(stream="orders", output=str(output.root), table=plan.table, source=plan.source)
    assert compact.next_step(step, output).cuts == {("orders", 0): 10}
    lose_records(log)
    with pytest.raises(DataLossError, match=r"unclean election.*without --table"):
        compact.next_step(step, output)


def test_spark_archive_that_continued_after_an_unclean_election_stores_the_new_leader_epoch(
    plan: ArchivePlan, log: FakePartition
) -> None:
    """The user accepted the loss, so the next start is no error."""
    lose_records(log)
    position = {"orders": {"0": 10, "uid": "uid"}}
    archive_until_now(accepting(plan), 1, position)
    assert outlook(plan).starts == {("orders", 0): 15}
