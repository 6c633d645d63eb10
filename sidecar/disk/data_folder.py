"""The data directory of a node: its lock, its identity with the clean-stop marker, and the paths of its partitions.

| path below the data directory | content |
|---|---|
| ``lock`` | lock: one process per directory [S10] |
| ``node`` | node id, incarnation, clean-stop marker, starts. Has a checksum, is replaced atomically |
| ``log-ends`` | log end offset of each log at the clean stop of one process |
| ``promises/`` | the journal of LeaderEpochs that candidates on this node have promised |
| ``flush-probe.tmp`` | exists while the start measures the duration of a flush |
| ``space-probe.tmp`` | exists while a node that a full disk has stopped checks whether there is space again |
| ``raft/`` | files of the metadata group |
| ``workers/<number>/`` | files of worker processes, and their promises until the next start |
| ``streams/<stream>-<uid>/<partition>/`` | log of one partition |
| ``held/<stream>-<uid>.<partition>`` | mark that the node has created this log. If the log is missing, it was lost |
| ``unreported-damage`` | mark that recovery has quarantined or truncated damage, and the metadata group does not know it yet |
| ``lazy-flush`` | mark that a log acks records before they are flushed, and that no flush of all logs at a stop followed |
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from pathlib import Path

from liftpy.core.base.ids import PartitionKey, check_name, split_folder
from liftpy.core.base.strict_json import whole_number
from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.log.epoch_promises import PROMISES_NAME, PromiseJournal, decode_promises
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.errors import (
    CorruptionError,
    DataDirectoryLockedError,
    InvalidNameError,
    NoSpaceError,
    StorageError,
    UnknownFormatError,
    UnusableDataDirectoryError,
)
from sidecar.disk.files import (
    DirectoryCreator,
    DirectoryStorage,
    OpenMaps,
    decode_checked_json,
    encode_checked_json,
    make_folder,
    replace_file,
    storage_errors,
    sync_folder,
)

logger = logging.getLogger("liftpy.node")

UNREPORTED_DAMAGE, LAZY_FLUSH = "unreported-damage", "lazy-flush"
LOG_ENDS_NAME = "log-ends"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FORMAT = 1
_LOG_ENDS_FORMAT = 1
_STARTS = tuple(field.name for field in fields_of(DirectoryIdentity))
_ORPHANS_S = 5.0
"""Time in seconds to wait for the lock of workers whose node was killed. They end soon."""
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Content of the ``node`` file.

    ``incarnation``: number of the last registration. ``clean_incarnation``: number of the last registration whose process
    stopped cleanly. 0: none [S9].
    """

    node_id: str
    incarnation: int = 0
    clean_incarnation: int = 0
    starts: DirectoryIdentity = field(default_factory=lambda: DirectoryIdentity(""))
    """Id of the directory, and number of processes that have started in it."""

    @property
    def stopped_cleanly(self) -> bool:
        return self.incarnation > 0 and self.clean_incarnation == self.incarnation


def _identity_in(data: bytes) -> tuple[object, NodeIdentity | None]:
    """Return (format version, identity) from the bytes of a ``node`` file. The identity is None for another format version.

    Raises ValueError, TypeError, KeyError or InvalidNameError if the bytes are damaged.
    """
    fields = decode_checked_json(data)
    version = fields.pop("format")
    if version != _FORMAT:
        return version, None  # another version may have other fields
    known = {name: fields.pop(name) for name in _STARTS}
    starts = DirectoryIdentity(**{**known, "earlier": tuple(known["earlier"])})
    identity = NodeIdentity(**fields, starts=starts)
    _check(identity)
    return version, identity


def _decode_log_ends(data: bytes, nonce: int) -> dict[str, int]:
    """Return the content of a ``log-ends`` file: name of each log -> its log end offset. {}: the file is of another process.

    ``nonce``: nonce of the process that stopped cleanly. Raises ValueError, TypeError, KeyError or AttributeError if the bytes are
    damaged.
    """
    fields = decode_checked_json(data)
    if fields["format"] != _LOG_ENDS_FORMAT or fields["nonce"] != nonce:
        return {}
    return {str(name): whole_number(end, 0, (1 << 63) - 1) for name, end in fields["ends"].items()}


