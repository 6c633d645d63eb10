"""Output of commands: tables, JSON, progress on standard error, and a closed pipe.

Tables fit terminals of 80 columns. Columns that do not fit are wrapped, the least important first. Nothing is truncated. Progress is a
bar on a terminal, else a line with a percentage every ``LINE_EVERY_S``. This module imports rich and asyncio late, because every
command imports it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.table import Table

_SHORT = 24
"""Maximum width of a column that is shown in one line, in characters, unless it may be folded."""


def print_json(value: object) -> None:
    """Print ``value`` as one line of JSON: the output of a command with ``--json``."""
    click.echo(json.dumps(value))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, folds: Collection[str] = (), title: str | None = None
) -> None:
    """Print a table that fits the width of the terminal. Its texts are printed as they are, without markup.

    ``folds``: columns whose texts wrap first.
    """
    from rich.console import Console  # late: the start of `liftpy` and a health probe have no time for it

    console = Console(markup=False, highlight=False, emoji=False)
    console.print(table(columns, rows, console.width, folds=folds, title=title))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int,
    *,
    folds: Collection[str] = (),
    title: str | None = None,
) -> Table:
    """Return a table that fits ``width`` characters.

    ``folds``: columns whose texts wrap first. If the other columns do not fit, the gaps become smaller. If that is not enough,
    the texts of all columns wrap.
    """
    from rich import box
    from rich.table import Table

    cells = [tuple(row) for row in rows]
    widths = [max(len(name), *(len(row[number]) for row in cells), 0) for number, name in enumerate(columns)]
    folded = [name in folds or widest > _SHORT for name, widest in zip(columns, widths, strict=True)]
    least = [
        max(map(len, name.split())) if folds_first else widest
        for name, widest, folds_first in zip(columns, widths, folded, strict=True)
    ]
    tight, fits = sum(widths) + 3 * len(columns) > width, sum(least) + len(columns) < width
    text_table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 0) if tight else (0, 1), pad_edge=False)
    for name, may_fold, smallest in zip(columns, folded, least, strict=True):
        text_table.add_column(name, overflow="fold", no_wrap=fits and not may_fold, min_width=smallest if fits else None)
    for row in cells:
        text_table.add_row(*row)
    return text_table


def count_of(count: int, noun: str) -> str:
    """Return ``count`` with its noun in singular or plural, such as ``1 move`` and ``2 moves``. ``noun``: singular."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


LINE_EVERY_S = 10.0
"""Interval of the lines where standard error is no terminal, in seconds."""


class Progress:
    """Shows the progress of a command on standard error. A command that ends within ``LINE_EVERY_S`` writes no line.

    Args:
        what: Object that the command works on, such as the name of a file.
        total: Amount of work, in any unit. None: unknown.
        unit: Name of what is counted, in plural.
        tells_interruption: True to write the count after Ctrl-C or SIGTERM.
        is_shown: False to show nothing, for a user who types the input.
    """

    def __init__(
        self, what: str, total: int | None, *, unit: str = "records", tells_interruption: bool = False, is_shown: bool = True
    ) -> None:
        self.count = 0
        """Number of units that are done."""
        self._what, self._unit, self._total = what, unit, total
        self._shows_interruption = tells_interruption
        self._is_shown = is_shown
        self._bar: Any = None
        self._line_at_s = 0.0

    def __enter__(self) -> Progress:
        self._line_at_s = time.monotonic() + LINE_EVERY_S
        if self._is_shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.markup import escape
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(escape(self._what), total=None)
            self._bar.start()
        return self

    def step(self, what: str, unit: str, done: int, total: int) -> None:
        """Show the progress of one step, which has its own amount of work."""
        self._unit, self._total = unit, total or None
        if what != self._what:
            self._what = what
            if self._bar is not None:
                from rich.markup import escape

                self._bar.reset(self._task, description=escape(what), total=self._total)
        self.at(done, done)

    def at(self, done: int, count: int, *, total: int | None = None) -> None:
        """Show the current progress.

        Args:
            done: Finished part of ``total``.
            count: Number of finished units.
            total: New amount of work. Default None: unchanged.
        """
        self.count = count
        self._total = self._total if total is None else total
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self._total)
        elif self._is_shown and time.monotonic() >= self._line_at_s:
            self._line_at_s = time.monotonic() + LINE_EVERY_S
            share = f"{100 * done // self._total} %, " if self._total else ""
            click.echo(f"{self._what}: {share}{count} {self._unit}" if self._unit else self._what, err=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._shows_interruption and kind is not None:
            import asyncio  # late: a health probe has no time for it

            if kind is asyncio.CancelledError:
                click.echo(f"{self.count} {self._unit} in {self._what}", err=True)


_CHECK_INTERVAL_S = 0.2
"""Time between two checks whether the reader of a pipe has closed it, in seconds."""


async def wait_for_closed_pipe(output: TextIO) -> None:
    """Raise BrokenPipeError when the program that reads the pipe ``output`` has closed it. Otherwise run until canceled."""
    import asyncio  # late: a health probe has no time for it

    watched = select.poll()
    with contextlib.suppress(OSError):  # no descriptor: not ours to watch
        kind = os.fstat(output.fileno()).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            watched.register(output.fileno(), 0)
    while not any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0)):
        await asyncio.sleep(_CHECK_INTERVAL_S)
    raise BrokenPipeError


