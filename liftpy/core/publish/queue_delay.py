"""``Lateness``: rejects publishes while the queue delay is too high, as CoDel does. Pure.

A burst is accepted, a standing queue is not: in a standing queue every publish is answered late, and the throughput
does not increase. When the oldest unprocessed publish is older than ``late_ns``, publishes with reply subject are
rejected until the age is below 1/16 of it, and then again above 1/8. The limit returns to ``late_ns`` gradually: by 1/8
of the time without a rejection.

Example with ``late_ns`` 1 s: a burst waits 900 ms and is accepted. At 1,001 ms publishes are rejected until the age is
62 ms. During an overload, rejection starts again at about 140 ms. 4 s after the overload, a wait of 500 ms is accepted,
and the limit is 625 ms.

``Unanswered`` detects the same for acks of one partition, when followers are too slow: the oldest publish without an
ack was always older than ``late_ns`` for a quarter of ``late_ns``.
"""

from __future__ import annotations

_SHORT_PARTS = 8
"""The bound while a queue stands: one of so many parts of that in a calm. It is refused until half of that."""
_REGAINS_PARTS = 8
"""One of so many parts of the time without a refusal is added to it."""


class Lateness:
    """Limit of the queue delay. ``late_ns``: limit without overload, 0: none. All times are monotonic nanoseconds."""

    __slots__ = ("_late_ns", "_refused_ns", "_short_ns", "is_late")

    def __init__(self, late_ns: int) -> None:
        self._late_ns = late_ns
        self._short_ns = late_ns // _SHORT_PARTS
        self._refused_ns = -1
        """When it was late last; -1: never."""
        self.is_late = False

    def bound_ns(self, now_ns: int) -> int:
        """Return how long a publish may wait unread before the node counts as late."""
        if self._refused_ns < 0:
            return self._late_ns
        return min(self._short_ns + (now_ns - self._refused_ns) // _REGAINS_PARTS, self._late_ns)

    def refused(self, now_ns: int) -> None:
        """Note a rejection that has the same cause."""
        self._refused_ns = now_ns

    def look(self, waited_ns: int, now_ns: int) -> bool:
        """Check the oldest unread publish, which has waited for ``waited_ns``.

        Return whether publishes with a reply subject must be rejected.
        """
        if self.is_late:
            self._refused_ns = now_ns
            self.is_late = 2 * waited_ns > self._short_ns
        elif self._late_ns:
            self.is_late = waited_ns > self.bound_ns(now_ns)
        return self.is_late


class Unanswered:
    """Detects that acks of one partition are too late."""

    __slots__ = ("_moved_ns", "_oldest_ns", "is_late")

    def __init__(self) -> None:
        self.is_late = False
        self._oldest_ns = 0
        """When the oldest was taken, as last seen; 0: it was not older than ``late_ns``."""
        self._moved_ns = 0
        """When it was another one for the first time since then; 0: not yet."""

    def look(self, since_ns: int, now_ns: int, late_ns: int, *, is_pressed: bool) -> bool:
        """Check the oldest unanswered publish.

        ``since_ns``: its arrival, 0 for none. ``late_ns`` 0: never late. ``is_pressed``: the node rejects now or did recently.
        """
        waited_ns = now_ns - since_ns
        if not since_ns or not late_ns or waited_ns <= late_ns // 4:
            self._oldest_ns, self.is_late = 0, False
            return False
        stands = self._stands(since_ns, waited_ns, now_ns, late_ns)
        self.is_late = self.is_late or stands or (is_pressed and waited_ns > late_ns // 2)
        return self.is_late

    def _stands(self, since_ns: int, waited_ns: int, now_ns: int, late_ns: int) -> bool:
        """Return whether the queue moves but is still too long."""
        if waited_ns <= late_ns:
            self._oldest_ns = 0
        elif not self._oldest_ns:
            self._oldest_ns, self._moved_ns = since_ns, 0
        elif since_ns != self._oldest_ns:
            self._oldest_ns = since_ns
            self._moved_ns = self._moved_ns or now_ns
            return now_ns - self._moved_ns > late_ns // 4
        return False
