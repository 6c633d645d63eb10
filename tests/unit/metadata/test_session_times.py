"""Test session and lease of the whole cluster: how they are decided, granted and changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_driver import MS, Driver, Error

from liftpy.config import ReplicationConfig, SessionTimes
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot, image_from_bytes, image_from_pb, image_to_bytes
from liftpy.core.metadata.controller.active_controller import ActiveController
from liftpy.core.metadata.controller.election_triggers import ElectionTimers
from liftpy.core.metadata.controller.feature_levels import begin_at
from liftpy.core.metadata.controller.record_builder import Rules
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.describe import ClusterPages, describe
from liftpy.core.metadata.features import NO_LEVEL, SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.image_delta import diff, entry_between
from liftpy.core.metadata.records import SessionTimesSet, record_from_pb, replay
from liftpy.core.metadata.sessions import NodeSessions
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import ConfigError
from tests.born import TIMES as OWN

START = 10_000 * MS
LEVEL = SUPPORTED_LEVELS.most


def new_group() -> Driver:
    """Return a group without a feature level."""
    driver = Driver(elections=True)
    driver.fsm = ClusterFsm(elections=True)
    return driver


def a_driver(*nodes: str) -> Driver:
    driver = new_group()
    driver.ask(setFeatureLevel=begin_at(LEVEL, Rules(elections=True), OWN).setFeatureLevel)
    for node in nodes:
        driver.register(node)
    return driver


def set_times(driver: Driver, session_ms: int, lease_ms: int, change: int | None = None) -> pb.ControlResponse:
    held = times_of(driver)
    asked = pb.SetSessionTimes(sessionMs=session_ms, leaseMs=lease_ms, change=held.change if change is None else change)
    return driver.ask(setSessionTimes=asked)


def settle(driver: Driver) -> pb.ControlResponse:
    return driver.ask(settleSessionTimes=pb.SettleSessionTimes(change=times_of(driver).change))


def times_of(driver: Driver) -> SessionTimes:
    times = driver.fsm.image.session_times
    assert times is not None
    return times


# ---- what can be ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("times", "says"),
    [
        ((99, 50), "a session of 0.099 s is outside 0.1..3600 s"),
        ((3_600_001, 900), "a session of 3600 s is outside"),
        ((2000, 49), "a lease of 0.049 s is outside 0.05..3600 s"),
        ((2000, 2000), "a lease of 2 s has to be shorter than the session, 2 s"),
        ((2000, 2001), "has to be shorter"),
        ((0, 0), "outside"),
    ],
)
def test_session_times_outside_their_bounds_are_rejected(times: tuple[int, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SessionTimes(*times)
    with pytest.raises(ConfigError):
        SessionTimes(2000, 900, *(times if any(times) else (1, 0)))
    driver = a_driver("a")
    before = driver.fsm.image.session_times
    assert set_times(driver, *times).error == Error.INVALID
    assert driver.fsm.image.session_times == before
    begin = begin_at(LEVEL, Rules(), OWN)
    begin.setFeatureLevel.sessionTimes.sessionMs, begin.setFeatureLevel.sessionTimes.leaseMs = times
    born = new_group()
    assert born.ask(setFeatureLevel=begin.setFeatureLevel).error == Error.INVALID
    assert born.fsm.image.feature_level == NO_LEVEL


def test_session_times_in_the_node_settings_outside_their_bounds_raise_config_error() -> None:
    assert ReplicationConfig(session_s=5.0, lease_s=3.0).session_times == SessionTimes(5000, 3000)
    with pytest.raises(ConfigError, match=r"a session of 0\.09 s"):
        ReplicationConfig(heartbeat_interval_s=0.01, lease_s=0.05, session_s=0.09)
    with pytest.raises(ConfigError, match="a lease of 2 s has to be shorter"):
        ReplicationConfig(lease_s=1.9999, session_s=2.0)


# ---- what is decided ------------------------------------------------------------------------------------------------------------
def test_session_times_of_the_first_leader_are_stored_with_the_feature_level() -> None:
    driver = a_driver("a")
    assert times_of(driver) == OWN
    set_times(driver, 5000, 3000)
    for image in (image_from_bytes(image_to_bytes(driver.fsm.image)), decode_snapshot(encode_snapshot(driver.fsm.image))):
        assert image.session_times == SessionTimes(5000, 3000, 2000, 900, 1)


def test_session_times_change_before_the_last_change_is_settled_returns_stale() -> None:
    driver = a_driver("a")
    answer = set_times(driver, 5000, 3000)
    assert (answer.error, answer.sessionTimes.sessionBeforeMs, answer.sessionTimes.change) == (Error.OK, 2000, 1)
    again = set_times(driver, 700, 500)
    assert (again.error, again.detail) == (
        Error.STALE,
        "the change before is not settled yet, which takes 5 s of one metadata leader: "
        "session 5 s, lease 3 s (not settled: 2 s and 0.9 s may still count)",
    )
    same = set_times(driver, 5000, 3000, change=0)
    assert (same.error, same.sessionTimes.leaseMs) == (Error.OK, 3000), "as asked for already"
    assert settle(driver).error == Error.OK
    assert times_of(driver) == SessionTimes(5000, 3000, change=1)
    assert settle(driver).error == Error.OK
    late = set_times(driver, 700, 500, change=0)
    assert (late.error, late.detail) == (Error.STALE, "the session times were changed meanwhile: session 5 s, lease 3 s")
    set_times(driver, 700, 500)
    old = driver.ask(settleSessionTimes=pb.SettleSessionTimes(change=1))
    assert (old.error, times_of(driver).is_settled) == (Error.STALE, False), "that was about the change before"


def test_session_times_change_replayed_from_its_record_results_in_equal_session_times() -> None:
    driver = a_driver("a")
    before = driver.fsm.image
    set_times(driver, 5000, 3000)
    after = driver.fsm.image
    entry = entry_between(before, after)
    assert entry is not None
    image = before
    for record in entry.records:
        image = replay(image, record_from_pb(record))
    assert image.session_times == after.session_times
    assert [type(record_from_pb(record)) for record in entry.records] == [SessionTimesSet]
    assert (diff(before, after).lease_changed, bool(diff(before, after))) == (True, True)
    settle(driver)
    assert not diff(after, driver.fsm.image).lease_changed, "3 s is still the longest"
    pages = ClusterPages()
    while pages.request is not None:
        pages.add(describe(after, pages.request).cluster)
    assert image_from_pb(pages.cluster.image).session_times == after.session_times, "and clients"
    begun = entry_between(ClusterImage(), before)
    assert begun is not None
    assert record_from_pb(begun.records[-1]).times == OWN  # type: ignore[union-attr]


def test_replica_uses_the_longest_lease_still_valid_during_a_session_times_change() -> None:
    driver = a_driver("a")
    driver.create(replicationFactor=1)

    def told() -> int:
        image = driver.fsm.image
        stream = image.streams["orders"]
        return image.partition_metadata(stream, stream.partitions[0]).longest_lease_ns

    assert told() == 900 * MS
    set_times(driver, 5000, 3000)
    assert told() == 3000 * MS
    settle(driver)
    set_times(driver, 700, 500)
    assert told() == 3000 * MS, "granted before the change, it may still run"
    settle(driver)
    assert told() == 500 * MS
    assert replace(driver.fsm.image, session_times=None).longest_lease_ns == 0


# ---- what is granted ------------------------------------------------------------------------------------------------------------
def leading(driver: Driver, now_ns: int = START, own: ReplicationConfig | None = None) -> NodeSessions:
    sessions = NodeSessions(own or ReplicationConfig(session_s=60.0, lease_s=50.0))
    sessions.lead(driver.fsm.image, now_ns)
    return sessions


def beat(sessions: NodeSessions, driver: Driver, node: str, now_ns: int) -> int:
    answer = sessions.heartbeat(node, driver.incarnation(node), now_ns, now_ns)
    assert answer.granted
    return answer.lease_ms


def ends_ns(sessions: NodeSessions, node: str, from_ns: int, every_ns: int = 50 * MS) -> int:
    """Return when the node is fenced without further heartbeats."""
    for now_ns in range(from_ns, from_ns + 20_000 * MS, every_ns):
        if any(isinstance(due, pb.FenceNode) and due.nodeId == node for due in sessions.take_due(now_ns)):
            return now_ns - from_ns
    raise AssertionError("never")


def test_node_session_and_lease_times_come_from_the_cluster_image_not_from_the_settings() -> None:
    driver = a_driver("a", "b")
    sessions = leading(driver)
    assert beat(sessions, driver, "a", START) == 900
    assert ends_ns(sessions, "a", START) == 2000 * MS


def test_heartbeat_answer_contains_the_lease_time_of_the_image() -> None:
    driver = a_driver("a")
    duties = ActiveController(ReplicationConfig())
    duties.lead(driver.fsm.image, START, 1)
    heartbeat = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId="a", incarnation=driver.incarnation("a")))
    answer = duties.answer(heartbeat, driver.fsm.image, START, START)
    assert answer is not None
    assert answer.leaseMs == 900
    fresh = duties.answer(heartbeat, driver.fsm.image, START, START - 1000 * MS)
    assert fresh is not None
    assert (fresh.error, fresh.leaseMs) == (Error.UNAVAILABLE, 0)


def test_heartbeat_during_a_session_times_change_grants_the_new_lease_only_with_the_new_session() -> None:
    """The image may be newer than the settings of the sessions."""
    driver = a_driver("a", "b")
    sessions = leading(driver)
    set_times(driver, 9000, 8000)
    assert beat(sessions, driver, "a", START) == 900
    sessions.image_changed(driver.fsm.image, START)
    assert beat(sessions, driver, "a", START) == 8000
    assert ends_ns(sessions, "a", START) == 9000 * MS


def test_node_without_responders_is_fenced_after_a_lease_of_the_previous_metadata_leader() -> None:
    driver = a_driver("a", "b")
    set_times(driver, 300, 200)
    sessions = leading(driver)
    beat(sessions, driver, "b", START)
    sessions.record_no_responders("a")
    assert 900 * MS <= ends_ns(sessions, "a", START) < 1000 * MS


def settled_after_ms(sessions: NodeSessions, from_ms: int) -> list[int]:
    """Return the milliseconds after START at which the metadata leader proposes to settle."""
    found = []
    for ms in range(from_ms, from_ms + 8000, 100):
        if any(isinstance(due, pb.SettleSessionTimes) for due in sessions.take_due(START + ms * MS)):
            found.append(ms)
    return found


def test_session_times_change_is_settled_after_the_metadata_leader_led_for_the_longest_session() -> None:
    driver = a_driver("a", "b")
    sessions = leading(driver)
    beat(sessions, driver, "a", START)
    assert settled_after_ms(sessions, 0) == []
    set_times(driver, 300, 200)
    sessions.image_changed(driver.fsm.image, START + 8000 * MS)
    assert settled_after_ms(sessions, 8000)[:2] == [10_000, 10_200], "and again, until it is so"
    sessions.resign()
    sessions.lead(driver.fsm.image, START + 20_000 * MS)
    beat(sessions, driver, "a", START + 20_000 * MS)
    assert settled_after_ms(sessions, 20_000)[0] == 22_000, "whoever leads next does not know how long the one before did"
    settle(driver)
    sessions.image_changed(driver.fsm.image, START + 30_000 * MS)
    assert settled_after_ms(sessions, 30_000) == []
    set_times(driver, 4000, 200)
    sessions.image_changed(driver.fsm.image, START + 40_000 * MS)
    due = [due for due in sessions.take_due(START + 44_000 * MS) if isinstance(due, pb.SettleSessionTimes)]
    assert [request.change for request in due] == [2]
    driver.fence("b")
    sessions.image_changed(driver.fsm.image, START + 44_001 * MS)
    again = sessions.take_due(START + 44_001 * MS)
    assert not any(isinstance(due, pb.SettleSessionTimes) for due in again), "it is under way"


def test_election_without_position_reports_waits_for_the_session_time_in_the_image() -> None:
    driver = a_driver("a", "b")
    driver.create(replicationFactor=2)
    stream = driver.fsm.image.streams["orders"]
    waiting = replace(stream.partitions[0], status=PartitionStatus.ELECTION, leader="", deposed="")
    image = driver.fsm.image.with_altered(replace(stream, partitions=(waiting,)))
    timers = ElectionTimers(ReplicationConfig(session_s=60.0, lease_s=50.0), wait_s=1.0)
    timers.lead(image, START)
    assert timers.next_deadline_ns() == START + (2 + 1) * 1000 * MS
