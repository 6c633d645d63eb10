"""Test which node gets a further replica and which one gives one up: balance, racks and limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.core.metadata.placement.facts import NodeFacts, Replicas
from liftpy.core.metadata.placement.rebalance import RACK_STRICT, DestinationNodes, with_replication_factor


def cluster(ids: str, **more: Any) -> list[NodeFacts]:
    return [NodeFacts(node_id=node, **more) for node in ids]


@pytest.mark.parametrize("more", [{"live": False}, {"leaving": True}, {"weight": 0.0}, {"budget": 2}])
def test_destination_nodes_exclude_full_draining_and_dead_nodes(more: dict[str, Any]) -> None:
    takers = DestinationNodes([NodeFacts(node_id="a", **more), NodeFacts(node_id="b")], {"a": 2, "b": 9})
    assert takers.choose(()) == "b"
    assert takers.choose("b") is None
    assert takers.choose((), "b") is None


def test_destination_nodes_extend_or_shorten_a_replica_list_to_a_replication_factor() -> None:
    nodes = cluster("abcde")
    assert with_replication_factor(("a", "b", "c"), 5, DestinationNodes(nodes, {}), "a", "abc", "") == ("a", "b", "c", "d", "e")
    assert with_replication_factor(("a", "b", "c"), 6, DestinationNodes(nodes, {}), "a", "abc", "") is None
    assert with_replication_factor(("a", "b", "c"), 1, DestinationNodes(nodes, {}), "c", "abc", "") == ("c",)
    racks = [NodeFacts(node_id=n, rack=r) for n, r in zip("abc", "xyx", strict=True)]
    assert with_replication_factor(("a", "b"), 3, DestinationNodes(racks, {}), "a", "ab", RACK_STRICT) is None
    assert with_replication_factor(("a", "b"), 3, DestinationNodes(racks, {}), "a", "ab", "rack") == ("a", "b", "c")


@given(st.data())
def test_destination_node_for_a_new_rack_is_the_least_loaded_node(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 9))
    nodes = [
        NodeFacts(
            node_id=f"n{n}",
            rack=data.draw(st.sampled_from(["", "x", "y"])),
            weight=data.draw(st.sampled_from([0.0, 1.0, 2.0])),
            live=data.draw(st.booleans()),
            budget=data.draw(st.sampled_from([0, 3])),
        )
        for n in range(count)
    ]
    held = {node.node_id: data.draw(st.integers(0, 4)) for node in nodes}
    takers = DestinationNodes(nodes, held)
    rack_of = {node.node_id: node.rack for node in nodes}
    for _ in range(12):
        kept: Replicas = tuple(data.draw(st.lists(st.sampled_from(sorted(rack_of)), unique=True, max_size=3)))
        if len(kept) > 1 and data.draw(st.booleans()):
            held[takers.replica_to_remove(kept, kept[0], kept)] -= 1
            continue
        able = [
            node
            for node in nodes
            if node.live and node.weight and node.node_id not in kept and not 0 < node.budget <= held[node.node_id]
        ]
        new = [node for node in able if node.rack not in {rack_of[n] for n in kept} or not any(rack_of.values())]
        found = takers.choose(kept)
        if not able:
            assert found is None
            continue
        assert found in {node.node_id for node in new or able}
        loads = {node.node_id: held[node.node_id] / node.weight for node in new or able}
        assert loads[found] == min(loads.values())
        held[found] += 1
