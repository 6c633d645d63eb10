"""Test the end of a twin: the simulated operator deletes one of two directories, which may be the last one with all records [D24]."""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from tests.scripts.stage import Stage
from tests.simulation.replica.clock import S
from tests.simulation.replica.plan import TWIN, Fault

_STARTS_S, _ENDS_S = 30.0, 90.0
_DRAW = 0.4
"""With this draw the twin starts after half of the time of the fault, and nothing disturbs the process of the original."""


def _copy_directory(s: Stage, node: str) -> None:
    """Copy the directory of a running node. The twin starts on the copy after ``_STARTS_S``, and ends after ``_ENDS_S``."""
    fault = Fault(0, TWIN, node, node, round((_ENDS_S - _STARTS_S) * S), _DRAW)
    assert s.cluster.twins.strike(fault)
    assert s.counted("twin: its original goes on") == 1


def test_twin_that_replaced_the_only_complete_node_leaves_the_directory_of_the_node() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        _copy_directory(s, a)
        s.restart(a)
        s.crash(b, c)
        s.until(lambda: s.isr == {a} and s.is_open(a))
        s.publish(5)
        s.crash(a)
        s.until(lambda: s.cluster.acting(a).host != a, within_s=_ENDS_S)
        assert s.status is PartitionStatus.OFFLINE
        s.until(lambda: not s.cluster.twins.of, within_s=_ENDS_S)
        s.start(b, c)
        s.until(lambda: s.role(a) == "WAITING")
        assert not s.ghost.may_be_gone
        assert len(s.ids(a)) == 8


def test_twin_that_replaced_a_node_is_kept_if_other_nodes_are_complete() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        _copy_directory(s, a)
        s.restart(a)
        s.publish(5)
        s.crash(a)
        s.until(lambda: s.cluster.acting(a).host != a and s.isr == {a, b, c}, within_s=_ENDS_S)
        s.until(lambda: not s.cluster.twins.of, within_s=_ENDS_S)
        assert s.counted("twin: only its original has everything") == 0
        assert not s.ghost.may_be_gone
        assert len(s.ids(a)) == 8


def test_twin_with_the_only_complete_directory_is_lost_by_the_fault_if_its_original_returns() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        _copy_directory(s, a)
        s.crash(a)
        s.until(lambda: s.cluster.acting(a).host != a and s.isr == {a, b, c}, within_s=_ENDS_S)
        s.move_leader(a)
        s.crash(b, c)
        s.until(lambda: s.isr == {a} and s.is_open(a))
        s.publish(5)
        assert not s.ghost.may_be_gone
        s.cluster.twins.of[a].crash(power=False)
        s.start(a)
        s.until(lambda: s.cluster.acting(a).host == a)
        assert s.status is PartitionStatus.OFFLINE
        s.until(lambda: not s.cluster.twins.of, within_s=_ENDS_S)
        assert s.ghost.may_be_gone
