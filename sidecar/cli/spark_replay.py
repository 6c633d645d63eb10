"""``liftpy spark replay``: a range of a stream, or of an archive, into a stream."""

from __future__ import annotations

import json
import time

import click

from liftpy.spark.pipelines.replay import ReplayPlan, ShareDone, shares_to_replay
from liftpy.spark.pipelines.replay import replay as run
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.spark_job import SparkPlace, ends_by_signal, source_options, spark_options
from sidecar.runtime.settings import Target


@click.command(cls=HelpCommand, example="liftpy spark replay orders orders-copy --name copy-1 --table /data/orders")
@click.argument("stream", type=STREAM)
@click.argument("target_stream", metavar="TARGET", type=STREAM)
@click.option("--name", required=True, help="Name of this replay. A second run with the same name writes no record twice.")
@click.option("--table", default="", help="Read the archive in this directory.  [default: read the stream]")
@click.option("--from", "start", default="", help="Start position, as startingOffsets of the source.  [default: earliest]")
@click.option("--until", "end", default="", help="End position, as endingOffsets of the source.  [default: latest]")
@click.option("--partitioner", "partitions", type=click.Choice(["keep", "key"]), default="keep", show_default=True,
              help="Partition of a written record: keep (the same number) or key (from the key).")  # fmt: skip
@click.option(
    "--records-per-s",
    "rate",
    type=click.FloatRange(0),
    default=0.0,
    help="Maximum number of records per second.  [default: no limit]",
)
@click.option("--accept-loss", is_flag=True, help="Continue if retention deleted records. Replay the others.")
@click.option("--dry-run", is_flag=True, help="Print what would be replayed, and write nothing.")
@json_option
@spark_options
@connection_options
def replay(
    stream: str, target_stream: str, name: str, table: str, start: str, end: str, partitions: str, rate: float, accept_loss: bool,
    dry_run: bool, as_json: bool, place: SparkPlace, target: Target,
) -> None:  # fmt: skip
    """Write the records of STREAM, or of its archive in --table, to the stream TARGET. Each record is written once, in order.

    The command writes keys, values and headers. Offsets, times and subjects are new. After a failure, run the command again with the
    same --name: it resumes.
    """
    with source_options(target, place) as options:
        source = {**options, **({"startingOffsets": start} if start else {}), **({"endingOffsets": end} if end else {})}
        source |= {"failOnDataLoss": "false"} if accept_loss else {}
        plan = ReplayPlan(
            stream=stream, target=target_stream, name=name, table=table, keep_partitions=partitions == "keep", rate=rate,
            source=source,
        )  # fmt: skip
        if dry_run:
            _show_shares(plan, as_json=as_json)
            return
        with ends_by_signal(), place.open_session("liftpy spark replay") as session:
            began_s = time.monotonic()
            done = run(session, plan, lambda grown: click.echo(f"{target_stream} has grown by {grown:,} records", err=True))
            _show(done, time.monotonic() - began_s, as_json=as_json)


def _show_shares(plan: ReplayPlan, *, as_json: bool) -> None:
    shares = [share.planned for share in shares_to_replay(plan)]
    total = sum(planned.record_count for planned in shares)
    if as_json:
        ranges = {f"{one.stream}/{one.partition}": [one.start_offset, one.end_offset] for one in shares}
        click.echo(json.dumps({"target": plan.target, "ranges": ranges, "records": total}))
        return
    for planned in shares:
        click.echo(f"{planned}: {planned.record_count:,} records")
    click.echo(f"{total:,} records would be written to {plan.target}, but for those that were under the name {plan.name!r}")


def _show(done: list[ShareDone], took_s: float, *, as_json: bool) -> None:
    records, known = sum(one.records for one in done), sum(one.known for one in done)
    if as_json:
        shares = [
            {
                "partition": one.partition,
                "from": one.start_offset,
                "to": one.end_offset,
                "records": one.records,
                "known": one.known,
            }
            for one in done
        ]
        click.echo(json.dumps({"records": records, "known": known, "seconds": round(took_s, 3), "shares": shares}))
        return
    for one in done:
        click.echo(
            f"{one.stream}/{one.partition} [{one.start_offset}, {one.end_offset}): {one.records:,}, {one.known:,} there before"
        )
    click.echo(f"{records - known:,} records written in {took_s:.1f} s, {known:,} were there before")
