"""What one log does off the event loop: group commits and HW checkpoints, at most one of each at a time.

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
from liftpy.log.log import Log
from sidecar import clock
from sidecar.flush_times import FlushTimes
from sidecar.timers import Timer, Timers

logger = logging.getLogger("liftpy.disk")

Future = concurrent.futures.Future[Any]


def _timed(flush: Flush) -> int:
    """Run it; return how long that took, in ns."""
    began_ns = time.monotonic_ns()
    flush.run()
    return time.monotonic_ns() - began_ns


class Flusher:
    """The background work of one log. ``flushed(end_offset)``, ``failed(error)`` and ``took(s)`` are called on the loop."""

    def __init__(
        self,
        log: Log,
        policy: FlushPolicy,
        pool: concurrent.futures.Executor,
        timers: Timers,
        flushed: Callable[[int], None],
        failed: Callable[[StorageError], None],
        took: Callable[[float], None] | None = None,
    ) -> None:
        self._log = log
        self._policy = policy
        self._pool = pool
        self._timers = timers
        self._flushed = flushed
        self._failed = failed
        self._took = took
        self.times = FlushTimes()
        self._began_s = 0.0
        """Monotonic: when the flush that runs was wanted."""
        self.disk_ns = 0
        """What the disk needed for the last flush that is done, without any waiting; 0 where appended records count as flushed."""
        self._loop = asyncio.get_running_loop()
        self._flush: tuple[Flush, Future] | None = None
        self._checkpoint: Future | None = None
        """A checkpoint, or the storing of a LeaderEpoch, that runs."""
        self._promise: tuple[int, Callable[[], None]] | None = None
        """A LeaderEpoch that waits for that, and what to call when it is stored."""
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
        if self._flush is not None or self._closed:
            return
        flush = self._log.begin_flush()
        if flush is None:
            return
        self._began_s = time.monotonic()
        future = self._pool.submit(_timed, flush)
        flush.waiter = lambda: concurrent.futures.wait([future]) and None
        self._flush = (flush, future)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._ended, flush))

    def _ended(self, flush: Flush) -> None:
        if self._flush is not None and self._flush[0] is flush:  # else a cut has settled it already
            self._complete()
            self._begin()

    def _complete(self) -> None:
        """Tell the log, then the replica, how the flush went."""
        assert self._flush is not None
        (flush, future), self._flush = self._flush, None
        error = future.exception()
        try:
            end_offset = self._log.complete_flush(flush, error if isinstance(error, Exception) else None)
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
            self.disk_ns = future.result()
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
        self._store_promise()

    def store_epoch(self, leader_epoch: int, stored: Callable[[], None]) -> None:
        """Store in the background that older epochs are not followed any more; of several that wait the last one counts."""
        self._promise = (leader_epoch, stored)
        self._store_promise()

    def _store_promise(self) -> None:
        if self._promise is None or self._checkpoint is not None or self._closed:
            return
        (leader_epoch, stored), self._promise = self._promise, None
        self._checkpoint = future = self._pool.submit(self._log.persist_epoch, leader_epoch)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._epoch_stored, future, stored))

    def _epoch_stored(self, future: Future, stored: Callable[[], None]) -> None:
        if self._checkpoint is future:
            self._checkpoint = None
        error = future.exception()
        if self._closed:
            return
        if error is None:
            stored()
        elif isinstance(error, StorageError):
            self._failed(error)
        else:
            raise error
        self._store_promise()

    def settle(self) -> None:
        """Wait, blocking, for what is under way and take note of it: the log is about to be cut."""
        if self._checkpoint is not None:
            concurrent.futures.wait([self._checkpoint])
            self._checkpoint = None
        if self._flush is not None:
            concurrent.futures.wait([self._flush[1]])
            self._complete()

    async def close(self) -> None:
        """Begin nothing more and wait for what is under way: the log is about to be closed."""
        self._closed = True
        self._timers.cancel(self._timer)
        under_way = [self._flush[1]] if self._flush is not None else []
        under_way += [self._checkpoint] if self._checkpoint is not None else []
        if under_way:
            await asyncio.wait([asyncio.wrap_future(future) for future in under_way])
        self.settle()
