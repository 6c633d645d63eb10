"""``liftpy spark compact``: the latest record of each key, as a table."""

from __future__ import annotations

import json
import time

import click

from liftpy.spark.pipelines.compact import CompactPlan, next_step
from liftpy.spark.pipelines.compact import compact as run
from liftpy.spark.pipelines.table_formats import table_at
from liftpy.spark.pipelines.tables import FORMATS
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.spark_job import SparkPlace, ends_by_signal, source_options, spark_options
from sidecar.runtime.settings import Target


@click.command(cls=HelpCommand, example="liftpy spark compact orders --output /data/orders-latest")
@click.argument("stream", type=STREAM)
@click.option("--output", required=True, help="Directory of the table with the latest record of each key.")
@click.option(
    "--table",
    default="",
    help=("Read archived records from the archive in this directory.  [default: read everything from the stream]"),
)
@click.option("--table-format", "kind", type=click.Choice(list(FORMATS)), help="Format of a new table.  [default: delta]")
@click.option("--rebuild", is_flag=True, help="Read everything again, not only new records since the last run.")
@click.option("--dry-run", is_flag=True, help="Print the number of new records, and write nothing.")
@json_option
@spark_options
@connection_options
def compact(
    stream: str, output: str, table: str, kind: str | None, rebuild: bool, dry_run: bool, as_json: bool, place: SparkPlace,
    target: Target,
) -> None:  # fmt: skip
    """Write the latest record of each key of STREAM to a table. A tombstone deletes its key.

    Each run reads the new records and replaces the content of the table atomically.
    """
    with source_options(target, place) as options:
        plan = CompactPlan(stream=stream, output=output, kind=kind or "", table=table, anew=rebuild, source=options)
        if dry_run:
            step = next_step(plan, table_at(output, plan.kind))
            starts = {f"{name}/{partition}": offset for (name, partition), offset in sorted(step.starts.items())}
            known = 0 if step.before is None else step.before.record_count
            if as_json:
                click.echo(json.dumps({"starts": starts, "waiting": step.waiting, "keys": known}))
            else:
                click.echo(f"{step.waiting:,} records are new, from {starts}; the table has {known:,} keys")
            return
        with ends_by_signal(), place.open_session("liftpy spark compact") as session:
            began_s = time.monotonic()
            done = run(session, plan, lambda step: click.echo(f"{step.waiting:,} records are new", err=True))
            fields = {"read": done.read, "keys": done.keys, "bytes": done.size_bytes, "version": done.version}
            took_s = time.monotonic() - began_s
            if as_json:
                click.echo(json.dumps({**fields, "seconds": round(took_s, 3)}))
            else:
                what = "nothing was new" if done.version < 0 else f"version {done.version}, {done.size_bytes / 1e6:.1f} MB"
                click.echo(f"{done.keys:,} keys of {done.read:,} new records in {took_s:.1f} s, {what}")
