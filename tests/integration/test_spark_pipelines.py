"""Pipelines with a real Spark, on the session that all share, over a node that serves from memory."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from liftpy.client.client import connect
from liftpy.core.wire.batch import build_filler, parse_batch
from liftpy.errors import DataLossError, FencedError, LiftError
from liftpy.spark.failures import SourceError
from liftpy.spark.pipelines.archive import Archived, ArchivePlan, archive, archived, outlook, whole
from liftpy.spark.pipelines.compact import CompactPlan, compact, next_step
from liftpy.spark.pipelines.replay import ReplayPlan, replay
from liftpy.spark.pipelines.tables import table_at
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakePartition, fake_node_in_thread

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def pipeline_nats() -> Iterator[str]:
    with NatsServer() as server:
        yield server.url


@pytest.fixture(scope="module")
def node(pipeline_nats: str) -> Iterator[FakeNode]:
    with fake_node_in_thread(pipeline_nats) as fake:
        yield fake


def append(log: FakePartition, count: int, *, size: int = 100) -> None:
    """Add ``count`` committed records, in batches of ``size``, that say which offsets they have."""
    end = log.log_end_offset + count
    for first in range(log.log_end_offset, end, size):
        offsets = range(first, min(first + size, end))
        log.append(
            build_batch(
                [b"value-%d" % i for i in offsets],
                keys=[b"key-%d" % (i % 7) for i in offsets],
                headers=[(("h", b"%d" % i),) for i in offsets],
                base_offset=first,
                leader_epoch=log.leader_epoch,
                timestamp_ns=1_700_000_000_000_000_000 + first * 1_000_000,
            )
        )


class Lake:
    """A table and the streams that go into it."""

    def __init__(self, spark: Any, node: FakeNode, url: str, root: Path) -> None:
        self.spark, self.node, self.url, self.root = spark, node, url, root

    def plan(self, *streams: str, table: str = "table", **changes: Any) -> ArchivePlan:
        source = {"nats": self.url, "patience": "5", **changes.pop("source", {})}
        return ArchivePlan(streams=streams, table=str(self.root / table), source=source, **changes)

    def archive(self, *streams: str, **changes: Any) -> list[Archived]:
        told: list[Archived] = []
        archive(self.spark, self.plan(*streams, **changes), tell=told.append)
        return told

    def offsets(self, frame: Any) -> list[tuple[int, int]]:
        rows = frame.select("partition", "offset", "value").collect()
        assert all(bytes(row["value"]) == b"value-%d" % row["offset"] for row in rows)
        return sorted((row["partition"], row["offset"]) for row in rows)

    def whole(self, stream: str, table: str = "table") -> Any:
        return whole(self.spark, str(self.root / table), stream, {"nats": self.url, "patience": "5"})


@pytest.fixture
def lake(spark: Any, node: FakeNode, pipeline_nats: str, tmp_path: Path) -> Lake:
    return Lake(spark, node, pipeline_nats, tmp_path / "our lake #1")


def pairs(*counts: int) -> list[tuple[int, int]]:
    return [(partition, i) for partition, count in enumerate(counts) for i in range(count)]


@pytest.mark.long
def test_spark_frame_of_archive_and_live_stream_has_no_offset_gap(lake: Lake) -> None:
    stream = lake.node.add_stream("orders", partitions=2)
    lake.archive("orders")
    assert lake.offsets(archived(lake.spark, str(lake.root / "table"))) == []
    append(stream.partitions[0], 250)
    append(stream.partitions[1], 30)
    told = lake.archive("orders", batch_records=150)
    assert [done.record_count for done in told] == [150, 130]
    assert told[-1].ends == {("orders", 0): 250, ("orders", 1): 30}
    append(stream.partitions[0], 70)
    both = lake.whole("orders")
    lake.archive("orders")  # the cut is where it was when the frame was made
    append(stream.partitions[1], 5)
    assert lake.offsets(both) == pairs(320, 35)
    again = lake.whole("orders")
    stream.partitions[0].log_start_offset = 320  # retention may take what is archived
    assert lake.offsets(again) == pairs(320, 35)
    assert lake.offsets(archived(lake.spark, str(lake.root / "table"))) == pairs(320, 30)
    row = again.where("partition = 0 and offset = 101").collect()[0]
    assert (bytes(row["key"]), row["stream"], [(h["key"], bytes(h["value"])) for h in row["headers"]]) == (
        b"key-3", "orders", [("h", b"101")]
    )  # fmt: skip
    stream.partitions[0].log_start_offset = 330
    append(stream.partitions[0], 70)
    with pytest.raises(Exception, match=r"\[DATA_LOSS\].*\[320, 330\)"):
        lake.whole("orders").count()


@pytest.mark.long
def test_spark_archive_after_a_lost_commit_or_checkpoint_has_each_record_once(lake: Lake) -> None:
    """Into an Iceberg table where its package is here; the others are Delta tables."""
    kind = "iceberg" if importlib.util.find_spec("pyiceberg") else "delta"
    stream = lake.node.add_stream("again", partitions=2)
    append(stream.partitions[0], 100)
    assert [done.repeated for done in lake.archive("again", batch_records=60, kind=kind)] == [False, False]
    commits = lake.root / "table" / "_checkpoint" / "commits"
    for newest in commits.glob("*1*"):  # as the driver leaves it that dies between the table's commit and Spark's
        newest.unlink()
    append(stream.partitions[0], 40)
    told = lake.archive("again")
    assert [(done.batch, done.repeated, done.record_count) for done in told] == [(1, True, 40), (2, False, 40)]
    append(stream.partitions[1], 10)
    found = outlook(lake.plan("again", checkpoint=str(lake.root / "new")))
    assert (found.starts, found.waiting, found.resumed) == ({("again", 0): 140, ("again", 1): 0}, 10, False)
    lake.archive("again", checkpoint=str(lake.root / "new"))
    assert lake.offsets(archived(lake.spark, str(lake.root / "table"), "again")) == pairs(140, 10)
    append(stream.partitions[1], 5)
    with pytest.raises(FencedError, match="nother archive writes"):  # the first one comes back
        lake.archive("again")


@pytest.mark.long
def test_spark_archive_with_a_checkpoint_of_another_time_than_the_table_archives_nothing(lake: Lake) -> None:
    (log,) = lake.node.add_stream("restored").partitions
    append(log, 100)
    lake.archive("restored")
    folder = lake.root / "table" / "_checkpoint"
    shutil.copytree(folder, lake.root / "older")
    append(log, 100)
    lake.archive("restored")
    append(log, 100)
    with pytest.raises(FencedError, match="checkpoint is an older copy"):
        lake.archive("restored", checkpoint=str(lake.root / "older"), source={"failOnDataLoss": "false"})
    assert lake.offsets(archived(lake.spark, str(lake.root / "table"))) == pairs(200)
    with pytest.raises(DataLossError, match="belongs to another table"):
        lake.archive("restored", table="new", checkpoint=str(folder))
    assert table_at(lake.root / "new").state() is None
    lake.archive("restored", checkpoint=str(lake.root / "newer"))
    assert lake.offsets(archived(lake.spark, str(lake.root / "table"))) == pairs(300)


@pytest.mark.long
def test_spark_archive_with_a_start_time_continues_at_the_end_of_the_table(lake: Lake) -> None:
    """A start time has precedence over offsets, but the end of the table has precedence over both."""
    (log,) = lake.node.add_stream("timed").partitions
    append(log, 200)
    since = {"startingTimestamp": str(1_700_000_000_000 + 50)}
    assert [done.record_count for done in lake.archive("timed", source=since)] == [100]
    append(log, 50)
    both = whole(lake.spark, str(lake.root / "table"), "timed", {"nats": lake.url, "patience": "5", **since})
    assert lake.offsets(both) == pairs(250)[100:]
    again = lake.archive("timed", source=since, checkpoint=str(lake.root / "new"))
    assert [done.record_count for done in again] == [50]
    assert lake.offsets(archived(lake.spark, str(lake.root / "table"))) == pairs(250)[100:]


@pytest.mark.long
def test_spark_compact_with_a_later_archive_has_the_keys_of_earlier_records(lake: Lake) -> None:
    (log,) = lake.node.add_stream("late").partitions
    log.append(build_batch([b"value-%d" % i for i in range(10)], keys=[b"early"] * 10, base_offset=0, leader_epoch=1))
    append(log, 100)
    lake.archive("late", source={"startingOffsets": "-50"})
    plan = CompactPlan(
        stream="late", output=str(lake.root / "latest"), table=str(lake.root / "table"), source={"nats": lake.url}
    )
    assert compact(lake.spark, plan).read == 110
    keys = {bytes(row["key"]): row["offset"] for row in archived(lake.spark, plan.output).collect()}
    assert keys == {b"early": 9} | {b"key-%d" % (offset % 7): offset for offset in range(103, 110)}


@pytest.mark.long
def test_spark_archive_with_a_very_short_interval_archives_each_record(lake: Lake) -> None:
    (log,) = lake.node.add_stream("short").partitions
    append(log, 10)

    def stop(done: Archived) -> None:
        raise LiftError(f"{done.record_count} records")

    with pytest.raises(LiftError, match="10 records"):
        archive(lake.spark, lake.plan("short", every_s=1e-5), once=False, tell=stop)


@pytest.mark.long
def test_spark_compact_while_keys_are_rewritten_has_every_key(lake: Lake) -> None:
    (log,) = lake.node.add_stream("keys").partitions
    log.compacted = True
    plan = CompactPlan(stream="keys", output=str(lake.root / "latest"), source={"nats": lake.url, "patience": "5"})
    append(log, 100)

    def rewrite(_: object) -> None:
        """All keys are written again, and compaction drops what that supersedes."""
        end = log.log_end_offset
        append(log, 100)
        filler = build_filler(0, end, 1, 1000)
        log.batches[:-1] = [(parse_batch(memoryview(filler)).header, filler)]
        log.compacted_end = log.log_end_offset

    def latest() -> dict[str, int]:
        return {row["key"].decode(): row["offset"] for row in archived(lake.spark, plan.output).collect()}

    compact(lake.spark, plan, tell=rewrite)
    assert latest() == {f"key-{offset % 7}": offset for offset in range(193, 200)}
    append(log, 10)
    log.deletes_end = 150
    with pytest.raises(DataLossError, match="--rebuild"):
        next_step(plan, table_at(plan.output))
    assert next_step(replace(plan, anew=True), table_at(plan.output)).waiting == 210


@pytest.mark.long
@pytest.mark.processes
def test_spark_archive_replayed_into_a_stream_stores_each_record_once(
    spark: Any, shared_cluster: DevCluster, tmp_path: Path
) -> None:
    source, target = "pipe-in", "pipe-out"
    table, output, nats = str(tmp_path / "table"), str(tmp_path / "latest"), {"nats": shared_cluster.nats_url}

    async def publish(first: int, end: int) -> None:
        async with connect(shared_cluster.nats_url, shared_cluster.namespace) as client:
            for name in (source, target):
                await client.create_stream(name, f"data.{name}", partitions=2, exist_ok=True)
            async with client.producer(source) as producer:
                for i in range(first, end):
                    value = None if i % 10 == 9 else b"%d" % i
                    await producer.send(value, key=b"k%d" % (i % 20), headers={"n": b"%d" % i})

    async def held() -> list[tuple[int, bytes | None, bytes | None, Any]]:
        async with connect(shared_cluster.nats_url, shared_cluster.namespace) as client:
            return [
                (place, record.key, record.value, record.headers)
                for place in (0, 1)
                async for record in client.consume(target, place, until="end")
            ]

    def expected(count: int) -> dict[bytes, bytes]:
        last = {b"k%d" % (i % 20): None if i % 10 == 9 else b"%d" % i for i in range(count)}
        return {key: value for key, value in last.items() if value is not None}

    def latest(root: str = output) -> dict[bytes, bytes]:
        return {bytes(row["key"]): bytes(row["value"]) for row in archived(spark, root).collect()}

    asyncio.run(publish(0, 200))
    archive(spark, ArchivePlan(streams=(source,), table=table, source=nats))
    plan = ReplayPlan(stream=source, target=target, name="again", table=table, source=nats)
    done = replay(spark, plan)
    assert (sum(one.records for one in done), sum(one.known for one in done)) == (200, 0)
    there = asyncio.run(held())
    assert sorted(int(headers[0][1]) for _, _, _, headers in there) == list(range(200))
    compacted = compact(spark, CompactPlan(stream=source, output=output, table=table, source=nats))
    assert (compacted.read, latest()) == (200, expected(200))

    asyncio.run(publish(200, 253))
    again = replay(
        spark, ReplayPlan(stream=source, target=target, name="again", source=nats, rate=100_000.0)
    )  # now from the stream
    assert (sum(one.records for one in again), sum(one.known for one in again)) == (253, 200)
    assert sorted(int(headers[0][1]) for _, _, _, headers in asyncio.run(held())) == list(range(253))
    with pytest.raises(SourceError, match=r"\[DIVERGED_PRODUCER\] The replay 'again' wrote other records"):
        replay(spark, replace(plan, source={**nats, "startingOffsets": "-30"}))
    compacted = compact(spark, CompactPlan(stream=source, output=output, table=table, source=nats))
    assert (compacted.read, latest()) == (53, expected(253))
    assert compact(spark, CompactPlan(stream=source, output=output, source=nats)).version == -1
    anew = next_step(CompactPlan(stream=source, output=output, source=nats, anew=True), table_at(output))
    assert (anew.waiting, anew.before) == (253, None)
    kind = "iceberg" if importlib.util.find_spec("pyiceberg") else "delta"
    other = CompactPlan(stream=source, output=str(tmp_path / "other"), kind=kind, source=nats)
    assert compact(spark, other).read == 253
    assert latest(other.output) == latest() == expected(253)
