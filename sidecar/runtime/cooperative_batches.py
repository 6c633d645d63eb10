"""Splits work on thousands of partitions into slices, so that it never blocks the event loop for long.

Between two slices the loop reads sockets, ticks Raft and answers heartbeats. What is added while it waits already keeps its place and
is done once, as things are when its turn comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

SLICE_S = 0.008
"""One slice ends with the first piece of work that is done after this."""

T = TypeVar("T", bound=Hashable)


class Slices(Generic[T]):
    """Calls ``work(thing)`` for each added thing in order: the first slice at once, the others one per turn of the loop."""

    def __init__(self, work: Callable[[T], None], slice_s: float = SLICE_S) -> None:
        self._work = work
        self._slice_s = slice_s
        self._waiting: dict[T, None] = {}
        self._handle: asyncio.Handle | None = None
        self._running = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, thing: T) -> bool:
        return thing in self._waiting

    def add(self, things: Iterable[T]) -> None:
        """Queue things. Those that already wait are not added twice."""
        if self._closed:
            return
        self._waiting.update(dict.fromkeys(things))
        if self._handle is None and self._waiting and not self._running:
            self._turn()

    def _turn(self) -> None:
        self._handle = None
        waiting, end = self._waiting, time.monotonic() + self._slice_s
        self._running = True
        try:
            while waiting:
                thing = next(iter(waiting))
                del waiting[thing]
                self._work(thing)
                if time.monotonic() >= end:
                    break
        finally:
            self._running = False
        if waiting and not self._closed:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def close(self) -> None:
        """Stop."""
        self._closed = True
        self._waiting.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
