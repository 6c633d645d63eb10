"""The new leader must not reject a publish that the deposed leader may have stored (found by seed 2015173).

Plain NATS brings a message to everybody who listens on the subject: to b, which leads, and to a, which was deposed, cannot hear the
metadata group, and appends what it may not answer. c is in the ISR, but has not heard of b yet either: it still takes a's
records. If b said no now, and c led next, the message would be committed after all. So b says no only when every member of
the ISR has fetched from it: from then on none of them takes anything from a. Until then it appends, and answers nobody.

Shows A2, D22.
"""

from __future__ import annotations

from tests.scripts.stage import Stage


def test_publish_gets_no_negative_ack_while_the_next_leader_may_have_stored_it() -> None:
    with Stage(min_isr=3) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.settle()
        s.cut_metadata(a, c)
        s.wait_for_leader(b)
        assert c in s.isr or s.isr == {b}
        sent = s.send()
        s.until(lambda: set(sent.ids) <= set(s.ids(a)) and set(sent.ids) <= set(s.ids(c)))
        s.crash(b)
        s.mend_metadata(c)
        s.wait_for_leader(c)
        s.start(b)
        s.mend_metadata(a)
        s.settle()
        s.until(lambda: sent.outcome != "waiting")
        assert sent.outcome in ("acked", "timed out")


def test_leader_below_min_isr_rejects_a_publish_after_all_isr_members_have_fetched_without_it() -> None:
    with Stage(min_isr=3) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.crash(a)
        s.wait_for_leader(b, c)
        s.until(lambda: s.position(b if s.leader == c else c) is not None)
        assert s.outcome(s.send()) == "BELOW_MIN_ISR"
