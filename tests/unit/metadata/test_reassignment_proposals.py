"""Test the order and the limits of the planner's proposals, and what it forgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus
from liftpy.core.metadata.controller.reassignment import PLAN_EVERY_NS, REPEAT_AFTER_NS, ReassignmentPlanner
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.small_images import a_partition, a_stream, an_image

GRACE_NS = 300 * NS_PER_S


def image_of(*partitions: PartitionState, nodes: str = "abcd", fenced: str = "", leaving: str = "") -> ClusterImage:
    image = an_image(a_stream(*partitions), nodes, fenced)
    for node_id in leaving:
        image = replace(image, nodes=image.nodes.set(node_id, replace(image.nodes[node_id], leaving=True)))
    return image


def changed(image: ClusterImage, number: int, **fields: Any) -> ClusterImage:
    """Return a changed image with the next index."""
    stream = image.streams["s"]
    return image.with_partition(stream, replace(stream.partitions[number], **fields))


def node(image: ClusterImage, node_id: str, **fields: Any) -> ClusterImage:
    return replace(image, nodes=image.nodes.set(node_id, replace(image.nodes[node_id], **fields)))


def many(count: int, **fields: Any) -> list[PartitionState]:
    return [a_partition(partition=number, **fields) for number in range(count)]


class Planner:
    """Provide a planner that leads from time 0."""

    def __init__(self, image: ClusterImage, **config: Any) -> None:
        self.moving = ReassignmentPlanner(ReplicationConfig(**config))
        self.now_ns = 0
        self.image = image
        self.moving.lead(image, 0)

    def look(self, image: ClusterImage | None = None, *, after_ns: int = PLAN_EVERY_NS) -> list[Any]:
        self.now_ns += after_ns
        if image is not None:
            self.image = image
            self.moving.image_changed(image, self.now_ns)
        return self.moving.take_due(self.now_ns)

    def numbers(self, image: ClusterImage | None = None, *, after_ns: int = PLAN_EVERY_NS) -> list[tuple[str, int]]:
        return [(type(message).__name__, message.partition) for message in self.look(image, after_ns=after_ns)]


# ---- what is proposed ----------------------------------------------------------------------------------------------------
def test_reassignment_planner_replaces_dead_nodes_before_drained_ones_and_the_longest_dead_first() -> None:
    ones = [a_partition(partition=n, replicas=(r,), isr=(r,), leader=r) for n, r in enumerate("abcd")]
    image = image_of(*ones, nodes="abcdef", fenced="b", leaving="a")
    planner = Planner(image, max_copies=1)
    assert planner.numbers() == [("Reassign", 0)], "b is down, and may come back"
    both = node(image, "c", fenced=True)
    assert planner.numbers(both, after_ns=GRACE_NS // 2) == [("Reassign", 0)]
    found = planner.look(after_ns=GRACE_NS)
    assert [(m.partition, m.movedFor) for m in found] == [(1, pb.REPLACED), (2, pb.REPLACED)], "room for two, AHEAD of one copy"
    assert planner.moving.counters == {"targets: drain": 2, "targets: a node is down": 2}


def test_reassignment_planner_with_a_grace_period_of_zero_replaces_no_node() -> None:
    planner = Planner(image_of(a_partition(), fenced="c"), replacement_grace_s=0)
    assert planner.look(after_ns=GRACE_NS * 100) == []
    assert planner.moving.next_deadline_ns() is None


def test_reassignment_planner_picks_a_replacement_with_the_fewest_replicas_in_another_rack() -> None:
    def of_racks(image: ClusterImage, racks: str) -> ClusterImage:
        for node_id, rack in zip(sorted(image.nodes), racks, strict=True):
            image = node(image, node_id, rack=rack)
        return image

    # b and c go together: their racks count for nobody any more
    both = of_racks(image_of(a_partition(), nodes="abcde", leaving="bc"), "xyzzy")
    assert [tuple(m.replicas) for m in Planner(both).look()] == [("a", "d", "e")]
    # one can take a place: c stays where it is until another one comes
    one = image_of(a_partition(), nodes="abcd", leaving="bc")
    assert [tuple(m.replicas) for m in Planner(one).look()] == [("a", "d", "c")]
    # e holds nothing, d a replica
    least = image_of(a_partition(leader="b"), a_partition(partition=1, replicas=("d",), isr=("d",), leader="d"), nodes="abcde")
    assert [tuple(m.replicas) for m in Planner(node(least, "a", leaving=True)).look()] == [("e", "b", "c")]
    # c waits for d, which is drained too; a holds the partition, though the target does not name it
    waits = image_of(a_partition(target=("b", "c", "d"), moved_for=MoveReason.FACTOR), nodes="abcd", leaving="d")
    assert Planner(waits).look() == []
    # what comes to a node counts as held already: d gets three, e has one
    coming = [a_partition(partition=n, target=("a", "b", "d")) for n in range(3)]
    there = [a_partition(partition=3, replicas=("e",), isr=("e",), leader="e"), a_partition(partition=4)]
    image = image_of(*coming, *there, nodes="abcde", leaving="b")
    found = [m for m in Planner(image).look() if isinstance(m, pb.Reassign) and m.partition == 4]
    assert [tuple(m.replicas) for m in found] == [("a", "e", "c")]


# ---- bounds --------------------------------------------------------------------------------------------------------------
def test_reassignment_planner_transfers_at_most_sixteen_leaderships_of_a_drained_node_at_once() -> None:
    image = image_of(*many(20), leaving="a")
    planner = Planner(image)
    assert planner.numbers() == [("ElectLeader", n) for n in range(16)], (
        "the other four are not moved before they are led elsewhere"
    )
    for number in range(16):
        image = changed(image, number, status=PartitionStatus.CANDIDATE_FOUND, leader="", candidate="b", epoch=7)
    assert planner.numbers(image, after_ns=REPEAT_AFTER_NS * 2) == []
    for number in range(3):
        image = changed(image, number, status=PartitionStatus.ONLINE, leader="b", candidate="", epoch=8)
    found = planner.numbers(image, after_ns=REPEAT_AFTER_NS * 2)
    assert [number for kind, number in found if kind == "ElectLeader"] == [16, 17, 18]
    assert [number for kind, number in found if kind == "Reassign"] == [0, 1, 2]


LEADS: dict[str, Any] = {"leader": "b", "moved_for": MoveReason.LEADERSHIPS}


def test_reassignment_planner_rebalances_at_most_sixteen_leaderships_at_once() -> None:
    image = image_of(*many(20, **LEADS))
    planner = Planner(image)
    first = planner.look()
    assert first == [pb.ElectLeader(stream="s", uid="u1", partition=n, node="a") for n in range(16)]
    assert planner.moving.counters == {"leaderships_rebalanced": 16}
    under_way = image
    for number in range(16):
        under_way = changed(under_way, number, leader="", candidate="a", status=PartitionStatus.CANDIDATE_FOUND, epoch=7)
    assert planner.look(under_way) == []
    led = under_way
    for number in range(3):
        led = changed(
            led, number, leader="a", candidate="", status=PartitionStatus.ONLINE, epoch=8, moved_for=MoveReason.BY_HAND
        )
    assert planner.numbers(led) == [("ElectLeader", n) for n in (16, 17, 18)]
    drained = Planner(image_of(*many(20, **LEADS), leaving="b"))
    assert drained.numbers() == [("ElectLeader", n) for n in range(16)], "of a node that is drained, and once each"


def test_reassignment_planner_cancels_a_leadership_move_to_a_removed_or_drained_node() -> None:
    for gone in ({"leaving": "a"}, {"nodes": "bcd"}):
        planner = Planner(image_of(a_partition(**LEADS, isr=("b", "c")), **gone))  # type: ignore[arg-type]
        assert planner.look() == [pb.Reassign(stream="s", uid="u1", partition=0, cancel=True, epoch=6)]
        assert planner.moving.counters == {"moves_cancelled_node_unavailable": 1}
    down = Planner(image_of(a_partition(**LEADS, isr=("b", "c")), fenced="a"), replacement_grace_s=60)
    assert down.look() == [], "it may come back"
