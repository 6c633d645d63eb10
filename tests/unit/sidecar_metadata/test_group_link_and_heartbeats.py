"""Test a node's heartbeats while its event loop is blocked, and the end of its membership."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.metadata import membership
from tests.unit.scripted_group import ScriptedGroup

NS = 1_000_000_000


class Beating:
    """Heartbeats with a virtual clock, whose timer the test fires. ``home``: calls for the event loop of the node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.home: list[Any] = []
        self.answered: list[Any] = []
        self.group = ScriptedGroup(*(pb.ControlResponse(index=number) for number in range(1, 100)))
        monkeypatch.setattr(membership, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(membership, "clock", SimpleNamespace(now_ns=lambda: round(self.now * NS)))
        self.beat = pb.Heartbeat(nodeId="n1", incarnation=2)
        role, pace = cast(Any, SimpleNamespace(current=self.group)), membership.HeartbeatTimes(0.5, 3.0)
        self.beats = membership.Heartbeats(role, self.beat, pace, lambda *what: self.answered.append(what))
        self.beats._home = cast(
            Any, SimpleNamespace(call_soon_threadsafe=lambda call, *given: self.home.append((call, *given)))
        )
        loop = SimpleNamespace(call_later=self._call_later, create_future=asyncio.get_running_loop().create_future)
        monkeypatch.setattr(membership, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
        self.running = self.beats.run()
        self.running.send(None)

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = (self.now + seconds, callback)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: timer in self.timers and self.timers.remove(timer))

    def run(self, seconds: float) -> None:
        """Fire the timer as often as it is due within ``seconds``."""
        end = self.now + seconds
        while self.timers and self.timers[0][0] <= end:
            self.now, fire = self.timers.pop(0)
            fire()
        self.now = end

    def turn_home(self) -> None:
        """Run the calls for the event loop of the node."""
        home, self.home[:] = list(self.home), []
        for call, *given in home:
            call(*given)


async def test_node_heartbeats_are_sent_at_the_interval_and_stop_while_the_node_loop_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Beating(monkeypatch)
    running.run(9.0)
    assert [request.heartbeat for request, _ in running.group.asked] == [running.beat] * 6, "for as long as a session"
    assert len({request.operationId for request, _ in running.group.asked}) == 6
    assert running.answered == [], "the loop is blocked"
    running.turn_home()
    times_ns = [round((100 + n / 2) * NS) for n in range(6)]
    assert [(sent_ns, response.index) for sent_ns, response in running.answered] == list(
        zip(times_ns, range(1, 7), strict=True)
    )
    running.run(0.5)
    assert len(running.group.asked) == 7, "it goes on when the loop turns"


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
