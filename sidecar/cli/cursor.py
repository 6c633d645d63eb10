"""``liftpy cursor``: list, show, set and delete cursors. A cursor is a named position outside of consumer groups."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import click
from rich.console import Console

from liftpy.client import Client, parse_start
from liftpy.core.base.ids import PartitionKey
from liftpy.errors import NotFoundError
from sidecar.cli.completion import CURSOR, STREAM
from sidecar.cli.group import lag_of
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import NOTHING_DONE, connection_options, dry_run_option, json_option, yes_option
from sidecar.cli.output import table
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target


@click.group(cls=HelpGroup, example="liftpy cursor show reports")
def cursor() -> None:
    """List, show, set and delete cursors. A cursor is a named position in a stream, outside of consumer groups."""


@cursor.command("list", example="liftpy cursor list")
@json_option
@connection_options
def list_(as_json: bool, target: Target) -> None:
    """List all cursors."""
    found = with_client(target, lambda client: client.cursors.list())
    if as_json:
        click.echo(json.dumps(found))
        return
    if not found:
        click.echo("no cursors yet: liftpy cursor set NAME --stream STREAM --to POSITION")
        return
    Console().print(table(("cursor",), [(name,) for name in found]))


@cursor.command(example="liftpy cursor show reports")
@click.argument("name", type=CURSOR)
@json_option
@connection_options
def show(name: str, as_json: bool, target: Target) -> None:
    """Show the position and the lag of cursor NAME in each partition."""

    async def work(client: Client) -> list[tuple[PartitionKey, int, int | None]]:
        positions = await client.cursors.describe(name)
        return list(await asyncio.gather(*(lag_of(client, key, at) for key, at in sorted(positions.items()))))

    found = with_client(target, work)
    if as_json:
        rows = [
            {"stream": k.stream, "uid": k.uid, "partition": k.partition, "position": at, "lag": lag} for k, at, lag in found
        ]
        click.echo(json.dumps(rows))
        return
    shown = [(f"{k.stream}/{k.partition}", str(at), "?" if lag is None else str(lag)) for k, at, lag in found]
    Console().print(table(("partition", "position", "lag"), shown))


@cursor.command("set", example="liftpy cursor set reports --stream orders --to -1h --dry-run")
@click.argument("name", type=CURSOR)
@click.option("--stream", type=STREAM, required=True, metavar="NAME", help="Stream of the cursor.")
@click.option("--partition", type=click.IntRange(0), help="Set only this partition.  [default: all]")
@click.option(
    "--to",
    "where",
    required=True,
    metavar="WHERE",
    help="New position: earliest, new, an OFFSET, -1000 (1000 offsets before the end), or a time such as -10m.",
)
@dry_run_option
@yes_option
@connection_options
def set_(name: str, stream: str, partition: int | None, where: str, dry_run: bool, yes: bool, target: Target) -> None:
    """Set or create cursor NAME. A client that holds the cursor can no longer commit."""
    start = parse_start(where, datetime.now(UTC), "--to")

    async def plan(client: Client) -> dict[PartitionKey, int]:
        known = await client.stream(stream)
        numbers = [p.partition for p in known.partitions] if partition is None else [partition]
        try:
            before = await client.cursors.describe(name)
        except NotFoundError:
            before = {}
        wanted: dict[PartitionKey, int] = {}
        for number in numbers:
            at = await client.consume(stream, number, start=start).position()
            wanted[PartitionKey(stream, at.uid, number)] = at.offset
        rows = [(f"{key.stream}/{key.partition}", str(before.get(key, "-")), str(at)) for key, at in sorted(wanted.items())]
        Console().print(table(("partition", "position", "new"), rows))
        return wanted

    wanted = with_client(target, plan)
    if dry_run:
        click.echo(NOTHING_DONE)
        return
    if not yes:
        click.confirm(f"set cursor {name}?", abort=True, err=True)
    with_client(target, lambda client: client.cursors.set(name, wanted))
    click.echo(f"cursor {name} set")


@cursor.command(example="liftpy cursor delete reports --dry-run")
@click.argument("name", type=CURSOR)
@dry_run_option
@yes_option
@connection_options
def delete(name: str, dry_run: bool, yes: bool, target: Target) -> None:
    """Delete cursor NAME. A client that holds the cursor can no longer commit."""

    positions = with_client(target, lambda client: client.cursors.describe(name))
    for key, at in sorted(positions.items()):
        click.echo(f"{name}: {key.stream}/{key.partition} at {at}")
    if dry_run:
        click.echo(NOTHING_DONE)
        return
    if not yes:
        click.confirm(f"delete cursor {name} permanently?", abort=True, err=True)
    with_client(target, lambda client: client.cursors.delete(name))
    click.echo(f"cursor {name} deleted")
