"""``liftpy stream truncate``: give up the oldest records of a stream."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click

from liftpy.client import Client
from liftpy.client.positions import parse_start
from liftpy.errors import ConfigError
from sidecar.cli.options import connection_options, internal_option, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target


@click.command()
@click.argument("name")
@click.option(
    "--before",
    required=True,
    metavar="WHERE",
    help="The first OFFSET that stays, a time as 2026-01-31T12:00:00 or -10m, or new: all that is committed goes.",
)
@click.option("--partition", type=click.IntRange(0), help="Only this one; an offset needs it where there are several.")
@click.option("--dry-run", is_flag=True, help="Show where the partitions would begin, and do nothing.")
@click.option("--yes", is_flag=True, help="Don't ask: the records are deleted for good.")
@json_option
@connection_options
@internal_option
def truncate(name: str, before: str, partition: int | None, dry_run: bool, yes: bool, as_json: bool, target: Target) -> None:
    """Give up the records of stream NAME that lie before an offset or a time, for good, on every replica.

    Batches stay whole: up to a batch of older records may stay. Files go as whole segments."""
    where = parse_start(before, datetime.now(UTC))
    if where in ("earliest", "latest"):
        raise click.UsageError("--before takes an offset, a time, or new")
    if isinstance(where, datetime) and where.tzinfo is None:
        where = where.replace(tzinfo=UTC)

    async def work(client: Client, dry_run: bool) -> dict[int, int]:
        image = await client.stream(name)
        numbers = [p.partition for p in image.partitions] if partition is None else [partition]
        if isinstance(where, int) and len(numbers) > 1:
            raise ConfigError(f"{name} has {len(numbers)} partitions: an offset is one partition's, name it by --partition")
        begins: dict[int, int] = {}
        for number in numbers:
            first = where if isinstance(where, (int, datetime)) else (await client.bounds(name, number)).end_offset
            begins[number] = await client.truncate_before(name, number, first, dry_run=dry_run)
        return begins

    if not dry_run and not yes:
        for number, first in with_client(target, lambda client: work(client, True)).items():
            click.echo(f"{name}/{number} would begin with the batch of {first}", err=True)
        click.confirm(f"delete what lies before of stream {name} for good?", abort=True, err=True)
    begins = with_client(target, lambda client: work(client, dry_run))
    if as_json:
        found = [{"partition": number, "offset": first} for number, first in begins.items()]
        click.echo(json.dumps({"stream": name, "dry_run": dry_run, "begins": found}))
        return
    for number, first in begins.items():
        click.echo(f"{name}/{number} {'would begin' if dry_run else 'begins'} with the batch of {first}")
