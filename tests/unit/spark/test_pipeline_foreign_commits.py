"""Test tables of archives that other programs have changed: the archive continues, or says why it cannot. No JVM."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftpy.errors import ConfigError, DataLossError, FencedError, NotFoundError, StorageError
from liftpy.spark.options import Access
from liftpy.spark.pipelines import archive, compact, replay
from liftpy.spark.pipelines.archive import ArchivePlan, archived, outlook, whole
from liftpy.spark.pipelines.archive_writer import WriterSettings, write_file, write_range
from liftpy.spark.pipelines.tables import Table, TableCommit, TableFile, end_mark, latest_path, table_at, uid_mark
from liftpy.spark.planning import PlannedRange
from liftpy.spark.schema import arrow_schema
from tests.batches import build_batch
from tests.fake_node import FakeNode
from tests.unit.spark.test_pipeline_tables import PACKAGES, catalog_in

SCHEMA = arrow_schema(compact.COLUMNS)
MARK = end_mark("orders", 0)
PLANNED = PlannedRange("orders", "uid", 0, 0, 10, 1, "n1", ("n1",))
Changed = Callable[[Path], None]


@pytest.fixture(params=PACKAGES)
def kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(PACKAGES[request.param])
    return str(request.param)


@pytest.fixture
def plan(access: Access, node: FakeNode, tmp_path: Path, kind: str) -> ArchivePlan:
    """Return the plan of an archive of the stream ``orders``, which has 100 records in one partition."""
    node.add_stream("orders", uid="uid").partitions[0].append(build_batch([b"x"] * 100, base_offset=0, leader_epoch=1))
    options = {"nats": access.servers, "namespace": access.namespace, "patience": "3"}
    return ArchivePlan(streams=("orders",), table=str(tmp_path / "table"), kind=kind, source=options)


def rows(start: int, end: int) -> pa.RecordBatch:
    one = {"value": b"v", "subject": "s", "stream": "orders", "partition": 0, "timestamp": 1, "leader_epoch": 1}
    return pa.RecordBatch.from_pylist(
        [{**one, "key": b"%d" % offset, "offset": offset} for offset in range(start, end)], SCHEMA
    )


class Archive:
    """A run of ``start_archive``, as Spark drives it: ``commit`` writes the file of a micro-batch and commits it."""

    def __init__(self, plan: ArchivePlan) -> None:
        pytest.importorskip("pyspark")
        spark = MagicMock()
        spark.sparkContext.defaultParallelism = 1
        archive.start_archive(spark, plan)
        loaded = spark.readStream.format.return_value.options.return_value.load.return_value
        self._function = loaded.writeStream.foreachBatch.call_args.args[0]
        self._root = plan.table

    def commit(self, number: int, query: str = "q", tens: int | None = None) -> None:
        """Commit micro-batch ``number`` of the query, with ten offsets from 10 * ``tens`` on. None: 10 * ``number``."""
        first = 10 * (number if tens is None else tens)
        planned = replace(PLANNED, start_offset=first, end_offset=first + 10)
        batch = rows(planned.start_offset, planned.end_offset)
        written = write_range(planned, [batch], SCHEMA, WriterSettings(self._root))
        self.commit_ranges(number, [asdict(written)], query)

    def commit_ranges(self, number: int, ranges: list[dict[str, Any]], query: str = "q") -> None:
        """Commit micro-batch ``number`` of the query, whose tasks have returned the rows ``ranges``."""
        frame = MagicMock(collect=lambda: [SimpleNamespace(asDict=lambda one=one: one) for one in ranges])
        frame.sparkSession.sparkContext.getLocalProperty.return_value = query
        self._function(frame, number)


def archive_batches(plan: ArchivePlan, *numbers: int) -> Archive:
    run = Archive(plan)
    for number in numbers:
        run.commit(number)
    return run


def offsets_in(table: str) -> list[int]:
    spark = MagicMock()
    archived(spark, table)
    files = spark.read.options.return_value.parquet.call_args.args
    return sorted(offset for file in files for offset in pq.read_table(file)["offset"].to_pylist())


def test_spark_read_of_an_archive_raises_an_error_if_another_program_deletes_its_files(
    plan: ArchivePlan, tmp_path: Path
) -> None:
    """A session may be set to ignore missing files. The rows would be missing without an error, and compact would store that."""
    archive_batches(plan, 0)
    output = table_at(tmp_path / "out", plan.kind)
    latest_of(plan, output, 0)
    step = compact.CompactPlan(stream="orders", output=str(output.root), table=plan.table, source=plan.source)
    for read in (lambda spark: archived(spark, plan.table), lambda spark: compact.compact(spark, step)):
        spark = MagicMock()
        with contextlib.suppress(Exception):  # compact needs a real frame after it has read the files
            read(spark)
        assert spark.read.parquet.call_args is None
        told = spark.read.options.call_args_list
        assert told, "it has read the files"
        assert all(one.kwargs["ignoreMissingFiles"] == one.kwargs["ignoreCorruptFiles"] == "false" for one in told)


def delete_offset(root: Path, offset: int) -> None:
    """Delete the record at ``offset``, as another program does."""
    if (root / "_delta_log").exists():
        from deltalake import DeltaTable

        DeltaTable(root).delete(f"offset = {offset}")
    else:
        catalog_in(root).load_table("liftpy.archive").delete(f"offset = {offset}")


def go_to(root: Path, commit: int) -> None:
    """Set the table to the state after its first commit (0) or a later one, as RESTORE and rollback do."""
    if (root / "_delta_log").exists():
        from deltalake import DeltaTable

        DeltaTable(root).restore(commit)
    else:
        table = catalog_in(root).load_table("liftpy.archive")
        table.manage_snapshots().set_current_snapshot(table.metadata.snapshots[commit].snapshot_id).commit()


@pytest.mark.parametrize("conflicts", [1, 3])
def test_spark_archive_continues_if_another_program_commits_at_the_same_time(
    plan: ArchivePlan, monkeypatch: pytest.MonkeyPatch, conflicts: int
) -> None:
    root, table = Path(plan.table), table_at(plan.table, plan.kind)
    archive_batches(plan, 0)
    commit, waiting = table.commit, list(range(conflicts))

    def commit_late(*given: Any) -> int:
        if waiting:
            waiting.pop()
            delete_offset(root, 3 + len(waiting))
        return commit(*given)

    monkeypatch.setattr(table, "commit", commit_late)
    monkeypatch.setattr(archive, "table_at", lambda *_: table)
    archive_batches(plan, 1)
    monkeypatch.undo()
    assert waiting == []
    assert offsets_in(plan.table) == [offset for offset in range(20) if not 3 <= offset < 3 + conflicts]


def test_spark_archive_is_fenced_if_another_archive_commits_at_the_same_time(
    plan: ArchivePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_at(plan.table, plan.kind)
    archive_batches(plan, 0)
    other, commit = Archive(plan), table.commit
    monkeypatch.setattr(table, "commit", lambda *given: (other.commit(0, "other", 1), commit(*given))[1])
    monkeypatch.setattr(archive, "table_at", lambda *_: table)
    run = Archive(plan)
    with pytest.raises(Exception, match=r"\[FENCED\] Cannot archive orders/0 \[10, 20\)"):
        run.commit(1)
    monkeypatch.undo()
    assert offsets_in(plan.table) == list(range(20))


def test_spark_archive_is_fenced_if_its_table_is_created_at_the_same_time_as_another_one(
    plan: ArchivePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both archives have seen that there is no table, and the other one is faster."""
    run, other = Archive(plan), Archive(plan)
    if plan.kind == "delta":
        from deltalake import transaction

        module, name = transaction, "create_table_with_add_actions"
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        module, name = SqlCatalog, "create_table_transaction"
    create = getattr(module, name)

    def create_late(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        other.commit(0, "other")
        return create(*args, **kwargs)

    monkeypatch.setattr(module, name, create_late)
    with pytest.raises(Exception, match=r"\[FENCED\] Cannot archive orders/0 \[0, 10\)"):
        run.commit(0)
    assert offsets_in(plan.table) == list(range(10))


def test_spark_archive_into_a_table_that_compact_has_created_since_its_start_raises_config_error(
    plan: ArchivePlan,
) -> None:
    """Neither program could read the table again."""
    run = Archive(plan)
    latest_of(plan, table_at(plan.table, plan.kind), 0)
    with pytest.raises(Exception, match=r"\[CONFIG\] Table .* is the output of liftpy spark compact"):
        run.commit(0, tens=1)
    assert offsets_in(plan.table) == list(range(10))


def test_spark_compact_is_fenced_if_another_program_adds_rows_to_its_output_during_the_run(
    plan: ArchivePlan,
) -> None:
    """The new content would have these rows, too, although the run has not merged them."""
    latest_of(plan, table_at(plan.table, plan.kind), 0)
    run, other = table_at(plan.table), table_at(plan.table)
    run.state()
    other.state()
    written = write_range(PLANNED, [rows(0, 10)], SCHEMA, WriterSettings(plan.table))
    other.commit(TableCommit((TableFile(written.path, written.size_bytes, 10),), {}), SCHEMA)
    path = latest_path("f" * 32)
    count, size_bytes = write_file(run.root / path, [rows(10, 20)], SCHEMA, "zstd")
    with pytest.raises(FencedError):
        run.commit(TableCommit((TableFile(path, size_bytes, count),), {MARK: 20}), SCHEMA, replace=True)
    assert offsets_in(plan.table) == sorted([*range(10), *range(10)])


def written_range(plan: ArchivePlan, uid: str, partition: int) -> dict[str, Any]:
    """Write the first ten records of a partition to a file of the table. Return its description."""
    planned = replace(PLANNED, uid=uid, partition=partition)
    return asdict(write_range(planned, [rows(0, 10)], SCHEMA, WriterSettings(plan.table)))


def test_spark_archive_of_a_recreated_stream_with_other_partitions_raises_not_found(plan: ArchivePlan, node: FakeNode) -> None:
    """The table has no end of partition 1. With its records, it would seem to have partition 0 of the new stream, too."""
    accepts = replace(plan, source={**plan.source, "failOnDataLoss": "false"})
    run = archive_batches(accepts, 0)
    node.add_stream("orders", uid="new", partitions=2)
    with pytest.raises(Exception, match=r"\[NOT_FOUND\] The table has records of a deleted stream orders"):
        run.commit_ranges(1, [written_range(plan, "new", 1)])
    assert offsets_in(plan.table) == list(range(10))
    for start in (
        lambda: Archive(accepts),
        lambda: outlook(accepts),
        lambda: whole(MagicMock(), plan.table, "orders", plan.source),
    ):
        with pytest.raises(NotFoundError, match="records of a deleted stream orders"):
            start()


def test_spark_archive_of_a_recreated_stream_without_the_archived_partitions_raises_not_found(
    plan: ArchivePlan, node: FakeNode
) -> None:
    node.add_stream("orders", uid="uid", partitions=2)
    Archive(plan).commit_ranges(0, [written_range(plan, "uid", 1)])
    node.add_stream("orders", uid="new", partitions=1)
    for start in (lambda: Archive(plan), lambda: outlook(plan)):
        with pytest.raises(NotFoundError, match="records of a deleted stream orders"):
            start()


# ---- set back --------------------------------------------------------------------------------------------------------


def test_spark_archive_of_a_table_that_was_set_back_raises_data_loss(plan: ArchivePlan, node: FakeNode) -> None:
    """The table keeps its end offsets, so the archive would leave a gap."""
    run = archive_batches(plan, 0, 1, 2)
    go_to(Path(plan.table), 0)
    step = compact.CompactPlan(stream="orders", output="/latest", table=plan.table, source=plan.source)
    for read in (
        lambda: run.commit(3),
        lambda: Archive(plan),
        lambda: outlook(plan),
        lambda: whole(MagicMock(), plan.table, "orders", plan.source),
        lambda: compact.next_step(step, MagicMock(state=lambda _: None)),
    ):
        with pytest.raises(Exception, match=r"set table .* back to an earlier version"):
            read()
    assert offsets_in(plan.table) == list(range(10))
    accepts = replace(plan, source={**plan.source, "failOnDataLoss": "false"})
    Archive(accepts).commit(0, "new", 3)
    assert offsets_in(plan.table) == [*range(10), *range(30, 40)]


def test_spark_archive_of_a_table_that_was_set_back_keeps_the_files_of_the_newer_version(plan: ArchivePlan) -> None:
    """The user may restore the newer version."""
    archive_batches(plan, 0, 1)
    go_to(Path(plan.table), 0)
    for file in (Path(plan.table) / "data").rglob("*.parquet"):
        os.utime(file, (1, 1))
    kept = replace(plan, orphan_age_s=0.0)
    with pytest.raises(DataLossError, match="set table"):
        Archive(kept)
    Archive(replace(kept, source={**plan.source, "failOnDataLoss": "false"}))
    go_to(Path(plan.table), 1)
    archive_batches(plan, 2)
    assert offsets_in(plan.table) == list(range(30))


@pytest.mark.parametrize("is_gone_back_twice", [False, True])
def test_spark_archive_of_a_table_after_an_undone_deletion_continues(plan: ArchivePlan, is_gone_back_twice: bool) -> None:
    """No record of the archive is lost."""
    archive_batches(plan, 0, 1)
    delete_offset(Path(plan.table), 3)
    if is_gone_back_twice:
        go_to(Path(plan.table), 0)
    go_to(Path(plan.table), 1)
    archive_batches(plan, 2)
    assert offsets_in(plan.table) == list(range(30))


def test_spark_archive_of_a_table_that_was_set_back_to_a_time_raises_data_loss(plan: ArchivePlan, kind: str) -> None:
    if kind != "delta":
        pytest.skip("a snapshot has no other place in the log if a time names it")
    from deltalake import DeltaTable

    archive_batches(plan, 0)
    log = Path(plan.table) / "_delta_log"
    moment = DeltaTable(plan.table).history(1)[0]["timestamp"]
    archive_batches(plan, 1)
    go_to(Path(plan.table), 0)
    newest = log / f"{DeltaTable(plan.table).version():020d}.json"
    text = newest.read_text()
    newest.write_text(
        text.replace('"operationParameters":{"version":"0"}', f'"operationParameters":{{"timestamp":"{moment}"}}')
    )
    assert newest.read_text() != text
    with pytest.raises(DataLossError, match=r"set table .* back"):
        Archive(plan)


def latest_of(plan: ArchivePlan, output: Table, first: int) -> None:
    """Write the output of a compaction up to the offset ``first`` + 10."""
    path = latest_path(f"{first:032x}")
    count, size_bytes = write_file(output.root / path, [rows(first, first + 10)], SCHEMA, "zstd")
    output.state()
    marks = {MARK: first + 10, uid_mark("orders", "uid"): 1}
    output.commit(TableCommit((TableFile(path, size_bytes, count),), marks), SCHEMA, replace=True)


def test_spark_compact_into_an_output_that_was_set_back_needs_rebuild(plan: ArchivePlan, tmp_path: Path) -> None:
    output = table_at(tmp_path / "out", plan.kind)
    step = compact.CompactPlan(stream="orders", output=str(output.root), source=plan.source)
    for first in (0, 10):
        latest_of(plan, output, first)
    assert compact.next_step(step, output).starts == {("orders", 0): 20}
    go_to(output.root, 0)
    with pytest.raises(DataLossError, match="--rebuild"):
        compact.next_step(step, output)
    assert compact.next_step(replace(step, anew=True), output).starts == {("orders", 0): 0}
    latest_of(plan, output, 20)
    assert compact.next_step(step, output).starts == {("orders", 0): 30}


# ---- deleted rows, columns, partitions -------------------------------------------------------------------------------


def add_delta_commit(root: Path, *actions: dict[str, Any]) -> None:
    log = root / "_delta_log"
    info = {"commitInfo": {"timestamp": 1, "operation": "OTHER"}}
    text = "\n".join(json.dumps(one) for one in (info, *actions))
    (log / f"{len(list(log.glob('*.json'))):020d}.json").write_text(text)


def delta_actions(root: Path, kind: str) -> list[dict[str, Any]]:
    lines = [line for file in sorted((root / "_delta_log").glob("*.json")) for line in file.read_text().splitlines()]
    return [action[kind] for line in lines if kind in (action := json.loads(line))]


def enable(root: Path, feature: str, configuration: dict[str, str], *, is_read: bool = True, **metadata: Any) -> None:
    """Give the Delta table in ``root`` a feature, as another program does."""
    there = delta_actions(root, "metaData")[-1]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": [feature]}
    protocol["readerFeatures"] = [feature] if is_read else []
    changed = {**there, "configuration": {**there["configuration"], **configuration}, **metadata}
    add_delta_commit(root, {"protocol": protocol}, {"metaData": changed})


def hide_delta_row(root: Path, row: int) -> None:
    """Mark a row of the first file as deleted, in a deletion vector."""
    bitmap = struct.pack("<iqIIIHHIH", 1681511377, 1, 0, 12346, 1, 0, 0, 16, row)
    enable(root, "deletionVectors", {"delta.enableDeletionVectors": "true"})
    added = delta_actions(root, "add")[0]
    removed = {"path": added["path"], "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": True}
    removed |= {"partitionValues": {}, "size": added["size"]}
    vector = {
        "storageType": "i",
        "pathOrInlineDv": z85(bitmap + bytes(-len(bitmap) % 4)),
        "sizeInBytes": len(bitmap),
        "cardinality": 1,
    }
    add_delta_commit(root, {"remove": removed}, {"add": {**added, "deletionVector": vector}})


def z85(content: bytes) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = struct.unpack(f">{len(content) // 4}I", content)
    return "".join(digits[word // 85**power % 85] for word in words for power in range(4, -1, -1))


def hide_iceberg_row(root: Path, row: int, content: str = "POSITION_DELETES") -> None:
    """Mark a row of the first file as deleted, in a file of deletes. pyiceberg itself writes none.

    ``content``: kind of deletes, as Iceberg names it. Flink writes EQUALITY_DELETES.
    """
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        write_manifest_list,
    )
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary
    from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
    from pyiceberg.typedef import Record

    class DeleteManifest(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

    catalog = catalog_in(root)
    table = catalog.load_table("liftpy.archive")
    parent, number = table.current_snapshot(), 77
    data = min(task.file.file_path for task in table.scan().plan_files())
    ids = {"file_path": "2147483546", "pos": "2147483545"}
    fields = [
        pa.field(name, kind, False, {"PARQUET:field_id": ids[name]})
        for name, kind in (("file_path", pa.string()), ("pos", pa.int64()))
    ]
    deletes = root / "data" / "deletes.parquet"
    pq.write_table(pa.table([[data], [row]], schema=pa.schema(fields)), deletes)
    file = DataFile.from_args(
        content=DataFileContent[content], file_path=deletes.as_uri(), file_format=FileFormat.PARQUET, partition=Record(),
        record_count=1, file_size_in_bytes=deletes.stat().st_size, column_sizes={}, value_counts={}, null_value_counts={},
        nan_value_counts={}, lower_bounds={}, upper_bounds={}, split_offsets=None, sort_order_id=None,
        equality_ids=[1] if content == "EQUALITY_DELETES" else None,
    )  # fmt: skip
    outputs = [table.io.new_output((root / "metadata" / name).as_uri()) for name in ("deletes.avro", "list.avro")]
    with DeleteManifest(table.spec(), table.schema(), outputs[0], number, "deflate") as writer:
        writer.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file))
    sequence = table.last_sequence_number + 1
    with write_manifest_list(2, outputs[1], number, parent.snapshot_id, sequence, "deflate") as manifests:
        manifests.add_manifests([*parent.manifests(table.io), writer.to_manifest_file()])
    snapshot = Snapshot(
        snapshot_id=number, parent_snapshot_id=parent.snapshot_id, sequence_number=sequence, timestamp_ms=parent.timestamp_ms + 1,
        manifest_list=outputs[1].location, summary=Summary(Operation.DELETE), schema_id=0,
    )  # fmt: skip
    changes = (AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=number))
    catalog.commit_table(table, (), changes)


