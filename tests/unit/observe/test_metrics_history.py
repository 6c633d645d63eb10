"""Test the metrics history of a node: fixed size, gaps, ten-second rows, sums over a cluster and copies."""

from __future__ import annotations

import json
from array import array
from math import isnan, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.core.base.instruments import LATENCY_S
from liftpy.core.observe.history import (
    BAND_BOUNDS_S,
    LENGTHS,
    MOST_ROWS,
    NAMES,
    SECONDS,
    SERIES,
    TENS,
    History,
    HistoryRows,
    bands_of,
    join_histories,
    of_cluster,
    question,
    rows_of,
    select_rows,
)
from liftpy.core.observe.node_summary import percentile
from tests.each import each


def a_row(value: float, **more: float) -> list[float]:
    return [more.get(name, value) for name in NAMES]


def column(rows: HistoryRows, name: str = "records_in") -> list[float | None]:
    return [None if isnan(value) else round(value, 3) for value in rows.columns[NAMES.index(name)]]


def test_metrics_history_has_a_fixed_size() -> None:
    history = History()
    assert (len(SERIES), len(set(NAMES)), LENGTHS) == (24, 24, {SECONDS: 600, TENS: 1440})
    assert history.size_bytes == 24 * (600 + 1440) * 4 < 200_000
    for second in range(1_000, 20_000):
        history.add_values(second, a_row(second))
    assert history.size_bytes == 24 * (600 + 1440) * 4
    seconds, tens = history.rows(SECONDS, 0), history.rows(TENS, 0)
    assert (seconds.first, seconds.count, column(seconds)[-1]) == (19_400, 600, 19_999)
    assert (tens.first, tens.count) == (1_990 + (19_990 - 1_990 - 14_390), MOST_ROWS), "the oldest first"
    assert column(tens)[0] == pytest.approx(5_604.5, abs=1)


def test_metrics_history_seconds_without_a_sample_are_gaps() -> None:
    history = History()
    history.add_values(1_000, a_row(1))
    history.add_values(1_003, a_row(4))
    assert column(history.rows(SECONDS, 999)) == [1, None, None, 4]
    history.add_values(1_008, a_row(9), covers=3)
    assert column(history.rows(SECONDS, 1_003)) == [None, None, 9, 9, 9], "a rate over three seconds is that of each of them"
    history.add_values(1_012, a_row(3), covers=50)
    assert column(history.rows(SECONDS, 1_008)) == [3] * 4, "what was known before is not written over"
    history.add_values(1_012, a_row(77))
    assert column(history.rows(SECONDS, 1_011)) == [3], "a second is said once"
    assert column(history.rows(TENS, 0)) == [round((1 + 4 + 9 * 3 + 3) / 6, 3)], "of those that are known"
    history.add_values(1_800, a_row(5))
    seconds = history.rows(SECONDS, 0)
    assert (seconds.first, column(seconds)) == (1_201, [None] * 599 + [5]), "a place that is used again holds nothing old"
    assert column(history.rows(TENS, 0))[1:] == [3, *[None] * 78], "1,010 on: of two seconds, then nothing"


def test_metrics_history_restarts_after_a_clock_step_back_and_has_a_gap_after_a_step_forward() -> None:
    history = History()
    history.add_values(5_000, a_row(1))
    history.add_values(4_998, a_row(2))
    assert history.newest == 5_000, "a little: it is waited for"
    history.add_values(4_997, a_row(3))
    assert history.newest == 4_997
    assert column(history.rows(SECONDS, 0)) == [3]
    history.add_values(1 << 39, a_row(4))
    assert column(history.rows(SECONDS, 0)) == [None] * 599 + [4]


def test_metrics_history_ten_second_rows_are_means_maxima_and_percentiles() -> None:
    history = History()
    for number in range(10):
        history.add_values(
            2_000 + number, a_row(0, records_in=number, lag=number, flush_p99=nan if number == 5 else 1, acks_1=9, acks_4=1)
        )
    tens = history.rows(TENS, 0)
    assert (tens.first, tens.count) == (2_000, 1)
    assert (column(tens), column(tens, "lag"), column(tens, "flush_p99")) == ([4.5], [9], [1])
    assert tens.columns[NAMES.index("ack_p50")][0] == pytest.approx(percentile([0, 90, 0, 0, 10], 0.5, BAND_BOUNDS_S))
    assert tens.columns[NAMES.index("ack_p99")][0] == pytest.approx(percentile([0, 90, 0, 0, 10], 0.99, BAND_BOUNDS_S))
    assert column(history.rows(SECONDS, 2_004), "flush_p99")[0] is None


@given(st.lists(st.integers(0, 50), min_size=12, max_size=12), st.sampled_from([0.5, 0.99]))
@settings(max_examples=60, deadline=None)
def test_metrics_history_percentiles_equal_the_percentiles_of_the_status_report(counts: list[int], part: float) -> None:
    row = a_row(0, **{f"acks_{number}": count for number, count in enumerate(counts)})
    found = join_histories(np.array([row], np.float32)[:, :, None])[NAMES.index("ack_p50" if part == 0.5 else "ack_p99"), 0]
    wanted = percentile(counts, part, BAND_BOUNDS_S)
    assert isnan(found) if wanted is None else found == pytest.approx(wanted, rel=1e-5)


