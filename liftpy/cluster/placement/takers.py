"""Who takes one replica more, and who gives one up: for a node that is gone or leaves, and for another replication factor. Pure.

Goal: what must move goes where least is for its weight, and nothing else moves. Constraint: a partition never has a node twice, no node
is given more than it takes, and the racks of a partition stay as many as they can: a node of a rack that the partition has not yet is
preferred to all others. Where there is none, a second replica in a rack is better than none at all; only a stream that was placed
``rack-strict`` waits for a node of another rack.

Algorithm: the nodes stand in a queue by replicas per weight, those that were given out here included. The first that may take it and
has a new rack is taken; if there is none, the first that may take it.

Who gives one up, when there are to be fewer: never the leader; who is outside the ISR first, then who shares its rack with another
replica, then who holds most for its weight.

Worked example: a (rack x), b (y), c (z) hold a partition; c is gone; d (x) holds 3 replicas, e (z) holds 5: e takes it, because z is a
rack that a and b have not. Without e, d takes it. Placed ``rack-strict`` it would wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush

from liftpy.cluster.placement.facts import NodeFacts, Replicas

RACK_STRICT = "rack-strict"


class Takers:
    """The nodes that may take replicas: live, of a weight above 0, not leaving. ``held``: replicas of each node, as placement has to
    count them: those that are on their way to it included, those that are about to leave it not."""

    def __init__(self, nodes: Sequence[NodeFacts], held: Mapping[str, int]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._order = [node for node in nodes if node.takes and node.weight > 0]
        self._number = {node.node_id: number for number, node in enumerate(self._order)}
        self._held = Counter(held)
        self._has_racks = any(node.rack for node in nodes)
        self._queue = [(self._load(node.node_id), number) for number, node in enumerate(self._order)]
        """A node whose load has changed has another entry; the old one is dropped when it is met."""
        heapify(self._queue)

    @property
    def count(self) -> int:
        """How many nodes may take anything."""
        return len(self._order)

    def rack(self, node_id: str) -> str:
        """Where the node stands; '' for one that is not known."""
        node = self._nodes.get(node_id)
        return node.rack if node is not None else ""

    def take(self, kept: Collection[str], never: Collection[str] = (), *, strictly: bool = False) -> str | None:
        """The node for one more replica beside those on ``kept``, and none of ``never``; None: nobody may take it. It is counted."""
        racks = {self.rack(node_id) for node_id in kept} if self._has_racks else set[str]()
        passed: list[tuple[float, int]] = []
        second = found = ""
        while self._queue and not found:
            load, number = heappop(self._queue)
            node = self._order[number]
            if load != self._load(node.node_id) or (load, number) in passed[-1:]:
                continue
            passed.append((load, number))
            if node.node_id in kept or node.node_id in never or self._is_full(node):
                continue
            if not self._has_racks or node.rack not in racks:
                found = node.node_id
            second = second or node.node_id
        found = found or ("" if strictly else second)
        for entry in passed:
            heappush(self._queue, entry)
        if found:
            self._count(found, 1)
        return found or None

    def give_up(self, replicas: Replicas, leader: str, isr: Collection[str]) -> str:
        """Who of ``replicas``, of which there are two at least, is the first to go when there are to be fewer. It is counted."""
        racks = Counter(self.rack(node_id) for node_id in replicas)

        def rank(node_id: str) -> tuple[bool, bool, float, int]:
            return node_id not in isr, racks[self.rack(node_id)] > 1, self._load(node_id), replicas.index(node_id)

        gone = max((node_id for node_id in replicas if node_id != leader), key=rank)
        self._count(gone, -1)
        return gone

    def _load(self, node_id: str) -> float:
        node = self._nodes.get(node_id)
        return self._held[node_id] / node.weight if node is not None and node.weight > 0 else float("inf")

    def _count(self, node_id: str, step: int) -> None:
        self._held[node_id] += step
        if node_id in self._number:
            heappush(self._queue, (self._load(node_id), self._number[node_id]))

    def _is_full(self, node: NodeFacts) -> bool:
        return bool(node.budget) and self._held[node.node_id] >= node.budget


def resized(replicas: Replicas, factor: int, takers: Takers, leader: str, isr: Collection[str], policy: str) -> Replicas | None:
    """``replicas`` with so many members as ``factor`` says, preferred leader first; None: nobody may take one more."""
    now = list(replicas)
    while len(now) < factor:
        more = takers.take(now, strictly=policy == RACK_STRICT)
        if more is None:
            return None
        now.append(more)
    while len(now) > factor:
        now.remove(takers.give_up(tuple(now), leader, isr))
    return tuple(now)
