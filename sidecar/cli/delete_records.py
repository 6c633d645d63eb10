"""``liftpy stream purge``: delete the records of subjects or keys.

``liftpy stream delete-records``: give up the oldest records of a stream.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import assert_never

import click

from liftpy.client import Client
from liftpy.client.positions import FromEnd, Position, parse_start
from liftpy.core.base.purge import waits_for
from liftpy.errors import ConfigError, NotFoundError, UnavailableError
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import BYTES, Duration, connection_options, internal_option, json_option
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target

_LOOK_EVERY_S = 0.5
_COUNT_S = 10.0
"""So long the records that would go are counted, over all partitions."""


@click.command(cls=HelpCommand, example="liftpy stream purge orders --subject shop.orders.test --dry-run")
@click.argument("name")
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    help="Delete records of this subject. The wildcards * and > are allowed. May be repeated.",
)
@click.option(
    "--key",
    "keys",
    type=BYTES,
    multiple=True,
    help="Delete records with this key. May be repeated. With --subject, a record must match both.",
)
@click.option(
    "--before",
    metavar="WHERE",
    help="Delete only records below this OFFSET, or before a time such as 2026-01-31T12:00:00 or -10m.",
)
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="Delete only from this partition. Required for an offset if the stream has several partitions.",
)
@click.option("--dry-run", is_flag=True, help="Print how many records would be deleted, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. The records are deleted permanently.")
@click.option("--wait", is_flag=True, help="Wait until every replica has deleted the records.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="Maximum time for --wait.",
)
@json_option
@connection_options
@internal_option
def purge(
    name: str, subjects: tuple[str, ...], keys: tuple[bytes, ...], before: str | None, partition: int | None, dry_run: bool,
    yes: bool, wait: bool, timeout_s: float, as_json: bool, target: Target,
) -> None:  # fmt: skip
    """Permanently delete the committed records of stream NAME that match a subject or a key, on every replica.

    Each replica deletes the records within seconds. It keeps a record with a message id until the dedup window has passed. The
    offsets of other records do not change.
    """
    if not subjects and not keys:
        raise click.UsageError(
            "Missing option: --subject or --key. To delete all records before an offset, use liftpy stream delete-records."
        )
    where = _where(before)

    async def plan(client: Client) -> list[_Purged]:
        image = await client.stream(name)
        numbers = [p.partition for p in image.partitions] if partition is None else [partition]
        if isinstance(where, int) and len(numbers) > 1:
            raise ConfigError(
                f"Stream {name} has {len(numbers)} partitions, and an offset belongs to one partition. Set --partition."
            )
        until = time.monotonic() + _COUNT_S
        return [await _would_go(client, name, image.uid, number, subjects, keys, where, until) for number in numbers]

    async def carry_out(client: Client, found: list[_Purged]) -> None:
        for one in found:  # what was shown, whatever was published since
            await client.purge(name, one.partition, subjects=subjects, keys=keys, before=one.end_offset, uid=one.uid)
        if wait:
            await _gone(client, name, {one.partition for one in found}, timeout_s)

    async def at_once(client: Client) -> list[_Purged]:
        found = await plan(client)
        await carry_out(client, found)
        return found

    if yes and not dry_run:
        purged = with_client(target, at_once)
    else:
        purged = with_client(target, plan)
        if not dry_run:
            for one in purged:
                click.echo(f"{name}/{one.partition}: what fits would go below {one.end_offset}: {one.words}", err=True)
            click.confirm(f"delete these records of stream {name} for good?", abort=True, err=True)
            with_client(target, lambda client: carry_out(client, purged))
    if as_json:
        found = [
            {
                "partition": one.partition, "end_offset": one.end_offset, "records": one.records, "of_records": one.of_records,
                "at_least": one.at_least,
            }
            for one in purged
        ]  # fmt: skip
        click.echo(json.dumps({"stream": name, "dry_run": dry_run, "waited": wait and not dry_run, "purged": found}))
        return
    how = "would go" if dry_run else "is gone" if wait else "goes"
    for one in purged:
        click.echo(f"{name}/{one.partition}: what fits {how} below {one.end_offset}: {one.words}")


@dataclass(frozen=True, slots=True)
class _Purged:
    """Records of one partition that a purge deletes. ``at_least``: counting took too long, there may be more."""

    uid: str
    partition: int
    end_offset: int
    records: int
    of_records: int
    at_least: bool

    @property
    def words(self) -> str:
        return f"{'at least ' if self.at_least else ''}{self.records} of {self.of_records} records"


async def _would_go(
    client: Client, name: str, uid: str, number: int, subjects: tuple[str, ...], keys: tuple[bytes, ...],
    before: int | datetime | None, until: float,
) -> _Purged:  # fmt: skip
    """Count the records of one partition that the purge would delete, until the monotonic time ``until``. Nothing changes."""
    end = await client.purge(name, number, subjects=subjects, keys=keys, before=before, dry_run=True, uid=uid)
    bounds = await client.bounds(name, number)
    records, at_least = 0, False
    if end > bounds.log_start_offset:
        consumer = client.consume(name, number, until=end - 1, subjects=subjects, keys=keys)
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                async for piece in consumer.batches():
                    records += piece.record_count
        except TimeoutError:
            at_least = True
    return _Purged(uid, number, end, records, bounds.end_offset - bounds.log_start_offset, at_least)


def _where(before: str | None) -> int | datetime | None:
    where = None if before is None else parse_start(before, datetime.now(UTC), "--before")
    if where is not None and not isinstance(where, int | datetime):
        raise ConfigError(
            f"Invalid value for --before: {before}. Use an OFFSET, or a time such as 2026-01-31T12:00:00 or -10m."
        )
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
            raise UnavailableError(
                f"Stream {name}: {who} did not finish within {timeout_s:g} s (--timeout). The deletion continues in "
                "the background."
            )
        await asyncio.sleep(_LOOK_EVERY_S)


@dataclass(frozen=True, slots=True)
class Deletion:
    """Records of one partition below ``first`` that are deleted. ``at_most``: the log may have gaps, so both counts are
    numbers of offsets.
    """

    uid: str
    partition: int
    first: int
    records: int
    of_records: int
    at_most: bool

    @property
    def words(self) -> str:
        """How many of how many records, for people."""
        return f"{'at most ' if self.at_most else ''}{self.records} of {self.of_records} records"


@click.command(name="delete-records", cls=HelpCommand, example="liftpy stream delete-records orders --before -24h --dry-run")
@click.argument("name")
@click.option(
    "--before",
    required=True,
    metavar="WHERE",
    help=(
        "Delete records before this position: an OFFSET (the first one that remains), -1000 (keep the last "
        "1000 offsets), a time such as 2026-01-31T12:00:00 or -10m, or new (delete all committed records)."
    ),
)
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="Delete only from this partition. Required for an offset if the stream has several partitions.",
)
@click.option("--dry-run", is_flag=True, help="Print how many records would be deleted, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. The records are deleted permanently.")
@json_option
@connection_options
@internal_option
def delete_records(
    name: str, before: str, partition: int | None, dry_run: bool, yes: bool, as_json: bool, target: Target
) -> None:
    """Permanently delete the records of stream NAME before an offset or a time, on every replica.

    Batches are not split, so up to one batch of older records can remain. Files are deleted by whole segments.
    """
    where = deletion_point_of(before)

    async def plan(client: Client) -> list[Deletion]:
        image = await client.stream(name)
        numbers = [p.partition for p in image.partitions] if partition is None else [partition]
        if isinstance(where, int) and len(numbers) > 1:
            raise ConfigError(
                f"Stream {name} has {len(numbers)} partitions, and an offset belongs to one partition. Set --partition."
            )
        return [await _deletion(client, name, image.uid, number, where) for number in numbers]

    async def carry_out(client: Client, deletions: list[Deletion]) -> None:
        for one in deletions:  # what was shown, whatever was published since
            await client.truncate_before(name, one.partition, one.first, uid=one.uid)

    if dry_run or not yes:
        deletions = with_client(target, plan)
        if not dry_run:
            for one in deletions:
                click.echo(f"{name}/{one.partition} would begin with the batch of {one.first}: {one.words} would go", err=True)
            click.confirm(f"delete {_sum(deletions)} of stream {name} for good?", abort=True, err=True)
            with_client(target, lambda client: carry_out(client, deletions))
    else:

        async def at_once(client: Client) -> list[Deletion]:
            found = await plan(client)
            await carry_out(client, found)
            return found

        deletions = with_client(target, at_once)
    if as_json:
        rows = [
            {
                "partition": one.partition, "offset": one.first, "records": one.records, "of_records": one.of_records,
                "at_most": one.at_most,
            }
            for one in deletions
        ]  # fmt: skip
        click.echo(json.dumps({"stream": name, "dry_run": dry_run, "begins": rows}))
        return
    for one in deletions:
        begins, goes = ("would begin", "would go") if dry_run else ("begins", "went")
        click.echo(f"{name}/{one.partition} {begins} with the batch of {one.first}: {one.words} {goes}")


def deletion_point_of(text: str) -> int | datetime | FromEnd | None:
    """Parse ``--before``. None: the end of the committed records. Raises ConfigError."""
    where = parse_start(text, datetime.now(UTC), "--before")
    if isinstance(where, datetime):
        return where if where.tzinfo is not None else where.replace(tzinfo=UTC)
    if isinstance(where, int | FromEnd):
        return where
    if where == "new":
        return None
    said = "the text of a position" if isinstance(where, Position) else text
    raise ConfigError(
        f"Invalid value for --before: {said}. Use an OFFSET (the first one that remains), -1000, a time such "
        "as 2026-01-31T12:00:00 or -10m, or new."
    )


async def _deletion(client: Client, name: str, uid: str, number: int, where: int | datetime | FromEnd | None) -> Deletion:
    """Return the records of one partition that would be deleted. Nothing changes."""
    bounds = await client.bounds(name, number)
    if bounds.uid != uid:
        raise NotFoundError(
            f"Stream {name} was deleted and created again during this command. Nothing was deleted. Run the command again."
        )
    match where:
        case None:
            wanted: int | datetime = bounds.end_offset
        case FromEnd(records):
            wanted = max(bounds.end_offset - records, bounds.log_start_offset)
        case int() | datetime():
            wanted = where
        case _:
            assert_never(where)
    first = await client.truncate_before(name, number, wanted, dry_run=True, uid=uid)
    begin, end = bounds.log_start_offset, max(bounds.end_offset, first)
    return Deletion(uid, number, first, max(first - begin, 0), end - begin, bounds.compacted)


def _sum(deletions: list[Deletion]) -> str:
    whole = Deletion(
        "", 0, 0, sum(one.records for one in deletions), sum(one.of_records for one in deletions), any(one.at_most for one in deletions)
    )  # fmt: skip
    return whole.words
