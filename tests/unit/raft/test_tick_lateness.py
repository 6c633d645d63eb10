"""How late the group's ticks come is measured and shown: neither Raft nor heartbeats may wait for partition work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.quorum.driver import LATE_TICK_S, TICK_S
from tests.unit.raft.ours import bare_member


class Clock:
    """Time of the loop, moved by hand. ``set_for`` and ``cancelled``: times of timers."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.set_for: list[float] = []
        self.cancelled: list[float] = []

    def call_at(self, when: float, _: Any) -> Any:
        self.set_for.append(when)
        return SimpleNamespace(cancel=lambda: self.cancelled.append(when))


@pytest.fixture
async def ticking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, Any, Clock]]:
    """Give a member, its driver without work in its ticks, and the clock of both."""
    member, clock, loop = bare_member(tmp_path), Clock(), asyncio.get_running_loop()
    driver: Any = member._driver
    monkeypatch.setattr(driver, "_tick", lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", lambda: clock.now_s, raising=False)
        patched.setattr(loop, "call_at", clock.call_at, raising=False)
        driver.start()
        yield member, driver, clock
    member._log.journal.abandon()


async def test_quorum_late_tick_is_counted(ticking: tuple[Any, Any, Clock]) -> None:
    member, driver, clock = ticking
    for late_s in (0.0, LATE_TICK_S - 0.001, 0.3):
        clock.now_s = clock.set_for[-1] + late_s
        driver._on_timer()
        assert clock.set_for[-1] == pytest.approx(clock.now_s + TICK_S), "what was late is not made up for by ticking twice"
    ticks = member.ticks()
    assert ticks["late"] == 1
    assert ticks["max_ms"] == pytest.approx(300, abs=0.1)


async def test_quorum_tick_after_a_frame_postpones_the_timer(ticking: tuple[Any, Any, Clock]) -> None:
    _, driver, clock = ticking
    clock.now_s += 0.6 * TICK_S
    driver.tick()
    assert clock.cancelled == clock.set_for[:1]
    assert clock.set_for[-1] == pytest.approx(clock.now_s + TICK_S), "no two ticks are further apart than TICK_S"
