"""Thread, lock and queue of short flushes (``sidecar.disk.flush_thread``).

The event loop waits for the thread with a time limit. In a world the thread runs when the loop begins to wait. A flush that takes
longer than the limit ends in its thread, while the loop continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.simulation.world.machine import scheduler as scheduling
from tests.simulation.world.machine import threads
from tests.simulation.world.machine.scheduler import NS_PER_S, NS_PER_US, Scheduler

_RACE_NS = 200 * NS_PER_US
"""Time for which the loop and the thread race after the limit. A flush that ends in it has ended when the loop looks again."""


class _FlushThread(threads.VirtualThread):
    """A thread that runs only while the event loop waits for it, or to finish a late flush."""

    def _schedule(self) -> None:
        """Begin when the loop waits for the first time."""
        _ready.append(self.begin_now)


class _Queue:
    """``SimpleQueue`` from which one thread takes."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._taker: threads.VirtualThread | None = None

    def put(self, item: Any) -> None:
        """Add an item. The thread takes it when the loop waits. It takes None at once, because nobody waits for its end."""
        self._items.append(item)
        taker, self._taker = self._taker, None
        if taker is None:
            return
        if item is None:
            taker.resume_now()
        else:
            _ready.append(taker.resume_now)

    def get(self) -> Any:
        """Wait for an item and take it."""
        while not self._items:
            self._taker = threads.current_thread()
            assert self._taker is not None, "only the thread takes from the queue"
            self._taker.stand()
        return self._items.popleft()


class _Lock:
    """``threading.Lock`` that the thread frees when its work is done."""

    def __init__(self) -> None:
        self._is_locked = False
        self._deadline_ns: int | None = None
        """Time in the present turn of the loop at which its wait ends. None: the loop does not wait."""

    def acquire(self, timeout: float = 0.0) -> bool:
        """Take the lock. The loop waits for at most ``timeout`` seconds, in which the thread runs."""
        scheduler = _scheduler()
        deadline_ns = scheduler.elapsed_ns + int(timeout * NS_PER_S)
        if self._is_locked and timeout:
            self._deadline_ns = deadline_ns
            while _ready:
                _ready.popleft()()
            self._deadline_ns = None
        if self._is_locked or scheduler.elapsed_ns > deadline_ns:
            return False
        self._is_locked = True
        return True

    def release(self) -> None:
        """Free the lock when the work of the thread ends. If the wait of the loop has ended before, the loop continues first."""
        scheduler = _scheduler()
        late_ns = 0 if self._deadline_ns is None else scheduler.elapsed_ns - self._deadline_ns
        if late_ns > _RACE_NS:
            thread = threads.current_thread()
            assert thread is not None, "only the thread frees the lock"
            scheduler.elapsed_ns -= late_ns
            scheduler.after(late_ns, thread.resume_now, owner=scheduler.process)
            thread.stand()
        self._is_locked = False


_ready: deque[Callable[[], None]] = deque()
"""Threads of the present process that run when its loop waits."""


def _scheduler() -> Scheduler:
    scheduler = scheduling.active
    assert scheduler is not None
    return scheduler


def adapt(module: Any) -> None:
    """Give the module these versions of a thread, a lock and a queue."""
    module.threading = SimpleNamespace(Thread=_FlushThread, Lock=_Lock)
    module.SimpleQueue = _Queue
