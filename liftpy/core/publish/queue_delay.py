"""Lateness: from when on publishes are refused for having waited too long, and until when. Pure.

Goal: a burst is absorbed, a standing queue is not. Who waits in one is answered late, lets nobody in sooner by that, and who is
refused behind it hears his no as late. Constraint: senders come in waves, and a machine stands still for moments: neither is a
standing queue.

Algorithm (as CoDel's, which drops: a target that holds while a queue stands): what waits unread has an age. From a calm the bound
is ``late_ns``. Beyond it the queue stands: all are refused until the age is a sixteenth of that, and from then on again beyond an
eighth. That bound regains an eighth of the time that passes without a refusal, up to what it was. Under a flood the queue has grown
to it long before; after a flood a moment's wait is soon nothing again.

Worked example, ``late_ns`` 1 s. A burst waits 900 ms: all is taken. One waits 1,001 ms: refused, until it is 62. More comes than is
taken: at about 140 ms refused again, 10 ms later taken again, and so on. The flood ends; 4 s later something waits 500 ms: taken,
the bound is 625.

The queue may stand behind the log as well, where followers get too little of a processor that a flood has: what was taken waits for its
commit, and each more that is taken waits longer, while nothing waits unread. ``Unanswered`` sees that of one partition. In a calm its
queue stands when answers go out, and for a quarter of ``late_ns`` the oldest that is still without one was always older than
``late_ns``. A follower that died is waited for: then the oldest is the same one all the time. While the node's bound is short, half of
``late_ns`` is too old already. Both until a quarter, and the node's bound stays short meanwhile.
"""

from __future__ import annotations

_SHORT_PARTS = 8
"""The bound while a queue stands: one of so many parts of that in a calm. It is refused until half of that."""
_REGAINS_PARTS = 8
"""One of so many parts of the time without a refusal is added to it."""


class Lateness:
    """``late_ns``: what may wait in a calm; 0: nothing is ever late. All times are monotonic, in ns."""

    __slots__ = ("_late_ns", "_refused_ns", "_short_ns", "is_late")

    def __init__(self, late_ns: int) -> None:
        self._late_ns = late_ns
        self._short_ns = late_ns // _SHORT_PARTS
        self._refused_ns = -1
        """When it was late last; -1: never."""
        self.is_late = False

    def bound_ns(self, now_ns: int) -> int:
        """What may wait unread as long as nothing is late."""
        if self._refused_ns < 0:
            return self._late_ns
        return min(self._short_ns + (now_ns - self._refused_ns) // _REGAINS_PARTS, self._late_ns)

    def refused(self, now_ns: int) -> None:
        """Somebody was, for another reason of the same cause."""
        self._refused_ns = now_ns

    def look(self, waited_ns: int, now_ns: int) -> bool:
        """The oldest that waits unread has done so for ``waited_ns``; whether who waits for an answer is to be refused."""
        if self.is_late:
            self._refused_ns = now_ns
            self.is_late = 2 * waited_ns > self._short_ns
        elif self._late_ns:
            self.is_late = waited_ns > self.bound_ns(now_ns)
        return self.is_late


class Unanswered:
    """Of one partition: whether what was taken of it waits for too long. Times as of ``Lateness``."""

    __slots__ = ("_moved_ns", "_oldest_ns", "is_late")

    def __init__(self) -> None:
        self.is_late = False
        self._oldest_ns = 0
        """When the oldest was taken, as last seen; 0: it was not older than ``late_ns``."""
        self._moved_ns = 0
        """When it was another one for the first time since then; 0: not yet."""

    def look(self, since_ns: int, now_ns: int, late_ns: int, *, is_pressed: bool) -> bool:
        """The oldest was taken at ``since_ns``, 0: none waits; ``late_ns`` 0: nothing is late; ``is_pressed``: the node refuses, or did
        lately."""
        waited_ns = now_ns - since_ns
        if not since_ns or not late_ns or waited_ns <= late_ns // 4:
            self._oldest_ns, self.is_late = 0, False
            return False
        stands = self._stands(since_ns, waited_ns, now_ns, late_ns)
        self.is_late = self.is_late or stands or (is_pressed and waited_ns > late_ns // 2)
        return self.is_late

    def _stands(self, since_ns: int, waited_ns: int, now_ns: int, late_ns: int) -> bool:
        """Whether it is a queue that moves, and is too long all the same."""
        if waited_ns <= late_ns:
            self._oldest_ns = 0
        elif not self._oldest_ns:
            self._oldest_ns, self._moved_ns = since_ns, 0
        elif since_ns != self._oldest_ns:
            self._oldest_ns = since_ns
            self._moved_ns = self._moved_ns or now_ns
            return now_ns - self._moved_ns > late_ns // 4
        return False
