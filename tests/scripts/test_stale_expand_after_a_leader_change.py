"""A request of the old leader to add a follower to the ISR arrives after a leader change.

a asks the metadata group to let c into the ISR; the request is long on its way. Meanwhile b leads, and c has not followed it.
If the request were judged when it was made, or by anything but compare-and-set inside apply on (leader, LeaderEpoch, Epoch),
c would be in the ISR without what b has committed, and could be elected.

Shows C4, C5, D3, D19.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("check-then-apply ISR",)


def test_isr_expand_request_of_a_former_leader_is_rejected() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        stale = s.hold("changeIsr", sender=a)
        s.reconnect(c)
        s.until(lambda: stale.count > 0)
        s.isolate(c)
        s.move_leader(b)
        s.publish(3)
        assert s.isr == {a, b}

        refused_before = s.counted("changeIsr STALE")
        stale.release()
        s.run(0.1)
        assert s.counted("changeIsr STALE") > refused_before
        assert s.isr == {a, b}
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
        assert s.ids(c) == s.ids(b)
