"""Recovers the logs of a data directory before the node registers [C7], several at a time.

A partition takes over its recovered log. Logs of partitions that are not on this node according to the image are
closed.

``LogReplay`` rebuilds message ids, producers and subjects from a log in slices [protocol: Promotion]. A candidate or a
new leader waits for it. A follower does it in the background, with pauses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from contextlib import suppress
from functools import partial
from pathlib import Path

from liftpy.config import NS_PER_S
from liftpy.core.base.worker_assignment import WHOLE, WorkerShare
from liftpy.core.log.recovery import RecoveryResult, forget_failed_flush, recover
from liftpy.core.partition.shell import PartitionShell
from liftpy.core.replication import events
from liftpy.errors import LiftError, StorageError
from sidecar.disk.data_folder import UNREPORTED_DAMAGE, DataDirectory
from sidecar.disk.files import storage_errors
from sidecar.runtime import clock
from sidecar.runtime.restarts import is_disk_error

logger = logging.getLogger("liftpy.node")

_AT_ONCE = 32
"""Number of logs that one task in a thread recovers, because one task for each log would cost too much."""
RETRY_PAUSES_S = (0.2, 0.5, 1.0)
"""Pauses before the recovery of a log is retried after a disk error that may be temporary, in seconds."""
MAX_RETRIED_S = 1.0
"""Duration of a recovery from which on it is not retried, in seconds."""


def _logs_in(streams: Path) -> list[Path]:
    if not streams.exists():
        return []
    with os.scandir(streams) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    logs: list[Path] = []
    for name in names:
        with suppress(FileNotFoundError):  # the node's first process has just removed it: it was empty
            logs += [
                streams / name / number
                for number in sorted(os.listdir(streams / name))
                if number.isascii() and number.isdigit()
            ]
    return logs


def _file_sizes(log: Path) -> dict[str, int]:
    with storage_errors("list", log), os.scandir(log) as entries:
        return {entry.name: entry.stat().st_size for entry in entries}


def _is_unchanged(log: Path, sizes: dict[str, int]) -> bool:
    try:
        return _file_sizes(log) == sizes
    except StorageError:
        return False


class RecoveredLogs:
    """Logs that were recovered before the node registers.

    Call ``run`` once, then ``take`` for each partition, and ``close`` at the end.
    """

    def __init__(self) -> None:
        self._found: dict[Path, RecoveryResult] = {}
        self.names: frozenset[str] = frozenset()
        """Names of all logs in the directory: ``<stream>-<uid>/<partition>``."""
        self.damaged: list[str] = []
        """Names of logs that cannot be read, or may lack records that this node acknowledged."""
        self.confined: list[str] = []
        """Names of damaged logs in which only bytes have changed in place. This says nothing about other logs."""
        self.missing: list[str] = []
        """Names of logs that this node has created, but whose directory is missing. Only the first process checks for them."""
        self._held: frozenset[str] = frozenset()
        self._done: list[str] = []
        """Names of logs that were checked."""
        self._count = 0
        """Number of logs that this process checks."""
        self.suspect: list[str] = []
        """Names of logs whose last process had a failed flush."""
        self.unrecovered: set[Path] = set()
        """Logs that could not be recovered and were not opened since. Their data may be only in the page cache."""
        self._retried: list[Path] = []
        """Logs whose recovery failed, but may succeed later."""
        self._clean_ends: Mapping[str, int] = {}
        """Name of each log -> log end offset (exclusive) at the clean stop. A log without entry is not checked."""
        self._closed = False
        """True if the threads must recover no further log, because the start was canceled or has failed."""
        self._lock = threading.Lock()

    async def run(self, folder: DataDirectory, pool: Pool, *, clean_stop: bool, share: WorkerShare = WHOLE) -> None:
        """Recover all logs in ``folder`` that belong to this process.

        Args:
            folder: Data directory of the node.
            pool: Threads that read the logs.
            clean_stop: True if the last process stopped cleanly. An incomplete batch at the end of a log then counts as
                damage.
            share: Partitions of this process. The first process also completes interrupted deletions.
        """
        loop = asyncio.get_running_loop()
        self._clean_ends = await loop.run_in_executor(pool, folder.load_log_ends) if clean_stop else {}
        if share.number == 0:
            await loop.run_in_executor(pool, folder.finish_deletions)
        paths = await loop.run_in_executor(pool, _logs_in, folder.path / "streams")
        self.names = frozenset(f"{path.parent.name}/{path.name}" for path in paths)
        self._held = await loop.run_in_executor(pool, folder.list_marked_logs)
        self.missing = sorted(self._held - self.names) if share.number == 0 else []
        paths = [path for path in paths if share.holds_folder(f"{path.parent.name}/{path.name}")]
        self._count = len(paths)
        for pause_s in (*RETRY_PAUSES_S, None):
            self._retried = []
            parts = [paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)]
            may_retry = pause_s is not None
            await asyncio.gather(
                *(loop.run_in_executor(pool, self._recover_some, part, folder, clean_stop, may_retry) for part in parts)
            )
            if not self._retried or pause_s is None:
                break
            paths = sorted(self._retried)
            await asyncio.sleep(pause_s)
        self.damaged.sort()
        self.suspect.sort()

    def _recover_some(self, paths: list[Path], folder: DataDirectory, clean_stop: bool, may_retry: bool) -> None:
        for path in paths:
            if self._closed:
                return
            self._recover(path, folder, clean_stop, may_retry)

    def _recover(self, path: Path, folder: DataDirectory, clean_stop: bool, may_retry: bool) -> None:
        name = f"{path.parent.name}/{path.name}"
        sizes: dict[str, int] | None = None
        began_s = time.monotonic()
        try:
            sizes = _file_sizes(path)
            recovery = recover(
                folder.storage(path),
                clean=clean_stop,
                clean_end_offset=self._clean_ends.get(name, 0),
                before_loss=partial(folder.set_mark, UNREPORTED_DAMAGE),
            )
        except LiftError as error:
            # A recovery that has changed files has perhaps removed the damage that the next one must find. A slow disk error
            # must not use up the time that the supervisor has for a start.
            may_retry = may_retry and is_disk_error(error) and time.monotonic() - began_s < MAX_RETRIED_S
            if may_retry and (sizes is None or _is_unchanged(path, sizes)):
                logger.warning("log not recovered yet log=%s error=%s: retrying", path, error)
                self._retried.append(path)
                return
            logger.error("log not recovered log=%s code=%s error=%s", path, error.code, error)
            self._done.append(path.name)
            self.unrecovered.add(path)  # the opening tries again
            self.damaged.append(name)
            return
        self._done.append(path.name)
        with self._lock:
            if self._closed:
                _close_files(recovery)
                return
            self._found[path] = recovery
        is_empty = not recovery.segments and not recovery.checkpoint.log_start_offset and not recovery.report.damage
        if name in self._held and is_empty:
            logger.error(
                ("all segments missing log=%s: records that this node acknowledged are lost here, copying the log again"), path
            )
            self.damaged.append(name)
        elif name not in self._held and recovery.segments:
            folder.mark_log(name)  # an earlier version has made it
        if recovery.report.flush_failed:
            self.suspect.append(name)
            text = "log suspect log=%s reason=%s rewritten_bytes=%d: these bytes were perhaps not on the disk"
            logger.error(text, path, recovery.report.flush_failed, recovery.report.rewritten_bytes)
        if recovery.report.must_leave_isr:
            logger.error("log damaged log=%s report=%s", path, recovery.report)
            self.damaged.append(name)
            if recovery.report.is_confined:
                self.confined.append(name)

    async def forget_failed_flushes(self, folder: DataDirectory, pool: Pool) -> None:
        """Remove the marks of failed flushes that ``run`` found, because the process has registered.

        Call it before the partitions open. A mark that cannot be removed stays: the next start is then only more careful.
        """
        if self.suspect:
            await asyncio.get_running_loop().run_in_executor(pool, self._forget_marks, folder)

    def _forget_marks(self, folder: DataDirectory) -> None:
        for name in self.suspect:
            path = folder.path / "streams" / name
            try:
                forget_failed_flush(folder.storage(path))
            except StorageError as error:
                logger.warning("mark of a failed flush not removed log=%s error=%s: continuing", path, error)

    @property
    def progress(self) -> tuple[int, int]:
        """(Number of recovered logs, number of all logs)."""
        return len(self._done), self._count

    def take(self, path: Path) -> RecoveryResult | None:
        """Return the recovered log in the directory ``path``. None: it was not recovered, or was taken before."""
        return self._found.pop(path, None)

    def close(self) -> None:
        """Close the files of the recovered logs that no partition has taken. A running recovery ends after its current logs."""
        with self._lock:
            self._closed = True
            for recovered in self._found.values():
                _close_files(recovered)
            self._found.clear()


def _close_files(recovered: RecoveryResult) -> None:
    for segment in recovered.segments:
        segment.file.close()


_PAUSE_FACTOR = 2
"""Pause after a slice of the background replay, as a multiple of its duration. The replay uses a third of the loop's time."""
_URGENT_PAUSE_FACTOR = 0.5
"""Pause while publishes wait for the replay, as a multiple of a slice. The replay then uses two thirds of the loop's time."""
_URGENT_SLICE_NS = 4_000_000
"""Duration of a slice without pause while publishes wait, in nanoseconds."""
_PAUSE_LEAST_S = 0.001