def test_spark_archive_with_rows_that_are_only_marked_as_deleted_is_not_read(plan: ArchivePlan, tmp_path: Path) -> None:
    """The files still have the rows. The archive itself continues."""
    archive_batches(plan, 0, 1)
    (hide_delta_row if plan.kind == "delta" else hide_iceberg_row)(Path(plan.table), 3)
    assert visible_offsets(plan) == [0, 1, 2, *range(4, 20)]
    again = replay.ReplayPlan(stream="orders", target="orders", name="r", table=plan.table, source=plan.source)
    step = compact.CompactPlan(stream="orders", output=str(tmp_path / "out"), table=plan.table, source=plan.source)
    for read in (
        lambda: archived(MagicMock(), plan.table),
        lambda: whole(MagicMock(), plan.table, "orders", plan.source),
        lambda: replay.shares_to_replay(again),
        lambda: compact.next_step(step, table_at(step.output)),
    ):
        with pytest.raises(ConfigError, match="has deleted rows"):
            read()
    archive_batches(plan, 2)
    assert visible_offsets(plan) == [0, 1, 2, *range(4, 30)]


@pytest.mark.parametrize("kind", ["iceberg"], indirect=True)
def test_spark_table_with_equality_deletes_raises_config_error(plan: ArchivePlan) -> None:
    """pyiceberg cannot read the table. The user must know that another program has deleted rows."""
    archive_batches(plan, 0, 1)
    hide_iceberg_row(Path(plan.table), 3, "EQUALITY_DELETES")
    again = replay.ReplayPlan(stream="orders", target="orders", name="r", table=plan.table, source=plan.source)
    for read in (
        lambda: archived(MagicMock(), plan.table),
        lambda: outlook(plan),
        lambda: archive_batches(plan, 2),
        lambda: replay.shares_to_replay(again),
    ):
        with pytest.raises(ConfigError, match=r"has deleted rows.*equality deletes.*rewrite_data_files"):
            read()


