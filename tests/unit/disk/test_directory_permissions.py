"""Test the permissions of a data directory: only its user may write, and no symbolic link is followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.errors import StorageError
from liftpy.service.snapshots import ServiceLock
from sidecar.disk.data_folder import LAZY_FLUSH, UNREPORTED_DAMAGE, DataDirectory, NodeIdentity


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_data_directory_created_with_any_umask_is_not_writable_by_others(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path / "a" / "b" / "data")
    folder.store_identity(NodeIdentity("n1"))
    folder.partition_storage(PartitionKey("orders", "u1", 3))
    ServiceLock(tmp_path / "s" / "t", "count", "orders", 0).close()
    made = list(tmp_path.rglob("*"))
    assert len(made) >= 10
    assert [path for path in made if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)] == []
    folder.close()


def test_data_directory_writable_by_others_loses_that_permission_at_start(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    DataDirectory(tmp_path / "data").close()
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o755


def test_data_directory_of_another_user_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StorageError, match="belongs to user"):
        DataDirectory(tmp_path)


def test_data_directory_mark_that_another_user_created_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, real = DataDirectory(tmp_path), os.open
    (tmp_path / UNREPORTED_DAMAGE).touch()

    def as_other_user(path: Path, flags: int, *mode: int) -> int:
        if flags & os.O_WRONLY and path.exists() and not flags & os.O_EXCL:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", as_other_user)
    folder.set_mark(UNREPORTED_DAMAGE)
    folder.set_mark(LAZY_FLUSH)
    assert folder.has_mark(UNREPORTED_DAMAGE)
    folder.remove_mark(UNREPORTED_DAMAGE)
    assert (folder.has_mark(UNREPORTED_DAMAGE), folder.has_mark(LAZY_FLUSH)) == (False, True)
    folder.close()


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_data_directory_lock_that_is_not_a_regular_file_is_rejected(kind: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    data = tmp_path / "data"
    data.mkdir()
    lock = data / "lock"
    if kind == "fifo":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(victim if kind == "link" else tmp_path / "nothing")
    with pytest.raises(StorageError, match=r"lock is (a link, or )?not a file\. Remove it"):
        DataDirectory(data)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("node.tmp", lambda folder: folder.store_identity(NodeIdentity("n1"))),
        ("held/orders-u1.0", lambda folder: folder.mark_log("orders-u1/0")),
    ],
)
def test_data_directory_does_not_write_through_a_symbolic_link(
    name: str, write: Callable[[DataDirectory], None], tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = DataDirectory(tmp_path / "data")
    folder.partition_storage(PartitionKey("orders", "u1", 0))
    (folder.path / name).parent.mkdir(exist_ok=True)
    (folder.path / name).symlink_to(victim)
    with pytest.raises(StorageError):
        write(folder)
    assert victim.read_text() == "precious"
    folder.close()
