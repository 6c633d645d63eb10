"""Test Delta and Iceberg tables of an archive without a JVM: offsets and files in one transaction, fencing, orphans."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftpy.client.client import Client
from liftpy.config import StreamConfig
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, DataLossError, FencedError, NotFoundError, StorageError
from liftpy.spark.failures import SourceError
from liftpy.spark.offsets import EARLIEST, OffsetSpec
from liftpy.spark.options import Access, SourceOptions
from liftpy.spark.pipelines import compact, replay
from liftpy.spark.pipelines.archive import ArchivePlan, OrphanFiles, find_orphans, remove_orphans, whole
from liftpy.spark.pipelines.archive_writer import ROW_GROUP_BYTES, WriterSettings, write_file, write_range
from liftpy.spark.pipelines.tables import (
    CATALOG,
    DATA,
    KEPT_S,
    Table,
    TableCommit,
    TableFile,
    TableState,
    commit_of,
    latest_path,
    marks_of,
    state_of,
    table_at,
    temporary,
)
from liftpy.spark.schema import arrow_schema
from liftpy.testing.memory import memory_cluster
from tests.fake_node import FakeNode
from tests.unit.client.test_lost_records import lose_records
from tests.unit.spark.test_pipeline_archive import PLANNED, SCHEMA, batches

PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}
QUERY = "q"


@pytest.fixture(params=PACKAGES)
def kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(PACKAGES[request.param])
    return str(request.param)


def catalog_in(root: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog  # here, because each worker would import it

    return SqlCatalog("liftpy", uri=f"sqlite:///{root / CATALOG}")


def opened(root: Path, kind: str = "iceberg") -> Table:
    pytest.importorskip(PACKAGES[kind])
    return table_at(root, kind)


def committed(root: Path, start: int, end: int, batch: int, query: str = QUERY) -> TableCommit:
    planned = replace(PLANNED, start_offset=start, end_offset=end)
    written = write_range(planned, batches(range(start, end)), SCHEMA, WriterSettings(str(root)))
    state = table_at(root).state(marks_of([written], query)) if start else None
    found = commit_of([written], query, batch, {} if state is None else state.marks)
    assert found is not None
    return found


def test_spark_table_commit_stores_offsets_and_files_in_one_transaction(tmp_path: Path, kind: str) -> None:
    table = opened(tmp_path, kind)
    assert table.state() is None
    with pytest.raises(NotFoundError, match=f"No table in {tmp_path}"):
        state_of(table)
    first = table.commit(committed(tmp_path, 0, 10, 0), SCHEMA)
    assert table.commit(committed(tmp_path, 10, 15, 1), SCHEMA) == first + 1
    found = table_at(tmp_path)
    assert type(found) is type(table), "the directory shows the format"
    state = state_of(found, [QUERY, "liftpy/orders/2", "liftpy/orders/uid/uid", "none"])
    assert (state.version, state.record_count, len(state.files)) == (first + 1, 15, 2)
    assert state.marks == {QUERY: 1, "liftpy/orders/2": 15, "liftpy/orders/uid/uid": 1}
    assert state.schema.names == SCHEMA.names
    assert all(Path(file).is_file() for file in state.files)
    assert table.only_added_to()
    (other,) = PACKAGES.keys() - {kind}
    with pytest.raises(ConfigError, match=f"has the format {kind}, not {other}"):
        table_at(tmp_path, other)
    with pytest.raises(ConfigError, match="Unknown table format"):
        table_at(tmp_path, "hudi")


def test_spark_table_commit_without_files_stores_offsets(tmp_path: Path, kind: str) -> None:
    table, other = opened(tmp_path, kind), opened(tmp_path, kind)
    table.commit(committed(tmp_path, 0, 10, 0), SCHEMA)
    assert other.state() is not None
    table.commit(TableCommit((), {QUERY: 7}), SCHEMA)
    assert state_of(table, [QUERY]).marks == {QUERY: 7}
    assert state_of(table).record_count == 10
    assert table.only_added_to()
    with pytest.raises(FencedError):
        other.commit(TableCommit((), {QUERY: 1}), SCHEMA)
    assert state_of(table, [QUERY]).marks == {QUERY: 7}


def test_spark_archive_of_one_partition_by_two_queries_fences_one_query(tmp_path: Path, kind: str) -> None:
    one, other = opened(tmp_path, kind), opened(tmp_path, kind)
    assert one.state() is other.state() is None
    first = committed(tmp_path, 0, 10, 0)
    one.commit(first, SCHEMA)
    with pytest.raises(FencedError, match=r"Another (archive writes|process created)"):
        other.commit(replace(first, marks={**first.marks, "r": 0}), SCHEMA)
    other.state()
    one.commit(committed(tmp_path, 10, 20, 1), SCHEMA)
    with pytest.raises(FencedError, match="nother archive writes"):
        other.commit(committed(tmp_path, 10, 12, 0, "r"), SCHEMA)
    assert state_of(other).record_count == 20


def test_spark_table_unreferenced_files_are_listed_as_orphans(tmp_path: Path, kind: str) -> None:
    table, settings = opened(tmp_path, kind), WriterSettings(str(tmp_path))
    assert find_orphans(table, 0.0) == OrphanFiles()
    table.commit(committed(tmp_path, 0, 10, 0), SCHEMA)
    dead = write_range(replace(PLANNED, start_offset=1, end_offset=9), batches(range(1, 9)), SCHEMA, settings)
    write_range(replace(PLANNED, start_offset=10, end_offset=12), batches(range(10, 12)), SCHEMA, settings)
    found = find_orphans(table, 0.0)
    assert (found.files, found.left) == ((str(tmp_path / dead.path),), 1)
    remove_orphans(found)
    remove_orphans(found)
    assert find_orphans(table, 0.0).files == ()
    assert state_of(table).record_count == 10


def test_spark_iceberg_table_is_readable_by_pyiceberg(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.commit(committed(tmp_path, 0, 10, 0), SCHEMA)
    read = catalog_in(tmp_path).load_table("liftpy.archive").scan().to_arrow()
    assert sorted(read["offset"].to_pylist()) == list(range(10))
    (tmp_path / CATALOG).write_bytes(b"no database at all, and longer than a page header of one would be" * 20)
    with pytest.raises(StorageError, match="Iceberg table"):
        table.state()


def latest(root: Path, first: int) -> tuple[TableCommit, str]:
    """Write a file with ten records as compaction does. Return its commit and its path."""
    path = latest_path(f"{first:032x}")
    rows, size_bytes = write_file(root / path, batches(range(first, first + 10)), SCHEMA, "zstd")
    return TableCommit((TableFile(path, size_bytes, rows),), {"end": first + 10}), str(root / path)


def test_spark_iceberg_table_replace_commit_swaps_all_files_in_one_transaction(tmp_path: Path) -> None:
    table, other = opened(tmp_path), opened(tmp_path)
    (one, old), (two, new) = latest(tmp_path, 0), latest(tmp_path, 10)
    first = table.commit(one, SCHEMA, replace=True)
    assert other.state() is not None
    second = table.commit(two, SCHEMA, replace=True)
    state = state_of(opened(tmp_path), ["end"])
    assert (state.version > first, state.version, state.files, state.record_count, state.marks) == (
        True, second, (new,), 10, {"end": 20},
    )  # fmt: skip
    assert not table.only_added_to()
    with pytest.raises(FencedError, match="Another archive writes to table"):
        other.commit(latest(tmp_path, 20)[0], SCHEMA, replace=True)
    assert state_of(other).files == (new,)
    third = table.commit(TableCommit((), {"end": 30}), SCHEMA, replace=True)
    assert state_of(table, ["end"]) == replace(state, version=third, files=(), record_count=0, marks={"end": 30})
    assert Path(old).is_file()


def test_spark_iceberg_table_cleanup_deletes_files_of_old_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path)
    (one, old), (two, new) = latest(tmp_path, 0), latest(tmp_path, 10)
    table.commit(one, SCHEMA, replace=True)
    table.commit(two, SCHEMA, replace=True)
    stray = latest(tmp_path, 20)[1]
    table.forget_old_files()
    assert [Path(file).is_file() for file in (old, new, stray)] == [True] * 3, "they may be read for a week"
    for file in (old, new, stray):
        os.utime(file, (1, 1))
    table.forget_old_files()
    assert [Path(file).is_file() for file in (old, new, stray)] == [True, True, False], "a version of this week has the old one"
    monkeypatch.setattr("liftpy.spark.pipelines.tables.KEPT_S", -1.0)
    stray = latest(tmp_path, 20)[1]
    table.forget_old_files()
    assert [Path(file).is_file() for file in (old, new, stray)] == [False, True, False]
    assert state_of(table).files == (new,)


def test_spark_table_cleanup_keeps_files_that_another_run_of_compact_reads_or_writes(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replaced version is old, but it was current until now. The other run has read it, and has not committed yet."""
    table = opened(tmp_path, kind)
    (one, old), (two, new) = latest(tmp_path, 0), latest(tmp_path, 10)
    table.commit(one, SCHEMA, replace=True)
    clock = SimpleNamespace(time=time.time)
    monkeypatch.setattr("liftpy.spark.pipelines.tables.time", clock)
    os.utime(old, (1, 1))
    between_s = time.time() + 0.01
    time.sleep(0.02)
    table.commit(two, SCHEMA, replace=True)
    unfinished = latest(tmp_path, 20)[1]
    if kind == "iceberg":
        clock.time = lambda: between_s + KEPT_S
    table.forget_old_files()
    assert [Path(file).is_file() for file in (old, new, unfinished)] == [True] * 3
    if kind == "iceberg":
        clock.time = lambda: time.time() + KEPT_S + 1
        table.forget_old_files()
        assert [Path(file).is_file() for file in (old, new)] == [False, True]


