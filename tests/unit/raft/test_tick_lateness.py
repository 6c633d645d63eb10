"""How late the group's ticks come is measured and shown: neither Raft nor heartbeats may wait for partition work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.quorum.driver import LATE_TICK_S, TICK_S
from tests.unit.raft.ours import bare_member


async def test_quorum_late_tick_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = bare_member(tmp_path)
    driver: Any = member._driver
    now = [1000.0]
    at: list[float] = []
    monkeypatch.setattr(driver._loop, "time", lambda: now[0], raising=False)
    monkeypatch.setattr(driver._loop, "call_at", lambda when, _: at.append(when), raising=False)
    monkeypatch.setattr(driver, "tick", lambda: None)
    driver.start()
    for late_s in (0.0, LATE_TICK_S - 0.001, 0.3):
        now[0] = at[-1] + late_s
        driver._on_timer()
        assert at[-1] == pytest.approx(now[0] + TICK_S), "what was late is not made up for by ticking twice"
    ticks = member.ticks()
    assert ticks["late"] == 1
    assert ticks["max_ms"] == pytest.approx(300, abs=0.1)
    member._log.journal.abandon()
