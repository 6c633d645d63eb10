"""``liftpy group`` and ``liftpy cursor``: list and show the positions of consumers with their lag, and set or delete them.

A group has members and committed positions. A cursor is a named position outside of consumer groups.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from liftpy.client import Client, ReadOptions, parse_start
from liftpy.client.group_admin import GroupDescription, QueueFigures
from liftpy.core.base.ids import PartitionKey
from liftpy.errors import NotFoundError, OutcomeUnknownError, UnavailableError
from sidecar.cli.completion import CURSOR, GROUP, STREAM
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import connection_options, dry_run_option, json_option, may_act, yes_option
from sidecar.cli.output import count_of, print_json, print_table
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target

F = TypeVar("F", bound=Callable[..., Any])
Positions = Mapping[PartitionKey, int]
_TO_SHOW = "--role reader --service groups"
"""Permissions of the commands that show groups and cursors."""
_TO_CHANGE = "--role reader --role member --service groups"
"""Permissions of the commands that change groups and cursors."""


@click.group(cls=HelpGroup, example="liftpy group show billing")
def group() -> None:
    """List, show, reset and delete consumer groups."""


@group.command("list", example="liftpy group list")
@json_option
@connection_options
def list_(as_json: bool, target: Target) -> None:
    """List all consumer groups."""
    groups = with_client(target, lambda client: client.groups.list(), permissions=_TO_SHOW)
    if as_json:
        print_json([dataclasses.asdict(one) for one in groups])
        return
    if not groups:
        click.echo("no groups yet: liftpy consume STREAM --group NAME")
        return
    rows = [(one.name, str(one.members), "" if one.settled else "moving", str(one.positions)) for one in groups]
    print_table(("group", "members", "state", "positions"), rows)


@group.command(example="liftpy group show billing")
@click.argument("name", type=GROUP)
@json_option
@connection_options
def show(name: str, as_json: bool, target: Target) -> None:
    """Show the members of group NAME, and its position and lag in each partition."""

    async def work(client: Client) -> tuple[GroupDescription, list[PositionLag]]:
        described = await client.groups.describe(name)
        return described, await _lags_of(client, described.positions)

    described, lags = with_client(target, work, permissions=_TO_SHOW)
    owner = {place: member for member in described.members for place in member.owned}
    if as_json:
        members = [dataclasses.asdict(member) for member in described.members]
        queues = [dataclasses.asdict(queue) for queue in described.queues]
        print_json({"members": members, "positions": _lags_as_json(lags), "queues": queues})
        return
    rows = [
        (m.name[:12], m.instance, m.client, f"{m.silent_s:.1f} s", ", ".join(f"{s}/{p}" for s, p in m.owned))
        for m in described.members
    ]
    print_table(("member", "instance", "host", "silent", "owns"), rows)
    click.echo()
    places = []
    for key, position, lag in lags:
        member = owner.get((key.stream, key.partition))
        whose = member.name[:12] if member else "-"
        places.append((str(key), str(position), "?" if lag is None else str(lag), whose))
    print_table(("partition", "position", "lag", "owner"), places)
    if described.queues:
        click.echo()
        print_table(_QUEUE, [_figures(queue) for queue in described.queues])
    if out := [row for queue in described.queues for row in _holders(queue)]:
        click.echo()
        print_table(_DELIVERY_COLUMNS, out)


_DELIVERY_COLUMNS = ("queue", "worker", "records", "first offset", "most deliveries")
_QUEUE = ("queue", "acked below", "taken below", "unacked", "returned", "dead", "held")


def _figures(q: QueueFigures) -> tuple[str, ...]:
    counts = (q.acknowledged_below, q.taken_below, q.out, q.returned, q.dead, q.held)
    return (str(q.key), *map(str, counts))


def _holders(q: QueueFigures) -> list[tuple[str, ...]]:
    """Return table rows about workers that have unacked records: partition, worker, number of records, first offset, deliveries."""
    place = str(q.key)
    return [(place, one.worker[:12], str(one.records), str(one.first), str(one.deliveries)) for one in q.holders]


# ---- positions of groups and cursors ---------------------------------------------------------------------------------
PositionLag = tuple[PartitionKey, int, int | None]
"""(Partition, position, number of committed offsets from the position on).

