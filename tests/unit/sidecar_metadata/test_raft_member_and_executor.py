"""Test what a controller passes on between the log, the rules, the bus and clients."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sidecar.metadata.member
from liftpy.config import ReplicationConfig
from liftpy.core.metadata.controller.quorum_member import CatchUp, EntryOutcome, ProbeNode, ProposedEntry, PublishEntry
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from sidecar.metadata.member import ControllerActions, RaftMember
from sidecar.metadata.member_log import MemberDirectory
from sidecar.quorum.library import FAIL_REASON, Node
from tests.until import until

OK = pb.ControlResponse.OK
_LONG_S = 30.0


# ---- what a member decides is done ---------------------------------------------------------------------------------------------
class Rules:
    """Stand in for ``QuorumMember``: return the decisions of the test and record all calls."""

    def __init__(self) -> None:
        self.decisions: list[Any] = []
        self.told: list[Any] = []

    def tick(self, now_ns: int, **given: bool) -> list[Any]:
        decided, self.decisions = self.decisions, []
        return decided

    def request(self, request: pb.ControlRequest, timeout_ns: int, now_ns: int) -> ProposedEntry:
        return ProposedEntry(request, timeout_ns)

    def entry(self, order: ProposedEntry, time_ns: int, max_bytes: int) -> bytes:
        self.told.append(("wall clock", time_ns))
        return b"entry"

    def proposal_ended(
        self, order: ProposedEntry, outcome: EntryOutcome, answer: bytes | None, now_ns: int
    ) -> pb.ControlResponse:
        self.told.append((outcome, answer))
        return pb.ControlResponse(detail=outcome.name)

    def probe_ended(self, node_id: str, *, absent: bool) -> None:
        self.told.append((node_id, absent))

    def question_answered(self, question: Any, said: Any) -> None:
        self.told.append((question, said))


class Driver:
    stopped = False

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[bytes | None, int]] = asyncio.get_running_loop().create_future()

    def propose(self, command: bytes, *, change: bool) -> asyncio.Future[tuple[bytes | None, int]]:
        return self.answer


class Shell:
    def __init__(self) -> None:
        self.rules: Any = Rules()
        self.driver: Any = Driver()
        self.fed: list[pb.FeedEntry] = []
        self.caught_up = 0
        log: Any = SimpleNamespace(probation=SimpleNamespace(over=True), image=None)
        feed: Any = SimpleNamespace(publish_entry=self.fed.append)
        connection: Any = SimpleNamespace(is_connected=True)
        self.orders = ControllerActions(connection, Subjects("space"), self.rules, log, self.driver, feed, self._catch_up)

    async def _catch_up(self) -> None:
        self.caught_up += 1


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(sidecar.metadata.member, "leader_to_ask_first", lambda image, request: None)
    return Shell()


async def test_metadata_proposal_executor_executes_each_kind_of_decision(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def absent(connection: Any, subjects: Subjects, node_id: str) -> bool:
        return node_id == "gone"

    monkeypatch.setattr(sidecar.metadata.member, "is_absent", absent)
    entry = pb.FeedEntry(index=4)
    shell.rules.decisions = [PublishEntry(entry), ProbeNode("gone"), ProbeNode("there"), CatchUp()]
    shell.orders.run_due()
    await until(lambda: len(shell.rules.told) == 2 and shell.caught_up)
    assert shell.fed == [entry]
    assert sorted(shell.rules.told) == [("gone", True), ("there", False)]


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (FAIL_REASON.SUCCESS, EntryOutcome.APPLIED),
        (FAIL_REASON.NOT_LEADER, EntryOutcome.NEVER),
        (FAIL_REASON.DISCARDED, EntryOutcome.NEVER),
        (FAIL_REASON.LEADER_CHANGED, EntryOutcome.UNKNOWN),
        (FAIL_REASON.UNKNOWN_OUTCOME, EntryOutcome.UNKNOWN),
    ],
)
async def test_metadata_proposal_executor_maps_the_pysyncobj_result_to_the_entry_outcome(
    shell: Shell, reason: int, outcome: EntryOutcome
) -> None:
    answer = b"answer" if reason == FAIL_REASON.SUCCESS else None
    shell.driver.answer.set_result((answer, reason))
    before_ns = time.time_ns()
    response = await shell.orders.decide(pb.ControlRequest(barrier=pb.Barrier()), _LONG_S)
    assert response is not None
    assert response.detail == outcome.name
    (clock, time_ns), told = shell.rules.told
    assert told == (outcome, answer)
    assert clock == "wall clock"
    assert before_ns <= time_ns <= time.time_ns()


async def test_metadata_proposal_executor_without_result_until_the_timeout_reports_an_unknown_outcome(shell: Shell) -> None:
    response = await shell.orders.decide(pb.ControlRequest(barrier=pb.Barrier()), 0.01)
    assert response is not None
    assert response.detail == "UNKNOWN"


# ---- a member between its parts ------------------------------------------------------------------------------------------------
class Made:
    """Provide one of three members with a new directory. No task of the member runs."""

    def __init__(self, folder: Path) -> None:
        self.connection: Any = SimpleNamespace(is_connected=True, max_payload=4096, hold=lambda: None, release=lambda: None)
        opened = MemberDirectory("a", ("a", "b", "c"), folder)
        self.fatal: list[Exception] = []
        self.member = RaftMember(
            opened, self.connection, Subjects("space"), ReplicationConfig(), self.fatal.append, lambda _: True
        )
        self.log = self.member._log
        self.rules = self.member._member

    def calls(self, monkeypatch: pytest.MonkeyPatch, *of: tuple[Any, str]) -> list[str]:
        """Replace the methods by functions that only record their call."""
        told: list[str] = []
        for owner, name in of:
            monkeypatch.setattr(owner, name, lambda *_, name=name, **__: told.append(name))
        return told


@pytest.fixture
async def made(tmp_path: Path) -> Any:
    one = Made(tmp_path / "raft")
    yield one
    one.log.journal.abandon()


async def test_raft_member_resigns_as_metadata_leader_when_the_raft_leadership_ends(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = made.calls(monkeypatch, (made.rules, "resign"))
    made.member._state_changed(0, 2)
    assert told == []
    made.member._state_changed(2, 0)
    assert told == ["resign"]


async def test_raft_member_that_leads_answers_its_own_heartbeat_without_nats(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of this member can send nothing."""
    monkeypatch.setattr(type(made.rules), "is_active", True)
    monkeypatch.setattr(made.rules, "request", lambda *_: pb.ControlResponse(index=7))
    answered: list[int] = []
    made.member.send_heartbeat(pb.ControlRequest(heartbeat=pb.Heartbeat()), lambda response: answered.append(response.index))
    assert answered == [7]