@pytest.mark.parametrize("kind", ["iceberg"], indirect=True)
def test_spark_compact_into_an_output_that_had_equality_deletes_deletes_its_old_files(
    plan: ArchivePlan, tmp_path: Path
) -> None:
    """Another program has rewritten the files. The snapshot with the deletes is still readable."""
    output = table_at(tmp_path / "out", plan.kind)
    latest_of(plan, output, 0)
    hide_iceberg_row(output.root, 3, "EQUALITY_DELETES")
    go_to(output.root, 0)
    latest_of(plan, output, 10)
    output.forget_old_files()
    assert len(list((output.root / "data").glob("latest-*"))) == 2


def visible_offsets(plan: ArchivePlan) -> list[int]:
    """Return the offsets that another reader of the table sees."""
    if plan.kind == "delta":
        from deltalake import DeltaTable, QueryBuilder

        found = QueryBuilder().register("t", DeltaTable(plan.table)).execute('select "offset" from t').read_all()
        return sorted(pa.table(found)["offset"].to_pylist())
    return sorted(catalog_in(Path(plan.table)).load_table("liftpy.archive").scan().to_arrow()["offset"].to_pylist())


def test_spark_compact_into_an_output_with_rows_that_are_only_marked_as_deleted_raises_config_error(
    plan: ArchivePlan, tmp_path: Path
) -> None:
    output = table_at(tmp_path / "out", plan.kind)
    latest_of(plan, output, 0)
    (hide_delta_row if plan.kind == "delta" else hide_iceberg_row)(output.root, 3)
    step = compact.CompactPlan(stream="orders", output=str(output.root), source=plan.source)
    with pytest.raises(ConfigError, match="has deleted rows"):
        compact.next_step(step, output)
    assert compact.next_step(replace(step, anew=True), output).waiting == 100


