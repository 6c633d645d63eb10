"""Where a service process keeps its snapshots: one folder per service and partition, one file per snapshot.

<data>/<service>/<stream>-<partition>.lock                       one process at a time, taken before it registers
<data>/<service>/<stream>-<uid>/<partition>/<position>.snapshot  replaced atomically, checksummed; the position has 20 digits

A damaged file is set aside as ``.damaged`` and the one before it is used: a snapshot only shortens the replay.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from liftpy.errors import CorruptionError, FolderLockedError, StorageError, UnknownFormatError
from liftpy.service.agreement import DIGEST_SIZE_BYTES
from liftpy.service.snapshot import Identity, Snapshot, decode

logger = logging.getLogger("liftpy.service")

_SUFFIX = ".snapshot"


class ServiceLock:
    """Held by the one process of a service over a partition; raises FolderLockedError when another one holds it."""

    def __init__(self, data: Path, service: str, stream: str, partition: int) -> None:
        path = data / service / f"{stream}-{partition}.lock"
        with _storage_errors("open", path):
            _make_folder(path.parent, data)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise FolderLockedError(f"{path} is held by another process of this service; stop it first") from None

    def close(self) -> None:
        """Release it."""
        os.close(self._lock)


class SnapshotStore:
    """The snapshots of one service over one partition; used by whoever holds the ServiceLock."""

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
        """The newest snapshot that is whole and ``wanted``; raises UnknownFormatError for one of a newer version."""
        for position in reversed(self.positions()):
            path = self._path(position)
            with _storage_errors("read", path):
                data = path.read_bytes()
            try:
                snapshot = decode(data, self._identity)
            except CorruptionError as error:
                logger.warning("%s can't be used and is set aside: %s", path, error)
                with _storage_errors("set aside", path):
                    path.rename(path.with_suffix(".damaged"))
                continue
            if wanted(snapshot):
                return snapshot
        return None

    def save(self, snapshot: Snapshot, compared_end: int) -> bytes:
        """Store a snapshot durably; then drop old ones. Returns the digest of its bytes: the same on all nodes.

        Kept are the newest few, and the newest one at or below ``compared_end`` outputs: the newest that counts, whatever comes to
        light; what a LEADER replays from when outputs have to be produced again.
        """
        data = snapshot.encode()
        if len(data) > self._max_bytes:
            raise StorageError(f"a snapshot of {len(data)} bytes is more than max_snapshot_bytes = {self._max_bytes}")
        path = self._path(snapshot.position)
        with _storage_errors("write", path):
            self._replace(path, data)
            self._drop_old(compared_end)
        return hashlib.blake2b(data, digest_size=DIGEST_SIZE_BYTES).digest()

    def _replace(self, path: Path, data: bytes) -> None:
        temporary = path.with_suffix(".tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o640), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        _flush_names(self.folder)

    def _drop_old(self, compared_end: int) -> None:
        old = self.positions()[: -self._kept]
        needed = self.newest(lambda s: s.output_count <= compared_end) if old else None
        for position in old:
            if needed is None or position != needed.position:
                self._path(position).unlink()

    def drop_above(self, position: int) -> None:
        """Drop snapshots past ``position``: the log was cut there, by an unclean election."""
        for found in self.positions():
            if found > position:
                logger.warning("snapshot %d is past the log, which ends at %d: dropped", found, position)
                with _storage_errors("remove", self._path(found)):
                    self._path(found).unlink(missing_ok=True)

    def set_aside(self, diverged: Callable[[Snapshot], bool]) -> None:
        """Never begin from these again; they stay as ``.diverged``, for whoever looks for the cause."""
        for position in self.positions():
            path = self._path(position)
            with _storage_errors("set aside", path), contextlib.suppress(CorruptionError, UnknownFormatError):
                if diverged(decode(path.read_bytes(), self._identity)):
                    logger.error("%s holds a state that has diverged: set aside", path)
                    path.rename(path.with_suffix(".diverged"))
                    _flush_names(self.folder)

    def _path(self, position: int) -> Path:
        return self.folder / f"{position:020d}{_SUFFIX}"


def _make_folder(folder: Path, data: Path) -> None:
    """Also those above it: nobody else writes there, whatever the umask. The names from ``data`` on are durable then, also those that a
    process made which died before it flushed them: a snapshot is as safe as the folder that it is in."""
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
        raise StorageError(f"{what} {path}: {error.strerror or error}") from error
