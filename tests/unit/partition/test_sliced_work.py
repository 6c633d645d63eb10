"""Test that work on thousands of partitions is done in slices, between which the event loop runs."""

from __future__ import annotations

import asyncio
import gc
import logging
import time

import pytest

from sidecar.runtime import clock
from sidecar.runtime.logs import InfoLogRateLimit
from sidecar.runtime.memory import CLOSED, OPENED, GarbageCollection
from sidecar.runtime.tasks import CooperativeQueue
from sidecar.runtime.timers import Timer, Timers

PIECE_S = 0.001


def _work() -> None:
    end = time.monotonic() + PIECE_S
    while time.monotonic() < end:
        pass


async def _longest_pause(until: list[int], count: int) -> float:
    """Of the loop, in s of this process's own time, so that a busy machine says nothing."""
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


async def test_sliced_work_runs_an_item_queued_twice_once_until_it_is_finished() -> None:
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
    assert garbage.full_collection_count == 0
    cycle: list[object] = []
    cycle.append(cycle)
    gc.freeze()
    del cycle, held
    before = gc.get_freeze_count()
    garbage.count_closed()
    assert garbage.full_collection_count == 1
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
    assert chatter.suppressed_count == 7
