"""SimFlusher: runs the flushes of one simulated log, when ``GroupCommit`` says so. One is done when its latency has passed, so that a
power cut in between loses what it covers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from liftpy.errors import StorageError
from liftpy.log.flush import Flush
from liftpy.log.group_commit import GroupCommit
from liftpy.log.log import Log
from liftpy.testing.clock import Clock
from liftpy.testing.disk import Disk


class SimFlusher:
    """The ``FlushShell`` of one log in one process. ``run(callback)``: in the process, when it is not paused. ``dead()``: whether it
    is gone. ``flushed(end_offset, disk_ns)`` and ``failed(error)``: what is told."""

    def __init__(
        self,
        log: Log,
        disk: Disk,
        clock: Clock,
        run: Callable[[Callable[[], None]], None],
        dead: Callable[[], bool],
        flushed: Callable[[int, int], None],
        failed: Callable[[StorageError], None],
    ) -> None:
        self._log = log
        self._disk = disk
        self._clock = clock
        self._run = run
        self._dead = dead
        self.flushed = flushed
        self.failed = failed
        self._interval_ns = round(log.config.flush.interval_s * 1e9)
        self._latency_ns = 0
        """Of the flush that runs."""
        self._device_did: tuple[Flush, StorageError | None] | None = None
        """The flush that the device did last, and its error."""
        self.commit = GroupCommit(log, log.config.flush, self)

    def begin(self) -> None:
        """Start one; the device has done it when its latency has passed."""
        if (flush := self.commit.start()) is not None:
            flush.waiter = partial(self._wait, flush)
            self._latency_ns = latency_ns = self._disk.flush_latency_ns()
            self._clock.after(latency_ns, lambda: self._passed(flush, latency_ns))

    def _passed(self, flush: Flush, latency_ns: int) -> None:
        """The device goes on while the process is paused, and hears of the end of it."""
        if not self._dead() and self.commit.running is flush:
            error = self._device_does(flush)
            self._run(lambda: self.commit.ended(flush, latency_ns, error))

    def _device_does(self, flush: Flush) -> StorageError | None:
        """Once; a second call says how it went."""
        if self._device_did is None or self._device_did[0] is not flush:
            error: StorageError | None = None
            try:
                flush.run()
            except StorageError as refused:
                error = refused
            self._device_did = (flush, error)
        return self._device_did[1]

    def wait(self, flush: Flush) -> tuple[int, Exception | None]:
        """The device does it now."""
        return self._latency_ns, self._device_does(flush)

    def _wait(self, flush: Flush) -> None:
        self._device_does(flush)

    def wait_for_checkpoint(self) -> None:
        """Nothing: a simulated checkpoint is over at once."""

    def arm(self) -> None:
        """The interval begins."""
        self._clock.after(self._interval_ns, lambda: self._run(self.commit.interval_over))

    def done(self) -> None:
        """Nothing: its latency was drawn."""
