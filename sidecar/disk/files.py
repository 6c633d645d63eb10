"""Implements ``liftpy.core.log.storage`` with files: writev, pread, mmap, fdatasync, rename.

The active segment is read with ``pread`` (a copy), sealed ones through a memory map. A file that may still be truncated is
never mapped, so that no view ever points past the end of its file. If a sealed file must be truncated, it is copied first.

A file that receives appends keeps its descriptor. A sealed one has none: a read opens it by its name, and only if that is
still the file that was sealed. Its map has a descriptor of its own, and stays among the ``OpenMaps`` of the process until
others were used more recently. Views keep their map alive.

``Budget`` divides the limit of open files of the process.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import crc32c

from liftpy.core.base.strict_json import load_json
from liftpy.core.log.storage import Bytes
from liftpy.errors import NoSpaceError, StorageError

_TOO_MANY = {errno.EMFILE, errno.ENFILE}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ADVICE = {
    errno.ENOSPC: "Free space on the disk. If it has free space (df), it has no free inodes (df -i): delete files.",
    errno.EDQUOT: "Raise the quota of this user or directory, or delete files.",
    errno.EFBIG: "Raise the limit of the size of files (ulimit -f), or use a file system without this limit.",
    errno.EROFS: (
        "Check the log of the kernel (dmesg), because it makes a file system read-only after an error of the disk. Then mount "
        "the file system writable again."
    ),
}
"""Error number -> what to do about it. Other errors have a general text."""
_COPY_BYTES = 8 * 1024 * 1024
_MODE = 0o640
_SPACE_PROBE_NAME = "space-probe.tmp"
_SPACE_PROBE_BYTES = 1024 * 1024
_SMALL_BYTES = 64 * 1024
"""Number of bytes per read of a small file."""
_PROBED_BYTES = 64 * 1024
"""Size of the file part whose last byte shows whether the kernel caches it."""
_MADV_POPULATE_READ = 22
"""Advice of ``madvise`` that the module ``mmap`` does not name."""
_UNREADABLE = {errno.EFAULT, errno.EIO, 133}
"""Errors of ``madvise`` for a page that cannot be read. 133 is EHWPOISON, which the module ``errno`` does not name."""
_LOADED_BYTES = 1024 * 1024
"""Maximum number of bytes of a map that are loaded at once."""
T = TypeVar("T")
RESERVE = 256
"""Number of file descriptors for connections, the metadata group, temporary files, threads and libraries."""
MOST_MAPS = 4096
_UNLIMITED = 1 << 20
_SPARE = 0.8
"""Share of the remaining file descriptors that partitions get. The rest is for partitions that start a new segment.

