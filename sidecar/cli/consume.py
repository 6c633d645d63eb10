"""``liftpy consume``: print the committed records of a partition or of a group, or write them to a file.

With ``--group NAME``, the command is a member of a consumer group. The members share the partitions of the stream. The command
commits printed records every five seconds, when a partition moves to another member, and at the end. Ctrl-C is also an end. A
record that was not printed completely is not committed, so another member reads it again.

With ``--output FILE``, the suffix of the file selects Parquet, Arrow or lines of JSON. Until the file is complete, its name is
``FILE.part``. After Ctrl-C during ``--follow``, the file is complete. Otherwise Ctrl-C leaves ``FILE.part``. The command never
overwrites an existing file.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import click

from liftpy.client import BatchSlice, Client, Consumer, Group, GroupOptions, parse_start, parse_until
from liftpy.core.wire.batch import Record
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import ConfigError, LiftError, StorageError
from liftpy.nats.cancellation import end_tasks
from sidecar.cli.completion import GROUP, STREAM
from sidecar.cli.help import HelpCommand
from sidecar.cli.main import DISK_ERRORS
from sidecar.cli.options import BYTES, connection_options, json_option, warn_of_unmatched
from sidecar.cli.output import Progress, wait_for_closed_pipe
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target
from sidecar.runtime.tasks import start_attended

Write = Callable[[BatchSlice, bool], object]
"""Function that adds the records of a slice to the output file. True: the newest record comes first."""
_OUTPUT_TIMEOUT_S = 2.0
"""Maximum time that Ctrl-C waits for the current output, in seconds."""
SHUTDOWN_TIMEOUT_S = 10.0
"""Maximum time from Ctrl-C to the end of the command, including the last commit, in seconds."""


@contextmanager
def _arrow(file: Path) -> Iterator[Write]:
    import pyarrow as pa

    from liftpy.core.log.arrow import SCHEMA

    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        yield lambda piece, newest_first: writer.write_batch(_table_of(piece, newest_first))


@contextmanager
def _parquet(file: Path) -> Iterator[Write]:
    import pyarrow.parquet as pq

    from liftpy.core.log.arrow import SCHEMA

    with pq.ParquetWriter(file, SCHEMA) as writer:
        yield lambda piece, newest_first: writer.write_batch(_table_of(piece, newest_first))


@contextmanager
def _lines(file: Path) -> Iterator[Write]:
    with file.open("wb") as out:

        def write(piece: BatchSlice, newest_first: bool) -> None:
            records = reversed(list(piece.records())) if newest_first else piece.records()
            out.writelines(_json(record, None) for record in records)

        yield write


def _table_of(piece: BatchSlice, newest_first: bool) -> Any:
    import numpy as np

    rows = piece.to_arrow()
    return rows.take(np.arange(rows.num_rows)[::-1].copy()) if newest_first else rows


_BY_SUFFIX: dict[str, Callable[[Path], Any]] = {".parquet": _parquet, ".arrow": _arrow, ".jsonl": _lines}


def suffixes() -> str:
    """Return the file suffixes that --output accepts and their formats, as text for help and errors."""
    return ", ".join(_BY_SUFFIX)


@contextmanager
def output_to(file: Path, *, has_end: bool = True) -> Iterator[Write]:
    """Create the new file ``file`` and yield a function that writes records to it. The suffix of the file sets the format.

    ``has_end``: True if the read has an end. Ctrl-C then leaves an incomplete file with the suffix .part.

    Raises ConfigError if the suffix is unknown, if the file exists or cannot be written, or if another command writes it now. Raises
    StorageError if the disk is full.
    """
    kind = _BY_SUFFIX.get(file.suffix)
    if kind is None:
        raise ConfigError(f"Invalid value for --output: {file}. The suffix sets the format: {suffixes()}.")
    with _lock_part(file), _rename_when_complete(file, kind, has_end=has_end) as write:
        yield write


@contextmanager
def _lock_part(file: Path) -> Iterator[None]:
    """Let no other command write to the part of ``file`` in this block. The remains of a killed command are overwritten.

    Raises ConfigError if another command writes to it now, or if it cannot be written.
    """
    part = _part_of(file)
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _not_writable(file, error) from None
    try:
        with suppress(OSError):  # the file system has no locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"Another command writes {part} now. Wait for it, or choose another --output.") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def lines_to(file: Path) -> Iterator[Callable[[Iterable[bytes]], None]]:
    """Create the new file ``file`` and yield a function that appends lines to it and flushes them to the disk.

    Raises ConfigError if the file exists or cannot be written, or if an earlier run has left a part of it.
    """
    part = _part_of(file)
    with suppress(OSError):
        if not part.stat().st_size:  # no record was written, for example because the group could not be joined
            part.unlink()
    if part.exists():
        raise ConfigError(
            f"{part} already exists. It has records of an earlier run, which the group may have committed. Move it away first."
        )
    with _rename_when_complete(file, lambda part: part.open("xb", buffering=0)) as out:

        def write(lines: Iterable[bytes]) -> None:
            _write_all(out, b"".join(lines))
            os.fsync(out.fileno())  # the group commits these records next

        yield write


def _part_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.part")


def _write_all(out: Any, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[out.write(left) :]


@contextmanager
def _rename_when_complete(file: Path, kind: Callable[[Path], Any], *, has_end: bool = False) -> Iterator[Any]:
    """Write the part of ``file`` with what ``kind`` opens. Rename it at the end, or after Ctrl-C unless ``has_end``."""
    if file.exists():
        raise ConfigError(f"--output {file} already exists. Remove it, or choose another name.")
    part = _part_of(file)
    try:
        try:
            with kind(part) as write:
                yield write
        except asyncio.CancelledError:  # Ctrl-C
            if has_end:
                click.echo(f"The export is not complete. Its first records are in {part}.", err=True)
            else:
                _rename_to_new(part, file)
            raise
        _rename_to_new(part, file)
    except OSError as error:
        raise _not_writable(file, error) from None


def _rename_to_new(part: Path, file: Path) -> None:
    """Flush ``part`` to the disk and rename it to ``file``.

    Raises ConfigError if another program has created ``file`` in the time of the export, and OSError if the disk fails.
    """
    _flush(part)
    try:
        os.link(part, file)  # unlike a rename, it replaces no file
    except OSError as error:
        if isinstance(error, FileExistsError) or file.exists():
            raise ConfigError(
                f"--output {file} was created by another program during the export. The records are in {part}. Rename this file."
            ) from None
        part.rename(file)  # the file system has no hard links
    else:
        part.unlink()
    with suppress(OSError):  # some file systems cannot flush a directory
        _flush(file.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _not_writable(file: Path, error: OSError) -> LiftError:
    if error.errno in DISK_ERRORS:
        advice = "Check the disk" if error.errno == errno.EIO else "Free space"
        return StorageError(f"Cannot write --output {file}: {error.strerror}. {advice}, then run the command again.")
    return ConfigError(f"Cannot write --output {file}: {error.strerror or error}. Check the directory.")


def record_json(record: Record) -> dict[str, Any]:
    """Return a record as JSON: text where the bytes are UTF-8, else base64 under a name with ``_base64``."""
    fields: dict[str, Any] = {"offset": record.offset, "timestamp_ns": record.timestamp_ns}
    fields.update(_text_or_base64("value", record.value))
    if record.key is not None:
        fields.update(_text_or_base64("key", record.key))
    if record.headers:
        fields["headers"] = [{**_name_or_base64("name", n), **_text_or_base64("value", v)} for n, v in record.headers]
    if record.subject:
        fields.update(_name_or_base64("subject", record.subject))
    return fields


def _name_or_base64(name: str, text: str) -> dict[str, str | None]:
    return _text_or_base64(name, text.encode("utf-8", "surrogateescape"))


def _text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: bytes(content).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def check_group_options(group: str, stream: str, start: str | None, output: Path | None, refused: dict[str, bool]) -> None:
    """Raise UsageError if the options of ``liftpy consume`` are not possible with --group.

    ``refused``: whether each option that a group does not support is set, by its name.
    """
    reasons = {
        "--partition": "The group assigns the partitions.",
        "--until": "A group member reads until Ctrl-C.",
        "--reverse": "A group reads forward from its committed position.",
    }
    for option, is_given in refused.items():
        if is_given:
            raise click.UsageError(f"{option} cannot be combined with --group. {reasons[option]}")
    if start not in (None, "earliest", "new"):
        raise click.UsageError(
            f"Invalid value for --from: {start}. With --group, use earliest or new (for partitions without a "
            f"committed position). To move the group, use 'liftpy group reset {group} --stream {stream} --to "
            f"{start}'."
        )
    if output is not None and output.suffix != ".jsonl":
        raise click.UsageError(
            f"Invalid value for --output: {output}. With --group, only .jsonl is possible, because a record must "
            "be in the file before it is committed."
        )


async def consume_as_member(join: Callable[[], AbstractAsyncContextManager[Group]], form: str, output: Path | None) -> None:
    """Print records as a member of a consumer group until the task is canceled. Raises the errors of reading a group.

    ``join``: makes the membership. ``form``: text, value or json. ``output``: new file for JSON lines. None: the standard output.
    """
    line = LINES["json" if output is not None else form]
    with ExitStack() as files:
        write = write_out if output is None else files.enter_context(lines_to(output))
        async with join() as group:
            while (part := await group.take()) is not None:
                written = threading.Event()  # set by the thread, because a blocked event loop learns it late
                lines = (line(record, part.key.partition) for record in part.slice.records())
                writing = start_attended(
                    asyncio.to_thread(_consume_group_write, write, lines, written)
                )  # a slow reader of the output must not block the heartbeats
                try:
                    await asyncio.shield(writing)
                except asyncio.CancelledError:  # Ctrl-C
                    await asyncio.wait([writing], timeout=_OUTPUT_TIMEOUT_S)
                    raise
                finally:  # no await before it, so a second Ctrl-C cannot skip it
                    if written.is_set():
                        group.finished(part)


def _consume_group_write(write: Callable[[Iterable[bytes]], None], lines: Iterable[bytes], written: threading.Event) -> None:
    write(lines)
    written.set()


def write_out(lines: Iterable[bytes]) -> None:
    """Write lines to the standard output and flush it."""
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()


def _text(record: Record, partition: int | None) -> bytes:
    where = b"" if partition is None else b"%d\t" % partition
    return b"%s%d\t%s\n" % (where, record.offset, record.value or b"")


def _value(record: Record, partition: int | None) -> bytes:
    return b"%s\n" % (record.value or b"")


def _json(record: Record, partition: int | None) -> bytes:
    where = {} if partition is None else {"partition": partition}
    return json.dumps({**where, **record_json(record)}).encode() + b"\n"


LINES: dict[str, Callable[[Record, int | None], bytes]] = {"text": _text, "value": _value, "json": _json}
"""Output format -> function that returns the line of a record. Its second argument is the partition, in a group, else None."""


@click.command(cls=HelpCommand, example="liftpy consume orders --from -10m --subject 'shop.orders.*'")
@click.argument("name", type=STREAM)
@click.option(
    "--partition", type=click.IntRange(0), help="Partition to read.  [default: 0, or with --group the assigned partitions]"
)
@click.option(
    "--group",
    type=GROUP,
    metavar="GROUP",
    help=(
        "Read as a member of consumer group GROUP. The members share the partitions. Each record goes to one "
        "member, at least once. Printed records are committed. With --group, --from accepts earliest or new, "
        "for partitions without a committed position."
    ),
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help=(
        "Start position: earliest, latest (the last committed record), new (records after it), an OFFSET, "
        "-1000 (1000 offsets before the end), or a time such as 2026-01-31T12:00:00 or -10m.  [default: "
        "earliest, or the end with --reverse]"
    ),
)
@click.option(
    "--until",
    metavar="WHERE",
    help=(
        "Stop position: end (the committed end now), the last OFFSET, or a time (exclusive).  [default: "
        "none, or end with --output, or the log start with --reverse]"
    ),
)
@click.option("--follow", is_flag=True, help="Wait for new records until Ctrl-C. This is the default, except with --output.")
@click.option("--reverse", is_flag=True, help="Print the newest record first.")
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="SUBJECT",
    help="Print only records published on SUBJECT. NATS wildcards are allowed. May be repeated.",
)
@click.option(
    "--key", "keys", type=BYTES, multiple=True, metavar="KEY", help="Print only records with this key. May be repeated."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "value"]),
    default="text",
    show_default=True,
    help="Output of a record: offset and value (text), or the value alone. --json prints one JSON object per line.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Write the records to a new file. The suffix sets the format: {suffixes()}.",
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
    """Print the committed records of stream NAME."""
    now = datetime.now(UTC)
    if follow and (until is not None or reverse):
        raise click.UsageError("--follow cannot be combined with --until or --reverse.")
    ends = until is not None
    if output is not None and not ends and not follow and not reverse:
        until = "end"
    form = "json" if as_json else form
    if group is not None:
        refused = {"--partition": partition is not None, "--until": ends, "--reverse": reverse}
        check_group_options(group, name, start, output, refused)
    begin = parse_start(start, now, "--from") if start is not None else ("new" if reverse else "earliest")
    last = parse_until(until, now, "--until")

    async def work(client: Client) -> None:
        image = await client.stream(name)  # an unknown stream gives an error at once
        if subjects:
            read = range(len(image.partitions)) if group is not None else (partition or 0,)
            own = [data_subject(image.subject, place) for place in read]
            warn_of_unmatched(name, own, subjects, which="that are read")
        if group is not None:
            first = cast('Literal["earliest", "new"]', start or "earliest")
            options = GroupOptions(start=first, subjects=subjects, keys=keys)
            doing = consume_as_member(lambda: client.group(group, [name], options=options), form, output)
        else:
            consumer = client.consume(
                name, partition or 0, start=begin, until=last, subjects=subjects, keys=keys, backwards=reverse
            )
            if output is None:
                doing = _print(consumer, form)
            else:
                doing = _write(consumer, output, has_end=not follow, to_the_end=last == "end")
        await _until_pipe_closed(client, doing, None if output is not None else sys.stdout, group is not None)

    with_client(target, work, needs_majority=False)


async def _until_pipe_closed(client: Client, doing: Coroutine[Any, Any, None], out: TextIO | None, commits: bool) -> None:
    """Run ``doing`` until it ends, or until the program that reads the pipe ``out`` has closed it.

    ``out``: None if the records go to a file. ``commits``: True if ``doing`` needs time for a last commit.
    """
    working = start_attended(doing)
    tasks = [working] if out is None else [working, start_attended(wait_for_closed_pipe(out))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await done.pop()
    finally:
        if commits and working.cancel():
            await asyncio.wait((working,), timeout=SHUTDOWN_TIMEOUT_S)
        await end_tasks(tasks)
        for what, count in sorted(client.counters.items()):
            click.echo(f"{what}: {count}", err=True)


async def _print(consumer: Consumer, form: str) -> None:
    line = LINES[form]
    async for piece in consumer.batches():
        records = reversed(list(piece.records())) if consumer.backwards else piece.records()
        write_out(line(record, None) for record in records)


async def _write(consumer: Consumer, file: Path, *, has_end: bool, to_the_end: bool) -> None:
    bounds = await consumer.begin()
    first: int | None = None
    with output_to(file, has_end=has_end) as write, Progress(file.name, None, tells_interruption=True) as progress:
        async for piece in consumer.batches():
            write(piece, consumer.backwards)
            first_begin, done = (
                (piece.last_offset, piece.first_offset) if consumer.backwards else (piece.first_offset, piece.last_offset)
            )
            first = first_begin if first is None else first
            total = bounds.end_offset - first if to_the_end and not consumer.backwards else None
            progress.at(abs(done - first) + 1, progress.count + piece.record_count, total=total)
    click.echo(f"{progress.count} records in {file}", err=True)
