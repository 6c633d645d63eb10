"""Test the metadata leader's planner: it replaces dead and drained nodes, within limits, and moves nothing else."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase as Phase_
from hypothesis import given, settings
from hypothesis import strategies as st
from reassignment_driver import GRACE_S, Moved

from liftpy.config import NS_PER_S
from liftpy.core.base.partition import MoveReason, PartitionStatus
from liftpy.core.metadata.controller.reassignment import REPEAT_AFTER_NS, Phase, movements
from liftpy.core.wire._pb import cluster_pb2 as pb


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


def test_reassignment_planner_limits_copies_and_begins_the_oldest_first() -> None:
    moved = Moved("abcdef", max_copies=3, max_copies_per_node=2)
    moved.driver.create(partitions=12, replicationFactor=1)
    for number in reversed(range(12)):
        reassign(moved, "f" if moved.driver.partition(number=number).leader == "e" else "e", partition=number)
    moved.copies = False
    for _ in range(5):
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
