"""A follower and the metadata leader die: the dead follower cannot leave the ISR until a new metadata leader is elected.

Records that the dead member does not have must not be committed, however long that takes: it may be the next leader. The
partition's leader loses its lease and acknowledges nothing; when there is a metadata leader again, the ISR shrinks, and what
waited is committed.

Shows D6, D21, D22, C8, L1, L2.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("no lease", "min_isr not looked at")


def test_leader_with_a_dead_follower_commits_no_record_without_a_metadata_leader() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.metadata_down()
        s.crash(c)
        waiting = s.send()
        s.always(lambda: s.true_hw == 2 and not waiting.acked, 9)
        assert s.isr == {a, b, c}
        late = s.send()
        s.always(lambda: not s.replica(a).replica.may_reject_publishes(s.cluster.clock.now_ns), 5)
        s.metadata_up()
        s.until(lambda: c not in s.isr, within_s=10)
        assert s.leader == a
        s.until(lambda: s.true_hw == s.end(a) - 1)
        assert set(waiting.ids) <= set(s.ids(a)), "it was in the log all the time"
        s.publish(2)
        s.start(c)
        s.until(lambda: s.isr == {a, b, c})
        assert set(late.ids) <= set(s.ids(c)) or not late.acked


def test_publish_below_min_isr_is_not_acked() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(1)
        s.crash(b, c)
        waiting = s.send()
        s.until(lambda: s.isr == {a}, within_s=10)
        refused = s.send()
        assert s.outcome(refused) != "acked"
        s.always(lambda: s.true_hw == 0 and not waiting.acked, 2)
        s.start(b)
        s.until(lambda: len(s.isr) >= 2)
        s.publish(1)
