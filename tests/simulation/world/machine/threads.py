"""Simulated threads: a pool runs its jobs inline at a random moment. A thread runs when the scheduler chooses it.

A thread that blocks (``run_forever`` of a loop of its own, ``time.sleep``) is a real one. Either the scheduler runs or
one thread, never
both.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.world.machine import scheduler as scheduling
from tests.simulation.world.machine.scheduler import NS_PER_S, NS_PER_US, Process, Scheduler

RealThread = threading.Thread
RealTimer = threading.Timer
RealPool = concurrent.futures.ThreadPoolExecutor
_MOST_DELAY_NS = 300 * NS_PER_US
_STARTS_IN_NS = 100 * NS_PER_US
_JOIN_AGAIN_NS = 1_000 * NS_PER_US
_here = threading.local()


class NotYet(Exception):
    """The awaited condition is not true yet. Call the job again."""


def current_thread() -> VirtualThread | None:
    """Return the simulated thread that runs; None: the scheduler itself."""
    return getattr(_here, "thread", None)


class VirtualThread(RealThread):
    """Replacement of ``threading.Thread`` in a world."""

    _simulated = False
    _ended = False

    def start(self) -> None:
        """Schedule its first turn."""
        scheduler = scheduling.active
        if scheduler is None or scheduler.process is None:
            super().start()
            return
        self._simulated = True
        self._scheduler, self._owner = scheduler, scheduler.process
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.daemon = True
        self._schedule()

    def _schedule(self) -> None:
        """Begin at a random moment."""
        self._scheduler.after(self._scheduler.random.randrange(_STARTS_IN_NS), self.begin_now, owner=self._owner)

    def begin_now(self) -> None:
        """Run until the thread gives its turn back for the first time."""
        super().start()
        self._back.acquire()

    def run(self) -> None:
        """Run in the real thread."""
        if not self._simulated:
            super().run()
            return
        _here.thread = self
        try:
            super().run()
        except scheduling.ProcessEnd as end:
            self._owner.end(int(end.code or 0))
        except Exception as error:
            self._scheduler.unhandled(self._owner, f"thread {self.name} has ended", error, {})
        finally:
            self._ended = True
            self._back.release()

    def stand(self) -> None:
        """Give the turn back until ``resume``, in the real thread."""
        self._back.release()
        self._go.acquire()

    def resume(self) -> None:
        """Let the thread continue, called by the scheduler."""
        self._scheduler.after(1, self.resume_now, owner=self._owner)

    def resume_now(self) -> None:
        """Run until the thread gives its turn back again."""
        self._go.release()
        self._back.acquire()

    def runs_in(self, process: Process) -> bool:
        """Return whether it is a thread of ``process`` that has not ended."""
        return self._simulated and not self._ended and self._owner is process

    def is_alive(self) -> bool:
        """Return whether it has started and not ended."""
        return not self._ended if self._simulated else super().is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread: a pool job is called again until it has ended."""
        if not self._simulated:
            super().join(timeout)
        elif not self._ended:
            raise NotYet


class VirtualTimer:
    """Takes the place of ``threading.Timer``."""

    def __init__(self, interval: float, function: Callable[..., Any], args: Any = None, kwargs: Any = None) -> None:
        self._call: Callable[[], Any] = lambda: function(*(args or ()), **(kwargs or {}))
        self._interval_s = interval
        self._cancelled = False
        self.daemon = True

    def start(self) -> None:
        """Call the function after the interval."""
        scheduler = scheduling.active
        assert scheduler is not None
        scheduler.after(int(self._interval_s * NS_PER_S), self._fire, owner=scheduler.process)

    def cancel(self) -> None:
        """Cancel the timer."""
        self._cancelled = True

    def _fire(self) -> None:
        if not self._cancelled:
            self._call()


class VirtualPool:
    """Takes the place of ``ThreadPoolExecutor``: at most ``max_workers`` jobs at once, each at a drawn moment."""

    runs_job = False
    """True while a job of some pool runs. Only a job can wait for the jobs of another pool."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "", *_: Any, **__: Any) -> None:
        scheduler = scheduling.active
        assert scheduler is not None
        assert scheduler.process is not None
        self._scheduler: Scheduler = scheduler
        self._owner: Process = scheduler.process
        self._threads = self._free = max_workers or 8
        self._waiting: deque[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = deque()
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Schedule a job."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        self._next()
        return future

    def _next(self) -> None:
        while self._free and self._waiting:
            future, work = self._waiting.popleft()
            self._free -= 1
            self._scheduler.after(
                self._scheduler.random.randrange(_MOST_DELAY_NS), self._begin, future, work, owner=self._owner
            )

    def _begin(self, future: concurrent.futures.Future[Any], work: Callable[[], Any]) -> None:
        if not future.running() and not future.set_running_or_notify_cancel():
            self._end(None, lambda: None)
            return
        VirtualPool.runs_job = True
        try:
            result = work()
        except NotYet:
            self._scheduler.after(_JOIN_AGAIN_NS, self._begin, future, work, owner=self._owner)
            return
        except scheduling.ProcessEnd:
            raise
        except BaseException as error:
            failure = error
            self._scheduler.after(0, self._end, future, lambda: future.set_exception(failure), owner=self._owner)
            return
        finally:
            VirtualPool.runs_job = False
        self._scheduler.after(0, self._end, future, lambda: future.set_result(result), owner=self._owner)

    def _end(self, _: object, tell: Callable[[], None]) -> None:
        self._free += 1
        tell()
        self._next()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more jobs. If a job calls this, wait until all jobs of this pool have ended."""
        self._closed = True
        if cancel_futures:
            while self._waiting:
                self._waiting.popleft()[0].cancel()
        if wait and VirtualPool.runs_job and self._free < self._threads:
            raise NotYet

    def __enter__(self) -> VirtualPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class InlinePool:
    """Takes the place of ``ThreadPoolExecutor`` in a library that waits for its jobs on the event loop: each runs at once."""

    def __init__(self, max_workers: int | None = None) -> None:
        """Do nothing: no job waits for a worker."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Run a job."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: all jobs have ended."""

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
