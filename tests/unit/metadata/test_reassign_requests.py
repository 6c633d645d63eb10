"""Test Reassign and BeginCopy: one swap at a time, and joins and evictions in apply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_driver import Driver, Error

from liftpy.config import StreamConfig
from liftpy.core.base.partition import MoveReason, PartitionState
from liftpy.core.metadata.controller.admission import RequestSubject, refusal
from liftpy.core.metadata.controller.partitions import finish_reached_target
from liftpy.core.wire._pb import cluster_pb2 as pb


@pytest.fixture
def driver() -> Driver:
    made = Driver(("a", "b", "c", "d", "e"))
    made.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    return made


def to(driver: Driver, *replicas: str, cancel: bool = False) -> pb.ControlResponse:
    return driver.ask(reassign=pb.Reassign(stream="orders", partition=0, replicas=replicas, cancel=cancel))


def copy(driver: Driver, node: str) -> pb.ControlResponse:
    return driver.ask(beginCopy=pb.BeginCopy(stream="orders", partition=0, epoch=driver.partition().epoch, node=node))


def join(driver: Driver, *isr: str, evicted: str = "") -> pb.ControlResponse:
    request = driver.isr_request(list(isr))
    request.evicted = evicted
    return driver.ask(changeIsr=request)


def held(driver: Driver, node: str) -> int:
    return driver.fsm.image.replica_counts.get(node, 0)


def test_reassign_evicts_replicas_outside_the_isr_first_and_the_leader_last(driver: Driver) -> None:
    driver.change_isr(["a", "c"])
    to(driver, "d")
    assert driver.partition().leaving == "b"
    join(driver, "a", "c", evicted="b")
    assert driver.partition().leaving == "c"
    join(driver, "a", evicted="c")
    assert (driver.partition().leaving, driver.partition().next_learner) == ("", "d")
    copy(driver, "d")
    join(driver, "a", "d")
    assert driver.partition().leaving == "a"
    assert join(driver, "d", evicted="a").error == Error.INVALID, "the leader does not evict itself"


def test_reassign_cancelled_before_the_learner_joined_restores_the_partition(driver: Driver) -> None:
    before = driver.partition()
    to(driver, "d", "b", "a")
    copy(driver, "d")
    to(driver, cancel=True)
    assert replace(driver.partition(), epoch=before.epoch) == before
    assert held(driver, "d") == 0


def test_reassign_cancelled_after_the_learner_joined_finishes_only_the_current_replacement(driver: Driver) -> None:
    to(driver, "d", "e", "a")
    copy(driver, "d")
    join(driver, "a", "b", "c", "d")
    to(driver, cancel=True)
    assert (driver.partition().target, driver.partition().leaving) == (("d", "a", "b"), "c")
    join(driver, "a", "b", "d", evicted="c")
    assert (driver.partition().replicas, driver.partition().target) == (("d", "a", "b"), ())


def test_reassign_to_other_replicas_removes_a_learner_outside_the_new_target(driver: Driver) -> None:
    to(driver, "d", "b", "a")
    copy(driver, "d")
    to(driver, "a", "b", "e")
    assert (driver.partition().joining, driver.partition().next_learner) == ("", "e")
    copy(driver, "e")
    to(driver, "e", "b", "c")
    assert driver.partition().joining == "e"


def test_reassign_begin_copy_without_a_node_aborts_the_copy(driver: Driver) -> None:
    to(driver, "d", "b", "a")
    copy(driver, "d")
    assert copy(driver, "").error == Error.OK
    assert (driver.partition().joining, driver.partition().next_learner) == ("", "d")
    stale = pb.BeginCopy(stream="orders", partition=0, epoch=driver.partition().epoch - 1, node="d")
    assert driver.ask(beginCopy=stale).error == Error.STALE
    assert copy(driver, "e").error == Error.INVALID
    driver.fence("d")
    assert copy(driver, "d").error == Error.FENCED


def test_change_isr_at_the_end_of_a_reassignment_evicts_only_the_replaced_replica(driver: Driver) -> None:
    assert join(driver, "a", "b", evicted="c").error == Error.INVALID, "nothing is to move"
    to(driver, "d", "b", "a")
    assert join(driver, "a", "b", evicted="c").error == Error.INVALID, "d has not joined"
    copy(driver, "d")
    join(driver, "a", "b", "c", "d")
    assert join(driver, "a", "c", "d", evicted="b").error == Error.INVALID
    assert join(driver, "a", "b", "c", "d", evicted="c").error == Error.INVALID, "it is to be in the ISR"
    assert driver.partition().replicas == ("d", "b", "a", "c")


@pytest.mark.parametrize(
    ("replicas", "said"),
    [((), "0 replicas"), (("a", "a", "b"), "a: a node holds one"), (("a", "b", "z"), "no node 'z'"), (("a", "b", "e"), "live")],
)
def test_reassign_to_impossible_replicas_is_rejected(driver: Driver, replicas: tuple[str, ...], said: str) -> None:
    driver.fence("e")
    answer = to(driver, *replicas)
    assert answer.error == Error.INVALID
    assert said in answer.detail
    assert driver.partition().target == ()


def test_reassign_to_replicas_with_a_fenced_current_replica_is_accepted(driver: Driver) -> None:
    to(driver, "d", "e", "a")
    driver.fence("e")
    assert to(driver, "b", "e", "a").error == Error.OK
    assert driver.partition().target == ("b", "e", "a")
    to(driver, cancel=True)
    assert "not live" in to(driver, "b", "e", "a").detail


def test_reassign_to_a_draining_or_full_node_is_rejected(driver: Driver) -> None:
    driver.ask(setNode=pb.SetNode(nodeId="d", leaving=True))
    assert driver.fsm.image.nodes["d"].leaving
    assert "is leaving" in to(driver, "a", "b", "d").detail
    driver.restart("d")
    assert driver.fsm.image.nodes["d"].leaving, "an operator's word outlives the process"
    driver.register("full", partitionBudget=1)
    driver.create("other", manual=[pb.ReplicaList(partition=0, replicas=["full"])])
    assert "no room on 'full'" in to(driver, "a", "b", "full").detail
    driver.ask(setNode=pb.SetNode(nodeId="d", leaving=False))
    assert to(driver, "a", "b", "d").error == Error.OK


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


def test_remove_node_of_a_learner_is_rejected(driver: Driver) -> None:
    to(driver, "a", "b", "d")
    copy(driver, "d")
    driver.fence("d")
    assert driver.ask(removeNode=pb.RemoveNode(nodeId="d")).error == Error.INVALID


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


def test_reassign_based_on_an_older_state_returns_stale(driver: Driver) -> None:
    epoch = driver.partition().epoch
    wish = pb.Reassign(stream="orders", partition=0, replicas=["a", "b", "d"], epoch=epoch)
    assert driver.ask(reassign=wish).error == Error.OK
    assert driver.ask(reassign=wish).error == Error.STALE
    assert driver.ask(reassign=pb.Reassign(stream="orders", partition=0, cancel=True, epoch=epoch)).error == Error.STALE


@pytest.mark.parametrize(
    ("place", "of"),
    [
        ({"stream": "no"}, "no/0 of stream of that name"),
        ({"stream": "orders", "partition": 1}, "orders/1 of stream of that name"),
        ({"stream": "orders", "uid": "u9"}, "orders/0 of stream u9"),
    ],
)
def test_reassign_of_a_missing_partition_returns_not_found(driver: Driver, place: dict[str, Any], of: str) -> None:
    for asked in (
        pb.ControlRequest(reassign=pb.Reassign(replicas=["d"], **place)),
        pb.ControlRequest(beginCopy=pb.BeginCopy(node="d", **place)),
    ):
        kind = asked.WhichOneof("request") or ""
        answer = driver.ask(**{kind: getattr(asked, kind)})
        assert (answer.error, answer.detail) == (Error.NOT_FOUND, f"there is no partition {of}")


def test_reassign_by_rebalance_to_another_replica_order_transfers_the_leadership(driver: Driver) -> None:
    def asked(*replicas: str, reason: pb.MoveReason = pb.REBALANCED) -> PartitionState:
        wish = pb.Reassign(stream="orders", partition=0, replicas=replicas, movedFor=reason)
        assert driver.ask(reassign=wish).error == Error.OK
        return driver.partition()

    without = asked("b", "a", "c")
    assert (without.moved_for, without.leader_to_elect) == (MoveReason.BY_HAND, ""), "a cluster without elections"
    driver.fsm.image = replace(driver.fsm.image, rules=replace(driver.fsm.image.rules, elections=True))
    assert asked("b", "a", "c", reason=pb.BY_HAND).leader_to_elect == ""
    leads = asked("a", "b", "c")
    assert (leads.moved_for, leads.leader_to_elect) == (MoveReason.BY_HAND, ""), "it leads already"
    asks = asked("c", "a", "b")
    assert (asks.replicas, asks.leader, asks.moved_for, asks.leader_to_elect) == (
        ("c", "a", "b"),
        "a",
        MoveReason.LEADERSHIPS,
        "c",
    )
    assert driver.change_isr(["a", "c"]).error == Error.OK
    assert driver.partition().leader_to_elect == "c", "whatever else changes"
    assert asked("b", "a", "c", reason=pb.DRAINED).leader_to_elect == ""
    assert asked("c", "a", "b").leader_to_elect == "c"
    assert driver.ask(reassign=pb.Reassign(stream="orders", partition=0, cancel=True)).error == Error.OK
    stays = driver.partition()
    assert (stays.replicas, stays.moved_for, stays.leader_to_elect) == (("c", "a", "b"), MoveReason.BY_HAND, "")


def promoted(driver: Driver) -> PartitionState:
    """Report the success of the candidate and return the partition."""
    found = driver.partition()
    report = pb.ReportPromotion(
        stream="orders", partition=0, candidate=found.candidate, candidateIncarnation=driver.incarnation(found.candidate),
        leaderEpoch=found.leader_epoch, epoch=found.epoch, newestOffset=-1, finished=True,
    )  # fmt: skip
    assert driver.ask(reportPromotion=report).error == Error.OK
    return driver.partition()


def test_reassign_leadership_target_is_cleared_after_the_transfer_or_an_election_command(driver: Driver) -> None:
    driver.fsm.image = replace(driver.fsm.image, rules=replace(driver.fsm.image.rules, elections=True))

    def asked(*replicas: str) -> PartitionState:
        wish = pb.Reassign(stream="orders", partition=0, replicas=replicas, movedFor=pb.REBALANCED)
        assert driver.ask(reassign=wish).error == Error.OK
        return driver.partition()

    def elect(node: str) -> PartitionState:
        assert driver.ask(electLeader=pb.ElectLeader(stream="orders", partition=0, node=node)).error == Error.OK
        return driver.partition()

    asked("c", "a", "b")
    moving = elect("c")
    assert (moving.candidate, moving.leader_to_elect, moving.moved_for) == ("c", "c", MoveReason.LEADERSHIPS)
    there = promoted(driver)
    assert (there.leader, there.leader_to_elect, there.moved_for) == ("c", "", MoveReason.BY_HAND)

    asked("a", "b", "c")
    assert elect("").leader_to_elect == "a", "the preferred leader is who is wanted"
    assert promoted(driver).leader == "a"

    asked("c", "a", "b")
    other = elect("b")
    assert (other.candidate, other.leader_to_elect) == ("b", ""), "whoever says another one means it"
    assert promoted(driver).leader == "b"
    asked("c", "a", "b")
    kept = elect("b")
    assert (kept.leader, kept.moved_for) == ("b", MoveReason.BY_HAND)


def test_reassign_leadership_target_remains_after_an_election_of_another_replica(driver: Driver) -> None:
    driver.fsm.image = replace(driver.fsm.image, rules=replace(driver.fsm.image.rules, elections=True))
    wish = pb.Reassign(stream="orders", partition=0, replicas=["c", "a", "b"], movedFor=pb.REBALANCED)
    assert driver.ask(reassign=wish).error == Error.OK
    assert driver.change_isr(["a", "b"]).error == Error.OK
    assert driver.fence("a").error == Error.OK
    assert driver.partition().candidate == "b"
    won = promoted(driver)
    assert (won.leader, won.leader_to_elect, won.moved_for) == ("b", "c", MoveReason.LEADERSHIPS)


def test_reassign_with_an_unknown_reason_is_treated_as_manual(driver: Driver) -> None:
    wish = pb.Reassign(stream="orders", partition=0, replicas=["a", "b", "d"], movedFor=99)  # type: ignore[arg-type]
    assert driver.ask(reassign=wish).error == Error.OK
    assert driver.partition().moved_for is MoveReason.BY_HAND
