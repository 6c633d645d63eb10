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
PATIENCE_S = 300.0
"""A busy machine takes minutes to start a driver and two executors."""
_TOO_SLOW = "Python worker failed to connect back"
_TAIL_BYTES = 8000
_MOST_RESTARTS = 20


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
        self._restarts = 0
        self.log_path = folder / "spark.log"
        self._log: IO[str] = self.log_path.open("a")
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._environment = {**kept, "TMPDIR": str(folder)}  # what a killed driver leaves goes with the folder

    def start(self) -> None:
        """Begin, or go on from the checkpoint."""
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
            text=True,
            start_new_session=True,
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

    @property
    def state(self) -> str:
        """Of the driver, and its newest micro-batches."""
        begun, committed = self.names("offsets")[-1:], self.names("commits")[-1:]
        return f"the driver {'has ended' if self.ended else 'runs'}, micro-batches begun {begun}, committed {committed}"

    def goes_on(self) -> bool:
        """Start it again if it has ended because Spark waited ten seconds for a Python worker of its own; whether that was so.

        RuntimeError where it has ended otherwise, or too often."""
        if not self.ended:
            return False
        self._restarts += 1
        if _TOO_SLOW not in self.log_path.read_text(errors="replace")[-_TAIL_BYTES:] or self._restarts > _MOST_RESTARTS:
            raise RuntimeError("the query has ended")
        self.kill()  # its executors
        self.start()
        return True

    def kill(self) -> None:
        """The driver first, so that it sees nobody else die; then all that it started."""
        if self._process is None:
            return
        below = children(self.pid)
        jvms = [pid for pid, command in below.items() if "java" in command.split(" ")[0]]
        for pid in [*jvms, self.pid, *below]:
            kill_process(pid)
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
