"""The verdicts of the rounds with Spark, on results that are broken: what they would let pass, nobody would see."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.system.spark_rounds import Outcome
from tests.system.spark_source.judge import Reach, Row, complaints

LOG = {0: [b"a", b"b", b"c", b"d"], 1: [b"e"]}
ROWS: list[Row] = [(0, 1, b"b"), (0, 2, b"c"), (0, 3, b"d"), (1, 0, b"e")]
REACH = {0: Reach(2, 4, 1), 1: Reach(0, 1)}


def test_spark_verdict_accepts_rows_equal_to_the_records_of_the_log() -> None:
    assert complaints(ROWS, LOG, REACH) == []
    assert complaints([(0, 1, b"b"), (0, 2, b"c"), (0, 3, b"d")], LOG, {0: REACH[0], 1: Reach(0, 0)}) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*ROWS, ROWS[0]], "1 rows twice"),
        (ROWS[:2] + ROWS[3:], "1 of [2, 4) of partition 0 are missing"),
        ([ROWS[0], *ROWS[2:]], "partition 0 has holes between 1 and 3"),
        ([*ROWS, (1, 1, b"f")], "1 rows that the log does not have"),
        ([*ROWS[:3], (1, 0, b"E")], "1 rows that the log does not have"),
        ([*ROWS, (2, 0, b"e")], "1 rows that the log does not have"),
        ([(0, 0, b"a"), *ROWS], "partition 0 was read from 0 to 3, outside of what there was"),
        (ROWS[:3], "1 of [0, 1) of partition 1 are missing"),
    ],
)
def test_spark_verdict_finds_rows_that_differ_from_the_log(rows: list[Row], said: str) -> None:
    assert said in complaints(rows, LOG, REACH)


@pytest.mark.parametrize(
    ("held", "found"),
    [({0: 1, 1: 1}, (0, 0, 0)), ({0: 1}, (1, 0, 0)), ({0: 1, 1: 3}, (0, 2, 0)), ({0: 1, 1: 1, 2: 1, -1: 1}, (0, 0, 2))],
)
def test_spark_verdict_counts_lost_duplicate_and_unknown_records(held: dict[int, int], found: tuple[int, int, int]) -> None:
    outcome = Outcome(records=2)
    outcome.count(Counter(held))
    assert (outcome.lost, outcome.twice, outcome.strange) == found
    assert outcome.right == (found == (0, 0, 0))


def test_spark_verdict_rejects_a_run_without_records() -> None:
    assert not Outcome().right
