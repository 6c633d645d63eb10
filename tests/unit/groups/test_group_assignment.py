"""Test the assignment of partitions to members: balanced per stream and in total, with few moves."""

from __future__ import annotations

import random

from liftpy.core.groups.group import Place, assign


def spread(target: dict[Place, str], names: list[str]) -> list[int]:
    return [sum(holder == name for holder in target.values()) for name in names]


def test_group_assignment_of_the_documented_example_has_the_documented_result() -> None:
    one = assign({"s": 4}, {"s": ["a"]}, {})
    two = assign({"s": 4}, {"s": ["a", "b"]}, one)
    three = assign({"s": 4}, {"s": ["a", "b", "c"]}, two)
    four = assign({"s": 4}, {"s": ["b", "c"]}, three)
    assert [[target["s", number] for number in range(4)] for target in (one, two, three, four)] == [
        ["a"] * 4, ["a", "a", "b", "b"], ["a", "a", "b", "c"], ["b", "c", "b", "c"],
    ]  # fmt: skip


def test_group_assignment_spreads_many_streams_of_a_single_partition() -> None:
    counts = {f"s{number}": 1 for number in range(9)}
    one = assign(counts, {name: ["a"] for name in counts}, {})
    two = assign(counts, {name: ["a", "b"] for name in counts}, one)
    assert sorted(spread(two, ["a", "b"])) == [4, 5]
    assert sum(one[place] != two[place] for place in one) == 4


def test_group_assignment_of_random_groups_is_balanced_and_moves_few_partitions() -> None:
    rng = random.Random(3)
    held: dict[Place, str] = {}
    names = ["m0"]
    counts = {"s": 12, "t": 5, "u": 1}
    for number in range(1, 200):
        if rng.random() < 0.5 or len(names) < 2:
            names.append(f"m{number}")
        else:
            names.remove(rng.choice(names))
        target = assign(counts, dict.fromkeys(counts, names), held)
        assert assign(counts, dict.fromkeys(counts, names), target) == target, "who is content stays so"
        for stream, count in counts.items():
            shares = spread({place: name for place, name in target.items() if place[0] == stream}, names)
            assert sum(shares) == count
            assert max(shares) - min(shares) <= 1
        lost = sum(held.get(place) not in names for place in target)
        moved = sum(held.get(place) != name for place, name in target.items())
        assert moved <= lost + -(-sum(counts.values()) // len(names)) + len(counts)
        held = target
