"""Test the models within small bounds, the bugs that they find, and the searcher on toy graphs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from sidecar.quorum.library import RaftCore
from tests import long
from tests.model.catalogue import MUTANTS, SMALL, search
from tests.model.search import Bounds, Broken, Search
from tests.model.structure import Structure

_SMALL = [(model, name) for model, bounds in SMALL.items() for name in bounds]
_MUTANTS = [(model, mutant) for model, mutants in MUTANTS.items() for mutant in mutants if mutant.bound in SMALL[model]]


class Counter:
    """From 0: plus 1, or times 2, up to ``end``; ``broken`` is no state."""

    def __init__(self, end: int, broken: int = -1) -> None:
        self.end, self.broken = end, broken

    def first(self) -> int:
        return 0

    def steps(self, state: int) -> Iterable[tuple[Hashable, int | Broken]]:
        for what, reached in (("+1", state + 1), ("*2", state * 2)):
            if reached <= self.end:
                yield what, Broken(f"{reached} is reached") if reached == self.broken else reached

    def told(self, state: int, action: Hashable) -> str:
        return f"{state} {action}"

    def shown(self, state: int) -> str:
        return str(state)


def test_model_search_visits_each_state_once_and_counts_each_edge() -> None:
    outcome = Search(Counter(10)).run()
    assert outcome.exhausted
    assert (outcome.states, outcome.edges) == (11, 10 + 6)
    assert outcome.depth == 5  # 0 1 2 4 8 9, and 10 by 5


def test_model_search_returns_a_shortest_trace_first() -> None:
    outcome = Search(Counter(100, broken=12)).run()
    assert outcome.trace is not None
    assert [told for told, _ in outcome.trace.steps] == ["0 +1", "1 +1", "2 +1", "3 *2", "6 *2"]
    assert outcome.trace.why == "12 is reached"
    assert "12 is reached" in str(outcome.trace)
    assert not outcome.exhausted


@pytest.mark.parametrize(("bounds", "stopped"), [(Bounds(states=5), "5 states"), (Bounds(depth=3), "depth 3")])
def test_model_search_stopped_by_a_bound_reports_that_bound(bounds: Bounds, stopped: str) -> None:
    outcome = Search(Counter(1000), bounds).run()
    assert outcome.stopped == stopped
    assert not outcome.exhausted


class _Shared:
    def __init__(self) -> None:
        self.items = [1]


class _Owner:
    def __init__(self) -> None:
        self.one = _Shared()
        self.other = self.one


def test_model_state_copy_shares_no_object_and_preserves_aliases() -> None:
    structure, owner = Structure(state=(_Owner, _Shared), values=()), _Owner()
    copied = structure.copy(owner)
    assert copied.one is copied.other
    copied.one.items.append(2)
    assert owner.one.items == [1]
    assert structure.form(owner) == structure.form(structure.copy(owner)) != structure.form(copied)
    apart = _Owner()
    apart.other = _Shared()
    assert structure.form(apart) != structure.form(owner)


def test_model_state_with_an_undeclared_class_raises() -> None:
    structure, owner = Structure(state=(_Owner,), values=()), _Owner()
    with pytest.raises(TypeError, match="neither state nor value"):
        structure.copy(owner)
    with pytest.raises(TypeError, match="neither state nor value"):
        structure.form(owner)


@pytest.mark.parametrize(("model", "name"), _SMALL, ids=lambda part: part)
def test_model_search_within_small_bounds_finds_no_violation(model: str, name: str) -> None:
    """A model is searched less deep than by ``python -m tests.model MODEL --small``: each step costs several times the one before.

    Without ``--long``, the search ends one more step before."""
    bound = SMALL[model][name]
    less = (3 if name == "a swap" else 2 if model == "control" else 1) + (not long.is_long())
    bound = replace(bound, depth=max(bound.depth - less, 0))
    outcome = search(bound)
    assert outcome.trace is None, outcome.trace
    assert outcome.exhausted or outcome.stopped == f"depth {bound.depth}"
    assert outcome.states > 50, "it does not move"


@pytest.mark.long
@pytest.mark.parametrize(("model", "mutant"), _MUTANTS, ids=lambda part: part if isinstance(part, str) else part.name)
def test_model_search_finds_a_planted_bug(model: str, mutant) -> None:  # type: ignore[no-untyped-def]
    with mutant.applied():
        outcome = search(SMALL[model][mutant.bound])
    assert outcome.trace is not None, f"{outcome}"
    assert str(outcome.trace)


def test_replica_model_search_reaches_commits_truncations_and_isr_changes() -> None:
    """What a model never does it can't find a bug in."""
    from tests.model.replica import Budget, ReplicaModel

    cuts = ReplicaModel(Budget(publishes=2, leader_epochs=2, crashes=1, unanswered=0), in_flight=1, settled=1)
    Search(cuts, Bounds(states=400)).run()
    assert set(cuts.counted) >= {"HW rises", "a log is cut", "ISR shrinks"}, cuts.counted
    grows = ReplicaModel(Budget(publishes=1, leader_epochs=1, crashes=0, unanswered=0), in_flight=1, settled=1)
    Search(grows, Bounds(states=3_000)).run()
    assert set(grows.counted) >= {"HW rises", "ISR grows", "ISR shrinks"}, grows.counted


def test_raft_model_search_reaches_elections_commits_truncations_and_restarts() -> None:
    from tests.model.raft import Budget, RaftModel

    elects = RaftModel(Budget(campaigns=2, commands=0, crashes=0))
    Search(elects, Bounds(states=400)).run()
    assert set(elects.counted) >= {"leaders elected", "entries committed", "entries cut", "sessions begun anew"}, elects.counted
    forgets = RaftModel(Budget(campaigns=0, commands=0, crashes=0, emptied=1, snapshots=1), led=2)
    Search(forgets, Bounds(states=1_000)).run()
    assert forgets.counted["probations ended"] > 3, forgets.counted  # those of the first start are three
    assert forgets.counted["snapshots taken or installed"], forgets.counted


def test_raft_model_search_reaches_settled_and_unsettled_leaders() -> None:
    from tests.model.raft import Budget, RaftModel

    model = RaftModel(Budget(campaigns=0, commands=1, crashes=1), led=1)
    Search(model, Bounds(states=400)).run()
    assert model.counted["longer intervals taken"]
    assert model.counted["heartbeats at the shorter interval"]


def test_raft_model_member_step_repeated_in_another_order_gives_the_same_result() -> None:
    """Its objects take one cell after another: whatever of them is left from the one before would decide with it."""
    from tests.model.raft import Budget, RaftModel

    model = RaftModel(Budget(campaigns=2, commands=1, crashes=0, asks=1), led=1)
    Search(model, Bounds(states=400)).run()
    members = model.members
    taken = dict(members._steps)
    assert len(taken) > 200
    members._steps.clear()
    for (number, event), found in reversed(taken.items()):
        assert members.step(number, event) == found, event


def test_raft_model_member_with_an_undeclared_attribute_raises_type_error() -> None:
    from tests.model.members import Member, still

    real = RaftCore.__init__

    def init(self: RaftCore, *given: Any) -> None:
        real(self, *given)
        self.something_new = 1  # type: ignore[attr-defined]

    with still(), patch.object(RaftCore, "__init__", init), pytest.raises(TypeError, match="something_new"):
        Member("a")
