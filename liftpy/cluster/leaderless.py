"""Leaderless: for how long a member of the group has known no leader, in its own waking time."""

from __future__ import annotations

LONG_NS = 2_000_000_000
"""An election, or coming back after a pause, takes less."""
_STOOD_STILL_NS = 1_000_000_000
"""Ticks come every few ms: with more between two of them, this process stood still."""


class Leaderless:
    """``for_long`` is meant to be read between ticks: it does not grow while none come."""

    def __init__(self) -> None:
        self._since_ns = -1  # -1: there is a leader, or no tick has been
        self._ticked_ns = 0

    def ticked(self, there_is_a_leader: bool, now_ns: int) -> None:
        """To be called on every tick; ``now_ns`` is monotonic."""
        if there_is_a_leader:
            self._since_ns = -1
        elif self._since_ns < 0 or now_ns - self._ticked_ns > _STOOD_STILL_NS:
            self._since_ns = now_ns
        self._ticked_ns = now_ns

    @property
    def for_long(self) -> bool:
        """Whether every tick of the last ``LONG_NS`` found no leader."""
        return self._since_ns >= 0 and self._ticked_ns - self._since_ns >= LONG_NS
