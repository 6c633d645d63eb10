"""Test the identity of a data directory, deletions in it, and the leader epochs of worker processes [S9, S11, S12, M11]."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import crc32c
import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.worker_assignment import WorkerShare, share_of
from liftpy.core.log.epoch_promises import PROMISES_NAME, PromiseJournal
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.errors import (
    CorruptionError,
    DataDirectoryLockedError,
    InvalidNameError,
    NoSpaceError,
    StorageError,
    UnknownFormatError,
)
from sidecar.disk import data_folder
from sidecar.disk.data_folder import DataDirectory, NodeIdentity
from sidecar.disk.files import DirectoryStorage, OpenMaps
from sidecar.runtime.restarts import is_temporary
from tests.only_in import only_in
from tests.unit.disk.recording import FOLDER, Recorder

KEY = PartitionKey("orders", "u1", 0)
UNKNOWN = PartitionKey("orders", "0a1b2c-3", 0)
RIGHT: dict[str, Any] = {
    "format": 1, "node_id": "a", "incarnation": 3, "clean_incarnation": 3,
    "folder_id": "f", "starts": 2, "nonce": 11, "registered": 10, "earlier": [10],
}  # fmt: skip


def write(path: Path, said: dict[str, Any]) -> None:
    body = json.dumps(said).encode()
    (path / "node").write_bytes(f"{crc32c.crc32c(body):08x}\n".encode() + body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"incarnation": -1}, {"incarnation": 1 << 64}, {"incarnation": True}, {"incarnation": 1.0}, {"incarnation": "1"},
        {"clean_incarnation": -1}, {"clean_incarnation": None}, {"node_id": ""}, {"node_id": "../x"}, {"node_id": 7},
        {"starts": -1}, {"nonce": 1 << 64}, {"registered": "x"}, {"earlier": [-1]}, {"earlier": 5}, {"folder_id": 7},
        {"more": 1},
    ],
)  # fmt: skip
def test_node_identity_with_impossible_values_is_rejected(wrong: dict[str, Any], tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    write(tmp_path, RIGHT)
    assert folder.load_identity() == NodeIdentity("a", 3, 3, DirectoryIdentity("f", 2, 11, 10, (10,)))
    write(tmp_path, RIGHT | wrong)
    with pytest.raises(CorruptionError):
        folder.load_identity()
    folder.close()


@pytest.mark.parametrize("missing", sorted(RIGHT.keys() - {"incarnation", "clean_incarnation"}))
def test_node_identity_with_a_missing_field_is_rejected(missing: str, tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    write(tmp_path, {name: value for name, value in RIGHT.items() if name != missing})
    with pytest.raises(CorruptionError, match=missing):
        folder.load_identity()
    folder.close()


@pytest.mark.parametrize("version", [0, 2, 99])
@pytest.mark.parametrize("fields", [RIGHT, RIGHT | {"more": 1}, {"node_id": "a", "incarnation": 3}, {}])
def test_node_identity_of_another_format_version_raises_unknown_format(
    fields: dict[str, Any], version: int, tmp_path: Path
) -> None:
    """Whatever fields it has: who takes it for damage is told to delete the data."""
    folder = DataDirectory(tmp_path)
    write(tmp_path, fields | {"format": version})
    with pytest.raises(UnknownFormatError, match=f"has format version {version}, but this version reads 1"):
        folder.load_identity()
    folder.close()


def test_data_directory_start_flushes_its_existing_directories(tmp_path: Path) -> None:
    (tmp_path / "data" / "streams").mkdir(parents=True)
    recorder = Recorder(tmp_path)
    with recorder.recording():
        DataDirectory(tmp_path / "data").close()
    flushed = {call.path for call in recorder.calls if FOLDER in call.kind}
    assert {"data", "data/streams"} <= flushed


@pytest.mark.parametrize("left", ["nothing", "half", "half and whole"])
def test_delete_partition_interrupted_at_any_step_completes_when_repeated(left: str, tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    path = folder.partition_path(KEY)
    if left != "nothing":
        doomed = path.with_name("0.deleted")
        doomed.mkdir(parents=True)
        (doomed / "old").write_bytes(b"x")
    if left != "half":
        folder.partition_storage(KEY).create("log").append([b"x"])
    for _ in range(2):
        folder.delete_partition(KEY)
    assert not path.parent.exists()
    folder.partition_storage(KEY).create("log").append([b"y"])
    assert folder.partition_storage(KEY).names() == ["log"]
    folder.close()


def test_delete_partition_system_error_raises_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DataDirectory(tmp_path)
    folder.partition_storage(KEY).create("log").append([b"x"])

    def fails(*args: Any) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(data_folder, "sync_folder", fails)
    with pytest.raises(StorageError):
        folder.delete_partition(KEY)
    folder.close()


@pytest.mark.parametrize("name", ["orders", "-u1", "orders-", "..", "a/b-u1"])
def test_delete_unknown_of_a_name_that_is_no_stream_directory_removes_nothing(name: str, tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path / "data")
    folder.partition_storage(KEY).create("log").append([b"x"])
    (tmp_path / "data" / "streams" / "orders").mkdir()
    with pytest.raises((StorageError, InvalidNameError)):
        folder.delete_unknown(name)
    assert folder.partition_storage(KEY).names() == ["log"]
    assert (tmp_path / "data" / "streams" / "orders").exists()
    folder.close()


def test_delete_unknown_removes_the_logs_and_returns_their_size(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    folder.partition_storage(UNKNOWN).create("log").append([b"xyz"])
    (folder.partition_path(UNKNOWN).parent / "note").write_bytes(b"12")
    assert folder.delete_unknown("orders-0a1b2c-3") == (["orders-0a1b2c-3/0"], 5)
    assert not folder.partition_path(UNKNOWN).parent.exists()
    folder.partition_storage(UNKNOWN).create("log").append([b"y"])
    folder.close()


def test_delete_unknown_that_fails_raises_storage_error_and_a_repetition_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataDirectory(tmp_path)
    folder.partition_storage(UNKNOWN).create("log").append([b"x"])
    (folder.partition_path(UNKNOWN).parent / "note").write_bytes(b"12")

    remove, whole = shutil.rmtree, folder.partition_path(UNKNOWN).parent

    def fails(path: Path, **more: Any) -> None:
        if path == whole:
            raise PermissionError(13, "no", str(path))
        remove(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(data_folder.shutil, "rmtree", fails)
        with pytest.raises(StorageError):
            folder.delete_unknown("orders-0a1b2c-3")
    folder.delete_unknown("orders-0a1b2c-3")
    assert not folder.partition_path(UNKNOWN).parent.exists()
    folder.close()


def test_data_directory_logs_share_the_limit_of_open_maps(tmp_path: Path) -> None:
    maps = OpenMaps(1)
    folder = DataDirectory(tmp_path, maps)
    for number in range(2):
        file = folder.partition_storage(PartitionKey("orders", "u1", number)).create("log")
        file.append([b"x"])
        file.seal()
        assert bytes(file.read(0, 1)) == b"x"
    assert (len(maps), maps.opened) == (1, 2)
    folder.close()


def test_data_directory_start_finishes_interrupted_deletions(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    other = PartitionKey("orders", "u2", 1)
    folder.finish_deletions()  # there is nothing yet
    for key in (KEY, other):
        folder.partition_storage(key).create("log").append([b"x"])
        folder.partition_path(key).rename(folder.partition_path(key).with_name(f"{key.partition}.deleted"))
    kept = PartitionKey("orders", "u2", 0)
    folder.partition_storage(kept).create("log").append([b"y"])
    folder.finish_deletions()
    left = sorted(str(path.relative_to(tmp_path / "streams")) for path in (tmp_path / "streams").rglob("*"))
    assert left == ["orders-u2", "orders-u2/0", "orders-u2/0/log"]
    folder.close()


@pytest.mark.parametrize("short", [False, True])
def test_data_directory_start_that_cannot_write_the_lock_file_releases_the_lock(
    short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start in this process would find the folder in use, and end for good."""

    def full(*_: Any) -> int:
        if short:
            return 1
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(data_folder.os, "pwrite", full)
        with pytest.raises(StorageError, match="lock: No space") as caught:
            DataDirectory(tmp_path)
    assert is_temporary(caught.value), "it is tried again"
    DataDirectory(tmp_path).close()


