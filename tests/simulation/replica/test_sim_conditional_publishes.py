"""Applications that expect the last sequence of a subject with each message, several of the same, in simulated clusters among all
faults: whatever is committed stands behind just the record that it expected [A7]. And bugs of it: each has a seed that shows
it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from liftpy.core.publish.last_per_subject import IndexWait, LastPerSubject
from liftpy.core.publish.log_state import LogState
from tests.simulation.replica.plan import draw_plan
from tests.simulation.replica.run import Outcome, run_plan

EVENTS = 2500
SEEDS = (1, 2, 3)
WANTED = ("stored as expected", "last sequence of a subject told")
Patches = list[Any]


def run(seed: int) -> Outcome:
    return run_plan(replace(draw_plan(seed), contends=True), EVENTS)


def test_simulated_conditional_publishes_are_committed_at_the_expected_sequence() -> None:
    seen, waited, add = dict[str, int](), list[bool](), IndexWait.add

    def watched(self: IndexWait, *arguments: Any) -> bool:
        waited.append(add(self, *arguments))
        return waited[-1]

    for seed in SEEDS:
        with patch.object(IndexWait, "add", watched):
            outcome = run(seed)
        assert outcome.violation is None, outcome.report()
        seen = {what: seen.get(what, 0) + outcome.counters[what] for what in WANTED}
    assert [what for what, count in seen.items() if not count] == []
    assert any(waited), "no publish waited for the index"


def what_is_cut_is_known_on() -> Patches:
    def truncate(self: LastPerSubject, end_offset: int) -> None:
        while self._tail and self._tail[-1][0] >= end_offset:
            self._tail.pop()

    return [patch.object(LastPerSubject, "truncate", truncate)]


def what_is_not_committed_is_not_looked_at() -> Patches:
    real = LastPerSubject.find

    def find(self: LastPerSubject, subject: str) -> int | None:
        with patch.object(self, "_over", {}):
            return real(self, subject)

    return [patch.object(LastPerSubject, "find", find)]


def a_follower_takes_no_subjects() -> Patches:
    return [patch.object(LogState, "fetched", _fetched_without_subjects)]


def _fetched_without_subjects(self: LogState, batches: Any) -> None:
    with patch("liftpy.core.publish.last_per_subject.last_of_each", lambda stored: {}):
        _FETCHED(self, batches)


_FETCHED = LogState.fetched


@pytest.mark.parametrize(
    ("bug", "seed"),
    [
        (what_is_cut_is_known_on, 5), (what_is_not_committed_is_not_looked_at, 0), (a_follower_takes_no_subjects, 2),
    ],
)  # fmt: skip
def test_simulation_detects_a_planted_conditional_publish_bug(bug: Callable[[], Patches], seed: int) -> None:
    with ExitStack() as stack:
        for change in bug():
            stack.enter_context(change)
        assert run(seed).violation is not None, "no seed shows it"
