"""Test promised leader epochs of a node whose number of worker processes changes: none is lost."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from liftpy.core.base.worker_assignment import WorkerShare, share_of
from liftpy.core.log.epoch_promises import PROMISES_NAME, PromiseJournal
from liftpy.errors import DataDirectoryLockedError, NoSpaceError
from sidecar.disk import data_folder
from sidecar.disk.data_folder import DataDirectory
from sidecar.disk.files import DirectoryStorage
from tests.only_in import only_in

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
