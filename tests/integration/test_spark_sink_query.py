"""The Spark sink with a real Spark and a cluster: a query over a shuffle that ends between writing and committing, and errors."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from liftpy.client.client import connect
from sidecar.dev.cluster import DevCluster

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]
QUERY_TIMEOUT_S = 120
COUNT = 3000


class Sinks:
    """A source stream with COUNT records, and what is made of it."""

    def __init__(self, spark: Any, cluster: DevCluster, folder: Path, name: str) -> None:
        self.spark, self.cluster, self.folder = spark, cluster, folder
        self.source, self.target = f"{name}-in", f"{name}-out"

    async def make(self) -> None:
        async with connect(self.cluster.nats_url, self.cluster.namespace) as client:
            await client.create_stream(self.source, f"data.{self.source}", partitions=2)
            await client.create_stream(self.target, f"data.{self.target}", partitions=3)
            async with client.producer(self.source) as producer:
                values = [b"%d" % n for n in range(COUNT)]
                await producer.send_many(values, keys=[b"k%d" % (n % 31) for n in range(COUNT)])

    def written(self) -> list[bytes | None]:
        async def read() -> list[bytes | None]:
            async with connect(self.cluster.nats_url, self.cluster.namespace) as client:
                return [r.value for place in range(3) async for r in client.consume(self.target, place, until="end")]

        return asyncio.run(read())

    def options(self, **more: str) -> dict[str, str]:
        return {"nats": self.cluster.nats_url, "patience": "60", **more}

    def run_to_end(self, value: str = "value", mode: str = "append", **more: str) -> Any:
        frame = (
            self.spark.readStream.format("liftpy")
            .options(**self.options(startingOffsets="earliest", maxOffsetsPerTrigger="1600"))
            .load(self.source)
        )
        query = (
            frame.repartition(3, "key")
            .selectExpr("key", f"{value} as value")
            .writeStream.format("liftpy")
            .queryName(self.target.replace("-", "_"))
            .outputMode(mode)
            .options(checkpointLocation=str(self.folder / "checkpoint"), **self.options(**more))
            .trigger(availableNow=True)
            .start(self.target)
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        return query

    def forget_the_last_commit(self) -> None:
        """As a driver leaves it that is killed when all tasks have written."""
        commits = self.folder / "checkpoint" / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for name in (str(newest), f".{newest}.crc"):
            (commits / name).unlink(missing_ok=True)


@pytest.fixture
def sinks(spark: Any, shared_cluster: DevCluster, stream_name: str, tmp_path: Path) -> Sinks:
    made = Sinks(spark, shared_cluster, tmp_path, stream_name)
    asyncio.run(made.make())
    return made


def test_spark_streaming_query_that_repeats_a_batch_stores_each_record_once(sinks: Sinks) -> None:
    wanted = Counter(b"%d" % n for n in range(COUNT))
    sinks.run_to_end()
    assert Counter(sinks.written()) == wanted
    sinks.forget_the_last_commit()
    sinks.run_to_end()
    assert Counter(sinks.written()) == wanted


def test_spark_foreach_batch_that_repeats_a_batch_with_a_batch_id_stores_each_record_once(sinks: Sinks) -> None:
    def store(batch: Any, batch_id: int) -> None:
        write = batch.repartition(3, "key").select("key", "value").write.format("liftpy").mode("append")
        write.options(**sinks.options(writeId=sinks.target)).option("batchId", batch_id).save(sinks.target)

    for _ in range(2):
        source = sinks.spark.readStream.format("liftpy").options(
            **sinks.options(startingOffsets="earliest", maxOffsetsPerTrigger="1600")
        )
        query = (
            source.load(sinks.source)
            .writeStream.foreachBatch(store)
            .option("checkpointLocation", str(sinks.folder / "checkpoint"))
        )
        assert query.trigger(availableNow=True).start().awaitTermination(QUERY_TIMEOUT_S)
        assert Counter(sinks.written()) == Counter(b"%d" % n for n in range(COUNT))
        sinks.forget_the_last_commit()


@pytest.mark.long
def test_spark_streaming_query_that_repeats_a_batch_with_other_rows_fails(sinks: Sinks) -> None:
    sinks.run_to_end(value="cast(uuid() as binary)")
    before = sinks.written()
    assert len(before) == COUNT
    sinks.forget_the_last_commit()
    with pytest.raises(Exception, match=r"\[DIVERGED_PRODUCER\].*not deterministic"):
        # a query keeps the seed of its plan: another query over the same checkpoint, as after a crash, has another one
        sinks.run_to_end(value="cast(uuid() as binary)")
    assert sinks.written() == before


def test_spark_batch_write_appends_valid_rows_and_rejects_invalid_rows(sinks: Sinks) -> None:
    def write(frame: Any, mode: str = "append", **more: str) -> None:
        frame.write.format("liftpy").mode(mode).options(**sinks.options(**more)).save(sinks.target)

    frame = sinks.spark.range(100).selectExpr("cast(id as string) as value", "cast(id % 3 as int) as `partition`")
    write(frame)
    for _ in range(2):
        write(frame, writeId="once")
    assert Counter(sinks.written()) == {b"%d" % n: 2 for n in range(100)}
    for mode, text in (
        ("overwrite", r"\[CONFIG\] A stream cannot be overwritten"),
        ("errorifexists", "ErrorIfExists"),
        ("ignore", "Ignore"),
    ):
        with pytest.raises(Exception, match=text):
            write(frame, mode)
    with pytest.raises(Exception, match="does not support Update mode"):  # Spark's word, for whatever sink is written in Python
        sinks.run_to_end(mode="update")
    with pytest.raises(Exception, match=r"\[CONFIG\] Unknown column 'id'"):
        write(sinks.spark.range(1))
    with pytest.raises(Exception, match=r"\[CONFIG\] 1 rows name partitions that do not exist, such as 3"):
        write(sinks.spark.sql("select 'x' as value, 3 as `partition`"))
    with pytest.raises(Exception, match=r"\[CONFIG\] 1 rows have a null value"):
        write(sinks.spark.sql("select cast(null as string) as value"))


def test_spark_catalog_table_is_rejected_with_a_hint_to_temporary_views(sinks: Sinks) -> None:
    spark, table = sinks.spark, sinks.target.replace("-", "_")
    options = f"options (nats '{sinks.cluster.nats_url}', stream '{sinks.target}')"
    says = r"\[CONFIG\] .*Catalog tables .* cannot be read or inserted into: .* CREATE TEMPORARY VIEW .* use save or start\."
    rows = "select cast('x' as binary) as value"
    for more in (options, f"{options} location '/tmp/{table}'", "tblproperties ('team'='shop')", f"{options} as {rows}", ""):
        with pytest.raises(Exception, match=says):
            spark.sql(f"create table {table} using liftpy {more}")
    spark.sql(f"create table {table} (value binary) using liftpy {options}")  # Spark does not ask the source
    try:
        for statement in (f"select * from {table}", f"insert into {table} {rows}"):
            with pytest.raises(Exception, match=says):
                spark.sql(statement).collect()
    finally:
        spark.sql(f"drop table {table}")
    spark.sql(f"create temporary view {table} using liftpy {options}")
    assert spark.sql(f"select count(*) from {table}").first()[0] == 0


@pytest.mark.long
def test_spark_save_as_table_writes_the_rows_but_a_read_of_the_table_is_rejected(sinks: Sinks) -> None:
    table = sinks.target.replace("-", "_")
    frame = sinks.spark.range(10).selectExpr("cast(id as string) as value")
    with pytest.raises(Exception, match=r"\[CONFIG\] The target stream is missing"):
        frame.write.format("liftpy").options(**sinks.options()).saveAsTable(table)
    frame.write.format("liftpy").options(**sinks.options(stream=sinks.target)).saveAsTable(table)
    try:
        assert sorted(sinks.written()) == [b"%d" % n for n in range(10)]
        with pytest.raises(Exception, match=r"\[CONFIG\] .*Catalog tables .* cannot be read or inserted into"):
            sinks.spark.table(table).collect()
    finally:
        sinks.spark.sql(f"drop table {table}")
