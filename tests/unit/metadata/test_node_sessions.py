"""Test NodeSessions: leases, fencing after silence, unfencing, and a change of the metadata leader."""

from __future__ import annotations

import pytest
from cluster_driver import MS, Driver, Error

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.sessions import NodeSessions
from liftpy.core.wire._pb import cluster_pb2 as pb

SESSION = 2000 * MS
START = 10_000 * MS


@pytest.fixture
def driver() -> Driver:
    return Driver(("a", "b"))


@pytest.fixture
def sessions(driver: Driver) -> NodeSessions:
    made = NodeSessions(ReplicationConfig())
    made.lead(driver.fsm.image, START)
    assert made.heartbeat("a", driver.incarnation("a"), START, START).granted
    return made


def beat(sessions: NodeSessions, driver: Driver, node: str, now: int) -> bool:
    return sessions.heartbeat(node, driver.incarnation(node), now, now).granted


def test_node_without_heartbeats_is_fenced_at_session_timeout_and_fencing_is_retried(
    driver: Driver, sessions: NodeSessions
) -> None:
    beat(sessions, driver, "a", START + 1000 * MS)
    assert sessions.take_due(START + SESSION - 1) == []
    assert sessions.take_due(START + SESSION) == [pb.FenceNode(nodeId="b", incarnation=driver.incarnation("b"))]
    assert sessions.take_due(START + SESSION + 1) == []
    assert beat(sessions, driver, "a", START + SESSION)
    again = START + SESSION + 1000 * MS
    assert sessions.next_deadline_ns() == again
    assert [p.nodeId for p in sessions.take_due(again)] == ["b"]
    driver.fence("b")
    sessions.image_changed(driver.fsm.image, again)
    assert sessions.take_due(again + 900 * MS) == []
    assert [p.nodeId for p in sessions.take_due(again + SESSION)] == ["a"]


def test_fenced_node_gets_no_lease_and_is_unfenced_by_heartbeats(driver: Driver, sessions: NodeSessions) -> None:
    driver.fence("b")
    sessions.image_changed(driver.fsm.image, START)
    assert sessions.take_due(START + 10 * SESSION) == [pb.FenceNode(nodeId="a", incarnation=driver.incarnation("a"))]
    now = START + 10 * SESSION + 1
    refused = sessions.heartbeat("b", driver.incarnation("b"), now, now)
    assert (refused.granted, refused.error) == (False, Error.FENCED)
    assert sessions.take_due(now) == [pb.UnfenceNode(nodeId="b", incarnation=driver.incarnation("b"))]
    driver.unfence("b")
    sessions.image_changed(driver.fsm.image, now)
    assert beat(sessions, driver, "b", now)


def test_node_proposed_for_fencing_gets_no_lease_until_the_image_shows_the_result(
    driver: Driver, sessions: NodeSessions
) -> None:
    now = START + SESSION
    assert [p.nodeId for p in sessions.take_due(now)] == ["a", "b"]
    assert not beat(sessions, driver, "b", now + 1)
    again = sessions.take_due(now + 1000 * MS)
    assert again == [pb.FenceNode(nodeId=n, incarnation=driver.incarnation(n)) for n in ("a", "b")]
    driver.fence("b")
    sessions.image_changed(driver.fsm.image, now + 1001 * MS)
    beat(sessions, driver, "b", now + 1002 * MS)
    assert pb.UnfenceNode(nodeId="b", incarnation=driver.incarnation("b")) in sessions.take_due(now + 1003 * MS)
    driver.unfence("b")
    sessions.image_changed(driver.fsm.image, now + 1004 * MS)
    assert beat(sessions, driver, "b", now + 1005 * MS)


def test_heartbeat_of_another_incarnation_or_an_unknown_node_gets_no_lease(driver: Driver, sessions: NodeSessions) -> None:
    old = driver.incarnation("a")
    driver.restart("a")
    sessions.image_changed(driver.fsm.image, START + SESSION)
    assert sessions.heartbeat("a", old, START + SESSION, START + SESSION).error == Error.FENCED
    assert sessions.heartbeat("zz", 1, START, START).error == Error.NOT_FOUND
    assert "a" not in [p.nodeId for p in sessions.take_due(START + 2 * SESSION - 1)], "a new incarnation begins a session"


def test_node_sessions_after_a_restart_of_all_nodes_fence_no_node_before_the_first_heartbeat(driver: Driver) -> None:
    sessions = NodeSessions(ReplicationConfig())
    sessions.lead(driver.fsm.image, START)
    sessions.record_no_responders("a")
    sessions.record_no_responders("b")
    first = START + 6000 * MS
    assert sessions.take_due(first) == []
    driver.restart("a")
    sessions.image_changed(driver.fsm.image, first)
    beat(sessions, driver, "a", first)
    assert "b" not in sessions.overdue(first + 4500 * MS), "nobody need look for it yet"
    beat(sessions, driver, "a", first + 5900 * MS)
    assert sessions.take_due(first + 5999 * MS) == []
    assert [p.nodeId for p in sessions.take_due(first + 6000 * MS)] == ["b"]


