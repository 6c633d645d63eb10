"""Producers that are killed and come back, some before the one before is dead, in simulated clusters among all faults: each record
once, in order, none left out between two of one process [A3, A4]. And bugs that somebody would meet as lost or doubled records: each
has a seed that shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from liftpy.client.partition_queue import PartitionQueue
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.publish.log_state_part import NewBatch
from liftpy.core.publish.producer_state import BatchCheck, Claim, Finding, ProducerRegistry, Producers
from liftpy.core.wire.batch_columns import ColumnSet
from tests.simulation.replica.plan import StreamPlan, draw_plan
from tests.simulation.replica.run import Outcome, run_plan

EVENTS = 2500
SEEDS = (4, 11)
WANTED = ("producer: stored", "producer: stored before", "producer: told its epoch", "producer: told another epoch")
Patches = list[Any]


def run(seed: int) -> Outcome:
    return run_plan(replace(draw_plan(seed), produces=True), EVENTS)


def test_simulated_producers_commit_each_record_once_in_order() -> None:
    seen: dict[str, int] = {}
    for seed in SEEDS:
        outcome = run(seed)
        assert outcome.violation is None, outcome.report()
        seen = {what: seen.get(what, 0) + outcome.counters[what] for what in WANTED}
    assert [what for what, count in seen.items() if not count] == []


def compacted(seed: int) -> Outcome:
    plan = replace(draw_plan(seed), streams=(StreamPlan("accounts", 1, compaction=True),))
    return run_plan(replace(plan, produces=True, derives=True), EVENTS)


def test_simulated_producers_commit_each_record_once_despite_compaction() -> None:
    outcome = compacted(15)
    assert outcome.violation is None, outcome.report()
    assert min(outcome.counters[what] for what in ("records dropped by compaction", "derivation: read again", *WANTED)) > 0


def derive(seed: int) -> Outcome:
    return run_plan(replace(draw_plan(seed), derives=True), EVENTS)


def test_simulated_producers_with_a_source_store_each_derived_record_once() -> None:
    outcome = derive(4)
    assert outcome.violation is None, outcome.report()
    assert outcome.counters["producer: stored"]
    assert outcome.counters["derivation: read again"]


def checked_otherwise(otherwise: Callable[[BatchCheck], BatchCheck]) -> Patches:
    real = Producers.check_batch

    def check_batch(self: Producers, claim: Claim, columns: ColumnSet) -> BatchCheck:
        return otherwise(real(self, claim, columns))

    return [patch.object(Producers, "check_batch", check_batch)]


def what_is_there_is_appended() -> Patches:
    return checked_otherwise(lambda result: BatchCheck(Finding.APPEND) if result.finding is Finding.DUPLICATE else result)


def a_gap_is_appended() -> Patches:
    return checked_otherwise(lambda result: BatchCheck(Finding.APPEND) if result.finding is Finding.OUT_OF_ORDER else result)


def what_is_cut_is_known_on() -> Patches:
    def truncate(self: Producers, end_offset: int) -> None:
        while self._tail and self._tail[-1].last_offset >= end_offset:
            self._tail.pop()

    return [patch.object(Producers, "truncate", truncate)]


def a_follower_takes_no_producers() -> Patches:
    return [patch("liftpy.core.publish.log_state.ProducerSequences", lambda *given: None)]


def said_before_the_commit() -> Patches:
    return [patch("liftpy.core.publish.ingest.last_offset_of", lambda state: -1)]


def the_first_may_be_any() -> Patches:
    return [patch.object(ProducerRegistry, "_check_first_batch", lambda self, claim: BatchCheck(Finding.APPEND))]


BUGS = [
    (what_is_there_is_appended, 1),
    (a_gap_is_appended, 5),
    (what_is_cut_is_known_on, 249),
    (a_follower_takes_no_producers, 0),
    (said_before_the_commit, 1),
    (the_first_may_be_any, 154),
]


@pytest.mark.parametrize(("bug", "seed"), BUGS)
def test_simulation_detects_a_planted_producer_bug(bug: Callable[[], Patches], seed: int) -> None:
    with ExitStack() as stack:
        for change in bug():
            stack.enter_context(change)
        assert run(seed).violation is not None, "no seed shows it"


def a_position_stays_where_it_was() -> Patches:
    real = Producers.add_batch

    def take(self: Producers, batch: NewBatch) -> None:
        known = None if batch.sequences is None else self.state_of(batch.sequences.producer_id)
        if batch.sequences is not None and known is not None:
            batch = batch._replace(sequences=batch.sequences._replace(position=known.position))
        real(self, batch)

    return [patch.object(Producers, "add_batch", take)]


def a_member_begins_before_what_is_there() -> Patches:
    real = PartitionQueue.begin

    def begin(self: PartitionQueue, epoch: int, next_sequence: int, digest: RollingDigest, **more: Any) -> None:
        real(self, epoch, next_sequence, digest, **more | {"position": max(more.get("position", -1) - 3, -1)})

    return [
        patch.object(PartitionQueue, "begin", begin),
        patch.object(Producers, "_check_position", lambda state, claim: None),
    ]


@pytest.mark.parametrize("bug", [a_position_stays_where_it_was, a_member_begins_before_what_is_there])
def test_simulation_detects_a_planted_source_position_bug(bug: Callable[[], Patches]) -> None:
    with ExitStack() as stack:
        for change in bug():
            stack.enter_context(change)
        assert derive(4).violation is not None
        assert compacted(15).violation is not None
