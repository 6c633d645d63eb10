"""Snapshots of a service process: stored on disk, taken at the right time, sent to other nodes and downloaded from them.

One directory per service and partition, one file per snapshot:

| path | content |
|---|---|
| ``<data>/<service>/<stream>-<partition>.lock`` | lock: one process at a time, taken before it registers |
| ``<data>/<service>/<stream>-<uid>/<partition>/<position>.snapshot`` | snapshot, replaced atomically, with a checksum |

The position in a file name has 20 digits.

A damaged file is renamed to ``.damaged``, and the one before it is used, because a snapshot only shortens the replay. A
later version may be able to read a file that this version cannot read. Such a file gets its name back.

Retention deletes the log below a snapshot, and the node then depends on the file. So a file is read back from the disk and
decoded before it gets its name [S16]. A snapshot that cannot be read back is not stored, and the log is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from liftpy.client import Client
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.outbox import Outbox
from liftpy.core.services.snapshot import (
    DIGEST_SIZE_BYTES,
    Identity,
    ReplayPoint,
    Snapshot,
    SnapshotOffer,
    SnapshotRange,
    SnapshotSearch,
    decode,
    replay_point,
)
from liftpy.core.wire import frames
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects, publish_answer, reply_to
from liftpy.errors import (
    CorruptionError,
    DataDirectoryLockedError,
    LiftError,
    OutcomeUnknownError,
    ProtocolError,
    StorageError,
    UnavailableError,
    UnknownFormatError,
)
from liftpy.nats.request_guard import RequestGuard
from liftpy.nats.transport import Transport, unsubscribe
from liftpy.service.settings import ServiceSettings

logger = logging.getLogger("liftpy.service")

_SUFFIX = ".snapshot"
_DAMAGED = ".damaged"
_INCOMING = ".incoming"
_TEMPORARY = ".tmp"
_RETAINED = ".retained"
"""Suffix of the empty file that names the position from which the log is retained."""
_MAX_STORED = 64
_MAX_DIGESTS = 4
_NOTICED_S = 0.01
_TURN = 1.5
"""Time between the turns of two nodes, as a factor of the last snapshot's duration."""
_LONGEST_TURN_S = 5.0
_MAX_OPEN_SNAPSHOTS = 8
"""Maximum number of open snapshots. At the limit, the least recently used one is closed."""
_OPEN_SNAPSHOT_S = 60.0
_CHECK_INTERVAL_S = 5.0
_MAX_WAITING = 64
"""Maximum number of waiting requests. NATS drops further ones, and their senders retry."""
_ANSWER_S = 2.0
_TRIES = 3
"""Maximum number of attempts for each piece of a download."""
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0
_SLOWEST_BYTES_PER_S = 64 * 1024
_RATE_CHECK_AFTER_S = 10.0
"""Time in seconds after which the average rate of a download must reach a minimum."""
_BARRED_S = 60.0
"""Time in seconds for which a downloaded snapshot is not downloaded again."""
_MAX_PEERS = 16


