"""``python -m tests.simulation.raft [--seeds N] [--first S]``: the metadata group under N seeds; exit code 1 on any violation.

In seeds from 10,000 on controllers tick at deadlines, as shipped. ``--mixed``: controllers of two versions, which come and go until a
level is finalized; ``--diverged``: images that turn (``mixed.py``).
``--mutants [--only TEXT]``: each mutant of ``mutants.py`` under at most N seeds; exit code 1 if one survives.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.simulation.raft.group_simulation import Run, Violation
from tests.simulation.raft.mutants import MUTANTS, RaftMutant


def run_seed(seed: int, seen: Counter[str], kind: type[Run] = Run) -> str:
    """What broke, '' if nothing did. Adds to ``seen`` what was seen."""
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="liftpy-raft-", dir=base))
    run, failure = kind(seed, folder), ""
    try:
        run.execute()
    except Exception as error:  # a Violation may come wrapped by what it stopped
        reason = error.__cause__ if isinstance(error.__cause__, Violation) else error
        failure = f"seed {seed}: {type(reason).__name__}: {reason}"
    run.close()
    seen += run.seen
    shutil.rmtree(folder, ignore_errors=True)
    return failure


def run_seeds(seeds: Iterable[int], kind: type[Run] = Run) -> tuple[Counter[str], list[str]]:
    """What was seen over all seeds, and the failures."""
    seen: Counter[str] = Counter()
    failures = [run_seed(seed, seen, kind) for seed in seeds]
    return seen, [failure for failure in failures if failure]


def hunt(mutant: RaftMutant, seeds: range) -> tuple[int, str]:
    """(seeds tried, what broke or ''). The same seed without the mutant must be clean."""
    for tried, seed in enumerate(seeds, 1):
        with mutant.applied():
            failure = run_seed(seed, Counter())
        if failure and not run_seed(seed, Counter()):
            return tried, failure
    return len(seeds), ""


def _hunt_all(seeds: range, only: str) -> int:
    wanted = [mutant for mutant in MUTANTS if only in mutant.name]
    survivors = 0
    for mutant in wanted:
        began = time.perf_counter()
        tried, failure = hunt(mutant, seeds)
        survivors += not failure
        verdict = f"killed by {tried:3} seeds" if failure else f"SURVIVES {tried:3} seeds"
        print(f"{verdict}  {time.perf_counter() - began:5.0f} s  {mutant.name:52} {failure[:120]}", flush=True)
    print(f"{len(wanted) - survivors} of {len(wanted)} killed")
    return 1 if survivors else 0


def main() -> int:
    """Run and print the coverage."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--diverged", action="store_true")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    if given.mutants:
        return _hunt_all(seeds, given.only)
    began = time.perf_counter()
    from tests.simulation.raft.mixed import DivergedRun, MixedRun, decides

    with decides(guarded=True) if given.mixed else contextlib.nullcontext():
        seen, failures = run_seeds(seeds, MixedRun if given.mixed else DivergedRun if given.diverged else Run)
    for what, count in sorted(seen.items()):
        print(f"{count:>10}  {what}")
    print(f"{given.seeds} seeds in {time.perf_counter() - began:.0f} s, {len(failures)} with a violation")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
