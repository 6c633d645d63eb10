"""The short form of ``python -m tests.system.groups``, and what its judge finds."""

from __future__ import annotations

import pytest

from tests.system.groups import judge
from tests.system.groups.__main__ import run
from tests.system.groups.judge import Committed, Given


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(300)
async def test_group_loses_no_record_when_members_and_coordinator_are_killed() -> None:
    assert await run(4, 1, ["joins", "coordinator-killed", "killed", "leaves"], None, strict=False) == 0


def given(*parts: tuple[str, int, int, int], excused: int = -1) -> list[Given]:
    """(member, generation, first, last) each, a ns after the one before."""
    return [Given(at, member, 0, *numbers, excused=at == excused) for at, (member, *numbers) in enumerate(parts)]


RIGHT = given(("a", 1, 0, 4), ("a", 1, 5, 9), ("b", 3, 5, 9), ("b", 3, 10, 12))


@pytest.mark.parametrize(
    ("parts", "commits", "end", "says"),
    [
        (RIGHT, [Committed(1, "a", 0, 5)], 13, ""),
        (RIGHT, [Committed(1, "a", 0, 5)], 14, "nobody was given 13..13"),
        (RIGHT, [Committed(1, "a", 0, 6)], 13, "all below 6 was committed"),
        (RIGHT, [Committed(2, "a", 0, 10)], 13, ""),
        (given(("a", 1, 0, 4), ("a", 1, 6, 9)), [], 10, "nobody was given 5..5"),
        (given(("a", 1, 0, 4), ("b", 2, 0, 9), ("a", 1, 5, 9)), [], 10, "after generation 2 [G1]"),
        (given(("a", 1, 0, 4), ("b", 2, 0, 9), ("a", 1, 5, 9), excused=2), [], 10, ""),
        (given(("a", 1, 0, 4), ("b", 1, 5, 9)), [], 10, "that generation was a's"),
        (given(("a", 1, 0, 4), ("a", 1, 3, 9)), [], 10, "its next was 5"),
        (given(("a", 1, 2, 4)), [], 5, "nobody was given 0..1"),
    ],
)
def test_group_verdict_finds_each_kind_of_delivery_error(
    parts: list[Given], commits: list[Committed], end: int, says: str
) -> None:
    found = "; ".join(judge.wrong(parts, commits, {0: end}))
    assert (says in found) if says else found == ""


def test_group_verdict_excuses_only_the_first_record_after_a_stopped_process() -> None:
    lines = {"a": [{"do": "given", "t": t, "partition": 0, "generation": 1, "first": t, "last": t} for t in (1, 5, 6)]}
    assert [part.excused for part in judge.read(lines, {"a": [4]})[0]] == [False, True, False]
    assert not any(part.excused for part in judge.read(lines, {})[0])


def test_group_verdict_finds_falling_positions_and_needless_reassignments() -> None:
    assert judge.fallen([{0: 5, 1: 7}, {0: 6}, {0: 6, 1: 7}]) == []
    assert judge.fallen([{0: 5}, {0: 4}, {0: 4}]) == ["partition 0: the committed position fell from 5 to 4 [G3]"] * 2
    before = {0: ("a", 1), 1: ("a", 1), 2: ("b", 2)}
    assert judge.disturbed(before, {0: ("a", 1), 1: ("b", 4), 2: ("b", 2)}) == []
    assert len(judge.disturbed(before, {0: ("a", 3), 1: ("a", 1), 2: ("c", 4)})) == 1


def test_group_run_reports_percentiles_of_the_measured_times() -> None:
    assert judge.percentile([], 0.5) == 0
    assert judge.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert judge.percentile([3.0, 1.0, 2.0], 1.0) == 3.0