async def test_raft_member_resigns_as_metadata_leader_before_a_leadership_transfer(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader waits for no election timeout, and so for no lease."""
    told = made.calls(monkeypatch, (made.rules, "resign"), (made.log.core, "hand_over"))
    made.member._transfer()
    assert told == ["resign", "hand_over"]


async def test_raft_member_tick_calls_image_watchers_once_before_decisions(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    made.member.watch(lambda old, new: shown.append((old.index, new.index)))
    monkeypatch.setattr(made.member._orders, "run_due", lambda: shown.append("decisions"))
    made.member._process_tick()
    made.log.fsm.image = replace(made.log.fsm.image, index=5)
    made.member._process_tick()
    made.member._process_tick()
    assert shown == ["decisions", (0, 5), "decisions", "decisions"]


async def test_raft_member_after_a_reconnect_sends_chunks_below_the_maximum_payload(made: Made) -> None:
    sessions = made.log.transport.sessions
    made.member.bus_changed(True)
    assert sessions.online
    assert sessions.chunk_bytes < 4096
    assert made.member._feed.producer._message_bytes < 4096
    made.member.bus_changed(False)
    assert not sessions.online


async def test_raft_member_barrier_from_before_the_current_probation_does_not_end_the_probation(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second probation may begin while a barrier is in flight."""
    applied: list[int] = []
    probation = made.log.probation

    async def barrier(timeout_s: float) -> bool:
        probation.turn += 1
        if probation.turn == 3:
            made.member._driver.stopped = True
        return True

    monkeypatch.setattr(made.member, "barrier", barrier)
    monkeypatch.setattr(probation, "barrier_applied", applied.append)
    await asyncio.wait_for(made.member._catch_up(), _LONG_S)
    assert applied == [0, 1, 2]


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