class ServiceLock:
    """Lock file of one service and partition, so that only one process runs it.

    The constructor raises DataDirectoryLockedError if another process has the lock.
    """

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
        os.close(self._lock)


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A stored snapshot. ``digest``: BLAKE2b of the bytes of its file.

    ``output_count``: number of outputs up to it. ``size_bytes``: size of its file.
    """

    position: int
    output_count: int
    digest: bytes
    size_bytes: int


def _read_at(descriptor: int, start: int, size_bytes: int) -> bytes:
    return os.pread(descriptor, size_bytes, start)


def _stored_snapshot_of(snapshot: Snapshot, data: bytes) -> StoredSnapshot:
    return StoredSnapshot(snapshot.position, snapshot.output_count, _digest(data).digest(), len(data))


def _digest(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=DIGEST_SIZE_BYTES)


class OpenSnapshot:
    """Open file of a snapshot, so that it can be read after the store has deleted it. Any thread may read it.

    The file is closed when its last user releases this object. ``used_s``: monotonic time of its last use, in seconds.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_s = 0.0
        self._path = path
        self._descriptor = -1
        with _storage_errors("read", path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def read(self, start: int, size_bytes: int) -> bytes:
        """Return at most ``size_bytes`` from position ``start``. b"": the position is at the end. Raises StorageError."""
        with _storage_errors("read", self._path):
            return os.pread(self._descriptor, size_bytes, start)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class SnapshotDownload:
    """Receives the file of a snapshot that is being downloaded. The store does not use it before ``finish``.

    Call ``close`` at the end.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path = path
        self._identity = identity
        self._temporary = path.with_suffix(_INCOMING)
        self._digest = _digest()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with _storage_errors("write", path):
            self._file = os.fdopen(os.open(self._temporary, flags, 0o640), "w+b")

    def write(self, piece: bytes) -> None:
        self._digest.update(piece)
        with _storage_errors("write", self._path):
            self._file.write(piece)

    def finish(self, digest: bytes) -> Snapshot:
        """Make the complete file durable and return its snapshot.

        Raises CorruptionError if the digest or content is wrong, UnknownFormatError, StorageError.
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
        """Remove the temporary file, unless ``finish`` has stored the snapshot."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)


class SnapshotStore:
    """Snapshot files of one service and partition. Only the holder of the ServiceLock uses them."""

    def __init__(self, data: Path, identity: Identity, *, kept: int, max_bytes: int) -> None:
        self.folder = data / identity.service / f"{identity.stream}-{identity.uid}" / str(identity.partition)
        self.identity = identity
        self._kept = kept
        self._max_bytes = max_bytes
        with _storage_errors("open", self.folder):
            _make_folder(self.folder, data)
        for path in (*self.folder.glob(f"*{_TEMPORARY}"), *self.folder.glob(f"*{_INCOMING}")):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)  # of a process that was killed
        self._deleting = threading.Lock()
        self.pinned = 0
        """Position of a snapshot that stays although there are newer ones. 0: there is none."""

    def positions(self) -> list[int]:
        """Return the positions of the stored snapshots, ascending."""
        names = (path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}"))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def newest(self, wanted: Callable[[Snapshot], bool] = lambda _: True) -> Snapshot | None:
        """Return the newest valid snapshot for which ``wanted`` is true. None: there is none."""
        newest = self.newest_stored(wanted)
        return None if newest is None else newest[0]

    def newest_stored(self, wanted: Callable[[Snapshot], bool]) -> tuple[Snapshot, StoredSnapshot] | None:
        """Return the newest valid snapshot for which ``wanted`` is true, and the facts about its file. None: there is none.

        Raises UnknownFormatError if a newer version wrote it.
        """
        for path in reversed(self._files()):
            with _storage_errors("read", path):
                data = path.read_bytes()
            try:
                snapshot = decode(data, self.identity)
            except CorruptionError as error:
                if path.suffix == _SUFFIX:
                    logger.warning("snapshot damaged file=%s error=%s: quarantined", path, error)
                    with _storage_errors("quarantine", path):
                        path.rename(path.with_suffix(_DAMAGED))
                continue
            if not wanted(snapshot):
                continue
            if path.suffix == _DAMAGED:
                logger.warning("quarantined snapshot is readable file=%s: using it again", path)
                with _storage_errors("rename", path):
                    path.rename(path.with_suffix(_SUFFIX))
                    _flush_names(self.folder)
            return snapshot, _stored_snapshot_of(snapshot, data)
        return None

    def _files(self) -> list[Path]:
        """Return the snapshot files in ascending order of their positions.

        A file that was quarantined as damaged is included only if there is no other file for its position.
        """
        paths: dict[int, Path] = {}
        for suffix in (_DAMAGED, _SUFFIX):
            for path in self.folder.glob(f"*{suffix}"):
                if path.stem.isascii() and path.stem.isdigit():
                    paths[int(path.stem)] = path
        return [paths[position] for position in sorted(paths)]

    def retained(self) -> int:
        """Return the position of the snapshot that ``retain`` has named last, if its file exists. 0: there is none."""
        stored = self.positions()
        named = [int(path.stem) for path in self.folder.glob(f"*{_RETAINED}") if path.stem.isascii() and path.stem.isdigit()]
        return max((position for position in named if position in stored), default=0)

    def replay_points(self) -> list[ReplayPoint]:
        """Return the snapshots from which the service can replay the log, ascending. Damaged files are left out."""
        points = []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            with contextlib.suppress(OSError, CorruptionError), path.open("rb") as file:
                points.append(replay_point(partial(_read_at, file.fileno())))
        return points

    def stored_at(self, position: int) -> StoredSnapshot | None:
        """Return the facts about the snapshot at ``position``. None: it is damaged. Raises StorageError."""
        path = self._path(position)
        with _storage_errors("read", path):
            data = path.read_bytes()
        try:
            return _stored_snapshot_of(decode(data, self.identity), data)
        except (CorruptionError, UnknownFormatError):
            return None

    def retain(self, position: int) -> bool:
        """Keep the snapshot at ``position`` until a later one is retained, also in later processes.

        The log may then be deleted up to this position. Return False if there is no such snapshot. Raises StorageError.
        """
        mark = self._path(position).with_suffix(_RETAINED)
        with self._deleting, _storage_errors("write", mark):
            if position not in self.positions():
                return False
            earlier = [path for path in self.folder.glob(f"*{_RETAINED}") if path != mark]
            mark.touch(mode=0o640)
            _flush_names(self.folder)
            for path in earlier:
                path.unlink(missing_ok=True)
        return True

    def save(self, snapshot: Snapshot, compared_end: int) -> StoredSnapshot:
        """Store a snapshot durably and read it back, then delete old ones.

        The newest few snapshots stay. The newest one at or below ``compared_end`` outputs also stays. A LEADER replays from it if
        outputs must be produced again. The retained one stays, because the log may begin at it. If there is neither, the oldest
        one stays: a new process has not compared its outputs yet.

        Returns:
            The file of the snapshot. Its digest is the same on all nodes.

        Raises:
            StorageError: The disk failed, the snapshot is too large, or it can't be read back. Older snapshots are unchanged.
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
            with self._deleting:
                if path.with_suffix(_RETAINED).exists() and path.exists() and path.read_bytes() != data:
                    self._release(path)
            self._replace(path, data, snapshot)
            with self._deleting:
                self._drop_old(snapshot, compared_end)
        return _stored_snapshot_of(snapshot, data)

    # ---- snapshots of other nodes' services ----------------------------------------------------------------------------
    def open(self, stored: StoredSnapshot) -> OpenSnapshot:
        """Return the open file of a snapshot. It stays readable if the store deletes the file later."""
        return OpenSnapshot(self._path(stored.position), stored.size_bytes)

    def receive_snapshot(self, position: int) -> SnapshotDownload:
        """Return an object that receives another node's snapshot at ``position``. Delete the rest of an earlier attempt."""
        for path in self.folder.glob(f"*{_INCOMING}"):
            with _storage_errors("remove", path):
                path.unlink(missing_ok=True)
        return SnapshotDownload(self._path(position), self.identity)

    def _replace(self, path: Path, data: bytes, snapshot: Snapshot) -> None:
        temporary = path.with_suffix(_TEMPORARY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(temporary, flags, 0o640), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                if decode(temporary.read_bytes(), self.identity) != snapshot:
                    raise CorruptionError("The snapshot file differs from what was written. Check the disk.")
            except (CorruptionError, UnknownFormatError) as error:
                raise StorageError(
                    f"The snapshot at offset {snapshot.position} is damaged after the write, so it is not stored: "
                    f"{error}. Check the disk."
                ) from None
            temporary.rename(path)
        except (OSError, StorageError):
            with contextlib.suppress(OSError):  # a full disk gets the space back
                temporary.unlink(missing_ok=True)
            raise
        _flush_names(self.folder)

    def _drop_old(self, stored: Snapshot, compared_end: int) -> None:
        old = self.positions()[: -self._kept]
        if not old:
            return
        needed = stored if stored.output_count <= compared_end else self.newest(lambda s: s.output_count <= compared_end)
        retained = self.retained()
        kept = {self.pinned, retained, needed.position if needed is not None else retained or old[0]}
        for position in old:
            if position not in kept:
                self._path(position).unlink(missing_ok=True)  # the file may have been quarantined a moment ago

    def drop_above(self, position: int) -> None:
        """Delete the snapshots above ``position``, because an unclean election has truncated the log."""
        for path in self._files():
            if int(path.stem) > position:
                logger.warning("snapshot above the log end file=%s end_offset=%d: deleted", path.name, position)
                with self._deleting, _storage_errors("remove", path):
                    self._release(path)
                    path.unlink(missing_ok=True)

    def drop(self, outdated: Callable[[Snapshot], bool]) -> None:
        """Delete the snapshots for which ``outdated`` is true, because they contain a record that the log decides to skip."""
        for path in self._files():
            with _storage_errors("remove", path), contextlib.suppress(CorruptionError, UnknownFormatError):
                if outdated(decode(path.read_bytes(), self.identity)):
                    logger.warning("snapshot contains a skipped record file=%s: deleted", path.name)
                    with self._deleting:
                        self._release(path)
                        path.unlink(missing_ok=True)

    def set_aside(self, diverged: Callable[[Snapshot], bool]) -> None:
        """Quarantine snapshots for which ``diverged`` is true: rename them with the suffix ``.diverged``. They are not used again."""
        for path in self._files():
            with _storage_errors("quarantine", path), contextlib.suppress(CorruptionError, UnknownFormatError):
                if diverged(decode(path.read_bytes(), self.identity)):
                    logger.error("snapshot diverged file=%s: quarantined", path)
                    with self._deleting:
                        self._release(path)
                        path.rename(path.with_suffix(".diverged"))
                    _flush_names(self.folder)

    def _release(self, path: Path) -> None:
        """Stop retaining a snapshot before its file goes or changes: a later one at its position may have other outputs."""
        path.with_suffix(_RETAINED).unlink(missing_ok=True)

    def _path(self, position: int) -> Path:
        return self.folder / f"{position:020d}{_SUFFIX}"


def _make_folder(folder: Path, data: Path) -> None:
    """Create the directory ``folder`` with its parents, writable only by this user. Make all names below ``data`` durable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True, mode=0o750)
    within = [path for path in (folder, *folder.parents) if path.is_relative_to(data)]
    for directory in dict.fromkeys((*within, *missing)):
        _flush_names(directory.parent)


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


class SnapshotKeeper:
    """Decides when a service takes a snapshot, and stores it. Files are read and written in threads.

    All nodes take a snapshot at every multiple of ``snapshot_interval_records``, so that its bytes can be compared. They take
    it one after the other, because ``take_snapshot`` may block for long. The leader's node is the first. A single node also
    stores one by age or size, at its stop, at the request of an operator, and before a record that the machine cannot apply.
    """

    def __init__(
        self, store: SnapshotStore, settings: ServiceSettings, outbox: Outbox | None, fetcher: SnapshotFetcher | None = None
    ) -> None:
        self._store = store
        self.identity = store.identity
        self._settings = settings
        self.outbox = outbox
        self._fetcher = fetcher
        self._stored: list[StoredSnapshot] = []
        """Newest snapshots, ascending."""
        self._retained = 0
        """Position from which the log is retained: that of a snapshot that the store keeps. 0: there is none."""
        self._is_retaining = False
        self._stored_s = time.monotonic()
        self._fresh_bytes = 0
        """Number of bytes of the log since the newest snapshot."""
        self._soon = False
        self._blocked_s = 0.0
        """Time for which the last snapshot blocked the service, in seconds."""
        self.replay_points: list[ReplayPoint] = []
        """Stored snapshots from which the service can replay the log, ascending."""
        self.given_bytes = 0
        """Number of bytes sent to other nodes."""
        self.is_comparable: Callable[[int], bool] = lambda position: True
        """Returns whether the snapshot at a position depends on the log below it alone, so that nodes may compare it."""
        self.turn = 0
        """Place of this node in the order of turns, from the sidecar. 0: the first."""
        self.life = secrets.randbits(62)
        """Number that changes with each restore of the state."""
        self._began: StoredSnapshot | None = None
        """Snapshot from which the state started, until the log has confirmed it. None: there is none."""
        self._newest_digests: list[tuple[int, bytes]] = []
        """(position, digest) of the last snapshots of this process, and of the snapshot from which it started."""
        self.stored_count = 0
        self.saved_s: float | None = None
        """Monotonic time in seconds at which the newest snapshot was stored."""
        self.state_bytes = 0
        """Size of the newest snapshot, in bytes."""
        self.problem = ""
        """Reason why the last snapshot was not stored, for the status. '': it was stored."""

    async def newest(self, wanted: Callable[[Snapshot], bool]) -> Snapshot | None:
        """Return the newest stored snapshot for which ``wanted`` is true. The service starts with it. None: there is none."""
        newest = await asyncio.to_thread(self._store.newest_stored, wanted)
        self._began = newest[1] if newest is not None else None
        self._stored = [newest[1]] if newest is not None else []
        self._retained = await asyncio.to_thread(self._store.retained) if self.outbox is not None else 0
        if newest is not None and 0 < self._retained < newest[1].position:
            retained = await asyncio.to_thread(self._store.stored_at, self._retained)
            self._stored = [retained, *self._stored] if retained is not None else self._stored
        await self._note_files()
        self._stored_s, self._fresh_bytes = time.monotonic(), 0
        self.life, self._newest_digests = self.life + 1, []
        return newest[0] if newest is not None else None

    async def _note_files(self) -> None:
        """Note which snapshots the store has, after they may have changed."""
        self._retained = min(self._retained, await asyncio.to_thread(self._store.retained))
        self.replay_points = await asyncio.to_thread(self._store.replay_points)

    async def newest_position(self, highest: int) -> int:
        """Return the position of the newest valid snapshot at or below the offset ``highest``. 0: there is none."""
        newest = await asyncio.to_thread(self._store.newest, lambda snapshot: snapshot.position <= highest)
        return newest.position if newest is not None else 0

    def confirm_first_state(self) -> None:
        """Allow other nodes to download the snapshot from which the service started, because its state belongs to this log."""
        if self._began is not None:
            if self.is_comparable(self._began.position):
                self._newest_digests = [(self._began.position, self._began.digest), *self._newest_digests]
            self._began = None

    async def later(
        self,
        lowest: int,
        wanted: Callable[[Snapshot], bool],
        needed: Callable[[], bool],
        is_usable: Callable[[Snapshot], bool] = lambda snapshot: True,
    ) -> tuple[Snapshot | None, str]:
        """Search on other nodes for a snapshot at the offset ``lowest`` or above, for which ``wanted`` is true. Download it.

        ``needed``: returns False when the search must end, because no snapshot is needed any more. ``is_usable``: returns whether
        a downloaded snapshot is suitable. If it is not, the search goes on with the next one. Return (snapshot, text about failed
        attempts). The snapshot is None if there is none.
        """
        if self._fetcher is None:
            return None, "nobody was asked"
        give_up_s = time.monotonic() + self._settings.snapshot_fetch_timeout_s

        def may_end(snapshot: Snapshot) -> bool:
            return snapshot.position >= lowest and wanted(snapshot) and is_usable(snapshot)

        while await self._fetcher.fetch(lowest, wanted, needed):
            snapshot = await self.newest(may_end)
            if snapshot is not None or time.monotonic() >= give_up_s:
                return snapshot, "no snapshot is usable"
        return await self.newest(wanted), self._fetcher.tried

    def pin(self, position: int) -> None:
        """Keep the snapshot at ``position`` although there are newer ones. 0: none.

        The service replays from it, because the newer ones contain a record that the log decides to skip.
        """
        self._store.pinned = position

    async def drop(self, outdated: Callable[[Snapshot], bool]) -> None:
        """Delete the snapshots for which ``outdated`` is true."""
        await asyncio.to_thread(self._store.drop, outdated)
        kept = await asyncio.to_thread(self._store.positions)
        self._stored = [snapshot for snapshot in self._stored if snapshot.position in kept]
        await self._note_files()

    async def drop_above(self, position: int) -> None:
        await asyncio.to_thread(self._store.drop_above, position)
        await self._note_files()

    async def set_aside(self, first_wrong: int) -> None:
        """Quarantine the snapshots at or above the offset ``first_wrong``, because their states have diverged."""
        await asyncio.to_thread(self._store.set_aside, lambda snapshot: snapshot.position >= first_wrong)
        await self._note_files()

    def quarantine_diverged(self, position: int | None = None) -> None:
        """Quarantine the snapshots that may be wrong after the state has diverged.

        These are the snapshots at or above ``position``, and those whose outputs were not compared with the output stream.
        """
        outbox = self.outbox
        if position is not None:
            self._store.set_aside(lambda snapshot: snapshot.position >= position)
        if outbox is not None:
            self._store.set_aside(lambda snapshot: snapshot.output_count > outbox.compared_end)

    async def save(self, snapshot: Snapshot) -> None:
        """Store a snapshot on disk. An error is only logged, because a missing snapshot only makes the next replay longer."""
        compared_end = self.outbox.compared_end if self.outbox is not None else 0
        try:
            whole = await asyncio.to_thread(snapshot.whole)
            stored_snapshot = await asyncio.to_thread(self._store.save, whole, compared_end)
        except StorageError as error:
            logger.warning(
                "snapshot not stored service=%s position=%d error=%s: continuing without it",
                snapshot.identity,
                snapshot.position,
                error,
            )
            self.problem = f"snapshot at {snapshot.position}: {error.code}: {error}"
        else:
            kept = await asyncio.to_thread(self._store.positions)  # the log may go up to a snapshot only if its file is there
            self.problem = ""
            stored = [*self._stored[-_MAX_STORED:], stored_snapshot]
            self._stored = [snapshot for snapshot in stored if snapshot.position in kept]
            await self._note_files()
            self._stored_s, self._fresh_bytes = time.monotonic(), 0
            self.stored_count, self.state_bytes, self.saved_s = self.stored_count + 1, len(whole.state), time.monotonic()
            if self.is_comparable(stored_snapshot.position):
                newest = (stored_snapshot.position, stored_snapshot.digest)
                self._newest_digests = [*self._newest_digests[1 - _MAX_DIGESTS :], newest]

    def retain_from(self) -> int:
        """Return the position from which the log must be kept. 0: all of it.

        It is that of the newest snapshot whose outputs were compared, once ``retain`` has made sure that its file stays.
        """
        good = [snapshot.position for snapshot in self._compare()]
        if self.outbox is None:
            return good[-1] if good else 0
        return self._retained if self._retained in good else 0

    @property
    def must_retain(self) -> bool:
        """True if ``retain`` has to be called, because the outputs of a later snapshot were compared."""
        good = self._compare() if self.outbox is not None else []
        return bool(good) and good[-1].position > self._retained

    async def retain(self) -> None:
        """Make sure that the file of the newest snapshot whose outputs were compared stays. Then the log may be deleted up to it."""
        good = self._compare()
        if not good or self._is_retaining:
            return
        self._is_retaining = True
        try:
            if await asyncio.to_thread(self._store.retain, good[-1].position):
                self._retained = good[-1].position
        except StorageError as error:
            self.problem = f"snapshot at {good[-1].position}: {error.code}: {error}"
        finally:
            self._is_retaining = False

    def _compare(self) -> list[StoredSnapshot]:
        """Return the snapshots whose outputs were compared, by this process or by an earlier one."""
        outbox = self.outbox
        return [
            one
            for one in self._stored
            if outbox is None
            or one.output_count <= outbox.compared_end
            or (one.position == self._retained and (not outbox.known or one.output_count <= outbox.emitted_end))
        ]

    @property
    def digests(self) -> list[tuple[int, bytes]]:
        """Return (position, digest) of the snapshots that nodes may compare, ascending.

        These are the newest ones and the offered ones. Nodes compare them to find a service that has diverged. A node downloads
        an offered snapshot only if most nodes have reported its digest, so every offered one has to be among them.
        """
        offered = [] if self._began is not None else self.offers()
        comparable = {snapshot.position: snapshot.digest for snapshot in offered if self.is_comparable(snapshot.position)}
        return sorted((comparable | dict(self._newest_digests)).items())

    def offers(self) -> list[StoredSnapshot]:
        """Return the newest snapshots that other nodes may download. Their outputs were compared, and they belong to this log."""
        return [snapshot for snapshot in self._compare() if snapshot != self._began][-self._settings.snapshots_kept :]

    # ---- turns of the nodes --------------------------------------------------------------------------------------------------
    def note_blocked_time(self, took_s: float) -> None:
        """Record for how long the last snapshot blocked the service, in seconds. The next waits between nodes depend on it."""
        self._blocked_s = took_s

    def turn_s(self) -> float:
        """Return how long this node waits before it takes a snapshot, in seconds. 0: it does not wait.

        The nodes take turns, so that they are not all blocked at the same time.
        """
        return min(self.turn * self._blocked_s * _TURN, _LONGEST_TURN_S) if self._blocked_s >= _NOTICED_S else 0.0

    # ---- snapshots between the multiples of snapshot_interval_records----------------------------------------------------------
    def came(self, size_bytes: int) -> None:
        """Add ``size_bytes`` to the size of the log that was read since the last snapshot."""
        self._fresh_bytes += size_bytes

    def ask(self) -> None:
        """Request that the service takes a snapshot soon, at its current position."""
        self._soon = True

    @property
    def is_due(self) -> bool:
        """True if the service should take a snapshot now, because of its age, the size of the log since, or a request."""
        settings = self._settings
        late = time.monotonic() - self._stored_s >= settings.snapshot_interval_s
        return self._soon or late or self._fresh_bytes >= settings.snapshot_bytes

    async def keep(self, machine: ServiceMachine) -> None:
        """Take a snapshot of the machine's current state and store it, unless there is one for this position."""
        self._soon, self._stored_s, self._fresh_bytes = False, time.monotonic(), 0
        if machine.position and not machine.failed and (not self._stored or self._stored[-1].position < machine.position):
            await self.save(machine.snapshot())


class SnapshotServer:
    """Sends the snapshots of one service process to other nodes that request them, in pieces.

    A snapshot that was offered stays readable for ``_OPEN_SNAPSHOT_S``, even if the store deletes its file.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        settings: ServiceSettings,
        identity: Identity,
        store: SnapshotStore,
        keeper: SnapshotKeeper,
    ) -> None:
        self._transport = transport
        self._subject = subjects.service_snapshot(identity.service, settings.node)
        self._settings = settings
        self._identity = identity
        self._store = store
        self._keeper = keeper
        self._inboxes = InboxRule(settings.reply_prefixes)
        self.counters: Counter[str] = Counter()
        """Reason -> number of requests without an answer."""
        self._guard = RequestGuard("snapshot", self.counters, self._reject)
        self._open_snapshots: dict[bytes, OpenSnapshot] = {}
        """Digest -> open snapshot, the most recently used one at the end."""

    async def run(self) -> None:
        subscription = await self._transport.connection.subscribe(
            self._subject, cb=self._guard.callback(self._message_arrived), pending_msgs_limit=_MAX_WAITING
        )
        try:
            while True:
                await asyncio.sleep(_CHECK_INTERVAL_S)
                now_s = time.monotonic()
                opened = list(self._open_snapshots.items())  # a thread may add a snapshot during the loop
                self._release([digest for digest, snapshot in opened if now_s - snapshot.used_s >= _OPEN_SNAPSHOT_S])
        finally:
            await unsubscribe(subscription)
            self._release(list(self._open_snapshots))

    async def _message_arrived(self, message: Any) -> None:
        if reply_to(message.reply, (self._inboxes,), self.counters) is None:
            return
        try:
            question = frames.decode(message.data, pb.PeerSnapshotRequest)
        except ProtocolError as error:
            logger.debug("invalid snapshot request error=%s: ignored", error)
            return
        who = self._identity
        requested_partition = (question.service, question.stream, question.partition)
        if requested_partition != (who.service, who.stream, who.partition):
            return  # the request may be for another process of this node
        answer = pb.PeerSnapshotAnswer(node=self._settings.node)
        try:
            if question.streamUid != who.uid:
                answer.problem = f"the stream is {who.uid} here, not {question.streamUid}"
            elif question.digest:
                answer.data = await asyncio.to_thread(self._read_piece, question)
            else:
                await asyncio.to_thread(self._offer, answer)
        except LiftError as error:
            answer.problem = f"{error.code}: {error}"
        with contextlib.suppress(LiftError):  # the requester retries
            await self._publish(message.reply, answer)
            self._keeper.given_bytes += len(answer.data)

    async def _publish(self, reply: str | bytes, answer: pb.PeerSnapshotAnswer) -> None:
        await publish_answer(self._transport.publish, (self._inboxes,), self.counters, reply, frames.seal(answer))

    async def _reject(self, reply: bytes, error: Exception) -> None:
        problem = f"the service failed at this question: {type(error).__name__}"
        with contextlib.suppress(LiftError):
            await self._publish(reply, pb.PeerSnapshotAnswer(node=self._settings.node, problem=problem))

    def _offer(self, answer: pb.PeerSnapshotAnswer) -> None:
        for snapshot in self._keeper.offers():
            if self._open_for_download(snapshot) is not None:
                answer.offers.add(
                    position=snapshot.position,
                    digest=snapshot.digest,
                    sizeBytes=snapshot.size_bytes,
                    outputCount=snapshot.output_count,
                )

    def _read_piece(self, question: pb.PeerSnapshotRequest) -> bytes:
        open_snapshot = self._open_snapshots.get(question.digest)
        if open_snapshot is None:
            offers = [offer for offer in self._keeper.offers() if offer.digest == question.digest]
            open_snapshot = self._open_for_download(offers[0]) if offers else None
        if open_snapshot is None:
            raise UnavailableError(f"The snapshot at offset {question.position} no longer exists. Request a newer one.")
        room = min(question.maxBytes, self._settings.snapshot_chunk_bytes, self._transport.max_payload_bytes // 2)
        if not question.start < open_snapshot.size_bytes:
            raise UnavailableError(
                f"The snapshot at offset {question.position} has {open_snapshot.size_bytes} bytes, the request is outside "
                "of it. Start the download again."
            )
        open_snapshot.used_s = time.monotonic()
        return open_snapshot.read(question.start, room)

    def _open_for_download(self, snapshot: StoredSnapshot) -> OpenSnapshot | None:
        """Open the offered snapshot ``snapshot``, so that it stays readable during a download. None: its file no longer exists.

        Above ``_MAX_OPEN_SNAPSHOTS`` open snapshots, close the least recently used one.
        """
        open_snapshot = self._open_snapshots.pop(snapshot.digest, None)
        if open_snapshot is None:
            try:
                open_snapshot = self._store.open(snapshot)
            except LiftError:
                return None
        open_snapshot.used_s = time.monotonic()
        self._open_snapshots[snapshot.digest] = open_snapshot
        self._release(list(self._open_snapshots)[:-_MAX_OPEN_SNAPSHOTS])
        return open_snapshot

    def _release(self, digests: list[bytes]) -> None:
        for digest in digests:
            self._open_snapshots.pop(digest, None)


class SnapshotFetcher:
    """Downloads snapshots from other nodes for one service process. ``SnapshotSearch`` chooses them.

    ``order``: returns the newest order of the sidecar. It returns None while no order is valid, for example because the node holds
    no replica at the moment. A search waits for a valid order, because only orders say which snapshots are right.
    """

    def __init__(
        self,
        client: Client,
        transport: Transport,
        subjects: Subjects,
        settings: ServiceSettings,
        identity: Identity,
        store: SnapshotStore,
        order: Callable[[], pb.JoinLog | None],
    ) -> None:
        self._client = client
        self._transport = transport
        self._subjects = subjects
        self._settings = settings
        self._identity = identity
        self._store = store
        self._order = order
        self._search = SnapshotSearch()
        self._took_s: dict[bytes, float] = {}
        """Digest of a downloaded snapshot -> monotonic time of the download in seconds."""
        self.problem = ""
        """Problem of the current download, as text. '': none."""
        self.fetched_bytes = 0
        self.tried = ""
        """Text about the attempts of the last ``fetch`` without a result."""

    async def fetch(self, lowest: int, wanted: Callable[[Snapshot], bool], needed: Callable[[], bool] = lambda: True) -> bool:
        """Search the other nodes for a snapshot at the offset ``lowest`` or above, and store the first valid one.

        ``wanted``: returns whether a snapshot is suitable. ``needed``: returns False when the search must end without one. Return
        whether one was found within ``snapshot_fetch_timeout_s``. The time begins when there is a valid order, and the log of this
        node has caught up with the snapshots of the others.
        """
        give_up_s, pause_s = time.monotonic() + self._settings.snapshot_fetch_timeout_s, _FIRST_PAUSE_S
        logger.warning(
            "no usable local snapshot service=%s lowest_position=%d: searching on other nodes", self._identity, lowest
        )
        now_s = time.monotonic()
        self._took_s = {digest: took_s for digest, took_s in self._took_s.items() if now_s - took_s < _BARRED_S}
        self._search = SnapshotSearch(frozenset(self._took_s))
        try:
            while True:
                self.problem = f"looks for a snapshot beside another node, from {lowest} on"
                await self._ask_all()
                while (offer := self._next(lowest, wanted)) is not None:
                    if await self._download(offer):
                        return True
                now_s = time.monotonic()
                if self._order() is None or self._search.is_behind(self._reach(lowest)):
                    give_up_s = now_s + self._settings.snapshot_fetch_timeout_s
                if now_s >= give_up_s or not needed():
                    self.tried = self._search.explain(self._reach(lowest))
                    return False
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        finally:
            self.problem = ""

    def _next(self, lowest: int, wanted: Callable[[Snapshot], bool]) -> SnapshotOffer | None:
        order = self._order()
        if order is not None:
            self._search.set_agreed({agreement.position: (agreement.digest, agreement.nodes) for agreement in order.agreed})
        while (offer := self._search.best(self._reach(lowest))) is not None:
            if wanted(Snapshot(self._identity, offer.position, 0, 0, offer.output_count, (), b"")):
                return offer
            self._search.note_failure(offer, "is not of use")
        return None

    def _reach(self, lowest: int) -> SnapshotRange:
        order = self._order()
        if order is None:
            return SnapshotRange(lowest, lowest - 1, 0)
        return SnapshotRange(max(lowest, order.startOffset), order.highWatermark + 1, self._settings.max_snapshot_bytes)

    # ---- offers of other nodes----------------------------------------------------------------------------------------------
    async def _ask_all(self) -> None:
        who = self._identity
        try:
            stream = await self._client.stream(who.stream)
        except LiftError as error:
            self._search.note_answer(who.stream, f"{error.code}: {error}")
            return
        if stream.uid != who.uid or who.partition >= len(stream.partitions):
            return
        nodes = [node for node in stream.partitions[who.partition].replicas if node != self._settings.node]
        await asyncio.gather(*map(self._ask, nodes[:_MAX_PEERS]))

    async def _ask(self, node: str) -> None:
        try:
            answer = await self._request(node, self._question())
        except LiftError as error:
            self._search.note_answer(node, f"{error.code}: {error}")
            return
        offers = (SnapshotOffer(node, one.position, one.digest, one.sizeBytes, one.outputCount) for one in answer.offers)
        self._search.set_offers(node, offers)

    def _question(self, **more: object) -> pb.PeerSnapshotRequest:
        who = self._identity
        return pb.PeerSnapshotRequest(
            service=who.service,
            stream=who.stream,
            partition=who.partition,
            streamUid=who.uid,
            **more,  # type: ignore[arg-type]
        )

    async def _request(self, node: str, question: pb.PeerSnapshotRequest) -> pb.PeerSnapshotAnswer:
        subject = self._subjects.service_snapshot(self._identity.service, node)
        answer = frames.decode(await self._transport.request(subject, frames.seal(question), _ANSWER_S), pb.PeerSnapshotAnswer)
        if answer.problem:
            raise UnavailableError(answer.problem)
        return answer

    # ---- download ----------------------------------------------------------------------------------------------------------
    async def _download(self, offer: SnapshotOffer) -> bool:
        try:
            incoming = await asyncio.to_thread(self._store.receive_snapshot, offer.position)
            try:
                began_s, size_bytes = time.monotonic(), 0
                while size_bytes < offer.size_bytes:
                    self.problem = (
                        f"fetches the snapshot at {offer.position} from {offer.node}: {size_bytes} of {offer.size_bytes} bytes"
                    )
                    piece = await self._piece(offer, size_bytes)
                    await asyncio.to_thread(incoming.write, piece)
                    size_bytes += len(piece)
                    self.fetched_bytes += len(piece)
                    took_s = time.monotonic() - began_s
                    if took_s > _RATE_CHECK_AFTER_S and size_bytes < took_s * _SLOWEST_BYTES_PER_S:
                        raise UnavailableError(
                            f"The snapshot download is too slow: {size_bytes} bytes in {took_s:.0f} s. The service tries another "
                            "node."
                        )
                await asyncio.to_thread(incoming.finish, offer.digest)
            finally:
                await asyncio.to_thread(incoming.close)
        except LiftError as error:
            logger.warning(
                "snapshot download failed service=%s position=%d node=%s error=%s",
                self._identity,
                offer.position,
                offer.node,
                error,
            )
            self._search.note_failure(offer, f"{error.code}: {error}", lies=isinstance(error, CorruptionError))
            return False
        logger.warning("snapshot downloaded service=%s position=%d node=%s", self._identity, offer.position, offer.node)
        self._took_s[offer.digest] = time.monotonic()
        return True

    async def _piece(self, offer: SnapshotOffer, start: int) -> bytes:
        room = min(self._settings.snapshot_chunk_bytes, self._transport.max_payload_bytes // 2)
        question = self._question(position=offer.position, digest=offer.digest, start=start, maxBytes=room)
        for tries_left in reversed(range(_TRIES)):
            try:
                data = (await self._request(offer.node, question)).data
                break
            except (UnavailableError, OutcomeUnknownError):
                if not tries_left:
                    raise
        if not 0 < len(data) <= min(room, offer.size_bytes - start):
            raise ProtocolError(
                f"The node sent {len(data)} bytes of the snapshot, but at most {min(room, offer.size_bytes - start)} "
                "were requested. The service tries another node."
            )
        return data
