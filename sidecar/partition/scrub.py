"""Background check of stored data: reads the logs of this node from disk again to find damage (``liftpy.core.log.scrub``).

A newly sealed segment is checked first, then all segments in order. The file ``<data>/scrub`` stores the position. The
rate is limited in bytes and in thread time. Damage is repaired like damage that a reader finds: the replica gives up
its role, the node restarts without the damaged data and fetches it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.log.scrub import freshly_sealed, is_confirmed_damage, next_segment, scan_of
from liftpy.core.log.segment import Segment, log_name
from liftpy.core.log.small_files import open_small_file, seal_small_file
from liftpy.errors import CorruptionError, LiftError, StorageError
from sidecar.disk.files import replace_file
from sidecar.partition.worker import PartitionWorker
from sidecar.runtime.tasks import spawn
from sidecar.runtime.timers import until_next_s

logger = logging.getLogger("liftpy.scrub")

PIECE_BYTES = 128 * 1024
_LAST_STORE_S = 5.0
"""Time that a stopping node waits until the progress is stored, in seconds."""
SEALED_FASTER = 16
"""Factor by which newly sealed segments are checked faster, because readers and followers will read them soon."""
PASS_EVERY_S = 3600.0
"""Minimum time between the starts of two passes, in seconds."""
_REST = 19
"""Pause after each piece of work, as a multiple of its duration. The thread uses at most 5 % of a core."""
_REST_SEALED = 4
_STORE_EVERY_S = 10.0
_CHECK_EVERY_S = 1.0
_FILE = "scrub"
_MAGIC = b"LFSC"
T = TypeVar("T")


@dataclass(slots=True)
class ScrubProgress:
    """Position and results of the scrub, as stored on disk. Times are wall clock in seconds since 1970, 0: never."""

    partition: str = ""
    """Partition that is read or was read last. '': a pass starts."""
    base_offset: int = -1
    """Base offset of the segment that is checked. -1: none yet."""
    position: int = 0
    """Position in the segment's file up to which it is checked, in bytes. -1: the segment is complete."""
    pass_began_s: float = 0.0
    last_full_pass_s: float = 0.0
    """Time when the last pass ended, in seconds since 1970. 0: never."""
    findings: int = 0
    """Number of damaged segments found since the data directory was created."""
    last_finding: str = ""


