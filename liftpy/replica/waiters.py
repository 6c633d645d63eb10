"""Data waiters: followers that sit at the leader's log end. Each is told once when there is more, then forgotten.

A follower that ``awaits_more`` is told by a second answer to the fetch that was answered with nothing: the records themselves. Any
other is woken, and fetches. Whoever waits for a second answer hears of a raised HW the same way, and waits on.
"""

from __future__ import annotations

from liftpy.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Waiter:
    """A follower that has everything below ``end_offset`` (exclusive) and was answered with nothing."""

    replica: str
    end_offset: int
    max_bytes: int
    """Bound of its second answer; 0: it wants to be woken instead."""


class Waiters:
    """At most one waiter per follower."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, Waiter] = {}

    def register(self, waiter: Waiter) -> None:
        """From now on this is the waiter of its replica."""
        self._waiting[waiter.replica] = waiter

    def forget(self, replica: str) -> None:
        """It fetches, or is no replica any more."""
        self._waiting.pop(replica, None)

    def of(self, replica: str) -> Waiter | None:
        """The waiter of ``replica``, None when it is not idle at the log end."""
        return self._waiting.get(replica)

    def signal(self, log_end_offset: int) -> list[Waiter]:
        """Those who have less than ``log_end_offset``, by replica; they wait no longer."""
        if not self._waiting:
            return []
        told = sorted((w for w in self._waiting.values() if w.end_offset < log_end_offset), key=lambda w: w.replica)
        for waiter in told:
            del self._waiting[waiter.replica]
        return told
