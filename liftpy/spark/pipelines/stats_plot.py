"""The plot of ``stats``: four panels over time in a PNG. matplotlib is imported only when one is drawn; no display is needed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from liftpy.errors import ConfigError
from liftpy.spark.pipelines.stats import PartitionStats, StatsReport

_MOST_LINES = 12
"""Beyond it, partitions of a stream are one line."""


def plot_problem() -> str:
    """Return why plots are not possible and what to do, '' if they are."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed: pip install 'liftpy[spark]'"
    return ""


def save_plot(report: StatsReport, path: Path) -> None:
    """Draw ``report`` into the PNG ``path``. Raises ConfigError where matplotlib is not there, or the file can't be written."""
    if problem := plot_problem():
        raise ConfigError(problem)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = report.partitions if len(report.partitions) <= _MOST_LINES else report.streams()
    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    (rate, size), (keys, values) = figure.subplots(2, 2)
    _over_time(rate, lines, "records/s", lambda row: row["records_s"])
    _over_time(size, lines, "MB/s (keys and values)", lambda row: row["bytes_s"] / 1e6)
    _over_time(keys, report.streams(), "distinct keys (lines), subjects (dashed)", lambda row: row["keys"])
    _over_time(keys, report.streams(), "", lambda row: row["subjects"], dashed=True)
    _sizes(values, report.streams())
    rate.legend(fontsize="small")
    figure.suptitle(
        f"{', '.join(one.stream for one in report.streams()) or 'nothing'}: buckets of {report.width_s:g} s, times in UTC"
    )
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise ConfigError(f"Cannot write the chart to {path}: {error}. Check the path (--plot).") from error


def _name(one: PartitionStats) -> str:
    return one.stream if one.partition < 0 else f"{one.stream}/{one.partition}"


def _over_time(
    axes: Any, lines: Sequence[PartitionStats], title: str, value: Callable[[dict[str, Any]], float], *, dashed: bool = False
) -> None:
    for number, one in enumerate(lines):
        series = one.series()
        times = [datetime.fromtimestamp(row["start_ns"] / 1e9, UTC) for row in series]
        style: dict[str, Any] = {"linestyle": "--"} if dashed else {"label": _name(one)}
        axes.step(times, [value(row) for row in series], where="post", marker=".", color=f"C{number % 10}", **style)
    if title:
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.tick_params(axis="x", rotation=30)


def _sizes(axes: Any, lines: Sequence[PartitionStats]) -> None:
    width = 0.8 / max(1, len(lines))
    most = max((int(one.measures.sizes.nonzero()[0].max(initial=0)) for one in lines), default=0)
    for number, one in enumerate(lines):
        axes.bar([power + number * width for power in range(most + 1)], one.measures.sizes[: most + 1], width, label=_name(one))
    axes.set_xticks(range(most + 1), [str(1 << power >> 1) for power in range(most + 1)], rotation=60, fontsize="small")
    axes.set_title("records by size of the value (bytes, at least)")
    axes.grid(alpha=0.3, axis="y")
