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
        """Number of appended bytes."""

    def append(self, pieces: Sequence[Bytes]) -> None:
        """Append all ``pieces`` with one ``writev``. On an error, append none."""

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position``, fewer at the end of the file.

        The view stays valid after later changes of the file.
        """

    def reread(self, position: int, size_bytes: int) -> memoryview:
        """Read as ``read`` does, but without caches: from the device if the system allows it.

        It shows what the next process would read.
        """

    def sync(self) -> None:
        """Make all appended bytes durable. After an error the state of the file is unknown: do not use it any more."""

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to ``size_bytes`` durably."""

    def rewrite(self, position: int) -> None:
        """Write what lies from ``position`` on once more, in place, and make it durable: for a disk that is too full for a copy."""

    def seal(self) -> None:
        """Declare that nothing more will be appended. Later reads may map the file instead of copying."""

    def close(self) -> None:
        """Close the file. Views that were returned stay valid."""


class Storage(Protocol):
    """The directory of one partition."""

    def names(self) -> list[str]:
        """Return the file names, sorted."""

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
        """Rename a file; durable after ``sync_folder``."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists. The removal is durable after ``sync_folder``."""

    def sync_folder(self) -> None:
        """Make creations, renames and removals durable."""
