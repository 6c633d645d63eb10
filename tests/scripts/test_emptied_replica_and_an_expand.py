"""A replica with an emptied disk registers while an ISR change that adds it is in flight (KIP-841, KIP-903).

c has caught up, and the leader asks the metadata group to let it in. Before the request arrives, c's disk is replaced, and c
registers anew. The request was true when it was made, and nothing about the partition has changed since: only c's incarnation
has. Let in, c counts as a copy of what it does not have.

Shows C6, C12, D3, D19, D24.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("join by another incarnation", "positions only grow")


def test_isr_expand_request_for_a_former_incarnation_is_rejected() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        expand = s.hold("changeIsr", sender=a)
        s.reconnect(c)
        s.until(lambda: expand.count > 0)
        assert s.end(c) == 3
        s.crash(c)
        s.empty_disk(c)
        empty = s.hold("data", receiver=c)
        s.start(c)
        s.until(lambda: s.role(c) == "FOLLOWER")
        refused_before = s.counted("changeIsr FENCED")
        expand.release()
        s.run(0.5)
        assert s.counted("changeIsr FENCED") > refused_before
        assert (s.isr, s.end(c)) == ({a, b}, 0)
        assert s.position(c) in (-1, None), "what the last incarnation had is forgotten"
        empty.release()
        s.until(lambda: s.isr == {a, b, c})
        assert s.ids(c) == [1, 2, 3]


def test_emptied_replica_leaves_the_isr_when_it_registers() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.crash(c)
        s.empty_disk(c)
        s.isolate(c)
        s.start(c)
        s.until(lambda: s.isr == {a, b})
        s.crash(a)
        assert s.wait_for_leader(b, c) == b
        s.reconnect(c)
        s.until(lambda: c in s.isr)
        assert s.ids(c) == [1, 2, 3]
