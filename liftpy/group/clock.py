"""The coordinator's clock: time that has passed while it could be heard. Pure.

Goal: no session ends because the coordinator was away, and none lasts for ever because a leader's clock was set back. Log time
alone does neither: an outage is a jump, and after a leader whose clock is an hour fast it stands still for an hour. So only the
differences of the stamps of two records count that follow each other in one leader's epoch, each at most a second; between two
epochs nothing counts, for their clocks are two. The clock is never faster than the leaders' own, but by a second where one of
them is set forward.
"""

from __future__ import annotations

from liftpy.dataclass import dataclass
from liftpy.group.limits import MAX_CLOCK_STEP_MS, NS_PER_MS


@dataclass(slots=True)
class HeardClock:
    """``now_ns``: time that counts. ``stamp_ns``, ``leader_epoch``: of the last record."""

    now_ns: int = 0
    stamp_ns: int = 0
    leader_epoch: int = 0

    def advance(self, stamp_ns: int, leader_epoch: int) -> None:
        """The next record has this stamp and this LeaderEpoch."""
        if leader_epoch == self.leader_epoch:
            self.now_ns += min(max(0, stamp_ns - self.stamp_ns), MAX_CLOCK_STEP_MS * NS_PER_MS)
        self.stamp_ns, self.leader_epoch = stamp_ns, leader_epoch
