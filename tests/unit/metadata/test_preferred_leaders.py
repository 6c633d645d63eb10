"""Test preferred leaders: which leaderships may return, and when the metadata leader moves them."""

from __future__ import annotations

from cluster_driver import Error
from election_driver import Cluster

from liftpy.config import NS_PER_S
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.controller.election_triggers import PreferredLeaders, partitions_off_preferred_leader
from liftpy.core.wire._pb import cluster_pb2 as pb


def moved(cluster: Cluster, node: str) -> None:
    """Move the leadership to ``node`` with an election command."""
    image = cluster.fsm.image.streams["orders"]
    assert cluster.ask(electLeader=pb.ElectLeader(stream="orders", uid=image.uid, node=node)).error == Error.OK
    cluster.promote()
    assert cluster.partition().leader == node


def test_misplaced_leaderships_are_partitions_whose_electable_preferred_leader_does_not_lead() -> None:
    cluster = Cluster()
    assert partitions_off_preferred_leader(cluster.fsm.image) == []
    moved(cluster, "b")
    assert [(key.partition, node) for key, node in partitions_off_preferred_leader(cluster.fsm.image)] == [(0, "a")]
    cluster.fence("a")
    assert partitions_off_preferred_leader(cluster.fsm.image) == []


def test_preferred_leader_rebalance_moves_at_the_second_check_and_never_if_disabled() -> None:
    cluster = Cluster()
    moved(cluster, "b")
    on, off = PreferredLeaders(10.0), PreferredLeaders(0.0)
    for leaders in (on, off):
        leaders.lead(0)
    image = cluster.fsm.image
    assert on.take_due(image, 9 * NS_PER_S) == []
    assert on.take_due(image, 10 * NS_PER_S) == [], "seen for the first time: it may have been lost a moment ago"
    assert [proposal.node for proposal in on.take_due(image, 20 * NS_PER_S)] == ["a"]
    assert off.take_due(image, 10**6 * NS_PER_S) == []
    assert off.next_deadline_ns() is None
    on.resign()
    assert on.take_due(image, 10**6 * NS_PER_S) == []


def test_preferred_leader_rebalance_moves_nothing_during_an_election() -> None:
    cluster = Cluster()
    moved(cluster, "b")
    leaders = PreferredLeaders(10.0)
    leaders.lead(0)
    leaders.take_due(cluster.fsm.image, 10 * NS_PER_S)
    cluster.fence("b")
    assert cluster.partition().status is not PartitionStatus.ONLINE
    assert leaders.take_due(cluster.fsm.image, 20 * NS_PER_S) == []


def test_preferred_leader_rebalance_uses_an_interval_changed_while_leading() -> None:
    cluster = Cluster()
    moved(cluster, "b")
    image, leaders = cluster.fsm.image, PreferredLeaders(0.0)
    leaders.change(10.0)
    assert leaders.next_deadline_ns() is None, "who does not lead looks at nothing"
    leaders.change(0.0)
    leaders.lead(0)
    leaders.change(10.0)
    assert leaders.take_due(image, 5 * NS_PER_S) == [], "seen for the first time"
    assert leaders.take_due(image, 14 * NS_PER_S) == []
    assert [proposal.node for proposal in leaders.take_due(image, 15 * NS_PER_S)] == ["a"]
    leaders.change(0.0)
    assert leaders.take_due(image, 10**6 * NS_PER_S) == []
