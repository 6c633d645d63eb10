"""Test AlterStream of the replication factor: placement of new replicas, and removal without the leader."""

from __future__ import annotations

import pytest
from cluster_driver import Driver, Error
from reassignment_driver import Moved

from liftpy.core.base.partition import MoveReason
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.wire._pb import cluster_pb2 as pb


def alter(driver: Driver, factor: int, **more: object) -> pb.ControlResponse:
    return driver.ask(alterStream=pb.AlterStream(name="orders", replicationFactor=factor, **more))  # type: ignore[arg-type]


def test_alter_stream_to_more_replicas_adds_one_replica_at_a_time_and_balances_nodes() -> None:
    moved = Moved("abcdef")
    moved.driver.create(partitions=6, replicationFactor=2)
    answer = alter(moved.driver, 4)
    assert answer.error == Error.OK
    assert [len(p.target) for p in answer.stream.partitions] == [4] * 6
    assert answer.stream.replicationFactor == 4
    assert all(p.moved_for is MoveReason.FACTOR for _, p in moved.partitions())
    moved.until(lambda: not moved.targets())
    assert all(len(set(p.replicas)) == len(p.isr) == 4 for _, p in moved.partitions())
    assert max(moved.held(n) for n in "abcdef") - min(moved.held(n) for n in "abcdef") <= 2
    moved.driver.ask(addPartitions=pb.AddPartitions(name="orders", partitions=7))
    assert len(moved.driver.partition(number=6).replicas) == 4
    assert decode_snapshot(encode_snapshot(moved.image)).streams == moved.image.streams


def test_alter_stream_to_fewer_replicas_keeps_the_leader() -> None:
    moved = Moved("abcd")
    moved.driver.create(partitions=4, replicationFactor=3)
    moved.driver.ask(electLeader=pb.ElectLeader(stream="orders", partition=0, node="c"))
    moved.promote()
    leaders = [p.leader for _, p in moved.partitions()]
    alter(moved.driver, 1)
    moved.until(lambda: not moved.targets())
    assert [p.replicas for _, p in moved.partitions()] == [(leader,) for leader in leaders]
    assert [p.leader for _, p in moved.partitions()] == leaders


def test_alter_stream_to_fewer_replicas_removes_replicas_outside_the_isr_first() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    driver.change_isr(["a", "c"])
    alter(driver, 2)
    assert driver.partition().target == ("a", "c")
    assert driver.partition().leaving == "b"


def test_alter_stream_during_a_move_continues_with_the_new_replica_count() -> None:
    moved = Moved("abcde")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    moved.copies = False
    moved.driver.ask(reassign=pb.Reassign(stream="orders", partition=0, replicas=["a", "b", "d"]))
    moved.step()
    alter(moved.driver, 4)
    assert moved.driver.partition().joining == "d"
    moved.copies = True
    moved.until(lambda: not moved.targets())
    assert len(moved.driver.partition().replicas) == 4
    assert set("abd") < set(moved.driver.partition().replicas)
    alter(moved.driver, 2)
    alter(moved.driver, 4)
    moved.until(lambda: not moved.targets())
    assert len(moved.driver.partition().isr) == 4


@pytest.mark.parametrize(("lower", "replicas"), [(3, "abc"), (2, "ab")])
def test_alter_stream_to_fewer_replicas_during_a_copy_cancels_the_copy(lower: int, replicas: str) -> None:
    moved = Moved("abcd")
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    moved.copies = False
    alter(moved.driver, 4)
    moved.step()
    assert moved.driver.partition().joining == "d"
    alter(moved.driver, lower)
    moved.until(lambda: not (moved.targets() or moved.driver.partition().joining))
    assert moved.driver.partition().replicas == tuple(replicas)


@pytest.mark.parametrize(
    ("factor", "error", "said"),
    [(0, Error.INVALID, "outside 1..32"), (33, Error.INVALID, "outside 1..32"), (4, Error.NOT_ENOUGH_NODES, "there are 2")],
)
def test_alter_stream_to_an_impossible_replication_factor_is_rejected(factor: int, error: Error.ValueType, said: str) -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(replicationFactor=2)
    driver.ask(setNode=pb.SetNode(nodeId="c", leaving=True))
    before = driver.fsm.image.streams
    answer = alter(driver, factor)
    assert (answer.error, said in answer.detail) == (error, True)
    assert driver.fsm.image.streams is before
    assert alter(driver, 2, uid="000009-0").error == Error.NOT_FOUND


def test_alter_stream_to_more_replicas_than_racks_is_rejected_with_the_number_of_racks() -> None:
    driver = Driver()
    for node in "abc":
        driver.register(node, rack="x" if node == "a" else "y")
    driver.create(replicationFactor=2, placement="rack-strict")
    assert "finds no node for replica 3" in alter(driver, 3).detail


def test_alter_stream_dry_run_shows_the_targets_and_changes_nothing() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(replicationFactor=2)
    before = driver.fsm.image.streams
    answer = alter(driver, 3, dryRun=True)
    assert set(answer.stream.partitions[0].target) == set("abc")
    assert driver.fsm.image.streams is before


def test_alter_stream_of_an_unplaced_stream_changes_the_replica_count() -> None:
    driver = Driver(("a", "b"))
    driver.create(replicationFactor=3)
    assert alter(driver, 2).error == Error.OK
    stream = driver.fsm.image.streams["orders"]
    assert driver.ask(placeStream=pb.PlaceStream(name="orders", uid=stream.uid)).error == Error.OK
    assert len(driver.partition().replicas) == 2


@pytest.mark.parametrize("policy", ["round-robin", "rack", "rendezvous", "least-loaded"])
def test_create_stream_places_no_replica_on_a_draining_node(policy: str) -> None:
    driver = Driver(("a", "b", "c", "d"))
    driver.ask(setNode=pb.SetNode(nodeId="b", leaving=True))
    driver.create(partitions=8, placement=policy)
    assert driver.fsm.image.replica_counts.get("b", 0) == 0
    assert len(driver.partition().replicas) == 3
    answer = driver.create("by-hand", manual=[pb.ReplicaList(partition=0, replicas=["b"])])
    assert (answer.error, "is being drained" in answer.detail) == (Error.INVALID, True)


def test_remove_node_of_a_node_with_replicas_is_rejected_with_the_command_to_use() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=4, replicationFactor=2)

    def remove(node: str) -> str:
        return driver.ask(removeNode=pb.RemoveNode(nodeId=node)).detail

    assert "is alive and holds 3 replicas of orders: drain it first: liftpy node drain a" in remove("a")
    driver.ask(setNode=pb.SetNode(nodeId="a", leaving=True))
    assert "they are on their way to others; liftpy node drain a --wait" in remove("a")
    driver.register("d")
    assert remove("d") == "node 'd' is alive: stop it first"
    driver.fence("b")
    assert (
        f"0 are on their way to others, {driver.fsm.image.replica_counts['b']} wait until it has been down for replacement_grace_s"
        in remove("b")
    )
    wish = pb.Reassign(stream="orders", partition=0, replicas=["c"], movedFor=pb.REPLACED)
    driver.ask(reassign=wish)
    moving = sum("b" in p.replicas and "b" not in p.target for p in driver.fsm.image.streams["orders"].partitions if p.target)
    assert f"{moving} are on their way" in remove("b")
