"""``liftpy spark audit``: check that all replicas have the same records."""

from __future__ import annotations

import json

import click
from rich.console import Console

from liftpy.spark.options import Selection
from liftpy.spark.pipelines.audit import audit as run
from liftpy.spark.pipelines.audit_findings import AuditReport
from liftpy.spark.pipelines.parallel import DEFAULT_TASKS, MAX_TASKS
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpCommand
from sidecar.cli.main import EXIT_UNAVAILABLE
from sidecar.cli.options import Duration, connection_options, internal_option, json_option
from sidecar.cli.output import table
from sidecar.cli.progress import Progress
from sidecar.cli.spark_job import SparkPlace, open_target, optional_spark_options
from sidecar.runtime.settings import Target

EXIT_DIFFERENT = 1
"""Replicas do not hold the same."""
EVERY_STREAM = ".*"


@click.command(cls=HelpCommand, example="liftpy spark audit orders")
@click.argument("streams", type=STREAM, nargs=-1)
@click.option("--timeout", "timeout_s", type=Duration(0.1, 3600), default="10s", show_default=True, metavar="DURATION",
              help="Time without an answer after which a replica counts as unavailable.")  # fmt: skip
@click.option("--tasks", type=click.IntRange(1, MAX_TASKS), default=DEFAULT_TASKS, show_default=True,
              help="Number of partition ranges to read in parallel, without --master.")  # fmt: skip
@json_option
@optional_spark_options
@connection_options
@internal_option
def audit(
    streams: tuple[str, ...], timeout_s: float, tasks: int, as_json: bool, place: SparkPlace | None, target: Target
) -> int:
    """Compare the committed records of all replicas of STREAMS, and print the first difference. Without STREAMS, compare all streams.

    Exit code 0: the replicas are equal, 1: they differ or one is damaged, 3: at least one partition had nothing to compare.
    """
    wanted = Selection(tuple(sorted(set(streams)))) if streams else Selection(pattern=EVERY_STREAM)
    with open_target(target, place, "liftpy audit") as (access, session), Progress("audit", None, unit="ranges") as progress:

        def tell(done: int, total: int) -> None:
            progress.at(done, done, total=total)

        report = run(access, wanted, spark=session, patience_s=timeout_s, tasks=tasks, internal=target.internal, tell=tell)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        _show(report)
    if report.first is not None:
        return EXIT_DIFFERENT
    return 0 if report.is_proven else EXIT_UNAVAILABLE


def _show(report: AuditReport) -> None:
    console = Console(soft_wrap=True)
    rows = [
        (
            f"{one.stream}/{one.partition}",
            f"{one.start_offset}..{one.end_offset}",
            node + ("*" if node == one.leader else ""),
            replica.state,
            str(replica.records),
            str(replica.size_bytes),
            ", ".join(f"{epoch}: {offset}" for epoch, offset in replica.epochs),
        )
        for one in report.partitions
        for node, replica in one.replicas.items()
    ]
    console.print(
        table(("partition", "offsets", "replica", "state", "records", "bytes", "epochs (from)"), rows, folds=("epochs (from)",))
    )
    for one in report.partitions:
        for node, replica in one.replicas.items():
            if replica.state != "compared":
                console.print(f"{one.stream}/{one.partition}: {node} is {replica.state}: {replica.detail}", markup=False)
        if one.dropped:
            text = (
                "later ones supersede them"
                if one.dropped_checked
                else "it could not be looked at whether later ones supersede them"
            )
            console.print(f"{one.stream}/{one.partition}: {one.dropped} records were dropped on some replicas only: {text}")
    if report.first is not None:
        console.print(f"first difference: {report.first}", markup=False)
        for found in report.findings[1:]:
            console.print(f"also: {found}", markup=False)
    elif not report.partitions:
        console.print("There are no streams.")
    elif report.is_proven:
        console.print("replicas agree")
    else:
        alone = ", ".join(f"{one.stream}/{one.partition}" for one in report.partitions if not one.is_proven)
        console.print(f"no difference was found, but of {alone} there were not two replicas to compare")
