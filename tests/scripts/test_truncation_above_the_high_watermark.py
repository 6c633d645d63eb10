"""Truncation never uses HW (KIP-101): neither loss nor divergence.

The old rule of Kafka, and Liftbridge's when nobody answers: a follower that starts cuts its log to its own HW. Its HW is one
round trip behind the leader's, so it may cut a record that is committed. If the leader dies before the follower has fetched
it again, the follower leads without it: LOSS. And a log that is not cut, because HW says that all is well, may hold another
record at the same offset than the new leader's: DIVERGENCE. Here the epoch cache of the leader alone says where to cut.

Shows D2, D4, D5, D9, D10, D12.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage

KILLS = ("truncate by HW", "truncate by HW when nobody answers", "no reconciliation before the fetch")


@pytest.mark.parametrize("leader_answers", [True, False])
def test_truncation_retains_an_acked_record_above_a_stale_high_watermark(leader_answers: bool) -> None:
    with Stage(nodes=2, min_isr=1) as s:
        a, b = s.leader, s.followers[0]
        s.publish(3)
        s.settle()
        last = s.send()
        s.until(lambda: s.end(b) == 4)
        s.hold("data", "notice", receiver=b)  # b has the record on disk, acknowledges it, and never hears of the new HW
        assert s.outcome(last) == "acked"
        assert (s.hw(b), s.true_hw) == (2, 3)

        if not leader_answers:
            s.isolate(a)
        s.restart(b)
        s.run(0.2)
        assert s.end(b) == 4, "b cut a committed record"
        s.crash(a)
        assert s.wait_for_leader() == b
        assert s.ids(b) == [1, 2, 3, 4]
        s.publish(1)


def test_truncation_of_a_returning_leader_removes_a_diverged_record() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        with s.holding("data", sender=a) as held:  # nobody fetches offset 3 of epoch 1
            alone = s.send(records=2)
            s.until(lambda: s.end(a) == 5)
            s.crash(a)
            held.drop()
        s.wait_for_leader(b, c)
        s.publish(2)
        assert not alone.acked
        s.start(a)
        s.until(lambda: a in s.isr)
        s.settle()
        assert s.ids(a) == s.ids(b) == s.ids(c)
        assert not set(alone.ids) & set(s.ids(a))
        assert s.epochs(a) == s.epochs(b) == s.epochs(c)
