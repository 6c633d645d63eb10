"""``python -m tests.simulation.group [--seeds N] [--first K] [--only KIND]``: groups under faults, every promise checked.

KIND: members, queues, ordered (queues with order per key), leader-changes (queues whose partition changes its leader).

Prints what happened how often, and each violation with its seed. Exit code 1 on a violation. ``--mutants``: plants each bug of the
catalogue, and says which seed notices it, and by which invariant.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable

from liftpy.errors import InvariantError
from tests.simulation.group import catalogue, queues, world

HISTORIES: dict[str, Callable[[int], Counter[str]]] = {
    "members": world.run,
    "queues": queues.run,
    "ordered": queues.run_ordered,
    "leader-changes": queues.run_with_leader_changes,
}


def plant() -> int:
    """How many of the catalogue's bugs are not noticed by the history that each names."""
    survivors = 0
    for kind, bugs in catalogue.BY_KIND.items():
        for bug in bugs:
            text = "SURVIVES"
            try:
                with bug.planted():
                    HISTORIES[kind](bug.seed)
            except InvariantError as error:
                text = str(error)
            survivors += f"invariant {bug.code} " not in text
            print(f"{bug.name}: seed {bug.seed}, {bug.code}: {text[:100]}", flush=True)
    print(f"{survivors} survive")
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", choices=sorted(HISTORIES))
    parser.add_argument("--mutants", action="store_true")
    options = parser.parse_args()
    if options.mutants:
        return 1 if plant() else 0
    failed = 0
    for kind in [options.only] if options.only else sorted(HISTORIES):
        begin, seen = time.monotonic(), Counter[str]()
        for seed in range(options.first, options.first + options.seeds):
            try:
                seen += HISTORIES[kind](seed)
            except InvariantError as error:
                failed += 1
                print(f"{kind} {seed}: {error}")
        print("\n".join(f"{name:44} {count:10}" for name, count in sorted(seen.items())))
        print(f"{kind}: {options.seeds} seeds, {time.monotonic() - begin:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
