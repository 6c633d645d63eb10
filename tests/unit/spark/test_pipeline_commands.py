"""Test ``liftpy spark`` commands without a JVM: dry runs, exit codes, secret files."""

from __future__ import annotations

import json
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from liftpy.errors import ConfigError
from liftpy.nats.credentials import Credentials
from liftpy.spark.pipelines.tables import FileName, TableCommit, TableFile, latest_path, table_at
from liftpy.spark.schema import arrow_schema, default_columns
from sidecar.cli import output
from sidecar.cli.spark import SparkTarget, ends_by_signal, source_options
from sidecar.runtime.settings import Target
from tests.batches import build_batch
from tests.fake_node import FakeNode

HERE = SparkTarget("local[2]", {})
Run = Callable[..., tuple[int, str, str]]


def test_spark_archive_dry_run_prints_the_next_offset_of_each_partition(
    liftpy_spark: Run, node: FakeNode, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    node.add_stream("orders", partitions=2).partitions[1].append(build_batch([b"x"] * 7, base_offset=0, leader_epoch=1))
    table = str(tmp_path / "table")
    code, out, _ = liftpy_spark("archive", "orders", "--table", table, "--dry-run", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "resumed": False,
            "starts": {"orders/0": 0, "orders/1": 0},
            "waiting": 7,
            "orphans": {"files": [], "bytes": 0, "left": 0},
        },
    )
    code, out, _ = liftpy_spark("archive", "orders", "--table", table, "--dry-run")
    assert (code, out.splitlines()[0], out.splitlines()[3]) == (0, "starts a new query", "7 records wait")
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("start", "offset"), [("-3", 4), ("latest", 7), ('{"orders": {"0": 5}}', 5), ("earliest", 0), ("-1h", 7)]
)
def test_spark_archive_dry_run_with_a_start_prints_this_start(
    liftpy_spark: Run, node: FakeNode, tmp_path: Path, start: str, offset: int
) -> None:
    pytest.importorskip("deltalake")
    node.add_stream("orders").partitions[0].append(build_batch([b"x"] * 7, base_offset=0, leader_epoch=1, timestamp_ns=1))
    code, out, err = liftpy_spark("archive", "orders", "--table", str(tmp_path), "--from", start, "--dry-run", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert (document["starts"], document["waiting"]) == ({"orders/0": offset}, 7 - offset)


def archived_rows(root: Path, name: str) -> TableFile:
    """Return a file in the table directory ``root``, with no rows."""
    columns = arrow_schema(default_columns(include_headers=True, topic=False))
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns.empty_table(), root / name)
    return TableFile(name, (root / name).stat().st_size, 0)


@pytest.mark.parametrize("is_optimized", [False, True])
def test_spark_compact_into_an_archive_raises_config_error(
    liftpy_spark: Run, node: FakeNode, tmp_path: Path, is_optimized: bool
) -> None:
    """The run would replace all records of the archive by the latest one of each key."""
    pytest.importorskip("deltalake")
    node.add_stream("orders", uid="u").partitions[0].append(build_batch([b"x"] * 7, base_offset=0, leader_epoch=1))
    name = "part-1.parquet" if is_optimized else FileName("orders", 0, 0, 5, "0" * 12).path
    marks = {"liftpy/orders/0": 5, "liftpy/orders/0/start": 0, "liftpy/orders/uid/u": 1, "query": 0}
    columns = arrow_schema(default_columns(include_headers=True, topic=False))
    table_at(tmp_path).commit(TableCommit((archived_rows(tmp_path, name),), marks), columns)
    for more in ([], ["--rebuild"]):
        code, _, err = liftpy_spark("compact", "orders", "--output", str(tmp_path), "--dry-run", *more)
        assert (code, "is an archive" in err) == (2, True), err


@pytest.mark.parametrize("has_files", [False, True])
def test_spark_archive_into_the_output_of_compact_raises_config_error(
    liftpy_spark: Run, node: FakeNode, tmp_path: Path, has_files: bool
) -> None:
    """The table does not have all records up to its end."""
    pytest.importorskip("deltalake")
    node.add_stream("orders", uid="u").partitions[0].append(build_batch([b"x"] * 7, base_offset=0, leader_epoch=1))
    files = (archived_rows(tmp_path, latest_path("a" * 32)),) if has_files else ()
    marks = {"liftpy/orders/0": 5, "liftpy/orders/uid/u": 1} | ({} if has_files else {"liftpy/orders/0/epoch": 1})
    columns = arrow_schema(default_columns(include_headers=True, topic=False))
    table_at(tmp_path).commit(TableCommit(files, marks), columns)
    code, _, err = liftpy_spark("archive", "orders", "--table", str(tmp_path), "--dry-run")
    assert (code, "is the output of liftpy spark compact" in err) == (2, True), err


