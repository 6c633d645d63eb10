"""The shorter member of the ISR is elected, and the longer one cuts.

b has a tail that a never committed, for c did not have it. Then a dies while b can't be heard, and c is elected: it has everything
that was acknowledged. b comes back with more than its leader; what it has more was acknowledged to nobody, and it cuts it, at the
largest common prefix and not at anybody's HW.

Shows D2, D9, D10, D12, C5.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage

KILLS = ("no reconciliation before the fetch",)


@pytest.mark.parametrize("more", [0, 3])
def test_elected_shorter_isr_member_makes_the_longer_member_truncate(more: int) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        acked = s.publish(3)
        s.settle()
        answers = s.hold("fetch answer", "response", sender=a, receiver=c)
        s.isolate(c)
        tail = [s.send() for _ in range(2)]
        s.until(lambda: s.end(b) == 5)
        s.crash(a)
        s.partition_off(b)
        answers.drop()
        s.reconnect(c)
        s.wait_for_leader(c)
        assert s.end(c) == 3
        assert not any(one.acked for one in tail)
        s.start(a)
        s.until(lambda: s.isr == {a, c} and s.is_open(c))
        written = s.publish(more)
        s.rejoin(b)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        assert s.ids(b) == [i for one in [*acked, *written] for i in one.ids]
