"""A follower may not join the ISR below the high watermark or below the start of the epoch (KAFKA-7128).

A follower that joins too early may be elected, and lacks what is committed. Being "caught up lately" is not enough
(Liftbridge), and a new leader's own HW is not enough either: it lags behind the true one until it has passed the start of its
epoch. Joining asks for a fetch in this LeaderEpoch, at or past HW AND at or past the epoch's start.

Shows C6, D3, D19.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("join by time only", "join without HW", "join without epoch start")


def test_isr_join_below_the_high_watermark_after_a_recent_catch_up_is_rejected() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.cut_metadata(c)  # c's session ends, while it fetches as ever
        s.until(lambda: s.isr == {a, b})
        assert s.position(c) == 2
        s.isolate(c)
        s.publish(3)
        s.mend_metadata(c)  # live again, caught up less than max_lag_time ago, and three records short
        s.until(lambda: s.cluster.group.image.is_live(c))
        s.always(lambda: c not in s.isr, 2)
        s.reconnect(c)
        s.until(lambda: c in s.isr)
        assert s.end(c) == 6


def test_isr_join_below_the_high_watermark_while_fetching_is_rejected() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(3)
        held = s.hold("data", receiver=c)
        s.reconnect(c)
        s.until(lambda: held.count > 0)
        assert (s.position(c), s.hw(a)) == (2, 5)
        s.always(lambda: c not in s.isr, 3)
        held.release()
        s.until(lambda: c in s.isr)


def test_isr_join_at_the_high_watermark_below_the_epoch_start_is_rejected() -> None:
    with Stage(nodes=4, factor=4, min_isr=1) as s:
        a, b, c, d = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.isolate(c)
        s.until(lambda: s.isr == {a, b, d})
        last = s.send(records=5)
        s.until(lambda: s.end(b) == 8 == s.end(d))
        late = [s.hold("data", "notice", receiver=node) for node in (b, d)]
        assert s.outcome(last) == "acked"
        assert (s.hw(b), s.hw(d), s.true_hw) == (2, 2, 7)

        s.isolate(d)
        s.crash(a)
        s.wait_for_leader(b)
        late += [s.hold("data", receiver=c)]
        s.reconnect(c)
        s.until(lambda: s.position(c) == 2)
        assert s.hw(b) == 2, "b's own HW is where c is"
        s.always(lambda: c not in s.isr, 1.5)
        for held in late:
            held.drop()
        s.reconnect(d)
        s.until(lambda: s.isr == {b, c, d})
        assert s.hw(b) == 7
