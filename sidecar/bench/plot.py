"""The picture of a report: for each case a bar for each peer, ours to theirs, on a logarithmic scale."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from liftpy.errors import ConfigError
from sidecar.bench.running import better

_SHOWN = ("end_p99_ms", "p50_ms", "gap_ms", "core", "per_s")
"""Of each case the first of these that it has."""


def bars(report: dict[str, Any]) -> list[tuple[str, str, float, bool]]:
    """(case and figure, peer, how many times better ours is: below 1 worse, whether it is better), in the report's order."""
    found = []
    for row in report["rows"]:
        name = next((name for name in _SHOWN if row["ratios"].get(name)), "")
        if name:
            ratio = row["ratios"][name]
            times = ratio if better(name, 2.0) else 1 / ratio
            found.append((f"{row['case']} ({name})", row["system"], times, times >= 1))
    return found


def require_plots() -> None:
    """Raise ConfigError without matplotlib. Call it before a long run."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib. Install it with `pip install matplotlib`, or use --json, which prints all figures."
        )


def draw(report: dict[str, Any], path: Path) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = bars(report)
    cases = list(dict.fromkeys(case for case, *_ in found))[::-1]
    peers = list(dict.fromkeys(peer for _, peer, *_ in found))
    height = 0.8 / len(peers)
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.28 * len(cases) * max(len(peers), 2)))
    for number, peer in enumerate(peers):
        mine = [(cases.index(case), times) for case, name, times, _ in found if name == peer]
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
