"""Test the estimate of the backlog in nats-server, and the bytes to drop, at each limit [A11]."""

from __future__ import annotations

import pytest

from liftpy.core.replication.inflight_limits import BLIND_RATE_BYTES, FRESH_NS, LIMIT_BYTES, LoadShedding

MIB = 1024 * 1024
S = 1_000_000_000
T = 1_000 * S
GATE = 48 * MIB


def heard(*words: tuple[int, int, int]) -> LoadShedding:
    """What the server said: (bytes held, bytes read by then, tenths of a second after T)."""
    overflow = LoadShedding()
    for backlog, read, tenths in words:
        overflow.record_pong(backlog, read, T + tenths * S // 10)
    return overflow


def test_slow_consumer_guard_before_the_first_server_answer_assumes_an_unknown_backlog() -> None:
    overflow = LoadShedding()
    assert overflow.held_bytes(7, T) == 0
    assert not overflow.can_stop_reading(0, T), "who has said nothing may hold anything"


def test_slow_consumer_guard_extrapolates_the_server_backlog_at_the_measured_rate() -> None:
    overflow = heard((GATE, 0, 0), (50 * MIB, 1 * MIB, 1))
    assert overflow.held_bytes(MIB, T + S // 10) == 50 * MIB
    assert overflow.held_bytes(MIB, T + S // 10 + S // 2) == 50 * MIB + 15 * MIB, "30 MiB a second"
    assert overflow.held_bytes(3 * MIB, T + S // 10 + S // 2) == 50 * MIB + 15 * MIB - 2 * MIB


def test_slow_consumer_guard_measures_rates_over_a_tenth_of_a_second_or_more() -> None:
    overflow = LoadShedding()
    overflow.record_pong(GATE, 0, T)
    overflow.record_pong(50 * MIB, 0, T + S // 10 - 1)
    assert overflow.held_bytes(0, T + S) == 50 * MIB
    overflow.record_pong(50 * MIB, 0, T + S // 10)
    assert overflow.held_bytes(0, T + S // 10 + S) == 70 * MIB


def test_slow_consumer_guard_measured_rate_is_bounded_and_replaced_by_the_next() -> None:
    assert heard((60 * MIB, 0, 0), (GATE, 0, 1)).held_bytes(0, T + S) == GATE, "less has come: nothing comes"
    overflow = heard((GATE, 0, 0), (GATE, 900 * MIB, 1))
    assert overflow.held_bytes(900 * MIB, T + S // 10 + S) == GATE + 512 * MIB
    overflow.record_pong(GATE, 901 * MIB, T + 2 * S // 10)
    assert overflow.held_bytes(901 * MIB, T + 2 * S // 10 + S) == GATE + 10 * MIB


def test_slow_consumer_guard_with_a_small_server_backlog_reuses_the_last_rate() -> None:
    overflow = heard((GATE, 0, 0), (GATE + MIB, 0, 1), (GATE - 1, 0, 2))
    assert overflow.held_bytes(0, T + S) == GATE - 1
    overflow.record_pong(GATE, 0, T + 3 * S // 10)
    assert overflow.held_bytes(0, T + 3 * S // 10 + S) == GATE + 10 * MIB, "as it was measured last"
    assert heard((50 * MIB, 0, 0), (51 * MIB, 0, 0)).backlog_bytes == 50 * MIB, "of the same question"


def test_slow_consumer_guard_with_a_recent_answer_drops_nothing_up_to_the_limit() -> None:
    overflow = heard((LIMIT_BYTES, 5, 0))
    assert overflow.can_stop_reading(5, T + FRESH_NS)
    assert not overflow.can_stop_reading(5, T + FRESH_NS + 1)
    assert not overflow.can_stop_reading(4, T)
    assert overflow.due_bytes(False, 4, 0, T) == 1


def test_slow_consumer_guard_reads_a_minimum_number_of_bytes_every_four_seconds() -> None:
    overflow = LoadShedding()
    assert [overflow.due_bytes(False, 100, 0, T + tenths * S // 10) for tenths in (0, 10, 15, 39)] == [
        0, 0, 8 * MIB, 16 * MIB * 29 // 10,
    ]  # fmt: skip
    assert overflow.due_bytes(False, 100 + 5 * MIB, 0, T + 2 * S) == 11 * MIB
    assert overflow.due_bytes(False, 100, 0, T + 4 * S) == 0, "the next window"
    assert overflow.due_bytes(False, 100, 0, T + 6 * S) == 16 * MIB
    overflow.roomy()
    assert overflow.due_bytes(False, 100, 0, T + 7 * S) == 0


def test_slow_consumer_guard_with_a_full_buffer_and_a_silent_server_reads_at_a_fixed_rate() -> None:
    overflow = heard((LIMIT_BYTES + 3 * MIB, 0, 0))
    assert overflow.due_bytes(True, 0, 0, T + S // 4) == 3 * MIB, "it is known still"
    at = T + S // 4
    assert overflow.due_bytes(True, 0, 0, at + 1) == 3 * MIB, "it is full since a moment only"
    assert overflow.due_bytes(True, 0, 0, at + S // 4) == 3 * MIB
    begin = at + S // 4 + 1
    assert overflow.due_bytes(True, 0, 9, begin) == 0
    assert overflow.due_bytes(True, 0, 9, begin + S // 8) == BLIND_RATE_BYTES // 8
    assert overflow.due_bytes(True, 0, 9 + MIB, begin + S // 8) == BLIND_RATE_BYTES // 8 - MIB
    assert overflow.due_bytes(True, 0, 9 + 80 * MIB, begin + S // 4) == 0
    assert overflow.due_bytes(True, 0, 9 + 80 * MIB, begin + S // 2) == BLIND_RATE_BYTES // 4, (
        "more in a good second is no credit"
    )


@pytest.mark.parametrize(("end", "rate"), [("word", BLIND_RATE_BYTES), ("room", 0), ("roomy", 0)])
def test_slow_consumer_guard_fixed_rate_reading_ends_with_free_space_or_a_server_answer(end: str, rate: int) -> None:
    """After room it has to be full for a quarter of a second again; a word of the server says that it is known, for as long."""
    overflow = LoadShedding()
    overflow.due_bytes(True, 0, 0, T)
    begin = T + S // 4 + 1
    assert overflow.due_bytes(True, 0, 0, begin) == 0
    at = begin + S // 8
    assert overflow.due_bytes(True, 0, 0, at) == BLIND_RATE_BYTES // 8
    if end == "word":
        overflow.record_pong(0, 0, at)
        assert overflow.due_bytes(True, 0, 0, at) == 0
    elif end == "room":
        assert overflow.due_bytes(False, 0, 0, at) == 0
    else:
        overflow.roomy()
    again = begin + S // 2
    assert [overflow.due_bytes(True, 0, 0, again + wait_ns) for wait_ns in (0, S // 8)] == [0, rate // 8]


def test_slow_consumer_guard_disconnect_while_full_doubles_the_fixed_rate() -> None:
    overflow = heard((GATE, 0, 0), (50 * MIB, 0, 1))
    overflow.cut_off()
    assert overflow.blind_rate_bytes == BLIND_RATE_BYTES, "there was room"
    assert (overflow.backlog_bytes, overflow.held_bytes(0, T + S)) == (0, 0)
    overflow.record_pong(GATE, 0, T + S)
    assert overflow.held_bytes(0, T + 3 * S) == GATE, "what came before was of another connection"
    overflow.due_bytes(True, 0, 0, T)
    rates = []
    for _ in range(6):
        overflow.cut_off()
        rates.append(overflow.blind_rate_bytes // MIB)
    assert rates == [128, 256, 512, 1024, 1024, 1024]


@pytest.mark.parametrize(
    ("held", "limit"), [(16 * MIB, 13 * MIB), (64 * MIB, LIMIT_BYTES), (100, 256 * 1024), (256 * MIB, LIMIT_BYTES)]
)
def test_slow_consumer_guard_disconnect_sets_a_limit_below_the_observed_backlog(held: int, limit: int) -> None:
    overflow = LoadShedding()
    overflow.cut_at(held)
    assert overflow.limit_bytes == limit