def test_spark_archive_dry_run_of_a_recreated_stream_raises_not_found(
    liftpy_spark: Run, node: FakeNode, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    node.add_stream("orders", uid="before")
    commit = TableCommit((), {"liftpy/orders/0": 5, "liftpy/orders/uid/before": 1})
    columns = default_columns(include_headers=True, topic=False)
    table_at(tmp_path).commit(commit, arrow_schema(columns))
    archive = ["archive", "orders", "--table", str(tmp_path), "--from", "latest", "--dry-run", "--json"]
    code, out, err = liftpy_spark(*archive)
    assert (code, json.loads(out)["starts"]) == (0, {"orders/0": 5}), err
    node.add_stream("orders", uid="now")
    code, _, err = liftpy_spark(*archive)
    assert (code, "records of a deleted stream" in err) == (1, True), err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["archive", "--table", "t"], 2, "Missing argument"),
        (["archive", "_groups", "--table", "t"], 2, "internal"),
        (
            ["archive", "orders", "--table", "t", "--columns", "value", "--dry-run"],
            2,
            "columns lacks stream, partition, offset",
        ),
        (["archive", "orders", "--table", "t", "--conf", "x", "--dry-run"], 2, "Use NAME=VALUE"),
        (["archive", "orders", "--table", "t", "--master", "", "--dry-run"], 2, "--master"),
        (["archive", "nobody", "--table", "t", "--dry-run"], 1, "'nobody' does not exist"),
    ],
)
def test_spark_command_error_exits_with_the_documented_exit_code(
    liftpy_spark: Run, node: FakeNode, arguments: list[str], code: int, text: str
) -> None:
    pytest.importorskip("deltalake")
    node.add_stream("orders")
    found, _, err = liftpy_spark(*arguments)
    assert (found, text in err) == (code, True), err


@pytest.mark.parametrize(
    "command",
    [
        ["archive", "orders", "--table", "t", "--dry-run"], ["replay", "orders", "copies", "--name", "n", "--dry-run"],
        ["compact", "orders", "--output", "t", "--dry-run"], ["stats", "orders"], ["audit", "orders"],
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_spark_command_without_nodes_exits_with_unavailable(liftpy_spark: Run, command: list[str]) -> None:
    """A script then knows that it can run the command again."""
    pytest.importorskip("deltalake")
    code, _, err = liftpy_spark(*command)
    assert (code, "[" not in err.partition(" ")[2][:2]) == (3, True), err


def test_spark_command_deletes_its_secret_files_at_the_end() -> None:
    target = Target(("nats://a:1", "nats://b:2"), "ns", Credentials(user="reader", password="secret", inbox_prefix="_INBOX_r"))
    with source_options(target, HERE) as options:
        file = Path(options.pop("nats.passwordFile"))
        assert options == {
            "nats": "nats://a:1,nats://b:2", "namespace": "ns", "nats.user": "reader", "nats.inboxPrefix": "_INBOX_r"
        }  # fmt: skip
        assert file.read_text() == "secret"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not file.exists()
    with pytest.raises(ConfigError, match="on other machines"), source_options(target, SparkTarget("spark://h:7077", {})):
        pass
    by_file = Target(("nats://a:1",), "ns", Credentials(creds_file="/etc/reader.creds"))
    with source_options(by_file, SparkTarget("spark://h:7077", {})) as options:
        assert options == {"nats": "nats://a:1", "namespace": "ns", "nats.creds": "/etc/reader.creds"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_spark_command_with_two_signals_stops_spark_and_deletes_its_secret_files(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A terminal that is closed sends SIGHUP twice, and the second one arrives during the cleanup."""
    spark = RunningSpark()
    monkeypatch.setattr("sidecar.cli.spark.local_session", lambda *_, **__: spark)
    target, cleaned = Target(("nats://a:1",), "ns", Credentials(user="reader", password="secret")), []

    def run() -> None:
        with ends_by_signal(), source_options(target, HERE) as options, HERE.open_session("archive", is_shown=False):
            files.append(Path(options["nats.passwordFile"]))
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(number)
                cleaned.append("query")

    files: list[Path] = []
    before = signal.signal(number, signal.SIG_DFL)  # a program under nohup ignores SIGHUP
    try:
        with pytest.raises(SystemExit) as ended:
            run()
    finally:
        signal.signal(number, before)
    assert (ended.value.code, cleaned, spark.is_stopped, files[0].exists()) == (128 + number, ["query"], True, False)


class RunningSpark:
    """Stand in for a Spark session with two running stages: 3 of 8 tasks are done."""

    def __init__(self) -> None:
        self.was_asked = threading.Event()
        self.is_stopped = False

    @property
    def sparkContext(self) -> RunningSpark:
        return self

    def statusTracker(self) -> RunningSpark:
        return self

    def getActiveStageIds(self) -> list[int]:
        return [1, 2, 3]

    def getStageInfo(self, stage: int) -> Any:
        if stage == 3:  # the last one
            self.was_asked.set()
            return None
        return SimpleNamespace(numTasks=4, numCompletedTasks=stage)

    def stop(self) -> None:
        self.is_stopped = True


def test_spark_command_shows_the_tasks_of_the_running_stages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spark = RunningSpark()
    monkeypatch.setattr("sidecar.cli.spark.local_session", lambda *_, **__: spark)
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    with HERE.open_session("liftpy spark archive", is_shown=True):
        assert spark.was_asked.wait(20)
    assert spark.is_stopped
    assert "liftpy spark archive: 37 %, 3 tasks" in capsys.readouterr().err
