"""Deadlines: set, moved, cancelled, in order, many at once."""

from __future__ import annotations

import asyncio
import time

from sidecar.timers import GRID_NS, Timers

MS = 1_000_000


class Owner:
    """Notes what fires and how late it is."""

    def __init__(self) -> None:
        self.fired: list[tuple[object, int]] = []

    def __call__(self, kind: object) -> None:
        self.fired.append((kind, time.monotonic_ns()))

    def kinds(self) -> list[object]:
        return [kind for kind, _ in self.fired]


async def until(owner: Owner, count: int) -> None:
    deadline = time.monotonic() + 5
    for _ in iter(lambda: len(owner.fired) >= count, True):
        assert time.monotonic() < deadline, f"{owner.kinds()}, not {count}"
        await asyncio.sleep(0.001)


async def test_deadlines_fire_in_order_and_not_early() -> None:
    timers, owner, now = Timers(), Owner(), time.monotonic_ns()
    wanted = {"b": now + 40 * MS, "a": now + 10 * MS, "c": now + 41 * MS}
    for kind, at in wanted.items():
        timers.set(owner, kind, at)
    await until(owner, 3)
    assert owner.kinds() == ["a", "b", "c"]
    assert all(at >= wanted[str(kind)] for kind, at in owner.fired)


async def test_a_deadline_that_is_moved_fires_once_at_its_last_time() -> None:
    timers, owner, now = Timers(), Owner(), time.monotonic_ns()
    timers.set(owner, "x", now + 200 * MS)
    timers.set(owner, "x", now + 5 * MS)
    timers.set(owner, "x", now + 30 * MS)
    timers.set(owner, "later", now + 60 * MS)
    await until(owner, 2)
    assert owner.kinds() == ["x", "later"]
    assert owner.fired[0][1] >= now + 30 * MS


async def test_cancelled_deadlines_do_not_fire_even_by_one_of_the_same_moment() -> None:
    timers, owner, now = Timers(), Owner(), time.monotonic_ns()

    def canceller(kind: object) -> None:
        timers.cancel(owner, "cancelled in the same step")

    timers.set(canceller, "now", now)
    timers.set(owner, "cancelled in the same step", now + 1)
    timers.set(owner, "cancelled before", now + 5 * MS)
    timers.set(owner, "kept", now + 30 * MS)
    timers.cancel(owner, "cancelled before")
    await until(owner, 1)
    assert owner.kinds() == ["kept"]
    assert len(timers) == 0


async def test_of_an_owner_that_goes_nothing_is_left() -> None:
    timers, gone, kept, now = Timers(), Owner(), Owner(), time.monotonic_ns()
    for kind in range(10):
        timers.set(gone, kind, now + 5 * MS)
    timers.set(kept, "x", now + 10 * MS)
    timers.cancel_all(gone)
    await until(kept, 1)
    assert gone.fired == []


async def test_a_thousand_deadlines_of_one_moment_need_few_wake_ups() -> None:
    timers, owner, now = Timers(), Owner(), time.monotonic_ns()
    loop, wake_ups = asyncio.get_running_loop(), 0
    call_later = loop.call_later

    def counting(delay: float, callback: object, *args: object) -> object:
        nonlocal wake_ups
        wake_ups += 1
        return call_later(delay, callback, *args)  # type: ignore[arg-type]

    timers._loop = type("Loop", (), {"call_later": staticmethod(counting)})()  # type: ignore[assignment]
    for number in range(1000):
        timers.set(owner, number, now + 20 * MS + number * GRID_NS // 1000)
    await until(owner, 1000)
    assert wake_ups < 10


async def test_after_close_nothing_fires() -> None:
    timers, owner = Timers(), Owner()
    timers.set(owner, "x", time.monotonic_ns())
    timers.close()
    other, watch = Timers(), Owner()
    other.set(watch, "y", time.monotonic_ns() + 20 * MS)
    await until(watch, 1)
    assert owner.fired == []