def test_spark_iceberg_table_cleanup_leaves_old_files_if_another_program_commits_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is complete. The next run deletes the old files."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    table = opened(tmp_path)
    for first in (0, 10):
        table.commit(latest(tmp_path, first)[0], SCHEMA, replace=True)
    monkeypatch.setattr("liftpy.spark.pipelines.tables.KEPT_S", -1.0)
    failure = CommitFailedException("Table has been updated by another process: liftpy.archive")
    monkeypatch.setattr(SqlCatalog, "commit_table", MagicMock(side_effect=failure))
    table.forget_old_files()
    assert state_of(table).record_count == 10


def test_spark_table_cleanup_leaves_files_of_other_programs_and_tables(tmp_path: Path, kind: str) -> None:
    """A user may choose a directory for the output of compact that has other files, or the archive itself."""
    inside = [table_at(tmp_path / name, kind) for name in ("archive", "data/archive")]
    for archive in inside:
        archive.commit(committed(archive.root, 0, 10, 0), SCHEMA)
    for name in ("notes.txt", "data/notes.parquet", "_more/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    others = {path for path in tmp_path.rglob("*") if path.is_file()}
    table = opened(tmp_path, kind)
    (one, old), (two, new) = latest(tmp_path, 0), latest(tmp_path, 10)
    table.commit(one, SCHEMA, replace=True)
    table.commit(two, SCHEMA, replace=True)
    stray = latest(tmp_path, 20)[1]
    unfinished = tmp_path / DATA / temporary(Path(stray).name, "a" * 32)
    unfinished.touch()
    for file in (*others, old, new, stray, unfinished):
        os.utime(file, (1, 1))
    table.forget_old_files()
    assert [Path(file).is_file() for file in (old, new, stray, unfinished)] == [True, True, False, False]
    assert [path for path in others if not path.is_file()] == []
    assert [state_of(archive).record_count for archive in inside] == [10, 10]


def test_spark_iceberg_table_accepts_all_archive_columns(tmp_path: Path) -> None:
    schema = arrow_schema(("key", "value", "headers", "subject", "stream", "partition", "offset", "timestamp", "leader_epoch"))
    row = {"key": None, "value": b"v", "headers": [{"key": "h", "value": b"1"}], "subject": "s", "stream": "orders"}
    row |= {"partition": PLANNED.partition, "offset": 0, "timestamp": datetime(2026, 1, 1, tzinfo=UTC), "leader_epoch": 1}
    batch = pa.RecordBatch.from_pylist([row], schema)
    written = write_range(replace(PLANNED, start_offset=0, end_offset=1), [batch], schema, WriterSettings(str(tmp_path)))
    table = opened(tmp_path)
    found = commit_of([written], QUERY, 0, {})
    assert found is not None
    table.commit(found, schema)
    assert state_of(table).schema.names == schema.names
    catalog = catalog_in(tmp_path)
    assert catalog.load_table("liftpy.archive").scan().to_arrow().to_pylist() == [row]


@pytest.mark.parametrize("path", ["link", "other/../my örders #1", "my örders #1"])
def test_spark_archive_table_under_another_path_has_no_orphans(tmp_path: Path, kind: str, path: str) -> None:
    root = tmp_path / "my örders #1"
    table = opened(root, kind)
    assert table.state() is None
    table.commit(committed(root, 0, 10, 0), SCHEMA)
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "other").mkdir()
    again = table_at(tmp_path / path)
    assert find_orphans(again, 0.0) == OrphanFiles()
    assert [pq.read_metadata(file).num_rows for file in state_of(again).files] == [10]


