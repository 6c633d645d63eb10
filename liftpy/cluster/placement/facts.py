"""What placement is told: of each node, and of what is to be placed; and what it gives. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from liftpy.cluster.steps import Steps
from liftpy.dataclass import dataclass

Replicas = tuple[str, ...]
"""Node ids of one partition, preferred leader first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node, as it is before anything is placed."""

    node_id: str
    rack: str = ""
    """'': it did not say."""
    weight: float = 1.0
    """Its share, for the policies that weigh; 0: it is given nothing by them."""
    live: bool = True
    """Only live nodes are chosen; others by hand alone, and only where that is allowed."""
    replicas: int = 0
    """That it holds."""
    leaders: int = 0
    """Partitions that it leads."""
    budget: int = 0
    """Replicas that it takes, those that it holds included; 0: any number."""
    leaving: bool = False
    """An operator drains it: nobody gives it anything."""

    @property
    def takes(self) -> bool:
        """Whether it may be given something."""
        return self.live and not self.leaving

    def room(self, unlimited: int) -> int:
        """Replicas that it still takes; ``unlimited`` where it takes any number."""
        return self.budget - self.replicas if self.budget else unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """One entry of a map that was made by hand."""

    partition: int
    replicas: Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be placed: partitions ``first`` to ``first`` + ``partitions`` - 1 of ``stream``."""

    policy: str = ""
    """'': the default one."""
    stream: str = ""
    partitions: int
    replication_factor: int
    start: int = 0
    """Index of the first of them in the row of all partitions that were ever placed; of any size."""
    first: int = 0
    """Number of the first one: above 0 where partitions are added."""
    assignment: tuple[Assigned, ...] = ()
    """Of ``manual``."""
    allow_offline: bool = False
    """``manual`` may name nodes that are not live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A map."""

    replicas: list[Replicas]
    """Of each partition, in order."""
    next_start: int
    """The start index of what is placed next."""
    notes: tuple[str, ...] = ()
    """What the caller may not expect, for people."""


Policy = Callable[[Sequence[NodeFacts], Wanted], Steps[list[Replicas]]]
"""(live nodes in order, what is wanted) -> the replicas of each partition, in steps. There are at least as many nodes as replicas."""


def in_order(nodes: Sequence[str]) -> list[str]:
    """Node ids ascending: as numbers if all of them are, else as text."""
    if all(node.isascii() and node.isdigit() for node in nodes):
        return sorted(nodes, key=lambda node: (int(node), node))
    return sorted(nodes)


def ordered(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """``nodes`` in the order of their ids."""
    by_id = {node.node_id: node for node in nodes}
    return [by_id[node_id] for node_id in in_order(list(by_id))]
