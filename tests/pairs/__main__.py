"""``python -m tests.pairs``."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence

from tests.pairs.scenario import Scenario, run
from tests.pairs.table import FEATURES, INCOMPATIBLE, combined, fits

MOST_PRINTED = 3
"""Violations of one scenario: those after the first often follow from it."""


def scenarios(
    count: int, seed: int, *, triples: bool = False, names: Sequence[str] = (), every: bool = False
) -> Iterator[Scenario]:
    """What to run: named ones, every pair once, or random ones; no combination comes again before all have come."""
    if names:
        yield from (Scenario(tuple(names), seed + number) for number in range(count))
        return
    possible = combined(3 if triples else 2)
    chosen: list[tuple[str, ...]] = []
    rng = random.Random(seed)
    for number in range(len(possible) if every else count):
        if not chosen:
            chosen = list(possible)
            if not every:
                rng.shuffle(chosen)
            chosen.reverse()
        yield Scenario(chosen.pop(), seed + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where something was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.pairs", description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="scenarios to run (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the choice and of the first scenario (default 1)")
    parser.add_argument("--triples", action="store_true", help="combine three features instead of two")
    parser.add_argument("--pair", default="", metavar="A,B", help="these features, with the seeds SEED, SEED + 1 and so on")
    parser.add_argument("--every", action="store_true", help="every possible pair (or triple) once")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="only the K-th of N parts (default 1/1)")
    parser.add_argument("--list", action="store_true", help="print the table and end")
    parser.add_argument("--verbose", action="store_true", help="print a line for each scenario")
    chosen = parser.parse_args(arguments)
    names = tuple(name for name in chosen.pair.split(",") if name)
    if chosen.list:
        _print_table()
        return 0
    unknown = [name for name in names if name not in FEATURES]
    if unknown or (names and not fits(names)):
        parser.error(f"no such combination: {chosen.pair}; --list prints the features and what cannot be combined")
    part, parts = (int(number) for number in chosen.part.split("/"))
    wanted = scenarios(chosen.count, chosen.seed, triples=chosen.triples, names=names, every=chosen.every)
    return _run_all([one for number, one in enumerate(wanted) if number % parts == part - 1], chosen.verbose)


def _run_all(wanted: Sequence[Scenario], verbose: bool) -> int:
    began_s, failed, found = time.monotonic(), 0, 0
    for scenario in wanted:
        scenario_s = time.monotonic()
        violations = run(scenario)
        if verbose:
            print(f"{time.monotonic() - scenario_s:6.2f} s  {len(violations)}  {scenario.command}", flush=True)
        for violation in violations[:MOST_PRINTED]:
            print(f"VIOLATION {','.join(scenario.names)}: {violation}\n  {scenario.command}", flush=True)
        failed, found = failed + bool(violations), found + len(violations)
    size = len(wanted[0].names) if wanted else 2
    possible = len(combined(size))
    different = len({frozenset(scenario.names) for scenario in wanted})
    what = {2: "pairs", 3: "triples"}.get(size, "combinations")
    print(
        f"{possible} {what} possible, {different} run in {len(wanted)} scenarios, {found} violations in {failed} of them, "
        f"{time.monotonic() - began_s:.0f} s"
    )
    return 1 if failed else 0


def _print_table() -> None:
    for name, feature in FEATURES.items():
        print(f"{feature.kind:12} {name:18} {(feature.__doc__ or '').splitlines()[0]}")
    for pair, reason in INCOMPATIBLE.items():
        print(f"not {' with '.join(sorted(pair))}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