@pytest.mark.parametrize("name", ["orders", "my orders", "örders", "a#b", "env=prod"])
def test_spark_table_has_all_its_files_in_its_directory(tmp_path: Path, kind: str, name: str) -> None:
    """Otherwise a copy of the directory is not a copy of the table."""
    root = tmp_path / name
    table = opened(root, kind)
    assert table.state() is None
    table.commit(committed(root, 0, 10, 0), SCHEMA)
    table.commit(committed(root, 10, 20, 1), SCHEMA)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert state_of(table_at(root)).record_count == 20


@pytest.mark.parametrize(
    "start",
    [
        {"startingOffsets": "earliest"},
        {"startingTimestamp": "0"},
        {"startingtimestamp": "0"},
        {"startingOffsetsByTimestamp": '{"orders": {"0": 0, "1": 0, "2": 0}}'},
    ],
)
def test_spark_frame_of_archive_and_live_stream_with_a_start_continues_at_the_end_of_the_table(
    access: Access, node: FakeNode, tmp_path: Path, kind: str, start: dict[str, str]
) -> None:
    """The options for a start time take precedence over offsets, so the records of the table would be in the frame twice."""
    node.add_stream("orders", uid="uid", partitions=3)
    table = opened(tmp_path, kind)
    table.commit(committed(tmp_path, 0, 10, 0), SCHEMA)
    spark = MagicMock()
    whole(spark, str(tmp_path), "orders", {"nats": access.servers, "namespace": access.namespace, **start})
    live = SourceOptions.parse(spark.read.format.return_value.options.call_args.kwargs)
    assert live.starting == OffsetSpec(
        offsets=((("orders", 0), EARLIEST), (("orders", 1), EARLIEST), (("orders", 2), 10)),
        uids=(("orders", "uid"),),
        open_streams=("orders",),
    )