class LogReplay:
    """Rebuilds the derived state of one partition (message ids, producers, subjects) from its log."""

    __slots__ = ("_closed", "_handle", "_log_state", "_partition", "_read_timer", "_then")

    def __init__(self, partition: PartitionShell) -> None:
        self._partition = partition
        self._log_state = log_state = partition.log_state
        self._then: Callable[[], None] | None = None
        self._handle: asyncio.Handle | None = None
        self._read_timer: asyncio.Handle | None = None
        """Scheduled slice of the background replay. None: none is scheduled."""
        self._closed = False
        log_state.on_lacking = self._read_missing_records
        if log_state.lacks:
            self._read_missing_records()

    def run(self, then: Callable[[], None]) -> None:
        """Replay the log to its end, then call ``then``. That may happen before this call returns.

        Until then, the replica gets ReplayProgressed events. If a replay is running, it continues and calls the new ``then``.
        """
        self._then = then
        if self._handle is None:
            self._go_on()

    def forget(self) -> None:
        """Cancel the replay that ``run`` started, because the role has ended."""
        self._then = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        self._closed = True
        self.forget()
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _read_missing_records(self, pause_s: float = _PAUSE_LEAST_S) -> None:
        if self._read_timer is None and not self._closed:
            self._read_timer = asyncio.get_running_loop().call_later(pause_s, self._read_some)

    def _read_some(self) -> None:
        self._read_timer = None
        began_ns, wait = clock.now_ns(), self._log_state.index_wait
        try:
            complete = self._log_state.read_missing_records()
            self._partition.mark_changed()
            while not complete and wait and clock.now_ns() - began_ns < _URGENT_SLICE_NS:
                complete = self._log_state.read_missing_records()
                self._partition.mark_changed()
        except LiftError as error:
            self._report(error)
            return
        if not complete:
            factor = _URGENT_PAUSE_FACTOR if wait else _PAUSE_FACTOR
            self._read_missing_records(max(_PAUSE_LEAST_S, factor * (clock.now_ns() - began_ns) / NS_PER_S))

    def _report(self, error: LiftError) -> None:
        """Report that the log cannot be read."""
        text = f"Cannot read the log after recovery: {error}"
        self._partition.log_failed(error if isinstance(error, StorageError) else StorageError(text))

    def _go_on(self) -> None:
        self._handle = None
        try:
            complete = self._log_state.is_complete or self._log_state.replay()
            self._partition.mark_changed()
        except LiftError as error:
            self._report(error)
            return
        then = self._then
        if then is None:
            return
        if complete:
            self._then = None
            then()
        else:
            self._handle = asyncio.get_running_loop().call_soon(self._go_on)
            self._partition.feed(events.ReplayProgressed(end_offset=self._log_state.end_offset or 0))
