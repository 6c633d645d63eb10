"""``liftpy stream purge``: give up the records of some subjects, or of some keys."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime

import click

from liftpy.client import Client
from liftpy.client.positions import parse_start
from liftpy.errors import ConfigError, UnavailableError
from liftpy.purge import waits_for
from sidecar.cli.options import connection_options, internal_option, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target

_LOOK_EVERY_S = 0.5


@click.command()
@click.argument("name")
@click.option(
    "--subject", "subjects", multiple=True, help="Records of this subject; * and > as NATS has them. Several: any of them."
)
@click.option(
    "--key", "keys", multiple=True, help="Records with this key. Several: any of them. With --subject: those that fit both."
)
@click.option(
    "--before", metavar="WHERE", help="Only what lies below an OFFSET, or before a time as 2026-01-31T12:00:00 or -10m."
)
@click.option("--partition", type=click.IntRange(0), help="Only this one; an offset needs it where there are several.")
@click.option("--dry-run", is_flag=True, help="Show below which offsets records would go, and do nothing.")
@click.option("--yes", is_flag=True, help="Don't ask: the records are deleted for good.")
@click.option("--wait", is_flag=True, help="Until every replica has said that it holds none of them any more.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), default=300.0, show_default=True, help="Seconds of --wait.")
@json_option
@connection_options
@internal_option
def purge(
    name: str, subjects: tuple[str, ...], keys: tuple[str, ...], before: str | None, partition: int | None, dry_run: bool,
    yes: bool, wait: bool, timeout_s: float, as_json: bool, target: Target,
) -> None:  # fmt: skip
    """Give up the committed records of stream NAME that have one of the subjects, or keys, for good, on every replica.

    Replicas drop them one by one, within seconds; what was published with a message id when its dedup window is over. Offsets stay."""
    if not subjects and not keys:
        raise click.UsageError("name --subject or --key; to give up everything below an offset: liftpy stream truncate")
    where = _where(before)

    async def work(client: Client, dry_run: bool) -> dict[int, int]:
        image = await client.stream(name)
        numbers = [p.partition for p in image.partitions] if partition is None else [partition]
        if isinstance(where, int) and len(numbers) > 1:
            raise ConfigError(f"{name} has {len(numbers)} partitions: an offset is one partition's, name it by --partition")
        bytes_of = [key.encode() for key in keys]
        return {
            number: await client.purge(name, number, subjects=subjects, keys=bytes_of, before=where, dry_run=dry_run)
            for number in numbers
        }

    if not dry_run and not yes:
        for number, end in with_client(target, lambda client: work(client, True)).items():
            click.echo(f"{name}/{number}: what fits would go below {end}", err=True)
        click.confirm(f"delete these records of stream {name} for good?", abort=True, err=True)
    ends = with_client(target, lambda client: work(client, dry_run))
    if wait and not dry_run:
        with_client(target, lambda client: _gone(client, name, set(ends), timeout_s))
    if as_json:
        found = [{"partition": number, "end_offset": end} for number, end in ends.items()]
        click.echo(json.dumps({"stream": name, "dry_run": dry_run, "waited": wait and not dry_run, "purged": found}))
        return
    how = "would go" if dry_run else "is gone" if wait else "goes"
    for number, end in ends.items():
        click.echo(f"{name}/{number}: what fits {how} below {end}")


def _where(before: str | None) -> int | datetime | None:
    where = None if before is None else parse_start(before, datetime.now(UTC))
    if where is not None and not isinstance(where, (int, datetime)):
        raise click.UsageError("--before takes an offset or a time")
    return where.replace(tzinfo=UTC) if isinstance(where, datetime) and where.tzinfo is None else where


async def _gone(client: Client, name: str, numbers: set[int], timeout_s: float) -> None:
    """Return when no purge of these partitions is under way. Raises UnavailableError after ``timeout_s``."""
    until = time.monotonic() + timeout_s
    while True:
        partitions = [p for p in (await client.stream(name)).partitions if p.partition in numbers and p.purges]
        if not partitions:
            return
        if time.monotonic() >= until:
            waits = sorted({node for p in partitions for purge in p.purges for node in waits_for(p, purge)})
            who = ", ".join(waits)
            raise UnavailableError(f"{name}: after {timeout_s:g} s it still waits for {who}; it goes on without this command")
        await asyncio.sleep(_LOOK_EVERY_S)
