"""``python -m tests.simulation.raft --seeds N [--first S]``: the metadata group under N seeds; exit code 1 on any violation."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.simulation.raft.group_simulation import Run, Violation


def run_seeds(seeds: range) -> tuple[Counter[str], list[str]]:
    """What was seen over all seeds, and the failures."""
    seen: Counter[str] = Counter()
    failures = []
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    for seed in seeds:
        folder = Path(tempfile.mkdtemp(prefix="liftpy-raft-", dir=base))
        run = Run(seed, folder)
        try:
            run.execute()
        except Exception as error:  # a Violation may come wrapped by what it stopped
            reason = error.__cause__ if isinstance(error.__cause__, Violation) else error
            failures.append(f"seed {seed}: {type(reason).__name__}: {reason}")
        run.close()
        seen += run.seen
        shutil.rmtree(folder, ignore_errors=True)
    return seen, failures


def main() -> int:
    """Run and print the coverage."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    began = time.perf_counter()
    seen, failures = run_seeds(range(given.first, given.first + given.seeds))
    for what, count in sorted(seen.items()):
        print(f"{count:>10}  {what}")
    print(f"{given.seeds} seeds in {time.perf_counter() - began:.0f} s, {len(failures)} with a violation")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
