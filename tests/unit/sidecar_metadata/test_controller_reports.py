"""Test each field of a controller's reports, and each kind of bus error."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.failure_reports import LeaderCheck, ProbeResult
from liftpy.core.metadata.features import SPOKEN
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata import control, group_role, membership
from sidecar.metadata.control import AdmissionQueue, AdmissionTimeoutError, Forwarder
from sidecar.metadata.feed import FeedSubscriber
from sidecar.metadata.group_role import MetadataConnection
from sidecar.metadata.group_thread import GroupThread
from sidecar.metadata.identity import NodeFile
from sidecar.metadata.member import ask_accused, ask_to_step_aside
from sidecar.quorum.codec import seal
from sidecar.quorum.library import Node
from sidecar.runtime.settings import NodeSettings
from tests.unit.sidecar_metadata.test_raft_member_and_executor import Made
from tests.unit.sidecar_metadata.test_raft_member_start_and_stop import a_member
from tests.unit.sidecar_metadata.test_request_forwarder import Bus

OUTCOME_UNKNOWN, UNAVAILABLE = pb.ControlResponse.OUTCOME_UNKNOWN, pb.ControlResponse.UNAVAILABLE
BARRIER = pb.ControlRequest(barrier=pb.Barrier())
NS = 1_000_000_000


@pytest.fixture
async def made(tmp_path: Path) -> Any:
    one = Made(tmp_path / "raft")
    yield one
    one.log.journal.abandon()


# ---- asking the leader -----------------------------------------------------------------------------------------------------
class Slow(Bus):
    """Answer requests after a few turns of the event loop."""

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.subject, self.timeout = subject, timeout
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().request(subject, payload, timeout)


async def test_request_forwarder_does_not_repeat_a_request_after_an_earlier_leader_change() -> None:
    bus = Slow(silent=0)
    made = Forwarder(bus, Subjects("space"), "n1")  # type: ignore[arg-type]
    made.leader_is("n1", 1)
    made.leader_is("n2", 2)
    response = await made.until_decided(pb.ControlRequest(barrier=pb.Barrier()), 60.0)
    assert (response.error, len(bus.asked), bus.subject) == (pb.ControlResponse.OK, 1, "space.control.node.n1")
    assert 0 < bus.timeout <= control.ATTEMPT_NS / NS
    assert len(bus.asked[0].operationId) == 16


async def test_request_forwarder_keeps_a_given_operation_id() -> None:
    bus = Slow(silent=0)
    request = pb.ControlRequest(barrier=pb.Barrier(), operationId=b"o" * 16)
    await Forwarder(bus, Subjects("space"), "n1").until_decided(request, 60.0)  # type: ignore[arg-type]
    assert bus.asked[0].operationId == b"o" * 16


@pytest.mark.parametrize(
    ("error", "outcome", "detail"),
    [
        (nats.errors.NoRespondersError(), UNAVAILABLE, "no controller can be reached"),
        (nats.errors.ConnectionClosedError(), UNAVAILABLE, "no controller can be reached"),
        (nats.errors.OutboundBufferLimitError(), UNAVAILABLE, "no controller can be reached"),
        (nats.errors.TimeoutError(), OUTCOME_UNKNOWN, "no answer from the metadata leader: TimeoutError"),
        (nats.errors.StaleConnectionError(), OUTCOME_UNKNOWN, "no answer from the metadata leader: StaleConnectionError"),
        (TimeoutError(), OUTCOME_UNKNOWN, "no answer from the metadata leader: TimeoutError"),
        (ConfigError("odd"), OUTCOME_UNKNOWN, "no answer from the metadata leader: ConfigError"),
    ],
)
async def test_request_forwarder_error_distinguishes_sent_from_unsent_requests(
    error: Exception, outcome: Any, detail: str
) -> None:
    class Failing(Bus):
        async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
            raise error

    made = Forwarder(Failing(0), Subjects("space"), "n1")  # type: ignore[arg-type]
    response = await made.until_decided(pb.ControlRequest(barrier=pb.Barrier()), 0.05)
    assert (response.error, response.detail) == (outcome, detail)


async def test_request_forwarder_on_the_metadata_leader_decides_locally_with_the_remaining_timeout() -> None:
    given: list[float] = []

    async def here(request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        given.append(timeout_s)
        error = UNAVAILABLE if len(given) == 1 else pb.ControlResponse.OK
        return pb.ControlResponse(error=error, index=len(given))

    bus = Bus(silent=0)
    made = Forwarder(bus, Subjects("space"), "n1")  # type: ignore[arg-type]
    response = await made.until_decided(pb.ControlRequest(barrier=pb.Barrier()), 60.0, here)
    assert (response.index, bus.asked) == (2, [])
    assert 59 < given[1] < given[0] <= 60


# ---- what a member says ----------------------------------------------------------------------------------------------------
def test_raft_member_log_status_of_the_leader_has_the_log_position_of_each_member(made: Made) -> None:
    core, log = made.log.core, made.log
    core._SyncObj__raftState, core._SyncObj__raftLeader = 2, Node("a")
    core._SyncObj__raftCurrentTerm, core._SyncObj__raftCommitIndex, core._SyncObj__raftLastApplied = 7, 5, 4
    for index in range(log.journal[-1][1] + 1, 9):  # type: ignore[index]
        log.journal.add(b"\0x", index, 7)
    core._SyncObj__raftMatchIndex = {Node("b"): 8, Node("c"): 3}
    log.transport.applied.update({"b": 5, "c": 2})
    log.peers["b"].up = True
    assert log.status() == [
        pb.ControllerStatus(nodeId="a", leader=True, term=7, commitIndex=5, appliedIndex=4, lag=0, connected=True),
        pb.ControllerStatus(nodeId="b", leader=False, term=7, commitIndex=5, appliedIndex=5, lag=0, connected=True),
        pb.ControllerStatus(nodeId="c", leader=False, term=7, commitIndex=3, appliedIndex=2, lag=5, connected=False),
    ]


def test_raft_member_log_status_of_a_follower_has_the_leader_and_its_own_position(made: Made) -> None:
    core, log = made.log.core, made.log
    core._SyncObj__raftState, core._SyncObj__raftLeader, core._SyncObj__raftCurrentTerm = 0, Node("b"), 7
    log.transport.applied.update({"b": 5, "c": 2})
    own, leader, other = log.status()
    assert (own.connected, own.leader, own.lag) == (True, False, 0)
    assert (leader.leader, leader.lag, leader.appliedIndex) == (True, 0, 0)
    assert (other.leader, other.lag, other.appliedIndex) == (False, 0, 0)
    assert log.waits_for() == log.probation.waits_for(), "that comes first"
    log.probation.over = True
    assert log.waits_for() == "waits for b, which leads the metadata group, to commit with a majority"
    core._SyncObj__raftLeader = None
    log.peers["b"].up = True
    assert log.waits_for() == "waits for a leader of the metadata group; not connected: c"
    log.peers["c"].up = True
    assert log.waits_for() == "waits for a leader of the metadata group; not connected: nobody"


async def test_raft_member_control_endpoint_reads_known_nodes_and_leadership_from_the_member(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = made.member._handler
    assert not handler._is_known("d1")
    made.log.fsm.image = replace(made.log.fsm.image, nodes={"d1": None})  # type: ignore[dict-item]
    assert handler._is_known("d1")
    assert not handler._is_known("d2")
    assert not handler._leads()
    made.log.core._SyncObj__raftState = 2
    assert handler._leads()


@pytest.mark.parametrize("whole", [True, False])
async def test_raft_member_frame_with_a_wrong_checksum_increments_a_counter(made: Made, whole: bool) -> None:
    sealed = seal("a", "b", b"frame")
    payload = sealed if whole else sealed[:-1] + bytes((sealed[-1] ^ 1,))
    received: list[Any] = []
    made.member._driver.frame_received = lambda *frame: received.append(frame)  # type: ignore[method-assign]
    made.member._frame_received(b"space.raft.a.b", b"", payload, b"")
    assert received == ([("b", b"frame")] if whole else [])
    assert sum(made.log.transport.sessions.counters.values()) == (0 if whole else 1)


async def test_raft_member_stopping_leader_waits_until_another_member_leads() -> None:
    member, calls = a_member(peers={"n2": SimpleNamespace(up=True)})
    stopping = asyncio.ensure_future(member.stop())
    async with asyncio.timeout(30):
        while ("core.hand_over",) not in calls:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0.011)
        assert ("driver.stop",) not in calls
        member._log.leads = False
        await stopping
    assert ("driver.stop",) in calls


async def test_metadata_thread_barrier_returns_after_watchers_received_its_image() -> None:
    made: Any = GroupThread.__new__(GroupThread)
    shown: list[tuple[int, int]] = []
    made._watchers = [lambda before, after: shown.append((before.index, after.index))]
    made._shown = made._newest = ClusterImage()
    made._announced = False

    class Backend:
        async def barrier(self, timeout_s: float) -> bool:
            made._newest = replace(ClusterImage(), index=9)  # and the node's loop has not been told of it yet
            return timeout_s == 3.0

    made.loop, made._role = asyncio.get_running_loop(), SimpleNamespace(current=Backend())
    assert await made.barrier(3.0)
    assert shown == [(0, 9)]
    assert made.image.index == 9
    assert not await made.barrier(4.0)
    assert shown[1:] == [(9, 9)], "another image, of which the same is known"


# ---- the handler --------------------------------------------------------------------------------------------------------------
async def test_concurrent_request_limit_is_per_sender_and_released_after_the_last_request() -> None:
    turns = AdmissionQueue()
    entered: list[str] = []
    go_on = asyncio.Event()

    async def ask(asker: str) -> None:
        async with turns.turn(asker, 60.0):
            entered.append(asker)
            await go_on.wait()

    asking = [asyncio.create_task(ask(asker)) for asker in ["x"] * (control._TURNS + 1) + ["y"]]
    for _ in range(5):
        await asyncio.sleep(0)
    assert sorted(entered) == ["x"] * control._TURNS + ["y"]
    with pytest.raises(AdmissionTimeoutError):
        async with turns.turn("x", 0.0):
            raise AssertionError
    assert len(turns) == 2
    go_on.set()
    await asyncio.gather(*asking)
    assert (len(turns), entered.count("x")) == (0, control._TURNS + 1)


# ---- questions to nodes ------------------------------------------------------------------------------------------------------
class Asked:
    """A connection that answers with bytes or an error."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, bytes, float]] = []

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.asked.append((subject, payload, timeout))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(data=answer)


