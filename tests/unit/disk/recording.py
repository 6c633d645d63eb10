"""What a process did to real files, call by call, and what a power cut after any of the calls can leave.

``Recorder`` stands between Python and the operating system for one folder: open, write, ftruncate, fsync, fdatasync, rename, unlink,
mkdir, rmdir. ``left_after`` gives the folder as a cut after the n-th of them may leave it. The rules are POSIX's and no file system's:
what was written is on the disk after a flush of that file, a name after a flush of its folder, a folder's name after a flush of the
one above; before that it may be there, in part or not at all, and a new name may well stand for a file whose bytes never came.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

FILE, FOLDER = "file", "folder"


@dataclass(frozen=True)
class Call:
    """One call. ``content``: of the file behind it, for those that change it; ``path`` is relative to the recorded folder."""

    kind: str
    path: str
    file: int = 0
    content: bytes = b""
    to: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.path}{' -> ' + self.to if self.to else ''}"


@dataclass(frozen=True)
class Promise:
    """What was promised when so many calls had been made."""

    calls: int
    what: Any


class Recorder:
    """Use ``recording`` around what is recorded. ``ignored``: kinds of calls that do nothing, as a bug would have it."""

    def __init__(self, root: Path, ignored: frozenset[str] = frozenset()) -> None:
        self.root = root
        self.calls: list[Call] = []
        self.promises: list[Promise] = []
        self._ignored = ignored
        self._files: dict[int, int] = {}
        """Inode -> number of the file."""
        self._contents: dict[int, bytes] = {}
        self._descriptors: dict[int, int] = {}
        self._count = 0

    def promise(self, what: Any) -> None:
        """From here on it holds, whatever happens."""
        self.promises.append(Promise(len(self.calls), what))

    # ---- between Python and the system -----------------------------------------------------------------------------------
    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        names = (
            "open",
            "write",
            "writev",
            "pwrite",
            "ftruncate",
            "fsync",
            "fdatasync",
            "rename",
            "replace",
            "unlink",
            "remove",
        )
        self._real = {name: getattr(os, name) for name in (*names, "mkdir", "rmdir")}
        changes = [
            patch.object(os, "open", self._open),
            *(patch.object(os, name, self._writer(self._real[name])) for name in ("write", "writev", "pwrite", "ftruncate")),
            *(patch.object(os, name, self._flusher(name)) for name in ("fsync", "fdatasync")),
            *(patch.object(os, name, self._renamer(self._real[name])) for name in ("rename", "replace")),
            *(patch.object(os, name, self._remover(self._real[name], "unlink")) for name in ("unlink", "remove")),
            patch.object(os, "rmdir", self._remover(self._real["rmdir"], "rmdir")),
            patch.object(os, "mkdir", self._mkdir),
        ]
        for change in changes:
            change.start()
        try:
            yield self
        finally:
            for change in reversed(changes):
                change.stop()

    def _inside(self, path: Any, folder: int | None = None) -> str | None:
        """Relative to the recorded folder; None: elsewhere."""
        if folder is not None and not os.path.isabs(path):
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        path = Path(os.path.abspath(path))
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else None

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        inside = self._inside(path, dir_fd)
        is_new = inside is not None and not (self.root / inside).exists()
        descriptor = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        self._descriptors.pop(descriptor, None)
        if inside is not None and not (self.root / inside).is_dir():
            if is_new:
                self._files.pop(os.fstat(descriptor).st_ino, None)
            file = self._file_of(descriptor, b"")
            if is_new:
                self.calls.append(Call("create", inside, file))
            self._descriptors[descriptor] = file
            self._look(file, inside)
        return descriptor

    def _file_of(self, descriptor: int, content: bytes | None = None) -> int:
        """Its number; ``content``: of one that is new here, None: what it holds."""
        inode = os.fstat(descriptor).st_ino
        if inode not in self._files:
            self._count += 1
            self._files[inode] = self._count
            known = (self.root / self._path_of(descriptor)).read_bytes() if content is None else content
            self._contents[self._count] = known
        return self._files[inode]

    def _look(self, file: int, path: str) -> None:
        """Note what has changed of a file, by whatever way it was written."""
        try:
            content = (self.root / path).read_bytes()
        except FileNotFoundError:
            return
        if content != self._contents[file]:
            self._contents[file] = content
            self.calls.append(Call("write", path, file, content))

    def _path_of(self, descriptor: int) -> str:
        return str(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(self.root))

    def _writer(self, real: Callable[..., int]) -> Callable[..., int]:
        def write(descriptor: int, *args: Any) -> int:
            done = real(descriptor, *args)
            if descriptor in self._descriptors:
                self._look(self._descriptors[descriptor], self._path_of(descriptor))
            return done

        return write

    def _flusher(self, name: str) -> Callable[[int], None]:
        def flush(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if not path.is_relative_to(self.root):
                self._real[name](descriptor)
                return
            inside = str(path.relative_to(self.root))
            kind = FOLDER if path.is_dir() else FILE
            if kind == FILE:
                self._look(self._file_of(descriptor), inside)
            if kind not in self._ignored:
                file = self._file_of(descriptor) if kind == FILE else 0
                self.calls.append(Call(f"flush {kind}", inside, file))

        return flush

    def _renamer(self, real: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **more: Any) -> None:
            old, new = self._inside(source), self._inside(target)
            file = self._files.get(os.stat(source).st_ino)
            if old is not None and file is not None:
                self._look(file, old)
            real(source, target, **more)
            if old is not None and new is not None:
                self.calls.append(Call("rename", old, to=new))

        return rename

    def _remover(self, real: Callable[..., None], kind: str) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            inside = self._inside(path, dir_fd)
            real(path, dir_fd=dir_fd)
            if inside is not None:
                self.calls.append(Call(kind, inside))

        return remove

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        inside = self._inside(path, dir_fd)
        if inside is not None:
            self.calls.append(Call("mkdir", inside))


# ---- what is left ----------------------------------------------------------------------------------------------------------
Names = dict[str, int]
"""Path -> number of the file, 0 for a folder."""


class Disk:
    """What the calls have done, so far: to what a process sees, and to what a power cut leaves."""

    def __init__(self) -> None:
        self.names: Names = {}
        self.contents: dict[int, bytes] = {}
        self.safe_names: Names = {}
        self.safe_contents: dict[int, bytes] = {}
        self._last: Call | None = None
        """That changed a name, while that is not safe."""
        self._came_from: dict[str, str] = {}
        """Folder -> its name before, until that is safe."""

    def apply(self, call: Call) -> None:
        """One call more."""
        if call.kind in ("create", "mkdir", "unlink", "rmdir", "rename"):
            self._last = call
        match call.kind:
            case "create":
                self.names[call.path] = call.file
                self.contents.setdefault(call.file, b"")
            case "write":
                self.contents[call.file] = call.content
            case "mkdir":
                self.names[call.path] = 0
            case "unlink" | "rmdir":
                self.names.pop(call.path, None)
            case "rename":
                if not self.names[call.path]:
                    self._came_from[call.to] = call.path
                self.names = _renamed(self.names, call.path, call.to)
            case "flush file":
                self.safe_contents[call.file] = self.contents[call.file]
            case "flush folder":
                self._flush_folder("" if call.path == "." else call.path)

    def _flush_folder(self, folder: str) -> None:
        """The names in it; what is safe in a folder that was renamed comes along with it."""
        if self._last is not None and _above(self._last.path) == folder:
            self._last = None
        now = {path for path in self.names if _above(path) == folder}
        along: Names = {}
        for new in now & set(self._came_from):
            old = self._came_from.pop(new)
            along |= {new + path[len(old) :]: file for path, file in self.safe_names.items() if path.startswith(old + "/")}
        gone = {path for path in self.safe_names if _above(path) == folder} - now
        kept = {path: file for path, file in self.safe_names.items() if not any(_is_in(path, name) for name in gone)}
        self.safe_names = kept | along | {path: self.names[path] for path in now}

    def left(self, *, names: str, contents: str) -> dict[str, bytes | None]:
        """Path -> bytes, None for a folder. ``names``: 'safe', 'all', 'last': the safe ones and the change that came last, before those
        that came before it. ``contents``: 'safe', 'all', 'torn'."""
        chosen = {"safe": self.safe_names, "all": self.names, "last": self._with_last()}[names]
        found: dict[str, bytes | None] = {}
        for path in sorted(chosen):
            above = _above(path)
            if above and above not in found:
                continue  # the folder above it is not there
            file = chosen[path]
            found[path] = None if file == 0 else self._bytes_of(file, contents)
        return found

    def _with_last(self) -> Names:
        call = self._last
        if call is None:
            return self.safe_names
        kept = {path: file for path, file in self.safe_names.items() if not _is_in(path, call.path)}
        new = call.to or call.path
        there = {path: file for path, file in self.names.items() if _is_in(path, new)}
        return {path: file for path, file in kept.items() if not _is_in(path, new)} | there

    def _bytes_of(self, file: int, contents: str) -> bytes:
        safe, now = self.safe_contents.get(file, b""), self.contents[file]
        if contents == "torn":
            return now[: (len(safe) + len(now)) // 2] if now.startswith(safe) else safe
        return now if contents == "all" else safe


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _is_in(path: str, folder: str) -> bool:
    """Or is it."""
    return path == folder or path.startswith(folder + "/")


def _renamed(names: Names, old: str, new: str) -> Names:
    moved = {path: file for path, file in names.items() if _is_in(path, old)}
    kept = {path: file for path, file in names.items() if path not in moved and not _is_in(path, new)}
    return kept | {new + path[len(old) :]: file for path, file in moved.items()}


VARIANTS = [(names, contents) for names in ("safe", "last", "all") for contents in ("safe", "torn", "all")]


def cuts(calls: list[Call]) -> Iterator[tuple[int, str, dict[str, bytes | None]]]:
    """(how many calls were made, what kind of cut, what is left), for every number of calls; each different rest once."""
    disk = Disk()
    for made in range(len(calls) + 1):
        if made:
            disk.apply(calls[made - 1])
        seen = []
        for names, contents in VARIANTS:
            left = disk.left(names=names, contents=contents)
            if left not in seen:
                seen.append(left)
                yield made, f"names {names}, contents {contents}", left


def put_down(left: dict[str, bytes | None], folder: Path) -> None:
    """Make ``folder`` hold that and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path, content in left.items():
        if content is None:
            (folder / path).mkdir(exist_ok=True)
        else:
            (folder / path).write_bytes(content)
