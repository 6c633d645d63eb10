"""``liftpy publish``: publish each line of a file or of the standard input as a message, and wait for the acks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import BinaryIO

import click

from liftpy.client import Client, Producer, ProducerOptions, PublishAck, Publisher, PublishOptions
from liftpy.client.awaitable_context import AwaitableContext
from liftpy.client.encode_publish import MESSAGE_ID
from liftpy.client.partition_sender import Receipt
from liftpy.config import AckPolicy
from liftpy.core.publish.jetstream_headers import first_refused
from liftpy.core.wire.headers import pairs_of
from liftpy.errors import (
    ConfigError,
    LiftError,
    NoClusterError,
    NotAllowedError,
    OutcomeUnknownError,
    ProtocolError,
    StorageError,
    UnavailableError,
)
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpCommand
from sidecar.cli.main import exit_code
from sidecar.cli.options import BYTES, connection_options, json_option
from sidecar.cli.output import Progress, print_json
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target
from sidecar.runtime.tasks import start_attended

_CHUNK_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024 * 1024
_LINES_WITH_IDS = 4096
"""Number of lines that are sent with a message id. A producer sends the lines after them.

A leader remembers message ids for the deduplication window, so an endless input would fill its memory. It remembers a producer for a
day. So a short input uses ids.
"""
_PATIENCE_S = 30.0
"""Time in which a leader must accept a line, in seconds."""
OVERLOAD_PATIENCE_S = 600.0
"""Time in which a leader that has no room must accept a line, in seconds."""
_SHOW_EVERY_S = 1.0
"""Time between two updates of the progress, in seconds."""
_CHECK_S = 2.0
"""Time to check that --subject is the stream's, in seconds. Without an answer or permission, the command publishes anyway."""


OpenProducer = Callable[[], AwaitableContext[Producer]]


