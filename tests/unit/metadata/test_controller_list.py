"""Test changes of the controllers of the metadata group: plans, rejections and waits [M10]."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from liftpy.core.metadata.controller_list import (
    CONTROLLERS,
    ControllerList,
    GroupView,
    NoChange,
    leader_must_transfer,
    list_of,
    next_step,
    plan_change,
    waits_for,
    well_formed,
)
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm
from tests.each import each

ABC = ("a", "b", "c")
NODES = frozenset("abcdefgh")
ADD, REMOVE, REPLACE = pb.ChangeControllers.ADD, pb.ChangeControllers.REMOVE, pb.ChangeControllers.REPLACE
_E = pb.ControlResponse


def view(
    voters: str = "abc",
    *,
    learner: str = "",
    leaving: str = "",
    dead: str = "",
    leader: str = "a",
    caught_up: bool = True,
    blocked: str = "",
) -> GroupView:
    now = ControllerList(tuple(voters), learner, leaving, 7)
    return GroupView(now, leader, frozenset(now.members) - set(dead), caught_up, blocked)


def asked(what: int, node: str, replaced: str = "") -> pb.ChangeControllers:
    return pb.ChangeControllers(what=what, node=node, replaced=replaced)  # type: ignore[arg-type]


def plan(what: int, node: str, of: GroupView, replaced: str = "", fenced: str = "") -> ControllerList | NoChange:
    return plan_change(asked(what, node, replaced), of, NODES, frozenset(fenced))


@each(
    ("what", "node", "replaced", "of", "voters", "learner", "leaving"),
    [
        (ADD, "d", "", view(), "abc", "d", ""),
        (REMOVE, "c", "", view(), "abc", "", "c"),
        (REMOVE, "a", "", view(), "abc", "", "a"),
        (REMOVE, "c", "", view(dead="c"), "abc", "", "c"),
        (REPLACE, "d", "c", view(dead="c"), "abc", "d", "c"),
        (REPLACE, "d", "a", view(), "abc", "d", "a"),
        (ADD, "b", "", view("a"), "a", "b", ""),
        (REMOVE, "d", "", view(learner="d", leaving="c"), "abc", "", ""),
        (ADD, "c", "", view(leaving="c"), "abc", "", ""),
    ],
)
def test_controller_change_plan_returns_the_first_step_only(
    what: int, node: str, replaced: str, of: GroupView, voters: str, learner: str, leaving: str
) -> None:
    made = plan(what, node, of, replaced)
    assert isinstance(made, ControllerList)
    assert (made.voters, made.learner, made.leaving) == (tuple(voters), learner, leaving)


@each(
    ("what", "node", "replaced", "of", "error", "says"),
    [
        (ADD, "x", "", view(), _E.NOT_FOUND, "Node 'x' does not exist"),
        (ADD, "h", "", view(), _E.INVALID, "Node h does not run"),
        (ADD, "c", "", view(), _E.EXISTS, "c is already a controller"),
        (ADD, "e", "", view(learner="d"), _E.EXISTS, "d is being added. .* liftpy controllers remove d"),
        (ADD, "e", "", view(leaving="c"), _E.EXISTS, "c is being removed. .* liftpy controllers add c"),
        (ADD, "h", "", view("abcdefg"), _E.INVALID, "h does not run"),
        (ADD, "d", "", view(dead="bc"), _E.INVALID, "3 of 4 controllers must be alive, but only 2 are: a, d"),
        (REMOVE, "d", "", view(), _E.NOT_FOUND, "'d' is not a controller. Use one of: a, b, c"),
        (REMOVE, "a", "", view("a"), _E.INVALID, "a is the last controller"),
        (REMOVE, "c", "", view(dead="b"), _E.INVALID, "2 of 2 controllers must be alive, but only 1 are: a"),
        (REMOVE, "c", "", view(leaving="b"), _E.EXISTS, "b is being removed"),
        (REPLACE, "d", "x", view(), _E.NOT_FOUND, "'x' is not a controller"),
        (REPLACE, "b", "c", view(), _E.EXISTS, "b is already a controller"),
        (REPLACE, "d", "c", view(dead="bc"), _E.INVALID, "3 of 4 controllers must be alive, but only 2 are"),
        (REPLACE, "e", "c", view(learner="d", leaving="c"), _E.EXISTS, "d is being added for c"),
        (REPLACE, "d", "x", view(learner="d"), _E.EXISTS, "d is being added"),
        (ADD, "d", "", view(blocked="not yet"), _E.UNAVAILABLE, "not yet"),
    ],
)
def test_controller_change_plan_of_an_impossible_change_returns_an_error_with_the_reason(
    what: int, node: str, replaced: str, of: GroupView, error: int, says: str
) -> None:
    made = plan(what, node, of, replaced, fenced="h")
    assert isinstance(made, NoChange)
    assert made.error == error

    assert re.search(says, made.detail), made.detail


def test_controller_change_plan_beyond_seven_controllers_is_rejected() -> None:
    made = plan(ADD, "h", view("abcdefg"))
    assert isinstance(made, NoChange)
    assert "The cluster has 7 controllers, the maximum is 7" in made.detail
    assert isinstance(plan(REPLACE, "h", view("abcdefg"), "g"), ControllerList)


@pytest.mark.parametrize(
    ("what", "node", "replaced", "of"),
    [
        (ADD, "d", "", view(learner="d")),
        (REMOVE, "c", "", view(leaving="c")),
        (REPLACE, "d", "c", view(learner="d", leaving="c")),
        (REPLACE, "d", "c", view("abcd", leaving="c")),
        (REPLACE, "d", "c", view("abd")),
    ],
)
def test_controller_change_plan_of_a_finished_change_has_no_step(what: int, node: str, replaced: str, of: GroupView) -> None:
    made = plan(what, node, of, replaced)
    assert isinstance(made, NoChange)
    assert made.error == pb.ControlResponse.OK


def _come_to(of: GroupView) -> list[ControllerList]:
    """Return the controller lists of all steps of a change."""
    made = []
    while (after := next_step(of)) is not None:
        made.append(after)
        of = replace(of, now=after)
    return made


def test_controller_replacement_in_a_group_of_seven_removes_the_old_controller_first() -> None:
    begun = view("abcdefg", learner="h", leaving="g", dead="g")
    first, second = _come_to(begun)
    assert (first, second) == (ControllerList(tuple("abcdef"), "h"), ControllerList(tuple("abcdefh")))
    assert all(map(well_formed, (begun.now, first, second)))
    again = plan(REPLACE, "h", replace(begun, now=first), "g")
    assert isinstance(again, NoChange)
    assert again.error == pb.ControlResponse.OK
    assert next_step(replace(begun, caught_up=False)) is None
    assert "4 of 6 controllers must be alive" in waits_for(view("abcdefg", learner="h", leaving="g", dead="gdef"))
    led = view("abcdefg", learner="h", leaving="a")
    assert leader_must_transfer(led)
    assert next_step(led) is None


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (view(learner="d", caught_up=False), "d has not caught up"),
        (view(learner="d", dead="d"), "d is not heard"),
        (view(learner="d", dead="bc"), "3 of 4 controllers must be alive, but only 2 are"),
        (view(leaving="c", dead="b"), "2 of 2 controllers must be alive, but only 1 are"),
        (view(learner="d", blocked="not yet"), "not yet"),
    ],
)
def test_controller_change_plan_that_must_wait_returns_the_reason(of: GroupView, why: str) -> None:
    assert why in waits_for(of)
    assert next_step(of) is None
    assert not leader_must_transfer(of)


def test_controller_change_that_removes_the_metadata_leader_transfers_the_leadership_first() -> None:
    of = view(leaving="a")
    assert leader_must_transfer(of)
    assert next_step(of) is None
    assert next_step(replace(of, leader="b")) == ControllerList(("b", "c"))
    assert not leader_must_transfer(view(learner="d", leaving="a")), "whoever takes its place comes first"
    assert not leader_must_transfer(view())


def a_change(**given: object) -> pb.ControlRequest:
    change = {"after": 0, "list": {"voters": list(ABC), "learner": "d"}} | given
    return pb.ControlRequest(operationId=b"o" * 16, changeControllers=change)  # type: ignore[arg-type]


def test_controller_list_of_an_entry_that_apply_rejects_is_none() -> None:
    entry = a_change()
    made = list_of(entry.SerializeToString(), 5)
    assert made == ControllerList(ABC, "d", "", 5)
    assert made is not None
    assert CONTROLLERS.from_pb(CONTROLLERS.to_pb(made)) == made
    fsm = born_fsm()
    answer = pb.ControlResponse.FromString(fsm.apply(entry.SerializeToString(), 5))
    assert (answer.error, fsm.image.controllers) == (_E.OK, made)
    for wrong in (
        b"",
        b"\xff",
        pb.ControlRequest(operationId=b"o" * 16, barrier=pb.Barrier()).SerializeToString(),
        a_change(after=5).SerializeToString(),
        a_change(list={}).SerializeToString(),
        a_change(list={"voters": ["b", "a"]}).SerializeToString(),
        a_change(list={"voters": ["a", "a"]}).SerializeToString(),
        a_change(list={"voters": ["a"], "learner": "a"}).SerializeToString(),
        a_change(list={"voters": ["a"], "leaving": "b"}).SerializeToString(),
        a_change(list={"voters": ["a", "b c"]}).SerializeToString(),
        a_change(list={"voters": [f"n{i}" for i in range(8)]}).SerializeToString(),
        pb.ControlRequest(operationId=b"short", changeControllers=entry.changeControllers).SerializeToString(),
        pb.ControlRequest(operationId=b"o" * 16, timeNs=1 << 63, changeControllers=entry.changeControllers).SerializeToString(),
    ):
        assert list_of(wrong, 5) is None
    assert not well_formed(ControllerList())


def test_controller_change_with_an_invalid_list_or_index_is_rejected_by_apply() -> None:
    fsm = born_fsm()
    for index, wrong in enumerate((a_change(list={}), a_change(after=1)), 3):
        wrong.operationId = bytes(15) + bytes([index])
        answer = pb.ControlResponse.FromString(fsm.apply(wrong.SerializeToString(), index))
        assert answer.error == _E.INVALID
        assert fsm.image.controllers == ControllerList()