Such a partition has two open segments until the first one is flushed.
"""


@contextmanager
def storage_errors(what: str, path: Path) -> Iterator[None]:
    """Context that raises a StorageError instead of an OSError. ``what``: verb for the text, such as ``read``. ``path``: file."""
    try:
        yield
    except OSError as error:
        raise _storage_error(what, path, error) from error


def _storage_error(what: str, path: Path, error: OSError) -> StorageError:
    kind = NoSpaceError if error.errno in FULL else StorageError
    advice = _ADVICE.get(error.errno or 0, "Check the disk and the permissions of the data directory.")
    return kind(f"Cannot {what} {path}: {error.strerror}. {advice}")


def _uncached_pieces(descriptor: int, position: int, size_bytes: int) -> list[tuple[int, int]]:
    """Return the ranges (begin, end) of a file that are not in the page cache, each of at most ``_PROBED_BYTES``.

    The function checks ``size_bytes`` from ``position`` on. Use a new ``descriptor`` for it, because the kernel's read-ahead of
    an older one would fill the cache.
    """
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    uncached_ranges, byte = [], bytearray(1)
    for begin in range(position, position + size_bytes, _PROBED_BYTES):
        end = min(begin + _PROBED_BYTES, position + size_bytes)
        try:
            os.preadv(descriptor, [byte], end - 1, os.RWF_NOWAIT)
        except BlockingIOError:
            uncached_ranges.append((begin, end))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # the file system does not support it, so nothing is known about the cache
                return []
            raise
    return uncached_ranges


def _load_pages(file_map: mmap.mmap, position: int, size_bytes: int) -> None:
    """Load the pages of a map. An access to a page that the disk cannot read would end the process with SIGBUS.

    Raises OSError for such a page. Kernels before 5.14 load the pages only at the access.
    """
    end = position + size_bytes
    for begin in range(position - position % mmap.PAGESIZE, end, _LOADED_BYTES):  # other threads run between two calls
        try:
            file_map.madvise(_MADV_POPULATE_READ, begin, min(_LOADED_BYTES, end - begin))
        except OSError as error:
            if error.errno in _UNREADABLE:
                raise OSError(errno.EIO, os.strerror(errno.EIO)) from None
            return


class OpenMaps:
    """The memory maps of sealed files in this process, at most ``bound``. Thread-safe.

    Above the limit, the least recently used map is closed.
    """

    def __init__(self, bound: int = 64) -> None:
        self.bound = bound
        self._files: OrderedDict[int, DiskFile] = OrderedDict()
        self._lock = threading.Lock()
        self._newest: DiskFile | None = None
        self.opened = 0
        """Number of times that a file was mapped."""

    def __len__(self) -> int:
        return len(self._files)

    def note_use(self, file: DiskFile, *, opened: bool = False) -> None:
        """Record that ``file`` was read through its memory map. ``opened``: True if the map was created for this read."""
        if file is self._newest and not opened:
            return  # most reads use the same file as the previous read
        self._newest = file
        with self._lock:
            self.opened += opened
            self._files[id(file)] = file
            self._files.move_to_end(id(file))
            while len(self._files) > self.bound:
                self._files.popitem(last=False)[1]._map = None

    def forget(self, file: DiskFile) -> None:
        with self._lock:
            self._files.pop(id(file), None)
            file._map = None
            self._newest = None

    def let_go(self) -> None:
        """Close all maps, so that the process has free file descriptors again."""
        with self._lock:
            while self._files:
                self._files.popitem()[1]._map = None


class DiskFile:
    """A LogFile on disk. It has an open file descriptor until it is sealed."""

    __slots__ = ("_closed", "_descriptor", "_identity", "_map", "_maps", "_sealed", "_size_bytes", "path")

    def __init__(self, path: Path, *, create: bool, maps: OpenMaps | None = None) -> None:
        self.path = path
        self._descriptor = -1
        self._maps = maps if maps is not None else OpenMaps()
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_TRUNC if create else 0)
        with storage_errors("open", path):
            self._descriptor = self._open(flags)
            file_stat = os.fstat(self._descriptor)
        self._size_bytes = file_stat.st_size
        self._identity = (file_stat.st_dev, file_stat.st_ino)
        self._map: mmap.mmap | None = None
        self._sealed = self._closed = False

    def _open(self, flags: int) -> int:
        return self._with_room(lambda: os.open(self.path, flags, _MODE))

    def _with_room(self, take: Callable[[], T]) -> T:
        """Return the result of ``take``, which opens a file descriptor.

        If no descriptor is free, close all maps and call ``take`` again. Raises OSError.
        """
        try:
            return take()
        except OSError as error:
            if error.errno not in _TOO_MANY:
                raise
        self._maps.let_go()
        return take()

    @contextmanager
    def _open_descriptor(self) -> Iterator[int]:
        """Yield the open descriptor of the file. A sealed file is opened for the time of the context.

        Raises StorageError if the file is closed, or if its name belongs to another file.
        """
        if self._closed:
            raise StorageError(f"Cannot read {self.path}: the file is closed.")
        if self._descriptor >= 0:
            yield self._descriptor
            return
        with storage_errors("open", self.path):
            descriptor = self._open(os.O_RDWR)
        try:
            file_stat = os.fstat(descriptor)
            if (file_stat.st_dev, file_stat.st_ino) != self._identity or file_stat.st_size < self._size_bytes:
                raise StorageError(f"Cannot read {self.path}: another file replaced it. Do not change files of a running node.")
            yield descriptor
        finally:
            os.close(descriptor)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, pieces: Sequence[Bytes]) -> None:
        """Append ``pieces`` with one ``writev``. After a short or failed write, remove the new bytes and raise StorageError."""
        wanted = sum(map(len, pieces))
        try:
            written = os.writev(self._descriptor, pieces)
            while written < wanted:
                rest = memoryview(b"".join(pieces))[written:]
                written += os.write(self._descriptor, rest)
        except OSError as error:
            with storage_errors("undo a write to", self.path):
                os.ftruncate(self._descriptor, self._size_bytes)
            raise _storage_error("write", self.path, error) from error
        self._size_bytes += wanted

    def read(self, position: int, size_bytes: int) -> memoryview:
        if self._sealed:
            file_map = self._map_file() if self._size_bytes else b""  # an empty file cannot be mapped
            view = memoryview(file_map)[position : position + size_bytes]
            if view and isinstance(file_map, mmap.mmap):
                with storage_errors("read", self.path):
                    _load_pages(file_map, position, len(view))
            return view
        with storage_errors("read", self.path):
            return memoryview(os.pread(self._descriptor, min(size_bytes, max(self._size_bytes - position, 0)), position))

    def reread(self, position: int, size_bytes: int) -> memoryview:
        """Ask the kernel to drop its cached pages of the range. Then return up to ``size_bytes`` from ``position``.

        The kernel keeps dirty and mapped pages.
        """
        wanted = min(size_bytes, max(self._size_bytes - position, 0))
        with self._open_descriptor() as descriptor, storage_errors("read", self.path):
            uncached = _uncached_pieces(descriptor, position, wanted) if self._sealed else []
            os.posix_fadvise(descriptor, position, wanted, os.POSIX_FADV_DONTNEED)
            data = memoryview(os.pread(descriptor, wanted, position))
            for begin, end in uncached:  # whole pages, because the kernel keeps a page if only a part of it is named
                begin -= begin % mmap.PAGESIZE
                os.posix_fadvise(descriptor, begin, end + -end % mmap.PAGESIZE - begin, os.POSIX_FADV_DONTNEED)
            return data

    def _map_file(self) -> mmap.mmap:
        file_map = self._map
        if file_map is None:
            with self._open_descriptor() as descriptor, storage_errors("map", self.path):
                file_map = self._with_room(lambda: mmap.mmap(descriptor, self._size_bytes, access=mmap.ACCESS_READ))
            self._map = file_map
            self._maps.note_use(self, opened=True)
            if (
                self._closed
            ):  # another thread has closed it in the meantime. A removed file must not use space while it is mapped
                self._maps.forget(self)
        else:
            self._maps.note_use(self)
        return file_map

    def sync(self) -> None:
        with self._open_descriptor() as descriptor, storage_errors("flush", self.path):
            os.fdatasync(descriptor)

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file durably. A file that may be mapped is replaced by a copy, so that views of it stay valid."""
        if self._sealed:
            self._become_copy(size_bytes)
        with storage_errors("truncate", self.path):
            os.ftruncate(self._descriptor, size_bytes)
            os.fsync(self._descriptor)
        self._size_bytes = size_bytes

    def rewrite(self, position: int) -> None:
        """Write the bytes from ``position`` on again in place, and flush them.

        This is needed after a failed flush, because the kernel may then treat unflushed pages as clean.
        """
        with storage_errors("rewrite", self.path):
            descriptor = os.open(self.path, os.O_WRONLY)  # with O_APPEND, pwrite appends
            try:
                while position < self._size_bytes:
                    with self._open_descriptor() as reading:
                        block = os.pread(reading, min(_COPY_BYTES, self._size_bytes - position), position)
                    if not block:
                        raise OSError(errno.EIO, "the file became shorter")
                    position += os.pwrite(descriptor, block, position)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def _become_copy(self, size_bytes: int) -> None:
        copy = DiskFile(self.path.with_name(self.path.name + ".tmp"), create=True, maps=self._maps)
        try:
            for position in range(0, size_bytes, _COPY_BYTES):
                copy.append([self.read(position, min(_COPY_BYTES, size_bytes - position))])
            copy.sync()
            with storage_errors("replace", self.path):
                os.rename(copy.path, self.path)
                sync_folder(self.path.parent)
        except StorageError:
            copy.close()
            with suppress(OSError):
                os.unlink(copy.path)  # on a full disk it uses space that other files need
            raise
        self._maps.forget(self)
        self._descriptor, copy._descriptor = copy._descriptor, -1
        self._identity, self._sealed, self._size_bytes = copy._identity, False, size_bytes

    def seal(self) -> None:
        """Close the descriptor, because nothing more is appended. Later reads use a memory map."""
        self._sealed = True
        self._close_descriptor()

    def close(self) -> None:
        """Close the file descriptor. A map stays open as long as it has views."""
        self._closed = True
        self._maps.forget(self)
        self._close_descriptor()

    def __del__(self) -> None:
        """Close the descriptor of a file that nothing refers to, for example after a recovery that failed."""
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def sync_folder(folder: Path) -> None:
    """Make the file names in the directory ``folder`` durable (``fsync``). Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create the directory ``folder`` with its parents if needed, and make its name durable [S12]. Raises StorageError.

    The names of existing directories are flushed too, because the process that created them may have died before its flush.
    """
    with storage_errors("create", folder):
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        for new_folder in reversed(missing):  # one by one, because mkdir with parents=True ignores the mode for the parents
            new_folder.mkdir(exist_ok=True, mode=0o750)
        folder.mkdir(exist_ok=True, mode=0o750)
        for new_folder in missing:
            sync_folder(new_folder.parent)
        if not missing:
            with suppress(PermissionError):  # the directory of another user, who has also flushed it
                sync_folder(folder.parent)
            for above in folder.parent.parents:
                with suppress(OSError):  # not our directory, or it cannot be flushed, so liftpy has not created it
                    sync_folder(above)


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write ``path`` atomically and durably: temporary file, flush, read back, rename, flush of the directory [S16].

    ``data`` may come in pieces. Raises StorageError, also if the file does not contain ``data`` afterwards. Then ``path`` is
    unchanged.
    """
    temporary = path.with_name(path.name + ".tmp")
    with storage_errors("write", path):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _MODE)
        try:
            crc = size_bytes = 0
            for piece in (data,) if isinstance(data, bytes) else data:
                view = memoryview(piece)
                crc, size_bytes = crc32c.crc32c(view, crc), size_bytes + len(view)
                while view:
                    view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
            if _read_back(descriptor) != (size_bytes, crc):
                raise StorageError(f"{path} differs after the write, so it is not used. Check the disk.")
        except (OSError, StorageError):
            with suppress(OSError):
                os.unlink(temporary)  # the next attempt must not flush the file whose flush has failed
            raise
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
        sync_folder(path.parent)


def write_space_probe(folder: Path) -> None:
    """Write a file of ``_SPACE_PROBE_BYTES`` to ``folder``, and delete it. Raises OSError if that is not possible.

    The figures of a file system do not show the limits of a quota. Several processes may call the function at the same time.
    """
    path = folder / _SPACE_PROBE_NAME
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _MODE)
    try:
        left_bytes = _SPACE_PROBE_BYTES
        while left_bytes:
            left_bytes -= os.write(descriptor, bytes(left_bytes))
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _read_back(descriptor: int) -> tuple[int, int]:
    crc = size_bytes = 0
    while piece := os.pread(descriptor, _COPY_BYTES, size_bytes):
        crc, size_bytes = crc32c.crc32c(piece, crc), size_bytes + len(piece)
    return size_bytes, crc


def encode_checked_json(fields: Mapping[str, object]) -> bytes:
    """Return the content of a small JSON file: the CRC-32C of the JSON in a line of 8 hexadecimal digits, then the JSON."""
    body = json.dumps(fields, sort_keys=True).encode()
    return f"{crc32c.crc32c(body):08x}\n".encode() + body


def decode_checked_json(data: bytes) -> Any:
    """Return the value in ``data``, which ``encode_checked_json`` has encoded. Raises ValueError for damaged bytes."""
    crc, _, body = data.partition(b"\n")
    if int(crc, 16) != crc32c.crc32c(body):
        raise ValueError("the checksum does not match")
    return load_json(body)


class DirectoryCreator:
    """Creates many directories with few flushes of their parent directories. Thread-safe."""

    def __init__(self) -> None:
        self._flushed: set[Path] = set()
        """Directories that this process has flushed. Names that an earlier process created in them are durable."""
        self._failed: set[Path] = set()
        """Directories whose flush has failed once. They never count as flushed again."""

    def make(self, folder: Path) -> None:
        """Create the directory ``folder`` with its parents if needed, and make its name durable [S12]. Raises StorageError."""
        above = folder.parent
        with storage_errors("create", folder):
            is_new = self._mkdir(folder)
            if not is_new and above in self._flushed:
                return
            try:
                sync_folder(above)
            except OSError:
                self._failed.add(above)
                self._flushed.discard(above)
                raise
            if above not in self._failed:
                self._flushed.add(above)

    def _mkdir(self, folder: Path) -> bool:
        """Create the directory ``folder``. Return True if it did not exist."""
        try:
            os.mkdir(folder, 0o750)
        except FileExistsError:
            return False
        except FileNotFoundError:
            self.make(folder.parent)
            return self._mkdir(folder)
        return True

    def note_removed(self, folder: Path) -> None:
        """Forget the directory ``folder``, which was removed."""
        self._flushed.discard(folder)


class DirectoryStorage:
    """Storage of one log in the directory ``folder``, which is created if needed.

    ``maps``: memory maps, shared by all logs of the process. ``folders``: creates directories, shared by all logs.
    """

    __slots__ = ("_flushed_change", "_last_change", "_maps", "folder")

    def __init__(self, folder: Path, maps: OpenMaps | None = None, folders: DirectoryCreator | None = None) -> None:
        self.folder = folder
        self._maps = maps if maps is not None else OpenMaps()
        self._last_change = object()
        """Mark of the last change of file names. Several threads change names, so it is set after the change."""
        self._flushed_change: object = None
        """Mark of the last change that is flushed. None: an earlier process may have left unflushed changes."""
        if folders is None:
            make_folder(folder)
        else:
            folders.make(folder)

    def names(self) -> list[str]:
        with storage_errors("list", self.folder):
            return sorted(os.listdir(self.folder))

    def free_bytes(self) -> int:
        with storage_errors("read", self.folder):
            usage = os.statvfs(self.folder)
        return usage.f_bavail * usage.f_frsize

    def open(self, name: str) -> DiskFile:
        return DiskFile(self.folder / name, create=False, maps=self._maps)

    def create(self, name: str) -> DiskFile:
        try:
            return DiskFile(self.folder / name, create=True, maps=self._maps)
        finally:
            self._last_change = object()

    def load(self, name: str) -> bytes | None:
        path = self.folder / name
        with storage_errors("read", path):
            try:
                # a start reads thousands of small files, so there is no buffer for each
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                pieces = []
                while piece := os.read(descriptor, _SMALL_BYTES):
                    pieces.append(piece)
                return b"".join(pieces)
            finally:
                os.close(descriptor)

    def replace(self, name: str, data: bytes | Sequence[bytes]) -> None:
        change = self._last_change
        replace_file(self.folder / name, data)
        self._flushed_change = change  # it has flushed the directory

    def rename(self, old: str, new: str) -> None:
        try:
            with storage_errors("rename", self.folder / old):
                os.rename(self.folder / old, self.folder / new)
        finally:
            self._last_change = object()

    def remove(self, name: str) -> None:
        try:
            with storage_errors("remove", self.folder / name):
                (self.folder / name).unlink(missing_ok=True)
        finally:
            self._last_change = object()

    def sync_folder(self) -> None:
        change = self._last_change
        if change is not self._flushed_change:
            with storage_errors("flush", self.folder):
                sync_folder(self.folder)
            self._flushed_change = change


# ---- limit of open files ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Budget:
    """Numbers of files that this process may open: one per partition, the ``OpenMaps`` of sealed segments, and a reserve.

    One partition too many would stop the node and all its other partitions. So the node reports its maximum number of
    partitions when it registers, and the metadata group places no more replicas on it.

    ``limit``: maximum number of file descriptors. ``maps``: maximum number of memory maps of segments. ``partitions``: maximum
    number of replicas on the node.
    """

    limit: int
    maps: int
    partitions: int


def budget_of(limit: int) -> Budget:
    """Return the maximum numbers of partitions and maps for a process with ``limit`` file descriptors."""
    maps = max(16, min(MOST_MAPS, limit // 4))
    return Budget(limit, maps, max(1, int((limit - RESERVE - maps) * _SPARE)))


def raise_limit() -> Budget:
    """Raise the soft limit of open files of this process to the hard limit. Return the resulting budget."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # the hard limit is above the limit of the system, so the soft limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return budget_of(_UNLIMITED if soft == resource.RLIM_INFINITY else soft)


def open_count() -> int:
    """Return the number of file descriptors that this process has open. -1: it is not known."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return -1


def open_files_and_limit(budget: Budget, maps: OpenMaps) -> dict[str, int]:
    """Return the numbers of open files and maps with their limits, for the status page."""
    return {
        "limit": budget.limit,
        "open": open_count(),
        "partition_budget": budget.partitions,
        "maps": len(maps),
        "maps_bound": maps.bound,
        "maps_opened": maps.opened,
    }
