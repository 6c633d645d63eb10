"""Short flushes of a node in a thread, and the durations of all flushes.

The event loop waits a limited time for each short flush (``FlushThread``). A flush of 0.1 ms takes less time than the two turns
of the loop that a thread pool needs. A flush on the loop itself has no time limit: if a disk hangs, the whole node stops,
answers no probe, and is fenced. With this thread the loop waits on a lock, which costs about 20 us more than a flush on the
loop. After the time limit, the loop continues, the flush continues in its thread, and the next flush gets a new thread. An
abandoned thread ends with its flush. ``liftpy/core/log/flush.py`` limits their number: after each abandoned thread, flushes run
in the pool until many were short.

The duration of a flush is the time from its request until the loop knows that it is done. It includes the wait for a thread,
because a publisher waits for that too. The newest durations are reported as medians and 99th percentiles. A flush that takes a
second is logged as a warning.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from liftpy.core.base.instruments import Histogram
from liftpy.core.base.rate_limits import LogRateLimit
from liftpy.core.log.flush import PROBES, FlushScheduler

logger = logging.getLogger("liftpy.disk")

THREAD_NAME = "liftpy-short-flush"
SLOW_S = 1.0
"""Duration of a flush in seconds from which on it is logged as a warning.

Publishers then begin to time out, and commits of every stream with this replica in its ISR wait.
"""
WARN_EVERY_S = 10.0
SAMPLES_OF_NODE = 2048
SAMPLES_OF_PARTITION = 128
PROBE_NAME = "flush-probe.tmp"
_WITHIN_S = 0.02
"""Time after the first flush in which further ones may begin, in seconds."""
_APPENDED = bytes(512)
"""Bytes of one append: about a batch with one small record."""


class _Job:
    """One call of a function in the thread. ``late``: future of its result. None: the caller still waits for the result."""

    __slots__ = ("_done", "_error", "_result", "_work", "late")

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._done = threading.Lock()
        self._done.acquire()
        self._result = 0
        self._error: Exception | None = None
        self.late: Future[int] | None = None

    def run(self) -> None:
        """Call the function in the thread, and pass its result to the caller.

        The caller sets ``late`` and then checks the lock again, so at least one of both sides sees the other.
        """
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error
        self._done.release()
        if (late := self.late) is None:
            return
        if self._error is not None:
            late.set_exception(self._error)
        else:
            late.set_result(self._result)

    def is_done(self, within_s: float) -> bool:
        return self._done.acquire(timeout=within_s)

    def result(self) -> int:
        if self._error is not None:
            raise self._error
        return self._result


class FlushThread:
    """Runs short flushes of one node in a thread, while the event loop waits. Call ``run`` only on the event loop.

    ``place``: decides which flushes run here. Its callers ask it.
    """

    def __init__(self, place: FlushScheduler) -> None:
        self.place = place
        self._jobs: SimpleQueue[_Job | None] | None = None
        """Queue of the waiting thread. None: no thread waits."""

    def run(self, work: Callable[[], int], within_s: float) -> int | Future[int]:
        """Run ``work`` in the thread and return its result.

        After ``within_s`` seconds, return a future of the result instead.
        """
        if self._jobs is None:
            jobs: SimpleQueue[_Job | None] = SimpleQueue()
            threading.Thread(target=_run_jobs, args=(jobs,), name=THREAD_NAME, daemon=True).start()
            self._jobs = jobs  # only after the start of the thread, which may fail
        job = _Job(work)
        self._jobs.put(job)
        if job.is_done(within_s):
            return job.result()
        late: Future[int] = Future()
        job.late = late
        if job.is_done(0):
            return job.result()
        self.close()
        return late

    def close(self) -> None:
        """End the thread after its current call. The next ``run`` starts a new one."""
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None


def _run_jobs(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # it refers to a log


# ---- durations -------------------------------------------------------------------------------------------------------


class FlushTimes:
    """The last ``kept`` durations of flushes, in seconds. Older ones are dropped."""

    __slots__ = ("_at", "_capacity", "_ring", "count")

    def __init__(self, kept: int = SAMPLES_OF_PARTITION) -> None:
        self._capacity = kept
        self._ring = array("f")
        self._at = 0
        self.count = 0
        """Number of all flushes, including those whose durations were dropped."""

    def add(self, took_s: float) -> None:
        self.count += 1
        if len(self._ring) < self._capacity:
            self._ring.append(took_s)
            return
        self._ring[self._at] = took_s
        self._at = (self._at + 1) % self._capacity

    def report(self) -> dict[str, float]:
        """Return median ``p50_ms``, ``p99_ms`` and ``max_ms`` of the durations, in milliseconds. All are 0 without durations."""
        if not self._ring:
            return {"p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
        ordered = sorted(self._ring)
        last = len(ordered) - 1
        shares = {"p50_ms": ordered[last // 2], "p99_ms": ordered[round(last * 0.99)], "max_ms": ordered[-1]}
        return {name: round(seconds * 1000, 3) for name, seconds in shares.items()}


class NodeFlushTimes(FlushTimes):
    """Flush durations of all partitions of a node. ``counters``: counts slow flushes. ``times``: histogram, in seconds."""

    __slots__ = ("_counters", "_log_limit", "_times")

    def __init__(self, counters: Counter[str], times: Histogram | None = None) -> None:
        super().__init__(SAMPLES_OF_NODE)
        self._times = times or Histogram()
        self._counters = counters
        self._log_limit = LogRateLimit(WARN_EVERY_S)

    def flushed(self, what: object, took_s: float) -> None:
        """Record a flush of ``what`` (a partition) that took ``took_s`` seconds.

        A slow flush is counted, and logged at most once in ``WARN_EVERY_S`` seconds.
        """
        self.add(took_s)
        self._times.observe(took_s)
        if took_s < SLOW_S:
            return
        self._counters["slow_flush"] += 1
        suppressed = self._log_limit.admit(time.monotonic())
        if suppressed is not None:
            text = "slow flush log=%s seconds=%.1f slow_flushes=%d: publishers wait. Check the disk of this node"
            logger.warning(text, what, took_s, suppressed + 1)


def probe_flushes(folder: Path) -> list[float] | None:
    """Flush a test file in ``folder`` up to ``PROBES`` times. Return the durations in seconds.

    A node does this at its start, so that ``FlushScheduler`` does not need to learn the duration of short flushes while
    publishers wait. The file is removed at the end. Its name is always the same, so the next start removes the file of a
    process that was killed.

    None: the directory is not writable. The function blocks for about ``_WITHIN_S`` seconds.
    """
    path = folder / PROBE_NAME
    try:
        return _timed_flushes(path)
    except OSError:
        return None
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _timed_flushes(path: Path) -> list[float]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o640)
    try:
        times_s: list[float] = []
        _timed_flush(descriptor)  # the first flush of a new file takes longer, so it is not measured
        end_s = time.monotonic() + _WITHIN_S
        while len(times_s) < PROBES and time.monotonic() < end_s:
            times_s.append(_timed_flush(descriptor))
        return times_s
    finally:
        os.close(descriptor)


def _timed_flush(descriptor: int) -> float:
    """Write to the file and flush it. Return the duration of the flush alone, in seconds."""
    if os.write(descriptor, _APPENDED) != len(_APPENDED):
        raise OSError("short write")
    began_s = time.monotonic()
    os.fdatasync(descriptor)
    return time.monotonic() - began_s
