"""A disk that fails and forgets, under the real files of the metadata group: what ``os`` does for the modules that write.

It knows what is durable: the bytes of a file up to its last good flush, the names in a folder up to the folder's. A failed flush marks
the pages clean, as Linux does: the next one says yes and writes nothing of them. ``power_cut`` leaves what was durable, and of the
rest whatever the draw says. ``fault`` is asked before every call and says how it ends.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sidecar.disk.files
import sidecar.quorum.journal
import sidecar.quorum.snapshot_file

_MODULES = (sidecar.disk.files, sidecar.quorum.journal, sidecar.quorum.snapshot_file)


@dataclass(frozen=True)
class Fault:
    """How a call ends: ``number`` is the errno, 0: it only writes less than it was asked to. ``kept``: bytes that were written."""

    number: int = errno.EIO
    kept: int = 0


class FaultyDisk:
    """Stands in for the module ``os``. ``fault(kind, size)``: kind is write, sync, rename or open; size that of the write."""

    def __init__(self) -> None:
        self.fault: Callable[[str, int], Fault | None] = lambda *_: None
        self.calls: Counter[str] = Counter()
        self._durable: dict[int, bytes] = {}
        self._lost: dict[int, list[tuple[int, int]]] = {}
        """Ranges of a file that a failed flush has marked clean."""
        self._names: dict[Path, dict[str, int]] = {}
        self._pins: dict[int, int] = {}
        """A descriptor of each known file, so that its inode number is not given to another one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _asked(self, kind: str, size: int = 0) -> Fault | None:
        self.calls[kind] += 1
        return self.fault(kind, size)

    # ---- the calls -----------------------------------------------------------------------------------------------------
    def open(self, path: Any, flags: int, mode: int = 0o640) -> int:
        if not flags & os.O_DIRECTORY and (fault := self._asked("open")):
            raise OSError(fault.number, os.strerror(fault.number))
        descriptor = os.open(path, flags, mode)
        if flags & os.O_TRUNC:
            self._lost.pop(os.fstat(descriptor).st_ino, None)  # written again, and so dirty again
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        fault = self._asked("write", len(data))
        if fault is None:
            return os.write(descriptor, data)
        if fault.kept:
            os.write(descriptor, bytes(data)[: fault.kept])
        if fault.number:
            raise OSError(fault.number, os.strerror(fault.number))
        return fault.kept

    def rename(self, old: Any, new: Any) -> None:
        if fault := self._asked("rename"):
            raise OSError(fault.number, os.strerror(fault.number))
        os.rename(old, new)

    def fdatasync(self, descriptor: int) -> None:
        self.fsync(descriptor)

    def fsync(self, descriptor: int) -> None:
        fault = self._asked("sync")
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            if fault is None:
                self._names[path] = {p.name: self._pin(p) for p in path.iterdir() if p.is_file()}
        else:
            self._sync_file(self._pin(path), path.read_bytes(), failed=fault is not None)
        if fault is not None:
            raise OSError(fault.number, os.strerror(fault.number))

    def _sync_file(self, number: int, content: bytes, *, failed: bool) -> None:
        before = self._durable.get(number, b"")
        if failed:
            start = _shared(before, content)
            self._lost.setdefault(number, []).append((start, len(content)))
            return
        durable = bytearray(content)
        for start, end in self._lost.get(number, []):
            durable[start:end] = bytes(len(durable[start:end]))
        self._durable[number] = bytes(durable)

    def _pin(self, path: Path) -> int:
        number = path.stat().st_ino
        if number not in self._pins:
            self._pins[number] = os.open(path, os.O_RDONLY)
        return number

    # ---- power ---------------------------------------------------------------------------------------------------------
    def forget(self, folder: Path) -> None:
        """The folder is of no interest any more."""
        self._names.pop(folder, None)
        self._forget()

    def power_cut(self, folder: Path, draw: random.Random | None = None) -> None:
        """Leave in ``folder`` what is durable. ``draw``: of what is not, something may have come through; None: nothing has."""
        before, now = self._names.get(folder, {}), {p.name: self._pin(p) for p in folder.iterdir() if p.is_file()}
        left: dict[str, bytes] = {}
        for name in sorted({*before, *now}):
            names = now if draw is not None and draw.random() < 0.5 else before
            if name in names:
                left[name] = self._content(names[name], draw)
        self.leave(folder, left)

    def leave(self, folder: Path, left: dict[str, bytes]) -> None:
        """These files are in ``folder``, durably, and no others."""
        for path in [p for p in folder.iterdir() if p.is_file()]:
            path.unlink()
        for name, content in left.items():
            (folder / name).write_bytes(content)
        self._names[folder] = {name: self._pin(folder / name) for name in left}
        for name, number in self._names[folder].items():
            self._durable[number] = left[name]
            self._lost.pop(number, None)
        self._forget()

    def _forget(self) -> None:
        """Of files that are no more; one may be flushed whose name is not."""
        known = {number for names in self._names.values() for number in names.values()}
        for number in [n for n, pin in self._pins.items() if n not in known and not os.fstat(pin).st_nlink]:
            os.close(self._pins.pop(number))
            self._durable.pop(number, None)
            self._lost.pop(number, None)

    def _content(self, number: int, draw: random.Random | None) -> bytes:
        durable = self._durable.get(number, b"")
        if draw is None or draw.random() < 0.5:
            return durable
        content = Path(f"/proc/self/fd/{self._pins[number]}").read_bytes()
        shared = _shared(durable, content)
        return content[: draw.randint(shared, len(content))] if shared == len(durable) else durable

    def end(self) -> None:
        for descriptor in self._pins.values():
            with suppress(OSError):
                os.close(descriptor)
        self._pins.clear()


def _shared(one: bytes, other: bytes) -> int:
    """How many first bytes are the same."""
    if other.startswith(one):
        return len(one)
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    """The modules that write the metadata group's files write through it."""
    disk = FaultyDisk()
    with pytest.MonkeyPatch.context() as patch:
        for module in _MODULES:
            patch.setattr(module, "os", disk)
        try:
            yield disk
        finally:
            disk.end()
