"""Progress of a long command: a bar on a terminal, else a line with a percentage from time to time."""

from __future__ import annotations

import asyncio
import sys
import time
from types import TracebackType
from typing import Any

import click

LINE_EVERY_S = 10.0
"""Interval of the lines where standard error is no terminal, in seconds."""


class Progress:
    """Shows on standard error how much is done. A command that ends within ``LINE_EVERY_S`` writes no line.

    Args:
        what: What the command works on, such as the name of a file.
        total: Amount of work, in any unit. None: unknown.
        unit: Name of what is counted, in plural.
        tells_interruption: Whether to write the count after Ctrl-C or SIGTERM.
        is_shown: False: show nothing, for a user who types the input.
    """

    def __init__(
        self, what: str, total: int | None, *, unit: str = "records", tells_interruption: bool = False, is_shown: bool = True
    ) -> None:
        self.count = 0
        """Number of units that are done."""
        self._what, self._unit, self._total = what, unit, total
        self._tells_interruption = tells_interruption
        self._is_shown = is_shown
        self._bar: Any = None
        self._line_at_s = 0.0

    def __enter__(self) -> Progress:
        self._line_at_s = time.monotonic() + LINE_EVERY_S
        if self._is_shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=None)
            self._bar.start()
        return self

    def step(self, what: str, unit: str, done: int, total: int) -> None:
        """Show a step of the work that has an amount of its own. ``total`` 0: unknown."""
        self._unit, self._total = unit, total or None
        if what != self._what:
            self._what = what
            if self._bar is not None:
                self._bar.reset(self._task, description=what, total=self._total)
        self.at(done, done)

    def at(self, done: int, count: int, *, total: int | None = None) -> None:
        """Show how far the work is.

        Args:
            done: Finished part of ``total``.
            count: Finished units.
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
        if self._tells_interruption and kind is asyncio.CancelledError:
            click.echo(f"{self.count} {self._unit} in {self._what}", err=True)
