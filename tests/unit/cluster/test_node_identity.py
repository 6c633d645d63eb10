"""Test who may replace the previous process of a node: a proof, an answer or silence."""

from __future__ import annotations

import pytest

from liftpy.core.metadata.node_identity import EarlierProcessCheck, EarlierProcessSign, EarlierProcessStep

S = 1_000_000_000


def judged(
    *signs: EarlierProcessSign, every_s: float = 0.5, wait_s: float = 5.0, silences: int = 3
) -> list[EarlierProcessStep]:
    inquiry = EarlierProcessCheck(0, wait_s, silences)
    return [inquiry.record_sign(sign, round(number * every_s * S)) for number, sign in enumerate(signs)]


def test_predecessor_that_was_killed_is_not_waited_for() -> None:
    assert judged(EarlierProcessSign.ABSENT) == [EarlierProcessStep.GO_ON]


def test_predecessor_that_stops_is_waited_for() -> None:
    assert judged(EarlierProcessSign.PRESENT, EarlierProcessSign.PRESENT, EarlierProcessSign.ABSENT) == [
        EarlierProcessStep.ASK,
        EarlierProcessStep.ASK,
        EarlierProcessStep.GO_ON,
    ]


def test_predecessor_that_stays_makes_the_new_process_give_up() -> None:
    assert judged(*[EarlierProcessSign.PRESENT] * 11) == [EarlierProcessStep.ASK] * 10 + [EarlierProcessStep.GIVE_UP]


def test_predecessor_silence_counts_only_after_repeated_questions() -> None:
    assert judged(EarlierProcessSign.SILENT, EarlierProcessSign.SILENT, EarlierProcessSign.SILENT) == [
        EarlierProcessStep.ASK,
        EarlierProcessStep.ASK,
        EarlierProcessStep.GO_ON,
    ]
    assert judged(EarlierProcessSign.SILENT, silences=1) == [EarlierProcessStep.GO_ON]


def test_predecessor_answer_restarts_the_count_of_silences() -> None:
    signs = (
        EarlierProcessSign.SILENT,
        EarlierProcessSign.SILENT,
        EarlierProcessSign.PRESENT,
        EarlierProcessSign.SILENT,
        EarlierProcessSign.SILENT,
    )
    assert judged(*signs) == [EarlierProcessStep.ASK] * 5


@pytest.mark.parametrize("count", [1, 50])
def test_predecessor_behind_an_unreachable_bus_is_asked_again(count: int) -> None:
    assert judged(*[EarlierProcessSign.UNASKED] * count) == [EarlierProcessStep.ASK] * count
    assert judged(*[EarlierProcessSign.UNASKED] * count, EarlierProcessSign.ABSENT)[-1] is EarlierProcessStep.GO_ON