def _check(identity: NodeIdentity) -> None:
    starts = identity.starts
    if not isinstance(starts.folder_id, str):
        raise TypeError("folder_id is not text")
    check_name(identity.node_id, "node")
    for number in (
        identity.incarnation,
        identity.clean_incarnation,
        starts.starts,
        starts.nonce,
        starts.registered,
        *starts.earlier,
    ):
        whole_number(number, 0, (1 << 64) - 1)


class DataDirectory:
    """The locked data directory of a node.

    ``maps``: memory maps of all logs. None: a set of its own. ``lock``: file descriptor of an inherited lock. None: the
    constructor takes the lock, and raises DataDirectoryLockedError if another process has it.
    """

    def __init__(self, path: Path, maps: OpenMaps | None = None, lock: int | None = None) -> None:
        self.path = path
        self.maps = maps if maps is not None else OpenMaps()
        self._folders = DirectoryCreator()
        self._marks: set[str] = set()
        """Marks that this process has stored."""
        if lock is not None:
            self.lock = lock
            return
        make_folder(path)
        self.check_owner()
        with storage_errors("use data directory", path):
            for folder in (path, path / "streams"):  # an earlier process may not have flushed the names in them
                if folder.exists():
                    sync_folder(folder)
            try:
                self.lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                    raise UnusableDataDirectoryError(
                        f"{path / 'lock'} is a link, or not a file. Remove it, then start the node again."
                    ) from None
                raise
            if not stat.S_ISREG(os.fstat(self.lock).st_mode):
                os.close(self.lock)
                raise UnusableDataDirectoryError(f"{path / 'lock'} is not a file. Remove it, then start the node again.")
        self._lock()
        self._sign_lock()

    def _sign_lock(self) -> None:
        """Write the id of this process into the lock file, in place, so that a full disk does not prevent a start."""
        signed = f"{os.getpid()}\n".encode()
        try:
            with storage_errors("write", self.path / "lock"):
                if os.pwrite(self.lock, signed, 0) != len(signed):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(self.lock, len(signed))
        except StorageError:
            os.close(self.lock)  # otherwise the next start in this process would find the directory locked
            raise

    def _lock(self) -> None:
        deadline = time.monotonic() + _ORPHANS_S
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if self._is_orphaned() and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                    continue
                os.close(self.lock)
                text = f"Data directory {self.path} is in use by another process. Stop it, or choose another one (--data)."
                raise DataDirectoryLockedError(text) from None
            return

    def _is_orphaned(self) -> bool:
        """Return whether the process that took the lock has ended. Only its workers then have the lock, and they end soon."""
        try:
            os.kill(int(os.pread(self.lock, 32, 0)), 0)
        except (ProcessLookupError, ValueError, OverflowError):
            return True
        except OSError:
            pass
        return False

    def check_owner(self) -> None:
        """Check that the directory belongs to the user of this process. Raises UnusableDataDirectoryError if not.

        Another user with write access could replace the data, so this access is removed.
        """
        with storage_errors("use data directory", self.path):
            folder_stat = self.path.stat()
            if folder_stat.st_uid != os.geteuid():
                raise UnusableDataDirectoryError(
                    f"Data directory {self.path} belongs to user {folder_stat.st_uid}, but this process runs as user "
                    f"{os.geteuid()}. Run it as the owner, or change the owner (chown)."
                )
            if folder_stat.st_mode & _WRITABLE_BY_OTHERS:
                self.path.chmod(stat.S_IMODE(folder_stat.st_mode) & ~_WRITABLE_BY_OTHERS)
                logger.warning("data directory was writable for other users directory=%s: permissions corrected", self.path)

    @property
    def raft(self) -> Path:
        return self.path / "raft"

    def load_identity(self) -> NodeIdentity | None:
        """Return the content of the ``node`` file. None: the directory is new. Raises CorruptionError if the file is damaged."""
        path = self.path / "node"
        if not path.exists():
            return None
        try:
            version, identity = _identity_in(path.read_bytes())
        except (ValueError, TypeError, KeyError, AttributeError, OSError, InvalidNameError) as error:
            raise CorruptionError(
                f"{path} is damaged ({error}). Delete the data directory {self.path} and start the node under the "
                "same id. It then copies its replicas from other nodes. Records that only this node holds are lost."
            ) from None
        if version != _FORMAT:
            raise UnknownFormatError(
                f"{path} has format version {version}, but this version reads {_FORMAT}. Start the newer version of liftpy."
            )
        return identity

    def store_identity(self, identity: NodeIdentity) -> None:
        """Replace the ``node`` file, atomically and durably."""
        fields = asdict(identity)
        fields |= fields.pop("starts")
        data = encode_checked_json({"format": _FORMAT, **fields})
        if _identity_in(data) != (_FORMAT, identity):
            raise StorageError(
                f"{self.path / 'node'} differs after the write, so the old file remains. Check the disk."
            )  # [S16]
        replace_file(self.path / "node", data)

    def store_log_ends(self, nonce: int, ends: Mapping[str, int]) -> None:
        """Store the log end offset of each log durably, before a clean stop. If the disk is full, store nothing.

        The file belongs to one process. So a process of an earlier version, which does not replace it, makes it void.

        Args:
            nonce: Nonce of this process.
            ends: Name of each log, ``<stream>-<uid>/<partition>`` -> its log end offset (exclusive). All records are flushed.
        """
        with suppress(NoSpaceError):
            replace_file(
                self.path / LOG_ENDS_NAME, encode_checked_json({"format": _LOG_ENDS_FORMAT, "nonce": nonce, "ends": dict(ends)})
            )

    def load_log_ends(self) -> Mapping[str, int]:
        """Return the log end offset (exclusive) of each log at the last stop, by ``<stream>-<uid>/<partition>``.

        {}: the stop was not clean, or the file is missing or damaged, or an earlier version has not written it.
        """
        try:
            identity = self.load_identity()
            if identity is None or not (identity.stopped_cleanly and identity.starts.registered):
                return {}
            return _decode_log_ends((self.path / LOG_ENDS_NAME).read_bytes(), identity.starts.registered)
        except (ValueError, TypeError, KeyError, AttributeError, OSError):
            return {}

    def partition_path(self, key: PartitionKey) -> Path:
        name = f"{check_name(key.stream, 'stream name')}-{check_name(key.uid, 'stream uid')}"
        return self.path / "streams" / name / str(int(key.partition))

    def partition_storage(self, key: PartitionKey) -> DirectoryStorage:
        return self.storage(self.partition_path(key))

    def open_promises(self, is_held: Callable[[str], bool]) -> PromiseJournal:
        """Open the journal of the LeaderEpochs that this node has promised. Merge the journals of earlier workers into it.

        ``is_held``: returns whether the partition of a key is on this node. Raises StorageError, UnknownFormatError.
        """
        left = [self.storage(path) for path in sorted((self.path / "workers").glob("*/promises"))]
        others: dict[str, int] = {}
        for storage in left:
            for key, epoch in decode_promises(storage.load(PROMISES_NAME)).items():
                others[key] = max(epoch, others.get(key, 0))
        journal = PromiseJournal(self.storage(self.path / "promises"), is_held, others)
        if journal.is_written:
            for storage in left:
                storage.remove(PROMISES_NAME)
                storage.sync_folder()
        return journal

    def open_own_promises(self, share: WorkerShare, is_held: Callable[[str], bool]) -> PromiseJournal:
        """Open the journal of promises of a worker process, with the promises for its partitions.

        The node calls ``open_promises`` first. ``share``: partitions of the worker. ``is_held``: returns whether the partition
        of a key is among them. Raises StorageError, UnknownFormatError.
        """
        before = decode_promises(self.storage(self.path / "promises").load(PROMISES_NAME))
        return PromiseJournal(self.storage(self.worker_directory(share.number) / "promises"), is_held, before)

    def worker_directory(self, worker: int) -> Path:
        """Return the directory for the files of the process number ``worker``. It is created if needed.

        Process 0 uses the data directory itself.
        """
        if not worker:
            return self.path
        own = self.path / "workers" / str(worker)
        self._folders.make(own)
        return own

    def storage(self, path: Path) -> DirectoryStorage:
        """Return the storage of the log in ``path``. The directory is created if needed."""
        return DirectoryStorage(path, self.maps, self._folders)

    # ---- marks about lost records ---------------------------------------------------------------------------------------
    def has_mark(self, name: str) -> bool:
        return (self.path / name).exists()

    def set_mark(self, name: str) -> None:
        """Store the mark ``name`` durably: LAZY_FLUSH or UNREPORTED_DAMAGE. Several threads and processes may call it at once."""
        if name not in self._marks:
            _create_mark(self.path / name)
            self._marks.add(name)

    def remove_mark(self, name: str) -> None:
        self._marks.discard(name)
        _remove_mark(self.path / name)

    # ---- marks of existing logs ---------------------------------------------------------------------------------------------
    def list_marked_logs(self) -> frozenset[str]:
        """Return the names of the logs that this node has created and not deleted, as ``<stream>-<uid>/<partition>``.

        Their files may be missing.
        """
        marks_folder = self.path / "held"
        with storage_errors("read", marks_folder):
            names = os.listdir(marks_folder) if marks_folder.exists() else []
        return frozenset("/".join(name.rsplit(".", 1)) for name in names)

    def mark_log(self, name: str) -> None:
        """Store durably that the node has the log ``name`` (``<stream>-<uid>/<partition>``).

        The node may acknowledge a record of the log only after this call [S17].
        """
        log, marks_folder = self.path / "streams" / name, self.path / "held"
        with storage_errors("create", marks_folder):
            marks_folder.mkdir(exist_ok=True, mode=0o750)
            sync_folder(self.path)  # always, because another process of the node may have created it and not flushed it yet
        mark = marks_folder / _mark_of(name)
        with storage_errors("write", mark):
            # first the log, because a mark without a log means that the log was lost
            for folder in (log, log.parent, log.parent.parent):
                sync_folder(folder)
        _create_mark(mark)

    def unmark_log(self, name: str) -> None:
        """Remove the mark of the log ``name``, which will be deleted or has moved to another node."""
        _remove_mark(self.path / "held" / _mark_of(name))

    def delete_partition(self, key: PartitionKey) -> None:
        """Delete the log of the partition ``key``, which the cluster has deleted or moved [M11].

        The directory is renamed first, so that it is removed completely or not at all. A second call completes a failed one.
        """
        path = self.partition_path(key)
        doomed = path.with_name(f"{path.name}.deleted")
        self.unmark_log(key.folder)
        with storage_errors("remove", path):
            if path.exists():
                shutil.rmtree(doomed, ignore_errors=True)
                path.rename(doomed)
                sync_folder(path.parent)
            if doomed.exists():
                shutil.rmtree(doomed)
            self._remove_empty(path.parent)

    def delete_unknown(self, name: str) -> tuple[list[str], int]:
        """Remove the directory ``<stream>-<uid>`` of a stream that the cluster does not know [M11].

        Return its logs, as ``<stream>-<uid>/<partition>``, and the number of bytes of all its files.
        """
        split = split_folder(name)
        if split is None:
            raise StorageError(f"{name} is not the directory of a stream. Use the form STREAM-UID.")
        stream, uid = split
        path = self.partition_path(PartitionKey(stream, uid, 0)).parent
        size_bytes = sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir() or file.is_symlink())
        logs = [f"{name}/{child.name}" for child in path.iterdir() if child.name.isascii() and child.name.isdigit()]
        for log in logs:
            self.delete_partition(PartitionKey(stream, uid, int(log.rpartition("/")[2])))
        with storage_errors("remove", path):
            if path.exists():
                shutil.rmtree(path)
                sync_folder(path.parent)
                self._folders.note_removed(path)
        return logs, size_bytes

    def finish_deletions(self) -> None:
        """Complete deletions that a crash has interrupted. If that fails, the next start tries again."""
        for left in (self.path / "streams").glob("*/*.deleted"):
            shutil.rmtree(left, ignore_errors=True)
            with suppress(OSError):
                self._remove_empty(left.parent)

    def _remove_empty(self, folder: Path) -> None:
        """Remove the directory ``folder`` of a stream if it is empty. Another process may remove it at the same time."""
        try:
            folder.rmdir()
            self._folders.note_removed(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def close(self) -> None:
        os.close(self.lock)


def _mark_of(name: str) -> str:
    return name.replace("/", ".")


def _create_mark(path: Path) -> None:
    """Create the empty file ``path`` durably. An existing file suffices, even one that this process may not open."""
    with storage_errors("write", path):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640))
        except FileExistsError:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise
        sync_folder(path.parent)


def _remove_mark(path: Path) -> None:
    with storage_errors("remove", path):
        if path.exists():
            path.unlink()
            sync_folder(path.parent)
