"""The flushes of one log, and what else it stores: group commits and HW checkpoints, at most one of each at a time.

A flush runs in a thread, or where flushes are short on the event loop, behind the turn that asked for it: what that turn sends
has left by then. ``liftpy/log/flush_place.py`` decides. Either way it is told as an event of its own.

By the stream's policy: ``always`` flushes as soon as the log is free, and what is appended meanwhile goes with the next flush;
``interval`` flushes on a timer, ``none`` leaves it to the operating system. Under the last two an appended record counts as
flushed at once, which is what the operator chose. A cut of the log first settles what is under way.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable
from typing import Any

from liftpy.config import NS_PER_S, FlushMode, FlushPolicy
from liftpy.errors import LiftError, StorageError
from liftpy.log.flush import Flush
from liftpy.log.flush_place import FlushPlace
from liftpy.log.log import Log
from sidecar import clock
from sidecar.disk.flush_times import FlushTimes
from sidecar.partition.timers import Timer, Timers

logger = logging.getLogger("liftpy.disk")

Future = concurrent.futures.Future[Any]


def _timed(flush: Flush) -> int:
    """Run it; return how long that took, in ns."""
    began_ns = time.monotonic_ns()
    flush.run()
    return time.monotonic_ns() - began_ns


class Flusher:
    """The flushes and checkpoints of one log. ``flushed(end_offset)``, ``failed(error)`` and ``took(s)`` are called on the loop; for a
    flush never before ``appended`` has returned. ``place``: the node's; without one every flush runs in a thread."""

    def __init__(
        self,
        log: Log,
        policy: FlushPolicy,
        pool: concurrent.futures.Executor,
        timers: Timers,
        flushed: Callable[[int], None],
        failed: Callable[[StorageError], None],
        took: Callable[[float], None] | None = None,
        place: FlushPlace | None = None,
    ) -> None:
        self._log = log
        self._policy = policy
        self._pool = pool
        self._timers = timers
        self._flushed = flushed
        self._failed = failed
        self._took = took
        self._place = place or FlushPlace()
        self._moves = place is not None
        self._wanted = False
        """It flushes in the loop's next turn."""
        self.times = FlushTimes()
        self._began_s = 0.0
        """Monotonic: when the flush that runs was wanted."""
        self.disk_ns = 0
        """What the disk needed for the last flush that is done, without any waiting; 0 where appended records count as flushed."""
        self._loop = asyncio.get_running_loop()
        self._flush: tuple[Flush, Future] | None = None
        self._checkpoint: Future | None = None
        """That runs."""
        self._armed = False
        self._timer = Timer(self._due)
        self._closed = False
        self.count = 0
        """Flushes done."""

    def appended(self) -> None:
        """Something was appended: flush it as the policy says."""
        if self._policy.mode is FlushMode.ALWAYS:
            self._begin()
            return
        self._flushed(self._log.log_end_offset)
        if self._policy.mode is FlushMode.INTERVAL and not self._armed:
            self._armed = True
            self._timers.set(self._timer, clock.now_ns() + round(self._policy.interval_s * NS_PER_S))

    def _due(self) -> None:
        self._armed = False
        self._begin()

    def _begin(self) -> None:
        if self._flush is not None or self._wanted or self._closed:
            return
        self._began_s = time.monotonic()
        if self._place.takes(self._log.unflushed_bytes, False):  # a large one begins while the turn goes on
            self._wanted = True
            self._place.waiting += 1
            self._loop.call_soon(self._begin_in_turn)
        elif (flush := self._log.begin_flush()) is not None:
            self._run_in_thread(flush)

    def _begin_in_turn(self) -> None:
        """Here and now, if it is a flush for the loop, else in a thread after all."""
        self._wanted = False
        flush = self._log.begin_flush() if self._flush is None and not self._closed else None
        here = flush is not None and self._place.takes(flush.size_bytes, not flush.is_plain)
        self._place.waiting -= 1
        if flush is None:
            return
        if not here:
            self._run_in_thread(flush)
            return
        disk_ns, error = 0, None
        try:
            disk_ns = _timed(flush)
            self._place.took_on_loop(disk_ns / NS_PER_S)
        except Exception as caught:
            error = caught
        self._complete(flush, disk_ns, error)

    def _run_in_thread(self, flush: Flush) -> None:
        future = self._pool.submit(_timed, flush)
        flush.waiter = lambda: concurrent.futures.wait([future]) and None
        self._flush = (flush, future)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._ended, flush))

    def _ended(self, flush: Flush) -> None:
        if self._flush is not None and self._flush[0] is flush:  # else a cut has settled it already
            self._thread_is_done()
            self._begin()

    def _thread_is_done(self) -> None:
        assert self._flush is not None
        (flush, future), self._flush = self._flush, None
        error = future.exception()
        disk_ns: int = future.result() if error is None else 0
        if error is None and self._moves and flush.is_plain:
            self._place.took_in_thread(disk_ns / NS_PER_S, flush.size_bytes)
        self._complete(flush, disk_ns, error if isinstance(error, Exception) else None)

    def _complete(self, flush: Flush, disk_ns: int, error: Exception | None) -> None:
        """Tell the log, then the replica, how the flush went."""
        try:
            end_offset = self._log.complete_flush(flush, error)
        except StorageError as failure:
            self._closed = True
            self._failed(failure)
            return
        self.count += 1
        took_s = time.monotonic() - self._began_s
        self.times.add(took_s)
        if self._took is not None:
            self._took(took_s)
        if self._policy.mode is FlushMode.ALWAYS:
            self.disk_ns = disk_ns
            self._flushed(end_offset)

    def checkpoint(self) -> None:
        """Store HW in the background; skipped while an earlier one runs."""
        if self._checkpoint is None and not self._closed:
            self._checkpoint = future = self._pool.submit(self._log.checkpoint)
            future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._checkpointed, future))

    def _checkpointed(self, future: Future) -> None:
        if self._checkpoint is future:
            self._checkpoint = None
        error = future.exception()
        if error is not None and not isinstance(error, (LiftError, OSError)):
            raise error
        if error is not None and not self._closed:
            logger.warning("HW checkpoint: %s", error)  # HW is found again by replication

    def settle(self) -> None:
        """Wait, blocking, for what is under way and take note of it: the log is about to be cut."""
        if self._checkpoint is not None:
            concurrent.futures.wait([self._checkpoint])
            self._checkpoint = None
        if self._flush is not None:
            concurrent.futures.wait([self._flush[1]])
            self._thread_is_done()

    async def close(self) -> None:
        """Begin nothing more and wait for what is under way: the log is about to be closed."""
        self._closed = True
        self._timers.cancel(self._timer)
        under_way = [self._flush[1]] if self._flush is not None else []
        under_way += [self._checkpoint] if self._checkpoint is not None else []
        if under_way:
            await asyncio.wait([asyncio.wrap_future(future) for future in under_way])
        self.settle()
