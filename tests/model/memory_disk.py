"""A raft folder in memory: what ``os`` and ``Path`` are to the modules that write the metadata group's files.

It keeps what a power cut would leave beside what is there: the bytes of a file up to its last flush, the names up to the folder's last
one. ``moments`` are the folders that a death in the middle would leave, one after each call that changes anything.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import pysyncobj.serializer
import pysyncobj.syncobj

import sidecar.disk.files
import sidecar.metadata.member_log
import sidecar.quorum.journal
import sidecar.quorum.library
import sidecar.quorum.snapshot_file

_MODULES = (sidecar.disk.files, sidecar.quorum.journal, sidecar.quorum.snapshot_file)
Files = tuple[tuple[str, bytes], ...]
"""(name, content), in the order of the names; what is temporary is left out: nobody reads it."""
Flushed = tuple[tuple[str, bytes, bool], ...]


class MemoryDisk:
    """Stands in for ``os``, for one folder. ``cached``: its files as processes see them. ``flushed``: (name, content, whether it is the
    same file) of what a power cut would leave; None: all of them as they are."""

    def __init__(self, cached: Files, flushed: Flushed | None = None) -> None:
        self._content: dict[int, bytes] = {}
        self._flushed: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._flushed_names: dict[str, int] = {}
        self._open: dict[int, int | None] = {}
        self._next = 3
        self.moments: list[Files] = []
        for name, content in cached:
            self._names[name] = self._new(content)
        for name, content, same in [(*file, True) for file in cached] if flushed is None else flushed:
            number = self._names[name] if same else self._new(content)
            self._flushed[number], self._flushed_names[name] = content, number
        self.path = SimpleNamespace(isfile=lambda path: _name(path) in self._names)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _new(self, content: bytes) -> int:
        self._next += 1
        self._content[self._next] = content
        return self._next

    @property
    def cached(self) -> Files:
        """As the processes see them."""
        return tuple(sorted((n, self._content[i]) for n, i in self._names.items() if not n.endswith(".tmp")))

    @property
    def durable(self) -> Files:
        """What a power cut leaves."""
        return tuple(sorted((n, self._flushed.get(i, b"")) for n, i in self._flushed_names.items() if not n.endswith(".tmp")))

    @property
    def flushed(self) -> Flushed:
        """The same, and of each file whether that is the one which the processes see."""
        names = self._flushed_names
        return tuple((name, content, self._names.get(name) == names[name]) for name, content in self.durable)

    def _changed(self) -> None:
        self.moments += [self.durable, self.cached]

    # ---- the calls -----------------------------------------------------------------------------------------------------
    def open(self, path: Any, flags: int, mode: int = 0o640) -> int:
        name = _name(path)
        if flags & os.O_DIRECTORY:
            return self._opened(None)
        if name not in self._names:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            self._names[name] = self._new(b"")
        if flags & os.O_TRUNC:
            self._content[self._names[name]] = b""
        return self._opened(self._names[name])

    def _opened(self, number: int | None) -> int:
        self._next += 1
        self._open[self._next] = number
        return self._next

    def write(self, descriptor: int, data: Any) -> int:
        number = self._open[descriptor]
        assert number is not None
        self._content[number] += bytes(data)
        self._changed()
        return len(data)

    def pread(self, descriptor: int, size_bytes: int, start: int) -> bytes:
        number = self._open[descriptor]
        assert number is not None
        return self._content[number][start : start + size_bytes]

    def fsync(self, descriptor: int) -> None:
        number = self._open[descriptor]
        if number is None:
            self._flushed_names = dict(self._names)
        else:
            self._flushed[number] = self._content[number]
        self._changed()

    fdatasync = fsync

    def rename(self, old: Any, new: Any) -> None:
        self._names[_name(new)] = self._names.pop(_name(old))
        self._changed()

    def unlink(self, path: Any) -> None:
        del self._names[_name(path)]

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def read(self, path: Any) -> bytes:
        """The whole file."""
        if _name(path) not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._content[self._names[_name(path)]]


def _name(path: Any) -> str:
    return PurePosixPath(path).name


class MemoryPath(PurePosixPath):
    """A path in the folder of the disk that is in use."""

    disk: ClassVar[MemoryDisk]

    def read_bytes(self) -> bytes:
        return self.disk.read(self)

    def exists(self) -> bool:
        return len(self.parts) < 3 or self.name in self.disk._names

    def stat(self) -> Any:
        return SimpleNamespace(st_size=len(self.disk.read(self)))

    def mkdir(self, mode: int = 0o777, *, exist_ok: bool = False) -> None:
        """It is there."""


def _reader(path: Any, mode: str) -> io.BytesIO:
    assert mode == "rb"
    return io.BytesIO(MemoryPath.disk.read(path))


@contextmanager
def in_use(disk: MemoryDisk) -> Iterator[None]:
    """The modules that write the metadata group's files use it."""
    MemoryPath.disk = disk
    with ExitStack() as stack:
        for module in (*_MODULES, pysyncobj.syncobj):
            stack.enter_context(patch.object(module, "os", disk))
        for user in (sidecar.metadata.member_log, sidecar.quorum.library):
            stack.enter_context(patch.object(user, "Path", MemoryPath))
        stack.enter_context(patch.object(pysyncobj.serializer, "atomicReplace", disk.rename))
        stack.enter_context(patch.object(pysyncobj.serializer, "open", _reader, create=True))
        yield
