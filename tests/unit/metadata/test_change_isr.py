"""Test ChangeIsr: compare-and-set in apply [C4], and which replicas may join [C6]."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_driver import Driver, Error

from liftpy.core.wire._pb import cluster_pb2 as pb


@pytest.fixture
def driver() -> Driver:
    made = Driver(("a", "b", "c", "d"))
    made.create(replicationFactor=3)
    return made


def test_change_isr_shrink_or_expand_increments_only_the_partition_epoch(driver: Driver) -> None:
    start = driver.partition()
    shrunk = driver.change_isr(["c", "a"])
    assert list(shrunk.partition.isr) == ["a", "c"]
    assert shrunk.partition.epoch > start.epoch
    assert shrunk.partition.leaderEpoch == start.leader_epoch
    expanded = driver.change_isr(["a", "b", "c"])
    assert list(expanded.partition.isr) == ["a", "b", "c"]
    assert expanded.partition.epoch > shrunk.partition.epoch


def test_change_isr_based_on_an_older_state_returns_stale_with_the_current_state(driver: Driver) -> None:
    stale = driver.isr_request(["a", "b"])
    driver.change_isr(["a", "c"])
    now = driver.partition()
    answer = driver.ask(changeIsr=stale)
    assert answer.error == Error.STALE
    assert (answer.partition.epoch, list(answer.partition.isr)) == (now.epoch, ["a", "c"])
    assert driver.partition() == now


@pytest.mark.parametrize("isr", [[], ["b"], ["a", "d"], ["a", "a"], ["a", "zz"]])
def test_change_isr_to_an_impossible_isr_returns_invalid(driver: Driver, isr: list[str]) -> None:
    request = driver.isr_request([node for node in isr if node != "zz"])
    request.isr[:] = isr
    assert driver.ask(changeIsr=request).error == Error.INVALID


def test_change_isr_adds_only_a_live_replica_with_its_current_incarnation(driver: Driver) -> None:
    driver.change_isr(["a", "b"])
    caught_up = driver.isr_request(["a", "b", "c"])
    driver.fence("c")
    assert driver.ask(changeIsr=caught_up).error == Error.FENCED
    driver.unfence("c")
    driver.restart("c")
    assert driver.ask(changeIsr=caught_up).error == Error.FENCED
    assert driver.change_isr(["a", "b", "c"]).error == Error.OK


def test_change_isr_does_not_add_a_replica_that_restarted_with_an_empty_directory(driver: Driver) -> None:
    driver.change_isr(["a", "b"])
    in_flight = driver.isr_request(["a", "b", "c"])
    driver.restart("c", emptied=True)
    assert driver.ask(changeIsr=in_flight).error == Error.FENCED
    assert driver.partition().isr == ("a", "b")


def test_change_isr_keeps_a_fenced_follower_but_rejects_a_fenced_leader(driver: Driver) -> None:
    driver.fence("b")
    assert driver.change_isr(["a", "b"]).error == Error.OK
    driver.fence("a")
    assert driver.change_isr(["a"]).error == Error.FENCED


def test_change_isr_to_the_same_members_increments_the_partition_epoch(driver: Driver) -> None:
    before = driver.partition()
    late = driver.isr_request(["a", "b"])
    answer = driver.change_isr(["c", "b", "a"])
    assert answer.error == Error.OK
    assert answer.partition.epoch > before.epoch
    assert driver.partition().isr == before.isr
    assert driver.ask(changeIsr=late).error == Error.STALE


def test_leave_isr_of_a_follower_with_failed_storage_removes_the_follower(driver: Driver) -> None:
    def leave(node: str, **other: Any) -> pb.ControlResponse:
        uid = driver.fsm.image.streams["orders"].uid
        fields = {"stream": "orders", "uid": uid, "partition": 0, "node": node, "incarnation": driver.incarnation(node)}
        return driver.ask(leaveIsr=pb.LeaveIsr(**(fields | other)))

    before = driver.partition()
    in_flight = driver.isr_request(["a", "b", "c"])
    assert leave("c", incarnation=99).error == Error.FENCED
    assert leave("c", uid="other").error == Error.NOT_FOUND
    assert leave("a").error == Error.STALE, "a leader gives the leadership up"
    assert driver.partition() == before
    assert list(leave("c").partition.isr) == ["a", "b"]
    after = driver.partition()
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)
    assert after.epoch > before.epoch
    assert driver.ask(changeIsr=in_flight).error == Error.STALE, "the leader's own change was made with it"
    assert leave("c").error == Error.OK
    assert leave("d").error == Error.OK
    assert driver.partition() == after