@pytest.mark.parametrize("is_other_file", [False, True])
def test_spark_table_commit_of_a_file_on_another_machine_raises_storage_error(
    tmp_path: Path, kind: str, is_other_file: bool
) -> None:
    """The table would lack the records of a task whose directory the driver does not see."""
    table = opened(tmp_path, kind)
    commit = committed(tmp_path, 0, 10, 0)
    file = tmp_path / commit.files[0].path
    content = file.read_bytes()
    file.write_bytes(content[:-1]) if is_other_file else file.unlink()
    with pytest.raises(StorageError, match="must share the directory"):
        table.commit(commit, SCHEMA)
    assert opened(tmp_path, kind).state() is None
    file.write_bytes(content)
    table.commit(commit, SCHEMA)
    assert state_of(table).record_count == 10


@pytest.mark.parametrize("path", ["s3://bucket/orders", "hdfs://h:1/orders", Path("s3://bucket/orders"), "file:///data/orders"])
def test_spark_archive_into_a_url_raises_config_error(path: str | Path) -> None:
    """Otherwise it would become a directory of this machine, and of each executor."""
    with pytest.raises(ConfigError, match="is a URL"):
        table_at(path)
    with pytest.raises(ConfigError, match=r"checkpoint directory .* is a URL"):
        ArchivePlan(streams=("orders",), table="/data/orders", checkpoint=str(path))


