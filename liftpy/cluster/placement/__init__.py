"""Placement: which nodes hold a partition. A pure function behind one door; the stored map is the truth afterwards.

A policy takes the ids of the nodes that may be used, and gives for every partition its replicas, preferred leader
first. New policies are a file each and a row of ``POLICIES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from liftpy.cluster.placement.placement_error import NotEnoughNodesError, PlacementError
from liftpy.cluster.placement.round_robin import place as round_robin

Policy = Callable[[Sequence[str], int, int, int], list[tuple[str, ...]]]
"""(node ids, partitions, replication factor, start index) -> the replicas of each partition, preferred leader first."""

DEFAULT_POLICY = "round-robin"
POLICIES: MappingProxyType[str, Policy] = MappingProxyType({DEFAULT_POLICY: round_robin})


def place(policy: str, nodes: Sequence[str], partitions: int, replication_factor: int, start: int) -> list[tuple[str, ...]]:
    """The replicas of partitions 0 to ``partitions`` - 1; ``policy`` '' means the default.

    Raise PlacementError for an unknown policy or impossible numbers, NotEnoughNodesError when there are too few nodes.
    """
    chosen = POLICIES.get(policy or DEFAULT_POLICY)
    if chosen is None:
        raise PlacementError(f"placement {policy!r} is not known: use one of {', '.join(sorted(POLICIES))}")
    if partitions <= 0:
        raise PlacementError("partitions must be greater than 0")
    if replication_factor <= 0:
        raise PlacementError("replication factor must be greater than 0")
    if replication_factor > len(nodes):
        raise NotEnoughNodesError(f"not enough nodes: {replication_factor - len(nodes)} more needed")
    return chosen(in_order(nodes), partitions, replication_factor, start)


def in_order(nodes: Sequence[str]) -> list[str]:
    """Node ids ascending: as numbers if all of them are, else as text."""
    if all(node.isascii() and node.isdigit() for node in nodes):
        return sorted(nodes, key=lambda node: (int(node), node))
    return sorted(nodes)
