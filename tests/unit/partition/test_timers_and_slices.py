"""Test deadlines, and work on thousands of partitions in slices between turns of the event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.runtime import clock
from sidecar.runtime import timers as timers_module
from sidecar.runtime.logs import InfoLogRateLimit
from sidecar.runtime.memory import CLOSED, OPENED, GarbageCollection
from sidecar.runtime.tasks import CooperativeQueue
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
        """Let the timers run at ``now_ms``, and return the names of those that fire."""
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


PIECE_S = 0.001


def _work() -> None:
    end = time.monotonic() + PIECE_S
    while time.monotonic() < end:
        pass


async def _longest_pause(until: list[int], count: int) -> float:
    """Return the longest CPU time of this thread between two turns of the loop, in seconds. A busy machine does not change it."""
    longest, before = 0.0, time.thread_time()
    while len(until) < count:
        await asyncio.sleep(0)
        longest = max(longest, (now := time.thread_time()) - before)
        before = now
    return longest


async def test_sliced_work_of_many_items_yields_to_the_event_loop() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        _work()
        done.append(number)

    slices = CooperativeQueue(work)
    slices.add(range(300))
    assert 0 < len(done) < 100, "the first slice is done at once"
    assert await _longest_pause(done, 300) < 0.05
    assert done == list(range(300))


async def test_sliced_work_with_an_item_queued_twice_runs_the_item_once() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if number == 1 and done.count(1) < 3:
            slices.add((1,))

    slices = CooperativeQueue(work, slice_s=0.0)
    slices.add((0,))
    slices.add((1, 2))
    slices.add((2, 3))
    async with asyncio.timeout(30):
        while slices:
            await asyncio.sleep(0)
    assert sorted(done) == [0, 1, 1, 1, 2, 3]
    slices.add((4,))
    slices.add((5, 6))
    slices.close()
    slices.add((7,))
    await asyncio.sleep(0)
    assert 7 not in done
    assert len(slices) == 0


async def test_timers_due_in_large_number_fire_in_time_slices() -> None:
    fired: list[int] = []
    timers = Timers()
    cancelled = Timer(lambda: fired.append(-1))

    def fire(number: int) -> None:
        _work()
        fired.append(number)
        timers.cancel(cancelled)

    now_ns = clock.now_ns()
    for number in range(200):
        timers.set(Timer(lambda number=number: fire(number)), now_ns)
    timers.set(cancelled, now_ns)
    assert await _longest_pause(fired, 200) < 0.05
    while timers._due:
        await asyncio.sleep(0)
    assert fired == list(range(200)), "a deadline that is cancelled while it waits does not fire"
    timers.close()


@pytest.fixture
def unfrozen() -> object:
    yield None
    gc.unfreeze()


def test_garbage_collector_freezes_objects_of_open_partitions(unfrozen: object) -> None:
    garbage = GarbageCollection()
    held = []
    for _ in range(OPENED):
        held.append([{} for _ in range(10)])
        garbage.count_opened()
    frozen = gc.get_freeze_count()
    assert frozen >= OPENED * 10
    for _ in range(CLOSED):
        garbage.count_opened()
    for _ in range(CLOSED - 1):
        garbage.count_closed()
    cycle: list[object] = []
    cycle.append(cycle)
    gc.freeze()
    del cycle, held
    before = gc.get_freeze_count()
    garbage.count_closed()
    assert gc.get_freeze_count() < before, "cycles that were put out of sight are found once enough partitions are gone"


def test_log_limiter_writes_a_bounded_number_of_lines_per_second_and_counts_the_rest(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    chatter, logger = InfoLogRateLimit(lines_per_s=3), logging.getLogger("liftpy.test")
    with caplog.at_level(logging.INFO, "liftpy.test"):
        for number in range(10):
            chatter.info(logger, "line %d", number)
        monkeypatch.setattr(time, "monotonic", lambda: 8.0)
        chatter.info(logger, "line %d", 10)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["line 0", "line 1", "line 2", "log lines about partitions suppressed count=7", "line 10"]
