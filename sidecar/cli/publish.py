"""``liftpy publish``: one message per line of a file or of the standard input, acknowledged."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import BinaryIO

import click

from liftpy.client import Client, PublishAck, Publisher, PublishOptions
from liftpy.config import AckPolicy
from liftpy.dataclass import dataclass
from liftpy.errors import LiftError, ProtocolError
from sidecar.cli.main import exit_code
from sidecar.cli.options import BYTES, connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target

_CHUNK_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class _Report:
    """What became of the lines. Offsets inclusive, -1: none; lines are counted from 1."""

    published: int = 0
    """Lines sent; with an ack asked for: acknowledged."""
    refused: int = 0
    first_offset: int = -1
    last_offset: int = -1
    first_refused_line: int = 0
    first_error: LiftError | None = None

    def answered(self, line: int, answer: asyncio.Future[PublishAck]) -> None:
        """Take an answer into account."""
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self.refused_line(line, error if isinstance(error, LiftError) else LiftError(repr(error)))
            return
        ack = answer.result()
        self.published += 1
        self.first_offset = ack.offset if self.first_offset < 0 else min(self.first_offset, ack.offset)
        self.last_offset = max(self.last_offset, ack.offset)

    def refused_line(self, line: int, error: LiftError) -> None:
        """A line that is not, or perhaps not, stored; the first of them by number is remembered."""
        self.refused += 1
        if self.first_error is None or line < self.first_refused_line:
            self.first_refused_line, self.first_error = line, error

    @property
    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        found: dict[str, object] = {"published": self.published, "refused": self.refused}
        found |= {"first_offset": self.first_offset, "last_offset": self.last_offset}
        if self.first_error is not None:
            found |= {
                "first_refused_line": self.first_refused_line,
                "error": self.first_error.code,
                "detail": str(self.first_error),
            }
        return found


@dataclass(frozen=True, slots=True)
class _Manner:
    """What goes with each line, and what a refused one means."""

    ack: AckPolicy
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    keep_going: bool


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
@click.option("--key", type=BYTES, default=None, help="The key of every message.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every message; may be repeated.")
@click.option("--keep-going", is_flag=True, help="Go on behind a line that is refused, and tell at the end how many were.")
@json_option
@connection_options
def publish(
    name: str,
    file: BinaryIO,
    partition: int,
    subject: str,
    ack: str,
    window: int,
    key: bytes | None,
    headers: tuple[str, ...],
    keep_going: bool,
    as_json: bool,
    target: Target,
) -> int:
    """Publish the lines of FILE (default: the standard input) to stream NAME, one message each, and wait for the acks.

    The first line that is refused ends it: it is named, and what was sent before it is counted. Exit code 1 if any was.
    """
    manner = _Manner(AckPolicy(ack), key, _headers(headers), keep_going)

    async def work(client: Client) -> tuple[_Report, float]:
        publisher = await client.publisher(name, partition, subject=subject, options=PublishOptions(window=window))
        started = time.monotonic()
        report = await _publish_lines(publisher, file, manner)
        return report, time.monotonic() - started

    report, seconds = with_client(target, work)
    if as_json:
        click.echo(json.dumps({**report.as_json, "ack": ack, "seconds": round(seconds, 3)}))
    else:
        where = f", offsets {report.first_offset} to {report.last_offset}" if report.last_offset >= 0 else ""
        click.echo(f"{report.published} messages published to {name}/{partition} (ack {ack}{where}) in {seconds:.2f} s")
    if report.first_error is None:
        return 0
    click.echo(
        f"Error: {report.refused} lines are not acknowledged, the first of them line {report.first_refused_line}: "
        f"{report.first_error}",
        err=True,
    )
    return exit_code(report.first_error)


def _headers(given: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    found: list[tuple[str, bytes]] = []
    for text in given:
        header, equals, value = text.partition("=")
        if not header or not equals:
            raise click.BadParameter(f"{text!r}: write NAME=VALUE", param_hint="--header")
        found.append((header, value.encode("utf-8", "surrogateescape")))
    return tuple(found)


async def _publish_lines(publisher: Publisher, file: BinaryIO, manner: _Manner) -> _Report:
    report = _Report()
    number = 0
    async with publisher:
        async for line in _lines(file):
            if report.first_error is not None and not manner.keep_going:
                break
            number += 1
            if manner.ack is AckPolicy.NONE:
                await publisher.post(line, key=manner.key, headers=manner.headers)
                report.published += 1
            else:
                answer = await publisher.send(line, key=manner.key, headers=manner.headers, ack=manner.ack)
                if answer.done():  # refused here, before anything was sent
                    report.answered(number, answer)
                else:
                    answer.add_done_callback(partial(report.answered, number))
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
