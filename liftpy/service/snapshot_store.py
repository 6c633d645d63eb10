"""Stores the snapshots of a service process: one directory per service and partition, one file per snapshot.

<data>/<service>/<stream>-<partition>.lock                       one process at a time, taken before it registers
<data>/<service>/<stream>-<uid>/<partition>/<position>.snapshot  replaced atomically, checksummed; the position has 20 digits

A damaged file is set aside as ``.damaged`` and the one before it is used: a snapshot only shortens the replay. A later version may be
able to read a file that this one can't. Such a file gets its name back.

Retention deletes the log below a snapshot, and the node then depends on the file. So a file is read back from the disk and decoded
before it gets its name [S16]. A snapshot that can't be read back is not stored, and the log is kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from liftpy.core.services.snapshot import DIGEST_SIZE_BYTES, Identity, Snapshot, decode
from liftpy.errors import CorruptionError, DataDirectoryLockedError, StorageError, UnknownFormatError

logger = logging.getLogger("liftpy.service")

_SUFFIX = ".snapshot"
_DAMAGED = ".damaged"
_INCOMING = ".incoming"


class ServiceLock:
    """Lock of one service and partition. Raise DataDirectoryLockedError if another process has it."""

    def __init__(self, data: Path, service: str, stream: str, partition: int) -> None:
        path = data / service / f"{stream}-{partition}.lock"
        with _storage_errors("open", path):
            _make_folder(path.parent, data)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DataDirectoryLockedError(
                f"Another process of this service uses the directory {path}. Stop it, or choose another directory (--data)."
            ) from None

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot that is stored. ``digest``: BLAKE2b of its file's bytes."""

    position: int
    output_count: int
    digest: bytes
    size_bytes: int


def _kept(snapshot: Snapshot, data: bytes) -> Kept:
    return Kept(snapshot.position, snapshot.output_count, _digest(data).digest(), len(data))


def _digest(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=DIGEST_SIZE_BYTES)


