"""A former leader answers epoch queries beside its successor (KIP-320).

A leader that was replaced and does not know it still listens on `.offset`, beside its successor. A replica that asks where
its last epoch ends, and takes the zombie's word for it, keeps records that the new leader does not have. So the question
names the LeaderEpoch that the asker follows, and only the leader of exactly that epoch answers; the zombie refuses.

c fetched a record from a that nobody else has, and died. a loses its metadata path, b leads. c comes back and asks; a's
answer comes first.

Shows D5, D11, D12, D17.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("epoch query answered by anyone", "no reconciliation before the fetch")


def test_follower_truncates_only_on_a_response_of_the_current_leader_epoch() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.cut(a, b)
        only_here = s.send()
        s.until(lambda: s.end(a) == 4 == s.end(c))
        s.run(0.01)
        s.crash(c)
        s.cut_metadata(a)
        s.until(lambda: s.is_open(b))
        assert s.role(a) == "LEADER", "a does not know yet: it is the zombie"
        s.publish(2)

        s.mend(a, b)
        slow = s.hold("epoch answer", "refusal", sender=b)  # the zombie's word comes first
        s.start(c)
        s.until(lambda: s.counted("refused: STALE_EPOCH") >= 1)
        assert s.end(c) == 4, "nothing was cut, and nothing fetched, on the zombie's word"
        slow.release()
        s.until(lambda: s.end(c) == s.end(b))
        assert s.ids(c) == s.ids(b)
        assert not set(only_here.ids) & set(s.ids(c))
        s.mend_metadata(a)
        s.until(lambda: s.isr == {a, b, c})
        assert s.ids(a) == s.ids(b)
