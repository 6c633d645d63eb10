"""Test that the logs of a data directory are recovered once, before the node registers."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.log import log as log_module
from liftpy.core.log.compaction_point import HORIZON_NAME, Horizon, encode_horizon
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import FLUSH_FAILED_NAME
from liftpy.core.wire.batch import split_batches
from liftpy.errors import CorruptionError, StorageError
from sidecar.disk.data_folder import UNREPORTED_DAMAGE, DataDirectory
from sidecar.disk.files import DirectoryStorage
from sidecar.metadata.identity import NodeFile
from sidecar.partition import recovery
from sidecar.partition.recovery import RecoveredLogs
from tests.batches import build_batch
from tests.open_files import open_files
from tests.unit.log.small_logs import add

SMALL = StreamConfig(segment_bytes=4096)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataDirectory]:
    opened = DataDirectory(tmp_path)
    yield opened
    opened.close()


def a_log(folder: DataDirectory, stream: str, partition: int = 0, count: int = 40) -> Path:
    path = folder.path / "streams" / stream / str(partition)
    log, _ = Log.open(DirectoryStorage(path), SMALL)
    for offset in range(count):
        log.append(build_batch([b"%d" % offset * 200], base_offset=offset, leader_epoch=1))
    log.flush()
    log.close()
    return path


def values(log: Log) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < log.log_end_offset:
        chunks = log.read(len(found), 1 << 20, end_offset=log.log_end_offset).chunks
        found += [value for batch in split_batches(memoryview(b"".join(chunks))) for value in batch.values()]
    return found


async def test_log_recovered_at_start_is_reused_at_open_without_a_second_recovery(
    folder: DataDirectory, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [a_log(folder, "a-1"), a_log(folder, "a-1", 1, 3), a_log(folder, "b-2")]
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=False)
    assert logs.damaged == []
    taken = [logs.take(path) for path in paths]
    monkeypatch.setattr(log_module, "recover", lambda *_, **__: pytest.fail("recovered again"))
    for path, recovered, count in zip(paths, taken, (40, 3, 40), strict=True):
        log, _ = Log.open(DirectoryStorage(path), SMALL, recovered=recovered)
        assert values(log) == [b"%d" % offset * 200 for offset in range(count)]
        log.append(build_batch([b"next"], base_offset=count, leader_epoch=2))
        assert log.flush() == count + 1
        log.close()
    assert [logs.take(path) for path in paths] == [None, None, None], "it is true for the first opening only"


async def test_log_recovery_lists_damaged_and_unreadable_logs(
    folder: DataDirectory, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, damaged, unreadable = a_log(folder, "a-1"), a_log(folder, "b-2"), a_log(folder, "c-3", 7)
    segment = sorted(damaged.glob("*.log"))[-1]
    data = bytearray(segment.read_bytes())
    data[20] ^= 1
    segment.write_bytes(data)
    real = recovery.recover

    def failing(storage: DirectoryStorage, **options: Any) -> object:
        if storage.folder == unreadable:
            raise StorageError("the disk does not answer")
        return real(storage, **options)

    monkeypatch.setattr(recovery, "recover", failing)
    monkeypatch.setattr(recovery, "RETRY_PAUSES_S", (0.0,))
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=True)
    assert logs.damaged == ["b-2/0", "c-3/7"]
    assert logs.confined == ["b-2/0"], "why the other log cannot be read is not known"
    found = logs.take(damaged)
    assert found is not None
    assert found.report.must_leave_isr
    assert logs.take(unreadable) is None, "who opens it tries again"
    assert logs.unrecovered == {unreadable}
    kept = logs.take(right)
    assert kept is not None
    log, _ = Log.open(DirectoryStorage(right), SMALL, recovered=kept)
    assert log.log_end_offset == 40
    log.close()


async def test_log_recovery_retries_after_a_disk_error_that_passes(
    folder: DataDirectory, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that counts as damaged without a known reason would make all logs of the node count as incomplete."""
    path, other = a_log(folder, "a-1"), a_log(folder, "b-2")
    real, failures = recovery.recover, [StorageError("the disk does not answer")] * 2

    def failing(storage: DirectoryStorage, **options: Any) -> object:
        if storage.folder == path and failures:
            raise failures.pop()
        return real(storage, **options)

    monkeypatch.setattr(recovery, "recover", failing)
    monkeypatch.setattr(recovery, "RETRY_PAUSES_S", (0.0, 0.0))
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=True)
    assert (failures, logs.damaged, logs.progress) == ([], [], (2, 2))
    assert logs.take(path) is not None
    assert logs.take(other) is not None


