"""Runs the cases of ``liftpy bench`` in rounds, stores each result at once, and makes the report.

In each round each system starts without data and runs its cases. A case that fails is reported, and the run continues with
the next one. The report has medians over the rounds, and ratios of liftpy to the other systems.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liftpy.errors import ConfigError
from sidecar.bench.cases import BenchOptions, Case, Figures, load_alone, warm
from sidecar.bench.systems import OURS, SYSTEMS, ComparisonOptions

Say = Callable[[str], None]
Runs = dict[tuple[str, str], list[Figures]]
"""(case, system) -> figures of each round."""

_MORE_IS_BETTER = ("per_s", "kept")
_SHOWN = ("end_p99_ms", "p50_ms", "gap_ms", "core", "per_s")
"""Figures in order of preference. The chart shows the first one that a case has."""


@dataclass(slots=True)
class Results:
    """Measured values and failures so far. ``out``: file to which each result is appended as a line of JSON. None: no file."""

    out: Path | None = None
    runs: Runs = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, round_number: int, system: str, case: str, figures: Figures) -> None:
        self.runs.setdefault((case, system), []).append(figures)
        self._write({"round": round_number, "system": system, "case": case, "figures": figures})

    def fail(self, round_number: int, system: str, case: str, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        self.failures.append({"round": round_number, "system": system, "case": case, "error": reason})
        self._write(self.failures[-1])

    def _write(self, line: dict[str, Any]) -> None:
        """Append a line to the file. If that fails, write no further line, because the measurement must not fail with the disk."""
        if self.out is None:
            return
        try:
            with self.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            reason = (
                f"Cannot write --output {self.out}: {error.strerror or error}. The file lacks this result and all later ones."
            )
            self.out = None
            self.failures.append({**{name: line[name] for name in ("round", "system", "case")}, "error": reason})


def run(
    systems: Sequence[str],
    cases: Mapping[str, Case],
    options: BenchOptions,
    rounds: int,
    comparison: ComparisonOptions,
    say: Say,
    results: Results,
) -> None:
    """Measure the ``systems`` in several rounds. Their order rotates from round to round.

    Args:
        systems: Names of systems.
        cases: Function that measures a case, by the name of the case.
        options: Options of the cases.
        rounds: Number of times that each system is measured.
        comparison: Locations of other systems.
        say: Called with a line of text for each system and round, and for each failure.
        results: Object that stores every result and every failure.
    """
    for number in range(1, rounds + 1):
        turned = [*systems[(number - 1) % len(systems) :], *systems[: (number - 1) % len(systems)]]
        for name in turned:
            began = time.monotonic()
            case = "start"
            try:
                with SYSTEMS[name](comparison) as system:
                    system.prepare()
                    warm(system)
                    for case, measure in cases.items():
                        if case in system.lacks:
                            continue
                        try:
                            for row in measure(system, options):
                                results.add(number, name, str(row["case"]), row["figures"])  # type: ignore[arg-type]
                        except (Exception, SystemExit) as error:
                            results.fail(number, name, case, error)
                            say(f"round {number} of {rounds}: {name}, case {case} failed, continuing: {error}")
            except (Exception, SystemExit) as error:
                results.fail(number, name, case, error)
                say(f"round {number} of {rounds}: {name} failed after case {case}, continuing with the next system: {error}")
            say(f"round {number} of {rounds}: {name}, {time.monotonic() - began:.0f} s")


def median(same: Sequence[Figures]) -> Figures:
    """Return the median of each measured value over several runs of one case. A value counts in the runs that have it."""
    names = dict.fromkeys(name for one in same for name in one)
    return {name: statistics.median(one[name] for one in same if name in one) for name in names}


def rows(runs: Runs) -> list[dict[str, Any]]:
    """Return one row for each case and system: ``case``, ``system``, medians of the values in ``runs``, ``rounds``, and ``ratios``.

    A ratio is liftpy's value divided by the system's value.
    """
    result_rows = []
    for (case, system), same in runs.items():
        ours = median(runs.get((case, OURS), []))
        figures = median(same)
        ratios = {name: ours[name] / value for name, value in figures.items() if system != OURS and value and name in ours}
        result_rows.append({"case": case, "system": system, "rounds": len(same), "figures": figures, "ratios": ratios})
    order = {case: place for place, case in enumerate(dict.fromkeys(case for case, _ in runs))}
    return sorted(result_rows, key=lambda row: (order[row["case"]], row["system"] != OURS))


def report(
    systems: Sequence[str],
    cases: Mapping[str, Case],
    options: BenchOptions,
    rounds: int,
    comparison: ComparisonOptions,
    say: Say,
    out: Path | None = None,
) -> dict[str, Any]:
    """Measure all systems, and return the object for ``--json``: ``how``, ``load_alone``, ``rows``, ``failures`` and ``is_complete``.

    ``say`` is called with lines of text about the progress. ``out``: file for each result, None: none. Ctrl-C and SIGTERM end the run.
    The report then has the results so far, and ``is_complete`` is False.
    """
    results = Results(out)
    alone: dict[int, Figures] = {}
    is_complete = True
    try:
        alone = load_alone(options)
        say(
            "the load alone: " + ", ".join(f"{size_bytes} B {figures['per_s']:,.0f}/s" for size_bytes, figures in alone.items())
        )
        run(systems, cases, options, rounds, comparison, say, results)
    except KeyboardInterrupt:
        is_complete = False
        say("interrupted: the report has what was measured so far")
    how = {
        "seconds": options.seconds,
        "rounds": rounds,
        "publishers": options.publishers,
        "nats_servers_of_liftpy": comparison.nats_servers,
        "network_delay_ms": comparison.network.delay_s * 1000,
        "network_bandwidth_bytes_per_s": comparison.network.bytes_per_s,
    }
    return {
        "how": how,
        "load_alone": alone,
        "rows": rows(results.runs),
        "failures": results.failures,
        "is_complete": is_complete,
    }


def better(name: str, ratio: float) -> bool:
    """Return whether ``ratio`` (liftpy divided by the other system) is in favor of liftpy, for the measured value ``name``."""
    return ratio > 1 if name in _MORE_IS_BETTER else ratio < 1


# ---- chart -----------------------------------------------------------------------------------------------------------


def bars(report: dict[str, Any]) -> list[tuple[str, str, float, bool]]:
    """Return (case and measured value, system, ratio, True if liftpy is better) for the chart, in the order of the report.

    A ratio above 1 is better for liftpy.
    """
    bar_rows = []
    for row in report["rows"]:
        name = next((name for name in _SHOWN if row["ratios"].get(name)), "")
        if name:
            ratio = row["ratios"][name]
            times = ratio if better(name, 2.0) else 1 / ratio
            bar_rows.append((f"{row['case']} ({name})", row["system"], times, times >= 1))
    return bar_rows


def require_plots() -> None:
    """Raise ConfigError if matplotlib is missing. Call it before a long run."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib. Install it with `pip install matplotlib`, or use --json, which prints all figures."
        )


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw a report as a bar chart into the PNG file ``path``.

    For each case, each other system has a bar with the ratio of liftpy to it, on a logarithmic scale.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    all_bars = bars(report)
    cases = list(dict.fromkeys(case for case, *_ in all_bars))[::-1]
    peers = list(dict.fromkeys(peer for _, peer, *_ in all_bars))
    height = 0.8 / len(peers)
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.28 * len(cases) * max(len(peers), 2)))
    for number, peer in enumerate(peers):
        mine = [(cases.index(case), times) for case, name, times, _ in all_bars if name == peer]
        places = [place + height * (len(peers) - 1 - number) for place, _ in mine]
        drawn = axes.barh(places, [times - 1 for _, times in mine], height, left=1, label=peer)
        axes.bar_label(drawn, [f"{times:.2f}" for _, times in mine], padding=2, fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks([place + height * (len(peers) - 1) / 2 for place in range(len(cases))], cases, fontsize=8)
    axes.set_xlabel("times better than the peer (right of 1: liftpy is ahead)")
    axes.legend(fontsize=8, loc="best")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
