"""Periodic work for all logs of a node: checkpoints, retention, compaction, deletion of quarantined files.

Checkpoints, retention and compaction each have a task of their own, because a compaction may take hours. Retention deletes at
most ``AT_ONCE`` segments of a log before it continues with the next log. Compactions run one after another.

It never blocks the event loop. If a full disk has space again, the node restarts, because a failed log cannot continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from liftpy.core.base.rate_limits import doubled_wait_s
from liftpy.core.log.compaction import Compaction
from liftpy.errors import CorruptionError, LiftError, StorageError
from liftpy.nats.cancellation import end_tasks
from sidecar.disk.files import FULL, write_space_probe
from sidecar.partition.replica_manager import Partitions
from sidecar.partition.worker import PartitionWorker
from sidecar.runtime.tasks import spawn
from sidecar.runtime.timers import until_next_s

logger = logging.getLogger("liftpy.housekeeping")

RETENTION_EVERY_S = 5.0
_AT_ONCE = 16
_COMPACT_FROM_DIRTY_RATIO = 0.5
SPACE_AGAIN_BYTES = 256 * 1024 * 1024
SPACE_AGAIN_FILES = 1024
SPACE_AGAIN_SHARE = 0.05
"""Share of the bytes and of the inodes that must be free before the node restarts after a full disk.

