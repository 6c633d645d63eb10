"""Test when a directory is flushed, and what happens without a free file descriptor."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import StorageError
from sidecar.disk import files
from sidecar.disk.files import DirectoryStorage, DiskFile, OpenMaps, replace_file


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    seen: list[Path] = []
    real = files.sync_folder

    def sync_folder(folder: Path) -> None:
        seen.append(folder)
        real(folder)

    monkeypatch.setattr(files, "sync_folder", sync_folder)
    return seen


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
    call: str, flushed: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    assert len(flushed) == 1
    storage.sync_folder()
    assert len(flushed) == 2
    storage.sync_folder()
    assert len(flushed) == 2


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


@pytest.mark.parametrize(
    ("what", "work"),
    [
        ("open", lambda storage: storage.open("gone")),
        ("rename", lambda storage: storage.rename("gone", "there")),
        ("remove", lambda storage: storage.remove("folder")),
        ("read", lambda storage: storage.load("folder")),
    ],
)
def test_folder_storage_error_text_contains_operation_and_file(
    what: str, work: Callable[[DirectoryStorage], object], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError) as caught:
        work(DirectoryStorage(tmp_path))
    name = "folder" if what in ("remove", "read") else "gone"
    assert what in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(("number", "again"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.EACCES, False)])
def test_mmap_cache_at_the_descriptor_limit_is_emptied_and_the_open_retried(
    number: int, again: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maps = OpenMaps()
    sealed = DiskFile(tmp_path / "sealed", create=True, maps=maps)
    sealed.append([b"x" * 100])
    sealed.seal()
    view = sealed.read(0, 3)
    assert sealed._map is not None
    real, tries = os.open, []

    def refuses_once(path: Any, flags: int, *more: Any) -> int:
        tries.append(sealed._map is None)
        if len(tries) == 1:
            raise OSError(number, "too many")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refuses_once)
    if again:
        DiskFile(tmp_path / "more", create=True, maps=maps).close()
        assert tries == [False, True]
    else:
        with pytest.raises(StorageError):
            DiskFile(tmp_path / "more", create=True, maps=maps)
        assert tries == [False]
    monkeypatch.undo()
    assert bytes(view) == b"xxx"
    assert bytes(sealed.read(0, 100)) == b"x" * 100, "it is mapped again"
    sealed.close()


def test_replace_file_with_short_writes_replaces_the_whole_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, view: real(descriptor, bytes(view)[:3]))
    replace_file(tmp_path / "f", [b"0123456", b"", b"789"])
    assert (tmp_path / "f").read_bytes() == b"0123456789"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError):
        replace_file(tmp_path / "f", b"other")
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"f": b"0123456789"}


def test_replace_file_that_cannot_be_read_back_leaves_the_old_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stores something else is noticed before anything relies on it [S16]."""
    replace_file(tmp_path / "f", b"first")
    sync = os.fsync

    def damaged(descriptor: int) -> None:
        sync(descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.pwrite(descriptor, b"x", 2)

    monkeypatch.setattr(os, "fsync", damaged)
    with pytest.raises(StorageError, match="f differs after the write"):
        replace_file(tmp_path / "f", b"second")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"first"
