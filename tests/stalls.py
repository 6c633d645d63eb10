"""Runs tests while their processes are stopped now and then, as a loaded machine stops them: who counts on real time fails.

    python -m tests.stalls [--seed N] [PYTEST ARGUMENTS]        default: tests/unit in two workers, about 3 minutes

A test that fails here, and not otherwise, waits for a time instead of a condition; it would fail one day in CI. What is about
processes that are too late (``test_ingest_connection_overload.py``) is left out.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

BETWEEN_S = (0.05, 0.8)
STOPPED_S = (0.2, 1.2)
DEFAULT = ("-n", "2", "tests/unit", "--deselect", "tests/unit/transport/test_ingest_connection_overload.py")


def children(pid: int) -> list[int]:
    """Process ids whose parent is ``pid``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(folder.name))
    return found


def main() -> int:
    """Pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    options, arguments = parser.parse_known_args()
    chance = random.Random(options.seed)
    command = [sys.executable, "-m", "pytest", "--timeout", "600", *(arguments or DEFAULT)]
    running = subprocess.Popen(command, start_new_session=True)
    while running.poll() is None:
        time.sleep(chance.uniform(*BETWEEN_S))
        one = chance.choice(children(running.pid) or [running.pid])
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
            try:
                time.sleep(chance.uniform(*STOPPED_S))
            finally:
                os.kill(one, signal.SIGCONT)
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
