"""RegisterNode, FenceNode, UnfenceNode, RemoveNode: incarnations, and what a node may keep after a restart."""

from __future__ import annotations

import pytest
from cluster_driver import Driver, Error

from liftpy.cluster.image import PartitionStatus
from liftpy.wire._pb import cluster_pb2 as pb


def test_every_registration_is_a_new_incarnation_of_the_cluster() -> None:
    driver = Driver(("a", "b"))
    first = driver.incarnation("a")
    response = driver.restart("a", clean=True)
    assert response.node.incarnation > driver.incarnation("b") > first
    assert driver.fsm.image.nodes["a"].previous_incarnation == first


def test_a_complete_replica_stays_in_its_isrs_and_leads_on_in_a_new_leader_epoch() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=2)
    led, followed = driver.partition(number=0), driver.partition(number=1)
    driver.restart("a")
    now = driver.partition(number=0)
    assert (now.leader, now.isr) == ("a", led.isr)
    assert now.leader_epoch > max(led.leader_epoch, followed.leader_epoch)
    assert now.epoch > led.epoch
    assert driver.partition(number=1) is followed


@pytest.mark.parametrize("how", [{"flushed": False}, {"emptied": True}, {"emptied": True, "clean": True}])
def test_a_replica_that_may_have_lost_data_leaves_every_isr(how: dict[str, bool]) -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=3)
    driver.restart("b", **how)
    for number in range(3):
        assert "b" not in driver.partition(number=number).isr
        assert "b" in driver.partition(number=number).replicas
    was_its_own = driver.partition(number=1)
    assert (was_its_own.leader, was_its_own.status) == ("c", PartitionStatus.ONLINE)


def test_a_clean_stop_is_enough_without_flushing() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create()
    driver.restart("b", clean=True, flushed=False)
    assert "b" in driver.partition().isr


def test_a_folder_of_an_older_incarnation_is_not_trusted() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create()
    oldest = driver.incarnation("b")
    driver.restart("b")
    driver.restart("b")
    driver.register("b", previousIncarnation=oldest, flushedAlways=True, cleanStop=True)
    assert "b" not in driver.partition().isr


def test_a_process_that_died_before_it_stored_its_incarnation_is_trusted() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create()
    stored = driver.incarnation("b")
    driver.restart("b")
    for _ in range(3):
        driver.register("b", previousIncarnation=stored, flushedAlways=True)
        assert "b" in driver.partition().isr


def test_the_only_member_that_may_have_lost_data_goes_offline_and_is_not_elected_silently() -> None:
    driver = Driver(("a", "b"))
    driver.create()
    driver.change_isr(["a"])
    before = driver.partition()
    driver.restart("a", flushed=False)
    offline = driver.partition()
    assert (offline.status, offline.leader, offline.isr) == (PartitionStatus.OFFLINE, "", ("a",))
    assert offline.epoch > before.epoch
    for _ in range(2):
        driver.restart("a", clean=True)
        driver.fence("a")
        driver.unfence("a")
        driver.restart("b", clean=True)
    assert driver.partition() == offline


def test_an_unclean_leader_with_nobody_live_waits_offline_for_a_member_of_the_isr() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create()
    driver.fence("b")
    driver.fence("c")
    driver.restart("a", emptied=True)
    assert (driver.partition().status, driver.partition().isr) == (PartitionStatus.OFFLINE, ("b", "c"))
    driver.restart("a", clean=True)
    assert driver.partition().status is PartitionStatus.OFFLINE
    driver.unfence("c")
    assert (driver.partition().status, driver.partition().leader) == (PartitionStatus.ONLINE, "c")
    epoch = driver.partition().leader_epoch
    driver.restart("b")
    assert driver.partition().leader_epoch == epoch


def test_fencing_and_unfencing_name_the_incarnation() -> None:
    driver = Driver(("a", "b"))
    old = driver.incarnation("a")
    driver.restart("a")
    assert driver.ask(fenceNode=pb.FenceNode(nodeId="a", incarnation=old)).error == Error.FENCED
    assert driver.fence("a").node.fenced
    assert driver.fence("a").error == Error.OK
    assert driver.ask(unfenceNode=pb.UnfenceNode(nodeId="a", incarnation=old)).error == Error.FENCED
    assert not driver.unfence("a").node.fenced
    assert driver.ask(fenceNode=pb.FenceNode(nodeId="zz", incarnation=1)).error == Error.NOT_FOUND
    driver.fence("a")
    assert not driver.restart("a").node.fenced


def test_a_node_is_removed_only_when_it_is_stopped_and_holds_nothing() -> None:
    driver = Driver(("a", "b"))
    driver.create()
    assert driver.ask(removeNode=pb.RemoveNode(nodeId="b")).error == Error.INVALID
    driver.fence("b")
    refused = driver.ask(removeNode=pb.RemoveNode(nodeId="b"))
    assert refused.error == Error.INVALID
    assert "orders" in refused.detail
    driver.ask(deleteStream=pb.DeleteStream(name="orders"))
    assert driver.ask(removeNode=pb.RemoveNode(nodeId="b")).error == Error.OK
    assert set(driver.fsm.image.nodes) == {"a"}
    assert driver.ask(removeNode=pb.RemoveNode(nodeId="b")).error == Error.NOT_FOUND


@pytest.mark.parametrize("fields", [{"weight": float("nan")}, {"weight": -1.0}, {"rack": "r" * 300}, {"nodeId": "a b"}])
def test_a_wrong_registration_is_refused(fields: dict[str, object]) -> None:
    driver = Driver()
    message = pb.RegisterNode(**({"nodeId": "a"} | fields))  # type: ignore[arg-type]
    assert driver.ask(registerNode=message).error == Error.INVALID
    assert not driver.fsm.image.nodes


def test_a_registration_that_outlived_its_process_does_not_depose_the_next_one() -> None:
    driver = Driver(("b", "c"))
    driver.register("a", folderId="f", start=1)
    driver.register("a", folderId="f", start=3)
    current = driver.incarnation("a")
    late = driver.register("a", folderId="f", start=2)
    assert late.error == Error.STALE
    assert driver.incarnation("a") == current
    assert driver.register("a", folderId="another disk", start=1).node.incarnation > current