The number is None if the stream was deleted, or if no leader answers.
"""
_PATIENCE_S = 2.0
"""Time to wait for the bounds of a partition, in seconds. Without them, its lag is not known."""


async def _lags_of(client: Client, positions: Mapping[PartitionKey, int]) -> list[PositionLag]:
    """Return the lag of each of the ``positions``, in order of the partitions. Print a note if leaders do not answer."""
    silent: list[PartitionKey] = []
    lags = await asyncio.gather(*(_lag_of(client, key, at, silent) for key, at in sorted(positions.items())))
    if silent:
        more = f" and {count_of(len(silent) - 1, 'other partition')}" if len(silent) > 1 else ""
        click.echo(f"The lag of {min(silent)}{more} is not known, because no leader answers. Check `liftpy status`.", err=True)
    return lags


def _lags_as_json(lags: list[PositionLag]) -> list[dict[str, object]]:
    """Return the positions with their lags as the JSON objects that the commands print."""
    return [{"stream": k.stream, "uid": k.uid, "partition": k.partition, "position": at, "lag": lag} for k, at, lag in lags]


async def _lag_of(client: Client, key: PartitionKey, position: int, silent: list[PartitionKey]) -> PositionLag:
    """Return the lag of one position. If the leader of the partition does not answer, add the partition to ``silent``."""
    try:
        bounds = await client.bounds(key.stream, key.partition, options=ReadOptions(patience_s=_PATIENCE_S))
    except NotFoundError:
        return key, position, None
    except (UnavailableError, OutcomeUnknownError):
        silent.append(key)
        return key, position, None
    first = max(position, bounds.log_start_offset)
    return key, position, max(bounds.end_offset - first, 0) if bounds.uid == key.uid else None


def _position_options(noun: str, verb: str) -> Callable[[F], F]:
    """Return the options of a command that sets positions of a ``noun``. The command passes them to ``_set_positions``."""
    where = "New position: earliest, new, an OFFSET, -1000 (1000 offsets before the end), or a time such as -10m."
    options = (
        click.option("--stream", type=STREAM, required=True, metavar="NAME", help=f"Stream of the {noun}."),
        click.option("--partition", type=click.IntRange(0), help=f"{verb} only this partition.  [default: all]"),
        click.option("--to", "where", required=True, metavar="WHERE", help=where),
        dry_run_option,
        yes_option,
        connection_options,
    )

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _set_positions(
    read: Callable[[Client], Awaitable[Positions]],
    write: Callable[[Client, Positions], Awaitable[object]],
    heading: str,
    question: str,
    *,
    stream: str,
    partition: int | None,
    where: str,
    dry_run: bool,
    yes: bool,
    target: Target,
) -> bool:
    """Show the positions that ``read`` returns next to the new ones, ask ``question``, and call ``write`` with the new ones.

    ``heading``: heading of the column with the positions before. Return False in a dry run.
    """
    start = parse_start(where, datetime.now(UTC), "--to")

    async def plan(client: Client) -> dict[PartitionKey, int]:
        before = await read(client)
        known = await client.stream(stream)
        wanted: dict[PartitionKey, int] = {}
        for number in [p.partition for p in known.partitions] if partition is None else [partition]:
            at = await client.consume(stream, number, start=start).position()
            wanted[PartitionKey(stream, at.uid, number)] = at.offset
        rows = [(str(key), str(before.get(key, "-")), str(at)) for key, at in sorted(wanted.items())]
        print_table(("partition", heading, "new"), rows)
        return wanted

    wanted = with_client(target, plan, permissions=_TO_CHANGE)
    if not may_act(dry_run, yes, question):
        return False
    with_client(target, lambda client: write(client, wanted), permissions=_TO_CHANGE)
    return True


@group.command(example="liftpy group reset billing --stream orders --to earliest --dry-run")
@click.argument("name", type=GROUP)
@_position_options("group", "Reset")
def reset(name: str, **choice: Any) -> None:
    """Set the committed position of group NAME. The group must have no members."""

    async def read(client: Client) -> Positions:
        described = await client.groups.describe(name)
        return {**described.positions, **{queue.key: queue.acknowledged_below for queue in described.queues}}

    question = f"set the committed positions of group {name}?"
    if _set_positions(read, lambda client, wanted: client.groups.reset(name, wanted), "committed", question, **choice):
        click.echo(f"group {name} reset")


@group.command(example="liftpy group delete billing --dry-run")
@click.argument("name", type=GROUP)
@dry_run_option
@yes_option
@connection_options
def delete(name: str, dry_run: bool, yes: bool, target: Target) -> None:
    """Delete group or queue NAME and its committed positions. It must have no members and no unacked records."""

    described = with_client(target, lambda client: client.groups.describe(name), permissions=_TO_CHANGE)
    contents = [count_of(len(described.members), "member"), count_of(len(described.positions), "committed position")]
    if queues := described.queues:
        returned, dead = sum(queue.returned for queue in queues), sum(queue.dead for queue in queues)
        contents.append(f"{count_of(len(queues), 'partition')} of a queue with {returned} returned and {dead} dead records")
    click.echo(f"{name}: {', '.join(contents)}")
    if may_act(dry_run, yes, f"delete {'queue' if queues else 'group'} {name} and its committed positions permanently?"):
        with_client(target, lambda client: client.groups.delete(name), permissions=_TO_CHANGE)
        click.echo(f"group {name} deleted")


# ---- cursors ---------------------------------------------------------------------------------------------------------


@click.group(cls=HelpGroup, example="liftpy cursor show reports")
def cursor() -> None:
    """List, show, set and delete cursors. A cursor is a named position in a stream, outside of consumer groups."""


@cursor.command("list", example="liftpy cursor list")
@json_option
@connection_options
def list_cursors(as_json: bool, target: Target) -> None:
    """List all cursors."""
    names = with_client(target, lambda client: client.cursors.list(), permissions=_TO_SHOW)
    if as_json:
        print_json(names)
    elif names:
        print_table(("cursor",), [(name,) for name in names])
    else:
        click.echo("no cursors yet: liftpy cursor set NAME --stream STREAM --to POSITION")


@cursor.command("show", example="liftpy cursor show reports")
@click.argument("name", type=CURSOR)
@json_option
@connection_options
def show_cursor(name: str, as_json: bool, target: Target) -> None:
    """Show the position and the lag of cursor NAME in each partition."""

    async def work(client: Client) -> list[PositionLag]:
        return await _lags_of(client, await client.cursors.describe(name))

    lags = with_client(target, work, permissions=_TO_SHOW)
    if as_json:
        print_json(_lags_as_json(lags))
        return
    shown = [(str(k), str(at), "?" if lag is None else str(lag)) for k, at, lag in lags]
    print_table(("partition", "position", "lag"), shown)


@cursor.command("set", example="liftpy cursor set reports --stream orders --to -1h --dry-run")
@click.argument("name", type=CURSOR)
@_position_options("cursor", "Set")
def set_cursor(name: str, **choice: Any) -> None:
    """Set or create cursor NAME. A client that holds the cursor can no longer commit."""

    async def read(client: Client) -> Positions:
        try:
            return await client.cursors.describe(name)
        except NotFoundError:
            return {}

    question = f"set cursor {name}?"
    if _set_positions(read, lambda client, wanted: client.cursors.set(name, wanted), "position", question, **choice):
        click.echo(f"cursor {name} set")


@cursor.command("delete", example="liftpy cursor delete reports --dry-run")
@click.argument("name", type=CURSOR)
@dry_run_option
@yes_option
@connection_options
def delete_cursor(name: str, dry_run: bool, yes: bool, target: Target) -> None:
    """Delete cursor NAME. A client that holds the cursor can no longer commit."""

    positions = with_client(target, lambda client: client.cursors.describe(name), permissions=_TO_CHANGE)
    for key, at in sorted(positions.items()):
        click.echo(f"{name}: {key} at {at}")
    if may_act(dry_run, yes, f"delete cursor {name} permanently?"):
        with_client(target, lambda client: client.cursors.delete(name), permissions=_TO_CHANGE)
        click.echo(f"cursor {name} deleted")
