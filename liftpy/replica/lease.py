"""The lease: until when this node may speak for the partitions that it leads [D22].

Goal: a leader that has been replaced, but has not heard of it (paused, cut off), acknowledges nothing.
Constraint: the metadata leader gives a node's leaderships away only when its session has ended, ``session_s`` after the last
heartbeat that it RECEIVED. The lease runs ``lease_s < session_s`` from when that heartbeat was SENT, on this node's own
monotonic clock, so it ends before the session does, whatever the answer's way back took. An answer counts only when the
local image shows everything that the answer was made on (``MetadataHeard``). From feature level 5 on the answer says how long the
lease is: whoever answered knows of no other one.
"""

from __future__ import annotations


class Lease:
    """Times in ns, monotonic."""

    __slots__ = ("_length_ns", "_until_ns")

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._until_ns: int | None = None  # exclusive; None: never granted

    def heard(self, sent_ns: int, lease_ns: int = 0) -> None:
        """A heartbeat sent at ``sent_ns`` was answered, with a lease of ``lease_ns``; 0: of this node's own length. Answers may arrive
        in any order."""
        until_ns = sent_ns + (lease_ns or self._length_ns)
        if self._until_ns is None or until_ns > self._until_ns:
            self._until_ns = until_ns

    def is_current(self, now_ns: int) -> bool:
        """Whether acknowledgements may leave at ``now_ns``."""
        return self._until_ns is not None and now_ns < self._until_ns

    def until_ns(self, now_ns: int) -> int:
        """When it runs out, or ``now_ns`` if it has."""
        return self._until_ns if self._until_ns is not None and self._until_ns > now_ns else now_ns
