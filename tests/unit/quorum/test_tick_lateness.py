"""Test the measured delay of ticks: Raft and heartbeats do not wait for partition work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.quorum import driver as driver_module
from sidecar.quorum.driver import LATE_TICK_S, REST_S, TICK_S, GroupDriver
from sidecar.quorum.library import LATE_S
from tests.unit.quorum.raft_network import bare_member


async def test_raft_late_tick_increments_a_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = bare_member(tmp_path)
    driver: Any = member._driver
    now = [1000.0]
    at: list[float] = []

    def call_at(when: float, _: object) -> asyncio.TimerHandle:
        at.append(when)
        return asyncio.TimerHandle(when, str, (), asyncio.get_running_loop())

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now[0], raising=False)
    monkeypatch.setattr(loop, "call_at", call_at, raising=False)
    monkeypatch.setattr(driver, "_tick", lambda: None)
    driver.start()
    for late_s in (-0.01, 0.0, LATE_TICK_S - 0.001, 0.3):
        now[0] = at[-1] + late_s
        driver._on_timer()
        assert at[-1] == pytest.approx(now[0] + TICK_S), "what was late is not made up for by ticking twice"
    ticks = member.ticks()
    assert ticks["late"] == 1
    assert ticks["max_ms"] == pytest.approx(300, abs=0.1)
    member._log.journal.abandon()


@pytest.mark.parametrize(("leads", "hears", "rest_s"), [(False, False, TICK_S), (False, True, REST_S), (True, False, 0.061)])
async def test_raft_timer_waits_until_the_next_append_or_tick_deadline(
    monkeypatch: pytest.MonkeyPatch, leads: bool, hears: bool, rest_s: float
) -> None:
    loop: Any = asyncio.get_running_loop()
    waits: list[float] = []

    def call_at(when: float, _: object) -> asyncio.TimerHandle:
        waits.append(when - loop.time())
        return asyncio.TimerHandle(when, str, (), loop)

    monkeypatch.setattr(driver_module, "tick_once", lambda *_: None)
    core: Any = SimpleNamespace(leads=leads, until_append_s=lambda: 0.06, behind=False)
    sessions = SimpleNamespace(outbox=[])
    transport: Any = SimpleNamespace(hears_a_leader=lambda within_s: hears and within_s == REST_S, sessions=sessions)
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


def test_raft_follower_tick_interval_is_between_the_append_interval_and_the_late_limit() -> None:
    append_pause_s = 0.1
    assert append_pause_s < REST_S < LATE_S
