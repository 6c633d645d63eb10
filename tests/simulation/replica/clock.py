"""Virtual time: a heap of callbacks; ties are broken by the order of scheduling. Each machine has a clock of its own over it."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from liftpy.core.base.invariants import check

MS = 1_000_000
S = 1_000_000_000
START_NS = 1_000 * S
"""Start of the time. It is not zero, so that a forgotten default value is noticed."""
_MILLION = 1_000_000
MAX_EVENTS_AT_ONCE = 100_000
"""More at one instant: something calls itself again and again without waiting."""


class SimTimer:
    """A callback that can be cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the call."""
        self.callback = None


class Clock:
    """``now_ns``: true time, which nobody but the network, the disks and the metadata leader goes by."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.events = 0
        """Callbacks that have run."""
        self._heap: list[tuple[int, int, SimTimer]] = []
        self._scheduled = 0
        self._moved_at = 0
        """``events`` when time last moved."""

    def at(self, at_ns: int, callback: Callable[[], None]) -> SimTimer:
        """Call ``callback`` at ``at_ns``, or now if that has passed."""
        timer = SimTimer(callback)
        self._scheduled += 1
        heapq.heappush(self._heap, (max(at_ns, self.now_ns), self._scheduled, timer))
        return timer

    def after(self, delay_ns: int, callback: Callable[[], None]) -> SimTimer:
        """Call ``callback`` in ``delay_ns``."""
        return self.at(self.now_ns + delay_ns, callback)

    def step(self) -> bool:
        """Run the next callback. Return False if there is none."""
        while self._heap:
            at_ns, _, timer = heapq.heappop(self._heap)
            callback = timer.callback
            if callback is None:
                continue
            if at_ns > self.now_ns:
                self.now_ns, self._moved_at = at_ns, self.events
            self.events += 1
            check(self.events - self._moved_at < MAX_EVENTS_AT_ONCE, "L6", "time stands still at", self.now_ns)
            timer.callback = None
            callback()
            return True
        return False

    def run_until(self, until_ns: int) -> None:
        """Run all callbacks due up to ``until_ns``."""
        while self._heap and self._heap[0][0] <= until_ns:
            self.step()
        self.now_ns = max(self.now_ns, until_ns)


class MachineClock:
    """The monotonic clock of one machine: it goes on while the host is suspended, and runs ``ppm`` millionths faster than true time."""

    def __init__(self, clock: Clock, ppm: int = 0) -> None:
        self._clock = clock
        self.rate = _MILLION + ppm
        """Difference of its rate from the true time, in millionths."""

    def now_ns(self) -> int:
        """Return the time of the machine."""
        return START_NS + (self._clock.now_ns - START_NS) * self.rate // _MILLION

    def true_ns(self, at_ns: int) -> int:
        """Return the true time at which the machine's clock shows ``at_ns``."""
        return START_NS + -(-(at_ns - START_NS) * _MILLION // self.rate)
