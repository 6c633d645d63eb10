"""Streams with a standby in simulated clusters, among all faults, with loss and reordering: what a new leader heard and its log does
not hold is stored once, in order, and who waits is answered, always the same [A1-A4, A8]. And bugs that somebody would meet as lost,
doubled or reordered messages, or as a yes that is none: each has a seed that shows it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.ports import StandbySubscription
from liftpy.core.publish.standby import FailoverBacklog, NewestRecords, Standby, StandbyReplay
from liftpy.core.replication.leader import LeaderRole
from tests.simulation.replica.plan import draw_plan
from tests.simulation.replica.run import Outcome, run_plan

EVENTS = 3000
SEEDS = (4, 13)
Patches = list[Any]


def run(seed: int, events: int = EVENTS) -> Outcome:
    plan = draw_plan(seed)
    with_standby = replace(plan.stream_config, failover_standby=True)
    return run_plan(replace(plan, stream_config=with_standby, repeats=bool(seed % 2)), events)


def test_simulated_standby_messages_are_stored_once_and_acked() -> None:
    seen: dict[str, int] = {}
    for seed in SEEDS:
        outcome = run(seed)
        assert outcome.violation is None, outcome.report()
        seen = {what: seen.get(what, 0) + outcome.counters[what] for what in WANTED}
    assert [what for what, count in seen.items() if not count] == []


WANTED = (
    "standby: appended", "standby: recognised", "standby: answered", "answered for an earlier leader",
    "planned transfer: missed_publishes",
)  # fmt: skip


def nothing_is_recognised() -> Patches:
    return [patch.object(NewestRecords, "pop_match", lambda self, key, receive_ns: None)]


def what_is_committed_alone_is_recognised() -> Patches:
    real = StandbyReplay._match_with_log

    def recognise(self: StandbyReplay, steps: list[Any]) -> Generator[None, None, int]:
        unmatched_ns = yield from real(self, steps)
        high_watermark = self.log.high_watermark
        for step in steps:
            step.stored = [None if at is None or at.last_offset > high_watermark else at for at in step.stored]
        return unmatched_ns

    return [patch.object(StandbyReplay, "_match_with_log", recognise)]


def what_was_heard_is_forgotten() -> Patches:
    real = Standby._replay_steps

    def forget(self: Standby, subscription: StandbySubscription) -> Generator[None, None, FailoverBacklog]:
        made = yield from real(self, subscription)
        made.fresh = []
        return made

    return [patch.object(Standby, "_replay_steps", forget)]


def what_was_passed_over_is_appended() -> Patches:
    def nothing(self: StandbyReplay, steps: list[Any], unmatched_ns: int) -> Generator[None, None, None]:
        yield
        for step in steps:
            step.missed = [False] * len(step.messages)

    return [patch.object(StandbyReplay, "_mark_missed", nothing)]


def who_waits_is_answered_at_once() -> Patches:
    real = Ingest.start

    def start(self: Ingest, taken: FailoverBacklog | None = None) -> None:
        if taken is not None:
            taken.known = [(stored._replace(last_offset=-1), publishers) for stored, publishers in taken.known]
        real(self, taken)

    return [patch.object(Ingest, "start", start)]


def a_leader_refuses_for_its_own_reasons() -> Patches:
    return [patch.object(LeaderRole, "may_reject_locally", LeaderRole.may_reject)]


BUGS: list[tuple[Callable[[], Patches], int, str]] = [
    (nothing_is_recognised, 16, "A3"),
    (what_is_committed_alone_is_recognised, 3, "A3"),
    (what_was_heard_is_forgotten, 0, "A3"),
    (what_was_passed_over_is_appended, 18, "A4"),
    (who_waits_is_answered_at_once, 3, "D1"),
    (a_leader_refuses_for_its_own_reasons, 46, "A2"),
]


@pytest.mark.parametrize(("bug", "seed", "broken"), BUGS, ids=[bug.__name__ for bug, *_ in BUGS])
def test_simulation_detects_a_planted_standby_bug(bug: Callable[[], Patches], seed: int, broken: str) -> None:
    with ExitStack() as stack:
        for patched in bug():
            stack.enter_context(patched)
        outcome = run(seed)
    assert outcome.violation is not None
    assert broken in str(outcome.violation)
