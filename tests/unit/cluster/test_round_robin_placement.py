"""Placement against the vectors, and its balance as properties."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.cluster.placement import in_order, place
from liftpy.cluster.placement.placement_error import NotEnoughNodesError, PlacementError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "placement.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", VECTORS["round_robin"], ids=lambda case: case["name"])
def test_round_robin_vectors(case: dict[str, Any]) -> None:
    nodes = [str(node) for node in case["ids"]]
    placed = place("round-robin", nodes, case["partitions"], case["replication_factor"], case["start"])
    assert [[int(node) for node in replicas] for replicas in placed] == case["expected"]


@pytest.mark.parametrize("case", [c for c in VECTORS["invalid"] if "ids" in c], ids=lambda case: case["name"])
def test_invalid_vectors(case: dict[str, Any]) -> None:
    with pytest.raises(PlacementError) as raised:
        place("", [str(node) for node in case["ids"]], case["partitions"], case["replication_factor"], 0)
    assert str(raised.value) == case["error"]
    assert isinstance(raised.value, NotEnoughNodesError) == ("not enough" in case["error"])


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(PlacementError, match="round-robin"):
        place("best", ["a"], 1, 1, 0)


def test_nodes_are_ordered_as_numbers_only_if_all_are() -> None:
    assert in_order(["10", "9", "1"]) == ["1", "9", "10"]
    assert in_order(["10", "9", "x"]) == ["10", "9", "x"]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 500), st.data())
def test_replicas_are_distinct_and_leaders_balanced(count: int, partitions: int, start: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, count))
    nodes = [f"n{n:02}" for n in range(count)]
    placed = place("round-robin", nodes, partitions, factor, start)
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(node, 0) for node in nodes) <= 1


@given(st.integers(1, 9), st.data())
def test_over_one_period_every_node_leads_and_follows_equally_often(count: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, count))
    period = count * (count - factor + 1)
    placed = place("round-robin", [str(n) for n in range(count)], period, factor, data.draw(st.integers(0, 40)))
    assert len(set(Counter(r[0] for r in placed).values())) == 1
    assert len(set(Counter(node for r in placed for node in r[1:]).values())) <= 1
