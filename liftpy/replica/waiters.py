"""Data waiters: followers that sit at the leader's log end. Each is told once when there is more, then forgotten."""

from __future__ import annotations


class Waiters:
    """At most one waiter per follower."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}  # replica -> exclusive end offset that it has

    def register(self, replica: str, end_offset: int) -> None:
        """``replica`` has everything below ``end_offset`` and was answered with nothing."""
        self._waiting[replica] = end_offset

    def forget(self, replica: str) -> None:
        """It fetches, or is no replica any more."""
        self._waiting.pop(replica, None)

    def is_waiting(self, replica: str) -> bool:
        """Whether ``replica`` is idle at the log end."""
        return replica in self._waiting

    def signal(self, flushed_end_offset: int) -> list[str]:
        """The followers that have less than ``flushed_end_offset``; they wait no longer."""
        if not self._waiting:
            return []
        woken = sorted(replica for replica, end in self._waiting.items() if end < flushed_end_offset)
        for replica in woken:
            del self._waiting[replica]
        return woken
