"""Stores the LeaderEpochs that candidates have promised to use, for all partitions together.

A promise is on disk before the candidate acts, so that the replica ignores older leaders after a restart. Promises that
arrive during a flush share the next flush. ``liftpy/core/log/epoch_promises.py`` defines the format. Results are
reported in slices, because each one changes a role.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future

from liftpy.core.log.epoch_promises import PromiseJournal
from liftpy.errors import StorageError
from sidecar.runtime.tasks import CooperativeQueue

OnStored = Callable[[StorageError | None], None]
"""Callback on the event loop: None if the promise is on disk, otherwise the error."""


class Promises:
    """Stores the LeaderEpochs that candidates on this node have promised. At most one promise per partition waits."""

    def __init__(self, journal: PromiseJournal, pool: Pool, counters: Counter[str], fatal: Callable[[Exception], None]) -> None:
        self._journal = journal
        self._pool = pool
        self._counters = counters
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, tuple[int, OnStored]] = {}
        self._running: Future[None] | None = None
        self._results: CooperativeQueue[tuple[OnStored, StorageError | None]] = CooperativeQueue(
            lambda result: result[0](result[1])
        )
        self._closed = False

    def epoch_of(self, key: str) -> int:
        """Return the LeaderEpoch that this node has promised for a partition. 0: none.

        ``key``: name of the partition's directory, ``<stream>-<uid>/<partition>``.
        """
        return self._journal.epoch_of(key)

    def store(self, key: str, leader_epoch: int, on_stored: OnStored) -> None:
        """Store the promise of ``leader_epoch`` durably, in the background. Then call ``on_stored`` with None or the error.

        ``key``: name of the partition's directory. If a partition has several waiting promises, only the last is stored.
        """
        if self._closed:
            return
        self._waiting[key] = leader_epoch, on_stored
        if self._running is None:
            self._running = Future()  # what comes in this turn of the loop goes together
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if self._closed:
            return
        self._counters["promise_flushes"] += 1
        self._counters["leader_epoch_promises"] += len(waiting)
        epochs = {key: epoch for key, (epoch, _) in waiting.items()}
        self._running = future = self._pool.submit(self._journal.store, epochs)
        callbacks = [callbacks for _, callbacks in waiting.values()]
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._write_ended, future, callbacks))

    def _write_ended(self, future: Future[None], callbacks: list[OnStored]) -> None:
        self._running = None
        if self._closed:
            return
        error = future.exception()
        if error is not None and not isinstance(error, StorageError):
            self._fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        if self._waiting:
            self._running = Future()
            self._begin()
        self._results.add((callback, error) for callback in callbacks)

    def forget(self, key: str) -> None:
        self._waiting.pop(key, None)
        self._journal.forget(key)

    async def close(self) -> None:
        """Wait for the running flush of promises. No ``on_stored`` callback is called any more."""
        self._closed = True
        self._results.close()
        running, self._running = self._running, None
        if running is not None and not running.cancel():
            await asyncio.wait([asyncio.wrap_future(running)])
        self._journal.close()
