"""Test two seeds of ``python -m tests.simulation.whole``: clusters whose controllers join, leave and are lost."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.whole.run import Change, WholeCluster, draw_whole_plan, run_seed, run_whole

SEEDS = (2, 19)
"""Test whole seeds: a replica moves in all of them, and the second one loses a controller permanently."""
EVENTS = 9000
WANTED = (
    "a controller is gone for good", "nodes that become controllers", "controllers that cease to be one",
    "controller in the place of its feed", "feed in the place of a controller", "data deleted: moved away", "fault drain",
    "images by the feed",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(300)
def test_whole_cluster_simulation_moves_replicas_and_controllers_without_loss() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_seed(seed, EVENTS)
        assert outcome.violation is None, outcome.report()
        seen += outcome.counters
    assert [what for what in WANTED if not seen[what]] == []


def test_whole_cluster_simulation_of_the_same_plan_gives_the_same_trace_twice() -> None:
    plan = replace(draw_whole_plan(4), changes=(Change(2_000_000_000, "add", 0.5),))
    first, second = (run_whole(plan, 1500, trace=True) for _ in range(2))
    assert first.trace is not None
    assert second.trace is not None
    assert first.trace.lines == second.trace.lines


def test_whole_cluster_simulation_starts_controllers_with_the_metadata_of_the_plan(tmp_path: Path) -> None:
    """Otherwise they grant leases of another length than the plan says."""
    group = WholeCluster(draw_whole_plan(1), tmp_path).group
    assert group.run.first_image == group.fsm.image
