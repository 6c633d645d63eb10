"""Where flushes run: on the loop while this disk is fast, in threads as soon as it is not, and back only after a run of short ones."""

from __future__ import annotations

import random

import pytest

from liftpy.core.log.flush import LARGE_BYTES, LONG_S, MOST_WAITING, PROBES, SHORT_S, SLOW_S, FlushPlace

FAST_S = SHORT_S / 5


def in_thread(place: FlushPlace, took_s: float, count: int = 1) -> int:
    """Flush until ``count`` are done or flushing has moved; how many there were."""
    for number in range(count):
        if place.on_loop:
            return number
        place.took_in_thread(took_s, 100)
    return count


def on_loop(place: FlushPlace, took_s: float, count: int = 1) -> int:
    for number in range(count):
        if not place.on_loop:
            return number
        place.took_on_loop(took_s)
    return count


@pytest.fixture
def place() -> FlushPlace:
    made = FlushPlace()
    in_thread(made, FAST_S, 1000)
    assert made.on_loop
    return made


def test_it_begins_in_threads_and_moves_after_a_run_of_short_flushes() -> None:
    place = FlushPlace()
    assert not place.takes(100, False)
    assert in_thread(place, FAST_S, 1000) == 32
    assert place.takes(100, False)
    done = {"on_loop": True, "done_on_loop": 0, "done_in_thread": 32, "moves": 1}
    assert place.report() == {**done, "probed": 0, "probes_failed": 0}


def test_where_all_that_a_start_tries_out_is_short_the_first_flush_of_a_log_runs_on_the_loop() -> None:
    place = FlushPlace()
    place.tried_out([SHORT_S] * PROBES)
    assert place.takes(100, False)
    done = {"on_loop": True, "done_on_loop": 0, "done_in_thread": 0, "moves": 1}
    assert place.report() == {**done, "probed": PROBES, "probes_failed": 0}


def test_what_a_start_tries_out_counts_by_the_same_rule() -> None:
    place = FlushPlace()
    place.tried_out([FAST_S] * 10 + [SHORT_S * 2] + [FAST_S] * (PROBES - 11))
    assert in_thread(place, FAST_S, 1000) == 32 - (10 - 3) - (PROBES - 11)
    fewer = FlushPlace()
    fewer.tried_out([FAST_S] * 20)
    assert in_thread(fewer, FAST_S, 1000) == 12


def test_trying_out_in_vain_says_nothing() -> None:
    place = FlushPlace()
    place.tried_out(None)
    assert place.report()["probes_failed"] == 1
    assert in_thread(place, FAST_S, 1000) == 32


def test_who_is_on_the_loop_already_stays(place: FlushPlace) -> None:
    place.tried_out([1.0] * PROBES)
    place.tried_out([FAST_S] * PROBES)
    assert place.on_loop
    assert place.report()["moves"] == 1


def test_a_disk_that_is_slow_half_of_the_time_never_moves_however_often_its_node_starts() -> None:
    rng = random.Random(3)
    for _ in range(3000):
        place = FlushPlace()
        place.tried_out([FAST_S if rng.random() < 0.5 else 0.005 for _ in range(PROBES)])
        for _ in range(50):
            place.took_in_thread(FAST_S if rng.random() < 0.5 else 0.005, 100)
        assert not place.report()["moves"]


@pytest.mark.parametrize("took_s", [SHORT_S * 1.01, 0.01, 1.0])
def test_a_disk_that_is_slower_than_a_hand_over_never_moves(took_s: float) -> None:
    place = FlushPlace()
    assert in_thread(place, took_s, 10_000) == 10_000


def test_short_ones_must_be_the_rule() -> None:
    """More than three of four; a disk that is slow now and then moves later, one that is slow half of the time never."""
    rng = random.Random(1)
    for share, moves in ((0.5, False), (0.85, True), (0.95, True)):
        place = FlushPlace()
        for _ in range(2000):
            in_thread(place, FAST_S if rng.random() < share else 0.005)
        assert place.on_loop is moves, share


def test_one_long_flush_is_enough(place: FlushPlace) -> None:
    on_loop(place, FAST_S, 100)
    place.took_on_loop(LONG_S)
    assert not place.on_loop
    assert not place.takes(100, False)


def test_an_average_that_is_too_slow_is_enough(place: FlushPlace) -> None:
    assert LONG_S > 3 * SLOW_S
    assert 5 < on_loop(place, 3 * SLOW_S, 1000) < 50
    assert not place.on_loop


def test_one_that_is_a_little_slow_moves_nothing(place: FlushPlace) -> None:
    on_loop(place, FAST_S, 100)
    place.took_on_loop(LONG_S * 0.9)
    assert on_loop(place, FAST_S, 100) == 100


def test_who_moves_back_soon_has_to_show_more_each_time(place: FlushPlace) -> None:
    wanted = []
    for _ in range(8):
        place.took_on_loop(LONG_S)
        wanted.append(in_thread(place, FAST_S, 10_000))
    assert wanted == [64, 128, 256, 512, 512, 512, 512, 512]
    on_loop(place, FAST_S, 2000)
    place.took_on_loop(LONG_S)
    assert in_thread(place, FAST_S, 10_000) == 32, "it was right for long enough"


def test_the_loop_stands_still_for_a_small_share_of_the_time_whatever_the_disk_does() -> None:
    """Nine of ten flushes are fast, the others take 50 ms."""
    rng, place = random.Random(2), FlushPlace()
    stalls_s = total_s = 0.0
    for _ in range(50_000):
        took_s = 0.0002 if rng.random() < 0.9 else 0.05
        total_s += took_s
        if place.on_loop:
            stalls_s += took_s if took_s >= LONG_S else 0.0
            place.took_on_loop(took_s)
        else:
            place.took_in_thread(took_s, 100)
    assert place.done_on_loop
    assert stalls_s / total_s < 0.05


def test_what_takes_longer_by_its_nature_goes_to_a_thread_and_says_nothing_of_the_disk(place: FlushPlace) -> None:
    assert not place.takes(100, True), "it seals a segment"
    assert place.takes(LARGE_BYTES, False)
    assert not place.takes(LARGE_BYTES + 1, False)
    place.took_in_thread(1.0, LARGE_BYTES + 1)
    assert place.on_loop
    slow = FlushPlace()
    for _ in range(1000):
        slow.took_in_thread(FAST_S, LARGE_BYTES + 1)
    assert not slow.on_loop


def test_many_at_once_flush_side_by_side(place: FlushPlace) -> None:
    place.waiting = MOST_WAITING
    assert place.takes(100, False)
    place.waiting = MOST_WAITING + 1
    assert not place.takes(100, False)