``SPACE_AGAIN_BYTES`` and ``SPACE_AGAIN_FILES`` are enough, too.
"""
_TRIES_AGAIN_EVERY_S = 60.0
_LONGEST_PAUSE_S = 300.0
_PAUSE_PER_RUN = 10.0
"""Pause after a failed compaction, as a multiple of its duration, up to ``_LONGEST_PAUSE_S``. A run reads its input first."""
STATE_FILE_WAIT_S = 1.0
"""Maximum time that ``run_once`` waits for state files, in seconds. A log that is not read completely yet has none."""
_STATE_FILE_POLL_S = 0.001
RETENTION_WAIT_S = 600.0
"""Maximum time that retention waits for the compaction of a log with ``max_per_subject``. Retention then makes the run vain."""


class Housekeeping:
    """Background task of a node that does the periodic work for all logs. ``close`` ends it.

    ``run_slow_work``: runs a compaction to its end, outside the event loop if it may take long.
    """

    def __init__(
        self,
        partitions: Partitions,
        checkpoint_every_s: float,
        folder: Path,
        repair: Callable[[str], None],
        run_slow_work: Callable[[Callable[[], None]], Awaitable[None]] | None = None,
    ) -> None:
        self._partitions = partitions
        self._folder = folder
        self._repair = repair
        self._run_slow_work = run_slow_work or _in_daemon_thread
        self._started = time.monotonic()
        self._checkpoint_every_s = checkpoint_every_s
        self._tasks: list[asyncio.Task[None]] = []
        self._compacting: PartitionWorker | None = None
        """Partition whose log is compacted now. None: no compaction runs."""
        self._compacting_since_s = 0.0
        self._failed_runs: dict[PartitionWorker, tuple[int, float]] = {}
        """Partition -> number of its consecutive failed compactions, and monotonic time of the next one, in seconds."""
        self._cleaning = asyncio.Lock()
        """Held while the logs are compacted. ``run_once`` and the periodic task take turns."""
        self._checkpointed: dict[PartitionWorker, int] = {}
        """Partition -> HW of its last checkpoint that is stored. A failed checkpoint is repeated, although the HW has not changed."""

    def start(self) -> None:
        self._partitions.clocks.start()
        self._tasks = [
            spawn(self._store_checkpoints(), "checkpoints", endless=True),
            spawn(self._delete_old_records(), "retention", endless=True),
            spawn(self._clean_logs(), "compaction", endless=True),
        ]

    async def _store_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(until_next_s(self._checkpoint_every_s))
            await self._checkpoints()

    async def _delete_old_records(self) -> None:
        while True:
            await asyncio.sleep(RETENTION_EVERY_S)
            if not await self._check_space():  # the restart may come before the state of deleted records is stored
                await self._retention()

    async def _clean_logs(self) -> None:
        while True:
            await asyncio.sleep(RETENTION_EVERY_S)
            await self._clean()

    async def run_once(self) -> None:
        """Do all periodic work now, and compact each log that has anything to compact.

        The deletion of records may wait for a state file. The call waits for it at most ``STATE_FILE_WAIT_S`` seconds.
        """
        await self._checkpoints()
        await self._retention()
        ends_s = time.monotonic() + STATE_FILE_WAIT_S
        while any(worker.states.is_deletion_waiting for worker in self._partitions) and time.monotonic() < ends_s:
            await asyncio.sleep(_STATE_FILE_POLL_S)
        await self._clean(0.0)

    async def _check_space(self) -> bool:
        """Check the free space of the disk. If a full disk has stopped partitions and now has space, restart the node.

        The node would not start on a disk that is still full, and so stop its other partitions, too. Return True if it restarts.
        """
        stopped = [worker.key for worker in self._partitions if worker.no_space]
        if not stopped or time.monotonic() - self._started < _TRIES_AGAIN_EVERY_S:
            return False
        try:
            free_bytes = await self._usable_bytes()
        except OSError as error:
            logger.warning("free space not known directory=%s error=%s: retrying", self._folder, error)
            return False
        if not free_bytes:
            return False
        self._repair(
            f"{stopped[0]} and {len(stopped) - 1} more, which the full disk had stopped: {free_bytes >> 20} MiB are free now"
        )
        return True

    async def _usable_bytes(self) -> int:
        """Return the free bytes of the disk. 0: its bytes, its inodes or a quota do not suffice. Raises OSError."""
        usage = shutil.disk_usage(self._folder)
        if usage.free < min(SPACE_AGAIN_BYTES, SPACE_AGAIN_SHARE * usage.total):
            return 0
        files = os.statvfs(self._folder)
        if files.f_favail < min(SPACE_AGAIN_FILES, SPACE_AGAIN_SHARE * files.f_files):  # no limit: both are 0
            return 0
        try:
            await _in_daemon_thread(partial(write_space_probe, self._folder))
        except OSError as error:
            if error.errno in FULL:
                return 0
            raise
        return usage.free

    async def _checkpoints(self) -> None:
        done = 0
        for worker in self._partitions:
            high_watermark = worker.high_watermark
            if self._checkpointed.get(worker) == high_watermark or worker.storage_failed:
                continue
            if worker.states.checkpoint(partial(self._checkpointed.__setitem__, worker, high_watermark)):
                done += 1
                if done % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        if len(self._checkpointed) > len(self._partitions):
            known = set(self._partitions)
            for ended_worker in [worker for worker in self._checkpointed if worker not in known]:
                del self._checkpointed[ended_worker]

    async def _retention(self) -> None:
        """Apply retention to all logs, one step of each log after another, for about ``RETENTION_EVERY_S`` or until none has more."""
        ends_s = time.monotonic() + RETENTION_EVERY_S
        due = list(self._partitions)
        while due:
            unfinished = []
            for number, worker in enumerate(due):
                if self._may_delete(worker) and worker.apply_retention(self._partitions.clocks.time_of_age_ns()):
                    unfinished.append(worker)
                    await asyncio.sleep(0)  # one step has a limit, so that it does not block the event loop
                elif number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
            due = unfinished if time.monotonic() < ends_s else []

    def _may_delete(self, worker: PartitionWorker) -> bool:
        """Return whether retention may delete records of the log of ``worker`` now."""
        if worker.has_ended or worker.flusher.stalls or (worker.log.closed and not worker.log.is_full):
            return False
        is_in_use = worker is self._compacting and time.monotonic() - self._compacting_since_s < RETENTION_WAIT_S
        return worker.log.may_give_up and not (is_in_use and worker.log.config.max_per_subject and not worker.log.closed)

    async def _clean(self, min_dirty_ratio: float = _COMPACT_FROM_DIRTY_RATIO) -> None:
        """Compact the logs, and delete quarantined files. ``min_dirty_ratio``: minimum share of new bytes of a log."""
        async with self._cleaning:
            await self._clean_all(min_dirty_ratio)

    async def _clean_all(self, min_dirty_ratio: float) -> None:
        for number, worker in enumerate(self._partitions):
            if worker.has_ended or worker.flusher.stalls or worker.log.closed or worker.storage_failed:
                continue
            if worker.log.may_be_cleaned and time.monotonic() >= self._failed_runs.get(worker, (0, 0.0))[1]:
                if self._may_delete(worker):  # also if compactions of this log follow each other without a pause
                    worker.apply_retention(self._partitions.clocks.time_of_age_ns())
                self._compacting, self._compacting_since_s = worker, time.monotonic()
                try:
                    await self._compact(worker, min_dirty_ratio)
                finally:
                    self._compacting = None
                if worker.has_ended:
                    continue
                worker.report_purged()
            if worker.quarantined_files and self._partitions.has_everything(worker):
                await self._run_slow_work(worker.delete_quarantined_files)
                worker.mark_changed()
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

    async def _compact(self, worker: PartitionWorker, min_dirty_ratio: float = _COMPACT_FROM_DIRTY_RATIO) -> None:
        """Run one compaction of the log of ``worker`` in a thread of its own. A stop of the node does not wait for it."""
        began_s = time.monotonic()
        try:
            compaction = worker.log.begin_compaction(self._partitions.clocks.time_of_age_ns(), min_dirty_ratio=min_dirty_ratio)
            if compaction is None:
                return
            await self._run_slow_work(compaction.run)
        except LiftError as error:
            self._run_failed(worker, error, began_s)
            return
        if worker.has_ended:
            with contextlib.suppress(StorageError):  # its folder may be gone
                compaction.abandon()
            return
        worker.flusher.alone(
            partial(self._complete, worker, compaction, began_s)
        )  # if a flush hangs, it runs after the flush, without blocking

    def _complete(self, worker: PartitionWorker, compaction: Compaction, began_s: float) -> None:
        try:
            dropped = worker.log.complete_compaction(compaction)
        except LiftError as error:
            self._run_failed(worker, error, began_s)
            return
        self._failed_runs.pop(worker, None)
        worker.mark_changed()
        if dropped:
            logger.info("log compacted partition=%s removed_records=%d", worker.key, dropped)

    def _run_failed(self, worker: PartitionWorker, error: LiftError, began_s: float) -> None:
        """Log the failure of the compaction that has begun at ``began_s`` (monotonic), and plan a later one.

        The pause doubles with each failure, and grows with the duration. Otherwise a disk without space would keep a core busy.
        """
        if worker.has_ended:
            return  # its log was closed, and its files went, while this had them in hand
        if isinstance(error, CorruptionError):
            worker.log.handle_damage(error)
            return
        now_s = time.monotonic()
        count = self._failed_runs.get(worker, (0, 0.0))[0] + 1
        pause_s = max(doubled_wait_s(count, RETENTION_EVERY_S, _LONGEST_PAUSE_S), _PAUSE_PER_RUN * (now_s - began_s))
        pause_s = min(pause_s, _LONGEST_PAUSE_S)
        self._failed_runs = {one: run for one, run in self._failed_runs.items() if not one.has_ended}
        self._failed_runs[worker] = count, now_s + pause_s
        logger.warning("compaction failed partition=%s error=%s: retrying in %.0f s", worker.key, error, pause_s)
        if isinstance(error, StorageError):
            worker.log_was_closed(error)

    async def close(self) -> None:
        await self._partitions.clocks.close()
        await end_tasks(self._tasks)
        self._tasks = []


async def _in_daemon_thread(work: Callable[[], None]) -> None:
    """Run ``work`` in a daemon thread and wait for it. Raises the errors of ``work``."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        try:
            work()
        except BaseException as error:
            outcome: BaseException | None = error
        else:
            outcome = None
        with contextlib.suppress(RuntimeError):  # the loop has ended, so no caller waits any more
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, daemon=True, name="liftpy-compaction").start()
    await done
