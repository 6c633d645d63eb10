"""Runs all deadlines of a node with one timer of the event loop, rounded up to a grid so that they fire together.

A replica moves its deadlines with nearly every message ("the leader answered: 2 s from now"). A move costs one assignment:
the timer wheel keeps the earlier entry, and checks again when it fires. All timers within one step of the grid share a
slot. Setting a timer is an append, and only slots are sorted.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from sidecar.runtime import clock

NS_PER_MS = 1_000_000
GRID_NS = 5 * NS_PER_MS
"""Maximum delay of a deadline, in nanoseconds. Deadlines within one step share a wake-up."""
FAR_NS = 500 * NS_PER_MS
FAR_GRID_NS = 100 * NS_PER_MS
"""Maximum delay of deadlines that are more than FAR_NS ahead, in nanoseconds.

Deadlines of idle partitions then fire together, and one write can serve many of them.
"""

SLICE_NS = 8 * NS_PER_MS
"""Maximum time for deadlines in one wake-up, in nanoseconds. The others run in the next turn of the loop."""


def until_next_s(period_s: float) -> float:
    """Return the time until the next multiple of ``period_s`` on the wall clock, in seconds. It is at least a tenth of the period.

    Tasks that run at such times wake the process together.
    """
    rest_s = period_s - time.time() % period_s
    return rest_s if rest_s >= period_s / 10 else rest_s + period_s


class Timer:
    """One deadline that can be set many times. When it is due, it is cleared, and ``call`` is called on the event loop."""

    __slots__ = ("_call", "_due_ns", "_queued_ns")

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call
        self._due_ns: int | None = None
        """Monotonic time of the deadline in nanoseconds. None: it is not set."""
        self._queued_ns: int | None = None
        """Earliest slot in which it is queued. It is never after the deadline, rounded up to the grid."""

    def fire(self) -> None:
        self._call()


class EventTimer(Timer):
    """Timer that passes ``event`` to its function. It needs less memory than a timer with a ``partial``."""

    __slots__ = ("_event",)

    def __init__(self, call: Callable[[Any], None], event: object) -> None:
        super().__init__(call)
        self._event = event

    def fire(self) -> None:
        self._call(self._event)


class Timers:
    """All timers of a process. Times are those of ``clock.now_ns``, in nanoseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._slots: dict[int, list[Timer]] = {}
        """Slot -> timers that are due by then. A timer that also has an entry in an earlier slot is skipped."""
        self._order: list[int] = []
        """Heap of the slots."""
        self._handle: asyncio.TimerHandle | None = None
        self._handle_ns = 0
        self._due: deque[Timer] = deque()
        """Timers that are due. Each timer is in it at most once."""
        self._firing: asyncio.Handle | None = None
        self._closed = False

    def set(self, timer: Timer, at_ns: int) -> None:
        """Let ``timer`` fire at the time ``at_ns``, rounded up to the grid. An earlier setting of the timer is replaced."""
        if at_ns - clock.now_ns() > FAR_NS:
            at_ns = -(-at_ns // FAR_GRID_NS) * FAR_GRID_NS
        timer._due_ns = at_ns
        slot_ns = _round_up(at_ns)
        if timer._queued_ns is None or slot_ns < timer._queued_ns:
            self._push(timer, slot_ns)

    def cancel(self, timer: Timer) -> None:
        """Cancel ``timer``. The call has no effect if the timer is not set."""
        timer._due_ns = None

    def _push(self, timer: Timer, slot_ns: int) -> None:
        if self._closed:
            return
        timer._queued_ns = slot_ns
        slot = self._slots.get(slot_ns)
        if slot is not None:
            slot.append(timer)
            return
        self._slots[slot_ns] = [timer]
        heapq.heappush(self._order, slot_ns)
        if self._handle is None or slot_ns < self._handle_ns:
            self._arm(slot_ns)

    def _arm(self, slot_ns: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle_ns = slot_ns
        delay_s = max(0, slot_ns - clock.now_ns()) / 1e9
        self._handle = self._loop.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now_ns = clock.now_ns()
        order, due = self._order, []
        while order and order[0] <= now_ns:
            slot_ns = heapq.heappop(order)
            for timer in self._slots.pop(slot_ns):
                if timer._queued_ns != slot_ns:
                    continue  # an earlier entry has replaced this one
                timer._queued_ns = None
                wanted_ns = timer._due_ns
                if wanted_ns is None:
                    continue
                if wanted_ns > now_ns:
                    self._push(timer, _round_up(wanted_ns))
                else:
                    due.append(timer)
        if order and (self._handle is None or order[0] < self._handle_ns):
            self._arm(order[0])
        due.sort(key=_deadline_of)
        self._due.extend(due)
        if self._firing is None:
            self._fire_due()

    def _fire_due(self) -> None:
        """Fire due timers for at most ``SLICE_NS``. The remaining ones fire in the next turns of the event loop."""
        self._firing = None
        due, end_ns = self._due, clock.now_ns() + SLICE_NS
        while due:
            timer = due.popleft()
            now_ns = clock.now_ns()
            if timer._due_ns is not None and timer._due_ns <= now_ns:  # an earlier timer may have canceled or moved it
                timer._due_ns = None
                timer.fire()
            if now_ns >= end_ns:
                break
        if due and not self._closed and self._firing is None:
            self._firing = self._loop.call_soon(self._fire_due)

    def close(self) -> None:
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._slots.clear()
        self._order.clear()
        self._due.clear()
        if self._firing is not None:
            self._firing.cancel()
            self._firing = None


def _deadline_of(timer: Timer) -> int:
    return timer._due_ns or 0


def _round_up(at_ns: int) -> int:
    return -(-at_ns // GRID_NS) * GRID_NS
