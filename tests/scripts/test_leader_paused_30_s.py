"""The leader process is paused for 30 s: it acknowledges nothing that was queued meanwhile.

A paused process (SIGSTOP, a stopped VM, a long collection) does not know that it was away. Its socket buffers hold publishes,
fetches and heartbeat answers from half a minute ago; its timers are all due. Whatever it takes up first, its lease ended long
ago, on its own monotonic clock; an old heartbeat answer must not renew it, and a new one counts only with the image that it
was made on.

Shows A2, D1, D10, D22, D25, C1.
"""

from __future__ import annotations

import pytest

from liftpy.config import AckPolicy
from tests.scripts.stage import Stage

KILLS = ("no lease", "lease on an old image")


@pytest.mark.parametrize("timers_first", [True, False])
def test_leader_paused_for_30_s_does_not_ack_its_queued_publishes(timers_first: bool) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.pause(a)
        queued = [s.send(policy, records) for policy in (AckPolicy.ALL, AckPolicy.LEADER) for records in (1, 2)]
        s.wait_for_leader(b, c)
        s.publish(3)
        late = [s.send(AckPolicy.LEADER) for _ in range(3)]
        s.run(28)
        assert s.outcomes(late) == ["acked"] * 3
        assert s.outcomes(queued) == ["timed out"] * 4
        mute = s.hold("ack", sender=a)
        s.resume(a, timers_first=timers_first)
        s.run(3)
        assert mute.count == 0, "the old leader told somebody something"
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        queued_ids = {i for one in queued for i in one.ids}
        assert not queued_ids & set(s.ids(a))
        assert s.ids(a) == s.ids(b) == s.ids(c)


def test_leader_paused_with_delayed_metadata_does_not_ack_its_queued_publishes() -> None:
    """The leader learns that it is alive before it learns that it no longer leads."""
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        images = s.hold("image", receiver=a)
        s.pause(a)
        queued = s.send(AckPolicy.LEADER)
        s.wait_for_leader(b, c)
        s.publish(1)
        s.run(25)
        mute = s.hold("ack", sender=a)
        s.resume(a)
        s.always(lambda: not s.replica(a).replica.may_reject_publishes(s.cluster.clock.now_ns), 3)
        assert s.role(a) == "LEADER", "it still believes so"
        images.release()
        s.until(lambda: s.role(a) == "FOLLOWER")
        assert mute.count == 0
        assert queued.outcome == "timed out"
        s.until(lambda: s.isr == {a, b, c})


def test_leader_paused_briefly_is_not_replaced() -> None:
    with Stage() as s:
        a = s.leader
        epoch = s.leader_epoch
        s.publish(1)
        s.pause(a)
        sent = s.send()
        s.run(1)
        s.resume(a)
        assert s.outcome(sent) == "acked"
        assert (s.leader, s.leader_epoch) == (a, epoch)
