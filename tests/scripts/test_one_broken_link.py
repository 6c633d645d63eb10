"""One broken link between a follower and the leader does not depose the leader.

b can't reach the leader and says so, again and again. c can. If any one report sufficed, a single bad cable would turn the
leadership round and round; so more than half of the ISR's followers must report, and a witness counts once, however often it
speaks. The leader lets b go from the ISR, and writes on.

Shows C9, L1, L8.
"""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from liftpy.core.replication.lease import INGEST
from tests.scripts.stage import Stage


@pytest.mark.parametrize("direction", ["both", "to the leader", "from the leader"])
def test_broken_link_between_leader_and_follower_removes_the_follower_from_the_isr(direction: str) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        epoch = s.leader_epoch
        s.publish(2)
        one, other = (a, b) if direction == "from the leader" else (b, a)
        s.cut(one, other, both=direction == "both")
        s.send()
        s.until(lambda: s.isr == {a, c}, within_s=10)
        s.always(lambda: s.leader == a and s.leader_epoch == epoch, 20)
        assert s.counted("reportLeader OK") + s.counted("reportLeader STALE") >= 1, "b has reported"
        s.publish(3)
        s.mend(a, b)
        s.until(lambda: s.isr == {a, b, c})
        assert s.leader_epoch == epoch


def test_leader_with_broken_links_to_both_followers_is_replaced() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.cut(a, b)
        s.cut(a, c)
        assert s.wait_for_leader(b, c) != a
        s.publish(2)


def test_leader_elected_as_standby_transfers_its_leadership_after_its_publish_link_was_lost() -> None:
    """The leader missed publishes, and a follower on standby heard them [A4]."""
    with Stage(stream=StreamConfig(failover_standby=True)) as s:
        s.publish(3)
        first = s.leader
        s.crash(first)
        second = s.wait_for_leader(*s.followers)
        s.start(first)
        s.until(lambda: len(s.isr) == 3)
        s.publish(3)
        links_down = s.cluster.network.links_down
        links_down.add((second, INGEST))
        s.always(lambda: s.leader == second, 0.5)
        links_down.clear()
        s.until(lambda: s.leader not in ("", second))
        assert s.counted("planned transfer: missed_publishes") == 1
