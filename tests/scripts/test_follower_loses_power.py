"""A follower loses power, stays in the ISR, and then the leader dies.

What the follower acknowledged must be on its disk, for after the power cut it may be the one that leads (NATS #7564: an ack
before the flush). What it had only in its page cache is gone; nobody was told of it.

Shows D1, D3, D21, C7.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("ack before flush on a follower", "positions only grow")


def test_follower_after_a_power_loss_has_all_acked_records_on_disk() -> None:
    with Stage(nodes=2, min_isr=1) as s:
        a, b = s.leader, s.followers[0]
        s.publish(3)
        s.settle()
        s.slow_disk(b, 400)
        waiting = s.send()
        s.until(lambda: s.end(b) == 4)
        s.run(0.05)
        assert not waiting.acked, "b has it in its page cache only"
        s.power_off(b)
        s.start(b)
        s.until(lambda: s.role(b) == "FOLLOWER")
        assert s.isr == {a, b}, "the flush policy guarantees what it acknowledged"
        s.slow_disk(b, 1)
        s.crash(a)
        s.wait_for_leader(b)
        assert s.ids(b)[:3] == [1, 2, 3]
        s.publish(1)


def test_follower_with_an_emptied_disk_resets_its_position_at_the_leader() -> None:
    """The first fetch of the new incarnation sets the position, in place of the position of its last life."""
    with Stage(nodes=2, min_isr=1) as s:
        a, b = s.leader, s.followers[0]
        s.publish(3)
        s.settle()
        s.power_off(b)
        s.empty_disk(b)  # worse: all of it
        s.isolate(b)
        s.start(b)
        s.until(lambda: s.isr == {a})
        s.hold("data", receiver=b, at_most=3)
        s.reconnect(b)
        s.until(lambda: s.position(b) == -1)
        s.until(lambda: s.isr == {a, b})
        assert s.ids(b) == [1, 2, 3]
