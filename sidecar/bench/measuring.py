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
    """Return the user and system time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def all_cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU time of all running processes."""
    total = 0.0
    for pid in pids:
        try:
            total += cpu_s(pid)
        except FileNotFoundError:
            continue
    return total


def measured(words: Sequence[str], folder: Path | None, pids: Sequence[int]) -> Figures:
    """Return the JSON of the last output line of a process, with its CPU time (``cpu_s``) and that of ``pids`` (``all_cpu_s``),
    counted from its line ``go`` on."""
    (found,) = measured_together([words], folder, pids)
    return found


def measured_together(commands: Sequence[Sequence[str]], folder: Path | None, pids: Sequence[int]) -> list[Figures]:
    """Run several processes at once. The CPU time of all is in the first result."""
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
