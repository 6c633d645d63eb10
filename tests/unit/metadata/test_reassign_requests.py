"""Test Reassign: full nodes, min_isr during a move, and batches. ``golden/reassignments.txt`` has its stories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_driver import Driver

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.controller.admission import RequestSubject, refusal
from liftpy.core.metadata.controller.partitions import finish_reached_target
from liftpy.core.wire._pb import cluster_pb2 as pb


@pytest.fixture
def driver() -> Driver:
    made = Driver(("a", "b", "c", "d", "e"))
    made.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    return made


def test_reassign_to_a_full_node_is_rejected(driver: Driver) -> None:
    driver.register("full", partitionBudget=1)
    driver.create("other", manual=[pb.ReplicaList(partition=0, replicas=["full"])])
    wish = pb.Reassign(stream="orders", partition=0, replicas=["a", "b", "full"])
    assert "no room on 'full'" in driver.ask(reassign=wish).detail


def test_effective_min_isr_during_a_reassign_is_at_most_the_smaller_replica_count() -> None:
    config = StreamConfig()
    moving = PartitionState(partition=0, replicas=("a",), isr=("a",), leader="a", leader_epoch=1, epoch=1, target=("b",))
    assert moving.min_isr(config) == 1
    assert replace(moving, replicas=("b", "a")).min_isr(config) == 1
    assert replace(moving, replicas=("a",), target=("a", "b", "c")).min_isr(config) == 1
    assert replace(moving, replicas=("a", "b"), target=("a", "b", "c")).min_isr(config) == 2
    assert replace(moving, replicas=("a", "b"), target=()).min_isr(config) == 2


def test_reassign_at_its_target_keeps_complete_replicas_only_while_the_isr_is_below_min_isr(driver: Driver) -> None:
    stream = driver.fsm.image.streams["orders"]
    short = replace(driver.partition(), replicas=("a", "b"), isr=("a",), complete=("b",), target=())
    assert finish_reached_target(stream, short).complete == ("b",)
    assert finish_reached_target(stream, replace(short, target=("a",))).complete == ()


def test_reassign_batch_with_another_kind_of_request_is_rejected() -> None:
    wish = pb.ControlRequest(reassign=pb.Reassign(stream="orders", partition=0, replicas=["a"]))
    batch = pb.ControlRequest(batch=pb.Batch(requests=[pb.BatchedRequest(number=0, request=wish)]))
    assert refusal(RequestSubject.ADMIN, "ann", wish) == ""
    assert refusal(RequestSubject.ADMIN, "ann", batch) == ""
    assert refusal(RequestSubject.NODE, "n1", batch)
    assert refusal(RequestSubject.INFO, "", batch)
    for foreign in (
        pb.ControlRequest(changeIsr=pb.ChangeIsr(leader="n1")),
        pb.ControlRequest(beginCopy=pb.BeginCopy(node="n1")),
        pb.ControlRequest(deleteStream=pb.DeleteStream(name="orders")),
    ):
        batch.batch.requests.append(pb.BatchedRequest(number=1, request=foreign))
        assert refusal(RequestSubject.ADMIN, "ann", batch)
        del batch.batch.requests[1]
