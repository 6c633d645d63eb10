"""Thread for the short flushes of a node. The event loop waits a limited time for each one.

A flush of 0.1 ms is shorter than two turns of the loop to start it in a thread and learn its end. A flush on the loop
itself has no
limit: if a disk hangs, the whole node stops, answers no probe, and is fenced. Here the loop waits on a lock, which
costs about 20 us
more than its own flush. After the time limit the loop continues, the flush continues in its thread, and the next flush
gets a new
thread. An abandoned thread ends with its flush. ``liftpy/core/log/flush.py`` limits their number: after each, flushes
run in the pool
until many were short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from liftpy.core.log.flush import FlushPlace

THREAD_NAME = "liftpy-short-flush"


class _Job:
    """One call. ``late``: the caller no longer waits."""

    __slots__ = ("_done", "_error", "_result", "_work", "late")

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._done = threading.Lock()
        self._done.acquire()
        self._result = 0
        self._error: Exception | None = None
        self.late: Future[int] | None = None

    def run(self) -> None:
        """Run in the thread. The caller sets ``late`` and then checks the lock again, so one of both sees the other."""
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
        """Return whether it is done, after waiting at most ``within_s``."""
        return self._done.acquire(timeout=within_s)

    def result(self) -> int:
        """Return the result of a completed job, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result


class FlushThread:
    """Runs the flushes of one node, where ``place`` says. Call ``run`` only on the event loop."""

    def __init__(self, place: FlushPlace) -> None:
        self.place = place
        self._jobs: SimpleQueue[_Job | None] | None = None
        """Jobs of the waiting thread. None: no thread waits."""

    def run(self, work: Callable[[], int], within_s: float) -> int | Future[int]:
        """Return the result of ``work``, or a future after ``within_s`` seconds."""
        if self._jobs is None:
            jobs: SimpleQueue[_Job | None] = SimpleQueue()
            threading.Thread(target=_serve, args=(jobs,), name=THREAD_NAME, daemon=True).start()
            self._jobs = jobs  # not before: the system may have no thread to give, and nobody would serve the next one
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
        """End the thread after its current work. The next ``run`` starts a new one."""
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # it holds a log