KEYS = [f"orders-000001-1a21/{number}" for number in range(6)]


def _all(_: str) -> bool:
    return True


def _start(folder: DataDirectory, workers: int) -> list[PromiseJournal]:
    """As a node's processes do, in their order."""
    journals = [folder.open_promises(_all)]
    for number in range(1, workers):
        share = WorkerShare(number, workers)
        journals.append(folder.open_own_promises(share, share.holds_folder))
    return journals


def _owner(key: str, workers: int) -> int:
    return share_of("orders", int(key.rpartition("/")[2]), workers)


def test_promised_epochs_are_loaded_after_any_change_of_the_worker_count(tmp_path: Path) -> None:
    rng, promised = random.Random(3), dict.fromkeys(KEYS, 0)
    for _ in range(40):
        folder, workers = DataDirectory(tmp_path / "n1"), rng.randint(1, 4)
        journals = _start(folder, workers)
        for key in KEYS:
            assert journals[_owner(key, workers)].epoch_of(key) == promised[key]
        for _ in range(rng.randrange(5)):
            key = rng.choice(KEYS)
            promised[key] += rng.randint(1, 3)
            journals[_owner(key, workers)].store({key: promised[key]})
        for journal in journals:  # as a kill does: nothing is told, nothing written
            journal.close()
        folder.close()


