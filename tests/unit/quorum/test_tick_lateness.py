"""Test the measured delay of ticks: Raft and heartbeats do not wait for partition work."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.metadata.sessions import DEFAULT_CONFIRMED_WITHIN_S
from sidecar.quorum import driver as driver_module
from sidecar.quorum.driver import LATE_TICK_S, REST_S, GroupDriver
from sidecar.quorum.library import APPEND_EVERY_S, CALM_S, LATE_S, SETTLED_APPEND_EVERY_S, TICK_S, settings
from sidecar.quorum.peer_sessions import _DATA as DATA
from tests.unit.quorum.raft_network import OurNet, bare_member, our_net


async def test_raft_late_tick_increments_a_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = bare_member(tmp_path)
    driver: Any = member._driver
    now = [1000.0]
    at: list[float] = []
    timers: list[Any] = []

    def call_at(when: float, fire: object) -> asyncio.TimerHandle:
        at.append(when)
        timers.append(fire)
        return asyncio.TimerHandle(when, str, (), asyncio.get_running_loop())

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now[0], raising=False)
    monkeypatch.setattr(loop, "call_at", call_at, raising=False)
    monkeypatch.setattr(driver, "_tick", lambda: None)
    driver.start()
    for late_s in (-0.01, 0.0, LATE_TICK_S - 0.001, 0.3):
        now[0] = at[-1] + late_s
        timers[-1]()
        assert at[-1] == pytest.approx(now[0] + TICK_S), "what was late is not made up for by ticking twice"
    ticks = member.ticks()
    assert ticks["late"] == 1
    assert ticks["max_ms"] == pytest.approx(300, abs=0.1)
    member._log.journal.abandon()


@pytest.mark.parametrize(
    ("leads", "hears", "election_s", "rest_s"),
    [
        (False, False, 0.5, TICK_S),
        (False, False, 0.03, 0.031),
        (False, False, -0.1, TICK_S),
        (False, True, 0.5, REST_S),
        (True, False, 0.5, 0.061),
    ],
)
async def test_raft_timer_waits_until_the_next_append_election_or_tick_deadline(
    monkeypatch: pytest.MonkeyPatch, leads: bool, hears: bool, election_s: float, rest_s: float
) -> None:
    loop: Any = asyncio.get_running_loop()
    waits: list[float] = []

    def call_at(when: float, _: object) -> asyncio.TimerHandle:
        waits.append(when - loop.time())
        return asyncio.TimerHandle(when, str, (), loop)

    monkeypatch.setattr(driver_module, "tick_once", lambda *_: None)
    core: Any = SimpleNamespace(leads=leads, until_append_s=lambda: 0.06, until_election_s=lambda: election_s, behind=False)
    sessions = SimpleNamespace(outbox=[])
    transport: Any = SimpleNamespace(has_leader_contact=lambda within_s: hears and within_s == REST_S, sessions=sessions)
    nothing: Any = None
    duties = [1.0]
    driver = GroupDriver(core, transport, nothing, nothing, lambda: None, nothing, lambda: duties[0])
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_at", call_at, raising=False)
        driver.start()
        duties[0] = 0.02
        driver.tick()
    assert waits == pytest.approx([rest_s, 0.02], abs=0.01)
    driver.stop()


def test_raft_append_interval_leaves_room_for_a_lost_message_before_an_election() -> None:
    shortest_election_s = settings(*[None] * 6).raftMinTimeout  # type: ignore[arg-type]
    assert APPEND_EVERY_S < SETTLED_APPEND_EVERY_S < REST_S, "a follower ticks when the message arrives"
    assert shortest_election_s >= 2 * SETTLED_APPEND_EVERY_S
    assert SETTLED_APPEND_EVERY_S + LATE_S < DEFAULT_CONFIRMED_WITHIN_S, "the leader grants leases without a pause"


def appends(net: OurNet, lead: str, seconds: float) -> list[float]:
    """Run the group, and return the times between the leader's messages to a member."""
    other = next(name for name in net.up if name != lead)
    times, end, post = [], net.now + seconds, net.post

    def noted(sender: str, receiver: str, frame: Any) -> None:
        if (sender, receiver, frame[0]) == (lead, other, DATA):
            times.append(net.now)
        post(sender, receiver, frame)

    net.post = noted  # type: ignore[method-assign]
    net.run(lambda: net.now > end)
    net.post = post  # type: ignore[method-assign]
    return [after - before for before, after in pairwise(times)]


def test_raft_leader_of_a_settled_group_sends_append_messages_less_often(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        net.run(lambda: False, seconds=CALM_S)
        settled = appends(net, lead, 3.0)
        assert min(settled) > SETTLED_APPEND_EVERY_S - LATE_S / 2
        assert max(settled) < SETTLED_APPEND_EVERY_S + LATE_S
        net.put(lead, b"entry")
        assert min(appends(net, lead, 0.5)) < APPEND_EVERY_S, "the followers get the entry, and its commit, at once"
        assert min(appends(net, lead, 3.0)) > SETTLED_APPEND_EVERY_S - LATE_S / 2
        net.crash(near)
        net.run(lambda: False, seconds=1.0)
        assert max(appends(net, lead, 3.0)) < SETTLED_APPEND_EVERY_S - LATE_S / 2, "one more loss would cost the majority"


def test_raft_leader_with_a_late_tick_sends_append_messages_more_often(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, *_ = net.elected()
        net.run(lambda: False, seconds=CALM_S)
        net.now += TICK_S + 2 * LATE_S
        net.run(lambda: False, seconds=0.3)
        assert net.leaders() == [lead]
        assert max(appends(net, lead, CALM_S - 1.0)) < SETTLED_APPEND_EVERY_S - LATE_S / 2
        net.run(lambda: False, seconds=1.0)
        assert min(appends(net, lead, 2.0)) > SETTLED_APPEND_EVERY_S - LATE_S / 2


def test_raft_tick_is_late_relative_to_its_planned_time(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        core = net.up["a"].core
        for rest_s, away_s, is_late in ((TICK_S, 0.2, True), (REST_S, 0.35, False), (REST_S, 0.45, True)):
            core.listens()
            core.rest_s = rest_s
            net.now += away_s
            core.listens()
            assert core.turn_is_late is is_late
