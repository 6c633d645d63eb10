"""Decides whether a node may trust its wall clock. Pure.

Retention by age needs a trusted clock, because it removes committed records.

Goal: a node whose clock jumps, or is years ahead, removes nothing because of its age. A node whose clock was corrected, or
that slept, continues as soon as other nodes agree. A leader does not stamp records with a wrong time if other nodes know
the right one. Constraint: no single clock is trusted, no message waits for the check, and a node that is alone still
removes old records.

Algorithm: a clock is described by its offset: wall time minus the monotonic time of the host, which includes sleep. So a
jump of the own clock shows at once. The node asks ``PEERS`` other live nodes now and then. It trusts its own clock

- while a majority of all these clocks, its own included, agrees within ``BOUND_NS``,
- if no clock disagrees and too few nodes answer, while it has followed the monotonic clock since a majority last
  agreed,
- if no other node is live, while it has not jumped. ``HOLD_NS`` after a jump the node trusts its clock again. A node
  waits as long after a start if all other nodes are down. A node of a cluster that never had another node does not wait.

In all other cases the clock is in doubt. A node of an older version answers without its time and does not count. While the own
clock is in doubt, records get the time on which a majority of the other clocks agrees. If other nodes are live and no such
majority is known, they get the time that the node trusted last, continued by the monotonic clock. A node that is alone uses
its own clock: perhaps it was just corrected.

Worked example: a, b and c agree. b is set ten years ahead. Its offset differs from both others, so 1 of 3 clocks agrees and
b is in doubt. At a and c 2 of 3 agree. b is corrected: 3 of 3. If only a and b run and b jumps, 1 of 2 agrees on either
side. There is no majority, so both are in doubt. b stamps records as if it had not jumped.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import NamedTuple

from liftpy.config import NS_PER_S

BOUND_NS = 60 * NS_PER_S
"""Maximum difference between clocks that agree, and between a clock and the monotonic clock, in nanoseconds."""
PEERS = 6
"""Maximum number of other nodes that are asked. More answers would not change the decision."""
ASK_EVERY_S = 10.0
FRESH_NS = 60 * NS_PER_S
"""Time for which an answer is used, in nanoseconds."""
HOLD_NS = 3600 * NS_PER_S
"""Time for which a clock without peers is in doubt after a jump, in nanoseconds."""
SLOW_NS = 2 * NS_PER_S
"""Maximum time between a request and its answer, in nanoseconds. A slower answer is ignored, because its time is imprecise."""
NO_AGE_NS = 0
"""Wall time that is used while the clock is not trusted. No record is too old by it."""

_NO_TIME_REPORTS = "no other node has told its time"


class _ReportedTime(NamedTuple):
    """Clock of another node, from its answer.

    ``offset_ns``: its wall time minus our monotonic time, in ns. None: the answer has no time. ``at_ns``: monotonic time of
    the request.
    """

    offset_ns: int | None
    at_ns: int


class ClockTrust:
    """Decides whether one process may trust its wall clock.

    Wall times are ns since 1970. ``now_ns`` is a monotonic clock that also runs while the host sleeps.
    """

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.why = _NO_TIME_REPORTS
        """Reason of the doubt at the last check. '': the clock is trusted."""
        self.is_wrong = False
        """True if the clock is in doubt because it jumped or others disagree, and not because answers are missing."""
        self._stamp_offset_ns: int | None = None
        """Offset for timestamps while the clock is in doubt. None: the wall clock of this node is used."""
        self.needs_answers = True
        """True if the clock was in doubt at the last check, and no majority of the other clocks has told the right time."""
        self.skew_ns = 0
        """Time in ns that the clock was ahead of the median of the other nodes at the last check. 0: no node answered."""
        self._reports: dict[str, _ReportedTime] = {}
        self._trusted_ns: int | None = None
        """Offset of the clock when a majority last agreed, or when it was trusted without peers."""
        self._by_others = False
        """True if ``_trusted_ns`` is from an agreement with other nodes."""
        self._jumped: tuple[int, int] | None = None
        """Offset to which the clock jumped while it had no peers, and the time of the jump."""

    def peers(self, nodes: Mapping[str, bool]) -> list[str]:
        """Return the live nodes whose clocks this node requests, at most ``PEERS``.

        They are the next ones after this node in the sorted ring of names. ``nodes``: registered nodes, True if live.
        """
        names = sorted(name for name, is_live in nodes.items() if is_live and name != self.node_id)
        behind = [name for name in names if name > self.node_id]
        return [*behind, *names[: len(names) - len(behind)]][:PEERS]

    def record_answer(self, node: str, wall_ns: int | None, request_ns: int, answered_ns: int) -> None:
        """Store the clock of ``node`` for the next comparison. A slow answer is ignored.

        ``wall_ns``: its wall time in ns, None if the answer has none. ``request_ns``, ``answered_ns``: monotonic times of the request
        and of the answer.
        """
        if answered_ns - request_ns <= SLOW_NS:
            offset_ns = None if wall_ns is None else wall_ns - (request_ns + answered_ns) // 2
            self._reports[node] = _ReportedTime(offset_ns, request_ns)

    def time_of_age_ns(self, wall_ns: int, now_ns: int, nodes: Mapping[str, bool]) -> int:
        """Return the time for age calculations: ``wall_ns``, or ``NO_AGE_NS`` while the clock is not trusted.

        ``nodes``: registered nodes, True if live.
        """
        offset_ns, peers = wall_ns - now_ns, self.peers(nodes)
        self._reports = {name: one for name, one in self._reports.items() if name in peers and now_ns - one.at_ns <= FRESH_NS}
        offsets = [one.offset_ns for one in self._reports.values() if one.offset_ns is not None]
        self.skew_ns = offset_ns - median_low(offsets) if offsets else 0
        others = len(peers) - (len(self._reports) - len(offsets))
        self._stamp_offset_ns, self.needs_answers = None, False
        if others:
            self._jumped = None
            self.why, self.is_wrong = self._compare(offset_ns, offsets, others)
        else:
            is_one_of_many = len(self._reports) < len(set(nodes) - {self.node_id})
            self.why, self.is_wrong = self._check_alone(offset_ns, now_ns, is_one_of_many)
            self.needs_answers = bool(self.why) and not self.is_wrong
        return NO_AGE_NS if self.why else wall_ns

    def stamp_ns(self, wall_ns: int, now_ns: int) -> int:
        """Return the timestamp for new records: the wall clock, or a better known time while the clock is in doubt.

        ``wall_ns``: current wall clock of this node.
        """
        return wall_ns if self._stamp_offset_ns is None else now_ns + self._stamp_offset_ns

    def _compare(self, offset_ns: int, offsets: list[int], others: int) -> tuple[str, bool]:
        """Compare our clock with those of the other live nodes. Clocks are given as offsets to the monotonic clock, in ns.

        Return (reason to distrust our clock or '', whether our clock looks wrong).

        ``offset_ns``: our clock. ``offsets``: clocks that other nodes reported. ``others``: number of the nodes that were asked.
        """
        near = sum(abs(other - offset_ns) <= BOUND_NS for other in offsets)
        if 2 * (1 + near) > 1 + others:
            self._trusted_ns, self._by_others = offset_ns, True
            return "", False
        agree = [one for one in offsets if 2 * sum(abs(other - one) <= BOUND_NS for other in offsets) > 1 + others]
        self._stamp_offset_ns = median_low(agree) if agree else self._trusted_ns
        self.needs_answers = not agree
        if near < len(offsets):
            return f"{len(offsets) - near} of {others} other clocks differ by more than {BOUND_NS // NS_PER_S} s", True
        if not self._by_others:
            return f"{len(offsets)} of {others} other nodes have told their time", False
        why = self._clock_jump_text(offset_ns)
        return why, bool(why)

    def _check_alone(self, offset_ns: int, now_ns: int, is_one_of_many: bool) -> tuple[str, bool]:
        """Check our clock while no other node is live. Return (reason to distrust it or '', whether it looks wrong).

        ``offset_ns``: our wall time minus the monotonic time. ``is_one_of_many``: True if other nodes exist, which may report
        another time later.
        """
        is_new = self._trusted_ns is None
        why = _NO_TIME_REPORTS if is_new and is_one_of_many else self._clock_jump_text(offset_ns)
        if why and (self._jumped is None or abs(offset_ns - self._jumped[0]) > BOUND_NS):
            self._jumped = offset_ns, now_ns
        if why and self._jumped is not None and now_ns - self._jumped[1] < HOLD_NS:
            return why, not is_new
        self._by_others = self._by_others and not why
        self._trusted_ns, self._jumped = offset_ns, None
        return "", False

    def _clock_jump_text(self, offset_ns: int) -> str:
        moved_ns = 0 if self._trusted_ns is None else offset_ns - self._trusted_ns
        return (
            f"it jumped by {moved_ns / NS_PER_S:+.0f} s, and no other node confirms the new time"
            if abs(moved_ns) > BOUND_NS
            else ""
        )
