"""``liftpy stream truncate``: give up the oldest records of a stream."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import assert_never

import click

from liftpy.client import Client
from liftpy.client.positions import Before, Position, parse_start
from liftpy.dataclass import dataclass
from liftpy.errors import ConfigError, NotFoundError
from sidecar.cli.options import connection_options, internal_option, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target


@dataclass(frozen=True, slots=True)
class Deletion:
    """What goes of one partition: the ``records`` below ``first``, of ``of_records`` that it has.

    ``at_most``: the log may have gaps (it is compacted, or was purged), so that both are counts of offsets.
    """

    uid: str
    partition: int
    first: int
    records: int
    of_records: int
    at_most: bool

    @property
    def words(self) -> str:
        """How many records of how many, for people."""
        return f"{'at most ' if self.at_most else ''}{self.records} of {self.of_records} records"


@click.command()
@click.argument("name")
@click.option(
    "--before",
    required=True,
    metavar="WHERE",
    help="The first OFFSET that stays, -1000 (the last 1000 offsets stay), a time as 2026-01-31T12:00:00 or -10m, or new: all that "
    "is committed goes.",
)
@click.option("--partition", type=click.IntRange(0), help="Only this one; an offset needs it where there are several.")
@click.option("--dry-run", is_flag=True, help="Show how many records would go, and do nothing.")
@click.option("--yes", is_flag=True, help="Don't ask: the records are deleted for good.")
@json_option
@connection_options
@internal_option
def truncate(name: str, before: str, partition: int | None, dry_run: bool, yes: bool, as_json: bool, target: Target) -> None:
    """Give up the records of stream NAME that lie before an offset or a time, for good, on every replica.

    Batches stay whole: up to a batch of older records may stay. Files go as whole segments."""
    where = truncation_of(before)

    async def plan(client: Client) -> list[Deletion]:
        image = await client.stream(name)
        numbers = [p.partition for p in image.partitions] if partition is None else [partition]
        if isinstance(where, int) and len(numbers) > 1:
            raise ConfigError(f"{name} has {len(numbers)} partitions: an offset is one partition's, name it by --partition")
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


def truncation_of(text: str) -> int | datetime | Before | None:
    """What ``--before`` means; None: the end of what is committed. Raises ConfigError for everything else."""
    where = parse_start(text, datetime.now(UTC), "--before")
    if isinstance(where, datetime):
        return where if where.tzinfo is not None else where.replace(tzinfo=UTC)
    if isinstance(where, int | Before):
        return where
    if where == "new":
        return None
    said = "the text of a position" if isinstance(where, Position) else text
    raise ConfigError(
        f"--before {said}: give the first OFFSET that stays, -1000, a time as 2026-01-31T12:00:00 or -10m, or new"
    )


async def _deletion(client: Client, name: str, uid: str, number: int, where: int | datetime | Before | None) -> Deletion:
    """What would go of one partition. Nothing is done."""
    bounds = await client.bounds(name, number)
    if bounds.uid != uid:
        raise NotFoundError(f"stream {name} was deleted and made again just now: nothing was done")
    match where:
        case None:
            wanted: int | datetime = bounds.end_offset
        case Before(records):
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
