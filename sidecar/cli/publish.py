"""``liftpy publish``: one message per line of a file or of the standard input, acknowledged."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import BinaryIO

import click

from liftpy.client import Client, PublishAck, Publisher, PublishOptions
from liftpy.config import AckPolicy
from liftpy.errors import ProtocolError
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target

_CHUNK_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class _Report:
    """What was published. Offsets inclusive, -1: none."""

    published: int = 0
    first_offset: int = -1
    last_offset: int = -1

    def answered(self, answer: asyncio.Future[PublishAck]) -> None:
        """Take an ack into account; a message that failed is raised by the publisher's flush."""
        if answer.cancelled() or answer.exception() is not None:
            return
        ack = answer.result()
        self.first_offset = ack.offset if self.first_offset < 0 else min(self.first_offset, ack.offset)
        self.last_offset = max(self.last_offset, ack.offset)


@click.command()
@click.argument("name")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True)
@click.option("--subject", default="", help="Publish here; needed where the stream's subject has wildcards.")
@click.option(
    "--ack",
    type=click.Choice([p.value for p in AckPolicy]),
    default="all",
    show_default=True,
    help="What to wait for: all in-sync replicas, the leader, nothing.",
)
@click.option("--window", type=click.IntRange(1, 1 << 20), default=4096, show_default=True, help="Messages in flight.")
@json_option
@connection_options
def publish(
    name: str, file: BinaryIO, partition: int, subject: str, ack: str, window: int, as_json: bool, target: Target
) -> None:
    """Publish the lines of FILE (default: the standard input) to stream NAME, one message each, and wait for the acks."""

    async def work(client: Client) -> tuple[_Report, float]:
        publisher = await client.publisher(name, partition, subject=subject, options=PublishOptions(window=window))
        started = time.monotonic()
        report = await _publish_lines(publisher, file, AckPolicy(ack))
        return report, time.monotonic() - started

    report, seconds = with_client(target, work)
    if as_json:
        answer = {"published": report.published, "first_offset": report.first_offset, "last_offset": report.last_offset}
        click.echo(json.dumps({**answer, "ack": ack, "seconds": round(seconds, 3)}))
        return
    where = f", offsets {report.first_offset} to {report.last_offset}" if report.last_offset >= 0 else ""
    click.echo(f"{report.published} messages published to {name}/{partition} (ack {ack}{where}) in {seconds:.2f} s")


async def _publish_lines(publisher: Publisher, file: BinaryIO, ack: AckPolicy) -> _Report:
    report = _Report()
    async with publisher:
        async for line in _lines(file):
            if ack is AckPolicy.NONE:
                await publisher.post(line)
            else:
                (await publisher.send(line, ack=ack)).add_done_callback(report.answered)
            report.published += 1
    return report


async def _lines(file: BinaryIO) -> AsyncIterator[bytes]:
    """The lines without their ends, as soon as they are there: a pipe that is slow holds nothing back."""
    rest = b""
    read = getattr(file, "read1", file.read)
    while chunk := await asyncio.to_thread(read, _CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            raise ProtocolError(f"a line is longer than {_MAX_LINE_BYTES} bytes: is this a text file?")
        for line in lines:
            yield line
    if rest:
        yield rest
