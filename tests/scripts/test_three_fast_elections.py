"""Three fast elections (KIP-279).

Two replicas lead in turn without hearing of each other, each with records that the other lacks:

    a: epoch 1 at 0-4, epoch 3 at 5-9                b: epoch 1 at 0-2, epoch 2 at 3-6, epoch 4 from 7 on

a asks b for the end of epoch 3. b knows none, and says: epoch 2, up to 6. a has no epoch 2; its own epochs up to 2 end at 4.
To cut there is not enough: offsets 3 and 4 are of epoch 1 on a, and of epoch 2 on b. One question does not find the common
prefix, so the follower asks again, for epoch 1, until both name the same epoch.

Shows D4, D5, D12, D17.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("single-shot epoch query", "epoch cache not cut", "no reconciliation before the fetch")


def test_former_leader_after_three_fast_elections_truncates_its_log_twice() -> None:
    with Stage(nodes=2, max_leader_timeout_s=600, max_lag_time_s=600) as s:
        a, b = s.leader, s.followers[0]
        s.publish(3)
        s.settle()
        s.cut(a, b)
        s.send(records=2)
        s.until(lambda: s.end(a) == 5)
        s.move_leader(b)
        s.run(0.01)
        s.send(records=4)
        s.until(lambda: s.end(b) == 7)
        s.move_leader(a)
        s.run(0.01)
        s.send(records=5)
        s.until(lambda: s.end(a) == 10)
        s.move_leader(b)
        s.run(0.01)
        s.send()
        s.until(lambda: s.end(b) == 8)
        assert [start for _, start in s.epochs(a)] == [0, 5]
        assert [start for _, start in s.epochs(b)] == [0, 3, 7]

        cuts = s.counted("truncation")
        s.mend(a, b)
        s.settle()
        assert s.counted("truncation") - cuts == 2
        assert s.ids(a) == s.ids(b)
        assert s.epochs(a) == s.epochs(b)
