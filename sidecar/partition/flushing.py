"""Runs the flushes and checkpoints of one log, and writes the state that derives from it.

``group_commit.py`` decides when. A flush runs in a thread, or on the event loop if flushes are short (``flush.py``).
The end of a flush is fed to the replica as an event.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from liftpy.config import NS_PER_S, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.flush import LONG_S, Flush, FlushScheduler
from liftpy.core.log.group_commit import GroupCommit
from liftpy.core.log.log import Log
from liftpy.core.partition.shell import PartitionShell
from liftpy.core.publish.log_state import LogState, create_log_state
from liftpy.core.publish.state_file import State, StateCapture, load_state, state_owner
from liftpy.core.publish.state_transfer import StateFetcher, StateServer
from liftpy.core.publish.state_writer import StateFileSchedule, StateWriter
from liftpy.errors import LiftError, StorageError
from sidecar.disk.flush_thread import FlushThread, FlushTimes, NodeFlushTimes
from sidecar.runtime import clock
from sidecar.runtime.logs import WarningLogRateLimit
from sidecar.runtime.timers import Timer, Timers

logger = logging.getLogger("liftpy.disk")
partition_logger = logging.getLogger("liftpy.partition")
_seldom = WarningLogRateLimit()

STALLED_S = 0.5
"""Time after which a disk operation no longer delays other work, in seconds."""


def _run_timed(flush: Flush) -> int:
    """Run the flush. Return its duration in nanoseconds."""
    began_ns = time.monotonic_ns()
    flush.run()
    return time.monotonic_ns() - began_ns


class Flusher:
    """Runs the flushes of one log (implements ``FlushShell``).

    Args:
        partition: Partition of the log. It learns on the event loop what is flushed, never before ``appended`` returns.
        pool: Threads for flushes and checkpoints.
        timers: Timers of the node.
        times_of_node: Flush durations of all partitions of the node.
        flush_thread: Flush thread that the logs of the node share. None: every flush runs in the thread pool.
    """

    __slots__ = (
        "_began_s", "_checkpoint", "_checkpoint_began_s", "_commit", "_flush_thread", "_interval_ns", "_is_reported", "_log",
        "_loop", "_moves", "_partition", "_place", "_pool", "_thread", "_timer", "_timers", "_times_of_node", "appended",
        "log_failed", "log_flushed", "times",
    )  # fmt: skip

    def __init__(
        self,
        partition: PartitionShell,
        pool: concurrent.futures.Executor,
        timers: Timers,
        times_of_node: NodeFlushTimes,
        flush_thread: FlushThread | None = None,
    ) -> None:
        self._partition = partition
        self._log = log = partition.log
        policy = log.config.flush
        self._interval_ns = round(policy.interval_s * NS_PER_S)
        self._pool = pool
        self._timers = timers
        self.log_flushed, self.log_failed = partition.log_flushed, partition.log_failed
        self._times_of_node = times_of_node
        self._moves = flush_thread is not None
        self._flush_thread = flush_thread or FlushThread(FlushScheduler())
        self._place = self._flush_thread.place
        self.times = FlushTimes()
        self._began_s = 0.0
        """Monotonic time when the running flush was requested, in seconds."""
        self._loop = asyncio.get_running_loop()
        self._thread: Future[int] | None = None
        """Flush that runs in a thread. None: there is none."""
        self._is_reported = False
        """True if the event loop waited for the running flush and has reported its result already."""
        self._checkpoint: Future[None] | None = None
        self._checkpoint_began_s = 0.0
        self._commit = GroupCommit(log, policy, self)
        self._timer = Timer(self._commit.interval_over)
        self.appended = self._commit.appended
        """Function that starts a flush of appended data by the flush policy."""

    @property
    def under_way_s(self) -> float:
        """Age of the oldest running flush or checkpoint, in seconds. 0: none is running."""
        running = [self._began_s] if self._commit.running is not None else []
        running += [self._checkpoint_began_s] if self._checkpoint is not None else []
        return time.monotonic() - min(running) if running else 0.0

    @property
    def stalls(self) -> bool:
        """True if the running disk operation has taken longer than ``STALLED_S``. Other work then does not wait for it."""
        return self.under_way_s >= STALLED_S

    def alone(self, work: Callable[[], object]) -> bool:
        """Run ``work``, which changes files, while no flush and no checkpoint runs. Return True if it was postponed.

        It is postponed if a running flush or checkpoint takes longer than ``LONG_S`` more. Then it runs after that. Otherwise
        it runs at once, and its errors are raised.
        """
        running: list[Future[Any]] = [future for future in (self._thread, self._checkpoint) if future is not None]
        if running and concurrent.futures.wait(running, LONG_S).not_done:
            self._commit.queue_exclusive(work)
            return True
        self._commit.alone(work)
        return False

    @property
    def count(self) -> int:
        return self._commit.count

    # ---- what a GroupCommit asks of its shell ---------------------------------------------------------------------------
    def begin(self) -> None:
        """Start a requested flush: in the next turn of the event loop if it may run there, otherwise at once in a thread."""
        self._began_s = time.monotonic()
        if self._place.takes(self._log.unflushed_bytes, False):  # a large one begins while the turn goes on
            self._place.waiting += 1
            self._loop.call_soon(self._begin_in_turn)
        elif (flush := self._commit.start()) is not None:
            self._run_in_thread(flush)

    def _begin_in_turn(self) -> None:
        """Start the requested flush: on the event loop if it is expected to be short, otherwise in a thread."""
        flush = self._commit.start()
        here = flush is not None and self._place.takes(flush.size_bytes, not flush.is_plain)
        self._place.waiting -= 1
        if flush is None:
            return
        if not here:
            self._run_in_thread(flush)
            return
        disk_ns, error = 0, None
        try:
            took = self._flush_thread.run(partial(_run_timed, flush), LONG_S)
            if isinstance(took, Future):  # the loop goes on, and others' flushes in the pool
                self._place.record_loop_flush(LONG_S)
                self._follow(flush, took, is_reported=True)
                return
            disk_ns = took
            self._place.record_loop_flush(disk_ns / NS_PER_S)
        except Exception as caught:
            error = caught
        self._commit.flush_ended(flush, disk_ns, error)

    def _run_in_thread(self, flush: Flush) -> None:
        self._follow(flush, self._pool.submit(_run_timed, flush), is_reported=False)

    def _follow(self, flush: Flush, future: Future[int], *, is_reported: bool) -> None:
        self._thread, self._is_reported = future, is_reported
        flush.waiter = lambda: concurrent.futures.wait([future]) and None
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._flush_ended, flush))

    def _flush_ended(self, flush: Flush) -> None:
        if self._commit.running is flush:  # else ``alone`` has waited for it already
            self._commit.flush_ended(flush, *self.wait(flush))

    def wait(self, flush: Flush) -> tuple[int, Exception | None]:
        assert self._thread is not None
        future, self._thread = self._thread, None
        error = future.exception()  # waits; nearly always it is over already
        if error is not None:
            return 0, error if isinstance(error, Exception) else StorageError(str(error))
        disk_ns: int = future.result()
        if self._moves and flush.is_plain and not self._is_reported:
            self._place.record_thread_flush(disk_ns / NS_PER_S, flush.size_bytes)
        return disk_ns, None

    def wait_for_checkpoint(self) -> None:
        """Block until the checkpoint that runs in a thread has ended."""
        if self._checkpoint is not None:
            concurrent.futures.wait([self._checkpoint])
            self._checkpoint = None

    def arm(self) -> None:
        self._timers.set(self._timer, clock.now_ns() + self._interval_ns)

    def flush_succeeded(self) -> None:
        """Record the duration of a successful flush, for the metrics. It counts from the request."""
        took_s = time.monotonic() - self._began_s
        self.times.add(took_s)
        self._times_of_node.flushed(self._partition.key, took_s)

    # ---- checkpoints and the end ----------------------------------------------------------------------------------------
    def checkpoint(self, stored: Callable[[], None] = lambda: None) -> bool:
        """Store the HW durably, in a thread. Return False if it did not start, because another operation is running.

        ``stored``: called on the event loop when the HW is durable.
        """
        begins = self._commit.begin_checkpoint()
        if begins:
            self._checkpoint_began_s = time.monotonic()
            self._checkpoint = future = self._pool.submit(self._log.checkpoint)
            future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._checkpoint_ended, future, stored))
        return begins

    def _checkpoint_ended(self, future: Future[None], stored: Callable[[], None]) -> None:
        if self._checkpoint is future:
            self._checkpoint = None
            self._commit.checkpoint_ended()
        error = future.exception()
        if error is None:
            stored()
        if error is not None and not isinstance(error, (LiftError, OSError)):
            raise error
        if error is not None and not self._log.closed:
            text = "HW checkpoint failed partition=%s error=%s: retrying at the next checkpoint"
            _seldom.warning(logger, text, self._partition.key, error)  # HW is found again by replication

    async def close(self) -> None:
        """Wait for the running flush and checkpoint, and start no others. Call it before the log is closed."""
        self._commit.close()
        self._timers.cancel(self._timer)
        if under_way := [future for future in (self._thread, self._checkpoint) if future is not None]:
            await asyncio.wait([asyncio.wrap_future(future) for future in under_way])
        self._commit.settle()


class StateCheckpoints:
    """Writes the state that derives from a replica's log (message ids, producers, subjects) to state files.

    It runs in the background, after a checkpoint of the high watermark.
    """

    __slots__ = (
        "_flusher",
        "_log",
        "_partition",
        "_pool",
        "_unwritten",
        "_waited",
        "_writing",
        "state_fetcher",
        "state_server",
        "writer",
        "written",
    )  # fmt: skip

    def __init__(self, partition: PartitionShell, config: ReplicationConfig, flusher: Flusher, pool: Pool) -> None:
        self._partition = partition
        self._log = log = partition.log
        log_state = partition.log_state
        self._flusher = flusher
        self._pool = pool
        owner = state_owner(partition.key)
        self.state_server = StateServer(log_state, owner, clock.now_ns, self._encode)
        self.state_fetcher = StateFetcher(log_state, log, owner)
        self.writer = StateWriter(log_state, log, owner, StateFileSchedule.from_config(config), clock.now_ns)
        self._unwritten: StateCapture | None = None
        """Derived states that must be written after the HW is stored. None: there are none."""
        self._waited = False
        """True if the deletion of records waits for a state file."""
        self._writing: asyncio.Future[None] | None = None
        self.written: Callable[[], None] = lambda: None
        """Callback after a state file was written that the deletion of records waited for."""

    def _encode(self, work: Callable[[], bytes], then: Callable[[bytes], None]) -> None:
        encoding = asyncio.get_running_loop().run_in_executor(self._pool, work)
        encoding.add_done_callback(lambda done: then(b"" if done.cancelled() or done.exception() else done.result()))

    def may_drop(self, log_start_offset: int) -> bool:
        """Return whether the log may start at ``log_start_offset`` now, because a state file covers the earlier records.

        If not, a state file is requested, and ``written`` is called when it exists.
        """
        before = self.writer.uncovered
        if self.writer.may_drop(log_start_offset):
            if self.writer.uncovered > before:
                text = (
                    "records deleted without a stored state partition=%s below=%d: a restart forgets their producers and "
                    "message ids"
                )
                partition_logger.warning(text, self._partition.key, log_start_offset)
            return True
        asyncio.get_running_loop().call_soon(self.checkpoint)  # not while retention has the files for itself
        return False

    @property
    def is_deletion_waiting(self) -> bool:
        """True if the deletion of records waits for a state file."""
        return self._waited or (self.writer.is_wanted and not self._log.closed)

    def store_after_deletion(self) -> None:
        """Write a state file if no file covers the deleted records, because a full disk had no room for it before."""
        if self.writer.want(self._log.log_start_offset):
            asyncio.get_running_loop().call_soon(self.checkpoint)  # not while retention has the files for itself

    def checkpoint(self, stored: Callable[[], None] = lambda: None) -> bool:
        """Store the HW durably. From time to time, then also write a state file.

        Return False if it did not start, because another disk operation is running. ``stored``: called on the event loop when
        the HW is durable. It is not called if the disk fails.
        """
        self.state_server.forget_unused()
        begins = self._flusher.checkpoint(partial(self._checkpoint_stored, stored))
        if begins and self._unwritten is None and self._writing is None:
            self._unwritten = self.writer.begin()
        return begins

    def _checkpoint_stored(self, stored: Callable[[], None]) -> None:
        stored()
        self._write()

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, None
        self._waited = self.writer.is_wanted
        if unwritten is not None and (not self._log.closed or self._log.is_full):
            self._writing = asyncio.get_running_loop().run_in_executor(self._pool, self.writer.write, unwritten)
            self._writing.add_done_callback(self._write_ended)

    def _write_ended(self, _: asyncio.Future[None]) -> None:
        self._writing = None
        self._partition.mark_changed()
        if self._waited:
            self._waited = False
            self.written()

    async def close(self) -> Callable[[], None]:
        """Wait for the running write of a state file. Return a function that writes the last state file.

        The caller runs it in any thread after the high watermark was stored.
        """
        if self._writing is not None:
            await asyncio.wait([self._writing])
        unwritten = self.writer.begin(closing=True)
        return (lambda: None) if unwritten is None else lambda: self.writer.write(unwritten)


class StateFileMatch(NamedTuple):
    """State file that fits a log, and the number of state files that do not fit it."""

    state: State | None = None
    left_out: int = 0


def load_state_file(log: Log, key: PartitionKey) -> StateFileMatch:
    """Return the newest state file that fits ``log``. Log and delete all other state files.

    It may run in any thread. Raises StorageError.
    """
    state, unfit = load_state(log, state_owner(key))
    for name, why in unfit.items():
        partition_logger.warning("state file discarded partition=%s file=%s reason=%s", key, name, why)
    return StateFileMatch(state, len(unfit))


def read_state_file(
    state_match: StateFileMatch, log: Log, subject: str, stream: StreamConfig, config: ReplicationConfig
) -> LogState | None:
    """Return the derived state of a partition from the state file ``state_match``. None: there is no usable file.

    It may run in any thread while no other code uses ``log``. A large file takes a second. ``subject``: data subject of the
    partition.
    """
    if state_match.state is None:
        return None
    new_state = create_log_state(log, subject, stream, config, clock.now_ns)
    return new_state if new_state.use_stored_state(state_match.state) else None