def map_columns(physical_name: str = "", mode: str = "name") -> Changed:
    """Return a function that gives each column of a Delta table a name in its files: its own, or ``physical_name`` for the subject."""

    def change(root: Path) -> None:
        schema = json.loads(delta_actions(root, "metaData")[-1]["schemaString"])
        pair = next(one for one in schema["fields"] if one["name"] == "headers")["type"]["elementType"]["fields"]
        for number, one in enumerate([*schema["fields"], *pair], 1):
            name = physical_name if physical_name and one["name"] == "subject" else one["name"]
            one["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}
        settings = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "99"}
        enable(root, "columnMapping", settings, schemaString=json.dumps(schema))

    return change


@pytest.mark.parametrize("kind", ["delta"], indirect=True)
@pytest.mark.parametrize("change", [map_columns("col-1"), map_columns(mode="id")])
def test_spark_archive_of_a_delta_table_with_other_columns_in_its_files_raises_config_error(
    plan: ArchivePlan, change: Changed
) -> None:
    """Readers of the table would find null in the columns of the new files."""
    run = archive_batches(plan, 0)
    change(Path(plan.table))
    for use in (lambda: run.commit(1), lambda: Archive(plan), lambda: archived(MagicMock(), plan.table)):
        with pytest.raises(Exception, match="has column mapping"):
            use()