class Scrub:
    """Background task that reads the logs of a node from disk and checks them. ``bytes_per_s``: rate limit, 0 means off."""

    def __init__(
        self,
        workers: Iterable[PartitionWorker],
        folder: Path,
        bytes_per_s: int,
        counters: Counter[str],
        pass_every_s: float = PASS_EVERY_S,
    ) -> None:
        self._workers = workers
        self._path = folder / _FILE
        self._bytes_per_s = bytes_per_s
        self._counters = counters
        self._pass_every_s = pass_every_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="liftpy-scrub")
        self._task: asyncio.Task[None] | None = None
        self._has_started = False
        self._stored_at = 0.0
        self.checked_bytes = 0
        """Number of bytes of batches that this process has checked."""
        self.read_bytes = 0
        """Number of bytes that this process has read from files for the scrub. The rate limit applies to them."""
        self.progress = _load(self._path)

    def start(self) -> None:
        """Start the background task, unless the rate is 0. Call it when the partitions are open: a pass reads those that are there."""
        self._has_started = True
        if self._bytes_per_s and self._task is None:
            self._task = spawn(self._run(), "scrub", endless=True)

    def change_rate(self, bytes_per_s: int) -> None:
        """Set the rate for the next pieces, in bytes per second. 0: pause the scrub."""
        self._bytes_per_s = bytes_per_s
        if self._has_started:
            self.start()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            with contextlib.suppress(
                TimeoutError
            ):  # in the thread, after what the task was storing there when it was cancelled
                await asyncio.wait_for(self._in_thread(self._store), _LAST_STORE_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def report(self) -> dict[str, Any]:
        return {
            "bytes_per_s": self._bytes_per_s,
            "checked_bytes": self.checked_bytes,
            "read_bytes": self.read_bytes,
            **asdict(self.progress),
        }

    # ---- what is next ------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            try:
                if not self._bytes_per_s or not (await self._one_that_was_sealed() or await self._one_in_order()):
                    await asyncio.sleep(until_next_s(_CHECK_EVERY_S))
            except LiftError as error:  # a segment or a whole partition is gone, or the disk has no room for the progress
                self._counters["scrub_interrupted"] += 1
                logger.debug("scrub interrupted error=%s: continuing", error)
                await asyncio.sleep(until_next_s(_CHECK_EVERY_S))

    async def _one_that_was_sealed(self) -> bool:
        for worker in self._workers:  # every second, so it does not sort them
            segment = freshly_sealed(worker.log)
            if segment is not None and _is_healthy(worker):
                segment.awaits_scrub = False
                await self._scan(worker, segment, 0, self._bytes_per_s * SEALED_FASTER, _REST_SEALED)
                return True
        return False

    async def _one_in_order(self) -> bool:
        """Check the next segment in order, or end the pass if there is none. Return False if it is too early for the next pass."""
        progress, now_s = self.progress, time.time()
        if not progress.partition:
            if abs(now_s - progress.pass_began_s) < self._pass_every_s:
                return False
            progress.pass_began_s = now_s
        for worker in self._healthy():
            name = str(worker.key)
            if name < progress.partition:
                continue
            same = name == progress.partition
            segment = next_segment(worker.log, (progress.base_offset - (progress.position >= 0)) if same else -1)
            if segment is None:
                continue
            position = progress.position if same and segment.base_offset == progress.base_offset else 0
            progress.partition, progress.base_offset, progress.position = name, segment.base_offset, position
            try:
                await self._scan(worker, segment, position, self._bytes_per_s, _REST, in_order=True)
            finally:
                if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    progress.position = -1
            return True
        progress.partition, progress.base_offset, progress.position = "", -1, 0
        progress.last_full_pass_s = now_s
        await self._in_thread(self._store)
        return True

    def _healthy(self) -> list[PartitionWorker]:
        return sorted(filter(_is_healthy, self._workers), key=lambda worker: str(worker.key))

    # ---- one segment -------------------------------------------------------------------------------------------------
    async def _scan(
        self, worker: PartitionWorker, segment: Segment, position: int, bytes_per_s: int, rest: int, *, in_order: bool = False
    ) -> None:
        scan = scan_of(worker.log, segment, position)
        if scan is None:
            return
        file = await self._in_thread(lambda: worker.log.storage.open(scan.name))
        try:
            while (
                not scan.done and not worker.log.closed and any(segment is log_segment for log_segment in worker.log.segments)
            ):
                began, read_before = time.monotonic(), scan.read_bytes
                self.checked_bytes += await self._in_thread(lambda: scan.step(file, PIECE_BYTES))
                took_s, size_bytes = time.monotonic() - began, scan.read_bytes - read_before
                self.read_bytes += size_bytes
                if in_order:
                    self.progress.position = scan.position
                    if time.monotonic() - self._stored_at > _STORE_EVERY_S:
                        await self._in_thread(self._store)
                await asyncio.sleep(max(size_bytes / bytes_per_s - took_s, took_s * rest))
        except CorruptionError as error:
            self._suspects(worker, segment, error, found=is_confirmed_damage(worker.log, segment, scan))
        finally:
            file.close()

    def _suspects(self, worker: PartitionWorker, segment: Segment, error: CorruptionError, *, found: bool) -> None:
        if not found:
            self._counters["scrub_unconfirmed"] += 1
            return
        self._counters["scrub_damage"] += 1
        self.progress.findings += 1
        self.progress.last_finding = f"{worker.key}: {log_name(segment.base_offset)}: {error}"
        logger.error("damage found partition=%s error=%s", worker.key, error)
        self._store()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _store(self) -> None:
        self._stored_at = time.monotonic()
        try:
            replace_file(self._path, seal_small_file(_MAGIC, json.dumps(asdict(self.progress)).encode()))
        except StorageError as error:
            logger.warning("scrub progress not stored error=%s: retrying", error)


def _check_progress(fields: dict[str, Any]) -> ScrubProgress:
    """Return the stored progress of the scrub. Raises ValueError or TypeError if its fields are invalid."""
    progress = ScrubProgress(**fields)
    for name, default in asdict(ScrubProgress()).items():
        value = getattr(progress, name)
        if isinstance(default, int):
            whole_number(value, -1, 1 << 62)
        elif not isinstance(value, float if isinstance(default, float) else str):
            raise TypeError(f"{name} is no {type(default).__name__}")
    return progress


def _is_healthy(worker: PartitionWorker) -> bool:
    return not worker.storage_failed and not worker.log.closed


def _load(path: Path) -> ScrubProgress:
    """Return the progress stored in the file ``path``. If there is none, return that of a new pass."""
    try:
        body = open_small_file(_MAGIC, path.read_bytes())
        return _check_progress(load_json(body)) if body is not None else ScrubProgress()
    except (OSError, ValueError, TypeError, LiftError):
        return ScrubProgress()
