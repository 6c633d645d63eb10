"""The storage interface of a log. ``sidecar.disk`` implements it with files, ``MemoryStorage`` in memory.

THE CONTRACT. Each partition has one directory with flat names. Written data is durable after ``sync`` of its file. A
created, renamed or deleted name is durable after ``sync_folder``. A crash may keep any prefix of the rest of each file.
Methods raise only StorageError (NoSpaceError for a full disk). All calls come from one thread, except ``LogFile.sync``,
``Storage.replace`` and ``sync_folder`` of a flush, compaction of sealed files, and writers of ``state-`` files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from liftpy.errors import NoSpaceError, StorageError

Bytes = bytes | memoryview


class LogFile(Protocol):
    """Interface of an append-only file of batches."""

    @property
    def size_bytes(self) -> int: ...

    def append(self, pieces: Sequence[Bytes]) -> None:
        """Append all ``pieces`` with one ``writev``. After an error none of them is in the file."""

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position``, fewer at the end of the file.

        The view stays valid after later changes of the file.
        """

    def reread(self, position: int, size_bytes: int) -> memoryview:
        """Read as ``read`` does, but without caches: from the device if the system allows it.

        The result is what the next process would read.
        """

    def sync(self) -> None:
        """Make all appended bytes durable. After an error the state of the file is unknown: do not use it any more."""

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to ``size_bytes`` durably."""

    def rewrite(self, position: int) -> None:
        """Write the bytes from ``position`` on again, in place and durably. It is used if the disk is too full for a copy."""

    def seal(self) -> None:
        """Note that nothing more is appended. Later reads may map the file into memory instead of copying."""

    def close(self) -> None:
        """Close the file. Views that were returned stay valid."""


class Storage(Protocol):
    """Interface of the directory of one partition."""

    def names(self) -> list[str]:
        """Return the file names, sorted."""

    def free_bytes(self) -> int:
        """Return the free space of the disk, in bytes. A quota may allow less."""

    def open(self, name: str) -> LogFile:
        """Open an existing file for reading and appending."""

    def create(self, name: str) -> LogFile:
        """Create an empty file. An existing file of this name is replaced."""

    def load(self, name: str) -> bytes | None:
        """Return the content of a small file, None if it does not exist."""

    def replace(self, name: str, data: bytes | Sequence[bytes]) -> None:
        """Write a small file atomically and durably: temporary file, flush, rename, flush of the directory.

        ``data`` may come in pieces.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename a file. The new name is durable after ``sync_folder``."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists. The removal is durable after ``sync_folder``."""

    def sync_folder(self) -> None:
        """Make creations, renames and removals durable."""


class MemoryFile:
    """A file of ``MemoryStorage``, in a bytearray. ``synced``: number of its bytes that survive a power cut."""

    def __init__(self, storage: MemoryStorage, data: bytearray | None = None) -> None:
        self.data = bytearray() if data is None else data
        self.synced = len(self.data)
        self.never_written_from: int | None = None
        """Position from which bytes are only in the page cache, because a sync has failed. Later syncs count them as written.

        None: no sync has failed.
        """
        self._storage = storage

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def append(self, pieces: Sequence[Bytes]) -> None:
        """Append all ``pieces``. Raises NoSpaceError if the capacity does not suffice, and then appends nothing."""
        self._storage.count_call("append")
        if self._storage.used_bytes() + sum(map(len, pieces)) > self._storage.capacity_bytes:
            raise NoSpaceError(f"The memory storage is full (limit {self._storage.capacity_bytes} bytes). Raise its limit.")
        for piece in pieces:
            self.data += piece

    def read(self, position: int, size_bytes: int) -> memoryview:
        return memoryview(bytes(self.data[position : position + size_bytes]))

    def reread(self, position: int, size_bytes: int) -> memoryview:
        return self.read(position, size_bytes)

    def sync(self) -> None:
        """Mark all appended bytes as durable, except those that an earlier sync failed to write."""
        try:
            self._storage.count_call("sync")
        except StorageError:
            if self.never_written_from is None:
                self.never_written_from = self.synced
            raise
        self._mark_all_clean()

    def _mark_all_clean(self) -> None:
        size_bytes = len(self.data)
        self.synced = size_bytes if self.never_written_from is None else min(self.never_written_from, size_bytes)

    def truncate(self, size_bytes: int) -> None:
        self._storage.count_call("truncate")
        del self.data[size_bytes:]
        if self.never_written_from is not None and size_bytes <= self.never_written_from:
            self.never_written_from = None
        self._mark_all_clean()

    def rewrite(self, position: int) -> None:
        """Write the bytes from ``position`` on again, so that the next sync makes them durable."""
        self._storage.count_call("rewrite")
        if self.never_written_from is not None and position <= self.never_written_from:
            self.never_written_from = None
        self._mark_all_clean()

    def copy(self, storage: MemoryStorage, size_bytes: int, *, power: bool) -> MemoryFile:
        """Return a file of ``storage`` with the first ``size_bytes``, as the next process finds it.

        ``power``: True after a power cut. Then all returned bytes count as durable. Otherwise the flushed part is the one
        before.
        """
        after = MemoryFile(storage, bytearray(self.data[:size_bytes]))
        if not power:
            after.synced, after.never_written_from = self.synced, self.never_written_from
        return after

    def seal(self) -> None:
        """Do nothing in memory."""

    def close(self) -> None:
        """Do nothing in memory."""


