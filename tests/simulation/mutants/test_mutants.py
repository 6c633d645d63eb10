"""Every mutant is a mistake in the code that is shipped, and fits it: it replaces what is there, and takes what is asked of it.

One that patches the simulator proves nothing about a node; one that a change of a signature has left behind ends in a TypeError, which
looks like a bug that was found.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from liftpy.core.metadata.controller.requests import REQUESTS
from tests.each import each
from tests.scripts.noticing import is_a_misfit
from tests.simulation.mutants.bug import SEED_EVENTS, Mutant
from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.replica.run import run_seed
from tests.simulation.replica.test_sim_seeds import EDGES, LEADERS, MOVES, SEEDS, TIMES


def targets(mutant: Mutant) -> list[tuple[Any, str, Any]]:
    """(owner, name, replacement) of each of its patches but those of the table of requests."""
    return [(change.getter(), change.attribute, change.new) for change in mutant.patches() if hasattr(change, "getter")]


def decisions(mutant: Mutant) -> list[tuple[str, Any]]:
    """(kind of request, what decides it instead)."""
    tables = [change for change in mutant.patches() if not hasattr(change, "getter")]
    assert all(change.in_dict is REQUESTS for change in tables)
    return [(name, kind.decide) for change in tables for name, kind in change.values.items()]


def defined_in(owner: Any, name: str) -> str:
    """The module that holds the code which is replaced."""
    return str(owner.__name__ if inspect.ismodule(owner) else owner.__module__)


def takes_the_same(old: Any, new: Any) -> bool:
    """Whether ``new`` can be called as ``old`` is."""
    parameters = list(inspect.signature(old).parameters.values())
    for asked in (
        parameters,
        [one for one in parameters if one.default is one.empty],
    ):  # all of them, and what has no default
        given = [0 for one in asked if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        named = {one.name: 0 for one in asked if one.kind is one.KEYWORD_ONLY}
        try:
            inspect.signature(new).bind(*given, **named)
        except TypeError:
            return False
    return True


@each("mutant", MUTANTS)
def test_mutant_replaces_a_function_of_the_shipped_code(mutant: Mutant) -> None:
    for owner, name, _ in targets(mutant):
        module = defined_in(owner, name)
        assert module.startswith(("liftpy.", "sidecar.")), f"{module}.{name}"
        assert not module.startswith("liftpy.testing"), f"{module}.{name} is the simulator's"


@each("mutant", MUTANTS)
def test_mutant_has_the_signature_of_the_replaced_code(mutant: Mutant) -> None:
    for owner, name, new in targets(mutant):
        old = inspect.getattr_static(owner, name)
        old = old.__func__ if isinstance(old, classmethod | staticmethod) else old
        if inspect.isfunction(old) and inspect.isfunction(new):
            assert takes_the_same(old, new), f"{name}{inspect.signature(old)} is replaced by {inspect.signature(new)}"


@each("mutant", MUTANTS)
def test_mutant_is_called_by_the_shipped_code(mutant: Mutant) -> None:
    """What a table has taken hold of when it was made is not replaced where it came from."""
    for name, new in decisions(mutant):
        assert takes_the_same(REQUESTS[name].decide, new)
    held = {kind.decide for kind in REQUESTS.values()}
    for owner, name, _ in targets(mutant):
        assert inspect.getattr_static(owner, name) not in held, f"{name} is in the table of requests: replace it there"


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.seed], ids=lambda mutant: mutant.name)
def test_mutant_is_detected_by_its_seed(mutant: Mutant) -> None:
    """The same seed without it is among those of ``test_sim_seeds``, and clean."""
    assert (
        mutant.seed
        in {"edges": EDGES, "lasting-leaders": LEADERS, "moves": MOVES, "times": TIMES, "": SEEDS}[mutant.profile or ""]
    )
    with mutant.applied():
        outcome = run_seed(mutant.seed, SEED_EVENTS, profile=mutant.profile)
    assert outcome.violation is not None
    assert not is_a_misfit(outcome.violation)


def test_mutant_names_are_unique() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))
