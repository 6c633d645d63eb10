"""Periodic work for all logs of a node: checkpoints, retention, compaction, deletion of quarantined files.

Checkpoints, retention and compaction each have a task of their own, because a compaction may take hours. Retention deletes at
most ``AT_ONCE`` segments of a log before it continues with the next log. Compactions run one after another.

It never blocks the event loop. If a full disk has space again, the node restarts, because a failed log cannot continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from liftpy.core.log.compaction import Compaction
from liftpy.errors import CorruptionError, LiftError, StorageError
from liftpy.nats.cancellation import end_tasks
from sidecar.partition.replica_manager import Partitions
from sidecar.partition.worker import PartitionWorker
from sidecar.runtime.tasks import spawn
from sidecar.runtime.timers import until_next_s

logger = logging.getLogger("liftpy.housekeeping")

RETENTION_EVERY_S = 5.0
_AT_ONCE = 16
_COMPACT_FROM_DIRTY_RATIO = 0.5
SPACE_AGAIN_BYTES = 256 * 1024 * 1024
SPACE_AGAIN_SHARE = 0.05
"""Share of the file system that must be free before the node restarts after a full disk.

``SPACE_AGAIN_BYTES`` is enough, too.
"""
_TRIES_AGAIN_EVERY_S = 60.0
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
            if not self._check_space():  # the restart may come before the state of deleted records is stored
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

    def _check_space(self) -> bool:
        """Check the free space of the disk. If a full disk has stopped partitions and now has space, restart the node.

        Return True if the node restarts.
        """
        stopped = [worker.key for worker in self._partitions if worker.no_space]
        if not stopped or time.monotonic() - self._started < _TRIES_AGAIN_EVERY_S:
            return False
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError as error:
            logger.warning("free space not known directory=%s error=%s: retrying", self._folder, error)
            return False
        if usage.free < min(SPACE_AGAIN_BYTES, SPACE_AGAIN_SHARE * usage.total):
            return False
        self._repair(
            f"{stopped[0]} and {len(stopped) - 1} more, which the full disk had stopped: {usage.free >> 20} MiB are free now"
        )
        return True

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
            if worker.log.may_be_cleaned:
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
        try:
            compaction = worker.log.begin_compaction(self._partitions.clocks.time_of_age_ns(), min_dirty_ratio=min_dirty_ratio)
            if compaction is None:
                return
            await self._run_slow_work(compaction.run)
        except LiftError as error:
            _log_failed(worker, error)
            return
        if worker.has_ended:
            with contextlib.suppress(StorageError):  # its folder may be gone
                compaction.abandon()
            return
        worker.flusher.alone(
            partial(_complete, worker, compaction)
        )  # if a flush hangs, it runs after the flush, without blocking

    async def close(self) -> None:
        await self._partitions.clocks.close()
        await end_tasks(self._tasks)
        self._tasks = []


def _complete(worker: PartitionWorker, compaction: Compaction) -> None:
    try:
        dropped = worker.log.complete_compaction(compaction)
    except LiftError as error:
        _log_failed(worker, error)
        return
    worker.mark_changed()
    if dropped:
        logger.info("log compacted partition=%s removed_records=%d", worker.key, dropped)


def _log_failed(worker: PartitionWorker, error: LiftError) -> None:
    if worker.has_ended:
        return  # its log was closed, and its files went, while this had them in hand
    if isinstance(error, CorruptionError):
        worker.log.handle_damage(error)
        return
    logger.warning("compaction failed partition=%s error=%s: retrying", worker.key, error)
    if isinstance(error, StorageError):
        worker.log_was_closed(error)


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
