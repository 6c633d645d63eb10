"""Timers by log time: part of a service's replicated state, so ordered by (time, name) alone. Pure.

A timer fires before the first record whose log time is at or past its own: the same place in the log on every node. On a stream
where nothing arrives, log time stands still and nothing fires.
"""

from __future__ import annotations

import heapq

MAX_TIMERS = 1_000_000
MAX_NAME_BYTES = 1024
NEVER = 1 << 63
"""Above every time that a timer may have."""


class LogTimers:
    """The timers of one service. ``set`` moves a timer that is set already."""

    def __init__(self) -> None:
        self._at_ns: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        """(time, name); entries that ``_at_ns`` does not confirm are of timers that were moved or cancelled."""

    def __len__(self) -> int:
        return len(self._at_ns)

    def set(self, name: str, at_ns: int) -> None:
        """Fire the timer ``name`` at ``at_ns``. Raise ValueError beyond a limit."""
        if not 0 < len(name.encode()) <= MAX_NAME_BYTES or not -(1 << 63) <= at_ns < 1 << 63:
            raise ValueError(f"Invalid timer. Use a name of 1 to {MAX_NAME_BYTES} bytes and a time in nanoseconds (int64).")
        if name not in self._at_ns and len(self._at_ns) >= MAX_TIMERS:
            raise ValueError(f"Too many timers: at most {MAX_TIMERS}. Cancel timers that are no longer needed.")
        self._at_ns[name] = at_ns
        heapq.heappush(self._heap, (at_ns, name))
        if len(self._heap) > 64 + 2 * len(self._at_ns):
            self._heap = sorted((at, name) for name, at in self._at_ns.items())

    def cancel(self, name: str) -> None:
        """Forget it; not set is fine."""
        self._at_ns.pop(name, None)

    @property
    def due_ns(self) -> int:
        """Log time before which no timer is due, ``NEVER`` without timers. It may be that of a canceled timer."""
        return self._heap[0][0] if self._heap else NEVER

    def pop_due(self, now_ns: int) -> tuple[int, str] | None:
        """The first timer at or before ``now_ns``, taken out, or None."""
        while self._heap and self._heap[0][0] <= now_ns:
            at_ns, name = heapq.heappop(self._heap)
            if self._at_ns.get(name) == at_ns:
                del self._at_ns[name]
                return at_ns, name
        return None

    def entries(self) -> tuple[tuple[int, str], ...]:
        """Return (time, name) of all timers in order, for a snapshot."""
        return tuple(sorted((at, name) for name, at in self._at_ns.items()))
