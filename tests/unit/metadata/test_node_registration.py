"""Test RegisterNode, FenceNode, UnfenceNode and RemoveNode: incarnations, and what a node keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_driver import Driver, Error

from liftpy.core.metadata.codec import image_from_bytes, image_to_bytes
from liftpy.core.metadata.controller.nodes import MAX_NODES
from liftpy.core.metadata.features import DAMAGED_LOGS
from liftpy.core.metadata.image import NodeImage
from liftpy.core.metadata.node_identity import (
    MAX_DAMAGED_LOGS,
    MAX_EARLIER_NONCES,
    DirectoryIdentity,
    ProcessRelation,
    compare_processes,
    damaged_logs_to_name,
)
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import registration
from tests.each import each
from tests.unit.metadata.image_checks import check_image


def restart_with_damage(driver: Driver, node: str, *partitions: int, **fields: Any) -> pb.ControlResponse:
    """Register a new process of ``node``, whose logs of these partitions are damaged."""
    uid = driver.fsm.image.streams["orders"].uid
    logs = [pb.DamagedLog(streamUid=uid, partition=number) for number in partitions]
    return driver.register(node, **{"previousIncarnation": driver.incarnation(node), "damagedLogs": logs} | fields)


@pytest.mark.parametrize(
    "how", [{"previousIncarnation": 0}, {"previousIncarnation": 1}, {"folderId": "another", "start": 1, "nonce": 7}]
)
def test_replica_with_named_damage_in_another_or_older_directory_leaves_every_isr(how: dict[str, Any]) -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=3)
    for start in (1, 2):
        how_before = {"folderId": "f", "start": start, "nonce": start, "earlierNonces": range(1, start)}
        driver.register("b", previousIncarnation=driver.incarnation("b"), flushedAlways=True, **how_before)
    same = {"folderId": "f", "start": 3, "nonce": 3, "earlierNonces": [1, 2]}
    restart_with_damage(driver, "b", 0, **same | how)
    assert not any("b" in driver.partition(number=number).isr for number in range(3))


def test_replica_with_a_damaged_log_leaves_every_isr_below_the_feature_level() -> None:
    driver = Driver(("a", "b", "c"))
    driver.fsm.image = replace(driver.fsm.image, feature_level=DAMAGED_LOGS - 1)
    driver.create(partitions=3)
    restart_with_damage(driver, "b", 0)
    assert not any("b" in driver.partition(number=number).isr for number in range(3))


def test_registration_with_too_many_damaged_logs_is_rejected() -> None:
    driver = Driver(("a", "b"))
    driver.create()
    answer = restart_with_damage(driver, "a", *range(MAX_DAMAGED_LOGS + 1))
    assert (answer.error, answer.detail) == (Error.INVALID, "17 damaged logs, more than 16")


@pytest.mark.parametrize(
    ("damaged", "confined", "named"),
    [
        (["a-b-123456-1/12", "c-123457-1/0"], ["c-123457-1/0", "a-b-123456-1/12"], [("123456-1", 12), ("123457-1", 0)]),
        (["c-123457-1/0", "c-123457-1/0"], ["c-123457-1/0"], [("123457-1", 0)]),
        (["c-123457-1/0", "c-123457-1/1"], ["c-123457-1/1"], []),
        (["c-123457-1/0", "strange/1"], ["c-123457-1/0", "strange/1"], []),
        ([f"c-123457-1/{n}" for n in range(17)], [f"c-123457-1/{n}" for n in range(17)], []),
        ([], [], []),
    ],
)
def test_registration_names_damaged_logs_only_if_all_of_them_are_confined(
    damaged: list[str], confined: list[str], named: list[tuple[str, int]]
) -> None:
    assert [(log.streamUid, log.partition) for log in damaged_logs_to_name(damaged, confined)] == named


def now_form_the_group(driver: Driver, *voters: str) -> None:
    change = pb.ChangeControllers(after=driver.fsm.image.controllers.index)
    change.list.voters.extend(voters)
    assert driver.ask(changeControllers=change).error == Error.OK


def test_remove_node_of_a_controller_is_rejected_with_the_command_to_use() -> None:
    driver = Driver(("a", "b"))
    now_form_the_group(driver, "a", "b")
    driver.fence("b")
    refused = driver.ask(removeNode=pb.RemoveNode(nodeId="b"))
    assert refused.error == Error.INVALID
    assert "take it out of the controllers first: liftpy controllers remove b" in refused.detail
    now_form_the_group(driver, "a")
    assert driver.ask(removeNode=pb.RemoveNode(nodeId="b")).error == Error.OK


@pytest.mark.parametrize("fields", [{"weight": float("nan")}, {"weight": -1.0}, {"rack": "r" * 300}, {"nodeId": "a b"}])
def test_registration_with_invalid_fields_is_rejected(fields: dict[str, object]) -> None:
    driver = Driver()
    message = registration(**({"nodeId": "a"} | fields))  # type: ignore[arg-type]
    assert driver.ask(registerNode=message).error == Error.INVALID
    assert not driver.fsm.image.nodes


# ---- a folder that went back in time [S15] ------------------------------------------------------------------------------
def start(driver: Driver, history: DirectoryIdentity, previous: int, **how: bool) -> pb.ControlResponse:
    """Register a process of node b with the identity of its data directory."""
    request = registration(nodeId="b", previousIncarnation=previous, **({"flushedAlways": True} | how))
    history.write_to(request)
    return driver.ask(registerNode=request)


def in_isr(driver: Driver) -> bool:
    return "b" in driver.partition().isr


def cluster_with_folder() -> tuple[Driver, DirectoryIdentity]:
    """Return nodes a, b and c with a stream. The process of b is registered and runs."""
    driver = Driver(("a", "c"))
    history = DirectoryIdentity("f").next(101)
    start(driver, history, 0)
    driver.create()
    assert in_isr(driver)
    return driver, history.after_registration()


def test_node_restarted_repeatedly_with_its_data_directory_stays_in_the_isr() -> None:
    driver, history = cluster_with_folder()
    for number in range(102, 150):
        history = history.next(number)
        assert start(driver, history, driver.incarnation("b")).error == Error.OK
        assert in_isr(driver)
        history = history.after_registration()


def test_data_directory_copy_is_detected_despite_unregistered_starts() -> None:
    driver, history = cluster_with_folder()
    copy, copied_incarnation = history, driver.incarnation("b")
    start(driver, history.next(200), copied_incarnation)
    for number in range(300, 305):
        copy = copy.next(number)
    start(driver, copy, copied_incarnation, cleanStop=True)
    assert not in_isr(driver)


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("deaths", [1, 3, MAX_EARLIER_NONCES])
def test_node_that_died_during_registration_stays_in_the_isr(deaths: int, registered: bool) -> None:
    driver, history = cluster_with_folder()
    stored = driver.incarnation("b")
    for number in range(deaths):
        history = history.next(200 + number)  # it stores its start, and dies before it stores an answer
        if registered:
            start(driver, history, stored)
    start(driver, history.next(300), stored)
    assert in_isr(driver)


def test_node_that_died_before_it_reached_the_controllers_stays_in_the_isr() -> None:
    driver, history = cluster_with_folder()
    for number in range(200, 300):
        history = history.next(number)
    assert len(history.earlier) == MAX_EARLIER_NONCES
    start(driver, history, driver.incarnation("b"))
    assert in_isr(driver)


def test_repeated_registration_of_one_process_keeps_its_incarnation() -> None:
    """The window of done operations no longer has the first registration."""
    driver, history = cluster_with_folder()
    history = history.next(200)
    before = driver.incarnation("b")
    first = start(driver, history, before)
    driver.fence("b")
    again = start(driver, history, before)
    assert (again.error, again.node.incarnation) == (Error.OK, first.node.incarnation)
    assert in_isr(driver)


def test_data_directory_registered_without_nonces_is_compared_by_its_start_count() -> None:
    """The image and the ``node`` file are older than nonces."""
    driver = Driver(("a", "c"))
    driver.register("b", folderId="f", start=7)
    driver.create()
    old = DirectoryIdentity("f", starts=7)
    start(driver, old.next(1), driver.incarnation("b"))
    assert in_isr(driver)
    driver.register("b", folderId="f", start=9, previousIncarnation=driver.incarnation("b"), flushedAlways=True)
    assert not in_isr(driver), "no nonce, where one was registered"


def test_data_directory_from_before_a_data_loss_is_not_trusted() -> None:
    driver, history = cluster_with_folder()
    before = driver.incarnation("b")
    start(driver, DirectoryIdentity("g").next(400), 0)
    driver.change_isr(["a", "b", "c"])
    start(driver, history.next(200), before)
    assert not in_isr(driver)


def test_registration_with_too_many_nonces_is_rejected() -> None:
    driver = Driver()
    request = registration(nodeId="a", earlierNonces=range(1, MAX_EARLIER_NONCES + 2))
    assert driver.ask(registerNode=request).error == Error.INVALID


def test_node_nonces_are_restored_from_a_snapshot() -> None:
    driver, history = cluster_with_folder()
    start(driver, history.next(200), driver.incarnation("b"))
    found = image_from_bytes(image_to_bytes(driver.fsm.image)).nodes
    assert (found["b"].nonce, found["b"].earlier_nonces) == (200, (101,))
    assert (found["a"].nonce, found["a"].earlier_nonces) == (0, ())


# ---- ghosts ------------------------------------------------------------------------------------------------------------------
def test_registration_beyond_the_node_limit_is_rejected_except_for_known_nodes() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create()
    answers = [driver.register(f"ghost{number}") for number in range(1100)]
    assert len(driver.fsm.image.nodes) == MAX_NODES
    assert [answer.error for answer in answers].count(Error.INVALID) == 1100 - (MAX_NODES - 3)
    assert "stop and remove" in answers[-1].detail
    assert driver.restart("a").error == Error.OK, "who is known registers as before"
    assert driver.register("new").error == Error.INVALID
    driver.fence("ghost5")
    driver.fence("ghost4")
    driver.fence("b")
    assert driver.register("new").error == Error.OK
    assert driver.register("newer").error == Error.OK
    assert {"ghost4", "ghost5"}.isdisjoint(driver.fsm.image.nodes)
    assert "b" in driver.fsm.image.nodes, "it holds data"
    now_form_the_group(driver, "a", "ghost6")
    driver.fence("ghost6")  # a controller: it goes for nobody
    assert driver.register("newest").error == Error.INVALID
    check_image(driver.fsm.image)


# ---- rules -----------------------------------------------------------------------------------------------------------------
@each(
    ("request_", "how"),
    [
        ({"start": 6, "nonce": 60, "earlierNonces": [40, 50]}, ProcessRelation.FOLLOWS),
        ({"start": 5, "nonce": 50}, ProcessRelation.SAME),
        ({"start": 4, "nonce": 40}, ProcessRelation.OUTDATED),
        ({"start": 4, "nonce": 41}, ProcessRelation.OLDER_COPY),
        ({"start": 6, "nonce": 60, "earlierNonces": [40]}, ProcessRelation.OLDER_COPY),
        ({"start": 5, "nonce": 51}, ProcessRelation.OLDER_COPY),
        ({"start": 6, "nonce": 60, "earlierNonces": [50], "folderId": "g"}, ProcessRelation.OLDER_COPY),
        ({"folderId": ""}, ProcessRelation.FOLLOWS),
    ],
)
def test_registration_is_classified_by_directory_start_count_and_nonce(request_: dict[str, Any], how: ProcessRelation) -> None:
    known = NodeImage(node_id="a", incarnation=3, folder_id="f", start=5, nonce=50, earlier_nonces=(30, 40))
    assert compare_processes(known, pb.RegisterNode(**({"nodeId": "a", "folderId": "f"} | request_))) is how
