"""Message ids, producers and subjects with far too little room for them on each node, in simulated clusters among all faults: what does
not fit is refused, never forgotten inside its window, so that each message is committed once [A3], and memory stays flat [L7]. And
bugs of it: each has a seed that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from liftpy.core.publish.dedup_window import RecentIds
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.log_state_part import Share
from tests.simulation.replica.plan import draw_plan
from tests.simulation.replica.run import Outcome, run_plan

EVENTS = 2000
SEEDS = (11,)
NODE_BYTES = 1500
WINDOW_S = 8.0
"""Longer than anybody here repeats himself."""
WANTED = ("refused", "refused unknowing", "let go")
Patches = list[Any]


@contextmanager
def watching(seen: Counter[str]) -> Iterator[None]:
    """Count what no checker sees."""
    real_lacks, real_lose, real_take = RecentIds.lacks, RecentIds._lose, LogState._add_batch

    def lacks(self: RecentIds, ids: Any, now_wall_ns: int) -> str:
        why = real_lacks(self, ids, now_wall_ns)
        seen["refused"] += bool(why)
        seen["refused unknowing"] += bool(why) and self.is_blind(now_wall_ns)
        return why

    def lose(self: RecentIds, *taken: Any) -> None:
        real_lose(self, *taken)
        seen["let go"] += not self.is_whole

    def take(self: LogState, batch: Any) -> None:
        before_bytes = self.ids.share._node.size_bytes
        real_take(self, batch)
        if self.ids.share._node.size_bytes > max(before_bytes, NODE_BYTES):
            seen["too much"] += 1

    with (
        patch.object(RecentIds, "lacks", lacks),
        patch.object(RecentIds, "_lose", lose),
        patch.object(LogState, "_add_batch", take),
    ):
        yield


def run(seed: int, window_s: float = WINDOW_S) -> Outcome:
    plan = draw_plan(seed)
    config = replace(plan.config, node_dedup_state_bytes=NODE_BYTES)
    stream = replace(plan.stream_config, dedup_window_s=window_s)
    return run_plan(replace(plan, repeats=True, contends=True, config=config, stream_config=stream), EVENTS)


def test_simulated_duplicates_with_little_dedup_memory_are_committed_once() -> None:
    seen = Counter[str]()
    for seed in SEEDS:
        with watching(seen):
            outcome = run(seed)
        assert outcome.violation is None, outcome.report()
    assert [what for what in WANTED if not seen[what]] == []
    assert not seen["too much"]


def what_was_let_go_is_new() -> Patches:
    return [patch.object(RecentIds, "is_blind", lambda self, now_wall_ns: False)]


def a_leader_takes_what_has_no_room() -> Patches:
    return [patch.object(RecentIds, "lacks", lambda self, ids, now_wall_ns: "")]


@pytest.mark.parametrize(
    ("bug", "seed", "window_s", "invariant"),
    [(what_was_let_go_is_new, 19, 30.0, "A2"), (a_leader_takes_what_has_no_room, 11, WINDOW_S, "A3")],
)
def test_simulation_detects_a_planted_bug_of_dedup_memory_limits(
    bug: Callable[[], Patches], seed: int, window_s: float, invariant: str
) -> None:
    with ExitStack() as stack:
        for change in bug():
            stack.enter_context(change)
        assert f"invariant {invariant} " in str(run(seed, window_s).violation), "no seed shows it"


def test_simulation_detects_a_node_that_exceeds_its_dedup_memory() -> None:
    seen = Counter[str]()
    with patch.object(Share, "excess_bytes", lambda self, grown_bytes: 0), watching(seen):
        run(14)
    assert seen["too much"]
