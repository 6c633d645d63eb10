"""Test the Spark archive without a JVM: file names, offsets, cutover, orphans, Delta transactions."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftpy.client.progress import NotServedError
from liftpy.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    InvalidNameError,
    LiftError,
    NatsUnreachableError,
    NoClusterError,
    NoMajorityError,
    NotFoundError,
    StorageError,
    UnavailableError,
)  # fmt: skip
from liftpy.nats.blocking_connection import ConnectionClosedError
from liftpy.nats.transport import NoRespondersError
from liftpy.spark.failures import SourceError, WorkerStartError, error_of, unwrap_spark_errors, with_error_code
from liftpy.spark.pipelines import archive
from liftpy.spark.pipelines import archive_writer as writing_module
from liftpy.spark.pipelines.archive import (
    Archived,
    ArchivePlan,
    DataFile,
    orphans_among,
)
from liftpy.spark.pipelines.archive_writer import WriterSettings, write_range
from liftpy.spark.pipelines.tables import (
    ArchivedRange,
    FileName,
    TableCommit,
    TableFile,
    check_archived,
    check_table_columns,
    commit_of,
    is_temporary,
    marks_of,
    parse_file,
    starts_after,
    stats_of,
    table_at,
    tag_of,
    temporary,
)
from liftpy.spark.planning import PlannedRange
from sidecar.cli.main import exit_code

TAG = "0123456789ab"


# ---- names ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [FileName("a-1-2", 3, 0, 7, TAG), FileName("x" * 64, 4_000_000_000, 5, 1 << 62, TAG)])
def test_spark_archive_file_name_contains_stream_partition_and_offsets(name: FileName) -> None:
    assert parse_file(name.name) == name
    assert name.path == f"data/{name.stream}/{name.partition}/{name.name}"
    unfinished = temporary(name.name, "0" * 32)
    assert (is_temporary(unfinished), is_temporary(name.name), parse_file(unfinished)) == (True, False, None)


def test_spark_archive_file_name_depends_on_the_uid_the_columns_and_the_epoch() -> None:
    names = [("u", ["a"], 0), ("v", ["a"], 0), ("u", ["b"], 0), ("u", ["a", "b"], 0), ("u", ["ab"], 0), ("u", ["a"], 1)]
    assert len({tag_of(*name) for name in names}) == len(names)
    with pytest.raises(InvalidNameError):
        check_archived("a/b")
    with pytest.raises(ConfigError, match="internal"):
        check_archived("_groups")


# ---- micro-batches -------------------------------------------------------------------------------------------------------
def part(
    start: int, end: int, *, stream: str = "orders", partition: int = 0, uid: str = "u", path: str | None = None
) -> ArchivedRange:
    name = f"{stream}-{start}" if path is None else path
    return ArchivedRange(
        stream=stream, uid=uid, partition=partition, start_offset=start, end_offset=end, path=name, record_count=end - start
    )


KNOWN = {"q": 6, "liftpy/orders/0": 500, "liftpy/orders/uid/u": 1}


def test_spark_archive_repeated_micro_batch_commits_nothing() -> None:
    ranges = [part(700, 900), part(500, 700), part(0, 10, partition=1)]
    assert marks_of(ranges, "q") >= {"q", "liftpy/orders/0", "liftpy/orders/1", "liftpy/orders/uid/u"}
    files = tuple(TableFile(one.path, one.size_bytes, one.record_count, one) for one in (ranges[1], ranges[0], ranges[2]))
    assert commit_of(ranges, "q", 7, KNOWN) == TableCommit(
        files,
        {
            "q": 7,
            "liftpy/orders/0": 900,
            "liftpy/orders/1": 10,
            "liftpy/orders/1/start": 0,
            "liftpy/orders/uid": 1,
            "liftpy/orders/uid/u": 1,
        },
    )
    repeated = [part(300, 500), part(200, 300)]
    assert commit_of(repeated, "q", 6, KNOWN) is None
    assert commit_of(repeated, "q", 5, KNOWN) is None


@pytest.mark.parametrize("accepts_loss", [False, True])
def test_spark_archive_with_an_older_checkpoint_raises_fenced_error(accepts_loss: bool) -> None:
    """The query would report later records as archived, under the number of a micro-batch that the table has."""
    for ranges in ([part(400, 501)], [part(300, 400), part(400, 900)], [part(400, 500), part(0, 1, partition=1)]):
        with pytest.raises(FencedError, match="checkpoint is an older copy"):
            commit_of(ranges, "q", 5, KNOWN, fail_on_data_loss=not accepts_loss)


@pytest.mark.parametrize("marks", [{}, {"q": 5}, {**KNOWN, "q": 5}])
def test_spark_archive_into_a_table_without_the_micro_batch_before_raises_data_loss(marks: dict[str, int]) -> None:
    """The table would lack the records of the earlier micro-batches, also if it has no records of these partitions."""
    ranges = [part(70, 90, partition=1)]
    with pytest.raises(DataLossError, match="does not have micro-batch 6 of this checkpoint"):
        commit_of(ranges, "q", 7, marks)
    assert commit_of(ranges, "q", 7, marks, fail_on_data_loss=False) is not None


def test_spark_archive_range_without_records_advances_the_committed_offset_without_a_file() -> None:
    found = commit_of([part(500, 600, path="")], "q", 7, KNOWN)
    assert found is not None
    assert (found.files, found.marks["liftpy/orders/0"]) == ((), 600)


@pytest.mark.parametrize(
    ("ranges", "error"),
    [
        ([part(499, 510)], FencedError),
        ([part(500, 600), part(599, 700)], FencedError),
        ([part(501, 510)], DataLossError),
        ([part(500, 600), part(601, 700)], DataLossError),
        ([part(500, 510, uid="v")], NotFoundError),
        ([part(0, 5, stream="new", uid="v"), part(5, 9, stream="new", uid="w")], NotFoundError),
    ],
)
def test_spark_archive_range_that_does_not_start_at_the_committed_offset_is_rejected(
    ranges: list[ArchivedRange], error: type[LiftError]
) -> None:
    with pytest.raises(error):
        commit_of(ranges, "q", 7, KNOWN)
    with pytest.raises(error):
        commit_of(ranges, "other", 0, KNOWN)
    if error is DataLossError:
        assert commit_of(ranges, "q", 7, KNOWN, fail_on_data_loss=False) is not None


def test_spark_archive_cutover_offsets_are_the_committed_offsets_of_the_table() -> None:
    partitions = {("orders", 0): "u", ("orders", 1): "u", ("more", 0): "m"}
    assert starts_after(partitions, {"q": 1}, -2) is None
    assert starts_after(partitions, KNOWN, -2) == {
        "orders": {"uid": "u", "0": 500, "1": -2, "others": -2},
        "more": {"uid": "m", "0": -2, "others": -2},
    }
    with pytest.raises(NotFoundError, match="deleted"):
        starts_after({("orders", 0): "v"}, KNOWN, -2)


def test_spark_archive_with_other_columns_than_the_table_raises_config_error() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    check_table_columns(schema, schema, "t")
    with pytest.raises(ConfigError, match="has the columns a, b"):
        check_table_columns(schema, pa.schema([("a", pa.int64())]), "t")


@pytest.mark.parametrize(
    "wrong",
    [
        {"streams": ()}, {"streams": ("a", "a")}, {"streams": ("_a",)}, {"compression": "gzip"}, {"every_s": -1.0},
        {"every_s": math.nan}, {"every_s": math.inf}, {"orphan_age_s": math.nan},
        {"batch_records": 0}, {"columns": "value,offset"}, {"source": {"Subscribe": "x"}},
        {"streams": "ab"}, {"batch_records": 1.5}, {"batch_records": "5"}, {"tasks": None}, {"every_s": "10s"},
    ],
)  # fmt: skip
def test_spark_archive_plan_rejects_contradictory_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ArchivePlan(**{"streams": ("a",), "table": "t", **wrong})


def test_spark_table_without_a_directory_raises_config_error() -> None:
    """Otherwise the table would be the current directory."""
    with pytest.raises(ConfigError, match="directory of the table is empty"):
        table_at("")


# ---- files ---------------------------------------------------------------------------------------------------------------
SCHEMA = pa.schema([("stream", pa.string()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])
PLANNED = PlannedRange("orders", "uid", 2, 10, 20, 1, "n1", ("n1",))


def batches(offsets: range, size: int = 4) -> list[pa.RecordBatch]:
    return [
        pa.record_batch([["orders"] * len(own), list(own), [1_000_000 - o for o in own]], schema=SCHEMA)
        for first in range(offsets.start, offsets.stop, size)
        if (own := range(first, min(first + size, offsets.stop)))
    ]


def test_spark_archive_writes_a_range_to_one_file_and_returns_its_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing_module, "ROW_GROUP_BYTES", 150)
    written = write_range(PLANNED, batches(range(10, 20)), SCHEMA, WriterSettings(str(tmp_path)))
    file = tmp_path / written.path
    assert written == ArchivedRange(
        stream="orders", uid="uid", partition=2, start_offset=10, end_offset=20, path=written.path, record_count=10,
        size_bytes=file.stat().st_size, oldest_us=999_981, newest_us=999_990, first_offset=10, last_offset=19,
    )  # fmt: skip
    assert pq.read_table(file)["offset"].to_pylist() == list(range(10, 20))
    assert pq.read_metadata(file).num_row_groups == 2
    assert list(file.parent.iterdir()) == [file]


def test_spark_archive_reuses_the_file_of_a_range_that_is_already_written(tmp_path: Path) -> None:
    first = write_range(PLANNED, batches(range(10, 20)), SCHEMA, WriterSettings(str(tmp_path)))
    before = (tmp_path / first.path).stat()

    def nothing() -> Any:
        raise AssertionError("nobody reads what is written")
        yield

    assert write_range(PLANNED, nothing(), SCHEMA, WriterSettings(str(tmp_path), "none")) == first
    assert (tmp_path / first.path).stat().st_ino == before.st_ino
    other = write_range(replace(PLANNED, uid="other"), batches(range(10, 20)), SCHEMA, WriterSettings(str(tmp_path)))
    assert other.path != first.path


def test_spark_archive_does_not_reuse_a_file_of_records_that_an_unclean_election_lost(tmp_path: Path) -> None:
    lost = write_range(replace(PLANNED, last=(19, 1)), batches(range(10, 20)), SCHEMA, WriterSettings(str(tmp_path)))
    written = write_range(replace(PLANNED, last=(19, 3)), batches(range(10, 18)), SCHEMA, WriterSettings(str(tmp_path)))
    assert (lost.record_count, written.record_count) == (10, 8)
    assert pq.read_table(tmp_path / written.path)["offset"].to_pylist() == list(range(10, 18))


def test_spark_archive_with_two_attempts_of_one_range_keeps_the_file_that_finished_first(tmp_path: Path) -> None:
    def slow() -> Any:
        yield from batches(range(10, 20), size=3)
        done.append(write_range(PLANNED, batches(range(10, 20)), SCHEMA, WriterSettings(str(tmp_path), "none")))

    done: list[ArchivedRange] = []
    second = write_range(PLANNED, slow(), SCHEMA, WriterSettings(str(tmp_path)))
    assert done == [second]
    assert len(list((tmp_path / second.path).parent.iterdir())) == 1


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_spark_archive_writes_to_a_file_system_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.link", link)
    written = write_range(PLANNED, batches(range(10, 20)), SCHEMA, WriterSettings(str(tmp_path)))
    assert pq.read_table(tmp_path / written.path)["offset"].to_pylist() == list(range(10, 20))
    assert list((tmp_path / written.path).parent.iterdir()) == [tmp_path / written.path]


def test_spark_archive_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def fails() -> Any:
        yield from batches(range(10, 14))
        raise UnavailableError("nobody")

    with pytest.raises(UnavailableError):
        write_range(PLANNED, fails(), SCHEMA, WriterSettings(str(tmp_path)))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_spark_archive_file_with_wrong_content_raises_storage_error(tmp_path: Path) -> None:
    written = write_range(PLANNED, batches(range(10, 20)), SCHEMA, WriterSettings(str(tmp_path)))
    for content in (b"", b"x" * 100):
        (tmp_path / written.path).write_bytes(content)
        with pytest.raises(StorageError, match="orders-2"):
            write_range(PLANNED, [], SCHEMA, WriterSettings(str(tmp_path)))
    pq.write_table(pa.table({"a": [1]}), tmp_path / written.path)
    with pytest.raises(StorageError, match="has other content than its name says"):
        write_range(PLANNED, [], SCHEMA, WriterSettings(str(tmp_path)))
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        write_range(PLANNED, [], SCHEMA, WriterSettings(str(tmp_path / "file")))


# ---- orphans -------------------------------------------------------------------------------------------------------------
def test_spark_archive_orphan_cleanup_removes_only_unreachable_files() -> None:
    def file(start: int, end: int, partition: int = 0) -> str:
        return "/t/" + FileName("orders", partition, start, end, TAG).path

    in_table, passed, across, beyond, unknown = file(0, 100), file(0, 50), file(50, 150), file(100, 200), file(0, 9, 1)
    half = f"/t/data/orders/0/{temporary(in_table.rpartition('/')[2], 'a' * 32)}"
    every = [in_table, passed, across, beyond, unknown, half, "/t/data/orders/0/notes.txt"]

    def of(age_s: float, *, only_added_to: bool = True) -> tuple[set[str], int, int]:
        found = [DataFile(path, age_s, 10) for path in every]
        said = orphans_among(found, frozenset([in_table]), {"liftpy/orders/0": 100}, 60.0, only_added_to=only_added_to)
        return set(said.files), said.size_bytes, said.left

    assert of(60.0) == ({passed, half}, 20, 3)
    assert of(59.0) == (set(), 0, 4)
    assert of(60.0, only_added_to=False) == ({half}, 10, 4)


def test_spark_archive_file_age_does_not_depend_on_the_local_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_700_000_000.0
    for name, at_s in (("dead", now_s - 4000), ("being-written", now_s)):
        file = tmp_path / "orders" / "0" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (at_s, at_s))
    for ahead_s, older_s in ((0.0, 0.0), (1e9, 0.0), (-100.0, 100.0)):
        monkeypatch.setattr(archive.time, "time", lambda clock_s=now_s + ahead_s: clock_s)
        ages = {Path(one.path).name: one.age_s for one in archive._list_files(tmp_path)}
        assert ages == {"dead": 4000.0 - older_s, "being-written": -older_s}
    assert list(archive._list_files(tmp_path / "none")) == []


def test_spark_archive_statistics_include_a_record_of_1970(tmp_path: Path) -> None:
    """A leader may have started without a clock. Readers skip files by these statistics."""
    given = [pa.record_batch([["orders"], [offset], [offset * 5000]], schema=SCHEMA) for offset in range(3)]
    written = write_range(replace(PLANNED, start_offset=0, end_offset=3), given, SCHEMA, WriterSettings(str(tmp_path)))
    assert stats_of(written)["minValues"]["timestamp"] == "1970-01-01T00:00:00.000Z"
    assert stats_of(written)["maxValues"]["timestamp"] == "1970-01-01T00:00:00.010Z"


def test_spark_archive_statistics_have_the_first_and_the_last_offset_with_a_record(tmp_path: Path) -> None:
    """Compaction has removed the records around them. Spark takes these bounds for the smallest and the largest value."""
    written = write_range(PLANNED, batches(range(12, 17)), SCHEMA, WriterSettings(str(tmp_path)))
    assert (stats_of(written)["minValues"]["offset"], stats_of(written)["maxValues"]["offset"]) == (12, 16)
    again = write_range(PLANNED, [], SCHEMA, WriterSettings(str(tmp_path)))
    assert stats_of(again) == stats_of(written), "of the file that exists"


def test_spark_archive_statistics_include_every_record() -> None:
    one = replace(part(3, 9), oldest_us=1_700_000_000_123_999, newest_us=1_700_000_000_999_001)
    found = stats_of(one)
    assert found["numRecords"] == 6
    assert found["minValues"] == {"stream": "orders", "partition": 0, "offset": 3, "timestamp": "2023-11-14T22:13:20.123Z"}
    assert found["maxValues"] == {"stream": "orders", "partition": 0, "offset": 8, "timestamp": "2023-11-14T22:13:21.000Z"}
    assert "timestamp" not in stats_of(part(3, 9))["minValues"]
    json.dumps(found)


# ---- errors --------------------------------------------------------------------------------------------------------------
def test_spark_job_error_text_is_raised_as_the_original_liftpy_error() -> None:
    text = "Job aborted\nliftpy.spark.failures.SourceError: [DATA_LOSS] orders/0 is gone\n  at x.y(z)"
    assert (type(error_of(text)), str(error_of(text))) == (DataLossError, "orders/0 is gone")
    assert isinstance(error_of("SourceError: [NO_RESPONDERS] x"), UnavailableError)
    other = error_of("SourceError: [DIVERGED_PRODUCER] x")
    assert (type(other), str(other), other.code) == (SourceError, "[DIVERGED_PRODUCER] x", "DIVERGED_PRODUCER")
    late = error_of("o66.load.\n: org.apache.spark.SparkException: Python worker failed to connect back.\n  at x")
    assert (type(late), late.code, late.retryable) == (WorkerStartError, "UNAVAILABLE", True)
    assert str(error_of("a\n\nb\nc\nd")) == "The Spark job failed: a / b / c"
    with pytest.raises(NotFoundError, match=r"^gone$"), unwrap_spark_errors(), with_error_code():
        raise NotFoundError("gone")
    with pytest.raises(ZeroDivisionError), unwrap_spark_errors():
        1 / 0  # noqa: B018


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError("x"), 3), (NoClusterError("x"), 3), (NoMajorityError("x"), 3), (NatsUnreachableError("x"), 3),
        (NotServedError("x"), 3), (NoRespondersError("x"), 3), (ConnectionClosedError("x"), 3),
        (ConfigError("x"), 2), (InvalidNameError("x"), 2), (DataLossError("x"), 1),
    ],
    ids=lambda value: getattr(value, "code", str(value)),
)  # fmt: skip
def test_spark_job_error_has_the_exit_code_of_the_original_error(error: LiftError, code: int) -> None:
    with pytest.raises(LiftError) as raised, unwrap_spark_errors(), with_error_code():
        raise error
    assert (exit_code(error), exit_code(raised.value)) == (code, code)


@pytest.mark.parametrize("error", [BrokenPipeError("closed"), OSError(errno.ENOSPC, "full"), ValueError("a bug")])
def test_spark_archive_raises_the_error_of_its_callback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    """The command line then ends as other commands do whose output is closed or full."""

    def fail(_done: Archived) -> None:
        raise error

    def start(_spark: Any, _plan: ArchivePlan, *, once: bool, tell: Any) -> Any:
        with pytest.raises(type(error)):  # Spark gets the error, too
            tell(Archived(batch=0, files=1, record_count=7, size_bytes=1, version=0, took_s=0.1, ends={}))
        raise LiftError("The Spark job failed: STREAM_FAILED")

    monkeypatch.setattr(archive, "start_archive", start)
    with pytest.raises(type(error)) as raised:
        archive.archive(None, ArchivePlan(streams=("orders",), table=str(tmp_path)), tell=fail)  # type: ignore[arg-type]
    assert raised.value is error


def test_spark_archive_is_retried_after_a_worker_start_timeout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun: list[bool] = []
    done = Archived(batch=0, files=1, record_count=7, size_bytes=1, version=0, took_s=0.1, ends={})

    def start(_spark: Any, _plan: ArchivePlan, *, once: bool, tell: Any) -> Any:
        begun.append(once)
        if len(begun) in works:
            tell(done)
        if len(begun) == last:
            return SimpleNamespace(awaitTermination=lambda _s: True, isActive=False)
        raise WorkerStartError("late")

    monkeypatch.setattr(archive, "start_archive", start)
    plan = ArchivePlan(streams=("orders",), table=str(tmp_path))
    works, last = {4, 6}, 8  # a micro-batch in between: it counts anew
    assert archive.archive(None, plan) == 14  # type: ignore[arg-type]
    assert begun == [True] * 8
    begun.clear()
    works, last = set(), 0
    with pytest.raises(WorkerStartError):
        archive.archive(None, plan)  # type: ignore[arg-type]
    assert len(begun) == archive.STARTS


def test_spark_archive_flushes_the_directories_that_it_creates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power loss, the table would have a file whose directory does not exist."""
    flushed = []
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    planned = PlannedRange("orders", "u", 0, 0, 4, 1, "n1", ("n1",))
    write_range(planned, batches(range(4)), SCHEMA, WriterSettings(str(tmp_path / "new" / "table")))
    names = ("", "new", "new/table", "new/table/data", "new/table/data/orders", "new/table/data/orders/0")
    assert {str(tmp_path / name) for name in names} <= set(flushed)
