"""``python -m tests.simulation.mutants [--seeds N] [--events M] [--only TEXT] [--part K/N]``: bring each bug back, and see it killed.

Prints per mutant how many seeds it took, the script that notices it (``tests/scripts``, ``KILLS``), and the invariant that broke first.
Some bugs need a story that chance hardly tells: those are killed by their script alone. Exit code 1 if one survives both.
"""

from __future__ import annotations

import argparse
import sys
import time

from liftpy.config import CommitPolicy
from tests.scripts import noticing
from tests.simulation.mutants.bug import Mutant
from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.replica.plan import draw_plan
from tests.simulation.replica.run import Outcome, run_plan


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
            if noticing.is_a_misfit(outcome.violation):
                raise SystemExit(f"{mutant.name} does not fit the code: {outcome.report()}")
            return tried, outcome
    return tried, None


def by_script(name: str) -> tuple[str, str]:
    """(script that names the mutant and breaks with it, what breaks); ('', '') if there is none."""
    for path, killed in noticing.pairs():
        if killed == name and (how := noticing.noticed(path, name)):
            return path.stem, how
    return "", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=120)
    parser.add_argument("--events", type=int, default=8000)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="1/1", help="the K-th of N parts of them")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    mutants = [mutant for mutant in MUTANTS if options.only in mutant.name][part - 1 :: parts]
    survivors, counts = [], []
    for mutant in mutants:
        start = time.monotonic()
        tried, outcome = hunt(mutant, options.seeds, options.events)
        script, how = by_script(mutant.name)
        seconds = time.monotonic() - start
        if outcome is not None:
            counts.append(tried)
            how = f"seed {outcome.plan.seed}: {(outcome.violation or '').splitlines()[0]}"
        elif not script:
            survivors.append(mutant.name)
        verdict = "SURVIVES" if mutant.name in survivors else "killed"
        by = f"{tried:4} seeds" if outcome is not None else " a script" if script else f"not {tried:4} seeds"
        print(
            f"{verdict:9} {mutant.name:42} {by} {seconds:6.1f} s  {script[5:]:38} {how.splitlines()[0][:100] if how else ''}",
            flush=True,
        )
    median = sorted(counts)[len(counts) // 2] if counts else 0
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} killed, {len(counts)} of them by seeds (median {median})")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