def test_metrics_history_of_a_cluster_sums_only_nodes_with_a_sample() -> None:
    a, b, c = History(), History(), History()
    for second in range(3_000, 3_006):
        a.add_values(second, a_row(2))
        if second not in (3_003, 3_004):
            b.add_values(second, a_row(5))
    rows = of_cluster([a, b, c], SECONDS, 2_999, 3_010)
    assert (rows.first, column(rows), column(rows, "lag")) == (3_000, [7, 7, 7, 2, 2, 7], [5, 5, 5, 2, 2, 5])
    a.add_values(3_010, a_row(2))
    b.add_values(3_010, a_row(5))
    assert column(of_cluster([a, b], SECONDS, 3_005, 3_010)) == [None] * 4 + [7]
    assert of_cluster([c], TENS, 3_005, 3_010).count == 0


@pytest.mark.parametrize("step", [SECONDS, TENS])
@pytest.mark.parametrize("ahead_s", [30, 3_600, 365 * 86_400, -365 * 86_400])
def test_metrics_history_of_a_cluster_leaves_out_the_rows_of_a_node_with_a_wrong_clock(ahead_s: int, step: int) -> None:
    nodes = [History() for _ in range(3)]
    begins, now_s = 1_000_000_000, 1_000_001_200
    for number, (node, shift_s) in enumerate(zip(nodes, (0, 0, ahead_s), strict=True)):
        for second in range(begins, now_s):
            node.add_values(second + shift_s, a_row(10**number))
    rows = of_cluster(nodes, step, 0, now_s)
    assert rows.count <= LENGTHS[step], "one wrong clock costs no memory"
    assert column(rows)[(now_s - rows.first) // step - 1] == (111 if ahead_s == 30 else 11)
    assert rows.first + rows.count * step in (now_s, now_s + 30)


def test_metrics_history_copied_twice_or_in_parts_equals_the_original() -> None:
    history, copy = History(), History()
    for second in range(10_000, 13_000):
        history.add_values(second, a_row(second % 97))
    for step in (TENS, SECONDS):
        after = 0
        while (rows := rows_of(history.rows(step, after).as_object())) and rows.count:
            copy.add_rows(rows)
            copy.add_rows(rows)
            after = rows.first + (rows.count - 1) * step
    for step in (SECONDS, TENS):
        told, taken = history.rows(step, 0), copy.rows(step, 0)
        assert [list(one) for one in told.columns] == [list(one) for one in taken.columns]
        assert told.first == taken.first
    history.add_values(13_000, a_row(1))
    copy.add_rows(history.rows(SECONDS, copy.newest))
    assert copy.newest == 13_000


def test_metrics_history_answer_is_bounded_and_the_next_continues_after_its_last_row() -> None:
    history = History()
    for second in range(50_000, 70_000):
        history.add_values(second, a_row(1))
    said = json.dumps({"history": history.rows(SECONDS, 0).as_object()})
    assert 70_000 < len(said) < 80_000
    rows = history.rows(TENS, 0)
    assert rows.count == MOST_ROWS
    assert history.rows(TENS, rows.first + (rows.count - 1) * TENS).first == rows.first + rows.count * TENS
    assert select_rows(history, question(SECONDS, 69_990)["history"]).count == 9  # type: ignore[union-attr]
    for wrong in (
        None,
        7,
        {},
        {"step": 2},
        {"step": [1]},
        {"step": True},
        {"step": 1, "after": "x"},
        {"step": 1, "after": -1},
        {"step": 1, "after": True},
    ):
        assert select_rows(history, wrong) is None


@each(
    "change",
    [
        {"step": [1]}, {"step": {}}, {"step": True},
        {"step": 3}, {"first": "x"}, {"first": -1}, {"count": -1}, {"count": MOST_ROWS + 1}, {"count": 1}, {"data": "!"}, {"data": 7},
        {"series": 7}, {"series": []}, {"first": True},
    ],
)  # fmt: skip
def test_metrics_history_rejects_invalid_rows(change: dict[str, Any]) -> None:
    history = History()
    history.add_values(1_000, a_row(1))
    history.add_values(1_001, a_row(1))
    good = history.rows(SECONDS, 0).as_object()
    assert rows_of(good) is not None
    assert rows_of({**good, **change}) is None
    assert rows_of([good]) is None


def test_metrics_history_accepts_rows_with_unknown_series() -> None:
    history = History()
    history.add_values(1_000, a_row(1))
    said = history.rows(SECONDS, 999).as_object()
    said["series"][0] = "new"
    rows = rows_of(said)
    assert rows is not None
    assert (column(rows, "records_in"), column(rows, "bytes_in")) == ([None], [1])
    assert rows.columns[1].typecode == array("f").typecode


def test_metrics_history_latency_buckets_count_each_ack_once() -> None:
    counts = list(range(1, len(LATENCY_S) + 2))
    bands = bands_of(counts)
    assert (len(bands), sum(bands)) == (len(BAND_BOUNDS_S) + 1, sum(counts))
    assert bands[0] == 1 + 2, "0.25 and 0.5 ms"
    assert (bands[1], bands[-1]) == (3, sum(counts[12:]))
    assert BAND_BOUNDS_S[0] == 0.0005
    assert BAND_BOUNDS_S[-1] == 0.512
