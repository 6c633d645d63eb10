"""An idle partition uses combined fetches, and failures are still detected in time.

The followers wait at the fetch that was answered with nothing; a question from node to node takes the place of the next ones.

Shows D16, L2, L8, and that leaders, followers and ISR are looked after while nothing is fetched.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

QUIET = "FOLLOWER_QUIET"


def be_quiet(s: Stage) -> tuple[str, str, str]:
    """Leader and followers, when both of those wait quietly."""
    s.publish(3)
    s.settle()
    a, (b, c) = s.leader, s.followers
    s.until(lambda: s.phase(b) == s.phase(c) == QUIET)
    return a, b, c


def test_idle_partition_sends_no_fetches_and_its_isr_is_unchanged() -> None:
    with Stage() as s:
        a, b, c = be_quiet(s)
        epoch = s.partition.epoch
        with s.holding("fetch", "data", "wake", "notice") as held:
            s.always(lambda: s.isr == {a, b, c} and s.phase(b) == s.phase(c) == QUIET, 60)
        assert held.count == 0
        assert s.partition.epoch == epoch
        assert s.counted("quiet fetch confirmed") >= 2 * 60 / 3


def test_idle_partition_acks_a_publish_within_a_tenth_of_a_second() -> None:
    with Stage() as s:
        be_quiet(s)
        sent = s.send()
        assert s.until(lambda: sent.acked) < 0.1


def test_idle_partition_follower_fetches_records_whose_delivery_was_lost() -> None:
    with Stage(follower_ping_delay_s=0) as s:  # nobody else looks for who holds HW back
        _, _, c = be_quiet(s)
        lost = s.hold("data", "wake", receiver=c, at_most=1)
        sent = s.send()
        s.until(lambda: lost.count == 1)
        lost.drop()
        assert s.phase(c) == QUIET
        assert s.until(lambda: s.end(c) == 4) < 3.5, "its wait is not confirmed any more"
        assert s.outcome(sent) == "acked"


def test_idle_partition_with_a_lost_combined_fetch_does_not_change_its_isr() -> None:
    with Stage() as s:
        a, b, c = be_quiet(s)
        for kind in ("quiet question", "quiet answer"):
            lost = s.hold(kind, at_most=1)
            s.until(lambda held=lost: held.count == 1)
            lost.drop()
            s.always(lambda: s.isr == {a, b, c} and s.phase(b) == s.phase(c) == QUIET, 8)


def test_idle_partition_leader_that_loses_power_is_replaced() -> None:
    with Stage() as s:
        a, b, c = be_quiet(s)
        s.power_off(a)
        assert s.until(lambda: s.leader in (b, c) and s.is_open(s.leader)) < 3
        s.acked_again(1)


def test_idle_partition_leader_without_data_connection_is_replaced_within_seven_seconds() -> None:
    with Stage() as s:
        a, b, c = be_quiet(s)
        s.isolate(a)
        assert s.until(lambda: s.leader in (b, c) and s.is_open(s.leader)) < 7


def test_idle_partition_leader_unreachable_from_both_followers_is_replaced() -> None:
    with Stage() as s:
        a, b, c = be_quiet(s)
        s.cut(b, a)
        s.cut(c, a)
        assert s.until(lambda: s.leader in (b, c) and s.is_open(s.leader)) < 7
        s.mend(b, a)
        s.mend(c, a)


def test_idle_partition_leader_whose_responses_are_lost_is_replaced() -> None:
    with Stage() as s:
        a, b, c = be_quiet(s)
        s.cut(a, b, both=False)
        s.cut(a, c, both=False)
        assert s.until(lambda: s.leader in (b, c) and s.is_open(s.leader)) < 7, "its own lag and lease are as ever"
        s.mend(a, b)
        s.mend(a, c)


def test_idle_partition_follower_that_cannot_reach_its_leader_leaves_the_isr() -> None:
    with Stage() as s:
        a, b, c = be_quiet(s)
        s.cut(c, a)
        assert s.until(lambda: s.isr == {a, b}) < 6.5
        s.mend(c, a)
        s.until(lambda: s.isr == {a, b, c})


def test_idle_partition_follower_that_is_paused_leaves_the_isr_until_it_resumes() -> None:
    with Stage() as s:
        a, b, c = be_quiet(s)
        s.pause(c)
        assert s.until(lambda: s.isr == {a, b}) < 6.5
        s.resume(c)
        s.until(lambda: s.isr == {a, b, c})


def test_idle_partition_with_a_leader_of_an_older_version_does_not_change_its_isr() -> None:
    with Stage() as s:
        s.cluster.nodes[s.leader].awaits_more = False
        s.publish(3)
        s.settle()
        a, (b, c) = s.leader, s.followers
        s.until(lambda: s.counted("quiet fetches: silence") == 2)
        s.always(lambda: s.isr == {a, b, c}, 120)
        assert s.leader == a, "nobody takes that silence for its own"
        sent = s.send()
        assert s.until(lambda: sent.acked) < 0.1


def test_idle_partition_followers_of_an_older_version_send_single_fetches() -> None:
    with Stage() as s:
        a, (b, c) = s.leader, s.followers
        s.cluster.nodes[b].awaits_more = False
        s.publish(3)
        s.settle()
        s.until(lambda: s.phase(c) == QUIET)
        s.always(lambda: s.isr == {a, b, c} and s.phase(b) != QUIET, 60)
