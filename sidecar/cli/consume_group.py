"""``liftpy consume --group NAME``: one member of a consumer group: processes with one name share the partitions of the stream.

What was printed is committed every five seconds, when a partition moves to another member, and at the end, Ctrl-C included. What was
only begun to be printed is not: it comes again, here or elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, cast

import click

from liftpy.client import Client, GroupOptions
from liftpy.client.group_part import GroupPart
from liftpy.dataclass import dataclass
from liftpy.wire.batch import Record
from sidecar.cli.consume_output import lines_to, record_json
from sidecar.tasks import attended

_LAST_S = 2.0
"""So long Ctrl-C waits for what is being printed."""
ENDING_S = 10.0
"""So long it waits for all: also for the last commit."""


@dataclass(frozen=True, slots=True)
class GroupReading:
    """What was asked for. ``form``: text, value or json. ``output``: a new file of JSON lines; None: the standard output."""

    group: str
    stream: str
    start: str
    subjects: Sequence[str]
    keys: Sequence[bytes]
    form: str
    output: Path | None

    @property
    def options(self) -> GroupOptions:
        """Of the group's member."""
        start = cast('Literal["earliest", "new"]', self.start)
        return GroupOptions(start=start, subjects=self.subjects, keys=self.keys)


def member_of(
    group: str, stream: str, *, start: str | None, refused: dict[str, Any], output: Path | None, **how: Any
) -> GroupReading:
    """Raises UsageError for what a group can't do. ``refused``: options that go with no group, and whether they were given."""
    reasons = {
        "--partition": "the group says which partitions a member reads",
        "--until": "a member's partitions come and go, so that there is no end to come to; it goes on until Ctrl-C",
        "--reverse": "a group goes forwards, from what it has committed",
    }
    for option, given in refused.items():
        if given:
            raise click.UsageError(f"{option} goes with no --group: {reasons[option]}")
    if start not in (None, "earliest", "new"):
        raise click.UsageError(
            f"--from {start}: with --group it says where a partition begins of which nothing is committed, earliest or new; "
            f"'liftpy group reset {group} --stream {stream} --to {start}' sets what is committed"
        )
    if output is not None and output.suffix != ".jsonl":
        raise click.UsageError(
            f"--output {output}: with --group .jsonl alone: what is in the file has to be readable when it is committed, "
            "and other files are only at their end"
        )
    return GroupReading(group, stream, start or "earliest", output=output, **how)


async def consume_as_member(client: Client, member: GroupReading) -> None:
    """Until cancelled. Raises as an iteration of a group."""
    lines = json_lines if member.output is not None else LINES[member.form]
    with ExitStack() as files:
        write = write_out if member.output is None else files.enter_context(lines_to(member.output))
        async with client.group(member.group, [member.stream], options=member.options) as group:
            while (part := await group.take()) is not None:
                written = threading.Event()  # the thread says it: a loop that did not turn for a while has not heard it yet
                writing = attended(
                    asyncio.to_thread(_write, write, lines(part), written)
                )  # who reads may be slow: heartbeats go on
                try:
                    await asyncio.shield(writing)
                except asyncio.CancelledError:  # Ctrl-C
                    await asyncio.wait([writing], timeout=_LAST_S)
                    raise
                finally:  # nothing is waited for between what is written and this, nor does a second Ctrl-C take it away
                    if written.is_set():
                        group.finished(part)


def _write(write: Callable[[Iterator[bytes]], None], lines: Iterator[bytes], written: threading.Event) -> None:
    write(lines)
    written.set()


def write_out(lines: Iterator[bytes]) -> None:
    """To the standard output, at once."""
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()


def json_lines(part: GroupPart) -> Iterator[bytes]:
    """Each with its partition."""
    for record in part.slice.records():
        yield json.dumps({"partition": part.key.partition, **record_json(record)}).encode() + b"\n"


def _each(line: Callable[[int, Record], bytes]) -> Callable[[GroupPart], Iterator[bytes]]:
    return lambda part: (line(part.key.partition, record) for record in part.slice.records())


LINES: dict[str, Callable[[GroupPart], Iterator[bytes]]] = {
    "text": _each(lambda partition, record: b"%d\t%d\t%s\n" % (partition, record.offset, record.value or b"")),
    "value": _each(lambda _, record: b"%s\n" % (record.value or b"")),
    "json": json_lines,
}
"""Format -> the lines of a part."""
