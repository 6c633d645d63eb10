"""Test a disk file against a byte string under random operations and system errors [S4, L6]."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import NoSpaceError, StorageError
from sidecar.disk import files
from sidecar.disk.files import DirectoryCreator, DirectoryStorage, DiskFile, OpenMaps, make_folder, replace_file

BLOCK = 64


class System:
    """Short writes and errors, as ``plan`` has them: each number is how much of a write is done, each exception is raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: list[int | OSError] = []
        self.calls: list[str] = []
        for name in ("writev", "write", "pwrite", "fdatasync", "fsync", "posix_fadvise"):
            monkeypatch.setattr(os, name, self._standing_in(name, getattr(os, name)))

    def _standing_in(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *args: Any) -> Any:
            self.calls.append(name)
            if not self.plan or name not in ("writev", "write"):
                return real(descriptor, *args)
            step = self.plan.pop(0)
            if isinstance(step, OSError):
                raise step
            data = b"".join(args[0]) if name == "writev" else bytes(args[0])
            return self.write(descriptor, data[: max(step, 1)])

        if name == "write":
            self.write = real
        return call


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.setattr(files, "_COPY_BYTES", BLOCK)
    return System(monkeypatch)


def contents(file: DiskFile) -> bytes:
    return file.path.read_bytes()


