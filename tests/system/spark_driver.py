"""A Spark driver as a process that is killed -9, with all that it started, and begun again from its checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 900.0
"""A busy machine takes minutes to start a driver and two executors."""


def children(pid: int) -> dict[int, str]:
    """Everything that ``pid`` started, and what that started: pid -> command line."""
    found: dict[int, list[tuple[int, str]]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int(place.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                command = place.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.setdefault(parent, []).append((int(place.name), command))
    below, waiting = dict[int, str](), [pid]
    while waiting:
        for child, command in found.get(waiting.pop(), ()):
            below[child] = command
            waiting.append(child)
    return below


def kill_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class SparkDriver:
    """The driver's process. ``command``: that runs it; ``folder``: of its log; ``checkpoint``: of its query."""

    def __init__(self, command: list[str], folder: Path, checkpoint: Path) -> None:
        self._command = command
        self.folder = folder
        self._checkpoint = checkpoint
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] = (folder / "spark.log").open("a")

    def start(self) -> None:
        """Begin, or go on from the checkpoint."""
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdout=self._log, stderr=self._log, text=True, start_new_session=True
        )

    @property
    def pid(self) -> int:
        """Of the driver's Python process, whose child the JVM is."""
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        """By itself: a query that runs for ever has failed then."""
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """The driver first, so that it sees nobody else die; then all that it started."""
        below = children(self.pid)
        jvms = [pid for pid, command in below.items() if "java" in command.split(" ")[0]]
        for pid in [*jvms, self.pid, *below]:
            kill_process(pid)
        assert self._process is not None
        self._process.wait()

    def names(self, log: str) -> list[int]:
        """Numbers of the micro-batches in ``offsets`` (begun) or ``commits`` of the checkpoint."""
        folder = self._checkpoint / log
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else []

    @property
    def in_the_middle(self) -> bool:
        """Whether a micro-batch was begun and is not committed."""
        begun, committed = self.names("offsets"), self.names("commits")
        return bool(begun) and (not committed or begun[-1] > committed[-1])


async def until(condition: Any, timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.02)
