"""Run the cases of ``liftpy bench`` in rounds, keep each result as it comes, and make the report.

In each round each system starts from nothing and runs its cases. A case that fails is named, and the run continues with the next one.
The report has medians over the rounds, and ratios of liftpy to the other systems.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.bench.cases import Asked, Case, load_alone, warm
from sidecar.bench.measuring import Figures
from sidecar.bench.systems import OURS, SYSTEMS, PeersGiven

Say = Callable[[str], None]
Runs = dict[tuple[str, str], list[Figures]]
"""(case, system) -> figures of each round"""

_MORE_IS_BETTER = ("per_s", "kept")


@dataclass(slots=True)
class Results:
    """Results so far. With ``out``, each result is appended to that file as a line of JSON."""

    out: Path | None = None
    runs: Runs = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, round_number: int, system: str, case: str, figures: Figures) -> None:
        """Keep the figures of one case."""
        self.runs.setdefault((case, system), []).append(figures)
        self._write({"round": round_number, "system": system, "case": case, "figures": figures})

    def fail(self, round_number: int, system: str, case: str, error: BaseException) -> None:
        """Keep the name of a case that failed, and why."""
        reason = str(error) or type(error).__name__
        self.failures.append({"round": round_number, "system": system, "case": case, "error": reason})
        self._write(self.failures[-1])

    def _write(self, line: dict[str, Any]) -> None:
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


def run(
    systems: Sequence[str],
    cases: Mapping[str, Case],
    asked: Asked,
    rounds: int,
    given: PeersGiven,
    say: Say,
    results: Results,
) -> None:
    """Measure ``systems``, given by name, in an order that rotates from round to round.

    Args:
        systems: Names of systems.
        cases: Name of a case and the function that measures it.
        asked: What each case uses.
        rounds: How often each system is measured.
        given: Where other systems are found.
        say: Receives one line of progress per system and round, and one per failure.
        results: Receives every result as it comes, and every failure.
    """
    for number in range(1, rounds + 1):
        turned = [*systems[(number - 1) % len(systems) :], *systems[: (number - 1) % len(systems)]]
        for name in turned:
            began = time.monotonic()
            case = "start"
            try:
                with SYSTEMS[name](given) as system:
                    system.prepare()
                    warm(system)
                    for case, measure in cases.items():
                        if case in system.lacks:
                            continue
                        try:
                            for row in measure(system, asked):
                                results.add(number, name, str(row["case"]), row["figures"])  # type: ignore[arg-type]
                        except (Exception, SystemExit) as error:
                            results.fail(number, name, case, error)
                            say(f"round {number} of {rounds}: {name}, case {case} failed, continuing: {error}")
            except (Exception, SystemExit) as error:
                results.fail(number, name, case, error)
                say(f"round {number} of {rounds}: {name} failed after case {case}, continuing with the next system: {error}")
            say(f"round {number} of {rounds}: {name}, {time.monotonic() - began:.0f} s")


def median(same: Sequence[Figures]) -> Figures:
    """Return the median of each value over the rounds that have it."""
    names = dict.fromkeys(name for one in same for name in one)
    return {name: statistics.median(one[name] for one in same if name in one) for name in names}


def rows(runs: Runs) -> list[dict[str, Any]]:
    """Return one row for each case and system: ``case``, ``system``, medians, ``rounds``, and ``ratios`` of liftpy to the other
    system."""
    found = []
    for (case, system), same in runs.items():
        ours = median(runs.get((case, OURS), []))
        figures = median(same)
        ratios = {name: ours[name] / value for name, value in figures.items() if system != OURS and value and name in ours}
        found.append({"case": case, "system": system, "rounds": len(same), "figures": figures, "ratios": ratios})
    order = {case: place for place, case in enumerate(dict.fromkeys(case for case, _ in runs))}
    return sorted(found, key=lambda row: (order[row["case"]], row["system"] != OURS))


def report(
    systems: Sequence[str],
    cases: Mapping[str, Case],
    asked: Asked,
    rounds: int,
    given: PeersGiven,
    say: Say,
    out: Path | None = None,
) -> dict[str, Any]:
    """Run the cases and return the result of ``--json``: ``how``, ``load_alone``, ``rows``, ``failures`` and ``is_complete``.

    Ctrl-C and SIGTERM end the measuring. The report then has what was measured before, and ``is_complete`` is false.
    """
    results = Results(out)
    alone: dict[int, Figures] = {}
    is_complete = True
    try:
        alone = load_alone(asked)
        say(
            "the load alone: " + ", ".join(f"{size_bytes} B {figures['per_s']:,.0f}/s" for size_bytes, figures in alone.items())
        )
        run(systems, cases, asked, rounds, given, say, results)
    except KeyboardInterrupt:
        is_complete = False
        say("interrupted: the report has what was measured so far")
    how = {
        "seconds": asked.seconds,
        "rounds": rounds,
        "publishers": asked.publishers,
        "nats_servers_of_liftpy": given.nats_servers,
    }
    return {
        "how": how,
        "load_alone": alone,
        "rows": rows(results.runs),
        "failures": results.failures,
        "is_complete": is_complete,
    }


def better(name: str, ratio: float) -> bool:
    """Return whether liftpy is better."""
    return ratio > 1 if name in _MORE_IS_BETTER else ratio < 1
