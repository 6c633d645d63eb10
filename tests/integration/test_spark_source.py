"""The Spark source with a real Spark: batch and streaming over a node that serves from memory, faults included, and a cluster.

One session for all of it: a JVM takes seconds to start. Streams have names of their own, so tests do not meet.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from liftpy.client.client import connect
from liftpy.spark.lag import lag
from liftpy.spark.range_reader import FILES, counts
from liftpy.spark.source import LiftDataSource
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakePartition, fake_node_in_thread

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
QUERY_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def spark_nats() -> Iterator[str]:
    with NatsServer() as server:
        yield server.url


@pytest.fixture(scope="module")
def node(spark_nats: str) -> Iterator[FakeNode]:
    with fake_node_in_thread(spark_nats) as fake:
        yield fake


def append(log: FakePartition, count: int, *, size: int = 100, **columns: Any) -> None:
    """Add ``count`` committed records in batches of ``size``; value and key say which offset they have."""
    for _ in range(0, count, size):
        first, records = log.log_end_offset, min(size, count)
        log.append(
            build_batch(
                [b"value-%d" % i for i in range(first, first + records)],
                keys=[b"key-%d" % i if i % 3 else None for i in range(first, first + records)],
                subjects=[f"orders.{i % 2}" for i in range(first, first + records)],
                headers=[(("kind", b"h%d" % i), ("kind", b"again")) if i % 2 else None for i in range(first, first + records)],
                base_offset=first,
                leader_epoch=log.leader_epoch,
                timestamp_ns=1_700_000_000_000_000_000 + first * 1_000_000,
            )
        )
        count -= records


class Streams:
    """What the tests write to and read with."""

    def __init__(self, spark: Any, node: FakeNode | None, url: str, folder: Path) -> None:
        self.spark, self.node, self.url, self.folder = spark, node, url, folder

    def read(self, stream: str, **options: Any) -> Any:
        return self.spark.read.format("liftpy").options(nats=self.url, stream=stream, patience="5", **options).load()

    def run_to_end(self, stream: str, name: str, **options: Any) -> Any:
        """One AvailableNow run of a streaming query into Parquet; the finished query."""
        options = {"startingOffsets": "earliest", **options}
        frame = self.spark.readStream.format("liftpy").options(nats=self.url, stream=stream, patience="5", **options).load()
        query = (
            frame.selectExpr("`partition`", "offset", "cast(value as string) as text")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / name / "checkpoint"))
            .option("path", str(self.folder / name / "out"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        return query

    def written(self, name: str) -> list[tuple[int, int, str]]:
        rows = self.spark.read.parquet(str(self.folder / name / "out")).collect()
        return sorted((row["partition"], row["offset"], row["text"]) for row in rows)

    def last_offsets(self, name: str) -> dict[str, Any]:
        newest = max((self.folder / name / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
        return json.loads(newest.read_text().splitlines()[-1])


@pytest.fixture
def streams(spark: Any, node: FakeNode, spark_nats: str, tmp_path: Path) -> Streams:
    return Streams(spark, node, spark_nats, tmp_path)


def expected(partition: int, offsets: range) -> list[tuple[int, int, str]]:
    return [(partition, i, f"value-{i}") for i in offsets]


# ---- batch ---------------------------------------------------------------------------------------------------------------
def test_spark_batch_reads_every_column_of_every_record(streams: Streams) -> None:
    stream = streams.node.add_stream("columns", partitions=2)
    append(stream.partitions[0], 250)
    append(stream.partitions[1], 30)
    frame = streams.read("columns", includeHeaders="true", minPartitions="5")
    rows = sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, i) for i in range(250)] + [(1, i) for i in range(30)]
    assert frame.columns == ["key", "value", "headers", "subject", "stream", "partition", "offset", "timestamp", "leader_epoch"]
    row = rows[101]
    assert (bytes(row["key"]), bytes(row["value"])) == (b"key-101", b"value-101")
    assert rows[102]["key"] is None
    assert [(h["key"], bytes(h["value"])) for h in row["headers"]] == [("kind", b"h101"), ("kind", b"again")]
    assert (row["subject"], row["stream"], row["leader_epoch"]) == ("orders.1", "columns", 1)
    assert row["timestamp"].timestamp() == pytest.approx(1_700_000_000.1)


def test_spark_batch_reads_selected_ranges_columns_and_times(streams: Streams) -> None:
    append(streams.node.add_stream("ranges").partitions[0], 500)
    some = streams.read(
        "ranges", startingOffsets='{"ranges": {"0": 120}}', endingOffsets='{"ranges": {"0": 340}}', columns="offset,timestamp"
    )
    assert some.columns == ["offset", "timestamp"]
    assert sorted(row["offset"] for row in some.collect()) == list(range(120, 340))
    later = streams.read("ranges", startingTimestamp=str(1_700_000_000_000 + 300))
    assert sorted(row["offset"] for row in later.select("offset").collect()) == list(range(300, 500))
    assert streams.read("ranges").filter("offset >= 490").union(streams.read("ranges")).count() == 510


def test_spark_frame_contains_the_records_present_at_its_first_action(streams: Streams) -> None:
    log = streams.node.add_stream("frozen").partitions[0]
    append(log, 100)
    frame = (
        streams.spark.read.format("liftpy").options(nats=streams.url, topicColumn="true", columns="offset,topic").load("frozen")
    )
    append(log, 100)
    frame.createOrReplaceTempView("frozen")
    assert streams.spark.sql("select count(*), max(topic) from frozen").collect()[0][:] == (200, "frozen")
    append(log, 100)
    assert streams.spark.sql("select count(*) from frozen").collect()[0][0] == 200  # Spark keeps its plan: documented
    url = streams.url
    streams.spark.sql(
        f"create or replace temporary view anew using liftpy options (nats '{url}', stream 'frozen', columns 'offset')"
    )
    assert streams.spark.sql("select count(*) from anew").collect()[0][0] == 300
    last = streams.read("frozen", startingOffsets="-30", maxRecordsPerPartition="20", columns="offset")
    assert (last.rdd.getNumPartitions(), last.count()) == (2, 30)


def test_spark_batch_of_an_empty_stream_has_the_schema_and_no_rows(streams: Streams) -> None:
    streams.node.add_stream("empty")
    assert streams.read("empty").select("key", "offset").collect() == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffset": "earliest"}, r"\[CONFIG\] Unknown option 'startingoffset'; did you mean 'startingOffsets'"),
        ({"startingOffsets": '{"refused": {"0": 999}}'}, r"\[OFFSET_OUT_OF_RANGE\].*999 of refused/0"),
        (
            {"startingOffsets": '{"refused": {"0": 1}}'},
            r"\[DATA_LOSS\] OFFSET_OUT_OF_RANGE refused/0: offsets \[1, 50\)",
        ),
    ],
)
def test_spark_read_that_is_rejected_raises_with_error_code_and_reason(
    streams: Streams, options: dict[str, str], text: str
) -> None:
    stream = streams.node.add_stream("refused")
    append(stream.partitions[0], 100)
    stream.partitions[0].log_start_offset = 50
    with pytest.raises(Exception, match=text):
        streams.read("refused", **options).collect()


# ---- streaming -----------------------------------------------------------------------------------------------------------
def test_spark_streaming_query_restarted_with_its_checkpoint_reads_each_record_once(streams: Streams) -> None:
    stream = streams.node.add_stream("flow", partitions=2)
    append(stream.partitions[0], 300)
    append(stream.partitions[1], 100)
    query = streams.run_to_end("flow", "flow", maxOffsetsPerTrigger="150")
    assert query.exception() is None
    batches = [p["batchId"] for p in query.recentProgress if p["numInputRows"]]
    assert len(batches) == 3
    append(stream.partitions[0], 50)
    streams.run_to_end("flow", "flow", maxOffsetsPerTrigger="1000")
    assert streams.written("flow") == expected(0, range(350)) + expected(1, range(100))
    assert streams.last_offsets("flow") == {"flow": {"0": 350, "1": 100, "epochs": {"0": 1, "1": 1}, "uid": "uid-flow"}}
    behind = [lag(progress)[0].total for progress in query.recentProgress if progress["numInputRows"]]
    assert behind == [250, 100, 0]


@pytest.mark.long
def test_spark_repeated_micro_batch_has_the_same_records(streams: Streams) -> None:
    log = streams.node.add_stream("again").partitions[0]
    append(log, 100)
    streams.run_to_end("again", "again", maxOffsetsPerTrigger="60")
    # As a crash between the offset log and the commit log leaves it, with output that does not count: a new output folder.
    commits = streams.folder / "again" / "checkpoint" / "commits"
    for newest in commits.glob("*1*"):
        newest.unlink()
    shutil.rmtree(streams.folder / "again" / "out")
    append(log, 500)
    streams.run_to_end("again", "again", maxOffsetsPerTrigger="1000")
    files = (streams.folder / "again" / "out").glob("*.parquet")  # the sink's own list of files went with the folder
    assert sorted(i for file in files for i in pq.read_table(file)["offset"].to_pylist()) == list(range(60, 600))
    first = json.loads((streams.folder / "again" / "checkpoint" / "offsets" / "1").read_text().splitlines()[-1])
    assert first == {"again": {"0": 100, "epochs": {"0": 1}, "uid": "uid-again"}}


# ---- a real cluster --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def dev() -> Iterator[DevCluster]:
    with DevCluster(3, settings={"LIFTPY_LOCAL_FILE_READS": "true"}) as cluster:
        yield cluster


async def publish(dev: DevCluster, stream: str, values: dict[int, list[bytes]]) -> str:
    """Make the stream with these partitions unless it is there, publish with acks, return a node that leads none of them."""
    async with await connect(dev.nats_url, dev.namespace) as client:
        if stream not in {known.name for known in await client.admin.list_streams()}:
            await client.create_stream(stream, f"data.{stream}", partitions=len(values))
        for partition, own in values.items():
            async with client.publisher(stream, partition) as publisher:
                for value in own:
                    await publisher.send(value)
        leaders = {partition.leader for partition in (await client.stream(stream)).partitions}
        return next(iter({"n1", "n2", "n3"} - leaders))


def from_files(dev: DevCluster, stream: str) -> tuple[int, int]:
    """What a reader in this process gets: rows, and how many of them from files of a node."""
    source = LiftDataSource({"nats": dev.nats_url, "stream": stream})
    reader, before = source.reader(source.schema()), counts[FILES]
    rows = sum(batch.num_rows for planned in reader.partitions() for batch in reader.read(planned))
    return rows, counts[FILES] - before


async def cursor_of(dev: DevCluster, name: str) -> dict[int, int]:
    async with await connect(dev.nats_url, dev.namespace) as client:
        return {key.partition: at for key, at in (await client.cursors.describe(name)).items()}


@pytest.mark.processes
def test_spark_reads_all_acknowledged_records_with_one_replica_down(spark: Any, dev: DevCluster, tmp_path: Path) -> None:
    values = {p: [b"%d-%d" % (p, i) for i in range(2000)] for p in (0, 1)}
    spare = asyncio.run(publish(dev, "live", values))
    read = Streams(spark, None, dev.nats_url, tmp_path)

    def rows(**options: str) -> list[tuple[int, int, bytes]]:
        found = read.read("live", columns="partition,offset,value", **options).collect()
        return sorted((row["partition"], row["offset"], bytes(row["value"])) for row in found)

    expected_rows = [(p, i, value) for p, own in values.items() for i, value in enumerate(own)]
    assert rows() == rows(readFrom="leader") == expected_rows
    assert from_files(dev, "live") == (4000, 4000), "with a real node's answer: all of it, and as it is"
    read.run_to_end("live", "live")
    dev.nodes[spare].kill()
    assert rows() == expected_rows
    more = {p: [b"%d-%d" % (p, i) for i in range(2000, 2500)] for p in (0, 1)}
    asyncio.run(publish(dev, "live", more))
    read.run_to_end("live", "live", cursor="live-query")
    assert asyncio.run(cursor_of(dev, "live-query")) == {0: 2000, 1: 2000}, (
        "one micro-batch behind: Spark says so with the next"
    )
    written = [(p, i, text.encode()) for p, i, text in read.written("live")]
    assert written == sorted(expected_rows + [(p, 2000 + i, value) for p, own in more.items() for i, value in enumerate(own)])
    dev.nodes[spare].start()
    dev.nodes[spare].wait_ready()
