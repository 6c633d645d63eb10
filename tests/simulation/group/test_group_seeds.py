"""Test simulated groups and queues under faults, and planted bugs. ``python -m tests.simulation.group`` runs more seeds."""

from __future__ import annotations

from collections import Counter

import pytest

from liftpy.errors import InvariantError
from tests.each import each
from tests.simulation.group import catalogue, queues, world

MOST = catalogue.MEMBERS + catalogue.QUEUES + catalogue.ORDERED
QUICK = [bug for bug in MOST if bug.seed == 1][::6]


def test_consumer_group_simulation_seeds_break_no_invariant() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 6):
        seen += world.run(seed)
    for what in (
        "fail-overs", "commands lost with a leader", "sessions that ended", "static members that came back", "fault: again",
        "fault: more", "answers GROUP_STALE", "answers GROUP_UNKNOWN_MEMBER", "records delivered again", "commits",
    ):  # fmt: skip
        assert seen[what], f"no history had: {what}"


def test_queue_simulation_seeds_break_no_invariant() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 4):
        seen += queues.run(seed)
    for what in (
        "fail-overs", "leases that ran out", "dead letters granted", "ranges settled late", "records: SETTLE_EXTEND",
        "takes with acknowledgements",
    ):  # fmt: skip
        assert seen[what], f"no history had: {what}"


def test_ordered_queue_simulation_seeds_break_no_invariant() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 3):
        seen += queues.run_ordered(seed)
    for what in ("fail-overs", "leases that ran out", "dead letters granted", "ranges settled late", "records held"):
        assert seen[what], f"no history had: {what}"


@each("bug", MOST)
def test_planted_group_bug_can_be_applied_to_the_shipped_code(bug: catalogue.PlantedBug) -> None:
    assert bug.seed
    assert bug.changed() is not None


@pytest.mark.parametrize("bug", QUICK, ids=lambda bug: bug.name)
def test_planted_group_bugs_are_each_detected_by_a_seed(bug: catalogue.PlantedBug) -> None:
    run = world.run if bug in catalogue.MEMBERS else queues.run if bug in catalogue.QUEUES else queues.run_ordered
    with bug.planted(), pytest.raises(InvariantError, match=f"invariant {bug.code} "):
        run(bug.seed)
