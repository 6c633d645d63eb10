"""``liftpy spark archive``: streams into a table of Parquet files."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import click

from liftpy.spark.pipelines.archive import COMPRESSIONS, DEFAULT_AGE_S, DEFAULT_BATCH_RECORDS, Archived, ArchivePlan, outlook
from liftpy.spark.pipelines.archive import archive as run
from liftpy.spark.pipelines.tables import FORMATS
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import Duration, connection_options, json_option
from sidecar.cli.spark_job import SparkPlace, ends_by_signal, source_options, spark_options
from sidecar.runtime.settings import Target


@click.command(cls=HelpCommand, example="liftpy spark archive orders --table /data/orders --once")
@click.argument("streams", type=STREAM, nargs=-1, required=True)
@click.option("--table", required=True, help="Directory of the table. The driver and all executors need the same path.")
@click.option("--table-format", "kind", type=click.Choice(list(FORMATS)), help="Format of a new table.  [default: delta]")
@click.option(
    "--once", is_flag=True, help="Archive the records that are committed now, then exit. Without it, continue until Ctrl-C."
)
@click.option(
    "--checkpoint",
    default="",
    metavar="FOLDER",
    help="Checkpoint directory of the query.  [default: _checkpoint in the table directory]",
)
@click.option(
    "--columns",
    default="",
    help=(
        "Columns of the source to archive, separated by commas. They must include stream, partition and offset.  [default: all]"
    ),
)
@click.option(
    "--from", "start", default="", help="Start of a new archive, as startingOffsets of the source.  [default: earliest]"
)
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="zstd",
    show_default=True,
    help="Compression of the Parquet files.",
)
@click.option(
    "--trigger-interval",
    "every_s",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="Time between two commits.",
)
@click.option(
    "--batch-records",
    type=click.IntRange(1),
    default=DEFAULT_BATCH_RECORDS,
    show_default=True,
    help="Maximum number of records in one commit.",
)
@click.option("--orphan-age", "orphan_age_s", type=Duration(), default=Duration.text(DEFAULT_AGE_S), show_default=True,
              metavar="DURATION",
              help="Age after which the start removes files of failed attempts.")  # fmt: skip
@click.option("--accept-loss", is_flag=True, help="Continue if retention deleted records that were not archived.")
@click.option("--dry-run", is_flag=True, help="Print the next position and the number of records that wait. Write nothing.")
@json_option
@spark_options
@connection_options
def archive(
    streams: tuple[str, ...], table: str, kind: str | None, once: bool, checkpoint: str, columns: str, start: str, compression: str,
    every_s: float, batch_records: int, orphan_age_s: float, accept_loss: bool, dry_run: bool, as_json: bool,
    place: SparkPlace, target: Target,
) -> None:  # fmt: skip
    """Archive STREAMS into a table, each record exactly once. After a failure, run the command again: it resumes.

    Every reader of Delta (or Iceberg) can read the table. liftpy.spark.pipelines.archive.whole returns the
    table and the live stream as one DataFrame.
    """
    plan = ArchivePlan(
        streams=streams, table=table, kind=kind or "", checkpoint=checkpoint, columns=columns, compression=compression,
        every_s=every_s, batch_records=batch_records, orphan_age_s=orphan_age_s,
        source={
            **({"startingOffsets": start} if start else {}), **({"failOnDataLoss": "false"} if accept_loss else {})
        },
    )  # fmt: skip
    with source_options(target, place) as options:
        plan = replace(plan, source={**plan.source, **options})
        if dry_run:
            _show_outlook(plan, as_json=as_json)
            return
        with ends_by_signal(), place.open_session("liftpy spark archive") as session:
            began_s = time.monotonic()
            records = run(session, plan, once=once, tell=lambda done: _show_done(done, as_json=as_json))
            _show_end(records, time.monotonic() - began_s, as_json=as_json)


def _show_done(done: Archived, *, as_json: bool) -> None:
    if as_json:
        ends = {f"{stream}/{partition}": end for (stream, partition), end in sorted(done.ends.items())}
        fields = {"batch": done.batch, "repeated": done.repeated, "files": done.files, "records": done.record_count}
        click.echo(json.dumps({**fields, "bytes": done.size_bytes, "seconds": round(done.took_s, 3), "ends": ends}))
        return
    what = "in the table before" if done.repeated else f"version {done.version}"
    rate = done.record_count / max(done.took_s, 1e-3)
    size = f"{done.size_bytes / 1e6:.1f} MB in {done.files} files"
    click.echo(f"batch {done.batch}: {done.record_count:,} records, {size}, {done.took_s:.1f} s ({rate:,.0f}/s), {what}")


def _show_end(records: int, took_s: float, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"archived": records, "seconds": round(took_s, 3)}))
    else:
        click.echo(f"{records:,} records archived in {took_s:.1f} s")


def _show_outlook(plan: ArchivePlan, *, as_json: bool) -> None:
    found = outlook(plan)
    starts = {f"{stream}/{partition}": offset for (stream, partition), offset in sorted(found.starts.items())}
    if as_json:
        orphans = {"files": list(found.orphans.files), "bytes": found.orphans.size_bytes, "left": found.orphans.left}
        click.echo(json.dumps({"resumed": found.resumed, "starts": starts, "waiting": found.waiting, "orphans": orphans}))
        return
    click.echo("goes on from its checkpoint" if found.resumed else "begins a new query")
    for name, offset in starts.items():
        click.echo(f"  {name} from offset {offset}")
    click.echo(f"{found.waiting:,} records wait")
    gone, left = found.orphans, found.orphans.left
    click.echo(f"{len(gone.files)} files of dead attempts ({gone.size_bytes / 1e6:.1f} MB) would be removed; {left} are left")