class MemoryStorage:
    """A Storage in dictionaries that fails like a disk, for tests and the simulator.

    ``crash`` leaves the directory as a power cut or a kill would: unsynced data is lost, or partly lost. A failed sync behaves
    as on Linux: later syncs succeed, but a power cut loses the data. ``fail_after`` fails every call from the k-th on, so that
    a test can fail every operation.

    ``capacity_bytes``: size of the simulated disk. ``fault``: called with the name of each changing call before it runs. It may
    raise an error for the call.
    """

    def __init__(self, *, capacity_bytes: int = 1 << 40, fault: Callable[[str], None] | None = None) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.capacity_bytes = capacity_bytes
        self.fault = fault
        self.calls = 0
        """Number of calls that changed something."""
        self._durable: dict[str, MemoryFile] = {}

    def count_call(self, what: str) -> None:
        """Count a call that changes something. Raises the error that the test has set for it. ``what``: name of the call."""
        self.calls += 1
        if self.fault is not None:
            self.fault(what)

    def fail_after(self, calls: int) -> None:
        """Let the next ``calls`` changing calls succeed. Every later one raises StorageError."""
        last = self.calls + calls

        def fault(what: str) -> None:
            if self.calls > last:
                raise StorageError(f"the in-memory storage fails from here on (fail_after): {what}")

        self.fault = fault

    def used_bytes(self) -> int:
        return sum(len(f.data) for f in self.files.values())

    def crash(self, *, power: bool = True, keep: Callable[[str, int, int], int] | None = None) -> MemoryStorage:
        """Return the directory as the next process finds it after a crash.

        Args:
            power: True for a power cut. False if only the process ended, so that all written bytes remain.
            keep: Called as ``keep(name, synced, written)``. Returns how many bytes of a file survive a power cut. Default:
                only the synced ones.
        """
        after = MemoryStorage(capacity_bytes=self.capacity_bytes)
        copies: dict[int, MemoryFile] = {}

        def copied(name: str, file: MemoryFile) -> MemoryFile:
            if id(file) not in copies:
                size = len(file.data)
                if power:
                    size = min(file.synced if keep is None else keep(name, file.synced, size), size)
                    size = size if file.never_written_from is None else min(size, file.never_written_from)
                copies[id(file)] = file.copy(after, size, power=power)
            return copies[id(file)]

        after.files = {name: copied(name, file) for name, file in (self._durable if power else self.files).items()}
        after._durable = {name: copied(name, file) for name, file in self._durable.items()}
        return after

    def names(self) -> list[str]:
        return sorted(self.files)

    def free_bytes(self) -> int:
        return max(self.capacity_bytes - self.used_bytes(), 0)

    def open(self, name: str) -> MemoryFile:
        if name not in self.files:
            raise StorageError(f"no file {name}")
        return self.files[name]

    def create(self, name: str) -> MemoryFile:
        self.count_call("create")
        self.files[name] = MemoryFile(self)
        return self.files[name]

    def load(self, name: str) -> bytes | None:
        file = self.files.get(name)
        return None if file is None else bytes(file.data)

    def replace(self, name: str, data: bytes | Sequence[bytes]) -> None:
        self.count_call("replace")
        data = data if isinstance(data, bytes) else b"".join(data)
        if self.used_bytes() + len(data) > self.capacity_bytes:
            raise NoSpaceError(f"The memory storage is full (limit {self.capacity_bytes} bytes). Raise its limit.")
        self.files[name] = self._durable[name] = MemoryFile(self, bytearray(data))

    def rename(self, old: str, new: str) -> None:
        self.count_call("rename")
        self.files[new] = self.files.pop(old)

    def remove(self, name: str) -> None:
        self.count_call("remove")
        self.files.pop(name, None)

    def sync_folder(self) -> None:
        self.count_call("sync_folder")
        self._durable = dict(self.files)
