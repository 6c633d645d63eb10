"""Files behind ``liftpy.log.storage``: writev, pread, mmap, fdatasync, rename.

The active segment is read with ``pread`` (a copy), sealed ones through a map: a file that may still be cut is never mapped, so
that no view ever points past the end of its file. A sealed file that has to be cut after all is copied first.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from liftpy.errors import NoSpaceError, StorageError
from liftpy.log.storage import Bytes

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_COPY_BYTES = 8 * 1024 * 1024
_MODE = 0o640


@contextmanager
def _storage_errors(what: str, path: Path) -> Iterator[None]:
    """OSError stops here."""
    try:
        yield
    except OSError as error:
        kind = NoSpaceError if error.errno in _FULL else StorageError
        raise kind(f"{what} {path}: {error.strerror}") from error


class DiskFile:
    """A LogFile on a file descriptor."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0)
        with _storage_errors("open", path):
            self._descriptor = os.open(path, flags, _MODE)
            self._size_bytes = os.fstat(self._descriptor).st_size
        self._map: mmap.mmap | None = None
        self._sealed = False

    @property
    def size_bytes(self) -> int:
        """How many bytes have been appended."""
        return self._size_bytes

    def append(self, pieces: Sequence[Bytes]) -> None:
        """One ``writev``; a short or failed write is taken back, so that all of it is there or nothing."""
        wanted = sum(map(len, pieces))
        try:
            written = os.writev(self._descriptor, pieces)
            while written < wanted:
                rest = memoryview(b"".join(pieces))[written:]
                written += os.write(self._descriptor, rest)
        except OSError as error:
            with _storage_errors("take back a write to", self.path):
                os.ftruncate(self._descriptor, self._size_bytes)
            kind = NoSpaceError if error.errno in _FULL else StorageError
            raise kind(f"write {self.path}: {error.strerror}") from error
        self._size_bytes += wanted

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``."""
        if self._sealed and self._size_bytes:
            return memoryview(self._mapped())[position : position + size_bytes]
        with _storage_errors("read", self.path):
            return memoryview(os.pread(self._descriptor, min(size_bytes, max(self._size_bytes - position, 0)), position))

    def reread(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``, after the kernel was asked to drop its pages of them. It keeps those that are dirty
        or mapped: then this is the memory that readers are served from, else it is the device's word (or its own cache's)."""
        if self._descriptor < 0:
            raise StorageError(f"read {self.path}: closed")
        wanted = min(size_bytes, max(self._size_bytes - position, 0))
        with _storage_errors("read", self.path):
            os.posix_fadvise(self._descriptor, position, wanted, os.POSIX_FADV_DONTNEED)
            return memoryview(os.pread(self._descriptor, wanted, position))

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            if self._descriptor < 0:
                raise StorageError(f"read {self.path}: closed")  # a map of descriptor -1 would be zeros
            with _storage_errors("map", self.path):
                self._map = mmap.mmap(self._descriptor, self._size_bytes, access=mmap.ACCESS_READ)
        return self._map

    def sync(self) -> None:
        """``fdatasync``."""
        with _storage_errors("flush", self.path):
            os.fdatasync(self._descriptor)

    def truncate(self, size_bytes: int) -> None:
        """Cut, durably. A file that may be mapped is replaced by a copy: views into it stay right."""
        if self._sealed:
            self._become_copy(size_bytes)
        with _storage_errors("cut", self.path):
            os.ftruncate(self._descriptor, size_bytes)
            os.fsync(self._descriptor)
        self._size_bytes = size_bytes

    def rewrite(self, position: int) -> None:
        """Write the rest of the file again, in place: that makes its pages dirty, whatever an earlier flush has said of them."""
        with _storage_errors("write again", self.path):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)  # with O_APPEND pwrite would append
            try:
                while position < self._size_bytes:
                    block = os.pread(self._descriptor, min(_COPY_BYTES, self._size_bytes - position), position)
                    if not block:
                        raise OSError(errno.EIO, "the file is shorter than it was")
                    position += os.pwrite(descriptor, block, position)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def _become_copy(self, size_bytes: int) -> None:
        copy = DiskFile(self.path.with_name(self.path.name + ".tmp"), create=True)
        for position in range(0, size_bytes, _COPY_BYTES):
            copy.append([self.read(position, min(_COPY_BYTES, size_bytes - position))])
        copy.sync()
        with _storage_errors("replace", self.path):
            os.rename(copy.path, self.path)
            sync_folder(self.path.parent)
            os.close(self._descriptor)
        self._descriptor, copy._descriptor = copy._descriptor, -1
        self._sealed, self._map, self._size_bytes = False, None, size_bytes

    def seal(self) -> None:
        """From now on reads map the file."""
        self._sealed = True

    def close(self) -> None:
        """Close the descriptor; a map lives on as long as views of it do."""
        self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make ``folder`` if need be, with those above it; its name is durable then [S12]. Raises StorageError.

    Also of a folder that is there: who made it may have died before it flushed the name.
    """
    with _storage_errors("make", folder):
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        for made in missing:
            sync_folder(made.parent)
        if not missing:
            with suppress(PermissionError):  # somebody else's folder, and so was the flush
                sync_folder(folder.parent)


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write ``path`` atomically and durably: temporary file, flush, rename, flush of the folder. ``data`` may come in pieces.
    Raises StorageError."""
    temporary = path.with_name(path.name + ".tmp")
    with _storage_errors("write", path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        try:
            for piece in (data,) if isinstance(data, bytes) else data:
                view = memoryview(piece)
                while view:
                    view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)  # the next attempt must not flush the file that this one could not
            raise
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
        sync_folder(path.parent)


class FolderStorage:
    """A Storage in one folder, which is made if it is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)

    def names(self) -> list[str]:
        """The names in the folder, sorted."""
        with _storage_errors("list", self.folder):
            return sorted(os.listdir(self.folder))

    def open(self, name: str) -> DiskFile:
        """Open an existing file."""
        return DiskFile(self.folder / name, create=False)

    def create(self, name: str) -> DiskFile:
        """Create an empty file."""
        return DiskFile(self.folder / name, create=True)

    def load(self, name: str) -> bytes | None:
        """The whole of a small file."""
        path = self.folder / name
        with _storage_errors("read", path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def replace(self, name: str, data: bytes) -> None:
        """Atomic and durable."""
        replace_file(self.folder / name, data)

    def rename(self, old: str, new: str) -> None:
        """Rename."""
        with _storage_errors("rename", self.folder / old):
            os.rename(self.folder / old, self.folder / new)

    def remove(self, name: str) -> None:
        """Remove, if it is there."""
        with _storage_errors("remove", self.folder / name):
            (self.folder / name).unlink(missing_ok=True)

    def sync_folder(self) -> None:
        """Flush the folder."""
        with _storage_errors("flush", self.folder):
            sync_folder(self.folder)
