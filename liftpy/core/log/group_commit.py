"""``GroupCommit``: decides when flushes and checkpoints of one log begin, and what counts as flushed.

At most one flush and one checkpoint of a log run at a time, and neither while files are truncated, deleted or replaced.

    idle -- wanted --> WANTED -- start --> RUNNING -- ended --> idle, or WANTED again

With the policy ``always`` every append requests a flush. Appends during a flush share the next one. With ``interval``
the first append starts a timer. With ``none`` the operating system writes. Under these two, appended records count as
flushed at once. Work that changes files runs through ``alone`` (or ``queue_exclusive``), when nothing else runs. A failed
flush is final [S4].

Example (``always``): ten batches are appended during a flush. Its end counts one batch as flushed and begins the second
flush, which counts ten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from liftpy.config import FlushMode, FlushPolicy
from liftpy.core.log.flush import Flush
from liftpy.core.log.log import Log
from liftpy.errors import StorageError

T = TypeVar("T")


class FlushShell(Protocol):
    """Runs flushes and timers for a ``GroupCommit``, and gets their results.

    The node implements it with asyncio, the simulator with its own clock.
    """

    def begin(self) -> None:
        """Arrange that ``GroupCommit.start`` is called now or soon, and run the flush that it returns."""

    def arm(self) -> None:
        """Start a timer that calls ``GroupCommit.interval_over`` when the flush interval has passed."""

    def wait(self, flush: Flush) -> tuple[int, Exception | None]:
        """Block until ``flush`` has run. Return its duration on the disk in ns, and its error (None: it succeeded)."""

    def wait_for_checkpoint(self) -> None: ...

    def flush_succeeded(self) -> None:
        """Record a successful flush, for metrics. ``GroupCommit`` calls it."""

    def log_flushed(self, end_offset: int, took_ns: int) -> None:
        """Report to the replica that everything below ``end_offset`` (exclusive) is flushed.

        ``took_ns``: duration of the flush, in nanoseconds. 0: no flush was needed.
        """

    def log_failed(self, error: StorageError) -> None:
        """Report to the replica that a flush failed with ``error`` and that the log is closed."""


class GroupCommit:
    """Decides when flushes and checkpoints of one log run. Call it only on the thread of the log."""

    __slots__ = (
        "_again", "_alone", "_always", "_armed", "_checkpointing", "_closed", "_interval", "_log", "_shell", "_waiting",
        "_wanted", "count", "running",
    )  # fmt: skip

    def __init__(self, log: Log, policy: FlushPolicy, shell: FlushShell) -> None:
        self._log = log
        self._shell = shell
        self._always = policy.mode is FlushMode.ALWAYS
        self._interval = policy.mode is FlushMode.INTERVAL
        self.running: Flush | None = None
        """The running flush. None: no flush runs."""
        self.count = 0
        """Number of successful flushes."""
        self._wanted = False
        """True if the shell must start a flush and has not done so."""
        self._again = False
        """True if another flush was requested while a flush ran or while files changed."""
        self._armed = False
        """True while the timer of the flush interval runs."""
        self._alone = False
        """True while files change. No flush and no checkpoint begins in this time."""
        self._waiting: list[Callable[[], object]] = []
        """Work that ``queue_exclusive`` has queued, oldest first."""
        self._checkpointing = False
        self._closed = False

    def appended(self) -> None:
        """Request a flush of unflushed data, or start the timer for it. The caller has appended to the log or truncated it."""
        if self._always:
            self._request_flush()
            return
        self._shell.log_flushed(self._log.log_end_offset, 0)
        if self._interval and not self._armed:
            self._armed = True
            self._shell.arm()

    def interval_over(self) -> None:
        """Request a flush, because the flush interval has passed. The timer that ``FlushShell.arm`` started calls the method."""
        self._armed = False
        self._request_flush()

    def _request_flush(self) -> None:
        if self.running is not None or self._alone or self._waiting:
            self._again = True
        elif not self._wanted and not self._closed:
            self._wanted = True
            self._shell.begin()

    def start(self) -> Flush | None:
        """Return the flush that the caller must run now. None: there is nothing to flush. The caller then calls ``flush_ended``."""
        self._wanted = False
        self.running = None if self._closed else self._log.begin_flush()
        return self.running

    def flush_ended(self, flush: Flush, disk_ns: int, error: Exception | None) -> None:
        """Process the end of ``flush``, and start the next operation. It does nothing if ``alone`` has already waited for this flush.

        ``disk_ns``: duration of the flush on the disk, in nanoseconds. ``error``: None if the flush succeeded.
        """
        if flush is self.running:
            self._complete(flush, disk_ns, error)
            self._run_waiting()

    def _complete(self, flush: Flush, disk_ns: int, error: Exception | None) -> None:
        self.running = None
        try:
            end_offset = self._log.complete_flush(flush, error)
        except StorageError as failure:
            self._closed = True
            self._shell.log_failed(failure)
            return
        self.count += 1
        self._shell.flush_succeeded()
        if self._always:
            self._shell.log_flushed(end_offset, disk_ns)

    def _run_waiting(self) -> None:
        if self._waiting:
            if self.running is None and not self._checkpointing:
                self.alone(self._waiting.pop(0))  # it continues after the queued work
        elif self._again:
            self._again = False
            self._request_flush()

    def alone(self, work: Callable[[], T]) -> T:
        """Wait for the running flush and checkpoint, then run ``work``, which changes files. No other operation runs at that time.

        Afterwards request a flush of its changes. Return the result of ``work``. Raises the errors of ``work``.
        """
        self.settle()
        self._alone = True
        try:
            result = work()
            if self._log.needs_flush or not self._always:
                self.appended()
            return result
        finally:
            self._alone = False
            self._run_waiting()

    def queue_exclusive(self, work: Callable[[], object]) -> None:
        """Run ``work``, which changes files, when the running flush or checkpoint has ended. Until then it is queued.

        No other operation starts before it. ``close`` drops it. Its errors are raised by ``flush_ended`` or
        ``checkpoint_ended``.
        """
        self._waiting.append(work)

    def settle(self) -> None:
        """Block until the running flush and checkpoint have ended, and process their results. Start no other operation."""
        if self._checkpointing:
            self._shell.wait_for_checkpoint()
            self._checkpointing = False
        if (flush := self.running) is not None:
            self._complete(flush, *self._shell.wait(flush))

    def begin_checkpoint(self) -> bool:
        """Return whether a checkpoint may run now. If so, the caller runs it and then calls ``checkpoint_ended``."""
        if self._checkpointing or self._alone or self._waiting or self._closed:
            return False
        self._checkpointing = True
        return True

    def checkpoint_ended(self) -> None:
        self._checkpointing = False
        if self._waiting:
            self._run_waiting()

    def close(self) -> None:
        """Start no more flushes. The caller calls ``settle`` for the running flush and then closes the log."""
        self._closed = True
        self._waiting.clear()
