"""LogReplay: rebuilds one partition's derived state from its log, in slices that give way to the event loop [protocol: Promotion].

A candidate or a new leader waits for it. A follower that has opened a log reads on beside everything else, so that a promotion later
on finds little to do; and so does whoever reads backwards for the subjects: each slice is followed by a pause twice as long. While
publishes wait for that (``IndexWait``), the slices are longer, and the pauses half as long as they.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from liftpy.config import NS_PER_S
from liftpy.errors import LiftError, StorageError
from liftpy.ingest.derived import DerivedState
from liftpy.replica import events
from sidecar import clock

_PAUSE_FACTOR = 2
"""Times what a slice of reading backwards took: it has a third of the loop at most."""
_URGENT_PAUSE_FACTOR = 0.5
"""While publishes wait for the index: it has two thirds of the loop."""
_URGENT_SLICE_NS = 4_000_000
"""While publishes wait, reading goes on without a pause for this long."""
_PAUSE_LEAST_S = 0.001


class LogReplay:
    """Of one partition. ``failed`` is told when the log can't be read."""

    def __init__(
        self, derived: DerivedState, feed: Callable[[events.Event], None], failed: Callable[[StorageError], None]
    ) -> None:
        self._derived = derived
        self._feed = feed
        self._failed = failed
        self._then: Callable[[], None] | None = None
        self._handle: asyncio.Handle | None = None
        self._beside: asyncio.Handle | None = None
        """What is read beside everything else."""
        self._closed = False
        self.touched: Callable[[], None] = lambda: None
        """Called after each slice."""
        derived.on_lacking = self._read_beside
        if derived.lacks:
            self._read_beside()

    def run(self, then: Callable[[], None]) -> None:
        """Call ``then`` when all of the log is covered: at once, if it is; ReplayProgressed is fed until then. A later run takes the
        place of an earlier one."""
        self._then = then
        if self._handle is None:
            self._go_on()

    def forget(self) -> None:
        """Nobody waits any more: the role has ended."""
        self._then = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Nothing more is read."""
        self._closed = True
        self.forget()
        if self._beside is not None:
            self._beside.cancel()
            self._beside = None

    def _read_beside(self, pause_s: float = _PAUSE_LEAST_S) -> None:
        if self._beside is None and not self._closed:
            self._beside = asyncio.get_running_loop().call_later(pause_s, self._read_some)

    def _read_some(self) -> None:
        self._beside = None
        began_ns, wait = clock.now_ns(), self._derived.index_wait
        try:
            complete = self._derived.read_beside()
            self.touched()
            while not complete and wait and clock.now_ns() - began_ns < _URGENT_SLICE_NS:
                complete = self._derived.read_beside()
                self.touched()
        except LiftError as error:
            self._failed(error if isinstance(error, StorageError) else StorageError(f"its log can't be replayed: {error}"))
            return
        if not complete:
            factor = _URGENT_PAUSE_FACTOR if wait else _PAUSE_FACTOR
            self._read_beside(max(_PAUSE_LEAST_S, factor * (clock.now_ns() - began_ns) / NS_PER_S))

    def _go_on(self) -> None:
        self._handle = None
        try:
            complete = self._derived.is_complete or self._derived.replay()
            self.touched()
        except LiftError as error:
            self._failed(error if isinstance(error, StorageError) else StorageError(f"its log can't be replayed: {error}"))
            return
        then = self._then
        if then is None:
            return
        if complete:
            self._then = None
            then()
        else:
            self._handle = asyncio.get_running_loop().call_soon(self._go_on)
            self._feed(events.ReplayProgressed(end_offset=self._derived.end_offset or 0))