@pytest.mark.parametrize("error", [StorageError("the disk does not answer"), CorruptionError("another file")])
async def test_log_recovery_that_failed_is_not_retried_if_a_retry_may_hide_damage_or_cannot_help(
    error: StorageError, folder: DataDirectory, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery has truncated an incomplete end, which means damage after a clean stop. A retry would find nothing."""
    path = a_log(folder, "a-1")
    segment = sorted(path.glob("*.log"))[-1]
    recoveries: list[Path] = []

    def failing(storage: DirectoryStorage, **options: Any) -> object:
        recoveries.append(path)
        if not isinstance(error, CorruptionError):
            os.truncate(segment, segment.stat().st_size - 1)
        raise error

    monkeypatch.setattr(recovery, "recover", failing)
    monkeypatch.setattr(recovery, "RETRY_PAUSES_S", (0.0, 0.0))
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=True)
    assert (logs.damaged, recoveries) == (["a-1/0"], [path])


async def test_log_recovery_with_a_close_during_its_run_leaves_no_file_open(
    folder: DataDirectory, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [a_log(folder, "a-1", number) for number in range(3)]
    real, logs, recoveries = recovery.recover, RecoveredLogs(), list[Path]()

    def closing(storage: DirectoryStorage, **options: Any) -> object:
        recoveries.append(storage.folder)
        found = real(storage, **options)
        logs.close()
        return found

    monkeypatch.setattr(recovery, "recover", closing)
    await logs.run(folder, pool, clean_stop=False)
    assert recoveries == paths[:1]
    assert [open_files(path) for path in paths] == [[], [], []]


async def test_log_recovery_with_a_lost_log_end_finds_no_confined_damage(
    folder: DataDirectory, pool: ThreadPoolExecutor
) -> None:
    """The disk has forgotten a flushed write. It may have forgotten the ends of other logs, too, and no check can see that."""
    whole, cut = a_log(folder, "a-1"), a_log(folder, "b-2")
    segment = sorted(cut.glob("*.log"))[-1]
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=True)
    assert (logs.damaged, logs.confined) == ([f"b-2/{whole.name}"], [])
    logs.close()


@pytest.mark.parametrize("kept", ["no batch", "one batch", "all but one batch"])
@pytest.mark.parametrize("stop", ["clean", "killed", "clean, by an earlier version"])
async def test_log_recovery_finds_a_log_that_is_shorter_than_at_the_clean_stop(
    folder: DataDirectory, pool: ThreadPoolExecutor, stop: str, kept: str
) -> None:
    """The checkpoint does not show it: the high watermark that this replica knew is below the records that are missing."""
    path, _ = a_log(folder, "a-1"), a_log(folder, "a-1", 1)
    for process in ("this version", "an earlier version"):
        if process == "an earlier version" and "earlier" not in stop:
            continue
        identity = NodeFile(folder, "n1")
        identity.count_start()
        identity.begin(1)
        if process == "an earlier version":
            folder.store_identity(replace(identity._stored, clean_incarnation=1))
        elif stop != "killed":
            identity.end_cleanly({"a-1/0": 40, "a-1/1": 40})
    segment = sorted(path.glob("*.log"))[-1]
    batches = split_batches(segment.read_bytes())
    count = {"no batch": 0, "one batch": 1, "all but one batch": len(batches) - 1}[kept]
    os.truncate(segment, sum(batch.header.size_bytes for batch in batches[:count]))
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=NodeFile(folder, "n1").previous.clean_stop)
    assert (logs.damaged, logs.confined) == (["a-1/0"] if stop == "clean" else [], [])
    assert folder.has_mark(UNREPORTED_DAMAGE) == (stop == "clean")
    logs.close()


async def test_log_recovered_at_start_is_opened_without_file_access(
    folder: DataDirectory, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [a_log(folder, "a-1", number, count) for number, count in enumerate((40, 0))]
    closed, _ = Log.open(DirectoryStorage(paths[0]), SMALL)
    closed.raise_high_watermark(7)
    closed.note_promise(3)
    closed.close()
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=False)

    def touched(*_: object, **__: object) -> None:
        raise AssertionError("a file was touched")

    taken = [logs.take(path) for path in paths]
    with monkeypatch.context() as patch:
        for name in ("open", "mkdir", "listdir", "fsync", "unlink", "rename"):
            patch.setattr(os, name, touched)
        opened = [Log.open(found.storage, SMALL, recovered=found)[0] for found in taken if found and found.is_complete]
    assert [log.log_end_offset for log in opened] == [40, 0]
    assert (opened[0].high_watermark, opened[0].persisted_epoch) == (7, 3)
    for log in opened:
        log.close()


async def test_log_recovered_from_a_directory_without_files_is_marked_as_incomplete(
    folder: DataDirectory, pool: ThreadPoolExecutor
) -> None:
    path = a_log(folder, "a-1")
    (folder.path / "streams" / "a-1" / "1").mkdir()
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=False)
    empty = logs.take(path.with_name("1"))
    assert empty is not None
    assert not empty.is_complete
    logs.close()


async def test_log_recovered_at_start_has_leader_epochs_and_compaction_horizon_of_its_files(
    folder: DataDirectory, pool: ThreadPoolExecutor
) -> None:
    path = a_log(folder, "a-1")
    storage = DirectoryStorage(path)
    storage.replace(HORIZON_NAME, encode_horizon(Horizon(12, 1)))
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=False)
    found = logs.take(path)
    assert found is not None
    log, _ = Log.open(found.storage, SMALL, recovered=found)
    assert log.horizon == Horizon(12, 1)
    log.close()


@pytest.mark.parametrize("number", [0, 1])
async def test_log_recovery_finishes_interrupted_deletions_only_in_the_first_worker_process(
    number: int, folder: DataDirectory, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = a_log(folder, "a-1")
    doomed = folder.path / "streams" / "b-2" / "0.deleted"
    doomed.mkdir(parents=True)
    listed = os.listdir

    def at_once_gone(path: Path) -> list[str]:
        if number and Path(path) == doomed.parent:
            raise FileNotFoundError(path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", at_once_gone)
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=False, share=WorkerShare(number, 2))
    assert logs.names == {f"a-1/{kept.name}"}
    assert doomed.exists() == (number == 1)
    logs.close()


# ---- logs that were lost [S17] ---------------------------------------------------------------------------------------------
async def recovered_anew(folder: DataDirectory, pool: ThreadPoolExecutor) -> RecoveredLogs:
    found = RecoveredLogs()
    await found.run(folder, pool, clean_stop=False)
    found.close()
    return found


async def test_log_recovery_with_removed_directories_lists_the_missing_partitions(
    folder: DataDirectory, pool: ThreadPoolExecutor
) -> None:
    """[S17]"""
    a_log(folder, "a.b-u1")
    path = a_log(folder, "a.b-u1", 12)
    a_log(folder, "c-u2")
    assert (await recovered_anew(folder, pool)).missing == []
    shutil.rmtree(path)
    shutil.rmtree(folder.path / "streams" / "c-u2")
    found = await recovered_anew(folder, pool)
    assert (found.missing, found.damaged) == (["a.b-u1/12", "c-u2/0"], [])


async def test_log_recovery_of_a_directory_without_its_segments_reports_damage(
    folder: DataDirectory, pool: ThreadPoolExecutor
) -> None:
    path = a_log(folder, "a-u1")
    await recovered_anew(folder, pool)
    for name in os.listdir(path):
        if name.endswith((".log", ".index")) or name == "checkpoint":
            (path / name).unlink()
    assert (await recovered_anew(folder, pool)).damaged == ["a-u1/0"]


async def test_log_recovery_does_not_list_a_deleted_partition_as_missing(
    folder: DataDirectory, pool: ThreadPoolExecutor
) -> None:
    a_log(folder, "a-u1")
    await recovered_anew(folder, pool)
    folder.delete_partition(PartitionKey("a", "u1", 0))
    assert (await recovered_anew(folder, pool)).missing == []


async def test_log_recovery_closes_recovered_logs_that_no_partition_takes(
    tmp_path: Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    folder = DataDirectory(tmp_path)
    for name in ("b-1/0", "a-1/0", "a-1/1"):
        storage = DirectoryStorage(folder.path / "streams" / name)
        log, _ = Log.open(storage, StreamConfig())
        add(log)
        log.close()
        if name != "a-1/1":
            storage.replace(FLUSH_FAILED_NAME, b"once")
    killed = RecoveredLogs()
    await killed.run(folder, pool, clean_stop=True)
    killed.close()
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=True)
    assert (logs.suspect, logs.damaged) == (["a-1/0", "b-1/0"], []), "the killed process had not registered"
    assert logs.names == {"a-1/0", "a-1/1", "b-1/0"}
    streams = folder.path / "streams"
    assert len(open_files(streams)) == 3
    taken = logs.take(streams / "a-1" / "0")
    assert taken is not None
    await logs.forget_failed_flushes(folder, pool)
    assert not list(streams.glob(f"*/*/{FLUSH_FAILED_NAME}"))
    logs.close()
    assert open_files(streams) == [str(streams / "a-1" / "0" / f"{0:020d}.log")]
    for segment in taken.segments:
        segment.file.close()
    folder.close()