@dataclass(slots=True)
class _Report:
    """Result of publishing lines. Offsets are inclusive, -1: none. Line numbers begin at 1."""

    published: int = 0
    """Number of lines sent. With acks: acknowledged."""
    refused: int = 0
    first_offset: int = -1
    last_offset: int = -1
    first_refused_line: int = 0
    first_error: LiftError | None = None
    sent: int = 0
    waiting: set[int] = field(default_factory=set)
    """Lines that are sent and not acknowledged: at most the window."""
    rejected: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last_line(self) -> int:
        """Number of the last line up to which every line is acknowledged. 0: the first line is not."""
        first = min(self.waiting, default=self.sent + 1)
        return (min(first, self.first_refused_line) if self.first_error is not None else first) - 1

    @property
    def progress(self) -> str:
        upto = f"every line up to line {self.last_line}" if self.last_line else "not the first line"
        return f"{self.published} of {self.sent} messages are acknowledged, {upto}"

    def count_answer(self, line: int, answer: asyncio.Future[PublishAck]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self.refused_line(line, error if isinstance(error, LiftError) else LiftError(repr(error)))
        else:
            self.acknowledged(line, answer.result())

    def acknowledged(self, line: int, ack: PublishAck) -> None:
        self.waiting.discard(line)
        self.published += 1
        self.first_offset = ack.offset if self.first_offset < 0 else min(self.first_offset, ack.offset)
        self.last_offset = max(self.last_offset, ack.offset)

    def refused_line(self, line: int, error: LiftError) -> None:
        """Count a line that failed. Store the error of the failed line with the lowest number."""
        self.refused += 1
        self.rejected.set()
        if self.first_error is None or line < self.first_refused_line:
            self.first_refused_line, self.first_error = line, error

    @property
    def as_json(self) -> dict[str, object]:
        fields: dict[str, object] = {"published": self.published, "refused": self.refused}
        fields |= {"first_offset": self.first_offset, "last_offset": self.last_offset, "last_line": self.last_line}
        if self.first_error is not None:
            fields |= {
                "first_refused_line": self.first_refused_line,
                "error": self.first_error.code,
                "detail": str(self.first_error),
            }
        return fields


@dataclass(frozen=True, slots=True)
class _LineOptions:
    """Options that apply to each published line. ``keep_going``: True to continue after a rejected line."""

    ack: AckPolicy
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    keep_going: bool
    partition: int

    @property
    def allows_producer(self) -> bool:
        """True if a producer can send the lines: it needs the acks of all replicas, and its first rejected line ends it."""
        return self.ack is AckPolicy.ALL and not self.keep_going and not first_refused(name for name, _ in self.headers)


@click.command(cls=HelpCommand, example="liftpy publish orders --key customer-7 --header source=import < events.jsonl")
@click.argument("name", type=STREAM)
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True, help="Partition to publish to.")
@click.option("--subject", default="", help="Subject to publish on. Required if the subject of the stream has wildcards.")
@click.option(
    "--ack-policy",
    "ack",
    type=click.Choice([p.value for p in AckPolicy]),
    default="all",
    show_default=True,
    help="Ack to wait for: from all in-sync replicas, from the leader, or none.",
)
@click.option(
    "--window", type=click.IntRange(1, 1 << 20), default=4096, show_default=True, help="Maximum number of messages in flight."
)
@click.option("--key", type=BYTES, help="Key of every message.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of every message. May be repeated.")
@click.option(
    "--keep-going", is_flag=True, help="Continue after a rejected line, and print the number of rejected lines at the end."
)
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
    """Publish each line of FILE to stream NAME, and wait for the acks. Without FILE, read the standard input.

    The command sends a line without an ack again, and the stream stores it once. If a leader has no room, the command waits.

    The command stops at the first rejected line. It prints the line and the number of lines sent before it. Exit code 1: at least one
    line was rejected.
    """
    manner = _LineOptions(AckPolicy(ack), key, _headers(headers), keep_going, partition)

    report, started = _Report(), time.monotonic()

    async def work(client: Client) -> None:
        nonlocal started
        if subject:
            await _describe(client, name)
        options = PublishOptions(
            window=window, message_ids=True, patience_s=_PATIENCE_S, overload_patience_s=OVERLOAD_PATIENCE_S
        )
        publisher = await client.publisher(name, partition, subject=subject, options=options)
        batches = ProducerOptions(buffer_records=window, patience_s=_PATIENCE_S)
        open_producer = (lambda: client.producer(name, options=batches)) if manner.allows_producer and not subject else None
        started = time.monotonic()
        with Progress(name, _size(file), unit="messages", is_shown=not file.isatty()) as progress:
            await _publish_lines(publisher, file, manner, report, progress, open_producer)

    try:
        with_client(target, work, needs_majority=False)
    except KeyboardInterrupt:
        if as_json:
            print_json({**report.as_json, "ack": ack, "interrupted": True})
        click.echo(f"Interrupted: {report.progress}", err=True)
        raise
    seconds = time.monotonic() - started
    if as_json:
        print_json({**report.as_json, "ack": ack, "seconds": round(seconds, 3)})
    else:
        where = f", offsets {report.first_offset} to {report.last_offset}" if report.last_offset >= 0 else ""
        messages = "message" if report.published == 1 else "messages"
        click.echo(f"{report.published} {messages} published to {name}/{partition} (ack {ack}{where}) in {seconds:.2f} s")
    if report.first_error is None:
        return 0
    line = f"line {report.first_refused_line}"
    many = f"{report.refused} lines are not acknowledged, the first of them {line}"
    click.echo(
        f"Error: {many if report.refused > 1 else f'{line} is not acknowledged'}: "
        f"{str(report.first_error).removesuffix('.')}. {report.progress[0].upper()}{report.progress[1:]}",
        err=True,
    )
    return exit_code(report.first_error)


