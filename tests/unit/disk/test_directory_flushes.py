"""Test when directories are flushed: once for many partitions, and again after a change or a failed flush [S12]."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.errors import StorageError
from sidecar.disk import files
from sidecar.disk.data_folder import DataDirectory
from sidecar.disk.files import DirectoryStorage
from tests.batches import build_batch

PARTITIONS = 20


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Folder -> how often it was flushed."""
    seen: Counter[str] = Counter()
    really = files.sync_folder

    def sync_folder(folder: Path) -> None:
        seen[folder.name] += 1
        really(folder)

    monkeypatch.setattr(files, "sync_folder", sync_folder)
    return seen


def open_all(folder: DataDirectory) -> list[Log]:
    keys = [PartitionKey("s", "uid", number) for number in range(PARTITIONS)]
    return [Log.open(folder.partition_storage(key), StreamConfig())[0] for key in keys]


def test_data_directory_flushes_once_per_new_partition(tmp_path: Path, flushed: Counter[str]) -> None:
    folder = DataDirectory(tmp_path)
    flushed.clear()  # a node's own folder, and those above it, once a start
    logs = open_all(folder)
    assert flushed["s-uid"] == PARTITIONS, "each name is durable before the partition is used"
    assert sum(flushed.values()) <= PARTITIONS + 3
    for log in logs:
        log.checkpoint()
        log.close()
    assert sum(flushed.values()) <= PARTITIONS + 3, "nothing has happened that a checkpoint could say"
    folder.close()
    folder = DataDirectory(tmp_path)
    flushed.clear()
    for log in open_all(folder):
        log.close()
    assert flushed["s-uid"] == 1
    assert sum(flushed.values()) <= PARTITIONS + 3, "and each partition's own, since the last process may have left names there"
    folder.close()


def test_data_directory_marks_of_logs_flush_no_directory_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DataDirectory(tmp_path / "node" / "data")
    keys = [PartitionKey("s", "uid", number) for number in range(PARTITIONS)]
    for key in keys:
        folder.partition_storage(key)
    paths: Counter[str] = Counter()
    really = os.fsync

    def fsync(descriptor: int) -> None:
        paths[os.readlink(f"/proc/self/fd/{descriptor}")] += 1
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for key in keys:
        folder.mark_log(key.folder)
    data = str(folder.path)
    assert paths[f"{data}/held"] == PARTITIONS, "each mark is durable before its log is used"
    assert paths[data] == PARTITIONS, "another process of the node may have created the directory of the marks"
    assert [path for path in paths if not path.startswith(data)] == []
    folder.close()


def test_empty_log_flushes_its_directory_with_its_first_records(tmp_path: Path, flushed: Counter[str]) -> None:
    folder = DataDirectory(tmp_path)
    key = PartitionKey("s", "uid", 0)
    for clean in (False, False, True):  # the later processes find an empty file, whose name may not be on the disk yet
        log, _ = Log.open(folder.partition_storage(key), StreamConfig(), clean=clean)
        if clean:
            flushed.clear()
            log.append(build_batch([b"x"], base_offset=0, leader_epoch=1))
            assert log.flush() == 1
            assert flushed["0"] == 1
        log.close()
    folder.close()


def test_data_directory_repeats_a_failed_flush_of_a_new_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DataDirectory(tmp_path)
    key = PartitionKey("s", "uid", 0)
    folder.partition_storage(key)
    really, fails = os.fsync, True

    def fsync(descriptor: int) -> None:
        if fails:
            raise OSError(5, "Input/output error")
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError):
        folder.partition_storage(PartitionKey("s", "uid", 1))
    with pytest.raises(StorageError):
        folder.partition_storage(PartitionKey("s", "uid", 1))  # it is there by now, and its name still not on the disk
    with pytest.raises(StorageError):
        folder.partition_storage(key)
    fails = False
    folder.partition_storage(PartitionKey("s", "uid", 1))
    folder.close()


# ---- one directory ------------------------------------------------------------------------------------------------------------
def test_folder_storage_flushes_again_after_a_change_during_a_flush(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    seen: list[int] = []

    def sync_folder(folder: Path) -> None:
        seen.append(len(seen))
        if len(seen) == 1:
            storage.create("late").close()  # by another thread

    monkeypatch.setattr(files, "sync_folder", sync_folder)
    storage.sync_folder()
    storage.sync_folder()
    storage.sync_folder()
    assert len(seen) == 2


@pytest.mark.parametrize("call", ["open", "rename", "unlink"])
def test_folder_storage_flushes_a_change_that_was_in_progress_during_a_flush(
    call: str, flushed: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The flush of a segment runs in a thread while the log starts the next segment."""
    storage = DirectoryStorage(tmp_path)
    storage.create("a").close()
    flushed.clear()
    owner: Any = os if call != "unlink" else Path
    real = getattr(owner, call)

    def change(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, call, real)
        storage.sync_folder()  # by another thread
        return real(*given, **options)

    monkeypatch.setattr(owner, call, change)
    if call == "open":
        storage.create("b").close()
    elif call == "rename":
        storage.rename("a", "b")
    else:
        storage.remove("a")
    assert flushed.total() == 1
    storage.sync_folder()
    assert flushed.total() == 2
    storage.sync_folder()
    assert flushed.total() == 2


def test_folder_storage_repeats_a_failed_directory_flush(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    calls: list[bool] = []

    def sync_folder(folder: Path) -> None:
        calls.append(True)
        if len(calls) == 1:
            raise OSError(errno.EIO, "no")

    monkeypatch.setattr(files, "sync_folder", sync_folder)
    with pytest.raises(StorageError):
        storage.sync_folder()
    storage.sync_folder()
    assert len(calls) == 2
