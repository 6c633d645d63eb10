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


def test_new_process_after_a_killed_process_of_the_node_starts_at_once() -> None:
    assert judged(EarlierProcessSign.ABSENT) == [EarlierProcessStep.GO_ON]


def test_new_process_waits_for_a_stopping_process_of_the_node() -> None:
    assert judged(EarlierProcessSign.PRESENT, EarlierProcessSign.PRESENT, EarlierProcessSign.ABSENT) == [
        EarlierProcessStep.ASK,
        EarlierProcessStep.ASK,
        EarlierProcessStep.GO_ON,
    ]


def test_new_process_exits_if_an_earlier_process_of_the_node_keeps_running() -> None:
    assert judged(*[EarlierProcessSign.PRESENT] * 11) == [EarlierProcessStep.ASK] * 10 + [EarlierProcessStep.GIVE_UP]


def test_new_process_continues_only_after_several_unanswered_probes_of_the_earlier_process() -> None:
    assert judged(EarlierProcessSign.SILENT, EarlierProcessSign.SILENT, EarlierProcessSign.SILENT) == [
        EarlierProcessStep.ASK,
        EarlierProcessStep.ASK,
        EarlierProcessStep.GO_ON,
    ]
    assert judged(EarlierProcessSign.SILENT, silences=1) == [EarlierProcessStep.GO_ON]


def test_new_process_restarts_the_count_of_unanswered_probes_after_an_answer() -> None:
    signs = (
        EarlierProcessSign.SILENT,
        EarlierProcessSign.SILENT,
        EarlierProcessSign.PRESENT,
        EarlierProcessSign.SILENT,
        EarlierProcessSign.SILENT,
    )
    assert judged(*signs) == [EarlierProcessStep.ASK] * 5


@pytest.mark.parametrize("count", [1, 50])
def test_new_process_that_cannot_reach_nats_repeats_the_probe_of_the_earlier_process(count: int) -> None:
    assert judged(*[EarlierProcessSign.UNASKED] * count) == [EarlierProcessStep.ASK] * count
    assert judged(*[EarlierProcessSign.UNASKED] * count, EarlierProcessSign.ABSENT)[-1] is EarlierProcessStep.GO_ON
