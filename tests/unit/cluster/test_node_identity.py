"""Test who may replace the previous process of a node: a proof, an answer or silence."""

from __future__ import annotations

import pytest

from liftpy.core.metadata.node_identity import Predecessor, Sign, Verdict

S = 1_000_000_000


def judged(*signs: Sign, every_s: float = 0.5, wait_s: float = 5.0, silences: int = 3) -> list[Verdict]:
    inquiry = Predecessor(0, wait_s, silences)
    return [inquiry.heard(sign, round(number * every_s * S)) for number, sign in enumerate(signs)]


def test_predecessor_that_was_killed_is_not_waited_for() -> None:
    assert judged(Sign.ABSENT) == [Verdict.GO_ON]


def test_predecessor_that_stops_is_waited_for() -> None:
    assert judged(Sign.PRESENT, Sign.PRESENT, Sign.ABSENT) == [Verdict.ASK, Verdict.ASK, Verdict.GO_ON]


def test_predecessor_that_stays_makes_the_new_process_give_up() -> None:
    assert judged(*[Sign.PRESENT] * 11) == [Verdict.ASK] * 10 + [Verdict.GIVE_UP]


def test_predecessor_silence_counts_only_after_repeated_questions() -> None:
    assert judged(Sign.SILENT, Sign.SILENT, Sign.SILENT) == [Verdict.ASK, Verdict.ASK, Verdict.GO_ON]
    assert judged(Sign.SILENT, silences=1) == [Verdict.GO_ON]


def test_predecessor_answer_restarts_the_count_of_silences() -> None:
    signs = (Sign.SILENT, Sign.SILENT, Sign.PRESENT, Sign.SILENT, Sign.SILENT)
    assert judged(*signs) == [Verdict.ASK] * 5


@pytest.mark.parametrize("count", [1, 50])
def test_predecessor_behind_an_unreachable_bus_is_asked_again(count: int) -> None:
    assert judged(*[Sign.UNASKED] * count) == [Verdict.ASK] * count
    assert judged(*[Sign.UNASKED] * count, Sign.ABSENT)[-1] is Verdict.GO_ON
