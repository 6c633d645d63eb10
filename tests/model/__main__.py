"""``python -m tests.model replica|control|lease|raft [--small] [--seconds S] [--mutant NAME]``: search one model and say what
was seen.

Without ``--small`` the full bound is searched. It says states, edges, depth, peak memory and whether the bound was EXHAUSTED; a
broken invariant is printed as a shortest trace. ``--seconds`` are of processor time. ``--mutants`` lists the bugs that can be
put in.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from tests.model.catalogue import FULL, MUTANTS, SMALL, search
from tests.model.search import Bounds


def _told(depth: int, states: int, edges: int, width: int) -> None:
    print(f"depth {depth}: {states:,} states, {edges:,} edges, {width:,} to look at", file=sys.stderr, flush=True)


def main() -> int:
    """0: nothing is broken; 1: something is."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("model", choices=sorted(FULL))
    parser.add_argument("--small", action="store_true", help="the bounds of the test suite, and one step deeper")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop each search after so much processor time")
    parser.add_argument("--mutant", default="", help="search the smallest bound that shows this bug")
    parser.add_argument("--mutants", action="store_true", help="list them")
    options = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS[options.model]}
    if options.mutants:
        print("\n".join(known))
        return 0
    bugs = contextlib.nullcontext() if not options.mutant else known[options.mutant].applied()
    named = {**FULL[options.model], **SMALL[options.model]} if options.small or options.mutant else FULL[options.model]
    if options.mutant:
        names = [known[options.mutant].bound]
    else:
        names = list(SMALL[options.model] if options.small else FULL[options.model])
    broken = False
    with bugs:
        for name in names:
            outcome = search(named[name], Bounds(seconds=options.seconds), _told)
            print(f"{options.model}, {name}: {outcome}", flush=True)
            if outcome.trace is not None:
                print(outcome.trace, flush=True)
                broken = True
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
