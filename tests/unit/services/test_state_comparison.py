"""Test that nodes compare the states of a service and find the node that diverged."""

from __future__ import annotations

from liftpy.core.services.snapshot import BEGINNING, MAX_NODES, MAX_POSITIONS, Difference, StateComparison

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def agreement(**told: dict[int, bytes]) -> StateComparison:
    made = StateComparison()
    for node, snapshots in told.items():
        made.set_digests(node, 1, snapshots)
    return made


def test_service_state_comparison_of_equal_or_unique_states_finds_no_difference() -> None:
    same = agreement(n1={10: A, 20: B}, n2={10: A}, n3={20: B, 30: C})
    assert [same.difference(node) for node in ("n1", "n2", "n3", "n4")] == [None] * 4


def test_service_state_comparison_of_one_state_against_two_reports_divergence() -> None:
    made = agreement(n1={10: A, 20: A}, n2={10: A, 20: A}, n3={10: A, 20: B})
    assert made.difference("n3") == Difference(20, ("n1", "n2"), diverged=True)
    assert made.difference("n1") is None
    assert "this instance is in the minority" in str(made.difference("n3"))


def test_service_state_comparison_of_two_different_states_reports_a_difference_without_divergence() -> None:
    made = agreement(n1={10: A}, n2={10: B})
    assert made.difference("n1") == Difference(10, ("n2",), diverged=False)
    assert made.difference("n2") == Difference(10, ("n1",), diverged=False)
    three = agreement(n1={10: A}, n2={10: B}, n3={10: C})
    assert [three.difference(node).diverged for node in ("n1", "n2", "n3")] == [False] * 3  # type: ignore[union-attr]


def test_service_state_comparison_after_a_state_rebuild_drops_older_digests() -> None:
    """The log may have been truncated."""
    made = agreement(n1={10: B}, n2={10: A}, n3={10: A})
    made.set_digests("n1", 2, {})
    assert made.difference("n1") is None
    made.set_digests("n1", 2, {10: A})
    assert made.difference("n1") is None
    made.set_digests("n1", 2, {20: A})
    made.set_digests("n2", 1, {10: B})
    made.set_digests("n3", 1, {10: B})
    assert made.difference("n1") == Difference(10, ("n2", "n3"), diverged=True)  # what it told of this life is kept


def test_service_state_comparison_keeps_a_bounded_number_of_nodes_and_positions() -> None:
    many = StateComparison()
    for number in range(100):
        many.set_digests(f"n{number}", 1, {10: A, 1000: b"short"})
    assert many.agreed("other") == {10: (A, MAX_NODES)}
    oldest = agreement(n1=dict.fromkeys(range(1, MAX_POSITIONS + 2), A), n2={1: B, 2: B}, n3={1: B, 2: B})
    assert oldest.difference("n1") == Difference(2, ("n2", "n3"), diverged=True), "position 1 is dropped"


def test_service_state_comparison_with_many_newer_snapshots_keeps_the_agreement_on_reported_ones() -> None:
    """The nodes offer the old one to a node that has lost its snapshots."""
    made = StateComparison()
    for newest in range(100, 100 + 3 * MAX_POSITIONS):
        for node in ("n2", "n3"):
            made.set_digests(node, 1, {10: A, newest + (node == "n3"): B})
    agreed = made.agreed("n1")
    assert agreed[10] == (A, 2)
    assert len(agreed) <= MAX_POSITIONS


def test_service_state_comparison_of_different_service_parameters_reports_divergence() -> None:
    same = dict.fromkeys(range(1, 50), A)
    made = agreement(n1={0: A} | same, n2={0: A} | same, n3={0: B} | same)
    found = made.difference("n3")
    assert found == Difference(BEGINNING, ("n1", "n2"), diverged=True)
    assert str(found) == (
        "the parameters of the service differ from those on n1, n2; this instance stops: start it with their parameters"
    )
    assert made.difference("n1") is None
    assert "use the same ones on all nodes" in str(agreement(n1={0: A}, n2={0: B}).difference("n1"))


def test_service_state_comparison_agreed_digest_is_the_digest_of_most_other_nodes() -> None:
    made = agreement(n1={10: C, 20: C, 40: A}, n2={10: A, 20: A, 30: B}, n3={10: A, 20: B}, n4={20: B})
    assert made.agreed("n1") == {10: (A, 2), 20: (B, 2), 30: (B, 1)}, "its own does not count"
    assert made.agreed("n4") == {10: (A, 2), 30: (B, 1), 40: (A, 1)}, "three of a kind each at 20"
    assert agreement(n1={10: A}, n2={10: B}).agreed("n3") == {}
    many = agreement(n1=dict.fromkeys(range(0, 160, 10), A), n2=dict.fromkeys(range(200, 360, 10), A))
    assert list(many.agreed("n3")) == list(range(200, 360, 10)), "the newest"
