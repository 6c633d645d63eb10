"""Back-off with jitter from a seed: the same seed gives the same waits, two replicas give different ones.

Goal: failed requests retry soon, then less and less often, and a thousand followers of a dead node do not retry together.
Algorithm: the n-th failure in a row waits ``minimum * 2**n``, at most ``maximum``, times a factor in [0.5, 1) from splitmix64.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def splitmix64(state: int) -> tuple[int, int]:
    """(next state, a well mixed 64-bit number) of Steele, Lea and Flood's generator."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return state, mixed ^ (mixed >> 31)


class Backoff:
    """Waits after failures in a row; times in ns."""

    __slots__ = ("_failures", "_maximum_ns", "_minimum_ns", "_state")

    def __init__(self, minimum_ns: int, maximum_ns: int, seed: int) -> None:
        self._minimum_ns = minimum_ns
        self._maximum_ns = maximum_ns
        self._state = seed & _MASK
        self._failures = 0  # in a row

    def next_ns(self) -> int:
        """The wait after one more failure."""
        base = min(self._minimum_ns << min(self._failures, 30), self._maximum_ns)
        self._failures += 1
        return self.jittered_ns(base)

    def jittered_ns(self, base_ns: int) -> int:
        """``base_ns`` times a factor in [0.5, 1)."""
        self._state, number = splitmix64(self._state)
        return base_ns // 2 + base_ns * (number >> 32) // (1 << 33)

    def succeeded(self) -> None:
        """The next failure is the first again."""
        self._failures = 0
