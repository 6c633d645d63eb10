"""LogReplay: rebuilds one partition's derived state from its log, in slices that give way to the event loop [protocol: Promotion]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from liftpy.errors import LiftError, StorageError
from liftpy.ingest.derived import DerivedState
from liftpy.replica import events


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

    def _go_on(self) -> None:
        self._handle = None
        try:
            complete = self._derived.is_complete or self._derived.replay()
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
