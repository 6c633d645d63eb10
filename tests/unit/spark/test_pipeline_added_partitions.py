"""Test pipelines whose stream gets a partition after the pipeline has listed the partitions, and before Spark plans. No JVM."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from liftpy.errors import LiftError
from liftpy.spark.options import Access
from liftpy.spark.pipelines import compact
from liftpy.spark.pipelines.archive import ArchivePlan, start_archive, whole
from liftpy.spark.pipelines.tables import TableCommit, end_mark, table_at, uid_mark
from liftpy.spark.schema import arrow_schema
from liftpy.spark.source import LiftDataSource
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakePartition, FakeStream


@pytest.fixture
def options(access: Access) -> dict[str, str]:
    return {"nats": access.servers, "namespace": access.namespace}


@pytest.fixture
def stream(node: FakeNode) -> FakeStream:
    """Return the stream ``orders``, which has 20 records in one partition."""
    stream = node.add_stream("orders", uid="uid")
    stream.partitions[0].append(build_batch([b"x"] * 20, base_offset=0, leader_epoch=1))
    return stream


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Return the path of a table that has the first ten records of the stream."""
    table = table_at(tmp_path / "table")
    table.state()
    table.commit(TableCommit((), {end_mark("orders", 0): 10, uid_mark("orders", "uid"): 1}), arrow_schema(compact.COLUMNS))
    return str(table.root)


def add_partition(stream: FakeStream) -> None:
    """Add a partition with ten records."""
    stream.partitions.append(FakePartition())
    stream.partitions[-1].append(build_batch([b"x"] * 10, base_offset=0, leader_epoch=1))


def ranges_of(options: dict[str, str]) -> list[tuple[int, int, int]]:
    """Return the ranges that a batch query with these options plans."""
    source = LiftDataSource({name.lower(): text for name, text in options.items()})
    planned = [one.value for one in source.reader(source.schema()).partitions()]
    return [(one.partition, one.start_offset, one.end_offset) for one in planned]


def test_spark_frame_of_an_archive_and_its_stream_reads_added_partitions(
    stream: FakeStream, table: str, options: dict[str, str]
) -> None:
    spark = MagicMock()
    whole(spark, table, "orders", options)
    add_partition(stream)
    assert ranges_of(spark.read.format.return_value.options.call_args.kwargs) == [(0, 10, 20), (1, 0, 10)]


def test_spark_archive_with_a_new_checkpoint_reads_added_partitions(
    stream: FakeStream, table: str, options: dict[str, str]
) -> None:
    spark = MagicMock()
    spark.sparkContext.defaultParallelism = 1
    start_archive(spark, ArchivePlan(streams=("orders",), table=table, source=options))
    add_partition(stream)
    given = spark.readStream.format.return_value.options.call_args.kwargs
    source = LiftDataSource({name.lower(): given[name] for name in ("nats", "namespace", "subscribe", "startingOffsets")})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    planned = [one.value for one in reader.partitions(start, end)]
    assert [(one.partition, one.start_offset, one.end_offset) for one in planned] == [(0, 10, 20), (1, 0, 10)]


def test_spark_compact_leaves_added_partitions_to_the_next_run(
    stream: FakeStream, tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks of this run lack these partitions, so the next run would read their records again."""
    monkeypatch.setattr(compact, "_latest_of_each_key", lambda frame: frame)
    plan, spark = compact.CompactPlan(stream="orders", output=str(tmp_path / "out"), source=options), MagicMock()
    compact.compact(spark, plan, lambda _: add_partition(stream))
    assert ranges_of(spark.read.format.return_value.options.call_args.kwargs) == [(0, 0, 20)]
    assert compact.next_step(plan, table_at(plan.output)).waiting == 10


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingOffsets", '{"orders": {"0": 5, "others": -1}}'),
        ("startingOffsets", '{"orders": {"0": 5, "others": 7}}'),
        ("endingOffsets", '{"orders": {"0": 5, "others": -2}}'),
    ],
)
def test_spark_query_with_another_offset_for_others_than_earliest_raises_config_error(
    stream: FakeStream, options: dict[str, str], option: str, text: str
) -> None:
    with pytest.raises(LiftError, match="others"):
        ranges_of({**options, "stream": "orders", option: text})
