"""``liftpy spark replay``: a range of a stream, or of an archive, into a stream."""

from __future__ import annotations

import json
import time

import click

from liftpy.spark.pipelines.replay import ReplayPlan, ShareDone, shares_to_replay
from liftpy.spark.pipelines.replay import replay as run
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.spark_job import SparkPlace, ends_by_signal, source_options, spark_options
from sidecar.runtime.settings import Target


@click.command()
@click.argument("stream")
@click.argument("target_stream", metavar="TARGET")
@click.option("--name", required=True, help="Of this replay: run again under it, it writes nothing twice.")
@click.option("--table", default="", help="Read the archive in this folder.  [default: the stream itself]")
@click.option("--from", "start", default="", help="startingOffsets of the source.  [default: earliest]")
@click.option("--until", "end", default="", help="endingOffsets of the source.  [default: latest]")
@click.option("--partitions", type=click.Choice(["keep", "key"]), default="keep", show_default=True,
              help="Where a record goes: to the partition that it has, or to that of its key.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(0), default=0.0, help="Records a second at most.  [default: as fast as it goes]")
@click.option("--accept-loss", is_flag=True, help="Replay what is left where retention took records.")
@click.option("--dry-run", is_flag=True, help="Show what would be replayed, and write nothing.")
@json_option
@spark_options
@connection_options
def replay(
    stream: str, target_stream: str, name: str, table: str, start: str, end: str, partitions: str, rate: float, accept_loss: bool,
    dry_run: bool, as_json: bool, place: SparkPlace, target: Target,
) -> None:  # fmt: skip
    """Write the records of STREAM, or of its archive in --table, to the stream TARGET, each once under --name, in their order.

    Keys, values and headers are written; offsets, times and subjects are new. Killed and run again, it goes on."""
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
        with ends_by_signal(), place.running("liftpy spark replay") as session:
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
