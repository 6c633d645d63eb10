"""Test the data directory of a node: its lock, files, partitions and permissions."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.errors import (
    CorruptionError,
    DataDirectoryLockedError,
    InvalidNameError,
    NoSpaceError,
    StorageError,
    UnusableDataDirectoryError,
)
from liftpy.service.snapshots import ServiceLock
from sidecar.disk.data_folder import LAZY_FLUSH, UNREPORTED_DAMAGE, DataDirectory, NodeIdentity
from sidecar.disk.files import DirectoryStorage, DiskFile
from tests.long import sampled

KEY = PartitionKey("orders", "u1", 0)


def test_data_directory_opened_by_a_second_process_raises(tmp_path: Path) -> None:
    """[S10]"""
    folder = DataDirectory(tmp_path / "data")
    code = f"""
from pathlib import Path
from sidecar.disk.data_folder import DataDirectory
DataDirectory(Path({str(tmp_path / "data")!r}))
"""
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DataDirectoryLockedError" in other.stderr
    with pytest.raises(DataDirectoryLockedError, match="in use by another process"):
        DataDirectory(tmp_path / "data")
    folder.close()
    DataDirectory(tmp_path / "data").close()


def test_node_identity_stores_the_incarnation_that_stopped_cleanly(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    assert folder.load_identity() is None
    folder.store_identity(NodeIdentity("a", incarnation=3, clean_incarnation=2))
    assert folder.load_identity() == NodeIdentity("a", 3, 2)
    assert not NodeIdentity("a", 3, 2).stopped_cleanly
    assert NodeIdentity("a", 3, 3).stopped_cleanly


def test_node_identity_damaged_at_any_byte_or_bit_is_rejected(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    identity = NodeIdentity("a", 3, 3)
    folder.store_identity(identity)
    path = tmp_path / "node"
    data = path.read_bytes()
    damaged = [data[:n] for n in range(len(data))]
    damaged += [data[: b // 8] + bytes([data[b // 8] ^ 1 << (b % 8)]) + data[b // 8 + 1 :] for b in range(len(data) * 8)]
    for wrong in sampled(damaged, 7):
        path.write_bytes(wrong)
        try:
            assert folder.load_identity() == identity  # the checksum's own letters may change case
        except CorruptionError:
            pass


def test_data_directory_delete_partition_removes_all_its_files(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    other = PartitionKey("orders", "u1", 1)
    for key in (KEY, other):
        folder.partition_storage(key).create("x").append([b"1"])
    folder.delete_partition(KEY)
    folder.delete_partition(KEY)
    assert not folder.partition_path(KEY).exists()
    assert folder.partition_storage(other).names() == ["x"]
    folder.delete_partition(other)
    assert not (tmp_path / "streams" / "orders-u1").exists()


@pytest.mark.parametrize("stream", ["..", "a/b", ""])
def test_data_directory_rejects_names_outside_the_directory(tmp_path: Path, stream: str) -> None:
    with pytest.raises(InvalidNameError):
        DataDirectory(tmp_path).partition_path(PartitionKey(stream, "u", 0))


def test_disk_file_append_on_a_full_disk_raises_and_restores_the_size() -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full here")
    file = DiskFile(Path("/dev/full"), create=False)
    with pytest.raises((NoSpaceError, StorageError)):
        file.append([b"x" * 10])
    assert file.size_bytes == 0


def test_disk_file_append_cut_short_by_the_file_size_limit_raises_no_space(tmp_path: Path) -> None:
    code = f"""
import resource, signal
from pathlib import Path
from liftpy.errors import NoSpaceError
from sidecar.disk.files import DiskFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = DiskFile(Path({str(tmp_path / "a.log")!r}), create=True)
file.append([b"a" * 900])
try:
    file.append([b"b" * 50, b"c" * 400])
except NoSpaceError:
    print("refused", file.size_bytes)
file.append([b"d" * 100])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused 900\n"
    assert (tmp_path / "a.log").read_bytes() == b"a" * 900 + b"d" * 100


def test_folder_storage_creates_missing_parent_directories(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "a" / "b" / "0")
    assert storage.names() == []
    with pytest.raises(StorageError):
        DirectoryStorage(Path("/proc/nowhere/0"))


def test_data_directory_lock_file_contains_only_the_current_process_id(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"99999999999999\nand more\n")
    folder = DataDirectory(tmp_path)
    assert (tmp_path / "lock").read_bytes() == f"{os.getpid()}\n".encode()
    folder.close()


def test_disk_file_failed_truncation_leaves_no_copy_and_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DiskFile(tmp_path / "a.log", create=True)
    file.append([b"0123456789"])
    file.seal()
    made: list[DiskFile] = []

    def full(copy: DiskFile, _: Any) -> None:
        made.append(copy)
        raise NoSpaceError("no space")

    monkeypatch.setattr(DiskFile, "append", full)
    with pytest.raises(NoSpaceError):
        file.truncate(5)
    assert (made[0]._descriptor, os.listdir(tmp_path)) == (-1, ["a.log"])
    assert bytes(file.read(0, 10)) == b"0123456789", "nothing was cut"
    file.close()


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
    with pytest.raises(UnusableDataDirectoryError, match="belongs to user"):
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