@pytest.mark.parametrize("seed", range(12))
def test_disk_file_after_random_operations_equals_a_byte_string_model(seed: int, tmp_path: Path, system: System) -> None:
    draw = random.Random(seed)
    file, model, sealed, views = DiskFile(tmp_path / "log", create=True, maps=OpenMaps(1)), b"", False, []
    for _ in range(80):
        what = draw.choice(["append"] * 5 + ["read"] * 4 + ["reread", "rewrite", "truncate", "seal", "sync"])
        if what == "append" and not sealed:
            pieces = [draw.randbytes(draw.randrange(1, 60)) for _ in range(draw.randrange(1, 4))]
            system.plan = [draw.randrange(1, 30) for _ in range(draw.randrange(6))]
            fails = draw.random() < 0.2
            if fails:
                system.plan.append(OSError(errno.EIO, "no"))
            try:
                file.append(pieces)
                model += b"".join(pieces)
            except StorageError:
                assert fails
            system.plan = []
        elif what in ("read", "reread"):
            position, size = draw.randrange(len(model) + 20), draw.randrange(200)
            view = getattr(file, what)(position, size)
            assert bytes(view) == model[position : position + size]
            views.append((view, bytes(view)))
        elif what == "rewrite":
            file.rewrite(draw.randrange(len(model) + 1))
        elif what == "truncate":
            end = draw.choice([draw.randrange(len(model) + 1), len(model) // BLOCK * BLOCK, min(BLOCK + 1, len(model))])
            file.truncate(end)
            model, sealed = model[:end], False
        elif what == "seal":
            file.seal()
            sealed = True
        elif what == "sync":
            file.sync()
        assert file.size_bytes == len(model)
        assert contents(file) == model
    assert all(bytes(view) == seen for view, seen in views), "what was handed out has changed"
    file.close()


def test_disk_file_read_excludes_bytes_of_an_unfinished_write(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "log", create=True)
    file.append([b"counted"])
    with (tmp_path / "log").open("ab") as behind:
        behind.write(b"torn")
    assert bytes(file.read(0, 100)) == bytes(file.reread(0, 100)) == b"counted"
    for behind_end in (8, 50):
        assert bytes(file.read(behind_end, 10)) == bytes(file.reread(behind_end, 10)) == b""
    file.close()


def cached_pages(path: Path) -> list[bool]:
    """Return which pages of a file the kernel caches."""
    system, size = ctypes.CDLL(None, use_errno=True), path.stat().st_size
    system.mmap.restype, system.mmap.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
    )
    system.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    found = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with path.open("rb") as file:
        address = system.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        assert system.mincore(address, size, found) == 0
        system.munmap(address, size)
    return [bool(page & 1) for page in found.raw]


def test_disk_file_reread_of_a_sealed_file_does_not_change_the_page_cache(tmp_path: Path) -> None:
    path, page = tmp_path / "log", mmap.PAGESIZE
    file = DiskFile(path, create=True)
    file.append([os.urandom(1024 * page)])
    file.sync()
    file.seal()
    for _ in range(40):  # the kernel keeps pages that another core is about to put into its lists
        with path.open("rb", buffering=0) as reader:
            os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if any(cached_pages(path)):
                pytest.skip("this file system keeps its files in memory")
            os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(reader.fileno(), 256 * page, 512 * page)
        for at in range(0, 1024 * page, 100_000):
            file.reread(at, 100_000)
        cached = cached_pages(path)
        by_scrub = sum(cached[:512] + cached[768:])
        if by_scrub < 50:
            break
    assert sum(cached[512:768]) > 200, "what a reader had read"
    assert by_scrub < 50, "what only the scrub had read"
    file.close()


def test_disk_file_rewrite_of_a_file_that_became_shorter_raises_storage_error(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "log", create=True)
    file.append([b"0123456789"])
    os.truncate(tmp_path / "log", 3)
    with pytest.raises(StorageError, match="shorter"):
        file.rewrite(0)
    file.close()


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OPERATIONS: dict[str, Callable[[Path, DiskFile], object]] = {
    "append": lambda folder, file: file.append([b"x"]),
    "replace": lambda folder, file: replace_file(folder / "small", b"x"),
    "sync": lambda folder, file: file.sync(),
    "rewrite": lambda folder, file: file.rewrite(0),
    "truncate": lambda folder, file: file.truncate(0),
    "names": lambda folder, file: DirectoryStorage(folder).names(),
    "sync_folder": lambda folder, file: DirectoryStorage(folder).sync_folder(),
    "rename": lambda folder, file: DirectoryStorage(folder).rename("a", "b"),
    "remove": lambda folder, file: DirectoryStorage(folder).remove("a"),
    "make": lambda folder, file: make_folder(folder / "new" / "er"),
    "make many": lambda folder, file: DirectoryCreator().make(folder / "new" / "est"),
}
FAILING = ("writev", "write", "pwrite", "fdatasync", "fsync", "ftruncate", "rename", "unlink", "listdir", "mkdir")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("number", [*FULL, errno.EIO, errno.EROFS])
def test_disk_file_system_error_is_raised_as_no_space_or_storage_error(
    operation: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DiskFile(tmp_path / "log", create=True)
    file.append([b"held"])
    (tmp_path / "a").write_bytes(b"")

    def fails(*args: Any, **more: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        for name in FAILING:
            if (operation, name) != ("append", "ftruncate"):
                broken.setattr(os, name, fails)
        with pytest.raises(StorageError, match=os.strerror(number)) as told:
            OPERATIONS[operation](tmp_path, file)
    assert isinstance(told.value, NoSpaceError) == (number in FULL)
    file.close()


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


def test_replace_file_with_short_writes_replaces_the_whole_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, view: real(descriptor, bytes(view)[:3]))
    replace_file(tmp_path / "f", [b"0123456", b"", b"789"])
    assert (tmp_path / "f").read_bytes() == b"0123456789"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("fails_at", ["write", "fsync"])
def test_replace_file_that_fails_leaves_no_temporary_file(
    fails_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").write_bytes(b"old")

    def fails(*args: Any) -> Any:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as broken:
        broken.setattr(os, fails_at, fails)
        with pytest.raises(StorageError) as raised:
            replace_file(tmp_path / "small", b"new")
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.EIO, "what went wrong, and not what followed from it"
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    assert (tmp_path / "small").read_bytes() == b"old"


def test_mmap_cache_holds_no_map_of_a_file_closed_during_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread closes it between the two: its space is the log's again."""
    maps = OpenMaps()
    file = DiskFile(tmp_path / "log", create=True, maps=maps)
    file.append([b"x"])
    file.seal()
    really = OpenMaps.note_use

    def used(self: OpenMaps, which: DiskFile, *, opened: bool = False) -> None:
        which.close()
        really(self, which, opened=opened)

    monkeypatch.setattr(OpenMaps, "note_use", used)
    assert bytes(file.read(0, 1)) == b"x"
    assert file._map is None
    assert len(maps) == 0
    with pytest.raises(StorageError, match="closed"):
        file.read(0, 1)


def test_disk_file_read_after_another_file_replaced_it_raises_storage_error(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "log", create=True)
    file.append([b"right"])
    file.seal()
    (tmp_path / "other").write_bytes(b"wrong, and as long")
    os.rename(tmp_path / "other", tmp_path / "log")
    for look in (file.read, file.reread):
        with pytest.raises(StorageError, match="another file"):
            look(0, 5)
    file.close()


def test_replace_file_overwrites_a_longer_left_over_temporary_file_completely(tmp_path: Path) -> None:
    """A process that was killed while it replaced a file leaves its temporary file."""
    path = tmp_path / "state"
    path.with_name("state.tmp").write_bytes(b"what an earlier process left" * 10)
    replace_file(path, b"short")
    assert path.read_bytes() == b"short"


def test_disk_file_truncate_overwrites_a_longer_left_over_temporary_file_completely(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "segment", create=True)
    file.append([b"0123456789"])
    file.seal()
    (tmp_path / "segment.tmp").write_bytes(b"what an earlier process left" * 10)
    file.truncate(4)
    assert (tmp_path / "segment").read_bytes() == bytes(file.read(0, 100)) == b"0123"
    file.close()


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
