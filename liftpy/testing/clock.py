"""Virtual time: a heap of callbacks. The only clock of a simulated cluster; ties are broken by the order of scheduling."""

from __future__ import annotations

import heapq
from collections.abc import Callable

MS = 1_000_000
S = 1_000_000_000
START_NS = 1_000 * S
"""Not zero, so that a forgotten default stands out."""


class Timer:
    """A callback that can be cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """It will not be called."""
        self.callback = None


class Clock:
    """``now_ns``: virtual monotonic time, the same on every node; nodes differ in their wall clocks only."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.events = 0
        """Callbacks that have run."""
        self._heap: list[tuple[int, int, Timer]] = []
        self._scheduled = 0

    def at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` at ``at_ns``, or now if that has passed."""
        timer = Timer(callback)
        self._scheduled += 1
        heapq.heappush(self._heap, (max(at_ns, self.now_ns), self._scheduled, timer))
        return timer

    def after(self, delay_ns: int, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` in ``delay_ns``."""
        return self.at(self.now_ns + delay_ns, callback)

    def step(self) -> bool:
        """Run the next callback; False when there is none."""
        while self._heap:
            at_ns, _, timer = heapq.heappop(self._heap)
            callback = timer.callback
            if callback is None:
                continue
            self.now_ns = at_ns
            self.events += 1
            timer.callback = None
            callback()
            return True
        return False

    def run_until(self, until_ns: int) -> None:
        """Run everything that is due up to ``until_ns``."""
        while self._heap and self._heap[0][0] <= until_ns:
            self.step()
        self.now_ns = max(self.now_ns, until_ns)
