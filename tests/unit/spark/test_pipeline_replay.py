"""Test replay and compact without a JVM: files of a task, target partitions, rate, new records, dry runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftpy.errors import ConfigError, InvalidNameError, NotFoundError
from liftpy.spark.options import Access
from liftpy.spark.pipelines.compact import COLUMNS, CompactPlan, next_step, steps_of, write_part
from liftpy.spark.pipelines.replay import (
    RateLimit,
    ReplayPlan,
    files_of,
    replay,
    shares_of_files,
    shares_to_replay,
    views_of,
    with_partition_column,
)
from liftpy.spark.pipelines.tables import ArchivedRange, FileName, TableCommit, TableState, commit_of, table_at
from liftpy.spark.planning import PartitionView, plan_ranges
from liftpy.spark.schema import arrow_schema
from liftpy.spark.sink_rows import places_of
from tests.batches import build_batch
from tests.fake_node import FakeNode

TAG = "0123456789ab"


def path(start: int, end: int, partition: int = 0, stream: str = "orders") -> str:
    return "/t/" + FileName(stream, partition, start, end, TAG).path


@pytest.mark.parametrize("is_recreated", [True, False])
def test_spark_replay_into_a_target_that_is_recreated_during_the_run_raises_not_found(
    access: Access, node: FakeNode, is_recreated: bool
) -> None:
    """The new target lacks the records of the tasks that had ended."""
    node.add_stream("orders").partitions[0].append(build_batch([b"x"], base_offset=0, leader_epoch=1))
    node.add_stream("copies", uid="first")

    def collect() -> list[str]:
        node.add_stream("copies", uid="second" if is_recreated else "first")
        return ["done"]

    spark = MagicMock()
    spark.sparkContext.parallelize.return_value.map.return_value.collect = collect
    options = {"nats": access.servers, "namespace": access.namespace, "patience": "3"}
    plan = ReplayPlan(stream="orders", target="copies", name="again", source=options)
    if is_recreated:
        with pytest.raises(NotFoundError, match="Target copies was deleted and created again during the replay"):
            replay(spark, plan)
    else:
        assert replay(spark, plan) == ["done"]


def test_spark_replay_task_gets_the_files_of_its_offset_range_in_order() -> None:
    paths = [path(50, 90), path(0, 50), path(5, 7, 1), path(0, 9, 0, "others"), path(90, 100)]
    files = files_of(paths, "orders")
    views = views_of(files)
    assert {key: (view.log_start_offset, view.end_offset) for key, view in views.items()} == {
        ("orders", 0): (0, 100), ("orders", 1): (5, 7)
    }  # fmt: skip
    ranges, _ = plan_ranges(
        views, {("orders", 0): 50, ("orders", 1): 5}, {("orders", 0): 90, ("orders", 1): 7}, fail_on_data_loss=True
    )
    shares = shares_of_files(ranges, files)
    assert [(share.planned.start_offset, share.files) for share in shares] == [(50, (path(50, 90),)), (5, (path(5, 7, 1),))]
    whole, _ = plan_ranges(views, {}, {("orders", 0): 100}, fail_on_data_loss=True)
    assert shares_of_files(whole, files)[0].files == (path(0, 50), path(50, 90), path(90, 100))
    with pytest.raises(NotFoundError):
        files_of(paths, "none")
    with pytest.raises(ConfigError, match="optimized"):
        files_of([*paths, "/t/part-1.parquet"], "orders")


def test_spark_replay_target_partition_of_a_record_does_not_depend_on_batch_boundaries() -> None:
    keys = [b"a", None, b"b", None, None, b"c", None]
    rows = pa.record_batch(
        {"key": pa.array(keys, pa.binary()), "value": pa.array([b"v"] * 7, pa.binary()), "offset": list(range(10, 17))}
    )
    kept = with_partition_column(rows, 1, 3)
    assert places_of(kept, 3).tolist() == [1] * 7
    whole = places_of(with_partition_column(rows, -1, 3), 3).tolist()
    assert [place for place, key in zip(whole, keys, strict=True) if key is None] == [11 % 3, 13 % 3, 14 % 3, 16 % 3]
    parts = [places_of(with_partition_column(rows.slice(first, 2), -1, 3), 3).tolist() for first in range(0, 7, 2)]
    assert [place for part in parts for place in part] == whole
    assert "offset" not in kept.column_names
    assert places_of(with_partition_column(rows.drop_columns(["key"]), -1, 3), 3).tolist() == [i % 3 for i in range(10, 17)]


def test_spark_replay_sleeps_to_keep_the_requested_rate() -> None:
    assert RateLimit(0.0).pause_s(1000, 0.0, 0.1) == 0
    limit = RateLimit(100.0)
    assert limit.pause_s(1000, 0.0, 4.0) == 6.0
    assert limit.pause_s(0, 10.0, 11.0) == 0
    assert limit.pause_s(100, 11.0, 11.5) == 0.5


@pytest.mark.parametrize("new_records", [0, 100])
def test_spark_replay_after_a_long_part_keeps_the_requested_rate(new_records: int) -> None:
    """The target had no leader for some time, or it had the records of an earlier run."""
    limit = RateLimit(100.0)
    assert limit.pause_s(new_records, 0.0, 60.0) == 0
    assert [limit.pause_s(100, now_s, now_s) for now_s in (60.0, 61.0, 62.0)] == [1.0] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x" * 101},
        {"rate": -1.0},
        {"rate": math.nan},
        {"rate": math.inf},
        {"target": "a"},
        {"stream": "_a"},
        {"target": "b/c"},
    ],
)
def test_spark_replay_plan_rejects_contradictory_options(wrong: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, InvalidNameError)):
        ReplayPlan(**{"stream": "a", "target": "b", "name": "n", **wrong})


def test_spark_replay_of_an_archive_with_a_time_range_raises_config_error() -> None:
    for source in ({"startingTimestamp": "5"}, {"startingOffsets": "-5m"}, {"endingTimestamp": "5"}):
        with pytest.raises(ConfigError, match="needs offsets"):
            ReplayPlan(stream="a", target="b", name="n", table="t", source=source).options()
        ReplayPlan(stream="a", target="b", name="n", source=source).options()


def test_spark_replay_of_an_archive_without_values_raises_config_error(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_stream("copies")
    state = TableState(1, arrow_schema(["key", "stream", "partition", "offset"]), (), 0, {})
    monkeypatch.setattr("liftpy.spark.pipelines.replay.state_of", lambda table, marks: state)
    source = {"nats": access.servers, "namespace": access.namespace}
    with pytest.raises(ConfigError, match="has no column value"):
        shares_to_replay(ReplayPlan(stream="a", target="copies", name="n", table="/t", source=source))


def view(partition: int, start: int, end: int) -> PartitionView:
    return PartitionView(
        stream="s", uid="u", partition=partition, replicas=(), leader="", leader_epoch=1, log_start_offset=start, end_offset=end
    )


def test_spark_compact_reads_archived_offsets_from_the_archive_and_later_offsets_from_the_stream() -> None:
    views = {("s", p): view(p, 10, 100) for p in range(4)}
    before = {"liftpy/s/0": 60, "liftpy/s/1": 90}
    archived = {"liftpy/s/0": 80, "liftpy/s/1": 80, "liftpy/s/2": 80}
    starts, cuts, ends = steps_of(views, before, archived, {})
    assert list(starts.values()) == [60, 90, 0, 10]  # what was compacted; all that the archive has; all that the stream has
    assert list(cuts.values()) == [80, 90, 80, 10]
    assert list(ends.values()) == [100] * 4


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "unmarked"])
@pytest.mark.parametrize(
    ("compacted", "log_start", "cut"),
    [(0, 0, 0), (0, 20, 20), (0, 60, 80), (40, 0, 40), (50, 0, 80), (90, 0, 90)],
    ids=["first-run", "first-run-after-retention", "retention-passed", "gap", "no-gap", "archive-behind"],
)
def test_spark_compact_reads_records_that_an_archive_does_not_have_from_the_stream(
    access: Access, node: FakeNode, tmp_path: Path, compacted: int, log_start: int, cut: int, is_marked: bool
) -> None:
    """The archive has offsets 50 to 79 of 100, because it was started with --from."""
    pytest.importorskip("deltalake")
    log = node.add_stream("orders", uid="u").partitions[0]
    log.append(build_batch([b"x"] * 100, base_offset=0, leader_epoch=1))
    log.log_start_offset = log_start
    archived = ArchivedRange(
        stream="orders", uid="u", partition=0, start_offset=50, end_offset=80, path=path(50, 80)[len("/t/") :], record_count=30
    )
    (tmp_path / "archive" / archived.path).parent.mkdir(parents=True)
    (tmp_path / "archive" / archived.path).touch()
    commit = commit_of([archived], "q", 0, {})
    assert commit is not None
    if not is_marked:  # an earlier version has written it
        commit = replace(commit, marks={mark: value for mark, value in commit.marks.items() if not mark.endswith("/start")})
    table_at(tmp_path / "archive").commit(commit, arrow_schema(COLUMNS))
    output = table_at(tmp_path / "latest")
    if compacted:
        output.commit(TableCommit((), {"liftpy/orders/0": compacted, "liftpy/orders/uid/u": 1}), arrow_schema(COLUMNS))
    source = {"nats": access.servers, "namespace": access.namespace}
    plan = CompactPlan(stream="orders", output=str(output.root), table=str(tmp_path / "archive"), source=source)
    step = next_step(plan, output)
    assert step.cuts == {("orders", 0): cut}
    assert step.starts == {("orders", 0): compacted or min(log_start, 50)}


def test_spark_compact_plan_rejects_contradictory_options() -> None:
    with pytest.raises(ConfigError, match="output is the same table as the archive"):
        CompactPlan(stream="a", output="/t", table="/t/../t")
    with pytest.raises(ConfigError, match="Offsets are not allowed"):
        CompactPlan(stream="a", output="/t", source={"startingOffsets": "earliest"}).options()


def test_spark_compact_writes_a_part_to_one_file_and_returns_its_statistics(tmp_path: Path) -> None:
    schema = arrow_schema(COLUMNS)
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    assert list(write_part(str(tmp_path), iter([empty]))) == []
    assert not list(tmp_path.rglob("*.*"))
    rows = pa.RecordBatch.from_pylist([{"key": b"k", "value": b"v", "offset": 3}] * 2, schema=schema)
    (row,) = [batch.to_pylist()[0] for batch in write_part(str(tmp_path), iter([rows, empty, rows]))]
    file = tmp_path / row["path"]
    assert (row["record_count"], row["size_bytes"]) == (4, file.stat().st_size)
    assert pq.read_table(file)["offset"].to_pylist() == [3] * 4


def test_spark_compact_and_replay_dry_runs_print_the_planned_work(
    liftpy_spark: Callable[..., tuple[int, str, str]], node: FakeNode, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    node.add_stream("orders", partitions=2).partitions[1].append(build_batch([b"x"] * 7, base_offset=0, leader_epoch=1))
    node.add_stream("copies", partitions=2)
    node.add_stream("small")
    replay = ["replay", "orders", "copies", "--name", "n", "--dry-run"]
    code, out, _ = liftpy_spark(*replay, "--json", "--from", "-5")
    assert (code, json.loads(out)) == (0, {"target": "copies", "ranges": {"orders/1": [2, 7]}, "records": 5})
    assert liftpy_spark(*replay)[1].startswith("orders/1 [0, 7): 7 records\n7 records would be written to copies")
    code, _, err = liftpy_spark("replay", "orders", "small", "--name", "n", "--dry-run")
    assert (code, "Add partitions to the target" in err) == (2, True)
    assert liftpy_spark("replay", "orders", "small", "--name", "n", "--dry-run", "--partitioner", "key")[0] == 0
    code, out, _ = liftpy_spark("compact", "orders", "--output", str(tmp_path / "o"), "--dry-run", "--json")
    assert (code, json.loads(out)) == (0, {"starts": {"orders/0": 0, "orders/1": 0}, "waiting": 7, "keys": 0})
    assert liftpy_spark("replay", "orders", "copies", "--name", "n", "--table", str(tmp_path), "--dry-run")[0] == 1


def test_spark_replay_from_an_offset_of_a_deleted_stream_raises_not_found(
    liftpy_spark: Callable[..., tuple[int, str, str]], node: FakeNode, tmp_path: Path
) -> None:
    """The offset is valid in the new stream, too, but it is the offset of another record."""
    node.add_stream("orders", uid="now").partitions[0].append(build_batch([b"x"] * 7, base_offset=0, leader_epoch=1))
    node.add_stream("copies")
    replay = ["replay", "orders", "copies", "--name", "n", "--dry-run"]
    stats = ["stats", "orders"]
    for command in ([*replay, "--from"], [*replay, "--until"], [*stats, "--from"], [*stats, "--until"]):
        code, _, err = liftpy_spark(*command, '{"orders": {"uid": "before", "0": 3}}')
        assert (code, "deleted and created again" in err) == (1, True), (command, err)
        assert liftpy_spark(*command, '{"orders": {"uid": "now", "0": 3}}')[0] == 0


def test_spark_replay_from_the_offset_of_a_lost_record_raises_data_loss(
    liftpy_spark: Callable[..., tuple[int, str, str]], node: FakeNode
) -> None:
    """An unclean election has replaced the record before the offset."""
    log = node.add_stream("orders").partitions[0]
    log.leader_epoch = 5
    log.append(build_batch([b"x"] * 7, base_offset=0, leader_epoch=5))
    node.add_stream("copies")
    read_before = json.dumps({"orders": {"uid": "uid-orders", "0": 3, "epochs": {"0": 2}}})
    replay = ["replay", "orders", "copies", "--name", "n", "--dry-run"]
    code, _, err = liftpy_spark(*replay, "--from", read_before)
    assert (code, "unclean election" in err) == (1, True), err
    code, out, err = liftpy_spark("stats", "orders", "--from", read_before)
    assert (code, "unclean election" in out) == (0, True), (out, err)


@pytest.mark.parametrize("from_archive", [True, False])
def test_spark_replay_that_accepts_lost_records_logs_their_offsets(
    liftpy_spark: Callable[..., tuple[int, str, str]],
    node: FakeNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    from_archive: bool,
) -> None:
    log = node.add_stream("orders").partitions[0]
    log.log_start_offset = 20
    log.append(build_batch([b"x"] * 10, base_offset=20, leader_epoch=1))
    node.add_stream("copies")
    files = (path(0, 10), path(20, 30), path(30, 40), path(60, 70), path(10, 20, 1))
    state = TableState(1, arrow_schema(COLUMNS), files, 50, {})
    monkeypatch.setattr("liftpy.spark.pipelines.replay.state_of", lambda table, wanted=(): state)
    monkeypatch.setattr("liftpy.spark.pipelines.replay.table_at", lambda table: None)
    replay = ["replay", "orders", "copies", "--name", "n", "--dry-run", "--partitioner", "key", "--accept-loss", "--from"]
    if from_archive:
        replay += ['{"orders": {"0": 5, "1": 5}}', "--until", '{"orders": {"0": 65, "1": 20}}', "--table", "/t"]
        lost = ["orders/0 [5, 65)", "offsets [10, 20)", "offsets [40, 60)", "orders/1", "offsets [5, 10)"]
    else:
        replay += ['{"orders": {"0": 5}}']
        lost = ["orders/0", "offsets [5, 20)"]
    assert liftpy_spark(*replay)[0] == 0
    assert all(text in caplog.text for text in lost), caplog.text
    assert caplog.text.count("offsets [") == sum("offsets [" in text for text in lost)


@pytest.mark.parametrize(("until", "count"), [(18, 0), (20, 0), (25, 5)])
def test_spark_replay_of_offsets_that_the_archive_lacks_does_not_read_the_stream(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, until: int, count: int
) -> None:
    """The stream may be another one of this name."""
    node.add_stream("copies")
    node.add_stream("orders").partitions[0].append(build_batch([b"x"] * 30, base_offset=0, leader_epoch=1))
    state = TableState(1, arrow_schema(COLUMNS), (path(0, 10), path(20, 30)), 20, {})
    monkeypatch.setattr("liftpy.spark.pipelines.replay.state_of", lambda table, wanted=(): state)
    source = {
        "nats": access.servers,
        "namespace": access.namespace,
        "startingOffsets": '{"orders": {"0": 12}}',
        "endingOffsets": f'{{"orders": {{"0": {until}}}}}',
    }
    shares = shares_to_replay(ReplayPlan(stream="orders", target="copies", name="n", table="/t", source=source))
    assert [share.files for share in shares] == [(path(20, 30),)] * bool(count)
    assert f"offsets [12, {min(until, 20)})" in caplog.text


def test_spark_replay_of_an_archive_from_an_offset_of_another_stream_raises_not_found(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deltalake")
    node.add_stream("copies")
    marks = {"liftpy/orders/0": 50, "liftpy/orders/uid/archived": 1}

    def state_of(table: object, wanted: Iterable[str] = ()) -> TableState:
        return TableState(1, arrow_schema(COLUMNS), (path(0, 50),), 50, {mark: marks[mark] for mark in wanted if mark in marks})

    def plan(uid: str) -> ReplayPlan:
        source = {
            "nats": access.servers,
            "namespace": access.namespace,
            "startingOffsets": f'{{"orders": {{"uid": "{uid}", "0": 3}}}}',
        }
        return ReplayPlan(stream="orders", target="copies", name="n", table="/t", source=source)

    monkeypatch.setattr("liftpy.spark.pipelines.replay.state_of", state_of)
    assert [share.planned.record_count for share in shares_to_replay(plan("archived"))] == [47]
    with pytest.raises(NotFoundError, match="deleted"):
        shares_to_replay(plan("other"))