def test_promised_epochs_survive_a_start_that_ends_before_the_workers_start(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path / "n1")
    _start(folder, 3)[_owner(KEYS[1], 3)].store({KEYS[1]: 9})
    before = folder.open_promises
    assert before(_all).epoch_of(KEYS[1]) == 9, "joined"
    assert before(_all).epoch_of(KEYS[1]) == 9, "and joined it stays, now that the worker's journal is gone"
    folder.close()


def test_leader_epoch_journals_of_workers_are_deleted_only_after_the_merged_one_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataDirectory(tmp_path / "n1")
    _start(folder, 2)[1].store({KEYS[1]: 9})
    replace = DirectoryStorage.replace

    def full(self: DirectoryStorage, name: str, data: bytes) -> None:
        raise NoSpaceError("no space")

    monkeypatch.setattr(DirectoryStorage, "replace", full)
    assert folder.open_promises(_all).epoch_of(KEYS[1]) == 9, "known"
    monkeypatch.setattr(DirectoryStorage, "replace", replace)
    assert (folder.worker_directory(1) / "promises" / PROMISES_NAME).exists()
    assert folder.open_promises(_all).epoch_of(KEYS[1]) == 9
    assert not (folder.worker_directory(1) / "promises" / PROMISES_NAME).exists()
    folder.close()


def test_data_directory_lock_is_released_when_the_last_worker_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    path = tmp_path / "n1"
    first = DataDirectory(path)
    inherited = os.dup(first.lock)
    first.close()
    with pytest.raises(DataDirectoryLockedError):  # whoever wrote its number there lives: this process
        DataDirectory(path)
    (path / "lock").write_text("999999999\n")
    with monkeypatch.context() as patched:
        patched.setattr("sidecar.disk.data_folder._ORPHANS_S", 0)
        with pytest.raises(DataDirectoryLockedError):  # its workers do not end
            DataDirectory(path)
    only_in(monkeypatch, data_folder, "time", sleep=lambda _: os.close(inherited))  # they end during the wait
    DataDirectory(path).close()


def test_data_directory_opened_by_a_worker_uses_the_inherited_lock(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "n1")
    second = DataDirectory(tmp_path / "n1", lock=first.lock)
    assert second.lock == first.lock
    assert second.worker_directory(2) == tmp_path / "n1" / "workers" / "2"
    assert second.worker_directory(2).is_dir()
    assert second.worker_directory(0) == tmp_path / "n1"
    first.close()
