"""Decides whether a node can serve its leaderships with its current NATS connections. Pure.

Without the replication connection, the node is cut off at once. Without the publish connection, it is cut off only
after a while: NATS may close it as a slow consumer under load, it reconnects soon, and an election would not help.
"""

from __future__ import annotations

from liftpy.config import NS_PER_S

REPLICATION, INGEST = "replication", "ingest"
"""The connections that leaders need, by name."""
INGEST_GRACE_NS = 10 * NS_PER_S
GRACES_NS = {REPLICATION: 0, INGEST: INGEST_GRACE_NS}
"""For how long each may be down before it counts."""


class DataPath:
    """Connection state of one node. Each call returns whether the data path is up if that has changed, else None."""

    def __init__(self) -> None:
        self._down_ns: dict[str, int] = {}
        """Connections that are down -> when that counts."""
        self._is_up = True

    def link_changed(self, link: str, is_up: bool, now_ns: int) -> bool | None:
        """A connection was lost, or is back."""
        if is_up:
            self._down_ns.pop(link, None)
        else:
            self._down_ns.setdefault(link, now_ns + GRACES_NS[link])
        return self.due(now_ns)

    def due(self, now_ns: int) -> bool | None:
        """Update the state to the time ``now_ns``. Return a change of the verdict, None for no change."""
        is_up = all(now_ns < at_ns for at_ns in self._down_ns.values())
        if is_up == self._is_up:
            return None
        self._is_up = is_up
        return is_up

    def next_ns(self, now_ns: int) -> int | None:
        """Return when to call ``due`` next, None: not before a connection changes."""
        return min((at_ns for at_ns in self._down_ns.values() if at_ns > now_ns), default=None)
