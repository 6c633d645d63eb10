"""Test how long a new leader waits until no earlier leader can still have a lease [D22]."""

from __future__ import annotations

from typing import Any

from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.replication.lease import EarlierLeaders
from tests.unit.replication.stepping import S
from tests.unit.replication.stepping import state as held

LIVE = {"a": 1, "b": 1, "c": 1}
CANDIDATE = PartitionStatus.CANDIDATE_FOUND


def state(leader: str, **more: Any) -> PartitionState:
    return held(leader, **more).state


def candidate(node: str, leader_epoch: int, leaderships: int) -> PartitionState:
    return state("", leader_epoch=leader_epoch, status=CANDIDATE, candidate=node, leaderships=leaderships)


def test_first_leader_of_a_partition_does_not_wait_for_an_earlier_lease() -> None:
    earlier_leaders = EarlierLeaders("a", S)
    earlier_leaders.partition_changed(state("a"), LIVE, 0)
    assert earlier_leaders.is_over(0)
    assert earlier_leaders.until_ns() == 0


def test_new_leader_waits_until_the_previous_leader_fetches() -> None:
    earlier_leaders = EarlierLeaders("b", S)
    earlier_leaders.partition_changed(state("a"), LIVE, 0)
    earlier_leaders.partition_changed(candidate("b", 2, 1), LIVE, 5 * S)
    assert not earlier_leaders.is_over(5 * S)
    earlier_leaders.record_fetch("c")
    assert not earlier_leaders.is_over(5 * S)
    earlier_leaders.record_fetch("a")
    assert earlier_leaders.is_over(5 * S)


def test_new_leader_wait_ends_with_the_lease_or_the_session_of_the_previous_leader() -> None:
    for live in (LIVE, {"b": 1, "c": 1}, {**LIVE, "a": 2}):
        earlier_leaders = EarlierLeaders("b", S)
        earlier_leaders.partition_changed(state("a"), LIVE, 0)
        earlier_leaders.partition_changed(candidate("b", 2, 1), LIVE, 0)
        earlier_leaders.partition_changed(candidate("b", 2, 1), live, 1)
        assert earlier_leaders.is_over(1) is (live is not LIVE)
        assert earlier_leaders.is_over(S)


def test_new_leader_waits_for_the_longest_lease_of_the_cluster() -> None:
    earlier_leaders = EarlierLeaders("b", S)
    earlier_leaders.partition_changed(state("a"), LIVE, 0, 3 * S)
    earlier_leaders.partition_changed(candidate("b", 2, 1), LIVE, 0, 3 * S)
    assert earlier_leaders.until_ns() == 3 * S
    again = state("a", leader_epoch=3, leaderships=2)
    earlier_leaders.partition_changed(again, LIVE, 1, S // 2)
    earlier_leaders.partition_changed(candidate("b", 4, 2), LIVE, 1, S // 2)
    assert earlier_leaders.until_ns() == 3 * S, "the lease that it was suspected of before"
    earlier_leaders.partition_changed(candidate("b", 4, 2), {**LIVE, "a": 2}, 2, S // 2)
    earlier_leaders.partition_changed(state("a", leader_epoch=5, leaderships=3), {**LIVE, "a": 2}, 3, S // 2)
    earlier_leaders.partition_changed(candidate("b", 6, 3), {**LIVE, "a": 2}, 3, S // 2)
    assert earlier_leaders.until_ns() == 3 + S // 2, "another process was granted none of it"


def test_new_leader_waits_for_the_lease_of_a_leader_two_elections_before() -> None:
    """Seed 10303: a leads and is cut off; the leadership goes to c and at once on to b, which c follows."""
    earlier_leaders = EarlierLeaders("b", S)
    earlier_leaders.partition_changed(state("a"), LIVE, 0)
    earlier_leaders.partition_changed(candidate("c", 2, 1), LIVE, 0)
    earlier_leaders.partition_changed(state("c", leader_epoch=2, leaderships=2), LIVE, 1)
    earlier_leaders.partition_changed(candidate("b", 3, 2), LIVE, 2)
    earlier_leaders.record_fetch("c")
    assert not earlier_leaders.is_over(S - 1)
    assert earlier_leaders.until_ns() == S
    assert earlier_leaders.is_over(S)


def test_new_leader_that_missed_an_election_waits_for_every_replica() -> None:
    earlier_leaders = EarlierLeaders("b", S)
    earlier_leaders.partition_changed(state("a"), LIVE, 0)
    earlier_leaders.partition_changed(candidate("b", 9, 3), LIVE, 0)
    earlier_leaders.record_fetch("a")
    assert not earlier_leaders.is_over(0)
    earlier_leaders.record_fetch("c")
    assert earlier_leaders.is_over(0)


def test_new_leader_in_a_restarted_process_waits_for_every_replica() -> None:
    earlier_leaders = EarlierLeaders("a", S)
    earlier_leaders.partition_changed(state("a", leader_epoch=7, leaderships=3), LIVE, 0)
    assert not earlier_leaders.is_over(0)
    earlier_leaders.partition_changed(state("a", leader_epoch=7, leaderships=3), {"a": 1}, 1)
    assert earlier_leaders.is_over(1)
