"""How many records a worker of a queue has here beyond those that it asked for. Pure.

Goal: who works record by record does not wait for a command for each take. Constraint: what lies here another worker could do; a slow
one takes what it asks for and nothing else. Algorithm: what was handed on in the last takes gives a rate; ahead is what goes at this
rate in a quarter of a second, at most ``most``, or one more take of the same size. The first takes, and the first after a pause, have
nothing ahead.

Worked example: one record at a time, each done in 5 ms: after three takes 200 records a second, 50 ahead. One record at a time, each
done in 2 s: 0.5 a second, none ahead.
"""

from __future__ import annotations

from collections import deque

HORIZON_S = 0.25
_TAKES = 8
"""That the rate is of, at most."""
_FEWEST = 3
_PAUSE_NS = 2_000_000_000
_NS_PER_S = 1_000_000_000


class TakePace:
    """``most``: records ahead at most, where takes are smaller. Times are monotonic, in ns."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: deque[tuple[int, int]] = deque(maxlen=_TAKES + 1)
        """(when, how many) of the last takes, the newest last."""

    def took(self, count: int, now_ns: int) -> None:
        """So many were handed on now."""
        if self._taken and now_ns - self._taken[-1][0] > _PAUSE_NS:
            self._taken.clear()
        self._taken.append((now_ns, count))

    def ahead(self, now_ns: int) -> int:
        """How many to have here beyond those that are asked for now."""
        if len(self._taken) <= _FEWEST or now_ns - self._taken[-1][0] > _PAUSE_NS:
            return 0
        began_ns = self._taken[0][0]
        done = sum(count for _, count in self._taken) - self._taken[-1][1]  # the last ones are being worked on
        rate = done * _NS_PER_S / max(1, now_ns - began_ns)
        return min(int(rate * HORIZON_S), max(self._most, self._taken[-1][1]))
