"""All nodes lose power at the same moment, in the middle of writing.

Every page cache is gone, every log may end in a torn batch. Whoever leads afterwards has everything that was acknowledged,
for it was on min_isr disks; the rest is settled by the epochs.

Shows D1, D2, D23, D24, L1, L9, S1, S3.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage

KILLS = ("ack before flush on a follower",)


@pytest.mark.parametrize("tail", ["lost", "torn", "kept"])
def test_power_loss_on_all_nodes_loses_no_acked_record(tail: str) -> None:
    with Stage() as s:
        nodes = [s.leader, *s.followers]
        acked = s.publish(4)
        for node in nodes:
            s.slow_disk(node, 30)
        sent = [s.send(records=1 + i % 3) for i in range(6)]
        s.until(lambda: s.end(nodes[1]) > 5 or s.end(nodes[2]) > 5)
        more = [s.send() for _ in range(3)]
        s.run(0.01)
        s.power_off(*nodes, tail=tail)
        known = [one for one in sent + more if one.acked]
        s.run(1)
        for node in nodes:
            s.slow_disk(node, 1)
        s.start(*nodes)
        assert s.until(lambda: s.cluster.leader() is not None) <= 5
        s.publish(1)
        s.until(lambda: s.isr == set(nodes))
        s.settle()
        held = s.ids(s.leader)
        assert all(set(one.ids) <= set(held) for one in acked + known)
        assert all(len(set(one.ids) & set(held)) in (0, len(one.ids)) for one in sent), "batches are atomic"
        assert held == s.ids(nodes[1]) == s.ids(nodes[2])


def test_nodes_restarted_one_after_another_after_a_power_loss_lose_no_acked_record() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.power_off(a, b, c)
        for node in (c, b, a):
            s.run(5)
            s.start(node)
            s.publish(1)
        s.until(lambda: s.isr == {a, b, c})
        assert s.end(a) == 6
