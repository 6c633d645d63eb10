"""Inputs, results and errors of placement. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from liftpy.core.base.cooperative_apply import Steps
from liftpy.core.metadata.image import ClusterImage
from liftpy.errors import ConfigError

Replicas = tuple[str, ...]
"""Node ids of the replicas of one partition. The preferred leader is first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts about one node that a placement needs."""

    node_id: str
    rack: str = ""
    """Rack of the node. '': unknown."""
    weight: float = 1.0
    """Weight of the node for weighted policies. 0: it gets no replicas from them."""
    live: bool = True
    """True if the node is live. Other nodes are chosen only by an assignment that allows it."""
    replicas: int = 0
    """Number of replicas on the node."""
    leaders: int = 0
    """Number of partitions that the node leads."""
    budget: int = 0
    """Maximum number of replicas of the node, including its current ones. 0: no limit."""
    leaving: bool = False
    """True if an operator drains the node. The node gets no replicas."""

    @property
    def takes(self) -> bool:
        return self.live and not self.leaving

    def room(self, unlimited: int) -> int:
        """Return how many more replicas the node accepts by its budget. ``unlimited``: result for a node without a budget."""
        return self.budget - self.replicas if self.budget else unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentEntry:
    """One entry of a manual assignment: the replicas of one partition, preferred leader first."""

    partition: int
    replicas: Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """Partitions to place on nodes: ``first`` to ``first`` + ``partitions`` - 1 of ``stream``."""

    policy: str = ""
    """Name of the policy. '': the default one."""
    stream: str = ""
    partitions: int
    replication_factor: int
    start: int = 0
    """Start index: number of partitions that were placed before. It has no upper limit."""
    first: int = 0
    """Number of the first partition to place. It is above 0 if partitions are added to a stream."""
    assignment: tuple[AssignmentEntry, ...] = ()
    """Replicas of each partition for the policy ``manual``."""
    allow_offline: bool = False
    """True if ``manual`` may name nodes that are not live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementResult:
    """Result of a placement."""

    replicas: list[Replicas]
    """Replicas of each partition, in order."""
    next_start: int
    """Start index of the next placement."""
    notes: tuple[str, ...] = ()
    """Limits of the placement, as texts for people."""


Policy = Callable[[Sequence[NodeFacts], PlacementRequest], Steps[list[Replicas]]]
"""Function of a placement policy, in steps. Its arguments are the live nodes in order, and the wanted partitions.

The result has the replicas of each partition. The caller passes at least as many nodes as replicas.
"""


def in_order(nodes: Sequence[str]) -> list[str]:
    """Return the node ids in ascending order. They are compared as numbers if all are numbers, otherwise as texts."""
    if all(node.isascii() and node.isdigit() for node in nodes):
        return sorted(nodes, key=lambda node: (int(node), node))
    return sorted(nodes)


def sort_by_id(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Return ``nodes`` in the order of their ids."""
    by_id = {node.node_id: node for node in nodes}
    return [by_id[node_id] for node_id in in_order(list(by_id))]


def facts_of(image: ClusterImage) -> list[NodeFacts]:
    """Return the facts about all nodes in the image that placement needs, in order of the node ids."""
    return sort_by_id(
        [
            NodeFacts(
                node_id=node.node_id,
                rack=node.rack,
                weight=node.weight,
                live=not node.fenced,
                replicas=image.replica_counts.get(node.node_id, 0),
                leaders=image.leader_counts.get(node.node_id, 0),
                budget=node.partition_budget,
                leaving=node.leaving,
            )
            for node in image.nodes.values()
        ]
    )


class PlacementError(ConfigError):
    """Raised for an invalid placement request. The text says how to correct it."""

    code = "PLACEMENT"


class NoRoomError(PlacementError):
    """Raised if nodes have no room for more partitions.

    Add nodes, delete streams, or raise the open-files limit of the nodes.
    """

    code = "NO_ROOM"
    retryable = True


class NotEnoughNodesError(PlacementError):
    """Raised if there are fewer nodes than replicas. Start more nodes, or use fewer replicas."""

    code = "NOT_ENOUGH_NODES"
    retryable = True

    def __init__(self, missing: int) -> None:
        super().__init__(f"not enough nodes: {missing} more needed")
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Defect:
    """One error in a manual assignment."""

    entry: int
    """Index of the wrong entry in the list, from 0. -1: the list as a whole."""
    rule: str
    """Rule that the entry breaks."""


class ManualError(PlacementError):
    """Raised for an invalid manual assignment. ``defects``: all its errors. The text names each error with its entry."""

    def __init__(self, defects: Sequence[Defect]) -> None:
        entries: dict[str, list[int]] = {}
        for defect in defects:
            entries.setdefault(defect.rule, []).append(defect.entry)
        super().__init__("; ".join(_defect_text(rule, numbers) for rule, numbers in entries.items()))
        self.defects = tuple(defects)


def _defect_text(rule: str, entries: Sequence[int]) -> str:
    named = ", ".join(str(entry) for entry in entries if entry >= 0)
    return f"{rule} ({'entry' if len(entries) == 1 else 'entries'} {named})" if named else rule
