"""Test archives of streams whose compaction removes tombstones before the archive reads them. No JVM."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from liftpy.errors import DataLossError
from liftpy.spark.pipelines import compact
from liftpy.spark.pipelines.archive import ArchivePlan
from liftpy.spark.pipelines.archive_source import COMPRESSION, ROOT, ManifestDataSource
from liftpy.spark.pipelines.tables import table_at
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakePartition
from tests.unit.spark.test_pipeline_foreign_commits import Archive, plan

__all__ = ["plan"]


@pytest.fixture
def kind() -> str:
    return "delta"


@pytest.fixture
def log(plan: ArchivePlan, node: FakeNode) -> FakePartition:
    """Return the only partition of the stream ``orders``, which is compacted and empty."""
    log = node.add_stream("orders", uid="uid").partitions[0]
    log.compacted = True
    return log


def archive_until_now(plan: ArchivePlan, number: int, start: dict[str, Any] | None) -> dict[str, Any]:
    """Run micro-batch ``number`` of an archive from the position ``start`` on (None: earliest). Return the new position."""
    run = Archive(plan)
    settings = {name.lower(): value for name, value in plan.options().items()}
    source = ManifestDataSource({**settings, ROOT: plan.table, COMPRESSION: "zstd"})
    reader: Any = source.streamReader(StructType())
    begin = start or reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    tasks = reader.partitions(begin, end)
    run.commit_ranges(number, [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()])
    assert isinstance(end, dict)
    return end


@pytest.mark.parametrize(
    ("deletes_ends", "is_missed"),
    [
        pytest.param((0, 5), False, id="tombstones that the archive had read"),
        pytest.param((15, 15), False, id="tombstones that were removed with their keys before the archive began"),
        pytest.param((0, 15), True, id="unread tombstones"),
        pytest.param((12, 15), True, id="some unread tombstones"),
    ],
)
def test_spark_compact_of_an_archive_that_missed_tombstones_raises_data_loss(
    plan: ArchivePlan, log: FakePartition, tmp_path: Any, deletes_ends: tuple[int, int], is_missed: bool
) -> None:
    """The archive has records of deleted keys, and compact would take them for the latest ones."""
    position = None
    for number, deletes_end in enumerate(deletes_ends):
        first = 10 * number
        log.append(build_batch([b"v"] * 10, keys=[b"k%d" % i for i in range(10)], base_offset=first, leader_epoch=1))
        log.deletes_end = deletes_end
        position = archive_until_now(plan, number, position)
    output = table_at(tmp_path / "latest")
    step = compact.CompactPlan(stream="orders", output=str(output.root), table=plan.table, source=plan.source)
    if not is_missed:
        assert compact.next_step(step, output).cuts == {("orders", 0): 20}
        return
    with pytest.raises(DataLossError, match=r"archive of orders/0 may lack tombstones below 15.*--rebuild and without --table"):
        compact.next_step(step, output)
    anew = compact.CompactPlan(stream="orders", output=str(output.root), anew=True, source=plan.source)
    assert compact.next_step(anew, output).ends == {("orders", 0): 20}
