"""Rounds: each system in turn, started anew, all its cases; medians over the rounds, and ratios to ours."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sidecar.bench.cases import Asked, Case, load_alone, warm
from sidecar.bench.measuring import Figures
from sidecar.bench.systems import OURS, SYSTEMS, PeersGiven

Say = Callable[[str], None]
Runs = dict[tuple[str, str], list[Figures]]
"""(case, system) -> figures of each round"""

_MORE_IS_BETTER = ("per_s", "kept")


def run(systems: Sequence[str], cases: Mapping[str, Case], asked: Asked, rounds: int, given: PeersGiven, say: Say) -> Runs:
    """``systems`` by name; their order turns round from round to round. ``say`` is told how far it is."""
    runs: Runs = {}
    for number in range(rounds):
        turned = [*systems[number % len(systems) :], *systems[: number % len(systems)]]
        for name in turned:
            began = time.monotonic()
            with SYSTEMS[name](given) as system:
                system.prepare()
                warm(system)
                for case in (case for kind, case in cases.items() if kind not in system.lacks):
                    for row in case(system, asked):
                        runs.setdefault((str(row["case"]), name), []).append(row["figures"])  # type: ignore[arg-type]
            say(f"round {number + 1} of {rounds}: {name}, {time.monotonic() - began:.0f} s")
    return runs


def median(same: Sequence[Figures]) -> Figures:
    """Of each figure over the rounds that have it."""
    names = dict.fromkeys(name for one in same for name in one)
    return {name: statistics.median(one[name] for one in same if name in one) for name in names}


def rows(runs: Runs) -> list[dict[str, Any]]:
    """One for each case and system: ``case``, ``system``, the medians, ``rounds``, and in ``ratios`` ours to theirs, figure by figure:
    of what is better when it is larger above 1 where we are better, of times and CPU below 1."""
    found = []
    for (case, system), same in runs.items():
        ours = median(runs.get((case, OURS), []))
        figures = median(same)
        ratios = {name: ours[name] / value for name, value in figures.items() if system != OURS and value and name in ours}
        found.append({"case": case, "system": system, "rounds": len(same), "figures": figures, "ratios": ratios})
    order = {case: place for place, case in enumerate(dict.fromkeys(case for case, _ in runs))}
    return sorted(found, key=lambda row: (order[row["case"]], row["system"] != OURS))


def report(
    systems: Sequence[str], cases: Mapping[str, Case], asked: Asked, rounds: int, given: PeersGiven, say: Say
) -> dict[str, Any]:
    """Everything that ``--json`` has: how it was run, the load alone, and the rows."""
    alone = load_alone(asked)
    say("the load alone: " + ", ".join(f"{size_bytes} B {figures['per_s']:,.0f}/s" for size_bytes, figures in alone.items()))
    found = rows(run(systems, cases, asked, rounds, given, say))
    how = {
        "seconds": asked.seconds,
        "rounds": rounds,
        "publishers": asked.publishers,
        "nats_servers_of_liftpy": given.nats_servers,
    }
    return {"how": how, "load_alone": alone, "rows": found}


def better(name: str, ratio: float) -> bool:
    """Whether ours is."""
    return ratio > 1 if name in _MORE_IS_BETTER else ratio < 1
