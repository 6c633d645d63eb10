"""Test where flushes run: on the event loop while the disk is fast, otherwise in threads."""

from __future__ import annotations

import random

import pytest

from liftpy.core.log.flush import LARGE_BYTES, LONG_S, MOST_WAITING, PROBES, SHORT_S, SLOW_S, FlushScheduler

FAST_S = SHORT_S / 5


def in_thread(place: FlushScheduler, took_s: float, count: int = 1) -> int:
    """Flush until ``count`` are done or flushing has moved; how many there were."""
    for number in range(count):
        if place.on_loop:
            return number
        place.record_thread_flush(took_s, 100)
    return count


def on_loop(place: FlushScheduler, took_s: float, count: int = 1) -> int:
    for number in range(count):
        if not place.on_loop:
            return number
        place.record_loop_flush(took_s)
    return count


@pytest.fixture
def place() -> FlushScheduler:
    made = FlushScheduler()
    in_thread(made, FAST_S, 1000)
    assert made.on_loop
    return made


def test_flush_placement_with_fast_start_probes_starts_on_the_event_loop() -> None:
    place = FlushScheduler()
    place.tried_out([SHORT_S] * PROBES)
    assert place.takes(100, False)
    done = {"on_loop": True, "done_on_loop": 0, "done_in_thread": 0, "moves": 1}
    assert place.report() == {**done, "probed": PROBES, "probes_failed": 0}


def test_flush_placement_on_the_event_loop_ignores_later_probe_results(place: FlushScheduler) -> None:
    place.tried_out([1.0] * PROBES)
    place.tried_out([FAST_S] * PROBES)
    assert place.on_loop
    assert place.report()["moves"] == 1


def test_flush_placement_of_a_disk_slow_half_of_the_time_stays_in_threads() -> None:
    rng = random.Random(3)
    for _ in range(3000):
        place = FlushScheduler()
        place.tried_out([FAST_S if rng.random() < 0.5 else 0.005 for _ in range(PROBES)])
        for _ in range(50):
            place.record_thread_flush(FAST_S if rng.random() < 0.5 else 0.005, 100)
        assert not place.report()["moves"]


def test_flush_placement_leaves_the_event_loop_when_the_average_is_too_slow(place: FlushScheduler) -> None:
    assert LONG_S > 3 * SLOW_S
    assert 5 < on_loop(place, 3 * SLOW_S, 1000) < 50
    assert not place.on_loop


def test_flush_placement_stays_on_the_event_loop_after_a_slightly_slow_flush(place: FlushScheduler) -> None:
    on_loop(place, FAST_S, 100)
    place.record_loop_flush(LONG_S * 0.9)
    assert on_loop(place, FAST_S, 100) == 100


def test_flush_placement_needs_twice_as_many_short_flushes_each_time_it_soon_leaves_the_event_loop(
    place: FlushScheduler,
) -> None:
    wanted = []
    for _ in range(8):
        place.record_loop_flush(LONG_S)
        wanted.append(in_thread(place, FAST_S, 10_000))
    assert wanted == [64, 128, 256, 512, 512, 512, 512, 512]
    on_loop(place, FAST_S, 2000)
    place.record_loop_flush(LONG_S)
    assert in_thread(place, FAST_S, 10_000) == 32, "it was right for long enough"


def test_flush_placement_bounds_the_share_of_time_flushes_block_the_event_loop() -> None:
    """Nine of ten flushes are fast. The tenth takes 50 ms."""
    rng, place = random.Random(2), FlushScheduler()
    stalls_s = total_s = 0.0
    for _ in range(50_000):
        took_s = 0.0002 if rng.random() < 0.9 else 0.05
        total_s += took_s
        if place.on_loop:
            stalls_s += took_s if took_s >= LONG_S else 0.0
            place.record_loop_flush(took_s)
        else:
            place.record_thread_flush(took_s, 100)
    assert place.done_on_loop
    assert stalls_s / total_s < 0.05


def test_flush_placement_runs_large_and_segment_sealing_flushes_in_a_thread(place: FlushScheduler) -> None:
    assert not place.takes(100, True), "it seals a segment"
    assert place.takes(LARGE_BYTES, False)
    assert not place.takes(LARGE_BYTES + 1, False)
    place.record_thread_flush(1.0, LARGE_BYTES + 1)
    assert place.on_loop
    slow = FlushScheduler()
    for _ in range(1000):
        slow.record_thread_flush(FAST_S, LARGE_BYTES + 1)
    assert not slow.on_loop


def test_flush_placement_runs_many_queued_flushes_in_threads(place: FlushScheduler) -> None:
    place.waiting = MOST_WAITING
    assert place.takes(100, False)
    place.waiting = MOST_WAITING + 1
    assert not place.takes(100, False)