def test_node_sessions_without_any_heartbeat_fence_all_nodes_after_15_seconds(driver: Driver) -> None:
    sessions = NodeSessions(ReplicationConfig())
    sessions.lead(driver.fsm.image, START - SESSION)
    beat(sessions, driver, "a", START - SESSION)
    sessions.resign()
    sessions.lead(driver.fsm.image, START)
    assert sessions.take_due(START + 14_999 * MS) == []
    assert sessions.next_deadline_ns() == START + 15_000 * MS
    assert [p.nodeId for p in sessions.take_due(START + 15_000 * MS)] == ["a", "b"]


def test_node_session_of_a_removed_node_is_deleted(driver: Driver, sessions: NodeSessions) -> None:
    driver.fence("b")
    driver.ask(removeNode=pb.RemoveNode(nodeId="b"))
    sessions.image_changed(driver.fsm.image, START)
    assert [p.nodeId for p in sessions.take_due(START + SESSION)] == ["a"]


def test_node_that_announced_its_stop_is_not_unfenced_by_a_late_heartbeat(driver: Driver, sessions: NodeSessions) -> None:
    beat(sessions, driver, "b", START + 10 * MS)
    driver.fence("b")  # by DrainNode's sender, a moment after its last heartbeat
    sessions.image_changed(driver.fsm.image, START + 20 * MS)
    assert sessions.take_due(START + 30 * MS) == []
    beat(sessions, driver, "b", START + 40 * MS)
    assert [type(p) for p in sessions.take_due(START + 50 * MS)] == [pb.UnfenceNode]


def test_heartbeat_after_a_no_responders_report_restores_the_full_session(driver: Driver, sessions: NodeSessions) -> None:
    beat(sessions, driver, "b", START)
    sessions.record_no_responders("b")
    beat(sessions, driver, "b", START + 700 * MS)
    beat(sessions, driver, "a", START + 700 * MS)
    assert sessions.take_due(START + 700 * MS + SESSION - 1) == []


def test_node_that_sends_heartbeats_counts_as_running(driver: Driver, sessions: NodeSessions) -> None:
    assert not sessions.runs("stranger", START)
    assert sessions.runs("a", START), "it has registered, and nobody has said that it is gone"
    beat(sessions, driver, "a", START + 100 * MS)
    sessions.record_no_responders("a")
    assert sessions.runs("a", START + 400 * MS), "one heartbeat may be on its way"
    assert not sessions.runs("a", START + 401 * MS)
    beat(sessions, driver, "a", START + 420 * MS)
    assert sessions.runs("a", START + 5000 * MS), "it has been heard since: its session has to end first"
    driver.fence("a")
    sessions.image_changed(driver.fsm.image, START + 5000 * MS)
    assert not sessions.runs("a", START + 5000 * MS)
    beat(sessions, driver, "a", START + 5100 * MS)
    assert sessions.runs("a", START + 5600 * MS), "somebody else had said that it stops"
    assert not sessions.runs("a", START + 5601 * MS)


def test_node_with_an_ended_session_keeps_its_id_until_nats_reports_no_responders(
    driver: Driver, sessions: NodeSessions
) -> None:
    """A flood on a starved machine ended every session, and registrations of strangers removed running nodes."""
    beat(sessions, driver, "a", START)
    driver.fence("a")
    ended = START + SESSION
    sessions.image_changed(driver.fsm.image, ended)
    assert not sessions.runs("a", ended)
    assert sessions.may_still_run("a", ended)
    assert sorted(sessions.overdue(ended + 1)) == ["a", "b"], "though it is fenced: somebody wants its place"
    assert sessions.may_still_run("a", START + 5000 * MS)
    assert not sessions.may_still_run("a", START + 5001 * MS), "a suspended host's connection does not keep it for ever"
    beat(sessions, driver, "a", ended + 4000 * MS)
    assert sessions.may_still_run("a", START + 5001 * MS)
    sessions.record_no_responders("a")
    assert not sessions.may_still_run("a", ended + 4501 * MS)
    assert "a" not in sessions.overdue(ended + 4501 * MS), "the bus has said so"


def test_new_metadata_leader_treats_every_node_as_running_until_a_no_responders_report(
    driver: Driver, sessions: NodeSessions
) -> None:
    sessions.lead(driver.fsm.image, START + 9000 * MS)
    assert sessions.runs("b", START + 9000 * MS)
    sessions.record_no_responders("b")
    assert not sessions.runs("b", START + 9001 * MS)
