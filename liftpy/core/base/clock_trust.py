"""Decides whether a node may trust its wall clock.

Retention by age needs a trusted clock, because it removes committed records.

Goal: a node whose clock is years ahead, or jumps, removes nothing for its age; one whose clock is right goes on, and one that was set
right, or that slept, goes on as soon as others agree. Nor does a leader stamp records by a wrong clock where others know better: what
it stamps in the past is too old at once, everywhere. Constraint: nobody's time is believed alone, no message waits for it, and a node
that is alone still removes what is old.

Algorithm: a clock is known by its offset, wall time less this host's monotonic time, which goes on while the host sleeps. So a jump of
the own clock shows at once, against what was heard before it. ``PEERS`` other live nodes are asked now and then. The own clock is
trusted

- while a majority of all these clocks, itself included, agrees with it within ``BOUND_NS``;
- where nobody disagrees and too few answer, while it has gone with the monotonic clock since a majority agreed with it last;
- where no other node is live, while it has not jumped; ``HOLD_NS`` after a jump it is taken as it is. So it is that long after a start
  among nodes that are all down; a node that was never one of several need not wait.

In all other cases it is in doubt. A node that answers without its time, of an older version, has no say. Where a clock is in doubt,
and others that agree with each other are a majority of all, records are stamped with their time.

Worked example: a, b and c agree. b is set ten years ahead: its offset differs from both others', 1 of 3 clocks agree: in doubt. At
a and c 2 of 3 agree. b is set right: 3 of 3. a and b alone, and b jumps: 1 of 2 agree on either side, no majority: both are in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import NamedTuple

from liftpy.config import NS_PER_S

BOUND_NS = 60 * NS_PER_S
"""By how much clocks that agree may differ, and how far one may be from where the monotonic clock would have it."""
PEERS = 6
"""Others that are asked, at most: more tell nothing new."""
ASK_EVERY_S = 10.0
FRESH_NS = 60 * NS_PER_S
"""An answer counts for so long."""
HOLD_NS = 3600 * NS_PER_S
"""A clock that nobody can compare is in doubt for so long after a jump."""
SLOW_NS = 2 * NS_PER_S
"""An answer that took longer says too little about when it was given."""
NO_AGE_NS = 0
"""The wall time by which nothing is too old."""

_UNTOLD = "no other node has told its time"


class _ToldTime(NamedTuple):
    """Clock answer of another node.

    ``offset_ns``: difference to our clock, None if the node did not report its time. ``at_ns``: monotonic time of the request.
    """

    offset_ns: int | None
    at_ns: int


class ClockTrust:
    """Trust in the wall clock of one process.

    Wall times are ns since 1970. ``now_ns`` is a monotonic clock that also runs while the host sleeps.
    """

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.why = _UNTOLD
        """Why it is in doubt, as of the last look; '': it is trusted."""
        self.is_wrong = False
        """It is in doubt since it jumped or others disagree, and not for want of answers."""
        self._others_ns: int | None = None
        """The offset on which a majority agrees without this one, as of the last look; None: it does not."""
        self.skew_ns = 0
        """By how much it is ahead of the others, their median, as of the last look; 0 where nobody told."""
        self._told: dict[str, _ToldTime] = {}
        self._trusted_ns: int | None = None
        """Its offset when a majority agreed with it last, or when it was trusted alone."""
        self._by_others = False
        """A majority did."""
        self._jumped: tuple[int, int] | None = None
        """The offset that it jumped to while nobody could compare it, and when."""

    def peers(self, nodes: Mapping[str, bool]) -> list[str]:
        """Return the nodes to compare clocks with: the next live ones behind this node, in a ring of all ``nodes`` (True:
        live)."""
        names = sorted(name for name, is_live in nodes.items() if is_live and name != self.node_id)
        behind = [name for name in names if name > self.node_id]
        return [*behind, *names[: len(names) - len(behind)]][:PEERS]

    def told(self, node: str, wall_ns: int | None, asked_ns: int, answered_ns: int) -> None:
        """``node`` has answered, with its wall time or without (None)."""
        if answered_ns - asked_ns <= SLOW_NS:
            offset_ns = None if wall_ns is None else wall_ns - (asked_ns + answered_ns) // 2
            self._told[node] = _ToldTime(offset_ns, asked_ns)

    def time_of_age_ns(self, wall_ns: int, now_ns: int, nodes: Mapping[str, bool]) -> int:
        """Return the time for age calculations: ``wall_ns``, or ``NO_AGE_NS`` while the clock is not trusted.

        ``nodes``: registered nodes, True if live.
        """
        offset_ns, peers = wall_ns - now_ns, self.peers(nodes)
        self._told = {name: one for name, one in self._told.items() if name in peers and now_ns - one.at_ns <= FRESH_NS}
        offsets = [one.offset_ns for one in self._told.values() if one.offset_ns is not None]
        self.skew_ns = offset_ns - median_low(offsets) if offsets else 0
        others = len(peers) - (len(self._told) - len(offsets))
        self._others_ns = None
        if others:
            self._jumped = None
            self.why, self.is_wrong = self._compared(offset_ns, offsets, others)
        else:
            is_one_of_many = len(self._told) < len(set(nodes) - {self.node_id})
            self.why, self.is_wrong = self._alone(offset_ns, now_ns, is_one_of_many)
        return NO_AGE_NS if self.why else wall_ns

    def stamp_ns(self, wall_ns: int, now_ns: int) -> int:
        """The time that records get, both clocks read just now: ``wall_ns``, or that of others as of the last look."""
        return wall_ns if self._others_ns is None else now_ns + self._others_ns

    def _compared(self, offset_ns: int, offsets: list[int], others: int) -> tuple[str, bool]:
        """Compare our clock with the reported ``offsets`` of ``others``.

        Return (reason for distrust or '', whether our clock looks wrong).
        """
        near = sum(abs(other - offset_ns) <= BOUND_NS for other in offsets)
        if 2 * (1 + near) > 1 + others:
            self._trusted_ns, self._by_others = offset_ns, True
            return "", False
        agree = [one for one in offsets if 2 * sum(abs(other - one) <= BOUND_NS for other in offsets) > 1 + others]
        self._others_ns = median_low(agree) if agree else None
        if near < len(offsets):
            return f"{len(offsets) - near} of {others} other clocks differ by more than {BOUND_NS // NS_PER_S} s", True
        if not self._by_others:
            return f"{len(offsets)} of {others} other nodes have told their time", False
        why = self._moved(offset_ns)
        return why, bool(why)

    def _alone(self, offset_ns: int, now_ns: int, is_one_of_many: bool) -> tuple[str, bool]:
        """Judge our clock while no other node is live.

        ``is_one_of_many``: other nodes exist, and may later report another time. Return as ``_compared``.
        """
        is_new = self._trusted_ns is None
        why = _UNTOLD if is_new and is_one_of_many else self._moved(offset_ns)
        if why and (self._jumped is None or abs(offset_ns - self._jumped[0]) > BOUND_NS):
            self._jumped = offset_ns, now_ns
        if why and self._jumped is not None and now_ns - self._jumped[1] < HOLD_NS:
            return why, not is_new
        self._by_others = self._by_others and not why
        self._trusted_ns, self._jumped = offset_ns, None
        return "", False

    def _moved(self, offset_ns: int) -> str:
        """Return a text if the wall clock moved too far against the monotonic clock since it was last trusted, else ''."""
        moved_ns = 0 if self._trusted_ns is None else offset_ns - self._trusted_ns
        return (
            f"it jumped by {moved_ns / NS_PER_S:+.0f} s, and nobody says that it is right" if abs(moved_ns) > BOUND_NS else ""
        )