@pytest.mark.parametrize("kind", ["delta"], indirect=True)
def test_spark_archive_of_a_delta_table_with_the_same_names_in_its_files_continues(plan: ArchivePlan) -> None:
    run = archive_batches(plan, 0)
    map_columns()(Path(plan.table))
    run.commit(1)
    assert visible_offsets(plan) == offsets_in(plan.table) == list(range(20))


@pytest.mark.parametrize("kind", ["delta"], indirect=True)
def test_spark_archive_into_a_partitioned_delta_table_raises_config_error(plan: ArchivePlan) -> None:
    """The column of the partitions would be null in all rows."""
    from deltalake import DeltaTable

    DeltaTable.create(plan.table, SCHEMA, partition_by=["stream"])
    with pytest.raises(ConfigError, match="is partitioned by stream"):
        Archive(plan)


@pytest.mark.parametrize("kind", ["delta"], indirect=True)
def test_spark_archive_of_a_delta_table_with_an_unsupported_feature_raises_config_error(plan: ArchivePlan) -> None:
    run = archive_batches(plan, 0)
    enable(Path(plan.table), "rowTracking", {"delta.enableRowTracking": "true"}, is_read=False)
    with pytest.raises(Exception, match=r"\[CONFIG\] Cannot write to table .*RowTracking"):
        run.commit(1)


