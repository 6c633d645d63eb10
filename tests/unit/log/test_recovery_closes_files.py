"""Test that recovery leaves no file open except those of the log."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from liftpy.core.log.log import Log
from liftpy.core.log.recovery import recover
from liftpy.errors import StorageError
from sidecar.disk.files import DirectoryStorage
from tests.open_files import open_files
from tests.unit.log.log_model import SMALL, fill


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def _no_index(folder: Path) -> None:
    for path in folder.glob("*.index"):
        path.unlink()


def damaged_last(folder: Path, files: list[Path]) -> None:
    _flip(files[-1], 70)


def damaged_first(folder: Path, files: list[Path]) -> None:
    _no_index(folder)
    _flip(files[0], 70)


def torn_in_the_middle_with_nothing_behind(folder: Path, files: list[Path]) -> None:
    _no_index(folder)
    files[1].write_bytes(files[1].read_bytes()[:-5])
    for path in files[2:]:
        path.write_bytes(b"")


def torn_in_the_middle_with_something_behind(folder: Path, files: list[Path]) -> None:
    _no_index(folder)
    files[1].write_bytes(files[1].read_bytes()[:-5])


def an_index_of_another_file(folder: Path, files: list[Path]) -> None:
    files[0].with_suffix(".index").write_bytes(files[1].with_suffix(".index").read_bytes())
    with files[1].open("ab") as file:
        file.write(b"\0")


def a_gap(folder: Path, files: list[Path]) -> None:
    files[1].unlink()
    files[1].with_suffix(".index").unlink()


def a_gap_with_nothing_behind(folder: Path, files: list[Path]) -> None:
    a_gap(folder, files)
    _no_index(folder)
    for path in files[2:]:
        path.write_bytes(b"")


def a_start_above_all(folder: Path, files: list[Path]) -> None:
    log, _ = Log.open(DirectoryStorage(folder), SMALL)
    checkpoint = folder / "high-watermark"
    log.reset(5000)
    log.close()
    kept = checkpoint.read_bytes()
    for path in folder.glob("*.log"):
        path.unlink()
    other = folder.parent / "other"
    again, _ = Log.open(DirectoryStorage(other), SMALL)
    fill(again, 12)
    again.close()
    for path in other.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    checkpoint.write_bytes(kept)


@pytest.mark.parametrize(
    "harm",
    [
        damaged_last,
        damaged_first,
        torn_in_the_middle_with_nothing_behind,
        torn_in_the_middle_with_something_behind,
        an_index_of_another_file,
        a_gap,
        a_gap_with_nothing_behind,
        a_start_above_all,
    ],
)
@pytest.mark.parametrize("clean", [False, True])
def test_recovery_leaves_only_files_of_the_recovered_log_open(
    harm: Callable[[Path, list[Path]], None], clean: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "0"
    log, _ = Log.open(DirectoryStorage(folder), SMALL)
    fill(log, 40)
    log.close()
    harm(folder, sorted(folder.glob("*.log")))
    found = recover(DirectoryStorage(folder), clean=clean)
    wanted = sorted(str(s.file.path) for s in found.segments if not s.sealed)  # type: ignore[attr-defined]
    assert open_files(folder) == wanted
    for segment in found.segments:
        segment.file.close()
    assert open_files(folder) == []


@pytest.mark.parametrize("call", ["fdatasync", "rename", "pread"])
def test_recovery_that_fails_leaves_no_file_open(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "the disk does not answer")

    folder = tmp_path / "0"
    log, _ = Log.open(DirectoryStorage(folder), SMALL)
    fill(log, 40)
    log.close()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with suppress(StorageError):
            recover(DirectoryStorage(folder))
            pytest.fail("the recovery did not fail")
    assert open_files(folder) == []
