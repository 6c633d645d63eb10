"""CPU of processes, and runs of processes that print their figures."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")

Figures = dict[str, Any]
"""Name of a figure -> its value; what ends with ``_s``, ``_us`` or ``_ms`` is a time, or a rate a second."""


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def all_cpu_s(pids: Iterable[int]) -> float:
    """Of all that still run."""
    total = 0.0
    for pid in pids:
        try:
            total += cpu_s(pid)
        except FileNotFoundError:
            continue
    return total


def measured(words: Sequence[str], folder: Path | None, pids: Sequence[int]) -> Figures:
    """What the process printed as JSON in its last line, with ``all_cpu_s`` of it (its ``cpu_s``) and of ``pids`` meanwhile, from its
    line ``go`` on where it warms up first. Raises SystemExit when it fails."""
    (found,) = measured_together([words], folder, pids)
    return found


def measured_together(commands: Sequence[Sequence[str]], folder: Path | None, pids: Sequence[int]) -> list[Figures]:
    """The same of several processes at once; ``all_cpu_s`` of ``pids`` and of all of them is in the first's figures."""
    before = all_cpu_s(pids)
    processes = [subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) for words in commands]
    found: list[Figures] = []
    try:
        for words, process in zip(commands, processes, strict=True):
            assert process.stdout is not None
            last = ""
            for last in process.stdout:
                if last.strip() == "go":
                    before = all_cpu_s(pids)
            if process.wait():
                raise SystemExit(f"The command {' '.join(words[:3])} failed with exit code {process.returncode}.")
            found.append(json.loads(last))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    found[0]["all_cpu_s"] = sum(one["cpu_s"] for one in found) + all_cpu_s(pids) - before
    return found
