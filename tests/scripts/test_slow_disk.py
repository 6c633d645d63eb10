"""One disk of three is much slower than the others. Its replica leaves the ISR, and publishes are as fast as before.

A slow follower leaves the ISR. A slow leader transfers the leadership to a fast member, which removes it from the ISR. The
replica returns when its disk is fast again.
No replica leaves if all disks are slow, if ``min_isr`` or a second member would be missing, or after a short delay.

Shows D20, L8, and the policy's side of C3 and C6.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liftpy.config import AckPolicy
from tests.scripts.stage import Stage

SLOW_MS, VERY_SLOW_MS = 1500, 6000
QUICK_S = 0.1


def commit_s(s: Stage) -> float:
    """How long it takes now until a publish is committed; a leader that hands over may have let it go, then another one."""
    began_s = s.now_s
    while True:
        newest = s.true_hw
        s.send()
        end_s = s.now_s + 8
        s.until(lambda newest=newest, end_s=end_s: s.true_hw > newest or s.now_s >= end_s, within_s=10)  # type: ignore[misc]
        if s.true_hw > newest:
            return s.now_s - began_s


def publish_for(s: Stage, seconds: float) -> list[float]:
    """Publishes, one after the other; what each took."""
    took, end_s = [], s.now_s + seconds
    while s.now_s < end_s:
        took.append(commit_s(s))
        s.run(0.2)
    return took


def publish_until(s: Stage, condition: Callable[[], bool], within_s: float) -> float:
    """Publishes, whatever becomes of them; the seconds until ``condition`` held."""
    began_s = s.now_s
    while not condition():
        assert s.now_s - began_s < within_s
        s.send()
        s.run(0.1)
    return s.now_s - began_s


def test_disk_that_is_slightly_slow_or_slow_for_a_short_time_changes_neither_leader_nor_isr() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        publish_for(s, 1)
        s.slow_disk(c, VERY_SLOW_MS)
        commit_s(s)
        s.slow_disk(c, 100)
        publish_for(s, 20)
        s.slow_disk(a, 100)
        publish_for(s, 10)
        for node in (a, b):
            s.slow_disk(node, 150)
        s.slow_disk(c, 450)
        publish_for(s, 15)
        assert (s.leader, s.isr) == (a, {a, b, c}), "three times as slow as the others is not far slower"


@pytest.mark.parametrize(("slow_ms", "within_s"), [(SLOW_MS, 12), (VERY_SLOW_MS, 20)])
def test_slow_disk_of_a_follower_removes_it_from_the_isr_until_it_recovers(slow_ms: float, within_s: float) -> None:
    with Stage(slow_flush_isr_backoff_s=10.0) as s:
        a, b, c = s.leader, *s.followers
        assert max(publish_for(s, 1)) < QUICK_S
        s.slow_disk(c, slow_ms)
        took = publish_for(s, within_s)
        assert max(took) > slow_ms / 2000, "commits waited for it"
        assert s.isr == {a, b}
        assert max(publish_for(s, 20)) < QUICK_S, "and wait no more"
        assert (s.leader, s.isr) == (a, {a, b})
        s.slow_disk(c, 1)
        publish_for(s, 8)
        assert s.isr == {a, b}, "it has not shown yet that it is fast"
        publish_for(s, 14)
        assert s.isr == {a, b, c}


@pytest.mark.parametrize("slow_ms", [SLOW_MS, VERY_SLOW_MS])
@pytest.mark.parametrize("quorum", [False, True])
def test_slow_disk_of_the_leader_transfers_the_leadership(slow_ms: float, quorum: bool) -> None:
    with Stage(quorum=quorum, slow_flush_isr_backoff_s=10.0) as s:
        a, b, c = s.leader, *s.followers
        publish_for(s, 1)
        s.slow_disk(a, slow_ms)
        publish_for(s, 12)
        s.until(lambda: s.leader in (b, c), within_s=8)
        publish_for(s, 14)
        assert max(publish_for(s, 10)) < QUICK_S
        if quorum:
            assert s.counted("out of the ISR: slow flushes") == 0, "nobody waits for it"
        else:
            assert s.isr == {b, c}


def test_slow_disk_with_an_endless_flush_transfers_the_leadership() -> None:
    with Stage() as s:
        a = s.leader
        publish_for(s, 1)
        s.slow_disk(a, 3_600_000)
        s.send(AckPolicy.ALL)
        s.until(lambda: s.leader not in ("", a), within_s=15)
        s.crash(a)
        s.slow_disk(a, 1)
        s.start(a)


@pytest.mark.parametrize(("factor", "min_isr", "node"), [(3, 3, 0), (3, 3, 1), (2, 1, 0), (2, 1, 1)])
def test_slow_disk_at_min_isr_or_on_the_only_replica_changes_neither_leader_nor_isr(
    factor: int, min_isr: int, node: int
) -> None:
    with Stage(factor=factor, min_isr=min_isr) as s:
        members, leader = s.isr, s.leader
        publish_for(s, 1)
        s.slow_disk([s.leader, *s.followers][node], SLOW_MS)
        publish_for(s, 20)
        assert (s.isr, s.leader) == (members, leader)


def test_slow_disk_follower_stays_out_of_the_isr_longer_each_time() -> None:
    with Stage(slow_flush_isr_backoff_s=2.0) as s:
        c = s.followers[1]
        publish_for(s, 1)
        out_s = []
        for _ in range(3):
            s.slow_disk(c, SLOW_MS)
            publish_until(s, lambda: c not in s.isr, 15)
            s.slow_disk(c, 1)
            out_s.append(publish_until(s, lambda: c in s.isr, 15))
            publish_for(s, 1)
    assert out_s[0] >= 1.9
    assert out_s[1] >= 3.9
    assert out_s[2] >= 7.9


def test_slow_disk_leader_transfers_again_only_after_the_minimum_leadership_time() -> None:
    with Stage(min_leadership_s=40.0, slow_flush_isr_backoff_s=5.0) as s:
        publish_for(s, 1)
        first = s.leader
        s.slow_disk(first, SLOW_MS)
        publish_until(s, lambda: s.leader not in ("", first), 20)
        second, began_s = s.leader, s.now_s
        s.slow_disk(first, 1)
        publish_for(s, 14)
        assert len(s.isr) == 3
        s.slow_disk(second, SLOW_MS)
        publish_until(s, lambda: s.leader not in ("", second), 60)
        assert s.now_s - began_s >= 39


def test_slow_disk_on_all_nodes_changes_neither_leader_nor_isr() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        publish_for(s, 1)
        for node in (a, b, c):
            s.slow_disk(node, SLOW_MS)
        publish_for(s, 40)
        assert (s.leader, s.isr) == (a, {a, b, c})
        assert s.counted("out of the ISR: slow flushes") == 0
        assert s.counted("planned transfer: slow_disk") == 0


def test_slow_disk_follower_rejoins_the_isr_when_another_member_dies() -> None:
    with Stage(slow_flush_isr_backoff_s=5.0) as s:
        a, b, c = s.leader, *s.followers
        publish_for(s, 1)
        s.slow_disk(c, SLOW_MS)
        publish_for(s, 12)
        assert s.isr == {a, b}
        s.crash(b)
        s.until(lambda: s.isr == {a, c}, within_s=10)
        assert commit_s(s) > QUICK_S
        s.start(b)
        publish_for(s, 12)
        assert s.isr == {a, b}, "now it may go"
