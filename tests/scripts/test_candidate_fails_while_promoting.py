"""The candidate fails before it becomes leader, and the next candidate wins the election.

It dies, or stands still, or its services never say that they have replayed (to the metadata leader all look the same: a candidate
without progress). After ``election.candidate.timeout`` it is passed over, and the next of the frozen ISR promotes itself in a higher
LeaderEpoch; the one that failed has persisted the epoch that it was proposed for, and can't come back in it.

Shows C1, C2, C5, D2, L1.
"""

from __future__ import annotations

import pytest

from liftpy.core.base.partition import PartitionStatus
from tests.scripts.stage import Stage


@pytest.mark.parametrize("how", ["dies", "stands still", "is cut off"])
def test_election_with_a_candidate_that_cannot_be_promoted_elects_the_next_candidate(how: str) -> None:
    with Stage(nodes=4, factor=4) as s:
        a, *others = s.leader, *s.followers
        acked = s.publish(3)
        s.settle()
        s.crash(a)
        s.until(lambda: s.status is PartitionStatus.CANDIDATE_FOUND)
        first, epoch = s.partition.candidate, s.leader_epoch
        if how == "dies":
            s.crash(first)
        elif how == "stands still":
            s.pause(first)
        else:
            s.partition_off(first)
        second = s.wait_for_leader(*[node for node in others if node != first])
        assert s.leader_epoch > epoch
        assert s.ids(second)[:3] == [i for one in acked for i in one.ids]
        s.publish(2)
        if how == "dies":
            s.start(first)
        elif how == "stands still":
            s.resume(first)
        else:
            s.rejoin(first)
        s.until(lambda: s.role(first) == "FOLLOWER")
        s.settle()
        assert s.leader == second


def test_election_with_candidates_stuck_in_replay_elects_a_leader_when_they_recover() -> None:
    """No service acknowledges JoinLog. The promotion hangs in LEADER_REPLAY until the metadata leader passes over the candidate."""
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.cluster.candidates_fail = True
        s.crash(a)
        s.until(lambda: s.partition.candidate != "")
        first = s.partition.candidate
        s.until(lambda: s.partition.candidate == next(node for node in (b, c) if node != first), within_s=10)
        assert s.leader == ""
        s.cluster.candidates_fail = False
        s.wait_for_leader(b, c)
        s.publish(1)
