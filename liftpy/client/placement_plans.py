"""Placement requests, and the plans that a dry run returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from liftpy.client.arguments import MAX_INT32, check_partition
from liftpy.core.base.strict_json import load_json
from liftpy.core.wire._pb import cluster_pb2
from liftpy.core.wire.message_codec import MessageCodec
from liftpy.errors import ConfigError

Assignment = tuple[tuple[int, tuple[str, ...]], ...]
"""Pairs of (partition number, node ids), preferred leader first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """How to place the replicas of new partitions.

    Args:
        policy: Name of a placement policy. Default '': the policy of the stream, or the default policy.
        assignment: Replicas of each partition, instead of a policy. Default (): none.
        allow_offline: If True, the assignment may name nodes that are not live. Default False.
        later_policy: With an assignment of a new stream, the policy for partitions that are added later. Default '':
            they need an assignment, too.

    Example:
        wish = liftpy.PlacementOptions(assignment=((0, ("n1", "n2", "n3")),))
        await client.create_stream("orders", "shop.orders", placement=wish)
    """

    policy: str = ""
    assignment: Assignment = ()
    allow_offline: bool = False
    later_policy: str = ""

    def lists(self) -> list[cluster_pb2.ReplicaList]:
        """Return the assignment as the list of replica lists that a request to the metadata group contains."""
        for number, _ in self.assignment:
            check_partition(number)
        return [cluster_pb2.ReplicaList(partition=number, replicas=replicas) for number, replicas in self.assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCounts:
    """Number of replicas and leaders on a node or in a rack, after a plan.

    Attributes:
        leaders: Partitions that it would lead.
        new_leaders: The part of ``leaders`` that the plan adds.
        replicas: Replicas that it would hold.
        new_replicas: The part of ``replicas`` that the plan adds.
    """

    leaders: int
    new_leaders: int
    replicas: int
    new_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """A node and its load before a plan.

    Attributes:
        node_id: Id of the node.
        rack: Its rack, '' for none.
        weight: Its share of replicas compared with other nodes.
        replicas: Replicas that it holds.
        leaders: Partitions that it leads.
        fenced: True if it is fenced.
    """

    node_id: str
    rack: str
    weight: float
    replicas: int
    leaders: int
    fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """The result of a dry run: where replicas would go. Nothing was changed.

    Attributes:
        first_partition: Number of the first planned partition.
        replicas: Node ids for each planned partition, preferred leader first. Empty if the stream would wait for nodes.
        nodes: All nodes with their load before the plan, sorted by id.
        notes: Remarks of the placement policy, as text.
        waits: Why nothing can be placed now (``insufficient-nodes``). '': it can.
    """

    first_partition: int
    replicas: tuple[tuple[str, ...], ...]
    nodes: tuple[PlannedNode, ...]
    notes: tuple[str, ...]
    waits: str

    def by_node(self) -> dict[str, ReplicaCounts]:
        """Return the load of each node after the plan."""
        return self._tallies({node.node_id: node.node_id for node in self.nodes})

    def by_rack(self) -> dict[str, ReplicaCounts]:
        """Return the load of each rack after the plan.

        Returns:
            Rack name to load, '' for nodes without a rack. Empty if no node has a rack.
        """
        if not any(node.rack for node in self.nodes):
            return {}
        return dict(sorted(self._tallies({node.node_id: node.rack for node in self.nodes}).items()))

    def _tallies(self, place_of: Mapping[str, str]) -> dict[str, ReplicaCounts]:
        new_replicas = Counter(place_of[node] for replicas in self.replicas for node in replicas)
        new_leaders = Counter(place_of[replicas[0]] for replicas in self.replicas)
        replica_counts, led = Counter(new_replicas), Counter(new_leaders)
        for node in self.nodes:
            replica_counts[place_of[node.node_id]] += node.replicas
            led[place_of[node.node_id]] += node.leaders
        return {
            place: ReplicaCounts(
                leaders=led[place],
                new_leaders=new_leaders[place],
                replicas=replica_counts[place],
                new_replicas=new_replicas[place],
            )
            for place in dict.fromkeys(place_of.values())
        }


_NODE = MessageCodec(PlannedNode, cluster_pb2.PlannedNode)


def plan_from_pb(plan: cluster_pb2.PlacementPlan) -> PlacementPlan:
    """Decode a placement plan from its protobuf message. Raise ValueError if the message is inconsistent."""
    factor, places = plan.replicationFactor, list(plan.replicas)
    if places and (not factor or len(places) % factor or max(places) >= len(plan.nodes)):
        raise ValueError(
            f"the plan is inconsistent: {len(places)} replicas, replication factor {factor}, {len(plan.nodes)} nodes"
        )
    ids = [node.nodeId for node in plan.nodes]
    return PlacementPlan(
        first_partition=plan.firstPartition,
        replicas=tuple(tuple(ids[n] for n in places[at : at + factor]) for at in range(0, len(places), factor or 1)),
        nodes=tuple(map(_NODE.from_pb, plan.nodes)),
        notes=tuple(plan.notes),
        waits=plan.waits,
    )


def assignment_from_json(text: str | bytes) -> Assignment:
    """Read an assignment from JSON: ``[{"id": 0, "replicas": ["n1", "n2"]}, ...]``.

    Node ids are texts or numbers. The metadata group checks later whether the nodes exist.

    Args:
        text: The JSON document.

    Returns:
        The assignment for ``PlacementOptions``.

    Raises:
        ConfigError: The document is not valid. The text names every wrong entry.
    """
    try:
        entries = load_json(text, unique=True)
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
    if type(entry.get("id")) is not int or not 0 <= entry["id"] <= MAX_INT32:
        return f"id is not a partition number (0 to {MAX_INT32})"
    replicas: Any = entry.get("replicas")
    if not isinstance(replicas, list) or not all(_names_a_node(node) for node in replicas):
        return "replicas is no list of node ids"
    return ""


def _names_a_node(node: object) -> bool:
    return type(node) is int or (isinstance(node, str) and node.isascii())


def tally_rows(tallies: Mapping[str, ReplicaCounts]) -> Iterable[Sequence[str]]:
    """Yield (node or rack, leaders, replicas) as texts for a table. Each number is followed by the part that the plan adds.

    ``tallies``: load after the plan, by node or rack.
    """
    for place, tally in tallies.items():
        yield (place or "(none)", f"{tally.leaders} (+{tally.new_leaders})", f"{tally.replicas} (+{tally.new_replicas})")