@pytest.mark.parametrize("path", ["s3a://KEY:hidden@bucket/orders", "abfss://h/orders?sig=hidden", "https://h/orders#hidden"])
def test_spark_archive_into_a_url_does_not_show_the_secret_in_it(path: str) -> None:
    for name_folder in (table_at, lambda path: ArchivePlan(streams=("orders",), table="/data/orders", checkpoint=path)):
        with pytest.raises(ConfigError, match="is a URL") as raised:
            name_folder(path)
        assert "hidden" not in str(raised.value)
        assert path.partition(":")[0] in str(raised.value)


@pytest.mark.parametrize("name", ["50%", "orders?", "a*", "{a", "a}", "[a", "a]", "a\\b", "a\tb", "a\nb", "a\x7f"])
def test_spark_archive_table_in_a_directory_with_a_character_of_urls_or_patterns_raises_config_error(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match="Use another directory"):
        table_at(tmp_path / name)


@pytest.fixture
async def copies(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """Start a cluster in memory with the stream ``copies``, which replays of the test reach. Return its client."""
    loop = asyncio.get_running_loop()

    def call(work: Coroutine[Any, Any, Any], _: float) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async with memory_cluster() as cluster, cluster.client() as client:

        async def transport(_: float) -> Any:
            return client.transport

        link = SimpleNamespace(transport=transport, call=call, subjects=Subjects())
        monkeypatch.setattr(replay, "link_to", lambda access: link)
        await client.create_stream("copies", "copies")
        yield client


async def test_spark_replay_from_the_middle_of_an_archived_file_stores_the_later_records(
    copies: Client, tmp_path: Path
) -> None:
    """The first rows of the file are not in the range."""
    schema = arrow_schema(replay.COLUMNS)
    rows = pa.RecordBatch.from_pylist([{"value": b"%d" % offset, "offset": offset} for offset in range(40_000)], schema)
    planned = replace(PLANNED, partition=0, start_offset=0, end_offset=40_000)
    file = write_range(planned, [rows], schema, WriterSettings(str(tmp_path)))
    plan = replay.ReplayPlan(stream="orders", target="copies", name="again", table=str(tmp_path))
    share = replay.ReplayShare(replace(planned, start_offset=20_000, end_offset=20_010), (str(tmp_path / file.path),))
    done = await asyncio.to_thread(replay.replay_share, plan, 1, share)
    assert (done.records, done.known) == (10, 0)
    assert [record.value async for record in copies.consume("copies", 0, until="end")] == [
        b"%d" % i for i in range(20_000, 20_010)
    ]


async def test_spark_replay_with_another_partitioner_under_the_same_name_stores_nothing(copies: Client, tmp_path: Path) -> None:
    await copies.create_stream("spread", "spread", partitions=4)
    schema = arrow_schema(replay.COLUMNS)
    rows = pa.RecordBatch.from_pylist([{"key": b"%d" % i, "value": b"%d" % i, "offset": i} for i in range(100)], schema)
    planned = replace(PLANNED, partition=0, start_offset=0, end_offset=100)
    file = write_range(planned, [rows], schema, WriterSettings(str(tmp_path)))
    share = replay.ReplayShare(planned, (str(tmp_path / file.path),))
    for keeps, others in ((True, False), (False, True)):
        name = f"keep {keeps}"
        plan = replay.ReplayPlan(stream="orders", target="spread", name=name, table=str(tmp_path), keep_partitions=keeps)
        first = await asyncio.to_thread(replay.replay_share, plan, 1, share)
        assert (first.records, first.known) == (100, 0)
        stored = await ends_of(copies, "spread")
        with pytest.raises(SourceError, match=r"DIVERGED_PRODUCER.*--partitioner"):
            await asyncio.to_thread(replay.replay_share, replace(plan, keep_partitions=others), 1, share)
        assert await ends_of(copies, "spread") == stored
        again = await asyncio.to_thread(replay.replay_share, plan, 1, share)
        assert (again.records, again.known) == (100, 100)


async def ends_of(client: Client, stream: str) -> list[int]:
    return [len([record async for record in client.consume(stream, number, until="end")]) for number in range(4)]


async def test_spark_replay_of_large_archived_records_holds_one_row_group_in_memory(copies: Client, tmp_path: Path) -> None:
    schema, size_bytes, count = arrow_schema(replay.COLUMNS), 500_000, 200
    rows = (pa.RecordBatch.from_pylist([{"value": bytes(size_bytes), "offset": offset}], schema) for offset in range(count))
    planned = replace(PLANNED, partition=0, start_offset=0, end_offset=count)
    file = write_range(planned, rows, schema, WriterSettings(str(tmp_path)))
    plan = replay.ReplayPlan(stream="orders", target="copies", name="again", table=str(tmp_path))
    # one range at the end of the file: only reading it needs memory
    share = replay.ReplayShare(replace(planned, start_offset=count - 1), (str(tmp_path / file.path),))
    before, pool = pa.default_memory_pool(), pa.system_memory_pool()
    pa.set_memory_pool(pool)
    try:
        done = await asyncio.to_thread(replay.replay_share, plan, 1, share)
    finally:
        pa.set_memory_pool(before)
    assert done.records == 1
    assert pool.max_memory() < 3 * ROW_GROUP_BYTES


async def test_spark_compact_after_an_unclean_election_raises_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run would skip the records that replaced the lost ones."""
    loop = asyncio.get_running_loop()
    plan, table = compact.CompactPlan(stream="jobs", output="/latest"), MagicMock(state=MagicMock(return_value=None))

    def call(work: Coroutine[Any, Any, Any], _: float) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def next_step(plan: compact.CompactPlan) -> compact.CompactStep:
        return await asyncio.to_thread(compact.next_step, plan, table)

    async with memory_cluster() as cluster, cluster.client() as client:

        async def transport(_: float) -> Any:
            return client.transport

        async def run_once() -> None:
            step = await next_step(plan)
            assert list(step.ends.values()) == [8]
            table.state.return_value = TableState(1, arrow_schema(compact.COLUMNS), (), 1, step.marks)
            assert (await next_step(plan)).waiting == 0

        link = SimpleNamespace(transport=transport, call=call, subjects=Subjects())
        monkeypatch.setattr(compact, "link_to", lambda access: link)
        await client.create_stream("jobs", "jobs", replicas=2, config=StreamConfig(min_isr=1))
        await lose_records(cluster, client, run_once)
        for _ in range(5):
            await client.publish("jobs", b"new")
        with pytest.raises(DataLossError, match=r"unclean election.*--rebuild"):
            await next_step(plan)
        assert (await next_step(replace(plan, anew=True))).waiting == 10
