"""``liftpy stream alter``: another replication factor for a stream that is there."""

from __future__ import annotations

import json

import click
from rich.console import Console

from liftpy.client import Client
from liftpy.cluster.image import StreamImage
from liftpy.cluster.movements import movements
from sidecar.cli.movement import follow, timeout_option, wait_option
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.cli.tables import table
from sidecar.settings import Target


@click.command()
@click.argument("name")
@click.option("--replication-factor", "factor", type=click.IntRange(1, 32), required=True, help="Replicas of each partition.")
@click.option("--dry-run", is_flag=True, help="Show where they would be, and do nothing.")
@wait_option
@timeout_option
@json_option
@connection_options
def alter(name: str, factor: int, dry_run: bool, wait: bool, timeout_s: float, as_json: bool, target: Target) -> None:
    """Give every partition of stream NAME more replicas, or fewer. The leader always stays; it goes on whatever is killed."""

    async def work(client: Client) -> tuple[StreamImage, StreamImage]:
        decided = await client.alter_stream(name, factor, dry_run=dry_run)
        if not as_json:
            _show(decided, factor, dry_run)
        if dry_run or not wait:
            return decided, decided
        uid = decided.uid
        await follow(
            client,
            lambda movement: movement.uid == uid,
            lambda image: not any(movement.uid == uid for movement in movements(image)),
            timeout_s,
            quiet=as_json,
        )
        return decided, await client.stream(name)

    decided, now = with_client(target, work)
    if as_json:
        partitions = [
            {"partition": p.partition, "replicas": list(p.replicas), "target": list(p.target or p.replicas)}
            for p in (decided if dry_run else now).partitions
        ]
        click.echo(json.dumps({"stream": name, "replication_factor": factor, "dry_run": dry_run, "partitions": partitions}))
    elif wait and not dry_run:
        click.echo(f"every partition of {name} has {factor} replicas")


def _show(stream: StreamImage, factor: int, dry_run: bool) -> None:
    console = Console()
    rows = [(str(p.partition), " ".join(p.replicas), " ".join(p.target)) for p in stream.partitions if p.target]
    if rows:
        console.print(table(("partition", "replicas", "then"), rows, folds=("replicas", "then"), title=stream.name))
    end = "nothing was done: this is a dry run" if dry_run else f"replication factor {factor}"
    console.print(f"{len(rows)} partitions change; {end}", highlight=False)
