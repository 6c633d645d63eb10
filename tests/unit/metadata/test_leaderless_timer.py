"""Test which member answers without a leader."""

from __future__ import annotations

from liftpy.core.metadata.controller.quorum_member import LONG_NS, LeaderlessTimer

TICK_NS = 20_000_000


def tick(leaderless: LeaderlessTimer, there_is_a_leader: bool, from_ns: int, until_ns: int) -> None:
    for now_ns in range(from_ns, until_ns + 1, TICK_NS):
        leaderless.tick(there_is_a_leader, now_ns)


def test_leaderless_timer_expires_after_consecutive_ticks_without_a_leader() -> None:
    leaderless = LeaderlessTimer()
    assert not leaderless.for_long
    tick(leaderless, False, TICK_NS, LONG_NS)
    assert not leaderless.for_long, "one tick less than long"
    leaderless.tick(False, LONG_NS + TICK_NS)
    assert leaderless.for_long
    leaderless.tick(True, LONG_NS + 2 * TICK_NS)
    assert not leaderless.for_long
    leaderless.tick(False, LONG_NS + 3 * TICK_NS)
    assert not leaderless.for_long, "it has only just lost sight of the leader"


def test_leaderless_timer_after_a_pause_of_the_process_restarts() -> None:
    leaderless = LeaderlessTimer()
    tick(leaderless, False, TICK_NS, 2 * LONG_NS)
    assert leaderless.for_long
    leaderless.tick(False, 10 * LONG_NS)
    assert not leaderless.for_long, "what it knows is old, and others may have a leader"
    tick(leaderless, False, 10 * LONG_NS, 11 * LONG_NS)
    assert leaderless.for_long
