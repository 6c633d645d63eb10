"""Inputs, results and errors of placement. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from liftpy.core.base.cooperative_apply import Steps
from liftpy.errors import ConfigError

Replicas = tuple[str, ...]
"""Node ids of one partition, preferred leader first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node before placement."""

    node_id: str
    rack: str = ""
    """'': it did not say."""
    weight: float = 1.0
    """Weight of the node for weighted policies. 0: it gets no replicas from them."""
    live: bool = True
    """True if the node is live. Other nodes are chosen only by an assignment that allows it."""
    replicas: int = 0
    """Number of replicas on the node."""
    leaders: int = 0
    """Partitions that it leads."""
    budget: int = 0
    """Maximum number of replicas of the node, including its current ones. 0: no limit."""
    leaving: bool = False
    """True if an operator drains it. It gets no replicas."""

    @property
    def takes(self) -> bool:
        """True if the node accepts replicas."""
        return self.live and not self.leaving

    def room(self, unlimited: int) -> int:
        """Return how many more replicas the node accepts, ``unlimited`` if there is no limit."""
        return self.budget - self.replicas if self.budget else unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """One entry of a manual assignment."""

    partition: int
    replicas: Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Partitions to place: ``first`` to ``first`` + ``partitions`` - 1 of ``stream``."""

    policy: str = ""
    """Name of the policy. '': the default one."""
    stream: str = ""
    partitions: int
    replication_factor: int
    start: int = 0
    """Index of the first partition in the row of all partitions that were ever placed. It has no upper limit."""
    first: int = 0
    """Number of the first one: above 0 where partitions are added."""
    assignment: tuple[Assigned, ...] = ()
    """Assignment of the policy ``manual``."""
    allow_offline: bool = False
    """``manual`` may name nodes that are not live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The placed replicas."""

    replicas: list[Replicas]
    """Replicas of each partition, in order."""
    next_start: int
    """The start index of the next placement."""
    notes: tuple[str, ...] = ()
    """Limits of the result, as text."""


Policy = Callable[[Sequence[NodeFacts], Wanted], Steps[list[Replicas]]]
"""(live nodes in order, what is wanted) -> the replicas of each partition, in steps. There are at least as many nodes as replicas."""


def in_order(nodes: Sequence[str]) -> list[str]:
    """Return the node ids in ascending order: as numbers if all are numbers, else as text."""
    if all(node.isascii() and node.isdigit() for node in nodes):
        return sorted(nodes, key=lambda node: (int(node), node))
    return sorted(nodes)


def ordered(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Return ``nodes`` in the order of their ids."""
    by_id = {node.node_id: node for node in nodes}
    return [by_id[node_id] for node_id in in_order(list(by_id))]


class PlacementError(ConfigError):
    """The request for a placement is invalid. The text says why. Correct the request."""

    code = "PLACEMENT"


class NoRoomError(PlacementError):
    """The nodes have no room for more partitions. Add nodes, delete streams, or raise the limit of open files of the nodes."""

    code = "NO_ROOM"
    retryable = True


class NotEnoughNodesError(PlacementError):
    """There are fewer nodes than replicas. Start more nodes, or use fewer replicas."""

    code = "NOT_ENOUGH_NODES"
    retryable = True

    def __init__(self, missing: int) -> None:
        super().__init__(f"not enough nodes: {missing} more needed")
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Defect:
    """One error in a manual assignment."""

    entry: int
    """Index in the list, from 0. -1: the list itself."""
    rule: str
    """Rule that it breaks."""


class ManualError(PlacementError):
    """An assignment by hand is invalid. ``defects``: all errors. The text names each with its entry."""

    def __init__(self, defects: Sequence[Defect]) -> None:
        entries: dict[str, list[int]] = {}
        for defect in defects:
            entries.setdefault(defect.rule, []).append(defect.entry)
        super().__init__("; ".join(_said(rule, numbers) for rule, numbers in entries.items()))
        self.defects = tuple(defects)


def _said(rule: str, entries: Sequence[int]) -> str:
    named = ", ".join(str(entry) for entry in entries if entry >= 0)
    return f"{rule} ({'entry' if len(entries) == 1 else 'entries'} {named})" if named else rule
