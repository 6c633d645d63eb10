"""The ISR has two members or one, and a fault lasts: a reachable leader stays, an unreachable leader is replaced.

With two members there is one witness, and it may be the one that is cut off: deposing a healthy leader on its word alone
leaves the partition to a node that nobody reaches. So the metadata leader asks the accused over the bus first. One that still
serves stays, and the witness leaves the ISR by lag, for a third replica to take its place. With one member nobody of the ISR
can witness: any live replica may, toward one that is complete. A leader that knows itself that its data path is down, or that
none of two live replicas can fetch from it, gives the leadership up. Nobody is elected who may lack what was committed: then
the partition waits.

Shows C5, C9, D1, L10.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage

_WITHIN_S = 10


def _two(s: Stage) -> tuple[str, str, str]:
    """(leader, the other member, a healthy replica that is behind and just outside)."""
    a, b, c = s.leader, *s.followers
    s.publish(2)
    s.settle()
    s.isolate(c)
    s.until(lambda: s.isr == s.isr_known_to(a) == {a, b})
    s.publish(2)
    s.until(lambda: s.hw(b) == 3)
    return a, b, c


def test_isolated_follower_in_an_isr_of_two_triggers_no_election() -> None:
    with Stage() as s:
        a, b, c = _two(s)
        s.isolate(b)
        s.reconnect(c)
        epoch = s.leader_epoch
        s.acked_again(_WITHIN_S)
        s.always(lambda: (s.leader, s.leader_epoch) == (a, epoch), 20)
        assert s.isr == {a, c}


def test_leader_in_an_isr_of_two_with_a_broken_link_to_one_of_three_nodes_stays_leader() -> None:
    with Stage() as s:
        a, b, c = _two(s)
        s.cut(a, b)
        s.reconnect(c)
        s.acked_again(_WITHIN_S)
        assert s.leader == a


def test_leader_in_an_isr_of_two_with_a_broken_link_between_its_members_is_not_replaced() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = _two(s)
        s.crash(c)
        s.cut(a, b)
        s.acked_again(_WITHIN_S)
        assert s.leader == a


@pytest.mark.parametrize("metadata", [True, False])
def test_isolated_leader_in_an_isr_of_two_is_replaced(metadata: bool) -> None:
    with Stage() as s:
        a, b, c = _two(s)
        s.reconnect(c)
        s.isolate(a) if metadata else s.partition_off(a)
        s.acked_again(_WITHIN_S)
        assert s.leader == b


def test_leader_in_an_isr_of_two_that_no_follower_can_fetch_from_is_replaced() -> None:
    with Stage() as s:
        a, b, c = _two(s)
        s.cut(a, b)
        s.cut(a, c)
        s.reconnect(c)
        s.acked_again(_WITHIN_S)
        assert s.leader == b


def test_unreachable_leader_in_an_isr_of_one_is_replaced_by_a_complete_replica() -> None:
    with Stage() as s:
        a, b, c = _two(s)
        s.crash(b)
        s.until(lambda: s.isr == {a})
        s.isolate(a)
        s.start(b)
        s.reconnect(c)
        s.acked_again(_WITHIN_S)
        assert s.leader == b
        assert len(s.ids(b)) >= 4


def test_unreachable_leader_in_an_isr_of_one_is_not_replaced_without_a_complete_replica() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = _two(s)
        s.crash(b)
        s.until(lambda: s.isr == {a})
        s.publish(1)
        s.isolate(a)
        s.start(b)
        s.reconnect(c)
        s.always(lambda: s.leader in ("", a), 30)
        assert s.isr == {a}
        s.reconnect(a)
        s.acked_again(_WITHIN_S)


def test_isolated_leader_in_an_isr_of_two_resigns_without_reports_of_followers() -> None:
    with Stage() as s:
        a, b, c = _two(s)
        s.reconnect(c)
        s.hold("reportLeader")
        s.isolate(a)
        s.acked_again(_WITHIN_S)
        assert s.leader == b
