"""``liftpy consume``: print the committed records of one partition, or as a member of a group, or write them to a file."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from liftpy.client import Client, Consumer, parse_start, parse_until
from liftpy.client.ending import end_tasks
from liftpy.wire.batch import Record
from sidecar.cli.consume_group import ENDING_S, consume_as_member, member_of
from sidecar.cli.consume_output import Bar, output_to, record_json, suffixes
from sidecar.cli.options import BYTES, connection_options, json_option
from sidecar.cli.pipes import reader_gone
from sidecar.cli.session import with_client
from sidecar.settings import Target
from sidecar.tasks import attended


@click.command()
@click.argument("name")
@click.option("--partition", type=click.IntRange(0), default=None, help="[default: 0; with --group what the group assigns]")
@click.option(
    "--group",
    default=None,
    metavar="GROUP",
    help="As a member of it: processes with one GROUP share the partitions; each record to one, at least once. Committed is what was "
    "printed. --from earliest or new is for partitions of which nothing is committed.",
)
@click.option(
    "--from",
    "start",
    default=None,
    metavar="WHERE",
    help="earliest, latest (the last committed record), new (after it), an OFFSET, a time as 2026-01-31T12:00:00 or -10m, -1000 (so "
    "many before the end).  [default: earliest; with --reverse the end]",
)
@click.option(
    "--until",
    default=None,
    metavar="WHERE",
    help="end (what is committed now), the last OFFSET wanted, or a time: what was stamped before it.  [default: until Ctrl-C; with "
    "--output the end; with --reverse the log start]",
)
@click.option("--follow", is_flag=True, help="Go on at the end, until Ctrl-C: the default but with --output.")
@click.option("--reverse", is_flag=True, help="The newest first.")
@click.option("--filter", "subjects", multiple=True, metavar="SUBJECT", help="Only records of it; with wildcards; repeatable.")
@click.option("--key", "keys", type=BYTES, multiple=True, metavar="KEY", help="Only records with it; repeatable.")
@click.option("--format", "form", type=click.Choice(["text", "value", "json"]), default="text", show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help=f"Write to a new file, by its suffix: {suffixes()}.",
)
@json_option
@connection_options
def consume(
    name: str,
    partition: int | None,
    group: str | None,
    start: str | None,
    until: str | None,
    follow: bool,
    reverse: bool,
    subjects: tuple[str, ...],
    keys: tuple[bytes, ...],
    form: str,
    output: Path | None,
    as_json: bool,
    target: Target,
) -> None:
    """Print the committed records of stream NAME: offset and value, the value alone, or one JSON object per line."""
    now = datetime.now(UTC)
    if follow and (until is not None or reverse):
        raise click.UsageError("--follow goes on at the end: it has no --until, and no --reverse")
    ends = until is not None
    if output is not None and not ends and not follow and not reverse:
        until = "end"
    form = "json" if as_json else form
    member = None
    if group is not None:
        refused = {"--partition": partition is not None, "--until": ends, "--reverse": reverse}
        how = {"subjects": subjects, "keys": keys, "form": form}
        member = member_of(group, name, start=start, refused=refused, output=output, **how)
    begin = parse_start(start, now, "--from") if start is not None else ("new" if reverse else "earliest")
    last = parse_until(until, now, "--until")

    async def work(client: Client) -> None:
        await client.stream(name)  # says at once when there is no such stream
        if member is not None:
            doing = consume_as_member(client, member)
        else:
            consumer = client.consume(
                name, partition or 0, start=begin, until=last, subjects=subjects, keys=keys, backwards=reverse
            )
            doing = _print(consumer, _LINES[form]) if output is None else _write(consumer, output, last == "end")
        await _until_nobody_reads(client, doing, 0.0 if member is None else ENDING_S)

    with_client(target, work, needs_majority=False)


async def _until_nobody_reads(client: Client, doing: Coroutine[Any, Any, None], ending_s: float) -> None:
    """``ending_s``: so long it may take to end in order, told to once; then it is ended."""
    working = attended(doing)
    watching = attended(reader_gone(sys.stdout))
    try:
        done, _ = await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        await done.pop()
    finally:
        if ending_s and working.cancel():
            await asyncio.wait((working,), timeout=ending_s)
        await end_tasks((working, watching))
        for what, count in sorted(client.counters.items()):
            click.echo(f"{what}: {count}", err=True)


async def _print(consumer: Consumer, line: Any) -> None:
    out = sys.stdout.buffer
    async for piece in consumer.batches():
        records = reversed(list(piece.records())) if consumer.backwards else piece.records()
        out.writelines(map(line, records))
        out.flush()


async def _write(consumer: Consumer, file: Path, to_the_end: bool) -> None:
    bounds = await consumer.begin()
    with output_to(file) as write, Bar(file.name, bounds.end_offset if to_the_end else None) as bar:
        async for piece in consumer.batches():
            write(piece, newest_first=consumer.backwards)
            bar.at(piece.last_offset + 1, piece.record_count)
    click.echo(f"{bar.records} records in {file}", err=True)


def _text(record: Record) -> bytes:
    return b"%d\t%s\n" % (record.offset, record.value or b"")


def _value(record: Record) -> bytes:
    return b"%s\n" % (record.value or b"")


def _json(record: Record) -> bytes:
    return json.dumps(record_json(record)).encode() + b"\n"


_LINES = {"text": _text, "value": _value, "json": _json}
