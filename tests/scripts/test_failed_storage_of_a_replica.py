"""A replica whose log has failed resigns or leaves the ISR at once, without a timeout.

Its process is alive, its connections are up, its heartbeats are answered. So a leader gives the leadership up, and a follower leaves
the ISR, by themselves; what they ask for may be lost, so they ask again. A sole member stays: there is nobody to make way for.

Shows S4, S8, L10.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage


@pytest.mark.parametrize("how", ["flush error", "no space"])
def test_failed_storage_of_the_leader_moves_the_leadership(how: str) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        if how == "flush error":
            s.fail_next_flush(a)
        else:
            s.fill_disk(a)
        s.send()
        s.until(lambda: s.role(a) == "FAILED")
        failed_s = s.now_s
        s.wait_for_leader(b, c)
        s.publish(1)
        assert s.now_s - failed_s < 2.0
        assert a not in s.isr
        s.free_disk(a)
        s.restart(a)
        s.until(lambda: s.isr == {a, b, c})


@pytest.mark.parametrize("how", ["flush error", "no space"])
def test_failed_storage_of_a_follower_removes_it_from_the_isr(how: str) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        epoch = s.leader_epoch
        s.publish(3)
        if how == "flush error":
            s.fail_next_flush(c)
        else:
            s.fill_disk(c)
        last = s.send()
        s.until(lambda: s.role(c) == "FAILED")
        failed_s = s.now_s
        assert s.outcome(last) == "acked"
        assert s.now_s - failed_s < 0.5
        assert (s.isr, s.leader_epoch) == ({a, b}, epoch)
        s.free_disk(c)
        s.restart(c)
        s.until(lambda: s.isr == {a, b, c})


def test_follower_with_failed_storage_repeats_its_lost_request_to_leave_the_isr() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(1)
        lost = s.hold("leaveIsr", sender=c, at_most=1)
        s.fail_next_flush(c)
        s.send()
        s.until(lambda: s.role(c) == "FAILED")
        s.until(lambda: s.isr == {a, b}, within_s=4)
        assert len(lost.kept) == 1
        lost.drop()
        s.restart(c)


def test_failed_storage_of_the_only_isr_member_does_not_move_the_leadership() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        acked = s.publish(2)
        s.power_off(b, c)
        s.until(lambda: s.isr == {a})
        acked += s.publish(1)
        s.fail_next_flush(a)
        s.send()
        s.until(lambda: s.role(a) == "FAILED")
        s.start(b, c)
        s.run(10)
        assert (s.leader, s.isr) == (a, {a}), "they lack what it has committed alone"
        s.restart(a)
        s.wait_for_leader(a)
        held = s.ids(a)
        assert all(set(one.ids) <= set(held) for one in acked)
