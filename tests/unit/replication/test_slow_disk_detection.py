"""Test when a disk counts as slow compared with the others, for how long, and which replica leaves the ISR or resigns."""

from __future__ import annotations

import pytest

from liftpy.config import CommitPolicy, ReplicationConfig
from liftpy.core.replication import events as ev
from liftpy.core.replication import isr as lag
from liftpy.core.replication.isr import FollowerProgress, SlowFlushes, fast_successor, slow_to_exclude
from liftpy.core.replication.messages import FetchRequest
from liftpy.errors import ConfigError
from tests.each import each
from tests.unit.replication.stepping import S, Stepped, leader_context, state

MS = 1_000_000
FAST, SLOW, VERY_SLOW = 4 * MS, 1500 * MS, 6 * S


class Disks:
    """What a leader a with followers b and c hears."""

    def __init__(self, **settings: float) -> None:
        self.flushes = SlowFlushes(ReplicationConfig(**settings))  # type: ignore[arg-type]
        self.now_ns = 1000 * S
        for _ in range(3):
            for replica in "abc":
                self.flushed(replica, FAST)

    def flushed(self, replica: str, took_ns: int, *, in_isr: bool = True) -> bool:
        """One more; whether it is slow then."""
        self.now_ns += took_ns
        self.flushes.flushed(replica, took_ns, self.now_ns, in_isr=in_isr)
        return self.flushes.is_slow(replica, self.now_ns)

    def until_slow(self, replica: str, took_ns: int) -> int:
        """After how many."""
        return next(count for count in range(1, 100) if self.flushed(replica, took_ns))

    def passes(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)


@pytest.mark.parametrize(("took_ns", "count"), [(SLOW, 4), (VERY_SLOW, 2), (100 * S, 2), (200 * MS, 25)])
def test_slow_disk_is_detected_after_a_total_slow_time_and_two_slow_flushes(took_ns: int, count: int) -> None:
    assert Disks().until_slow("b", took_ns) == count


@pytest.mark.parametrize("took_ns", [199 * MS, FAST])
def test_slow_disk_detection_ignores_short_flushes(took_ns: int) -> None:
    disks = Disks()
    assert not any(disks.flushed("b", took_ns) for _ in range(200))


def test_slow_disk_is_not_detected_without_enough_flushes_of_other_disks() -> None:
    flushes = SlowFlushes(ReplicationConfig())
    for number in range(1, 50):
        flushes.flushed("b", SLOW, number * SLOW)
        if number < 3:
            flushes.flushed("a", FAST, number * SLOW)
    assert not flushes.slow(50 * SLOW)


def test_slow_disk_is_not_detected_after_single_slow_flushes() -> None:
    disks = Disks()
    for _ in range(20):
        assert not disks.flushed("b", VERY_SLOW)
        disks.passes(3)
        assert not disks.flushed("b", FAST)


def test_slow_disk_is_detected_with_every_second_flush_slow() -> None:
    disks = Disks()
    found = [disks.flushed("b", took_ns) for took_ns in (SLOW, FAST) * 4]
    assert found.index(True) == 6


def test_slow_disk_is_excluded_from_the_isr_longer_each_time() -> None:
    disks = Disks()
    for out_s in (20, 40, 80, 160, 320, 320):
        disks.until_slow("b", SLOW)
        disks.passes(out_s - 1)
        assert disks.flushed("b", FAST)
        disks.passes(1)
        assert not disks.flushed("b", FAST)


def test_slow_disk_exclusion_restarts_at_a_slow_flush_and_is_reset_after_a_long_time() -> None:
    disks = Disks()
    disks.until_slow("b", SLOW)
    disks.passes(15)
    assert disks.flushed("b", SLOW)
    disks.passes(19.9)
    assert disks.flushes.is_slow("b", disks.now_ns)
    disks.passes(16 * 20 + 1)
    disks.flushed("b", FAST)
    disks.until_slow("b", SLOW)
    disks.passes(20)
    assert not disks.flushes.is_slow("b", disks.now_ns), "as if for the first time"


def test_slow_disk_outside_the_isr_is_detected_after_one_slow_flush() -> None:
    assert Disks().flushed("b", SLOW, in_isr=False)
    assert not Disks().flushed("b", FAST, in_isr=False)


