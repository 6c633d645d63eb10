"""The old leader returns with a longer log than the new one's.

It wrote records that nobody had fetched when it died. The new leader has written others at the same offsets, in a higher epoch. The
old leader asks by epochs where their logs part, cuts there, and follows; nothing that it cuts was acknowledged ALL or read.

Shows D5, D9, D10, D11, D12, D25.
"""

from __future__ import annotations

import pytest

from liftpy.config import AckPolicy
from tests.scripts.stage import Stage

KILLS = ("no reconciliation before the fetch", "off-by-one epoch start")


@pytest.mark.parametrize("power", [False, True])
def test_former_leader_with_a_longer_log_truncates_unreplicated_records(power: bool) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.cut(a, b)
        s.cut(a, c)
        alone = [s.send(AckPolicy.LEADER) for _ in range(4)]
        s.run(0.2)
        assert s.end(a) == 7
        if power:
            s.power_off(a, tail="kept")
        else:
            s.crash(a)
        s.mend(a, b)
        s.mend(a, c)
        s.wait_for_leader(b, c)
        s.publish(2)
        s.start(a)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        assert s.ids(a) == s.ids(b) == s.ids(c)
        assert not {i for one in alone for i in one.ids} & set(s.ids(a))
        assert [start for _, start in s.epochs(a)] == [0, 3]
