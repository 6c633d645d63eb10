"""The storage seam: what a log asks of a disk. Implemented by ``sidecar.disk`` (files) and ``liftpy.core.log.memory_storage``.

THE CONTRACT. One folder per partition; names are flat. What was written is durable only after ``sync`` of its file, and a
created, renamed or removed name only after ``sync_folder``; a crash may keep any prefix of what is not durable of each file.
Every method raises StorageError (NoSpaceError for a full disk) and nothing else. All calls come from one thread, but for
``LogFile.sync``, ``Storage.replace`` and ``sync_folder``, which a flush runs in another one while appends go on (never two
``replace`` of one name at once), and compaction, which reads sealed files and writes files that nothing else knows of. So does
who writes ``state-`` files, and removes older ones.
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
    """One partition's folder."""

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