def test_spark_archive_of_a_table_that_gets_a_column_raises_config_error(plan: ArchivePlan) -> None:
    run = archive_batches(plan, 0)
    if plan.kind == "delta":
        from deltalake import DeltaTable, Field
        from deltalake.schema import PrimitiveType

        DeltaTable(plan.table).alter.add_columns([Field("extra", PrimitiveType("string"))])
    else:
        from pyiceberg.types import StringType

        with catalog_in(Path(plan.table)).load_table("liftpy.archive").update_schema() as change:
            change.add_column("extra", StringType())
    with pytest.raises(Exception, match=r"\[CONFIG\] Table .* has the columns .*extra"):
        run.commit(1)


def test_spark_archive_of_a_table_without_its_end_offsets_raises_data_loss(plan: ArchivePlan) -> None:
    """The archive would start at the first record, and store all records twice."""
    archive_batches(plan, 0)
    if plan.kind == "delta":
        log = Path(plan.table) / "_delta_log"
        for file in log.glob("*.json"):
            file.write_text("\n".join(line for line in file.read_text().splitlines() if '{"txn"' not in line))
    else:
        table = catalog_in(Path(plan.table)).load_table("liftpy.archive")
        with table.transaction() as change:
            change.remove_properties(*(name for name in table.properties if name.startswith("liftpy.mark.")))
    for begin in (lambda: Archive(plan), lambda: outlook(plan)):
        with pytest.raises(DataLossError, match=r"has orders/0 up to offset 10 \(exclusive\), but it stores the end 0"):
            begin()


