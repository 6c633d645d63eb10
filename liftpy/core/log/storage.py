"""The storage interface of a log. ``sidecar.disk`` implements it with files, ``liftpy.core.log.memory_storage`` in memory.

THE CONTRACT. Each partition has one directory with flat names. Written data is durable after ``sync`` of its file. A
created, renamed or deleted name is durable after ``sync_folder``. A crash may keep any prefix of the rest of each file.
Methods raise only StorageError (NoSpaceError for a full disk). All calls come from one thread, except ``LogFile.sync``,
``Storage.replace`` and ``sync_folder`` of a flush, compaction of sealed files, and writers of ``state-`` files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Bytes = bytes | memoryview


class LogFile(Protocol):
    """An append-only file of batches."""

    @property
    def size_bytes(self) -> int:
        """How many bytes have been appended."""

    def append(self, pieces: Sequence[Bytes]) -> None:
        """Add all of ``pieces`` (one ``writev``), or, with the error, none of them."""

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``; fewer at the end of the file. Stays valid whatever happens to the file."""

    def reread(self, position: int, size_bytes: int) -> memoryview:
        """As ``read``, but never from a map or a copy that an earlier read left; from the device itself, where the system lets go
        of what it holds in memory of these bytes. Shows what the next process would read."""

    def sync(self) -> None:
        """Make everything appended so far durable. After an error the file's state is unknown: the caller must not go on."""

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to ``size_bytes`` and make that durable."""

    def rewrite(self, position: int) -> None:
        """Write what lies from ``position`` on once more, in place, and make it durable: for a disk that is too full for a copy."""

    def seal(self) -> None:
        """Nothing will be appended any more: later reads may map the file instead of copying."""

    def close(self) -> None:
        """Let go of the file; views that were handed out stay valid."""


class Storage(Protocol):
    """The directory of one partition."""

    def names(self) -> list[str]:
        """The names in the folder, sorted."""

    def open(self, name: str) -> LogFile:
        """Open an existing file for reading and appending."""

    def create(self, name: str) -> LogFile:
        """Create an empty file; one of that name is replaced."""

    def load(self, name: str) -> bytes | None:
        """The whole of a small file, None when there is none."""

    def replace(self, name: str, data: bytes | Sequence[bytes]) -> None:
        """Write a small file atomically and durably: a temporary one, flush, rename, flush the folder. ``data`` may come in pieces."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file; durable after ``sync_folder``."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; durable after ``sync_folder``."""

    def sync_folder(self) -> None:
        """Make creations, renames and removals durable."""
