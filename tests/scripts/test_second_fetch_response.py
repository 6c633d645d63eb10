"""The leader sends new records as a second response to an answered fetch, instead of a wake-up.

The records so travel one way instead of three, and they travel while the leader's own flush still runs. NATS may lose, repeat or
delay the second answer like any message; it counts only for the fetch that the follower sleeps on. And a record that is on all
followers' disks, but not on the leader's, is not committed.

Shows D6, D15, D16, D21, L2.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage

KILLS = ("stale response accepted", "ack before flush on the leader")


def stage(*, awaits_more: bool = True) -> Stage:
    made = Stage()
    for node in made.cluster.nodes.values():
        node.awaits_more = awaits_more
    return made


def test_followers_flush_records_of_a_second_fetch_response_while_the_leader_flushes_them() -> None:
    with stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.slow_disk(a, 800)
        sent = s.send()
        took_s = s.until(lambda: s.position(b) == s.position(c) == 3)
        assert took_s < 0.1, "long before the leader's flush is done"
        assert s.hw(a) == s.hw(b) == s.hw(c) == 2
        s.slow_disk(a, 1)
        assert s.outcome(sent) == "acked"
        assert s.hw(a) == 3


def test_record_in_a_second_response_to_one_fetch_survives_a_leader_power_loss() -> None:
    with stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.slow_disk(a, 800)
        sent = s.send()
        s.until(lambda: s.position(b) == s.position(c) == 3)
        s.power_off(a)
        s.wait_for_leader(b, c)
        s.slow_disk(a, 1)
        s.start(a)
        s.until(lambda: s.isr == {a, b, c})
        s.publish()
        s.settle()
        assert s.outcome(sent) == "timed out"
        assert s.ids(a) == s.ids(b) == s.ids(c) == [1, 2, 3, *sent.ids, 5], "it was not promised, and it is there"


def test_second_fetch_response_that_is_lost_is_replaced_by_a_fetch_after_the_idle_wait() -> None:
    with stage() as s:
        _, b, c = s.leader, *s.followers
        s.publish(2)
        s.settle()
        lost = s.hold("data", receiver=c, at_most=1)
        sent = s.send()
        s.until(lambda: s.end(b) == 3 and lost.count == 1)
        lost.drop()
        assert s.end(c) == 2
        assert s.outcome(sent) == "acked"
        assert s.isr == {s.leader, b, c}


def test_idle_partition_follower_fetches_within_half_a_second_if_a_second_response_is_lost() -> None:
    with stage() as s:
        c = s.followers[1]
        s.publish(2)
        s.settle()
        s.run(20)  # quiet by now: the idle waits are long
        lost = s.hold("data", receiver=c, at_most=1)
        sent = s.send()
        s.until(lambda: lost.count == 1)
        lost.drop()
        took_s = s.until(lambda: sent.acked)
        assert took_s < 0.5, "the leader wakes a follower that HW waits for"


def test_second_fetch_response_that_arrives_late_is_dropped_by_the_follower() -> None:
    with stage() as s:
        _, _, c = s.leader, *s.followers
        s.publish(2)
        s.settle()
        late = s.hold("data", receiver=c, at_most=1)
        sent = s.send(records=3)
        assert s.outcome(sent) == "acked"
        s.settle()
        assert s.phase(c) == "FOLLOWER_IDLE"
        before = s.counted("dropped answer: stale request")
        late.release()
        assert s.counted("dropped answer: stale request") == before + 1
        assert s.end(c) == 5


def test_second_fetch_response_contains_the_high_watermark_without_another_fetch() -> None:
    with stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.settle()
        sent, told = s.send(), s.counted("HW told to a waiter")
        s.until(lambda: sent.acked)
        with s.holding("fetch"):
            took_s = s.until(lambda: s.hw(b) == s.hw(c) == 2)
        assert took_s < 0.05, "a fetch for each commit would be work for two nodes"
        assert s.counted("HW told to a waiter") > told
        assert s.hw(a) == 2


@pytest.mark.parametrize("awaits_more", [True, False])
def test_followers_of_older_and_newer_versions_replicate_a_publish_at_once(awaits_more: bool) -> None:
    with stage(awaits_more=awaits_more) as s:
        s.publish(2)
        s.settle()
        before = s.counted("second answer")
        sent = s.send()
        took_s = s.until(lambda: sent.acked)
        assert took_s < 0.1
        assert (s.counted("second answer") > before) is awaits_more
