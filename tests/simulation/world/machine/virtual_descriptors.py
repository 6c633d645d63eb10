"""File descriptors of the simulator. A large cluster has more open log files than the system allows in one Python process.

A simulated process gets a number that the system never gives. The file itself is open only if it is one of the newest used ones.
A hard link in a folder of the simulator refers to each open file, so a number keeps its file when nodes rename or remove the name.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulation.world.machine.disk import real_close, real_open
from tests.simulation.world.machine.scheduler import Process

_FIRST = 1 << 24
"""Smallest number. Calls that this module does not replace fail with it, because the system has no such descriptor."""
_APPENDS = os.O_RDWR | os.O_APPEND
"""Flags of the files that stay open: each replica has one."""
_ONCE = os.O_CREAT | os.O_TRUNC | os.O_EXCL
_ON_DESCRIPTORS = ("write", "writev", "pwrite", "pread", "preadv", "fsync", "fdatasync", "ftruncate", "fstat", "posix_fadvise")


class VirtualDescriptors:
    """Open log files of all simulated processes. At most ``most_open`` of them are open for the system."""

    def __init__(self, folder: Path, most_open: int) -> None:
        folder.mkdir()
        self.reopened = 0
        """Number of times that a file was opened again."""
        self.most_files = 0
        """Largest number of files that were open at once for the simulated processes."""
        self.folder = folder
        self._most_open = most_open
        self._numbers = itertools.count(_FIRST)
        self._flags: dict[int, int] = {}
        """Number of an open file -> its flags."""
        self._open: OrderedDict[int, int] = OrderedDict()
        """Number -> descriptor of the system, least recently used first."""
        self._ended: set[int] = set()
        """Numbers of ended processes that were not closed. Calls with them use the null device."""
        self._nothing = real_open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def _link(self, number: int) -> str:
        return f"{self.folder}/{number}"

    def add(self, path: Any, flags: int, descriptor: int) -> int:
        """Return the number of the file ``path``, which was opened as ``descriptor``."""
        number = next(self._numbers)
        os.link(path, self._link(number))
        self._flags[number] = flags & ~_ONCE
        self.most_files = max(self.most_files, len(self._flags))
        self._keep_open(number, descriptor)
        return number

    def _keep_open(self, number: int, descriptor: int) -> None:
        self._open[number] = descriptor
        while len(self._open) > self._most_open:
            real_close(self._open.popitem(last=False)[1])

    def descriptor_of(self, number: int) -> int:
        """Return the descriptor of the system. It is valid until the next call of this method."""
        descriptor = self._open.get(number)
        if descriptor is not None:
            self._open.move_to_end(number)
            return descriptor
        if number in self._ended:
            return self._nothing
        if number not in self._flags:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self.reopened += 1
        descriptor = real_open(self._link(number), self._flags[number] | os.O_CLOEXEC)
        self._keep_open(number, descriptor)
        return descriptor

    def close(self, number: int) -> None:
        """Close a number."""
        if number in self._ended:
            self._ended.remove(number)
            return
        if self._flags.pop(number, None) is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.unlink(self._link(number))
        descriptor = self._open.pop(number, None)
        if descriptor is not None:
            real_close(descriptor)

    def end(self, number: int) -> None:
        """Close a number of an ended process. The process may still have an object that closes it."""
        if number in self._flags:
            self.close(number)
            self._ended.add(number)


def install(folder: Path, most_open: int, running: Callable[[], Process | None]) -> VirtualDescriptors:
    """Let simulated processes open log files with such numbers. ``folder``: a new folder on the file system of the disks."""
    opened, closed, dup2, readlink = os.open, os.close, os.dup2, os.readlink
    files = VirtualDescriptors(folder, most_open)

    def open_file(path: Any, flags: int, *args: Any, **options: Any) -> int:
        descriptor = opened(path, flags, *args, **options)
        process = running()
        if process is None or flags & _APPENDS != _APPENDS or options:
            return descriptor
        process.descriptors.discard(descriptor)
        number = files.add(path, flags, descriptor)
        process.descriptors.add(number)
        return number

    def close(descriptor: int) -> None:
        if descriptor < _FIRST:
            closed(descriptor)
            return
        files.close(descriptor)
        process = running()
        if process is not None:
            process.descriptors.discard(descriptor)

    def replace(descriptor: int, number: int, inheritable: bool = True) -> int:
        if number < _FIRST:
            return dup2(descriptor, number, inheritable)
        files.end(number)
        return number

    def read_link(path: Any, **options: Any) -> Any:
        number = str(path).removeprefix("/proc/self/fd/")
        if number.isdigit() and int(number) >= _FIRST:
            path = f"/proc/self/fd/{files.descriptor_of(int(number))}"
        return readlink(path, **options)

    def translated(call: Callable[..., Any]) -> Callable[..., Any]:
        def on_file(descriptor: Any, *args: Any, **options: Any) -> Any:
            if descriptor.__class__ is int and descriptor >= _FIRST:
                descriptor = files.descriptor_of(descriptor)
            return call(descriptor, *args, **options)

        return on_file

    os.open, os.close, os.dup2, os.readlink = open_file, close, replace, read_link  # type: ignore[assignment]
    for name in _ON_DESCRIPTORS:
        setattr(os, name, translated(getattr(os, name)))
    return files
