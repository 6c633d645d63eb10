"""Test the clock checks of a node: requests to other nodes, trusted time, log lines and counters."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.config import NS_PER_S
from liftpy.core.base.clock_trust import NO_AGE_NS
from liftpy.core.wire.frames import encode_presence
from liftpy.core.wire.subjects import Subjects
from sidecar.metadata import clock_watch
from sidecar.metadata.clock_watch import CLOCK_WAITS, ClockWatch


class Others:
    """Provide nodes n2 and n3: the clock error of each. None: no time in the answer. Missing: no responders."""

    def __init__(self) -> None:
        self.off_s: dict[str, float | None] = {"n2": 0.0, "n3": 0.0}
        self.asked: list[tuple[str, bytes]] = []

    async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
        self.asked.append((subject, payload))
        assert timeout == 2.0
        node = subject.rpartition(".")[2]
        if node not in self.off_s:
            raise nats.errors.NoRespondersError
        off_s = self.off_s[node]
        return SimpleNamespace(data=b"yes" if off_s is None else encode_presence(time.time_ns() + round(off_s * NS_PER_S)))


class Watched(ClockWatch):
    def __init__(self, *fenced: str) -> None:
        self.others = Others()
        nodes = {name: SimpleNamespace(fenced=name in fenced) for name in ("n1", "n2", "n3")}
        self.counted = Counter[str]()
        bus: Any = self.others
        group: Any = SimpleNamespace(image=SimpleNamespace(nodes=nodes))
        super().__init__("n1", bus, Subjects("ns"), group, self.counted)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Set the clocks of the node: ``wall_s`` is the wall clock error and ``slept_s`` the suspended time."""
    off = SimpleNamespace(wall_s=0.0, slept_s=0.0)
    real, began = time.time_ns, time.monotonic_ns()
    shown = SimpleNamespace(
        time_ns=lambda: real() + round((off.wall_s + off.slept_s) * NS_PER_S),
        monotonic=lambda: time.monotonic() + off.slept_s,
    )
    monkeypatch.setattr(clock_watch, "time", shown)
    monkeypatch.setattr(
        clock_watch, "clock", SimpleNamespace(now_ns=lambda: time.monotonic_ns() - began + round(off.slept_s * NS_PER_S))
    )
    return off


async def test_clock_watch_caches_its_result_for_a_second(own: SimpleNamespace) -> None:
    """Housekeeping asks once for each partition."""
    watch = Watched()
    for node in ("n2", "n3"):
        await watch._ask(node)
    assert watch.time_of_age_ns()
    watch.others.off_s = {"n2": 3600.0, "n3": None}
    for node in ("n2", "n3"):
        await watch._ask(node)
    assert watch.time_of_age_ns()
    own.slept_s = 1.0
    assert watch.time_of_age_ns() == NO_AGE_NS, "of two clocks that tell one differs"
    assert watch.check().skew_ns < -3500 * NS_PER_S


async def test_clock_watch_after_a_clock_jump_returns_the_time_of_the_other_nodes(own: SimpleNamespace) -> None:
    watch = Watched()
    for node in ("n2", "n3"):
        await watch._ask(node)
    assert watch.time_of_age_ns()
    own.wall_s = -10 * 365 * 86_400
    assert abs(watch.stamp_ns() - time.time_ns()) < 5 * NS_PER_S
    own.wall_s = 5
    assert abs(watch.stamp_ns() - 5 * NS_PER_S - time.time_ns()) < NS_PER_S, "its own again"
    assert watch.counted[CLOCK_WAITS] == 0