@pytest.mark.parametrize("kind", ["iceberg"], indirect=True)
@pytest.mark.parametrize("name", ["*.json", "*.avro"])
def test_spark_archive_of_an_iceberg_table_with_damaged_metadata_raises_storage_error(plan: ArchivePlan, name: str) -> None:
    archive_batches(plan, 0)
    for file in (Path(plan.table) / "metadata").glob(name):
        file.write_bytes(b"x")
    with pytest.raises(StorageError, match="Cannot read or write Iceberg table"):
        table_at(plan.table).state()


def test_spark_archive_commit_on_a_full_disk_raises_no_space_error_in_one_line(
    plan: ArchivePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reports only the first line. The text of Delta is that of delta-rs on a full disk."""
    if plan.kind == "delta":
        from deltalake.exceptions import DeltaError

        lines = (
            "Generic LocalFileSystem error",
            "  \x1b[31m\u21b3\x1b[0m Unable to copy data to file",
            "   No space left (os error 28)\n",
        )
        changed, error = "deltalake.DeltaTable.create_write_transaction", DeltaError("\n".join(lines))
    else:
        changed, error = "pyiceberg.table.Transaction.add_files", OSError(errno.ENOSPC, "No space left")
    run = archive_batches(plan, 0)
    with monkeypatch.context() as full:
        full.setattr(changed, MagicMock(side_effect=error))
        with pytest.raises(Exception, match=r"^\[NO_SPACE\] Cannot .*No space left.*the disk\.$") as raised:
            run.commit(1)
    assert "\x1b" not in str(raised.value)
    run.commit(1)
    assert offsets_in(plan.table) == list(range(20))


@pytest.mark.parametrize("kind", ["delta"], indirect=True)
def test_spark_archive_of_a_damaged_delta_log_raises_storage_error_in_one_line(plan: ArchivePlan) -> None:
    archive_batches(plan, 0, 1)
    (Path(plan.table) / "_delta_log" / f"{1:020d}.json").write_text('{"add": 3')
    with pytest.raises(
        StorageError, match=r"^Cannot read or write Delta table .* Check the path, its permissions and the disk\.$"
    ):
        table_at(plan.table).state()
