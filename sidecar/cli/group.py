"""``liftpy group``: list and show consumer groups with their members and lag, and reset or delete committed positions."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from datetime import UTC, datetime

import click
from rich.console import Console

from liftpy.client import Client, parse_start
from liftpy.client.group_admin import GroupDescription, QueueFigures
from liftpy.core.base.ids import PartitionKey
from liftpy.errors import NotFoundError
from sidecar.cli.completion import GROUP, STREAM
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import NOTHING_DONE, connection_options, dry_run_option, json_option, yes_option
from sidecar.cli.output import count_of, table
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target


@click.group(cls=HelpGroup, example="liftpy group show billing")
def group() -> None:
    """List, show, reset and delete consumer groups."""


@group.command("list", example="liftpy group list")
@json_option
@connection_options
def list_(as_json: bool, target: Target) -> None:
    """List all consumer groups."""
    found = with_client(target, lambda client: client.groups.list())
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in found]))
        return
    if not found:
        click.echo("no groups yet: liftpy consume STREAM --group NAME")
        return
    rows = [(one.name, str(one.members), "" if one.settled else "moving", str(one.positions)) for one in found]
    Console().print(table(("group", "members", "state", "positions"), rows))


@group.command(example="liftpy group show billing")
@click.argument("name", type=GROUP)
@json_option
@connection_options
def show(name: str, as_json: bool, target: Target) -> None:
    """Show the members of group NAME, and its position and lag in each partition."""

    async def work(client: Client) -> tuple[GroupDescription, list[tuple[PartitionKey, int, int | None]]]:
        described = await client.groups.describe(name)
        return described, await asyncio.gather(*(lag_of(client, key, at) for key, at in sorted(described.positions.items())))

    described, lags = with_client(target, work)
    owner = {place: member for member in described.members for place in member.owned}
    if as_json:
        members = [dataclasses.asdict(member) for member in described.members]
        at = [
            {"stream": key.stream, "uid": key.uid, "partition": key.partition, "position": p, "lag": lag}
            for key, p, lag in lags
        ]
        queues = [dataclasses.asdict(queue) for queue in described.queues]
        click.echo(json.dumps({"members": members, "positions": at, "queues": queues}))
        return
    rows = [
        (m.name[:12], m.instance, m.client, f"{m.silent_s:.1f} s", ", ".join(f"{s}/{p}" for s, p in m.owned))
        for m in described.members
    ]
    Console().print(table(("member", "instance", "host", "silent", "owns"), rows))
    click.echo()
    places = []
    for key, position, lag in lags:
        member = owner.get((key.stream, key.partition))
        whose = member.name[:12] if member else "-"
        places.append((f"{key.stream}/{key.partition}", str(position), "?" if lag is None else str(lag), whose))
    Console().print(table(("partition", "position", "lag", "owner"), places))
    if described.queues:
        click.echo()
        Console().print(table(_QUEUE, [_figures(queue) for queue in described.queues]))
    if out := [row for queue in described.queues for row in _holders(queue)]:
        click.echo()
        Console().print(table(_OUT, out))


_OUT = ("queue", "worker", "records", "first offset", "most deliveries")
_QUEUE = ("queue", "acked below", "taken below", "unacked", "returned", "dead", "held")


def _figures(q: QueueFigures) -> tuple[str, ...]:
    counts = (q.acknowledged_below, q.taken_below, q.out, q.returned, q.dead, q.held)
    return (f"{q.key.stream}/{q.key.partition}", *map(str, counts))


def _holders(q: QueueFigures) -> list[tuple[str, ...]]:
    """Return table rows about workers that have unacked records: partition, worker, number of records, first offset, deliveries."""
    place = f"{q.key.stream}/{q.key.partition}"
    return [(place, one.worker[:12], str(one.records), str(one.first), str(one.deliveries)) for one in q.holders]


async def lag_of(client: Client, key: PartitionKey, position: int) -> tuple[PartitionKey, int, int | None]:
    """Return (``key``, ``position``, number of committed offsets from the position on).

    The number is None if the stream was deleted, or deleted and created again.
    """
    try:
        bounds = await client.bounds(key.stream, key.partition)
    except NotFoundError:
        return key, position, None
    first = max(position, bounds.log_start_offset)
    return key, position, max(bounds.end_offset - first, 0) if bounds.uid == key.uid else None


@group.command(example="liftpy group reset billing --stream orders --to earliest --dry-run")
@click.argument("name", type=GROUP)
@click.option("--stream", type=STREAM, required=True, metavar="NAME", help="Stream of the group.")
@click.option("--partition", type=click.IntRange(0), help="Reset only this partition.  [default: all]")
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
def reset(name: str, stream: str, partition: int | None, where: str, dry_run: bool, yes: bool, target: Target) -> None:
    """Set the committed position of group NAME. The group must have no members."""
    start = parse_start(where, datetime.now(UTC), "--to")

    async def plan(client: Client) -> dict[PartitionKey, int]:
        known = await client.stream(stream)
        numbers = [p.partition for p in known.partitions] if partition is None else [partition]
        before = (await client.groups.describe(name)).positions
        wanted: dict[PartitionKey, int] = {}
        for number in numbers:
            at = await client.consume(stream, number, start=start).position()
            wanted[PartitionKey(stream, at.uid, number)] = at.offset
        rows = [(f"{key.stream}/{key.partition}", str(before.get(key, "-")), str(at)) for key, at in sorted(wanted.items())]
        Console().print(table(("partition", "committed", "new"), rows))
        return wanted

    wanted = with_client(target, plan)
    if dry_run:
        click.echo(NOTHING_DONE)
        return
    if not yes:
        click.confirm(f"set the committed positions of group {name}?", abort=True, err=True)
    with_client(target, lambda client: client.groups.reset(name, wanted))
    click.echo(f"group {name} reset")


@group.command(example="liftpy group delete billing --dry-run")
@click.argument("name", type=GROUP)
@dry_run_option
@yes_option
@connection_options
def delete(name: str, dry_run: bool, yes: bool, target: Target) -> None:
    """Delete group NAME and its committed positions. The group must have no members."""

    described = with_client(target, lambda client: client.groups.describe(name))
    members, positions = count_of(len(described.members), "member"), count_of(len(described.positions), "committed position")
    click.echo(f"{name}: {members}, {positions}")
    if dry_run:
        click.echo(NOTHING_DONE)
        return
    if not yes:
        click.confirm(f"delete group {name} and its committed positions permanently?", abort=True, err=True)
    with_client(target, lambda client: client.groups.delete(name))
    click.echo(f"group {name} deleted")
