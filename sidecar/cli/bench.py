"""``liftpy bench``: measure liftpy, JetStream, Liftbridge and Kafka on this machine, in one run."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from liftpy.errors import ConfigError
from sidecar.bench.cases import CASES, BenchOptions
from sidecar.bench.running import better, draw, report, require_plots
from sidecar.bench.systems import OURS, SYSTEMS, ComparisonOptions, HostNetwork, choose_systems
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import Bandwidth, Duration, OutputFile, Size, json_option

_UNITS = {
    "per_s": "{:,.0f}/s",
    "cpu_us": "{:.2f} us CPU",
    "generator_cpu_us": "",
    "core": "{:.3f} of a core",
    "kept": "{:.0%} of the rate kept",
}


@click.command(cls=HelpCommand, example="liftpy bench --case acked --duration 3s --rounds 3")
@click.option(
    "--system",
    "systems",
    type=click.Choice(list(SYSTEMS)),
    multiple=True,
    help=(
        "System to measure. May be repeated.  [default: liftpy, JetStream on three servers with and without "
        "flushes, and Liftbridge and Kafka if installed]"
    ),
)
@click.option(
    "--case", "cases", type=click.Choice(list(CASES)), multiple=True, help="Case to measure. May be repeated.  [default: all]"
)
@click.option("--duration", "seconds", type=Duration(0.1, 600), default="3s", show_default=True, help="Duration of each run.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Number of rounds. The systems alternate, and the results are medians.",
)
@click.option(
    "--sizes",
    default="100,1000",
    show_default=True,
    metavar="SIZE,SIZE,...",
    help="Message sizes, separated by commas, such as 100B,64KiB. A number without a unit is in bytes.",
)
@click.option("--windows", default="1,64,4000", show_default=True, help="Numbers of messages in flight, separated by commas.")
@click.option(
    "--loads",
    default="10,50,80",
    show_default=True,
    help="Loads of the case latency, in percent of the peak rate of each system, separated by commas.",
)
@click.option(
    "--publishers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of publisher processes. They share the window.",
)
@click.option(
    "--nats-servers",
    type=click.Choice(["1", "3"]),
    default="1",
    show_default=True,
    help="Number of NATS servers for liftpy and Liftbridge: one, or one for each node.",
)
@click.option(
    "--network-delay",
    type=Duration(0, 1),
    default="0s",
    show_default=True,
    help="Network delay of each direction between two hosts. A relay on this machine adds it, and uses some CPU. Not for Kafka.",
)
@click.option(
    "--network-bandwidth",
    type=Bandwidth(1e6, 1e12),
    help="Bandwidth of each direction of the link of a NATS server, such as 100Mbit or 1Gbit.  [default: no limit]",
)
@click.option(
    "--kafka-jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the jars of Kafka (`libs` of its distribution). Measures Kafka too. Needs Java.",
)
@click.option(
    "--output",
    "out",
    type=OutputFile(),
    help="Append each result to this file when it is measured, one JSON object per line.",
)
@click.option(
    "--plot",
    type=OutputFile(),
    help="Write a chart of the ratios to this PNG file. Needs matplotlib.",
)
@json_option
def bench(
    systems: tuple[str, ...],
    cases: tuple[str, ...],
    seconds: float,
    rounds: int,
    sizes: str,
    windows: str,
    loads: str,
    publishers: int,
    nats_servers: str,
    network_delay: float,
    network_bandwidth: float | None,
    kafka_jars: Path | None,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure liftpy and other systems on this machine. Each system has three replicas, the same nats-server and the same publisher.

    The command starts every system on loopback with new data directories, and removes it afterwards. liftpy flushes the in-sync
    replicas before each ack. jetstream-always and kafka-flushed do the same. JetStream with default settings flushes every two
    minutes. Liftbridge and Kafka leave the flush to the operating system. The command measures Liftbridge if its binary is on the
    PATH.

    Compare figures of one run only. Run nothing else on the machine.

    A case that fails is named, and the run continues with the next one. Ctrl-C ends the run, and the report has what was measured
    before. The exit code is 1 if a case failed or the run was interrupted.
    """
    parts = [percent / 100 for percent in _numbers(loads, "--loads")]
    options = BenchOptions(seconds, _sizes(sizes), _numbers(windows, "--windows"), publishers, parts)
    say = functools.partial(click.echo, err=True)
    comparison = ComparisonOptions(int(nats_servers), kafka_jars, HostNetwork(network_delay, (network_bandwidth or 0.0) / 8))
    named = choose_systems(systems, comparison, say)
    if plot is not None:
        require_plots()
        if systems and (OURS not in systems or len(set(systems)) == 1):
            raise ConfigError(f"--plot compares {OURS} with others. Give --system {OURS} and at least one more --system.")
    wanted = {name: case for name, case in CASES.items() if not cases or name in cases}
    results = report(named, wanted, options, rounds, comparison, say, out)
    if as_json:
        click.echo(json.dumps(results, indent=1))
    else:
        show(results, Console(file=sys.stdout))
        for failure in results["failures"]:
            click.echo(
                f"failed: round {failure['round']}, {failure['system']}, case {failure['case']}: {failure['error']}", err=True
            )
    if plot is not None and results["rows"]:  # after the report, which a full disk must not take away
        draw(results, plot)
    if results["failures"] or not results["is_complete"]:
        raise SystemExit(1)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"Invalid value for {option}: {text!r}. Use whole numbers of 1 or more, separated by commas.")
    return numbers


def _sizes(text: str) -> tuple[int, ...]:
    size = Size(1, 64 << 20)
    try:
        return tuple(size.convert(part.strip(), None, None) for part in text.split(","))
    except click.BadParameter as error:
        raise ConfigError(f"Invalid value for --sizes: {error.message}. Separate the sizes by commas.") from None


def show(results: dict[str, Any], console: Console) -> None:
    """Print the report ``results`` as a table with a line for each case and system."""
    table = Table(box=None, pad_edge=False)
    for name in ("case", "system", "figures", "liftpy to it"):
        table.add_column(name, overflow="fold")
    last = ""
    for row in results["rows"]:
        figures = [_text(name, value) for name, value in row["figures"].items()]
        ratios = [
            f"[{'green' if better(name, ratio) else 'red'}]{name} {ratio:.2f}[/]"
            for name, ratio in row["ratios"].items()
            if name not in ("generator_cpu_us", "kept")
        ]
        table.add_row(
            "" if row["case"] == last else row["case"], row["system"], ", ".join(filter(None, figures)), ", ".join(ratios)
        )
        last = row["case"]
    console.print(table)


def _text(name: str, value: float) -> str:
    if name in _UNITS:
        return _UNITS[name].format(value)
    if not name.endswith("_ms"):
        return f"{name} {value:.2f}"
    return f"{name.removesuffix('_ms').replace('_', ' ')} {value:.2f} ms"