def _headers(header_texts: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    pairs: list[tuple[str, bytes]] = []
    for text in header_texts:
        header, equals, value = text.partition("=")
        if not header or not equals:
            raise click.BadParameter(f"{text!r}. Use NAME=VALUE.", param_hint="--header")
        if header == MESSAGE_ID:
            raise click.BadParameter(
                f"{text!r}. Each line gets a message id of its own. Remove this header.", param_hint="--header"
            )
        try:
            pairs += pairs_of([(header, value.encode("utf-8", "surrogateescape"))])
        except ConfigError as error:
            raise click.BadParameter(str(error), param_hint="--header") from None
    return tuple(pairs)


async def _describe(client: Client, name: str) -> None:
    """Request the stream, so that the client can reject a subject that belongs to another stream.

    A missing answer is no error. Raises NotFoundError and NoClusterError.
    """
    try:
        async with asyncio.timeout(_CHECK_S):
            await client.stream(name)
    except NoClusterError:
        raise
    except (NotAllowedError, UnavailableError, OutcomeUnknownError, TimeoutError):
        pass


def _size(file: BinaryIO) -> int | None:
    """Return the size of a regular file, in bytes. None: ``file`` is a terminal, a pipe, or not a file of the operating system."""
    try:
        file_stat = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return file_stat.st_size if stat.S_ISREG(file_stat.st_mode) else None


class _LineSender:
    """Sends lines: the first ones with message ids, and the others with a producer. ``open_producer``: opens it. None: use ids only."""

    def __init__(self, publisher: Publisher, manner: _LineOptions, report: _Report, open_producer: OpenProducer | None) -> None:
        self._publisher = publisher
        self._manner = manner
        self._report = report
        self._open = open_producer
        self._producer: Producer | None = None
        self._receipts: asyncio.Queue[tuple[int, Receipt] | None] = asyncio.Queue()
        self._counting: asyncio.Task[None] | None = None

    async def send(self, line: bytes) -> None:
        if self._open is not None and self._report.sent >= _LINES_WITH_IDS:
            await self._switch(self._open)
        if self._producer is not None:
            await self._send_with_producer(self._producer, line)
            return
        manner, report = self._manner, self._report
        if manner.ack is AckPolicy.NONE:
            await self._publisher.post(line, key=manner.key, headers=manner.headers)
            report.sent += 1
            report.published += 1
            return
        answer = await self._publisher.send(line, key=manner.key, headers=manner.headers, ack=manner.ack)
        report.sent += 1
        if answer.done():  # rejected here, before anything was sent
            report.count_answer(report.sent, answer)
        else:
            report.waiting.add(report.sent)
            answer.add_done_callback(partial(report.count_answer, report.sent))

    async def _switch(self, open_producer: OpenProducer) -> None:
        """Wait for the acks of the lines with message ids, and open the producer.

        Without a producer, the later lines get message ids, too: not every user may open one, and not every stream can have one.
        """
        self._open = None
        await self._publisher.flush()
        if self._report.first_error is not None:
            return
        try:
            self._producer = await open_producer()
        except LiftError:
            return
        self._counting = start_attended(self._count_receipts())

    async def _send_with_producer(self, producer: Producer, line: bytes) -> None:
        manner, report = self._manner, self._report
        try:
            receipt = await producer.send(line, key=manner.key, headers=manner.headers, partition=manner.partition)
        except LiftError:
            if producer.failure is None:
                raise
            report.rejected.set()  # an earlier line has ended the producer. The receipt of that line has the error
            return
        report.sent += 1
        report.waiting.add(report.sent)
        self._receipts.put_nowait((report.sent, receipt))

    async def _count_receipts(self) -> None:
        while (item := await self._receipts.get()) is not None:
            line, receipt = item
            try:
                self._report.acknowledged(line, await receipt)
            except LiftError as error:
                self._report.refused_line(line, error)

    async def __aenter__(self) -> _LineSender:
        await self._publisher.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and not issubclass(kind, LiftError)
        try:
            if self._producer is not None:
                try:
                    if not interrupted:
                        with contextlib.suppress(LiftError):  # the receipts of its lines have the error
                            await self._producer.flush()
                finally:
                    failure = self._producer.failure
                    await self._producer.close()
                    self._receipts.put_nowait(None)
                    if self._counting is not None:
                        await self._counting
                    if failure is not None and self._report.first_error is None:
                        self._report.refused_line(self._report.sent + 1, failure)
        finally:
            await self._publisher.__aexit__(kind, error, trace)


async def _publish_lines(
    publisher: Publisher,
    file: BinaryIO,
    manner: _LineOptions,
    report: _Report,
    progress: Progress,
    open_producer: OpenProducer | None = None,
) -> None:
    sender = _LineSender(publisher, manner, report, open_producer)
    try:
        async with sender:  # its end waits for every ack
            try:
                await _send_lines(sender, file, manner, report, progress)
            except LiftError as error:  # also an error of reading the file
                report.refused_line(report.sent + 1, error)
    except LiftError as error:
        if report.first_error is None:
            report.refused_line(report.sent + 1, error)


async def _send_lines(sender: _LineSender, file: BinaryIO, manner: _LineOptions, report: _Report, progress: Progress) -> None:
    rejected = start_attended(report.rejected.wait())
    lines = _lines(file)
    coming: asyncio.Task[list[bytes]] | None = None
    sent_bytes = 0

    async def show_progress() -> None:  # also while the publisher waits for room
        while True:
            await asyncio.sleep(_SHOW_EVERY_S)
            progress.at(sent_bytes, report.published)

    showing = start_attended(show_progress())
    try:
        while True:
            coming = start_attended(_next(lines))
            await asyncio.wait([coming] if manner.keep_going else [coming, rejected], return_when=asyncio.FIRST_COMPLETED)
            if not coming.done() or not (some := coming.result()):
                return
            for line in some:
                if report.first_error is not None and not manner.keep_going:
                    return
                await sender.send(line)
                sent_bytes += len(line) + 1
            progress.at(sent_bytes, report.published)
    finally:
        tasks = [task for task in (rejected, coming, showing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await lines.aclose()


async def _next(lines: AsyncGenerator[list[bytes], None]) -> list[bytes]:
    return await anext(lines, [])


async def _lines(file: BinaryIO) -> AsyncGenerator[list[bytes], None]:
    """Yield lists of lines without line ends, as soon as the lines arrive. No list is empty."""
    rest: list[bytes] = []  # parts of a line, because joining them at each chunk would take quadratic time
    rest_bytes = 0
    while chunk := await _read_chunk(file):
        first, *more = chunk.split(b"\n")
        rest.append(first)
        rest_bytes += len(first)
        if more:
            lines, rest = [b"".join(rest), *more[:-1]], more[-1:]
            rest_bytes = len(rest[0])
            yield lines
        elif rest_bytes > _MAX_LINE_BYTES:
            raise ProtocolError(f"A line is longer than {_MAX_LINE_BYTES} bytes. Check that the input is a text file.")
    if rest_bytes:
        yield [b"".join(rest)]


async def _read_chunk(file: BinaryIO) -> bytes:
    """Return the next bytes of the input, b"" at the end. Raises StorageError, so that the lines before it are reported."""
    try:
        return await _read_input(file)
    except OSError as error:
        raise StorageError(
            f"Cannot read the input: {error.strerror or error}. Check the file, then publish the rest."
        ) from None


async def _read_input(file: BinaryIO) -> bytes:
    """Return the next bytes of the input, b"" at the end.

    The call can be canceled while a terminal or a pipe has no data, and leaves no thread behind.
    """
    if not _may_be_quiet(file):
        return await asyncio.to_thread(file.read, _CHUNK_BYTES)
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(file.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(file.fileno())
    return os.read(file.fileno(), _CHUNK_BYTES)


def _may_be_quiet(file: BinaryIO) -> bool:
    try:
        kind = os.fstat(file.fileno()).st_mode
    except OSError:  # no descriptor: it is in memory
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(file.fileno())
