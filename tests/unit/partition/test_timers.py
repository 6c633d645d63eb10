"""Test deadlines: set, moved, canceled and in order."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.runtime import timers as timers_module
from sidecar.runtime.timers import GRID_NS, Timer, Timers

MS = 1_000_000


class Owner:
    """Notes what fires and when; one timer per kind."""

    def __init__(self, timers: Timers) -> None:
        self.fired: list[tuple[str, int]] = []
        self._timers = timers
        self._by_kind: dict[str, Timer] = {}

    def timer(self, kind: str) -> Timer:
        return self._by_kind.setdefault(kind, Timer(lambda: self.fired.append((kind, time.monotonic_ns()))))

    def set(self, kind: str, at_ns: int) -> None:
        self._timers.set(self.timer(kind), at_ns)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.fired]


async def until(owner: Owner, count: int) -> None:
    deadline = time.monotonic() + 5
    for _ in iter(lambda: len(owner.fired) >= count, True):
        assert time.monotonic() < deadline, f"{owner.kinds()}, not {count}"
        await asyncio.sleep(0.001)


async def test_timers_fire_in_order_and_not_before_their_deadline() -> None:
    owner, now = Owner(Timers()), time.monotonic_ns()
    wanted = {"b": now + 40 * MS, "a": now + 10 * MS, "c": now + 41 * MS}
    for kind, at in wanted.items():
        owner.set(kind, at)
    await until(owner, 3)
    assert owner.kinds() == ["a", "b", "c"]
    assert all(at >= wanted[kind] for kind, at in owner.fired)


async def test_timer_moved_several_times_fires_once_at_its_last_deadline() -> None:
    owner, now = Owner(Timers()), time.monotonic_ns()
    owner.set("x", now + 200 * MS)
    owner.set("x", now + 5 * MS)
    owner.set("x", now + 30 * MS)
    owner.set("later", now + 60 * MS)
    await until(owner, 2)
    assert owner.kinds() == ["x", "later"]
    assert owner.fired[0][1] >= now + 30 * MS


async def test_timer_may_be_set_again_while_it_fires() -> None:
    timers, count = Timers(), 0

    def again() -> None:
        nonlocal count
        count += 1
        timers.set(timer, time.monotonic_ns() + MS)

    timer = Timer(again)
    timers.set(timer, time.monotonic_ns())
    deadline = time.monotonic() + 5
    for _ in iter(lambda: count >= 3, True):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    timers.cancel(timer)


async def test_timer_that_was_cancelled_does_not_fire() -> None:
    timers, now = Timers(), time.monotonic_ns()
    owner = Owner(timers)
    timers.set(Timer(lambda: timers.cancel(owner.timer("cancelled in the same step"))), now)
    owner.set("cancelled in the same step", now + 1)
    owner.set("cancelled before", now + 5 * MS)
    owner.set("kept", now + 30 * MS)
    timers.cancel(owner.timer("cancelled before"))
    await until(owner, 1)
    assert owner.kinds() == ["kept"]


async def test_timers_with_a_thousand_equal_deadlines_wake_the_event_loop_a_few_times() -> None:
    timers, now = Timers(), time.monotonic_ns()
    owner = Owner(timers)
    loop, wake_ups = asyncio.get_running_loop(), 0
    call_later = loop.call_later

    def counting(delay: float, callback: object, *args: object) -> object:
        nonlocal wake_ups
        wake_ups += 1
        return call_later(delay, callback, *args)  # type: ignore[arg-type]

    timers._loop = type("Loop", (), {"call_later": staticmethod(counting), "call_soon": loop.call_soon})()  # type: ignore[assignment]
    for number in range(1000):
        owner.set(str(number), now + 20 * MS + number * GRID_NS // 1000)
    await until(owner, 1000)
    assert wake_ups < 10


async def test_timers_after_close_do_not_fire() -> None:
    timers = Timers()
    owner = Owner(timers)
    owner.set("x", time.monotonic_ns())
    timers.close()
    owner.set("y", time.monotonic_ns())
    watch = Owner(Timers())
    watch.set("z", time.monotonic_ns() + 20 * MS)
    await until(watch, 1)
    assert owner.fired == []


class Wheel:
    """Timers whose clock and loop stand still until the test turns them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr(timers_module, "clock", SimpleNamespace(now_ns=lambda: self.now_ns))
        self.fired: list[str] = []
        loop: Any = SimpleNamespace(
            call_later=lambda delay_s, callback: SimpleNamespace(cancel=lambda: None),
            call_soon=lambda callback: SimpleNamespace(cancel=lambda: None),
        )
        self.timers = Timers(loop)

    def at(self, now_ms: int) -> list[str]:
        """What fires then."""
        self.now_ns, self.fired[:] = now_ms * MS, []
        self.timers._fire()
        return list(self.fired)


def test_timer_moved_within_one_tick_still_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = Wheel(monkeypatch)
    timer = Timer(lambda: wheel.fired.append("it"))
    wheel.timers.set(timer, 8 * MS)
    wheel.timers.set(timer, 13 * MS)
    assert [wheel.at(10), wheel.at(15), wheel.at(20)] == [[], ["it"], []]


def test_timers_closed_by_a_firing_timer_do_not_fire_others_due_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = Wheel(monkeypatch)
    wheel.timers.set(Timer(wheel.timers.close), 5 * MS)
    wheel.timers.set(Timer(lambda: wheel.fired.append("it")), 5 * MS)
    assert wheel.at(5) == []
