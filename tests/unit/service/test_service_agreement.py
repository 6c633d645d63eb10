"""States beside all nodes are compared, also of services that emit nothing: who is alone with its own has diverged."""

from __future__ import annotations

from liftpy.core.services.snapshot import BEGINNING, MAX_NODES, MAX_POSITIONS, Agreement, Difference

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def agreement(**told: dict[int, bytes]) -> Agreement:
    made = Agreement()
    for node, snapshots in told.items():
        made.told(node, 1, snapshots)
    return made


def test_the_same_states_and_those_that_nobody_else_has_are_fine() -> None:
    same = agreement(n1={10: A, 20: B}, n2={10: A}, n3={20: B, 30: C})
    assert [same.difference(node) for node in ("n1", "n2", "n3", "n4")] == [None] * 4


def test_two_against_one() -> None:
    made = agreement(n1={10: A, 20: A}, n2={10: A, 20: A}, n3={10: A, 20: B})
    assert made.difference("n3") == Difference(20, ("n1", "n2"), diverged=True)
    assert made.difference("n1") is None
    assert "this service has diverged" in str(made.difference("n3"))


def test_one_against_one_is_said_by_both_and_stops_nobody() -> None:
    made = agreement(n1={10: A}, n2={10: B})
    assert made.difference("n1") == Difference(10, ("n2",), diverged=False)
    assert made.difference("n2") == Difference(10, ("n1",), diverged=False)
    three = agreement(n1={10: A}, n2={10: B}, n3={10: C})
    assert [three.difference(node).diverged for node in ("n1", "n2", "n3")] == [False] * 3  # type: ignore[union-attr]


def test_what_was_stored_before_the_state_began_anew_is_forgotten() -> None:
    """The log may have been cut."""
    made = agreement(n1={10: B}, n2={10: A}, n3={10: A})
    made.told("n1", 2, {})
    assert made.difference("n1") is None
    made.told("n1", 2, {10: A})
    assert made.difference("n1") is None
    made.told("n1", 2, {20: A})
    made.told("n2", 1, {10: B})
    made.told("n3", 1, {10: B})
    assert made.difference("n1") == Difference(10, ("n2", "n3"), diverged=True)  # what it told of this life is kept


def test_what_is_remembered_is_bounded_and_a_digest_has_its_size() -> None:
    made = Agreement()
    for number in range(100):
        made.told(f"n{number}", 1, dict.fromkeys(range(100), A) | {1000: b"short"})
    assert len(made._told) == len(made._lives) == MAX_NODES
    assert sorted(made._told["n0"]) == [BEGINNING, *range(100 - MAX_POSITIONS, 100)]


def test_other_parameters_are_a_difference_from_the_beginning_on() -> None:
    """However many snapshots came since."""
    same = dict.fromkeys(range(1, 50), A)
    made = agreement(n1={0: A} | same, n2={0: A} | same, n3={0: B} | same)
    found = made.difference("n3")
    assert found == Difference(BEGINNING, ("n1", "n2"), diverged=True)
    assert str(found) == "the service's parameters are not those beside n1, n2; this one stops: start it with theirs"
    assert made.difference("n1") is None
    assert "give all nodes the same" in str(agreement(n1={0: A}, n2={0: B}).difference("n1"))


def test_what_the_other_nodes_agree_on_is_what_more_of_them_have_than_anything_else() -> None:
    made = agreement(n1={10: C, 20: C, 40: A}, n2={10: A, 20: A, 30: B}, n3={10: A, 20: B}, n4={20: B})
    assert made.agreed("n1") == {10: (A, 2), 20: (B, 2), 30: (B, 1)}, "its own does not count"
    assert made.agreed("n4") == {10: (A, 2), 30: (B, 1), 40: (A, 1)}, "three of a kind each at 20"
    assert agreement(n1={10: A}, n2={10: B}).agreed("n3") == {}
    many = agreement(n1=dict.fromkeys(range(0, 160, 10), A), n2=dict.fromkeys(range(200, 360, 10), A))
    assert list(many.agreed("n3")) == list(range(200, 360, 10)), "the newest"
