"""Which replica may go, to whom a leader hands over, and how fast a node copies."""

from __future__ import annotations

import pytest

from liftpy.partition import PartitionState
from liftpy.replica.copying import LEAST_FETCH_BYTES, CopyPace, backlog_part
from liftpy.replica.moving import heir, majority_holds, next_to_go

S = 1_000_000_000


def moving(replicas: str = "abdc", target: str = "abd", isr: str = "abdc", **more: object) -> PartitionState:
    state: dict[str, object] = {"partition": 0, "leader": "a", "leader_epoch": 3, "epoch": 9, **more}
    return PartitionState(replicas=tuple(replicas), isr=tuple(isr), target=tuple(target), **state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replicas", "target", "isr", "min_isr", "goes"),
    [
        ("abdc", "abd", "abdc", 2, "c"),
        ("abdc", "abd", "abc", 2, ""),  # it is the third copy
        ("abdc", "abd", "abd", 2, "c"),
        ("abdc", "abd", "ab", 2, "c"),  # outside of the ISR it is no copy
        ("abdc", "abd", "ab", 3, ""),
        ("abd", "abd", "abd", 2, ""),
        ("abc", "abd", "abc", 2, ""),  # nobody has come for it yet
        ("bda", "bd", "bda", 2, "a"),  # the leader itself
        ("abcd", "", "abcd", 2, ""),
        ("da", "d", "da", 1, "a"),
        ("da", "d", "a", 1, ""),
    ],
)
def test_who_may_go(replicas: str, target: str, isr: str, min_isr: int, goes: str) -> None:
    assert next_to_go(moving(replicas, target, isr), frozenset(isr), min_isr) == goes


def test_nobody_goes_with_the_change_by_which_another_joins() -> None:
    state = moving("abc", "ad", "abc", joining="d", copy_epoch=4)
    assert next_to_go(state, frozenset("abcd"), 1) == ""


@pytest.mark.parametrize(
    ("positions", "incomplete", "enough"),
    [
        ({"a": 41, "b": 40, "d": 39, "c": 41}, "", True),
        ({"a": 41, "b": 17, "d": 39, "c": 41}, "", False),
        ({"a": 41, "b": None, "c": 41}, "", False),
        ({"a": 41, "b": 40, "d": 39}, "b", False),
        ({"a": 41, "b": 38, "d": 40}, "", True),
    ],
)
def test_a_majority_of_those_that_stay_holds_everything(
    positions: dict[str, int | None], incomplete: str, enough: bool
) -> None:
    state = moving(incomplete=tuple(incomplete))
    assert majority_holds(state, "c", positions, 40, 30) is enough


def test_below_the_start_of_the_epoch_nobody_holds_everything() -> None:
    positions = {"a": 60, "b": 48, "d": 48}
    assert not majority_holds(moving(), "c", positions, 40, 50)
    assert majority_holds(moving(), "c", {**positions, "b": 49}, 40, 50)


def test_the_first_that_is_wanted_and_ready_leads_next() -> None:
    state = moving("bdca", "bdc", "dca")
    assert heir(state, "dc") == "d"
    assert heir(state, "c") == "c"
    assert heir(state, "b") == "", "it is outside of the ISR"


def test_the_backlog_alone_counts() -> None:
    assert backlog_part(1_000_000, 1000, 400) == 600_000
    assert backlog_part(1_000_000, 1000, 2000) == 0
    assert backlog_part(10, 0, 0) == 0


def test_all_learners_of_a_node_wait_for_one_debt() -> None:
    pace = CopyPace(10_000_000)
    pace.copied(1_000_000, 600_000, 5 * S)
    assert pace.free_ns() == 5 * S + 60_000_000
    pace.copied(1_000_000, 1_000_000, 5 * S)
    assert pace.free_ns() == 5 * S + 160_000_000
    pace.copied(1_000_000, 0, 9 * S)
    assert pace.free_ns() == 5 * S + 160_000_000, "what the partition grew by is not put off"
    pace.copied(1_000_000, 1_000_000, 9 * S)
    assert pace.free_ns() == 9 * S + 100_000_000, "nothing is saved up"
    assert (pace.copied_bytes, pace.backlog_bytes) == (4_000_000, 2_600_000)


@pytest.mark.parametrize(("rate", "most"), [(0, 0), (1000, LEAST_FETCH_BYTES), (40_000_000, 2_000_000)])
def test_a_slow_copy_asks_for_little_at_a_time(rate: int, most: int) -> None:
    assert CopyPace(rate).fetch_bytes == most
