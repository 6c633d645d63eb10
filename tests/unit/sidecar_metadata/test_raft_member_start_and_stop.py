"""Test RaftMember: barriers, and a leadership transfer at a stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.metadata.member import RaftMember

OK, UNAVAILABLE = pb.ControlResponse.OK, pb.ControlResponse.UNAVAILABLE


class Part:
    """Record every call by name. Attributes have the values that the test sets."""

    def __init__(self, calls: list[Any], name: str, **given: Any) -> None:
        self.__dict__.update(given)
        self._calls, self._name = calls, name

    def __getattr__(self, what: str) -> Any:
        def call(*args: Any, **_: Any) -> None:
            self._calls.append((f"{self._name}.{what}", *args))

        return call


def a_member(**log: Any) -> tuple[Any, list[Any]]:
    calls: list[Any] = []

    def part(name: str, **given: Any) -> Part:
        return Part(calls, name, **given)

    async def closed(name: str) -> None:
        calls.append((f"{name}.close",))

    made: Any = RaftMember.__new__(RaftMember)
    made.node_id = "n1"
    made._event_writer = None
    sessions = part("sessions", counters=Counter({"stale": 2}))
    given: dict[str, Any] = {
        "leader_id": "n1", "leads": True, "is_member": True, "peers": {}, "applied_index": 5, "held": {"journal_bytes": 8},
        "transport": part("transport", sessions=sessions), "core": part("core"), "journal": part("journal"),
        "fsm": part("fsm", refused_count=3), "status": lambda: [pb.ControllerStatus(nodeId="n1", term=4)],
        "probation": part("probation", turn=7, over=True),
    }  # fmt: skip
    made._log = part("log", **(given | log))
    made._member = part("member", counters=Counter({"looked": 4}))
    made._driver = part("driver", stopped=False, frames_lost=6, inbox_bytes=9, late_tick_count=2)
    made._feed = part("feed", counters=Counter({"asked": 1}), producer=part("producer"), close=lambda: closed("feed"))
    made._events = part("events", counters=Counter({"events": 7}), close=lambda: closed("events"))
    made._handler = part("handler", counters=Counter({"handler": 1}), close=lambda: closed("handler"))
    made._outgoing = part("outgoing", counters=Counter({"not sent: x": 5}))
    made._connection, made._forwarder = part("connection", max_payload=77), part("forwarder", counters=Counter({"answers": 8}))
    made._listener, made._lookup_task = part("listener"), None
    return made, calls


@pytest.mark.parametrize(
    ("error", "index", "timeout_s", "over"),
    [(OK, 5, 3600, True), (OK, 4, 0, True), (OK, 6, 0.01, False), (UNAVAILABLE, 0, 3600, False)],
)
async def test_raft_member_barrier_returns_when_its_index_is_applied(
    error: Any, index: int, timeout_s: float, over: bool
) -> None:
    made, _ = a_member()

    async def propose(request: pb.ControlRequest, within_s: float) -> pb.ControlResponse:
        assert request.HasField("barrier")
        assert within_s == timeout_s
        return pb.ControlResponse(error=error, index=index)

    made.propose = propose
    async with asyncio.timeout(30):
        assert await made.barrier(timeout_s) is over


async def test_raft_member_stopping_leader_repeats_the_transfer_until_another_member_leads() -> None:
    up: Any = type("Peer", (), {"up": True})()
    made, calls = a_member(peers={"n2": up})

    async def another_leads() -> None:
        while ("core.hand_over",) not in calls:
            await asyncio.sleep(0)
        made._log.leads, made._log.leader_id = False, ""
        for _ in range(3):
            await asyncio.sleep(0.011)
        assert not handing.done(), "nobody is known to lead yet"
        made._log.leader_id = "n2"

    handing = asyncio.ensure_future(made.hand_over())
    async with asyncio.timeout(30):
        await another_leads()
        await handing
    assert calls[0] == ("member.leave",)
    assert calls.index(("member.transfer_requested",)) < calls.index(("core.hand_over",)) < calls.index(("driver.wake",))
