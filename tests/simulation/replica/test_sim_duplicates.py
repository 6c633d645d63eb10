"""Messages that are sent again under their ``Nats-Msg-Id``, impatiently, in simulated clusters among all faults: each is committed once
within the window, and ``duplicate`` is said by who may speak, once the record is committed, and of the right offset [A3]. And bugs that
somebody would meet as lost or doubled messages: each has a seed that shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from liftpy.core.publish.acks import PendingAcks, Publishers
from liftpy.core.publish.dedup_window import StoredId
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.log_state_part import NewBatch
from tests.simulation.replica.plan import draw_plan
from tests.simulation.replica.run import Outcome, run_plan

EVENTS = 3000
SEEDS = (4, 8, 14)
Patches = list[Any]


def run(seed: int, events: int = EVENTS) -> Outcome:
    return run_plan(replace(draw_plan(seed), repeats=True), events)


def test_simulated_duplicates_are_committed_once_and_acked_with_the_first_offset() -> None:
    seen: dict[str, int] = {}
    for seed in SEEDS:
        outcome = run(seed)
        assert outcome.violation is None, outcome.report()
        seen = {what: seen.get(what, 0) + outcome.counters[what] for what in WANTED}
    assert [what for what, count in seen.items() if not count] == []


WANTED = ("duplicate answered", "duplicate of an earlier leader's record", "answered as a duplicate")


def said_before_the_commit() -> Patches:
    real = PendingAcks.add_again

    def add_again(self: PendingAcks, stored: StoredId, publishers: Publishers) -> None:
        real(self, StoredId(stored.offset, -1), publishers)

    return [patch.object(PendingAcks, "add_again", add_again)]


def followers_take_no_ids() -> Patches:
    return [patch("liftpy.core.publish.log_state.headers_of", lambda batch: ({}, False))]


def a_promotion_knows_only_what_is_committed() -> Patches:
    real = LogState.replay

    def replay(self: LogState, *rest: Any) -> bool:
        complete = real(self, *rest)
        for taken in self.ids._tail:
            self.ids._forget(taken)
        return complete

    return [patch.object(LogState, "replay", replay)]


def what_is_in_hand_is_not_known() -> Patches:
    real = Ingest._repeats

    def repeats(self: Ingest, *rest: Any) -> Any:
        self._pending_ids.clear()
        return real(self, *rest)

    return [patch.object(Ingest, "_repeats", repeats)]


def a_leader_does_not_take_its_own() -> Patches:
    real = LogState.appended

    def appended(self: LogState, batch: NewBatch, size_bytes: int) -> None:
        real(self, batch._replace(ids={}), size_bytes)

    return [patch.object(LogState, "appended", appended)]


@pytest.mark.parametrize(
    ("bug", "seed"),
    [
        (said_before_the_commit, 1), (followers_take_no_ids, 14), (a_promotion_knows_only_what_is_committed, 14),
        (what_is_in_hand_is_not_known, 49), (a_leader_does_not_take_its_own, 1),
    ],
)  # fmt: skip
def test_simulation_detects_a_planted_deduplication_bug(bug: Callable[[], Patches], seed: int) -> None:
    with ExitStack() as stack:
        for change in bug():
            stack.enter_context(change)
        assert run(seed).violation is not None, "no seed shows it"
