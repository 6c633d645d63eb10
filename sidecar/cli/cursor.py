"""``liftpy cursor``: list, show, set and delete cursors. A cursor is a named position outside of consumer groups."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click

from liftpy.client import Client, parse_start
from liftpy.core.base.ids import PartitionKey
from liftpy.errors import NotFoundError
from sidecar.cli.completion import CURSOR, STREAM
from sidecar.cli.group import PositionLag, lags_as_json, lags_of, plan_positions, to_option
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import connection_options, dry_run_option, json_option, may_act, yes_option
from sidecar.cli.output import print_table
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
    names = with_client(target, lambda client: client.cursors.list())
    if as_json:
        click.echo(json.dumps(names))
        return
    if not names:
        click.echo("no cursors yet: liftpy cursor set NAME --stream STREAM --to POSITION")
        return
    print_table(("cursor",), [(name,) for name in names])


@cursor.command(example="liftpy cursor show reports")
@click.argument("name", type=CURSOR)
@json_option
@connection_options
def show(name: str, as_json: bool, target: Target) -> None:
    """Show the position and the lag of cursor NAME in each partition."""

    async def work(client: Client) -> list[PositionLag]:
        return await lags_of(client, await client.cursors.describe(name))

    lags = with_client(target, work)
    if as_json:
        click.echo(json.dumps(lags_as_json(lags)))
        return
    shown = [(f"{k.stream}/{k.partition}", str(at), "?" if lag is None else str(lag)) for k, at, lag in lags]
    print_table(("partition", "position", "lag"), shown)


@cursor.command("set", example="liftpy cursor set reports --stream orders --to -1h --dry-run")
@click.argument("name", type=CURSOR)
@click.option("--stream", type=STREAM, required=True, metavar="NAME", help="Stream of the cursor.")
@click.option("--partition", type=click.IntRange(0), help="Set only this partition.  [default: all]")
@to_option
@dry_run_option
@yes_option
@connection_options
def set_(name: str, stream: str, partition: int | None, where: str, dry_run: bool, yes: bool, target: Target) -> None:
    """Set or create cursor NAME. A client that holds the cursor can no longer commit."""
    start = parse_start(where, datetime.now(UTC), "--to")

    async def plan(client: Client) -> dict[PartitionKey, int]:
        try:
            before = await client.cursors.describe(name)
        except NotFoundError:
            before = {}
        return await plan_positions(client, stream, partition, start, before, "position")

    wanted = with_client(target, plan)
    if may_act(dry_run, yes, f"set cursor {name}?"):
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
    if may_act(dry_run, yes, f"delete cursor {name} permanently?"):
        with_client(target, lambda client: client.cursors.delete(name))
        click.echo(f"cursor {name} deleted")