QUESTION = LeaderCheck(node="n2", key=PartitionKey("s", "u1", 2), leader_epoch=5)
ABOUT = replication_pb2.LeaderQuestion(stream="s", streamUid="u1", partition=2, leaderEpoch=5)
ELSEWHERE = replication_pb2.LeaderQuestion(stream="s", streamUid="u1", partition=2, leaderEpoch=4)


def witness(serves: bool, about: Any = None) -> bytes:
    return frames.encode(replication_pb2.LeaderTestimony(serves=serves, question=about))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (witness(True, ABOUT), ProbeResult.SERVES),
        (witness(False, ABOUT), ProbeResult.DOES_NOT),
        (witness(True), ProbeResult.SERVES),
        (witness(True, ELSEWHERE), None),
        (nats.errors.NoRespondersError(), ProbeResult.ABSENT),
        (nats.errors.TimeoutError(), None),
        (TimeoutError(), None),
        (OSError(), None),
        (b"nothing", None),
    ],
)
async def test_controller_probe_of_a_reported_leader_returns_the_result_of_its_answer(
    answer: bytes | Exception, said: ProbeResult | None
) -> None:
    connection: Any = Asked(answer)
    assert await ask_accused(connection, Subjects("space"), QUESTION) is said
    ((subject, payload, timeout_s),) = connection.asked
    assert (subject, frames.decode(payload, replication_pb2.LeaderQuestion)) == ("space.notify.n2", ABOUT)
    assert 0 < timeout_s < 60


