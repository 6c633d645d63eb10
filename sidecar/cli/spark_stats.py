"""``liftpy spark stats``: statistics of streams over time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from liftpy.errors import ConfigError
from liftpy.spark.offsets import EARLIEST, LATEST, parse_spec
from liftpy.spark.options import Selection
from liftpy.spark.pipelines.parallel import DEFAULT_TASKS, MAX_TASKS
from liftpy.spark.pipelines.stats import StatsReport, plot_problem, save_plot
from liftpy.spark.pipelines.stats import stats as run
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import Duration, OutputFile, connection_options, json_option
from sidecar.cli.output import table
from sidecar.cli.spark_job import SparkPlace, open_target, optional_spark_options
from sidecar.runtime.settings import Target

_COLUMNS = (
    *("partition", "records", "MB", "records/s", "peak/s", "value p50", "p99", "largest", "keys", "subjects"),
    *("missing", "longest pause s"),
)


@click.command(cls=HelpCommand, example="liftpy spark stats orders --from -1h --bucket 1m --plot orders.png")
@click.argument("streams", type=STREAM, nargs=-1, required=True)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    help="Start position: earliest, -1h, -1000, or JSON with one position for each partition.",
)
@click.option(
    "--until",
    default="latest",
    show_default=True,
    help="End position (exclusive): latest, -10m, -1000, or JSON with one position for each partition.",
)
@click.option(
    "--bucket",
    "every_s",
    type=Duration(0.001),
    default=None,
    metavar="DURATION",
    help="Width of a time bucket.  [default: at most 60 buckets]",
)
@click.option("--plot", type=OutputFile(), metavar="FILE", help="Write a chart to this PNG file.")
@click.option("--timeout", "timeout_s", type=Duration(0.1, 3600), default="30s", show_default=True, metavar="DURATION",
              help="Maximum time without an answer.")  # fmt: skip
@click.option("--tasks", type=click.IntRange(1, MAX_TASKS), default=DEFAULT_TASKS, show_default=True,
              help="Number of partition ranges to read in parallel, without --master.")  # fmt: skip
@json_option
@optional_spark_options
@connection_options
def stats(
    streams: tuple[str, ...], start: str, until: str, every_s: float | None, plot: Path | None, timeout_s: float, tasks: int,
    as_json: bool, place: SparkPlace | None, target: Target,
) -> None:  # fmt: skip
    """Show rates, sizes, gaps, and distinct keys and subjects of STREAMS over time, for each partition and in total."""
    if plot is not None and (problem := plot_problem()):
        raise ConfigError(problem)
    now_ns = round(datetime.now(UTC).timestamp() * 1e9)
    starting = parse_spec(start, "--from", words=("earliest", "latest"), specials=(EARLIEST, LATEST)).as_of(now_ns)
    ending = parse_spec(until, "--until", words=("latest",), specials=(LATEST,)).as_of(now_ns)
    with open_target(target, place, "liftpy stats") as (access, session):
        report = run(
            access, Selection(tuple(sorted(set(streams)))), starting=starting, ending=ending,
            every_s=every_s or 0.0, spark=session, patience_s=timeout_s, tasks=tasks,
        )  # fmt: skip
    if plot is not None:
        save_plot(report, plot)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        _show(report)


def _show(report: StatsReport) -> None:
    console = Console(soft_wrap=True)
    rows = [_summary_row(one.summary()) for one in report.partitions]
    console.print(table(_COLUMNS, rows))
    for whole in report.streams():
        series = [
            (
                datetime.fromtimestamp(row["start_ns"] / 1e9, UTC).isoformat(sep=" ", timespec="milliseconds")[:23],
                str(row["records"]),
                f"{row['records_s']:.1f}",
                f"{row['bytes_s'] / 1e6:.3f}",
                str(row["keys"]),
                str(row["subjects"]),
            )
            for row in whole.series()
        ]
        title = f"{whole.stream}, every {report.width_s:g} s"
        console.print(table(("from (UTC)", "records", "records/s", "MB/s", "keys", "subjects"), series, title=title))
    for loss in report.losses:
        console.print(loss, markup=False)


def _summary_row(found: dict[str, Any]) -> tuple[str, ...]:
    pause = f"{found['longest_pause_s']:g}" + (
        f" at {found['longest_pause_before']}" if found["longest_pause_before"] >= 0 else ""
    )
    return (
        f"{found['stream']}/{found['partition']}",
        str(found["records"]),
        f"{(found['key_bytes'] + found['value_bytes']) / 1e6:.3f}",
        f"{found['records_s']:.1f}",
        f"{found['peak_records_s']:.1f}",
        *(str(found[name]) for name in ("value_p50", "value_p99", "value_largest", "keys", "subjects", "missing_offsets")),
        pause,
    )
