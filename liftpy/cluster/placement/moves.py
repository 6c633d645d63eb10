"""Which replicas to move so that nodes hold their shares: when nodes have joined, are to leave, or weigh something else. Pure.

Goal: every node that stays holds its share, by weight, to within one replica; nodes that leave hold nothing; and as few replicas
move as that takes, for each is a copy of a log. Constraint: a partition never has a node twice, never fewer racks than before, and
no node more than it takes. Moves of one partition are done one after the other, in the order given.

Algorithm: let T be all replicas that lie on nodes that count (those that stay and those that leave), and a node's share T times its
weight over all weights, at most one replica of each partition, what is too much for it going to the others. A node may hold its
share rounded down or up. First whoever leaves gives everything away, then whoever holds more than its share rounded up gives the
rest, then those that hold too little still are given one each by those that are at the upper bound. A replica goes to who has least
for its weight, among those that may take it; replicas that do not lead go first.

``fewest`` is a lower bound: no way to such shares moves fewer than what is too much on some nodes, or too little on others.

Worked example: a, b, c hold 4 partitions of 3 replicas, 4 each; d joins. Each share is 3; a, b, c give one each to d: 3 moves, and
``fewest`` is 3. Now a is to leave: its 3 go to where they are not yet, one each to b, c, d: 3 moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, floor

from liftpy.cluster.placement.facts import NodeFacts, Replicas, ordered
from liftpy.dataclass import dataclass

Key = tuple[str, int]
"""(stream, partition)."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One swap: a copy on ``into`` takes the place of the one on ``out``."""

    stream: str
    partition: int
    out: str
    into: str
    leads: bool
    """``out`` is the preferred leader: leadership goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """All moves, in order."""

    moves: tuple[Move, ...]
    fewest: int
    """No plan with these shares has fewer."""
    stuck: tuple[Key, ...]
    """Partitions that a leaving node keeps: nobody may take them."""
    held: Mapping[str, int]
    """Replicas of each node afterwards, in order."""

    def targets(self, held: Mapping[Key, Replicas]) -> dict[Key, Replicas]:
        """What the partitions that change are to lie on; ``held``: as it was given to the plan."""
        targets: dict[Key, Replicas] = {}
        for move in self.moves:
            key = (move.stream, move.partition)
            targets[key] = tuple(move.into if n == move.out else n for n in targets.get(key, held[key]))
        return {key: target for key, target in targets.items() if target != held[key]}


def shares_of(total: float, takers: Sequence[NodeFacts], most: Mapping[str, float]) -> dict[str, float]:
    """What each of ``takers`` is to hold of ``total``, by weight; who can't hold its share (``most``) holds what it can, and the others
    share the rest."""
    shares: dict[str, float] = {}
    open_, left = {node.node_id: node.weight for node in takers}, float(total)
    while open_:
        weights = sum(open_.values())
        full = {n: most[n] for n, weight in open_.items() if left * weight / weights > most[n]}
        if not full:
            return shares | {n: left * weight / weights for n, weight in open_.items()}
        shares |= full
        left -= sum(full.values())
        open_ = {n: weight for n, weight in open_.items() if n not in full}
    return shares


def bounds_of(share: float) -> tuple[int, int]:
    """A share, rounded down and up."""
    return floor(share + _ROUNDING), ceil(share - _ROUNDING)


def plan_moves(nodes: Sequence[NodeFacts], held: Mapping[Key, Replicas], leaving: Collection[str] = ()) -> MovePlan:
    """The moves that even out what ``nodes`` hold (``held``: partition -> replicas, preferred leader first).

    Nodes that are not live neither give nor take, but for those in ``leaving``, which give everything.
    """
    gone = frozenset(leaving) | {node.node_id for node in nodes if node.leaving}
    return _Mover(ordered(nodes), held, gone).plan()


class _Mover:
    def __init__(self, nodes: Sequence[NodeFacts], held: Mapping[Key, Replicas], leaving: frozenset[str]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._replicas = dict(held)
        self._leaving = leaving
        self._takers = [n for n in nodes if n.takes and n.weight > 0 and n.node_id not in leaving]
        self._on: dict[str, list[Key]] = {node.node_id: [] for node in nodes}
        for key in sorted(held):
            for node_id in held[key]:
                self._on.setdefault(node_id, []).append(key)
        self._count = {node_id: len(keys) for node_id, keys in self._on.items()}
        self._low: dict[str, int] = {}
        self._high: dict[str, int] = {}
        self._moves: list[Move] = []
        self._stuck: list[Key] = []

    def plan(self) -> MovePlan:
        givers = [n for n in self._nodes if n in self._leaving or (self._nodes[n].live and n not in self._shares())]
        self._bound(givers)
        too_much = sum(max(0, self._count[n] - high) for n, high in self._high.items())
        too_little = sum(max(0, low - self._count[n]) for n, low in self._low.items())
        for node_id in sorted(self._high, key=lambda n: (n not in self._leaving, self._high[n] > 0, n)):
            self._give(node_id, self._high[node_id])
        for node_id in sorted(self._low, key=lambda n: (-self._count[n] / self._nodes[n].weight if n in self._low else 0, n)):
            if any(self._count[n] < low for n, low in self._low.items()):
                self._give(node_id, self._low[node_id], to_poor=True)
        return MovePlan(
            moves=tuple(self._moves),
            fewest=max(too_much, too_little),
            stuck=tuple(self._stuck),
            held={node_id: self._count[node_id] for node_id in self._nodes},
        )

    def _shares(self) -> dict[str, float]:
        """Of those that take."""
        total = sum(self._count[n] for n, node in self._nodes.items() if node.live or n in self._leaving)
        return shares_of(total, self._takers, {node.node_id: self._most(node.node_id) for node in self._takers})

    def _most(self, node_id: str) -> int:
        budget = self._nodes[node_id].budget
        return min(len(self._replicas), budget) if budget else len(self._replicas)

    def _bound(self, givers: Sequence[str]) -> None:
        for node_id in givers:
            self._high[node_id] = 0
        for node_id, share in self._shares().items():
            self._low[node_id], self._high[node_id] = bounds_of(share)

    def _give(self, node_id: str, keep: int, *, to_poor: bool = False) -> None:
        """Move replicas away until ``keep`` are left; ``to_poor``: only to nodes below their share."""
        if self._count[node_id] <= keep:
            return
        queue = [(self._count[n.node_id] / n.weight, number) for number, n in enumerate(self._takers)]
        heapify(queue)
        for key in sorted(self._on[node_id], key=lambda key: self._replicas[key][0] == node_id):
            if self._count[node_id] <= keep:
                return
            if node_id not in self._replicas[key]:
                continue  # moved away before
            into = self._taker(queue, key, node_id, self._low if to_poor else self._high)
            if into is None and node_id in self._leaving:  # one that is above its share then gives something else
                into = self._taker(queue, key, node_id, {n.node_id: self._most(n.node_id) for n in self._takers})
            if into is not None:
                self._move(key, node_id, into)
            elif node_id in self._leaving:
                self._stuck.append(key)

    def _taker(self, queue: list[tuple[float, int]], key: Key, out: str, limits: Mapping[str, int]) -> str | None:
        """Who has least for its weight among those that may take it; the queue holds the others, and it with one more."""
        passed: list[tuple[float, int]] = []
        found: str | None = None
        while queue and found is None:
            _, number = heappop(queue)
            node = self._takers[number]
            n, count = node.node_id, self._count[node.node_id]
            if n != out and count < limits[n] and n not in self._replicas[key] and self._keeps_racks(key, out, n):
                found, count = n, count + 1
            passed.append((count / node.weight, number))
        for entry in passed:
            heappush(queue, entry)
        return found

    def _keeps_racks(self, key: Key, out: str, into: str) -> bool:
        replicas = self._replicas[key]
        return len(set(self._racks(replicas))) <= len(set(self._racks(into if n == out else n for n in replicas)))

    def _racks(self, replicas: Iterator[str] | Replicas) -> Iterator[str]:
        return (self._nodes[n].rack if n in self._nodes else "" for n in replicas)

    def _move(self, key: Key, out: str, into: str) -> None:
        replicas = self._replicas[key]
        self._moves.append(Move(stream=key[0], partition=key[1], out=out, into=into, leads=replicas[0] == out))
        self._replicas[key] = tuple(into if n == out else n for n in replicas)
        self._on[into].append(key)
        self._count[out] -= 1
        self._count[into] += 1