@pytest.mark.parametrize("error", [nats.errors.NoRespondersError(), TimeoutError(), OSError()])
async def test_leadership_transfer_request_to_a_missing_node_is_not_repeated(error: Exception) -> None:
    connection: Any = Asked(b"nothing", error)
    request = replication_pb2.StepAside(stream="s")
    await ask_to_step_aside(connection, Subjects("space"), "n2", request)
    assert [asked[0] for asked in connection.asked] == ["space.notify.n2"] * 2
    assert connection.asked[1][2] <= connection.asked[0][2], "of one time for all"


# ---- others ------------------------------------------------------------------------------------------------------------------
def test_node_file_of_another_node_is_rejected(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    identity = NodeFile(folder, "a")
    starts = identity.count_start()
    assert 0 < starts.nonce < 1 << 64
    assert len(starts.folder_id) == 16
    identity.begin(1)
    assert NodeFile(folder, "a")._stored.starts.folder_id == starts.folder_id
    with pytest.raises(ConfigError, match="belongs to node 'a', not to 'b'"):
        NodeFile(folder, "b")
    folder.close()


def test_node_file_marks_lazy_flush_until_a_clean_stop(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    identity = NodeFile(folder, "a")
    assert identity.previous.flushed_always
    identity.flushes_lazily()
    identity.flushes_lazily()
    assert not NodeFile(folder, "a").previous.flushed_always
    identity.begin(3)
    identity.end_cleanly()
    previous = NodeFile(folder, "a").previous
    assert (previous.incarnation, previous.clean_stop, previous.flushed_always) == (3, True, True)
    folder.close()


async def test_node_heartbeats_of_a_started_membership_run_until_cancelled_with_the_configured_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawned: list[Any] = []
    monkeypatch.setattr(membership, "spawn_in", lambda loop, work, name, endless: spawned.append((loop, name, endless)))
    made_with: list[Any] = []

    class Beats:
        def __init__(self, *given: Any) -> None:
            made_with.append(given)

        def run(self) -> str:
            return "running"

    monkeypatch.setattr(membership, "Heartbeats", Beats)
    settings: Any = SimpleNamespace(node_id="n1", replication=ReplicationConfig(session_s=3.0, heartbeat_interval_s=0.5))
    group: Any = SimpleNamespace(image=ClusterImage(), watch=lambda _: None, role="role", loop="its loop")
    made = membership.Membership(settings, group, lambda _: None, lambda _: None)
    made.incarnation = 7
    made.start()
    assert spawned == [("its loop", "heartbeats", True)]
    ((role, heartbeat, pace, answered),) = made_with
    assert (role, heartbeat) == (
        "role",
        pb.Heartbeat(nodeId="n1", incarnation=7, minLevel=SPOKEN.least, maxLevel=SPOKEN.most),
    )
    assert (pace, answered) == ((0.5, 3.0), made._heartbeat_answered)


async def test_metadata_group_link_starts_a_raft_member_on_controllers_and_the_feed_on_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[Any] = []

    class Group:
        controllers, image, is_member = ControllerList(), ClusterImage(), True

        def __init__(self, *given: Any, **more: Any) -> None:
            joined.append((type(self).__name__, given, more))

        def watch(self, watcher: Any) -> None:
            """Call no watcher."""

        async def stop(self) -> None:
            """Stop nothing."""

        async def start(self) -> None:
            joined.append("started")

    class Feed(Group):
        pass

    async def connect(link: MetadataConnection) -> None:
        joined.append("connected")

    monkeypatch.setattr(group_role, "RaftMember", Group)
    monkeypatch.setattr(group_role, "FeedSubscriber", Feed)
    monkeypatch.setattr(MetadataConnection, "_connect", connect)
    monkeypatch.setattr(group_role, "watch_denials", lambda *_: None)
    folder: Any = SimpleNamespace(raft=tmp_path / "raft")
    inboxes: Any = SimpleNamespace(allows=lambda _: True)
    subjects = Subjects("ns")
    for controllers in (("n1", "n2"), ("n2",)):
        settings = NodeSettings("n1", tmp_path, nats=("nats://h:1",), controllers=controllers)
        link = MetadataConnection(settings, folder, subjects, inboxes, Counter())
        group: Any = await link.open(lambda _: None)
        assert joined[0] == "connected"
        kind, given, more = joined[1]
        assert joined[2:] == ["started"]
        if len(controllers) == 2:
            assert (kind, more) == ("Group", {"elections": settings.elections, "connect": link._connect_for_events})
            opened, connection, spoken, config, _, is_inbox = given
            assert (opened.node_id, opened.members, opened.folder) == ("n1", controllers, tmp_path / "raft")
            assert (connection, spoken, config, is_inbox) == (link._connection, subjects, settings.replication, inboxes.allows)
        else:
            assert (kind, given) == ("Feed", ("n1", link._connection, subjects))
        assert link._role is group
        await group.stop()
        joined.clear()


async def test_metadata_feed_subscriber_returns_the_metadata_leader_of_the_last_answer() -> None:
    made = FeedSubscriber("n1", Slow(0), Subjects("space"))  # type: ignore[arg-type]
    answers = [pb.ControlResponse(metadataLeader="n2"), pb.ControlResponse()]

    async def decided(request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        return answers.pop(0)

    made._forwarder.until_decided = decided  # type: ignore[method-assign,assignment]
    assert made.leader == ""
    for _ in range(2):
        await made.propose(BARRIER)
        assert made.leader == "n2"
    assert (made.held, made.status(), made.ticks(), made.counters) == ({}, [], {}, {})


async def test_metadata_feed_subscriber_counts_undecodable_entries() -> None:
    made = FeedSubscriber("n1", Slow(0), Subjects("space"))  # type: ignore[arg-type]
    await made._entry_arrived(SimpleNamespace(data=b"nothing"))
    assert sum(made.counters.values()) == 1
