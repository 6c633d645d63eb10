"""Test the reassignment planner: moves over time, and what it proposes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase as Phase_
from hypothesis import given, settings
from hypothesis import strategies as st
from reassignment_driver import GRACE_S, Moved

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus
from liftpy.core.metadata.controller.reassignment import (
    NO_COPY_NS,
    PLAN_EVERY_NS,
    REPEAT_AFTER_NS,
    Phase,
    ReassignmentPlanner,
    movements,
)
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.small_images import a_partition, a_stream, an_image


def drain(moved: Moved, node: str, leaving: bool = True) -> None:
    assert moved.driver.ask(setNode=pb.SetNode(nodeId=node, leaving=leaving)).error == pb.ControlResponse.OK


def settled(moved: Moved) -> bool:
    return not any(p.target or p.joining for _, p in moved.partitions())


def reassign(moved: Moved, *replicas: str, partition: int = 0, reason: pb.MoveReason = pb.BY_HAND) -> None:
    wish = pb.Reassign(stream="orders", partition=partition, replicas=replicas, movedFor=reason)
    assert moved.driver.ask(reassign=wish).error == pb.ControlResponse.OK


def test_reassignment_planner_of_a_new_metadata_leader_restarts_the_grace_period_of_dead_nodes() -> None:
    moved = Moved("abcd", max_copies=1)
    moved.driver.create(partitions=8, replicationFactor=3)
    moved.down("c")
    moved.look()
    moved.pass_time(GRACE_S - 2)
    moved.elect_a_new_metadata_leader()
    moved.look()
    moved.pass_time(4)
    assert moved.look() == []
    moved.pass_time(GRACE_S)
    moved.step()
    begun = len(moved.targets())
    assert begun
    moved.elect_a_new_metadata_leader()
    held = moved.held("c")
    moved.until(lambda: settled(moved))
    assert moved.held("c") == held - begun, "what has a target goes on, the rest waits for the grace"


def test_reassignment_planner_keeps_the_replicas_of_a_node_that_returns_within_the_grace_period() -> None:
    moved = Moved()
    moved.driver.create(partitions=8, replicationFactor=3)
    held = moved.held("c")
    for _ in range(3):
        moved.down("c")
        moved.look()
        moved.pass_time(GRACE_S - 5)
        moved.driver.unfence("c")
        moved.step()
    moved.pass_time(GRACE_S * 2)
    assert (moved.step(), moved.held("c")) == ([], held)


def test_reassignment_planner_keeps_unreplaced_replicas_of_a_node_that_returns() -> None:
    moved = Moved("abcd", max_copies=2)
    moved.driver.create(partitions=8, replicationFactor=3)
    moved.down("c")
    moved.look()
    moved.pass_time(GRACE_S)
    moved.until(lambda: moved.held("c") == 4)
    moved.copies = False
    moved.step()
    assert any(p.joining for _, p in moved.partitions())
    moved.driver.unfence("c")
    moved.copies = True
    held = moved.held("c")
    moved.look()
    assert settled(moved)
    assert moved.held("c") == held
    moved.until(lambda: moved.step() == [])
    assert all("c" in p.isr for _, p in moved.partitions() if "c" in p.replicas)


def test_reassignment_planner_after_a_cancelled_drain_starts_no_further_moves() -> None:
    moved = Moved("abcd", max_copies=1)
    moved.driver.create(partitions=8, replicationFactor=3)
    drain(moved, "b")
    moved.until(lambda: moved.held("b") == 3)
    drain(moved, "b", leaving=False)
    moved.until(lambda: settled(moved))
    assert moved.held("b") in (2, 3)


@pytest.mark.parametrize(("reason", "goes_on"), [(pb.BY_HAND, False), (pb.REBALANCED, False), (pb.FACTOR, True)])
def test_reassignment_planner_cancels_or_replaces_a_target_on_a_drained_node_depending_on_move_reason(
    reason: pb.MoveReason, goes_on: bool
) -> None:
    moved = Moved("abcde")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    reassign(moved, "a", "b", "c", "d", reason=reason)
    drain(moved, "d")
    moved.until(lambda: settled(moved))
    assert moved.driver.partition().replicas == (("a", "b", "c", "e") if goes_on else ("a", "b", "c"))


def _report_failed_storage(moved: Moved, node: str, partition: int = 0) -> None:
    """Let a replica on ``node`` report that its storage has failed. The report changes nothing in the image."""
    stream = moved.image.streams["orders"]
    report = pb.LeaveIsr(
        stream="orders",
        uid=stream.uid,
        partition=partition,
        node=node,
        incarnation=moved.driver.incarnation(node),
        reason="full",
    )
    moved.moving.storage_failed(report, moved.image, moved.now_ns)


@pytest.mark.parametrize("has_other", [True, False])
def test_reassignment_planner_replaces_a_node_with_failed_storage_during_a_copy(has_other: bool) -> None:
    moved = Moved("abcde" if has_other else "abcd")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    drain(moved, "c")
    moved.copies = False
    moved.until(lambda: moved.driver.partition().joining == "d")
    _report_failed_storage(moved, "d")
    for _ in range(3):
        moved.look()
    assert moved.driver.partition().joining == ("e" if has_other else "")
    moved.copies = True
    moved.pass_time(NO_COPY_NS / NS_PER_S)
    moved.until(lambda: settled(moved))
    assert moved.driver.partition().replicas == ("a", "b", "e" if has_other else "d"), "without another node, it tries again"


@pytest.mark.parametrize("restarts", [True, False])
def test_reassignment_planner_repeats_a_failed_copy_that_an_operator_requested(restarts: bool) -> None:
    moved = Moved("abcde")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    reassign(moved, "a", "b", "d")
    moved.copies = False
    moved.step()
    _report_failed_storage(moved, "d")
    for _ in range(3):
        moved.step()
    assert (moved.driver.partition().joining, moved.driver.partition().target) == ("", ("a", "b", "d"))
    if restarts:
        moved.driver.register("d")
    else:
        moved.pass_time(NO_COPY_NS / NS_PER_S)
    moved.step()
    assert moved.driver.partition().joining == "d"


def test_reassignment_planner_knows_the_rack_of_a_replica_with_failed_storage() -> None:
    moved = Moved("abcde", racks="xyzyz")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    _report_failed_storage(moved, "b")
    drain(moved, "c")
    moved.until(lambda: not settled(moved))
    assert moved.targets() == {0: ("a", "b", "e")}, "not d, which is in the rack of b"


def test_reassignment_planner_ignores_failed_storage_of_an_earlier_process() -> None:
    moved = Moved("abcde")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    reassign(moved, "a", "b", "d")
    moved.copies = False
    moved.step()
    stream = moved.image.streams["orders"]
    for node in ("d", "z"):
        report = pb.LeaveIsr(stream="orders", uid=stream.uid, node=node, incarnation=1 << 20)
        moved.moving.storage_failed(report, moved.image, moved.now_ns)
    moved.step()
    assert moved.driver.partition().joining == "d"


def test_reassignment_planner_limits_copies_and_begins_the_oldest_first() -> None:
    moved = Moved("abcdef", max_copies=3, max_copies_per_node=2)
    moved.driver.create(partitions=12, replicationFactor=1)
    for number in reversed(range(12)):
        reassign(moved, "f" if moved.driver.partition(number=number).leader == "e" else "e", partition=number)
    moved.copies = False
    assert moved.step() == ["beginCopy"] * 3
    for _ in range(4):
        moved.step()
    joining = [p for _, p in moved.partitions() if p.joining]
    assert len(joining) == 3
    assert max(Counter(p.joining for p in joining).values()) == 2
    assert max(Counter(p.leader for p in joining).values()) <= 2
    assert {p.partition for p in joining} <= set(range(8, 12)), "the oldest wishes"
    moved.copies = True
    moved.until(lambda: settled(moved))
    assert moved.most_copies == 3


def test_reassignment_planner_begins_no_copy_of_a_partition_with_a_reduced_isr() -> None:
    moved = Moved("abcd")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    moved.driver.change_isr(["a", "b"])
    reassign(moved, "a", "c", "d")
    assert moved.look() == [], "c is there, and not in the ISR"
    moved.driver.change_isr(["a", "b", "c"])
    assert moved.look() == ["beginCopy"]
    moved.until(lambda: settled(moved))
    moved.driver.change_isr(["a", "d"])
    reassign(moved, "a", "b", "d")
    assert moved.look() == ["beginCopy"], "c is there, and is to go"


def test_reassignment_planner_waits_for_a_partition_in_an_election() -> None:
    moved = Moved("abcd")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    reassign(moved, "a", "b", "d")
    moved.driver.ask(electLeader=pb.ElectLeader(stream="orders", partition=0, node="b"))
    assert moved.driver.partition().status is PartitionStatus.CANDIDATE_FOUND
    assert moved.look() == []
    moved.promote()
    assert moved.look() == ["beginCopy"]


def test_reassignment_planner_places_replacements_by_rack_and_waits_with_rack_strict() -> None:
    moved = Moved("abcdef", racks="xxyyzz")
    moved.driver.create(partitions=6, replicationFactor=3, placement="rack-strict")
    moved.driver.create("loose", partitions=6, replicationFactor=3, placement="rack")
    drain(moved, "e")
    drain(moved, "f")
    for _ in range(60):
        moved.step()
    rack = dict(zip("abcdef", "xxyyzz", strict=True))
    for stream, p in moved.partitions():
        racks = {rack[n] for n in p.replicas}
        assert racks == ({"x", "y", "z"} if stream.name == "orders" else {"x", "y"})
    drain(moved, "e", leaving=False)
    moved.until(lambda: not moved.held("f") and settled(moved))
    assert all({rack[n] for n in p.replicas} == {"x", "y", "z"} for stream, p in moved.partitions() if stream.name == "orders")


def test_reassignment_planner_leaves_replicas_on_a_drained_node_if_no_other_node_can_host_them() -> None:
    moved = Moved("abc")
    moved.driver.create(partitions=2, replicationFactor=3)
    drain(moved, "c")
    for _ in range(4):
        moved.step()
    assert moved.held("c") == 2
    moved.driver.register("d")
    moved.until(lambda: not moved.held("c"))


def test_reassignment_planner_repeats_a_lost_proposal_after_a_delay() -> None:
    moved = Moved("abcd")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    reassign(moved, "a", "b", "d")
    moved.moving.image_changed(moved.image, 0)
    assert len(moved.moving.take_due(0)) == 1
    moved.driver.create("other", replicationFactor=1)
    moved.moving.image_changed(moved.image, 1)
    assert moved.moving.take_due(NS_PER_S) == []
    assert len(moved.moving.take_due(REPEAT_AFTER_NS + NS_PER_S)) == 1


def test_reassignment_planner_after_a_stream_deletion_has_no_moves_of_the_stream() -> None:
    moved = Moved("abcd", max_copies=2)
    moved.copies = False
    moved.driver.create(partitions=8, replicationFactor=2)
    drain(moved, "b")
    moved.step()
    moved.step()
    moved.driver.delete("orders")
    moved.driver.create(partitions=4, replicationFactor=3, placement="least-loaded")
    assert moved.look() == []
    assert moved.moving.next_deadline_ns() is None


def test_reassignment_reports_of_a_drain_show_each_phase() -> None:
    moved = Moved("abcd")
    moved.copies = False
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    drain(moved, "c")
    moved.look()
    [waits] = movements(moved.image)
    assert (waits.phase, waits.into, waits.out, waits.why) == (Phase.WAITS, "d", "c", "drain")
    moved.look()
    assert movements(moved.image)[0].phase is Phase.COPIES
    moved.driver.change_isr(["a", "b", "c", "d"])
    [drops] = movements(moved.image)
    assert (drops.phase, drops.into, drops.out, drops.target) == (Phase.DROPS, "", "c", ("a", "b", "d"))
    moved.until(lambda: movements(moved.image) == [])
    assert moved.driver.partition().moved_for is MoveReason.BY_HAND


@settings(max_examples=40, phases=[Phase_.generate])
@given(st.data())
def test_reassignment_planner_after_random_faults_ends_with_full_isr_on_the_remaining_nodes(data: st.DataObject) -> None:
    moved = Moved("abcdef", max_copies=data.draw(st.integers(1, 8)), max_copies_per_node=data.draw(st.integers(1, 4)))
    moved.driver.create(partitions=data.draw(st.integers(1, 9)), replicationFactor=data.draw(st.integers(2, 3)))
    away: set[str] = set()
    for _ in range(data.draw(st.integers(3, 25))):
        node = data.draw(st.sampled_from("abcdef"))
        match data.draw(st.sampled_from(["step", "step", "down", "back", "drain", "stay", "time", "leader"])):
            case "down" if not away:
                moved.down(node)
                away.add(node)
            case "back" if away:
                moved.driver.unfence(away.pop())
            case "drain":
                drain(moved, node)
            case "stay":
                drain(moved, node, leaving=False)
            case "time":
                moved.pass_time(GRACE_S)
            case "leader":
                moved.elect_a_new_metadata_leader()
        moved.copies = data.draw(st.booleans())
        moved.step()
    for node in away:
        moved.driver.unfence(node)
    for node in data.draw(st.permutations("abcdef"))[2:]:
        drain(moved, node, leaving=False)
    moved.copies = True
    factor = moved.image.streams["orders"].replication_factor
    leaving = [node for node, facts in moved.image.nodes.items() if facts.leaving]

    def at_rest() -> bool:
        return settled(moved) and all(p.status is PartitionStatus.ONLINE for _, p in moved.partitions())

    moved.until(lambda: at_rest() and not any(moved.held(node) for node in leaving))
    for _ in range(3):
        moved.step()
    for _, p in moved.partitions():
        assert len(set(p.replicas)) == factor
        assert set(p.isr) == set(p.replicas)
    assert moved.step() == []


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