class OpenSnapshot:
    """Open file of a snapshot. It closes when its last user releases it. Any thread may read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        with _storage_errors("read", path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def read(self, start: int, size_bytes: int) -> bytes:
        """Return at most ``size_bytes`` from ``start``, b"" past the end. Raises StorageError."""
        with _storage_errors("read", self._path):
            return os.pread(self._descriptor, size_bytes, start)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class Incoming:
    """A snapshot on its way into the store: nothing of it counts before ``finish``. ``close`` it in the end."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path = path
        self._identity = identity
        self._temporary = path.with_suffix(_INCOMING)
        self._digest = _digest()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with _storage_errors("write", path):
            self._file = os.fdopen(os.open(self._temporary, flags, 0o640), "w+b")

    def write(self, piece: bytes) -> None:
        """Write the next bytes."""
        self._digest.update(piece)
        with _storage_errors("write", self._path):
            self._file.write(piece)

    def finish(self, digest: bytes) -> Snapshot:
        """Make the complete file durable.

        Raise CorruptionError if the digest or content is wrong. Also raises UnknownFormatError, StorageError.
        """
        if self._digest.digest() != digest:
            raise CorruptionError("The digest of the snapshot file does not match. The service uses an older snapshot.")
        with _storage_errors("write", self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.seek(0)
            data = self._file.read()
        snapshot = decode(data, self._identity)
        if snapshot.position != int(self._path.stem):
            raise CorruptionError(
                f"The content of the snapshot file belongs to offset {snapshot.position}. The service uses an older snapshot."
            )
        with _storage_errors("write", self._path):
            self._temporary.rename(self._path)
            _flush_names(self._path.parent)
        return snapshot

    def close(self) -> None:
        """Leave nothing but a snapshot that was finished."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)


class SnapshotStore:
    """Snapshots of one service and partition, for the holder of the ServiceLock."""

    def __init__(self, data: Path, identity: Identity, *, kept: int, max_bytes: int) -> None:
        self.folder = data / identity.service / f"{identity.stream}-{identity.uid}" / str(identity.partition)
        self._identity = identity
        self._kept = kept
        self._max_bytes = max_bytes
        with _storage_errors("open", self.folder):
            _make_folder(self.folder, data)

    def positions(self) -> list[int]:
        """Positions of the snapshots, ascending."""
        names = (path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}"))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def newest(self, wanted: Callable[[Snapshot], bool] = lambda _: True) -> Snapshot | None:
        """Return the newest valid ``wanted`` snapshot. Raise UnknownFormatError for a newer version."""
        found = self.newest_kept(wanted)
        return None if found is None else found[0]

    def newest_kept(self, wanted: Callable[[Snapshot], bool]) -> tuple[Snapshot, Kept] | None:
        """Return the newest snapshot, as ``newest``, with its file."""
        for path in reversed(self._files()):
            with _storage_errors("read", path):
                data = path.read_bytes()
            try:
                snapshot = decode(data, self._identity)
            except CorruptionError as error:
                if path.suffix == _SUFFIX:
                    logger.warning("%s can't be used and is set aside: %s", path, error)
                    with _storage_errors("quarantine", path):
                        path.rename(path.with_suffix(_DAMAGED))
                continue
            if not wanted(snapshot):
                continue
            if path.suffix == _DAMAGED:
                logger.warning("%s was set aside by a version that could not read it: it is used again", path)
                with _storage_errors("rename", path):
                    path.rename(path.with_suffix(_SUFFIX))
                    _flush_names(self.folder)
            return snapshot, _kept(snapshot, data)
        return None

    def _files(self) -> list[Path]:
        """Return the snapshot files in ascending order, and quarantined ones at positions without another."""
        found: dict[int, Path] = {}
        for suffix in (_DAMAGED, _SUFFIX):
            for path in self.folder.glob(f"*{suffix}"):
                if path.stem.isascii() and path.stem.isdigit():
                    found[int(path.stem)] = path
        return [found[position] for position in sorted(found)]

    def save(self, snapshot: Snapshot, compared_end: int) -> Kept:
        """Store a snapshot durably and read it back, then drop old ones.

        Return its file, whose digest is the same on all nodes.

        Kept are the newest few, and the newest one at or below ``compared_end`` outputs: the newest that counts, whatever comes to
        light; what a LEADER replays from when outputs have to be produced again.

        Raises:
            StorageError: The disk failed, the snapshot is too large, or it can't be read back. Older ones are as they were.
        """
        snapshot = snapshot.whole()
        data = snapshot.encode()
        if len(data) > self._max_bytes:
            raise StorageError(
                f"The snapshot has {len(data)} bytes, more than max_snapshot_bytes = {self._max_bytes}. Increase this "
                "setting, or keep less state."
            )
        path = self._path(snapshot.position)
        with _storage_errors("write", path):
            self._replace(path, data, snapshot)
            self._drop_old(snapshot, compared_end)
        return _kept(snapshot, data)

    # ---- snapshots of other nodes' services ----------------------------------------------------------------------------
    def open(self, position: int) -> OpenSnapshot:
        """The snapshot's file, to be read as it is now although it may be dropped."""
        return OpenSnapshot(self._path(position))

    def incoming(self, position: int) -> Incoming:
        """Takes in a snapshot that was made elsewhere, piece by piece; what an earlier process left of one goes."""
        for path in self.folder.glob(f"*{_INCOMING}"):
            with _storage_errors("remove", path):
                path.unlink(missing_ok=True)
        return Incoming(self._path(position), self._identity)

    def _replace(self, path: Path, data: bytes, snapshot: Snapshot) -> None:
        temporary = path.with_suffix(".tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o640), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            if decode(temporary.read_bytes(), self._identity) != snapshot:
                raise CorruptionError("The snapshot file differs from what was written. Check the disk.")
        except (CorruptionError, UnknownFormatError) as error:
            temporary.unlink()
            raise StorageError(
                f"The snapshot at offset {snapshot.position} is damaged after the write, so it is not stored: "
                f"{error}. Check the disk."
            ) from None
        temporary.rename(path)
        _flush_names(self.folder)

    def _drop_old(self, stored: Snapshot, compared_end: int) -> None:
        old = self.positions()[: -self._kept]
        if not old:
            return
        needed = stored if stored.output_count <= compared_end else self.newest(lambda s: s.output_count <= compared_end)
        for position in old:
            if needed is None or position != needed.position:
                self._path(position).unlink(missing_ok=True)  # it was set aside a moment ago, perhaps

    def drop_above(self, position: int) -> None:
        """Drop snapshots past ``position``, because an unclean election truncated the log."""
        for path in self._files():
            if int(path.stem) > position:
                logger.warning("snapshot %s is past the log, which ends at %d: dropped", path.name, position)
                with _storage_errors("remove", path):
                    path.unlink(missing_ok=True)

    def set_aside(self, diverged: Callable[[Snapshot], bool]) -> None:
        """Quarantine snapshots as ``.diverged``."""
        for path in self._files():
            with _storage_errors("quarantine", path), contextlib.suppress(CorruptionError, UnknownFormatError):
                if diverged(decode(path.read_bytes(), self._identity)):
                    logger.error("%s holds a state that has diverged: set aside", path)
                    path.rename(path.with_suffix(".diverged"))
                    _flush_names(self.folder)

    def _path(self, position: int) -> Path:
        return self.folder / f"{position:020d}{_SUFFIX}"


def _make_folder(folder: Path, data: Path) -> None:
    """Create the directory with its parents, writable only by this user, and make the names from ``data`` on durable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for made in reversed(missing):
        made.mkdir(exist_ok=True, mode=0o750)
    within = [path for path in (folder, *folder.parents) if path.is_relative_to(data)]
    for made in dict.fromkeys((*within, *missing)):
        _flush_names(made.parent)


def _flush_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _storage_errors(what: str, path: Path):  # type: ignore[no-untyped-def]
    try:
        yield
    except OSError as error:
        raise StorageError(f"Cannot {what} {path}: {error.strerror or error}. Check the disk and its permissions.") from error
