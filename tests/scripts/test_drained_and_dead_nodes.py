"""The planner of the metadata leader with real replicas: drained nodes, dead nodes, returning nodes and changed weights.

Weight raised: a node that weighs more is not what is removed; whoever was evicted for it is. A node
that is drained and dies is replaced like any other. One that is back while another one of its partition is drained keeps its place. A
newcomer that has joined and dies for good gives its place back, and so does who was to stay when there are to be fewer.

Shows C3, D3, D6, M11, L2.
"""

from __future__ import annotations

import pytest

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import STREAM, Stage
from tests.scripts.test_reassignment import has_moved, holds_nothing, wanted

GRACE_S = 4.0
KILLS = (
    "a target with a dead member stays",
    "a copy is a replica at once",
    "gone before the learner has joined",
    "an unwanted learner goes on",
)


def drain(s: Stage, node: str, leaving: bool = True) -> None:
    """``liftpy node drain``."""
    response = s.command(pb.ControlRequest(setNode=pb.SetNode(nodeId=node, leaving=leaving)))
    assert response.error == pb.ControlResponse.OK, response.detail


def factor(s: Stage, count: int) -> None:
    """``liftpy stream alter --replicas``."""
    response = s.command(pb.ControlRequest(alterStream=pb.AlterStream(name=STREAM, replicationFactor=count)))
    assert response.error == pb.ControlResponse.OK, response.detail


def is_settled(s: Stage, *replicas: str) -> bool:
    """Whether exactly they hold it, all in sync, in whatever order."""
    return set(s.partition.replicas) == set(replicas) == s.isr and not s.partition.target


def test_node_weight_change_alone_moves_no_replica() -> None:
    with Stage(nodes=4) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        for node in (c, "n4"):
            assert s.command(pb.ControlRequest(setNode=pb.SetNode(nodeId=node, weight=4.0))).error == pb.ControlResponse.OK
        s.always(lambda: not s.partition.target, 2)
        wanted(s, a, c, "n4")
        s.until(lambda: has_moved(s, a, c, "n4"))
        s.until(lambda: holds_nothing(s, b))
        s.publish(2)
        assert s.ids(c) == s.ids("n4") == [1, 2, 3, 4, 5]


def test_reassignment_with_a_new_target_during_the_copy_replaces_the_learner() -> None:
    with Stage(nodes=5) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        joins = s.hold("changeIsr", sender=a)
        wanted(s, a, b, "n4")
        s.until(lambda: s.partition.joining == "n4" and s.cluster.replica("n4") is not None)
        wanted(s, a, b, "n5")
        s.until(lambda: s.partition.joining == "n5")
        joins.drop()
        s.until(lambda: has_moved(s, a, b, "n5"), within_s=60)
        s.until(lambda: holds_nothing(s, "n4") and holds_nothing(s, c))
        assert s.ids("n5") == [1, 2, 3]


def test_reassignment_cancelled_during_its_leadership_transfer_still_completes() -> None:
    with Stage(nodes=4) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        promotes = s.hold("reportPromotion")
        wanted(s, b, c, "n4")
        s.until(lambda: s.partition.status is not PartitionStatus.ONLINE, within_s=60)
        assert s.partition.leaving == a
        wanted(s)
        promotes.release()
        s.until(lambda: is_settled(s, b, c, "n4"), within_s=60)
        s.until(lambda: holds_nothing(s, a))
        s.publish(1)
        assert s.ids("n4") == [1, 2, 3, 4]


def test_reassignment_finishes_after_the_leader_dies_between_join_and_eviction() -> None:
    with Stage(nodes=4) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        wanted(s, a, b, "n4")
        s.until(lambda: "n4" in s.isr)
        s.hold("changeIsr", sender=a)
        if s.partition.target:
            assert c in s.partition.replicas
        s.crash(a)
        s.until(lambda: s.leader not in ("", a))
        s.publish(1)
        s.start(a)
        s.until(lambda: is_settled(s, a, b, "n4"), within_s=60)
        s.until(lambda: holds_nothing(s, c))
        assert s.ids("n4") == [1, 2, 3, 4]


def test_drained_node_that_dies_is_replaced_by_another_replica() -> None:
    with Stage(nodes=4, replacement_grace_s=300.0) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.crash(c)
        s.run(3)
        drain(s, c)
        s.until(lambda: is_settled(s, a, b, "n4"), within_s=60)
        s.start(c)
        s.until(lambda: holds_nothing(s, c))
        s.publish(1)
        assert s.ids("n4") == [1, 2, 3, 4]


def test_drained_leader_that_dies_is_replaced_by_another_replica() -> None:
    with Stage(nodes=4) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        drain(s, a)
        s.crash(a)
        s.until(lambda: is_settled(s, b, c, "n4"), within_s=60)
        s.publish(1)
        s.start(a)
        s.until(lambda: holds_nothing(s, a))
        assert s.ids("n4") == [1, 2, 3, 4]


def test_node_that_returns_while_another_is_drained_stays_in_the_replica_set() -> None:
    with Stage(nodes=5, replacement_grace_s=GRACE_S, min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        copies = s.hold("changeIsr", sender=a)
        drain(s, c)
        s.until(lambda: bool(s.partition.joining))
        s.crash(b)
        s.until(lambda: set(s.partition.target) == {a, "n4", "n5"}, within_s=60)
        joining = s.partition.joining
        s.start(b)
        s.until(lambda: set(s.partition.target) == {a, b, joining})
        copies.drop()
        s.until(lambda: {a, b} < set(s.partition.replicas) and is_settled(s, *s.partition.replicas), within_s=90)
        assert c not in s.partition.replicas
        s.until(lambda: holds_nothing(s, c))
        assert s.ids(b) == [1, 2, 3]


@pytest.mark.parametrize("fewer", [False, True])
def test_reassignment_finishes_and_publishes_are_acked_after_a_permanent_node_failure(fewer: bool) -> None:
    with Stage(nodes=4, replacement_grace_s=GRACE_S, ends_whole=False) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        if fewer:
            s.crash(b)
            s.until(lambda: b not in s.isr)
            wanted(s, a, b)
            s.until(lambda: is_settled(s, a, c), within_s=60)
        else:
            wanted(s, a, b, "n4")
            s.until(lambda: "n4" in s.partition.replicas)
            evicts = s.hold("changeIsr", sender=a)
            s.crash("n4")
            s.run(1)
            evicts.drop()
            s.until(lambda: is_settled(s, a, b, c) or is_settled(s, a, b, "n4"), within_s=60)
        s.publish(1)


def test_replication_factor_raised_and_lowered_with_a_dead_replica_ends_with_two_replicas() -> None:
    with Stage(nodes=5, replacement_grace_s=300.0) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.crash(c)
        s.until(lambda: c not in s.isr)
        factor(s, 5)
        s.run(3)
        factor(s, 2)
        s.run(3)
        s.start(c)
        s.until(lambda: len(s.partition.replicas) == 2 and not s.partition.target and len(s.isr) == 2, within_s=90)
        s.publish(1)
        assert a in s.isr or b in s.isr
