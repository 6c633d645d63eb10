"""A restarted process shows only durable records, even if the process before it did not flush or a flush failed [S4, S12].

A kill leaves what was not flushed in the page cache, sealed segments and names included. A flush that fails leaves it there too, and
Linux says yes to the next one without writing anything. Whoever starts then sees those records, and tells others that it has them: a
leader commits them. So when the power goes, they must be on the disk.

Shows S1, S4, S12, D1, D21, D24.
"""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from tests.scripts.stage import Stage


@pytest.mark.parametrize("again", [False, True], ids=["one start", "two starts"])
def test_power_loss_after_failed_flushes_on_all_nodes_loses_no_acked_record(again: bool) -> None:
    with Stage() as s:
        nodes = [s.leader, *s.followers]
        acked = s.publish(3)
        s.settle()
        for node in nodes:
            s.fail_next_flush(node)
        shown = s.send()
        s.until(lambda: s.end(nodes[1]) == s.end(nodes[2]) == 4)
        s.until(lambda: all(s.role(node) == "FAILED" for node in nodes))
        for _ in range(1 + again):
            s.crash(*nodes)
            s.start(*nodes)
        s.wait_for_leader()
        acked += s.publish(2)  # on top of it: so it is committed
        assert s.true_hw == 5
        s.power_off(*nodes)
        s.start(*nodes)
        s.wait_for_leader()
        s.publish(1)
        s.until(lambda: s.isr == set(nodes))
        s.settle()
        held = s.ids(s.leader)
        assert held[3] in shown.ids
        assert all(set(one.ids) <= set(held) for one in acked)


def test_power_loss_of_all_nodes_after_a_failed_flush_on_the_last_node_loses_no_acked_record() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.fail_next_flush(c)
        s.send()
        s.until(lambda: s.role(c) == "FAILED")
        s.restart(c)
        s.until(lambda: s.isr == {a, b, c})
        s.publish(2)
        s.settle()
        s.power_off(a, b, c)
        s.start(c)
        s.run(3)
        s.start(a, b)
        s.wait_for_leader()
        assert s.end(c) >= 5


def test_kill_of_all_nodes_with_unflushed_segments_loses_no_acked_record() -> None:
    with Stage(stream=StreamConfig(segment_bytes=4096), min_isr=2) as s:
        nodes = [s.leader, *s.followers]
        acked = s.publish(3)
        for node in nodes:
            s.slow_disk(node, 400)
        for _ in range(60):
            s.send(records=20)
        s.until(lambda: all(s.end(node) == 1203 and len(s.replica(node).log.segments) > 1 for node in nodes))
        s.crash(*nodes)
        for node in nodes:
            s.slow_disk(node, 1)
        s.start(*nodes)
        s.wait_for_leader()
        acked += s.publish(1)
        assert s.true_hw == 1203
        s.power_off(*nodes)
        s.start(*nodes)
        s.wait_for_leader()
        held = s.ids(s.leader)
        assert all(set(one.ids) <= set(held) for one in acked)
        s.until(lambda: s.isr == set(nodes))
        s.settle()