def discard_stdout() -> None:
    """Replace the standard output, so that the flush at exit does not fail on a closed pipe."""
    discard(sys.stdout.fileno())


def discard(descriptor: int) -> None:
    """Let the file ``descriptor`` drop all that is written to it from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


STALL_S = 2.0
"""Time after a stop signal at which a command drops output that nothing reads, in seconds."""
_ROOM_CHECK_MS = 200
_gives_up = threading.Event()
"""Set if writes wait only ``STALL_S`` for room, also without a stop signal."""


def limit_waits_for_readers() -> None:
    """Let writes to the standard output and the standard error wait only ``STALL_S`` for room. Call it in a process that must not stop.

    A later write to the standard output then fails. The standard error drops messages until there is room.
    """
    _gives_up.set()


class OutputStalledError(OSError):
    """Nothing reads the output, so that its pipe or terminal has no room, and the command must end or continue."""


class _StoppableFile(io.FileIO):
    """Raw file of a pipe, socket or terminal, whose reader may pause. A stop signal ends a write that waits for room.

    A plain write would wait forever, because the handler of a stop signal cancels a task and does not raise. ``is_stopping``: returns
    whether a stop signal has arrived.
    """

    def __init__(self, descriptor: int, is_stopping: Callable[[], bool]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._is_stopping = is_stopping
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)

    def write(self, data: Any) -> int:
        """Write the first part of ``data`` as soon as there is room, and return its size. Raises OutputStalledError."""
        give_up_s: float | None = None
        while not self._has_room():
            if give_up_s is None and (_gives_up.is_set() or self._is_stopping()):
                give_up_s = time.monotonic() + STALL_S
            elif give_up_s is not None and time.monotonic() >= give_up_s:
                self._give_up()
        first_part = memoryview(data).cast("B")[: select.PIPE_BUF]  # a pipe with room takes this size at once
        return super().write(first_part) or 0

    def _give_up(self) -> None:
        discard(self.fileno())
        raise OutputStalledError(errno.ENOBUFS, "nothing reads the output")

    def _has_room(self, wait_ms: int = _ROOM_CHECK_MS) -> bool:
        try:
            return bool(self._room.poll(wait_ms))
        except KeyboardInterrupt:  # click writes again, before it ends the command
            _gives_up.set()
            raise


class _LossyFile(_StoppableFile):
    """File that drops the data which cannot be written, as on a full disk or into a closed pipe."""

    _is_stalled = False
    """True if the last write has given up. The next one does not wait."""

    def write(self, data: Any) -> int:
        self._is_stalled = self._is_stalled and not self._has_room(0)
        try:
            if not self._is_stalled:
                return super().write(data)
        except OSError:
            pass
        return memoryview(data).nbytes

    def _give_up(self) -> None:
        self._is_stalled = True
        raise OutputStalledError(errno.ENOBUFS, "nothing reads the messages")


def make_output_stoppable(is_stopping: Callable[[], bool]) -> None:
    """Let a stop signal end each write to the standard output and the standard error that waits for a paused reader.

    Writes to the standard error then never fail. It has only messages for people. A message that cannot be written must not change
    the result or the exit code of a command.

    Args:
        is_stopping: Returns whether a stop signal has arrived.
    """
    for name, file_class in (("stdout", _StoppableFile), ("stderr", _LossyFile)):
        stream = getattr(sys, name)
        if type(stream) is not io.TextIOWrapper:  # a test or another program has replaced it
            continue
        try:
            if name == "stdout" and stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                continue  # it always has room
            file = file_class(stream.fileno(), is_stopping)
        except (io.UnsupportedOperation, OSError):  # a buffer in memory
            continue
        stream.flush()
        by_line, buffer = name == "stderr" or file.isatty(), io.BufferedWriter(file)
        setattr(sys, name, io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=by_line))


def drop_stalled_output() -> None:
    """Drop the rest of the standard output if nothing reads it, so that the flush at exit does not wait."""
    with contextlib.suppress(OSError, ValueError):
        room = select.poll()
        room.register(sys.stdout.fileno(), select.POLLOUT)
        if not room.poll(0):
            discard_stdout()
