"""``python -m tests.simulation.whole [--seeds N] [--first S] [--events M]``: clusters whose metadata group is Raft on their own nodes.

Prints what happened how often, and each violation; ``--trace SEED`` prints one history line by line. Exit code 1 on a violation.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation.whole.run import run_seed


def _print_trace(seed: int, events: int) -> int:
    outcome = run_seed(seed, events, trace=True)
    assert outcome.trace is not None
    print("\n".join(outcome.trace.lines))
    print(outcome.report())
    return 1 if outcome.violation else 0


def main() -> int:
    """Run and print the coverage."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--events", type=int, default=15_000)
    parser.add_argument("--trace", type=int)
    options = parser.parse_args()
    if options.trace is not None:
        return _print_trace(options.trace, options.events)
    seen: Counter[str] = Counter()
    failed, virtual_s, began = [], 0.0, time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        outcome = run_seed(seed, options.events)
        seen += outcome.counters
        virtual_s += outcome.virtual_s
        if outcome.violation is not None:
            failed.append(seed)
            print(outcome.report(), flush=True)
    for what, count in sorted(seen.items()):
        print(f"{count:>10}  {what}")
    took_s = time.monotonic() - began
    print(f"{options.seeds} seeds, {virtual_s:.0f} s of cluster time in {took_s:.0f} s; violations: {failed or 0}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