def test_slow_disk_is_detected_during_a_hanging_flush() -> None:
    disks = Disks()
    disks.flushes.flush_running("a", 4 * S, disks.now_ns)
    assert not disks.flushes.is_slow("a", disks.now_ns)
    disks.flushes.flush_running("a", 5 * S, disks.now_ns)
    assert disks.flushes.is_slow("a", disks.now_ns)


def test_slow_disk_detection_that_is_disabled_excludes_no_follower() -> None:
    disks = Disks(slow_flush_factor=0.0)
    assert not any(disks.flushed("b", VERY_SLOW, in_isr=False) for _ in range(20))
    with pytest.raises(ConfigError):
        ReplicationConfig(slow_flush_factor=-1.0)


def test_slow_disk_record_of_a_removed_replica_is_deleted() -> None:
    disks = Disks()
    disks.until_slow("b", SLOW)
    disks.flushes.keep("ac")
    assert (disks.flushes.slow(disks.now_ns), disks.flushes.last_ns("b"), disks.flushes.usual_ns("b")) == (frozenset(), 0, None)


def test_slow_followers_of_a_leader_with_a_slow_disk_stay_in_the_isr() -> None:
    isr = frozenset("abc")
    assert slow_to_exclude("a", isr, frozenset("bd")) == frozenset("bd")
    assert slow_to_exclude("a", isr, frozenset("abd")) == frozenset("d")


def test_slow_leader_transfers_only_to_a_live_caught_up_follower_with_min_isr_fast_disks() -> None:
    near = {r: FollowerProgress(caught_up_ns=100 * S, position=p) for r, p in (("b", 7), ("c", 9), ("d", 9))}
    live = dict.fromkeys("abcd", 1)

    def chosen(fast: str, needed: int = 2, **others: FollowerProgress) -> str:
        return fast_successor(fast, near | others, live, needed=needed, now_ns=101 * S, max_lag_ns=5 * S)

    assert chosen("bcd") == "c"
    assert chosen("bc", needed=3) == ""
    assert chosen("b") == ""
    assert chosen("bc", c=FollowerProgress(caught_up_ns=95 * S, position=9)) == ""
    assert chosen("bc", c=FollowerProgress(caught_up_ns=101 * S)) == ""
    assert fast_successor("bc", near, {"a": 1, "b": 1}, needed=2, now_ns=101 * S, max_lag_ns=5 * S) == ""


# ---- in the leader's role ------------------------------------------------------------------------------------------------
def test_follower_fetch_contains_its_last_flush_time() -> None:
    follower = Stepped("b").follows()
    assert follower.only(FetchRequest).flush_ns == 0
    follower.answered([(0, 2, 1)], -1)
    follower.step(ev.LogFlushed(end_offset=3, took_ns=SLOW))
    assert follower.only(FetchRequest).flush_ns == SLOW


@each(
    ("isr", "slow", "min_isr", "by_quorum", "wanted"),
    [
        ("abc", "c", 2, False, "ab"),
        ("abc", "c", 1, False, "ab"),
        ("abc", "bc", 1, False, "abc"),  # never an ISR of one
        ("abc", "c", 3, False, "abc"),
        ("ab", "b", 1, False, "ac"),
        ("ab", "c", 2, False, "ab"),  # it does not come in
        ("ac", "c", 2, False, "ab"),  # b comes in its place
        ("abc", "c", 2, True, "abc"),
    ],
)
def test_proposed_isr_excludes_slow_disks_unless_too_few_members_remain(
    isr: str, slow: str, min_isr: int, by_quorum: bool, wanted: str
) -> None:
    followers = {r: FollowerProgress(caught_up_ns=S, incarnation=1, live=True, position=9, was_caught_up=True) for r in "bc"}
    policy = CommitPolicy.QUORUM if by_quorum else CommitPolicy.ISR
    shared = leader_context(state(isr=isr, min_isr=min_isr, policy=policy), dict.fromkeys("abc", 1), end=10, hw=9)
    assert lag.wanted_isr(shared, followers, 0, frozenset(slow), S) == frozenset(wanted)
