"""Periodic work for all logs of a node: checkpoints, retention, compaction, deletion of quarantined files.

It never blocks the event loop. If a full disk has space again, the node restarts, because a failed log cannot continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from liftpy.core.log.compaction import Compaction
from liftpy.errors import CorruptionError, LiftError, StorageError
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


class Housekeeping:
    """Background task of a node that does the periodic work for all logs. ``close`` ends it."""

    def __init__(self, partitions: Partitions, checkpoint_every_s: float, folder: Path, repair: Callable[[str], None]) -> None:
        self._partitions = partitions
        self._folder = folder
        self._repair = repair
        self._started = time.monotonic()
        self._checkpoint_every_s = checkpoint_every_s
        self._task: asyncio.Task[None] | None = None
        self._checkpointed: dict[PartitionWorker, int] = {}
        """Partition -> HW of its last checkpoint that is stored. A failed checkpoint is repeated, although the HW has not changed."""

    def start(self) -> None:
        self._partitions.clocks.start()
        self._task = spawn(self._run(), "housekeeping", endless=True)

    async def _run(self) -> None:
        next_retention = time.monotonic() + RETENTION_EVERY_S
        while True:
            await asyncio.sleep(until_next_s(self._checkpoint_every_s))
            await self._checkpoints()
            if time.monotonic() >= next_retention:
                next_retention = time.monotonic() + RETENTION_EVERY_S
                self._check_space()  # before retention, so that state files of deleted records are written before a restart
                await self._retention()

    def _check_space(self) -> None:
        """Check the free space of the disk. If a full disk has stopped partitions and now has space, restart the node."""
        stopped = [worker.key for worker in self._partitions if worker.no_space]
        if not stopped or time.monotonic() - self._started < _TRIES_AGAIN_EVERY_S:
            return
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError as error:
            logger.warning("free space not known directory=%s error=%s: retrying", self._folder, error)
            return
        if usage.free >= min(SPACE_AGAIN_BYTES, SPACE_AGAIN_SHARE * usage.total):
            self._repair(
                f"{stopped[0]} and {len(stopped) - 1} more, which the full disk had stopped: {usage.free >> 20} MiB are free now"
            )

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
        for number, worker in enumerate(self._partitions):
            if worker.has_ended or worker.flusher.stalls or (worker.log.closed and not worker.log.is_full):
                continue
            if worker.log.may_give_up:
                while worker.apply_retention(self._partitions.clocks.time_of_age_ns()):
                    await asyncio.sleep(0)  # one step has a limit, so that it does not block the event loop
                    if worker.has_ended or worker.flusher.stalls:
                        break
                if worker.has_ended:
                    continue
            if worker.log.closed:
                continue
            if worker.log.may_be_cleaned:
                await self._compact(worker)
                if worker.has_ended:
                    continue
                worker.report_purged()
            if worker.quarantined_files and self._partitions.has_everything(worker):
                await _in_daemon_thread(worker.delete_quarantined_files)
                worker.mark_changed()
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

    async def _compact(self, worker: PartitionWorker) -> None:
        """Run one compaction of the log of ``worker`` in a thread of its own. A stop of the node does not wait for it."""
        try:
            compaction = worker.log.begin_compaction(
                self._partitions.clocks.time_of_age_ns(), min_dirty_ratio=_COMPACT_FROM_DIRTY_RATIO
            )
            if compaction is None:
                return
            await _in_daemon_thread(compaction.run)
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
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


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
