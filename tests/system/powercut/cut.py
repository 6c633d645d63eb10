"""The power cut: builds the shim, tells it which flushes and writes fail, and puts what was durable in the place of what is visible.

Kill the processes first (and reap them), then ``cut``. What was durable is there for certain; of the rest a seeded choice
survives, as a real cut has it: a beginning of what was appended to a file, its end perhaps zeros; the names of a folder as of its
last flush or as they were seen last.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import functools
import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("shim.c")
_MAX_RULES = 16
_RULE = struct.Struct("<iiiiii104s")
_LOST = struct.Struct("<qq")
_PAGE_BYTES = 4096
FLUSH_FAILS, WRITE_FAILS, WRITE_SHORT, FLUSH_SLOW, NO_SPACE = 1, 2, 3, 4, 5
ALL = -1


class NoShimError(Exception):
    """The shim can't be built or used here; the text says why: skip the test with it."""


@functools.cache
def build() -> Path:
    """The compiled shim, in a temporary folder that goes when this process ends. Raises NoShimError."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or os.uname().sysname != "Linux":
        raise NoShimError("the power-cut shim needs Linux and a C compiler (cc or gcc on the PATH)")
    folder = Path(tempfile.mkdtemp(prefix="liftpy-powercut-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "powercut.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoShimError(f"the power-cut shim does not compile here: {done.stderr.strip()[-500:]}")
    if not _birth_times(library, folder):
        raise NoShimError(f"the file system of {folder} tells no times of birth")
    return library


def _birth_times(library: Path, folder: Path) -> bool:
    return bool(_ask_id(ctypes.CDLL(str(library)), folder))


def _ask_id(library: ctypes.CDLL, path: Path) -> str:
    """The shim's name of what is at ``path``, '' when nothing is."""
    answer = ctypes.create_string_buffer(64)
    return answer.value.decode() if library.powercut_id(os.fsencode(path), answer) == 0 else ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Calls to strike: ``count`` of them (ALL: every one) after ``skip`` were let pass, on files below the data folder whose path
    matches ``pattern`` (a star matches slashes, too). ``value``: bytes that a WRITE_SHORT writes, milliseconds of a FLUSH_SLOW.
    NO_SPACE: what is asked how much space is free, by the name of a folder, is told none."""

    op: int
    pattern: str
    count: int = 1
    error: int = errno.EIO
    skip: int = 0
    value: int = 0


class PowerCut:
    """The shim's side of one data folder. ``data`` may hold the folders of several nodes; ``shadow`` must be on the same file
    system and not below it. What is in ``data`` now counts as durable."""

    def __init__(self, data: Path, shadow: Path) -> None:
        self._library = ctypes.CDLL(str(build()))
        self._data = data.resolve()
        self._shadow = shadow.resolve()
        self._forget()
        self._control = self._shadow / "control"
        self._control.write_bytes(bytes(_MAX_RULES * _RULE.size))
        self._adopt(self._data)

    @property
    def environment(self) -> dict[str, str]:
        """For the processes below which the shim is to lie."""
        return {"LD_PRELOAD": str(build()), "POWERCUT_DATA": str(self._data), "POWERCUT_SHADOW": str(self._shadow)}

    # ---- rules -------------------------------------------------------------------------------------------------------
    def fail(self, *rules: Rule) -> None:
        """Strike as these rules say, from now on, instead of what was said before; the first rule that fits a call counts."""
        self._strike(())  # nothing fits while the new ones are written
        self._strike(rules)

    def heal(self) -> None:
        """Nothing fails any more."""
        self.fail()

    def _strike(self, rules: Sequence[Rule]) -> None:
        packed = [_RULE.pack(r.op, r.error, r.skip, r.count, r.value, 0, r.pattern.encode()) for r in rules]
        with self._control.open("r+b") as file:
            file.write(b"".join(packed).ljust(_MAX_RULES * _RULE.size, b"\0"))

    def hits(self) -> list[int]:
        """How many calls each rule has struck."""
        return [rule[5] for rule in _RULE.iter_unpack(self._control.read_bytes()) if rule[0]]

    # ---- cut ---------------------------------------------------------------------------------------------------------
    def cut(self, names: Sequence[str] = (), chance: random.Random | None = None) -> str:
        """Cut the power of the folders ``names`` in the data folder, of all when there are none. Nothing may run on them.

        ``chance`` chooses what else survives; None: nothing that was not durable. Return what was lost, for people.
        """
        found = _Found(self._shadow, chance)
        self._look(self._data, found, names)  # others may run on the rest
        kept = found.names(self._id(self._data))
        with tempfile.TemporaryDirectory(dir=self._shadow) as folder:
            laid = Path(folder)
            for name in kept.keys() & set(names) if names else kept:
                found.lay(kept[name], laid / name)
            for name in names or os.listdir(self._data):
                _remove(self._data / name)
            for path in laid.iterdir():
                path.rename(self._data / path.name)
        if not names:
            self._forget()
        self._adopt(self._data, names)
        return found.lost_text

    def _forget(self) -> None:
        for kind in "fld":
            shutil.rmtree(self._shadow / kind, ignore_errors=True)
            (self._shadow / kind).mkdir(parents=True)

    def _id(self, path: Path) -> str:
        return _ask_id(self._library, path)

    def _look(self, folder: Path, found: _Found, names: Sequence[str] = ()) -> None:
        """Remember what is visible in ``folder`` (only ``names`` of it, if there are any) and below."""
        entries = found.visible_names.setdefault(self._id(folder), {})
        for path in (folder / name for name in names or os.listdir(folder)):
            if not os.path.lexists(path):
                continue
            entries[path.name] = identity = self._id(path)
            found.visible[identity] = path
            if path.is_dir():
                self._look(path, found)

    def _adopt(self, folder: Path, names: Sequence[str] = ()) -> None:
        """What is in ``folder`` (only ``names`` of it, if there are any) is durable."""
        durable = self._shadow / "d" / self._id(folder)
        durable.mkdir(exist_ok=True)
        for name in names or {*os.listdir(folder), *os.listdir(durable)}:
            path, identity = folder / name, self._id(folder / name)
            (durable / name).unlink(missing_ok=True)
            if path.is_dir():
                self._adopt(path)
                (durable / name).symlink_to(f"../{identity}")
            elif identity:
                shutil.copyfile(path, self._shadow / "f" / identity)
                (self._shadow / "l" / identity).unlink(missing_ok=True)
                os.link(self._shadow / "f" / identity, durable / name)


class _Found:
    """What is visible and what is durable, by the shim's names, and the choice between them."""

    def __init__(self, shadow: Path, chance: random.Random | None) -> None:
        self._shadow = shadow
        self._chance = chance
        self._files = {entry.inode(): entry.name for entry in os.scandir(shadow / "f")}
        self.visible: dict[str, Path] = {}
        self.visible_names: dict[str, dict[str, str]] = {}
        self._lost_bytes = 0
        self._lost_names = 0

    @property
    def lost_text(self) -> str:
        return f"{self._lost_bytes} bytes and {self._lost_names} names gone"

    def durable(self, folder: str) -> dict[str, str]:
        """Name -> what it stands for, as of the folder's last flush."""
        entries: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._shadow / "d" / folder) as scan:
            for entry in scan:
                entries[entry.name] = Path(os.readlink(entry.path)).name if entry.is_symlink() else self._files[entry.inode()]
        return entries

    def names(self, folder: str) -> dict[str, str]:
        """As of the last flush, or as they were seen last: all of a folder's names together, so that no rename is half done."""
        durable, visible = self.durable(folder), self.visible_names.get(folder, {})
        if self._chance is not None and self._chance.random() < 0.5:
            return visible
        self._lost_names += len(visible.keys() - durable.keys())
        return durable

    def lay(self, identity: str, target: Path) -> None:
        """Write what survives of a file or a folder."""
        seen, durable = self.visible.get(identity), self._shadow / "f" / identity
        if seen.is_dir() if seen is not None else not durable.exists():
            target.mkdir(mode=0o750)
            for name, child in self.names(identity).items():
                self.lay(child, target / name)
            return
        target.write_bytes(self._survives(identity, durable.read_bytes() if durable.exists() else b"", seen))

    def _survives(self, identity: str, durable: bytes, seen: Path | None) -> bytes:
        written = durable if seen is None else seen.read_bytes()
        if written == durable:
            return durable
        chance, lost = self._chance, self._lost(identity)
        if chance is None:
            kept = durable
        elif not written.startswith(durable):  # cut or written over
            kept = durable if lost or chance.random() < 0.5 else written
        else:
            kept = written[: chance.randint(len(durable), len(written))]
            for begin, end in lost:
                hole = range(len(kept))[max(begin, len(durable)) : end]
                kept = kept[: hole.start] + bytes(len(hole)) + kept[hole.stop :] if hole else kept
            if chance.random() < 0.25:  # the size was written, the last bytes were not
                zeros = min(len(kept) - len(durable), _PAGE_BYTES)
                kept = kept[: len(kept) - zeros] + bytes(zeros)
        self._lost_bytes += max(len(written) - len(kept), 0)
        return kept

    def _lost(self, identity: str) -> list[tuple[int, int]]:
        path = self._shadow / "l" / identity
        return sorted(_LOST.iter_unpack(path.read_bytes())) if path.exists() else []


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
