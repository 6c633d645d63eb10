"""Test a membership: registrations, leases and leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.features import DAMAGED_LOGS, NO_LEVEL, UNSUPPORTED
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.metadata import membership
from sidecar.metadata.membership import Membership
from sidecar.runtime.settings import NodeSettings
from tests.unit.scripted_group import ScriptedGroup
from tests.until import until

Response = pb.ControlResponse
_LONG_S = 30.0


class Group:
    """Stand in for a metadata group. ``image`` is the applied image, and ``show`` passes an image to the watchers."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.asked: list[pb.ControlRequest] = []
        self.answer: Callable[[pb.ControlRequest], Response | None] = lambda request: Response()
        self.loop = asyncio.get_running_loop()
        self.leader = ""
        self.ticked: Callable[[], None] = lambda: None
        self._watchers: list[Any] = []

    @property
    def role(self) -> Any:
        return SimpleNamespace(current=self)

    def watch(self, callback: Any) -> None:
        self._watchers.append(callback)

    def show(self, index: int) -> None:
        before, self.image = self.image, replace(self.image, index=index)
        for watcher in self._watchers:
            watcher(before, self.image)

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> Response:
        if not request.operationId:
            request.operationId = len(self.asked).to_bytes(16)  # as the shipped ones do
        self.asked.append(pb.ControlRequest.FromString(request.SerializeToString()))
        while (response := self.answer(request)) is None:
            await asyncio.sleep(0.001)
        return response

    def send_heartbeat(self, request: pb.ControlRequest, answered: Callable[[Response], None]) -> None:
        assert len(request.operationId) == 16
        answering = asyncio.ensure_future(self.propose(request))
        answering.add_done_callback(lambda done: done.cancelled() or answered(done.result()))

    def kinds(self) -> list[str]:
        return [request.WhichOneof("request") or "" for request in self.asked]


class Driven:
    def __init__(self) -> None:
        self.group: Any = Group()
        self.heard: list[int] = []
        self.fatal: list[Exception] = []
        self.settings = NodeSettings("n4", Path("/nowhere"))
        self.member = Membership(self.settings, self.group, lambda sent_ns, _: self.heard.append(sent_ns), self.fatal.append)

    async def register(self, **given: Any) -> int:
        said: dict[str, Any] = {
            "clean_stop": False,
            "flushed_always": True,
            "damaged_logs": [],
            "status_address": "",
            "partition_budget": 9,
            **given,
        }
        return await self.member.register(6, starts=DirectoryIdentity("f", 3, 33, 11, (11, 22)), **said)

    def beats(self, error: Response.Error, index: int, sent_ns: int) -> None:
        """Pass an answer to a heartbeat. Heartbeats that are really sent get no answer."""
        self.member._heartbeat_answered(sent_ns, Response(error=error, index=index))


@pytest.fixture
async def driven(monkeypatch: pytest.MonkeyPatch) -> Driven:
    monkeypatch.setattr(membership, "_REGISTER_RETRY_S", 0.0)
    monkeypatch.setattr(membership, "_CONFLICT_RETRY_S", 0.0)
    return Driven()


# ---- registration --------------------------------------------------------------------------------------------------------------


async def test_node_membership_registration_retries_have_the_same_operation_id(driven: Driven) -> None:
    """Otherwise an attempt with a lost answer creates an incarnation, and the node fences itself."""
    answers = [
        Response(error=Response.UNAVAILABLE),
        Response(error=Response.OUTCOME_UNKNOWN),
        Response(error=Response.EXISTS),
        Response(node=pb.Node(incarnation=7)),
    ]
    driven.group.answer = lambda _: answers.pop(0)
    await driven.register()
    assert len(driven.group.asked) == 4
    assert len({request.operationId for request in driven.group.asked}) == 1


@pytest.mark.parametrize(("level", "count"), [(DAMAGED_LOGS, 1), (DAMAGED_LOGS - 1, 0), (NO_LEVEL, 0)])
async def test_node_membership_names_damaged_logs_from_their_feature_level_on(driven: Driven, level: int, count: int) -> None:
    driven.group.image = replace(driven.group.image, feature_level=level)
    driven.group.answer = lambda _: Response(node=pb.Node(incarnation=7))
    await driven.register(damaged_logs=[pb.DamagedLog(streamUid="000001-1", partition=3)])
    (request,) = driven.group.asked
    assert len(request.registerNode.damagedLogs) == count


async def test_node_membership_registers_without_names_after_the_feature_level_went_back(driven: Driven) -> None:
    driven.group.image = replace(driven.group.image, feature_level=DAMAGED_LOGS)
    refusal = Response(error=Response.INVALID, detail=f"{UNSUPPORTED}needs feature level 6")
    answers = [refusal, Response(node=pb.Node(incarnation=7))]
    driven.group.answer = lambda _: answers.pop(0)
    await driven.register(damaged_logs=[pb.DamagedLog(streamUid="000001-1", partition=3)])
    assert [len(request.registerNode.damagedLogs) for request in driven.group.asked] == [1, 0]


