"""A leader returns with an older copy of its log, although its registration is valid [S15].

All nodes died, and the leader's log is one of an older copy. It comes back, and is the recorded leader. If it went on leading
unasked, the others would cut what they had acknowledged together. So its return begins an election that asks all who may
lead, and the longest log wins. Where the others come back much later, they do not cut what they know to be committed: they
say so, and the leader makes way.

Shows C10, D1, D9, D24, S15.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage


def _all_died(s: Stage) -> tuple[str, str, str]:
    a, b, c = s.leader, *s.followers
    s.publish(3)
    s.settle()
    s.run(2)
    s.copy_disk(a)
    s.publish(5)
    s.settle()
    return a, b, c


@pytest.mark.parametrize("quorum", [False, True])
@pytest.mark.parametrize("order", ["abc", "acb", "bca", "cba"])
def test_former_leader_with_an_older_log_is_not_elected_after_a_simultaneous_start(order: str, quorum: bool) -> None:
    with Stage(quorum=quorum) as s:
        nodes = dict(zip("abc", _all_died(s), strict=True))
        s.crash(*nodes.values())
        s.put_back_logs(nodes["a"])
        for name in order:
            s.start(nodes[name])
            s.run(0.1)
        leader = s.wait_for_leader(nodes["b"], nodes["c"])
        assert len(s.ids(leader)) == 8
        s.publish(1)
        s.until(lambda: len(s.isr) == 3)
        s.settle()


@pytest.mark.parametrize("quorum", [False, True])
def test_former_leader_with_an_older_log_is_not_elected_when_others_start_later(quorum: bool) -> None:
    with Stage(quorum=quorum, reader=False) as s:  # nobody can tell a reader what the one node that is there does not know
        a, b, c = _all_died(s)
        s.run(2)
        s.crash(a, b, c)
        s.put_back_logs(a)
        s.start(a)
        s.run(10)
        s.start(b, c)
        leader = s.wait_for_leader(b, c)
        assert len(s.ids(leader)) == 8
        s.publish(1)
        s.until(lambda: len(s.isr) == 3)


def test_leader_that_restarts_within_half_a_second_is_not_replaced() -> None:
    with Stage() as s:
        a = s.leader
        s.publish(3)
        s.crash(a)
        s.start(a)
        began_s = s.now_s
        s.wait_for_leader()
        assert s.now_s - began_s < 0.5
        assert s.leader == a
        s.publish(1)
