"""Test simulated groups and queues under faults, and planted bugs. ``python -m tests.simulation.group`` runs more seeds."""

from __future__ import annotations

from collections import Counter

import pytest

from liftpy.errors import InvariantError
from tests.each import each
from tests.simulation.group import catalogue, queues, world
from tests.simulation.group.__main__ import HISTORIES

MOST = tuple(bug for bugs in catalogue.BY_KIND.values() for bug in bugs)
QUICK = [*[bug for bug in MOST if bug.seed == 1][::6], *catalogue.LEADER_CHANGES]


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


def test_queue_simulation_with_changes_of_the_partition_leader_breaks_no_invariant() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 4):
        seen += queues.run_with_leader_changes(seed)
    for what in ("comparisons", "known LeaderEpochs", "takes by an earlier leader's view", "takes of the earlier version"):
        assert seen[what], f"no history had: {what}"


@each("bug", MOST)
def test_planted_group_bug_can_be_applied_to_the_shipped_code(bug: catalogue.PlantedBug) -> None:
    assert bug.seed
    assert bug.changed() is not None


@pytest.mark.parametrize("bug", QUICK, ids=lambda bug: bug.name)
def test_planted_group_bugs_are_each_detected_by_a_seed(bug: catalogue.PlantedBug) -> None:
    (kind,) = (kind for kind, bugs in catalogue.BY_KIND.items() if bug in bugs)
    with bug.planted(), pytest.raises(InvariantError, match=f"invariant {bug.code} "):
        HISTORIES[kind](bug.seed)
