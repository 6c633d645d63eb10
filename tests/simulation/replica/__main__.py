"""``python -m tests.simulation.replica [--seeds N] [--first S] [--events M] [--workers W] [--shrink]``: many clusters, one table.

``--corpus``: the seeds that once found something, and those that are fatal to mutants, instead (``test_sim_seeds.py``).

Every seed is a whole history: chaos for about M events, then healing, with every invariant checked after every step. Prints what
happened how often (coverage), and each violation; ``--trace SEED`` prints one history line by line. Exit code 1 on a violation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from multiprocessing import get_context

from tests.simulation.replica.plan import PROFILES
from tests.simulation.replica.run import Outcome, run_seed, shrink
from tests.simulation.replica.worker import run_job


def coverage_table(counters: Counter[str], seeds: Counter[str]) -> str:
    """How often each thing happened, and in how many seeds."""
    lines = [f"{'what':52} {'times':>10} {'seeds':>7}"]
    lines += [f"{name[:52]:52} {count:10} {seeds[name]:7}" for name, count in sorted(counters.items()) if count]
    return "\n".join(lines)


def _print_trace(seed: int, events: int, shorten: bool, profile: str | None) -> int:
    outcome: Outcome = run_seed(seed, events, trace=True, profile=profile)
    if shorten and outcome.violation:
        outcome = shrink(outcome, say=lambda text: print(text, file=sys.stderr))
    assert outcome.trace is not None
    print("\n".join(outcome.trace.lines))
    print(outcome.report())
    return 1 if outcome.violation else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--trace", type=int)
    parser.add_argument(
        "--profile", choices=sorted(filter(None, PROFILES)), help="the kinds of fault; without it each seed draws one"
    )
    parser.add_argument("--corpus", action="store_true", help="run the seeds that test_sim_seeds.py names")
    parser.add_argument("--shrink", action="store_true", help="with --trace: make the failing schedule as short as possible")
    options = parser.parse_args()
    if options.trace is not None:
        return _print_trace(options.trace, options.events, options.shrink, options.profile)
    counters: Counter[str] = Counter()
    seeds: Counter[str] = Counter()
    failed, events, virtual_s = [], 0, 0.0
    start = time.monotonic()
    jobs = [(seed, options.events, options.profile) for seed in range(options.first, options.first + options.seeds)]
    if options.corpus:
        from tests.simulation.replica.test_sim_seeds import corpus

        jobs = corpus()
    with get_context("spawn").Pool(options.workers) as pool:
        for seed, count, seconds, text, seen in pool.imap_unordered(run_job, jobs):
            events, virtual_s = events + count, virtual_s + seconds
            counters += seen
            seeds.update(name for name, times in seen.items() if times)
            if text:
                failed.append(seed)
                print(text, flush=True)
    took = time.monotonic() - start
    print(coverage_table(counters, seeds))
    print(f"{len(jobs)} seeds, {events} events, {virtual_s:.0f} s of cluster time in {took:.1f} s; violations: {failed or 0}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
