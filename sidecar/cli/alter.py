"""``liftpy stream alter``: another replication factor, other settings for a stream that is there."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from liftpy.client import Client
from liftpy.client.admin import check_min_isr
from liftpy.cluster.image import StreamImage
from liftpy.cluster.movements import movements
from sidecar.cli.movement import follow, timeout_option, wait_option
from sidecar.cli.options import connection_options, internal_option, json_option
from sidecar.cli.session import with_client
from sidecar.cli.stream_settings import SETTINGS, alterable_options, shown
from sidecar.cli.tables import table
from sidecar.settings import Target


@click.command()
@click.argument("name")
@click.option("--replication-factor", "factor", type=click.IntRange(1, 32), help="Replicas of each partition.")
@alterable_options
@click.option("--dry-run", is_flag=True, help="Show what would change, and do nothing.")
@wait_option
@timeout_option
@json_option
@connection_options
@internal_option
def alter(
    name: str,
    factor: int | None,
    settings: dict[str, Any],
    dry_run: bool,
    wait: bool,
    timeout_s: float,
    as_json: bool,
    target: Target,
) -> None:
    """Give stream NAME other settings, and every partition of it more replicas, or fewer. The leader always stays; a move goes on
    whatever is killed. What is not named stays as it is."""
    if factor is None and not settings:
        raise click.UsageError("name a --replication-factor or a setting: nothing would change")

    async def work(client: Client) -> tuple[StreamImage, StreamImage, StreamImage]:
        before = await client.stream(name)
        if factor is not None:
            check_min_isr(before.config, factor)
        decided = await client.alter_stream(name, factor or 0, dry_run=dry_run, **settings)
        if not as_json:
            _show(before, decided, factor, settings, dry_run)
        if dry_run or not wait or factor is None:
            return before, decided, decided
        uid = decided.uid
        await follow(
            client,
            lambda movement: movement.uid == uid,
            lambda image: not any(movement.uid == uid for movement in movements(image)),
            timeout_s,
            quiet=as_json,
        )
        return before, decided, await client.stream(name)

    before, decided, now = with_client(target, work)
    if as_json:
        partitions = [
            {"partition": p.partition, "replicas": list(p.replicas), "target": list(p.target or p.replicas)}
            for p in (decided if dry_run else now).partitions
        ]
        facts = {"stream": name, "replication_factor": decided.replica_count, "dry_run": dry_run, "partitions": partitions}
        changes = {key: {"before": old, "after": new} for key, old, new in _changes(before, decided)}
        click.echo(json.dumps(facts | {"settings": shown(decided.config, decided.replica_count), "changes": changes}))
    elif wait and not dry_run and factor is not None:
        click.echo(f"every partition of {name} has {factor} replicas")


def _changes(before: StreamImage, after: StreamImage) -> list[tuple[str, Any, Any]]:
    """(setting, what it was, what it is), of those that differ."""
    old, new = shown(before.config, before.replica_count), shown(after.config, after.replica_count)
    return [(setting.key, old[setting.key], new[setting.key]) for setting in SETTINGS if old[setting.key] != new[setting.key]]


def _show(before: StreamImage, stream: StreamImage, factor: int | None, settings: dict[str, Any], dry_run: bool) -> None:
    console = Console()
    if settings:
        changes = _changes(before, stream)
        for key, old, new in changes:
            console.print(f"{key}: {old} -> {new}", highlight=False)
        would = "would be at" if dry_run else "is at"
        same = "" if changes else "nothing changes: that is how it is; "
        console.print(f"{same}{stream.name} {would} version {stream.config_version} of its settings", highlight=False)
    if factor is None:
        return
    rows = [(str(p.partition), " ".join(p.replicas), " ".join(p.target)) for p in stream.partitions if p.target]
    if rows:
        console.print(table(("partition", "replicas", "then"), rows, folds=("replicas", "then"), title=stream.name))
    end = "nothing was done: this is a dry run" if dry_run else f"replication factor {factor}"
    console.print(f"{len(rows)} partitions change; {end}", highlight=False)
