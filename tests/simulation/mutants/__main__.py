"""``python -m tests.simulation.mutants [--seeds N] [--events M] [--only TEXT]``: bring each classical bug back, and see it killed.

Prints per mutant the invariant that broke, the seed, and how many seeds it took; exit code 1 if one survives.
"""

from __future__ import annotations

import argparse
import sys
import time

from liftpy.config import CommitPolicy
from liftpy.testing.faults import draw_plan
from liftpy.testing.run import Outcome, run_plan
from tests.simulation.mutants.catalogue import MUTANTS, Mutant


def hunt(mutant: Mutant, seeds: int, events: int) -> tuple[int, Outcome | None]:
    """(seeds tried, the run that killed it or None). The same plan without the mutant must be clean."""
    tried = seed = 0
    while tried < seeds:
        seed += 1
        quorum = mutant.profile == "quorum"
        plan = draw_plan(seed, "elections" if quorum else mutant.profile)
        if quorum and plan.policy is not CommitPolicy.QUORUM:
            continue
        tried += 1
        with mutant.applied():
            outcome = run_plan(plan, events)
        if outcome.violation is not None and run_plan(plan, events).violation is None:
            return tried, outcome
    return tried, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--events", type=int, default=8000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    survivors, counts = [], []
    for mutant in MUTANTS:
        if options.only not in mutant.name:
            continue
        start = time.monotonic()
        tried, outcome = hunt(mutant, options.seeds, options.events)
        seconds = time.monotonic() - start
        if outcome is None:
            survivors.append(mutant.name)
            print(f"SURVIVES  {mutant.name:42} {tried:4} seeds {seconds:6.1f} s   [{mutant.cites}]", flush=True)
            continue
        counts.append(tried)
        how = outcome.violation.splitlines()[0][:110]
        print(f"killed    {mutant.name:42} {tried:4} seeds {seconds:6.1f} s   seed {outcome.plan.seed}: {how}", flush=True)
    median = sorted(counts)[len(counts) // 2] if counts else 0
    print(f"{len(counts)} of {len(counts) + len(survivors)} killed, median {median} seeds")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
