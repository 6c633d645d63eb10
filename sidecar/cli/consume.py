"""``liftpy consume``: print the committed records of one partition."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from datetime import UTC, datetime
from typing import Any

import click

from liftpy.client import Client, Consumer, parse_start, parse_until
from liftpy.client.ending import end_tasks
from liftpy.wire.batch import Record
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.pipes import reader_gone
from sidecar.cli.session import with_client
from sidecar.settings import Target
from sidecar.tasks import attended


@click.command()
@click.argument("name")
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help="earliest, latest (the last committed record), new (after it), an OFFSET, or a time as 2026-01-31T12:00:00 or -10m.",
)
@click.option(
    "--until",
    default=None,
    metavar="WHERE",
    help="end (what is committed now), the last OFFSET wanted, or a time: what was stamped before it.  [default: until Ctrl-C]",
)
@json_option
@connection_options
def consume(name: str, partition: int, start: str, until: str | None, as_json: bool, target: Target) -> None:
    """Print the committed records of stream NAME: offset and value, or one JSON object per line."""
    now = datetime.now(UTC)
    first, last = parse_start(start, now), parse_until(until, now)

    async def work(client: Client) -> None:
        await client.stream(name)  # says at once when there is no such stream
        printing = attended(_print(client.consume(name, partition, start=first, until=last), as_json))
        watching = attended(reader_gone(sys.stdout))
        try:
            done, _ = await asyncio.wait((printing, watching), return_when=asyncio.FIRST_COMPLETED)
            await done.pop()
        finally:
            await end_tasks((printing, watching))
            for what, count in sorted(client.counters.items()):
                click.echo(f"{what}: {count}", err=True)

    with_client(target, work)


async def _print(consumer: Consumer, as_json: bool) -> None:
    out = sys.stdout.buffer
    async for piece in consumer.batches():
        for record in piece.records():
            out.write(json.dumps(record_json(record)).encode() if as_json else b"%d\t%s" % (record.offset, record.value or b""))
            out.write(b"\n")
        out.flush()


def record_json(record: Record) -> dict[str, Any]:
    """A record as JSON: text where the bytes are UTF-8, else base64 under a name with ``_base64``."""
    found: dict[str, Any] = {"offset": record.offset, "timestamp_ns": record.timestamp_ns}
    found.update(_text_or_base64("value", record.value))
    if record.key is not None:
        found.update(_text_or_base64("key", record.key))
    if record.headers:
        found["headers"] = [{"name": n, **_text_or_base64("value", v)} for n, v in record.headers]
    if record.subject:
        found["subject"] = record.subject
    return found


def _text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: bytes(content).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