# ---- leases --------------------------------------------------------------------------------------------------------------------
@pytest.fixture
async def beating(driven: Driven) -> Driven:
    driven.group.answer = lambda request: None if request.HasField("heartbeat") else Response()
    driven.member.incarnation = 7
    driven.group.show(10)
    driven.member.start()
    return driven


async def test_node_membership_lease_is_extended_only_by_an_ok_answer(beating: Driven) -> None:
    for error in Response.Error.values():
        if error != Response.OK:
            beating.beats(error, 10, 1000 + error)
    beating.group.show(11)
    await asyncio.sleep(0)
    assert beating.heard == []
    beating.beats(Response.OK, 11, 5000)
    assert beating.heard == [5000]
    await beating.member.close()


async def test_node_membership_extends_the_lease_after_watchers_received_the_image_of_the_answer(beating: Driven) -> None:
    beating.group.image = replace(beating.group.image, index=12)  # applied, and not shown yet
    beating.beats(Response.OK, 12, 5000)
    assert beating.heard == []
    shown: list[list[int]] = []
    beating.group.watch(lambda old, new: shown.append(list(beating.heard)))  # one that is told after the membership
    beating.group.show(12)
    assert shown == [[]], "who leads is told what it has lost first"
    await until(lambda: beating.heard == [5000])
    await beating.member.close()


async def test_node_membership_after_its_last_heartbeat_extends_no_lease(beating: Driven) -> None:
    await beating.member.close()
    beating.beats(Response.OK, 10, 5000)
    await asyncio.sleep(0)
    assert beating.heard == []


async def test_node_membership_undecided_heartbeat_is_repeated_at_once(driven: Driven) -> None:
    sent_s: list[float] = []

    def send_heartbeat(request: pb.ControlRequest, answered: Callable[[Response], None]) -> None:
        sent_s.append(asyncio.get_running_loop().time())
        answered(Response(error=Response.UNAVAILABLE))

    driven.group.send_heartbeat = send_heartbeat
    driven.member.start()
    await until(lambda: len(sent_s) >= 3)
    assert min(b - a for a, b in pairwise(sent_s)) < driven.settings.replication.heartbeat_interval_s / 2
    assert driven.heard == []
    await driven.member.close()


# ---- the end -------------------------------------------------------------------------------------------------------------------
async def test_node_membership_leaves_after_its_last_heartbeat(beating: Driven, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "liftpy.membership")
    await until(lambda: "heartbeat" in beating.group.kinds())
    await beating.member.leave(1.0)
    assert caplog.messages == []
    kinds = beating.group.kinds()
    assert kinds[-1] == "fenceNode"
    assert (beating.group.asked[-1].fenceNode.nodeId, beating.group.asked[-1].fenceNode.incarnation) == ("n4", 7)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert beating.group.kinds() == kinds, "who beats on is unfenced again"


# ---- end of a membership ---------------------------------------------------------------------------------------------------
def a_membership(group: Any, told: list[Any]) -> membership.Membership:
    settings: Any = SimpleNamespace(node_id="n1", replication=ReplicationConfig(), rack="r", weight=2.0)
    return membership.Membership(settings, group, told.append, told.append)


@pytest.mark.parametrize(
    ("node", "seen", "incarnation", "ends"),
    [(None, 9, 3, True), (None, 8, 3, False), (None, 9, 0, False), ("n1", 9, 3, False)],
)
async def test_node_membership_of_a_removed_node_ends_when_the_image_confirms_the_removal(
    node: str | None, seen: int, incarnation: int, ends: bool
) -> None:
    group, told = ScriptedGroup(), list[Any]()
    made = a_membership(group, told)
    made._end_heartbeats = lambda: asyncio.sleep(0)  # type: ignore[assignment,return-value]
    made.incarnation = incarnation
    group.shown = replace(ClusterImage(), index=seen, nodes={node: None} if node else {})  # type: ignore[dict-item]
    made._image_changed(ClusterImage(), group.shown)
    assert told == [], "an image alone may be forged"
    made._heartbeat_answered(1, pb.ControlResponse(error=pb.ControlResponse.NOT_FOUND, index=9))
    assert len(told) == ends
    if ends:
        for words in ("Node 'n1' was removed from the cluster", "Its data directory was not deleted", "start it: it joins"):
            assert words in str(told[0])


@pytest.mark.parametrize(("own", "ends"), [(4, True), (3, False), (2, False), (None, False)])
async def test_node_membership_ends_when_a_newer_process_registers_the_node_id(own: int | None, ends: bool) -> None:
    group, told = ScriptedGroup(), list[Any]()
    made = a_membership(group, told)
    made._end_heartbeats = lambda: asyncio.sleep(0)  # type: ignore[assignment,return-value]
    made.incarnation = 3
    group.shown = replace(ClusterImage(), nodes={"n1": SimpleNamespace(incarnation=own)} if own else {})  # type: ignore[dict-item]
    made._heartbeat_answered(1, pb.ControlResponse(error=pb.ControlResponse.FENCED))
    assert len(told) == ends
    if ends:
        assert "another process has registered as n1" in str(told[0])
    made._end_heartbeats = None
    made._heartbeat_answered(1, pb.ControlResponse(error=pb.ControlResponse.FENCED))
    assert len(told) == ends, "after the last heartbeat nothing is heard any more"
