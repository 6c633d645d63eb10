"""What is asked of placement, and what a dry run of it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from liftpy.core.base.strict_json import load_json
from liftpy.core.wire._pb import cluster_pb2
from liftpy.errors import ConfigError

Assignment = tuple[tuple[int, tuple[str, ...]], ...]
"""(number of a partition, its replicas, preferred leader first), as given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementWish:
    """Where partitions are to be placed."""

    policy: str = ""
    """'': the default one, or that of the stream; see docs/protocol.md."""
    assignment: Assignment = ()
    """By hand, instead of a policy."""
    allow_offline: bool = False
    """An assignment may name nodes that are not live."""

    def lists(self) -> list[cluster_pb2.ReplicaList]:
        """The assignment as it is sent."""
        return [cluster_pb2.ReplicaList(partition=number, replicas=replicas) for number, replicas in self.assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a node, or all nodes of a rack, would hold. The numbers in ``new`` are part of the others."""

    leaders: int
    new_leaders: int
    replicas: int
    new_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """A node as it was before."""

    node_id: str
    rack: str
    weight: float
    replicas: int
    leaders: int
    fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """A map that was made and not applied."""

    first_partition: int
    replicas: tuple[tuple[str, ...], ...]
    """Of each partition, preferred leader first; empty when it would wait."""
    nodes: tuple[PlannedNode, ...]
    """All of them, in order."""
    notes: tuple[str, ...]
    waits: str
    """Why nothing can be placed now, and the stream would wait (``insufficient-nodes``); '': it would not."""

    def by_node(self) -> dict[str, Tally]:
        """Of every node, in order."""
        return self._tallies({node.node_id: node.node_id for node in self.nodes})

    def by_rack(self) -> dict[str, Tally]:
        """Of every rack, by name; '' for the nodes without one, empty when no node has one."""
        if not any(node.rack for node in self.nodes):
            return {}
        return dict(sorted(self._tallies({node.node_id: node.rack for node in self.nodes}).items()))

    def _tallies(self, place_of: Mapping[str, str]) -> dict[str, Tally]:
        new_replicas = Counter(place_of[node] for replicas in self.replicas for node in replicas)
        new_leaders = Counter(place_of[replicas[0]] for replicas in self.replicas)
        held, led = Counter(new_replicas), Counter(new_leaders)
        for node in self.nodes:
            held[place_of[node.node_id]] += node.replicas
            led[place_of[node.node_id]] += node.leaders
        return {
            place: Tally(
                leaders=led[place], new_leaders=new_leaders[place], replicas=held[place], new_replicas=new_replicas[place]
            )
            for place in dict.fromkeys(place_of.values())
        }


def plan_from_pb(plan: cluster_pb2.PlacementPlan) -> PlacementPlan:
    """PlacementPlan -> PlacementPlan; raise ValueError for one that is no map."""
    factor, places = plan.replicationFactor, list(plan.replicas)
    if places and (not factor or len(places) % factor or max(places) >= len(plan.nodes)):
        raise ValueError(f"{len(places)} replicas, {factor} of a partition, on {len(plan.nodes)} nodes are no map")
    ids = [node.nodeId for node in plan.nodes]
    return PlacementPlan(
        first_partition=plan.firstPartition,
        replicas=tuple(tuple(ids[n] for n in places[at : at + factor]) for at in range(0, len(places), factor or 1)),
        nodes=tuple(
            PlannedNode(
                node_id=node.nodeId,
                rack=node.rack,
                weight=node.weight,
                replicas=node.replicas,
                leaders=node.leaders,
                fenced=node.fenced,
            )
            for node in plan.nodes
        ),
        notes=tuple(plan.notes),
        waits=plan.waits,
    )


def assignment_from_json(text: str | bytes) -> Assignment:
    """The assignment in a file: ``[{"id": 0, "replicas": ["n1", "n2"]}, ...]``, node ids as texts or as numbers.

    Raise ConfigError naming every entry that has not this form. Whether the map can be used is the metadata group's to say.
    """
    try:
        entries = load_json(text)
    except ValueError as error:
        raise ConfigError(
            f'Cannot read the replica assignment: {error}. Give JSON such as [{{"id": 0, "replicas": ["n1", "n2"]}}].'
        ) from None
    if not isinstance(entries, list):
        raise ConfigError(
            'Cannot read the replica assignment: it is not a list of {"id": ..., "replicas": [...]}. Correct the JSON.'
        )
    wrong = [f"entry {number}: {why}" for number, entry in enumerate(entries) if (why := _wrong(entry))]
    if wrong:
        raise ConfigError("Cannot read the replica assignment: " + "; ".join(wrong))
    return tuple((entry["id"], tuple(str(node) for node in entry["replicas"])) for entry in entries)


def _wrong(entry: Any) -> str:
    if not isinstance(entry, dict):
        return "no object"
    if unknown := sorted(entry.keys() - {"id", "replicas"}):
        return f"unknown {', '.join(unknown)}"
    if type(entry.get("id")) is not int or abs(entry["id"]) >= 1 << 31:
        return "id is no whole number"
    replicas: Any = entry.get("replicas")
    if not isinstance(replicas, list) or not all(_names_a_node(node) for node in replicas):
        return "replicas is no list of node ids"
    return ""


def _names_a_node(node: object) -> bool:
    return type(node) is int or (isinstance(node, str) and node.isascii())


def tally_rows(tallies: Mapping[str, Tally]) -> Iterable[Sequence[str]]:
    """Cells for people: place, leaders, replicas, each with what is new."""
    for place, tally in tallies.items():
        yield (place or "(none)", f"{tally.leaders} (+{tally.new_leaders})", f"{tally.replicas} (+{tally.new_replicas})")
