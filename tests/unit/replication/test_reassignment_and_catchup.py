"""Test the next step of a reassignment, and the throttle of catching-up replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.partition import PartitionState
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import CatchupThrottle, backlog_part
from liftpy.core.replication.isr import FollowerProgress, IsrChange
from liftpy.core.replication.leader import majority_holds, removable_replica, transfer_target
from liftpy.core.replication.lease import Lease
from liftpy.core.replication.messages import FetchRequest
from liftpy.core.replication.replica import Replica
from liftpy.core.replication.role import NodeContext
from tests.each import each
from tests.unit.replication.stepping import S, Stepped, state

MS = 1_000_000


def moving(replicas: str = "abdc", target: str = "abd", isr: str = "abdc", **more: object) -> PartitionState:
    state: dict[str, object] = {"partition": 0, "leader": "a", "leader_epoch": 3, "epoch": 9, **more}
    return PartitionState(replicas=tuple(replicas), isr=tuple(isr), target=tuple(target), **state)  # type: ignore[arg-type]


@each(
    ("replicas", "target", "isr", "min_isr", "goes"),
    [
        ("abdc", "abd", "abdc", 2, "c"),
        ("abdc", "abd", "abc", 2, ""),  # it is the third copy
        ("abdc", "abd", "abd", 2, "c"),
        ("abdc", "abd", "ab", 2, "c"),  # outside of the ISR it is no copy
        ("abdc", "abd", "ab", 3, ""),
        ("abd", "abd", "abd", 2, ""),
        ("abc", "abd", "abc", 2, ""),  # nobody has come for it yet
        ("bda", "bd", "bda", 2, "a"),  # the leader itself
        ("abcd", "", "abcd", 2, ""),
        ("da", "d", "da", 1, "a"),
        ("da", "d", "a", 1, ""),
    ],
)
def test_reassignment_evicts_the_next_unwanted_replica_if_enough_isr_members_remain(
    replicas: str, target: str, isr: str, min_isr: int, goes: str
) -> None:
    assert removable_replica(moving(replicas, target, isr), frozenset(isr), min_isr) == goes


def test_reassignment_does_not_evict_a_replica_in_the_change_that_adds_another() -> None:
    state = moving("abc", "ad", "abc", joining="d", copy_epoch=4)
    assert removable_replica(state, frozenset("abcd"), 1) == ""


@pytest.mark.parametrize(
    ("positions", "incomplete", "enough"),
    [
        ({"a": 41, "b": 40, "d": 39, "c": 41}, "", True),
        ({"a": 41, "b": 17, "d": 39, "c": 41}, "", False),
        ({"a": 41, "b": None, "c": 41}, "", False),
        ({"a": 41, "b": 40, "d": 39}, "b", False),
        ({"a": 41, "b": 38, "d": 40}, "", True),
    ],
)
def test_reassignment_with_quorum_needs_a_majority_of_the_remaining_replicas(
    positions: dict[str, int | None], incomplete: str, enough: bool
) -> None:
    state = moving(incomplete=tuple(incomplete))
    assert majority_holds(state, "c", positions, 40, 30) is enough


def test_reassignment_with_quorum_needs_a_majority_at_the_epoch_start() -> None:
    positions = {"a": 60, "b": 48, "d": 48}
    assert not majority_holds(moving(), "c", positions, 40, 50)
    assert majority_holds(moving(), "c", {**positions, "b": 49}, 40, 50)


def test_reassignment_moves_the_leadership_to_the_first_wanted_in_sync_replica() -> None:
    state = moving("bdca", "bdc", "cda")
    assert transfer_target(state, "cd") == "d", "in the order in which they are wanted, not as they joined"
    assert transfer_target(state, "c") == "c"
    assert transfer_target(state, "b") == "", "it is outside of the ISR"


def test_catchup_throttle_counts_only_backlog_bytes_and_no_new_records() -> None:
    assert backlog_part(1_000_000, 1000, 400) == 600_000
    assert backlog_part(1_000_000, 1000, 2000) == 0
    assert backlog_part(10, 0, 0) == 0


def test_catchup_throttle_delays_the_next_fetch_in_proportion_to_the_copied_bytes() -> None:
    throttle = CatchupThrottle(bytes_per_second=10_000_000)
    assert throttle.turn(5 * S) == (5 * S, 0)
    throttle.flushed(1_000_000, 600_000, 5 * S, 5 * S + 4 * MS)
    assert throttle.turn(5 * S + 4 * MS) == (5 * S + 60 * MS, 60 * MS)
    assert throttle.turn(5 * S + 4 * MS) == (5 * S + 120 * MS, 60 * MS), "the next learner's"
    throttle.flushed(1_000_000, 1_000_000, 5 * S + 60 * MS, 5 * S + 64 * MS, 60 * MS)
    assert throttle.turn(5 * S + 64 * MS) == (5 * S + 220 * MS, 100 * MS), "what the turn really was"
    throttle.release(100 * MS)
    throttle.flushed(1_000_000, 0, 5 * S, 9 * S, 60 * MS)
    assert throttle.turn(5 * S + 64 * MS) == (5 * S + 160 * MS, 100 * MS), "what the partition grew by is not put off"
    throttle.flushed(1_000_000, 1_000_000, 9 * S, 9 * S, 100 * MS)
    assert throttle.turn(9 * S)[0] == 9 * S + 100 * MS, "nothing is saved up"
    throttle.record_copy(1_000_000, 600_000)
    assert (throttle.copied_bytes, throttle.backlog_bytes) == (1_000_000, 600_000)
    assert throttle.waited_ns == (56 + 116 + 156 + 96 + 100) * MS


@pytest.mark.parametrize(
    ("took_ms", "size_bytes", "turn_ms"),
    [
        (1, 100_000, 10),  # by its bytes
        (6, 100_000, 30),
        (6, 200_000, 15),  # half of it was growth
        (60, 100_000, 100),  # so slow it never is
    ],
)
def test_catchup_throttle_pauses_longer_after_a_slow_fetch(took_ms: int, size_bytes: int, turn_ms: int) -> None:
    throttle = CatchupThrottle(bytes_per_second=10_000_000, share=0.2, least_bytes_per_second=1_000_000)
    throttle.flushed(size_bytes, 100_000, S, S + took_ms * MS)
    assert throttle.turn(S) == (S + turn_ms * MS, turn_ms * MS)
    assert throttle.yielded_ns == (turn_ms - 10) * MS


def test_catchup_throttle_pause_has_no_upper_limit_without_a_minimum_rate() -> None:
    throttle = CatchupThrottle(bytes_per_second=10_000_000, share=0.1)
    throttle.flushed(1000, 1000, S, 2 * S)
    assert throttle.turn(S)[0] == 11 * S
    throttle = CatchupThrottle(bytes_per_second=0, share=0.1)
    throttle.flushed(1000, 1000, S, 2 * S)
    assert throttle.turn(S)[0] == S


@pytest.mark.parametrize(
    ("rate", "piece", "most"), [(0, 7, 0), (1000, 0, 4096), (40_000_000, 0, 2_000_000), (40_000_000, 9000, 9000)]
)
def test_catchup_throttle_lowers_the_fetch_size_at_a_low_rate(rate: int, piece: int, most: int) -> None:
    assert CatchupThrottle(bytes_per_second=rate, piece_bytes=piece).fetch_bytes == most


class Learner(Stepped):
    """d, which is to get the partition: told what it has to copy."""

    def __init__(self, config: ReplicationConfig) -> None:
        super().__init__("d")
        self.replica = Replica(NodeContext("d", 1, config, Lease(S), copy_limit=CatchupThrottle.from_config(config)), seed=7)
        held = state()
        moved = replace(held.state, target=("a", "b", "d"), joining="d", copy_epoch=1)
        self.follows(replace(held, state=moved))

    def copies(self, base: int, last: int, hw: int, *, size_bytes: int, took_ms: int = 0) -> None:
        request_id = self.only(FetchRequest).request_id
        span = ev.BatchSpan(base_offset=base, last_offset=last, leader_epoch=1)
        self.step(
            ev.FetchAnswered(
                token=1, request_id=request_id, leader_epoch=1, high_watermark=hw, spans=(span,), size_bytes=size_bytes
            ),
            after_s=took_ms / 1000,
        )
        self.step(ev.LogFlushed(end_offset=last + 1))


def test_learner_that_is_behind_waits_for_the_catchup_throttle_before_its_next_fetch() -> None:
    config = ReplicationConfig(copy_bytes_per_s=10_000_000, copy_duty_cycle=0.1, copy_fetch_bytes=50_000)
    learner = Learner(config)
    assert learner.only(FetchRequest).max_bytes == 50_000
    learner.copies(0, 9, 99, size_bytes=100_000, took_ms=2)
    assert learner.replica.phase == "FOLLOWER_PACED"
    assert learner.only(do.SetDeadline).at_ns == 100 * S + 20 * MS, "ten times what it took"
    learner.fire(ev.Deadline.FETCH)
    learner.copies(10, 19, 104, size_bytes=100_000)
    assert learner.only(do.SetDeadline).at_ns == 100 * S + 25 * MS, "half of it was growth, and it took no time"
    learner.fire(ev.Deadline.FETCH)
    assert learner.only(FetchRequest).max_bytes == 100_000, "a piece, and what came on top"
    learner.copies(20, 104, 104, size_bytes=100_000)
    assert learner.has(FetchRequest)


def test_learner_replica_that_stops_releases_its_reserved_time_of_the_catchup_throttle() -> None:
    config = ReplicationConfig(copy_bytes_per_s=1_000_000)
    learner = Learner(config)
    throttle = learner.replica._shared.node.copy_limit
    learner.copies(0, 9, 99, size_bytes=100_000)
    assert throttle.turn(learner.now_ns)[0] == learner.now_ns + 200 * MS
    throttle.release(100 * MS)
    learner.step(ev.StopRequested())
    assert throttle.turn(learner.now_ns)[0] == learner.now_ns + 100 * MS


def test_learner_progress_is_reset_by_a_new_copy_epoch() -> None:
    progress = FollowerProgress(caught_up_ns=0, last_contact_ns=0)
    progress.set_copy_epoch(5)
    progress.fetched(40, 1, 41, 10)
    progress.set_copy_epoch(5)
    assert progress.position == 40
    progress.set_copy_epoch(0)
    assert progress.position == 40, "it is a replica now"
    progress.set_copy_epoch(7)
    assert progress.position is None
    assert not progress.was_caught_up


def test_replica_set_change_in_flight_requires_commits_on_the_old_and_the_new_replica_set() -> None:
    change = IsrChange()
    assert [*change.replica_sets(("a", "b", "c"))] == [("a", "b", "c")]
    change.record_attempt(frozenset("abd"), frozenset("abcd"))
    assert [*change.replica_sets(("a", "b", "c"))] == [("a", "b", "c"), frozenset("abcd")]
