"""Which replicas to move so that nodes hold their shares of the BYTES: partitions differ, and so do disks. Pure.

Goal: every node that takes replicas holds about its share of all bytes, by weight, with few moves. Constraint: a partition never has a
node twice, never fewer racks than before, and no node more replicas than it takes.

Algorithm: the node that is furthest above its share gives to the one that is furthest below, as long as that makes the larger of the
two distances smaller: the largest replica that is no more than either distance, or the smallest one if all are more. Nobody gives when
it is within ``TOLERANCE`` of the mean share: small differences are not worth a copy. Of equal replicas those that do not lead go first.

Then who is further below its share than that is given some, in the same way, by those that hold most.

``fewest_bytes``: what is too much on some nodes, beyond the tolerance: no plan that brings them there copies less.

Worked example: a holds 10, 6 and 2 GB, b 4 GB, weights equal: the shares are 11. a is 7 above, b 7 below: the largest replica of at
most 7 GB moves, 6. Then a has 12 and b 10: the next, of 2 GB, would only turn it round. One move.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from liftpy.cluster.placement.facts import NodeFacts, Replicas, ordered
from liftpy.cluster.placement.moves import Key, Move, shares_of
from liftpy.dataclass import dataclass

TOLERANCE = 0.02
_TAKERS_TRIED = 16
"""For each replica-giver in turn; more would hardly find a better one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePlan:
    """All moves, in order."""

    moves: tuple[Move, ...]
    moved_bytes: int
    fewest_bytes: int
    held_bytes: Mapping[str, int]
    """Of each node afterwards, in order."""
    targets: Mapping[Key, Replicas]
    """What the partitions that change are to lie on."""


def plan_sizes(nodes: Sequence[NodeFacts], held: Mapping[Key, Replicas], sizes_bytes: Mapping[Key, int]) -> SizePlan:
    """The moves that even out the bytes; a partition whose size is not in ``sizes_bytes`` stays."""
    return _Weigher(ordered(nodes), held, sizes_bytes).plan()


class _Weigher:
    def __init__(self, nodes: Sequence[NodeFacts], held: Mapping[Key, Replicas], sizes_bytes: Mapping[Key, int]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._takers = {node.node_id: node for node in nodes if node.takes and node.weight > 0}
        self._before = held
        self._replicas = dict(held)
        self._sizes = sizes_bytes
        self._bytes = Counter(dict.fromkeys(self._nodes, 0))
        self._count: Counter[str] = Counter()
        self._on: dict[str, list[tuple[int, bool, Key]]] = {node_id: [] for node_id in self._nodes}
        """(bytes, whether it follows, partition), ascending."""
        for key, replicas in held.items():
            for node_id in replicas:
                self._count[node_id] += 1
                if key in sizes_bytes:
                    self._bytes[node_id] += sizes_bytes[key]
                    self._on.setdefault(node_id, []).append((sizes_bytes[key], node_id != replicas[0], key))
        for entries in self._on.values():
            entries.sort()
        total = sum(self._bytes[node_id] for node_id in self._takers)
        self._share = shares_of(total, list(self._takers.values()), dict.fromkeys(self._takers, float("inf")))
        self._slack = TOLERANCE * total / max(1, len(self._takers))
        self._poorest = sorted((self._above(node_id), node_id) for node_id in self._takers)
        self._moves: list[Move] = []
        self._moved_bytes = 0

    def plan(self) -> SizePlan:
        fewest = sum(max(0.0, self._above(n) - self._slack) for n in self._takers)
        givers = [(-self._above(n), n) for n in self._takers]
        heapify(givers)
        while givers:
            above, giver = heappop(givers)
            if -above != self._above(giver) or -above <= self._slack:
                continue
            taker = self._give(giver)
            if taker is None:
                continue  # nothing of it helps
            for node_id in (giver, taker):
                heappush(givers, (-self._above(node_id), node_id))
        self._fill()
        changed = {key: replicas for key, replicas in self._replicas.items() if replicas != self._before[key]}
        return SizePlan(
            moves=tuple(self._moves),
            moved_bytes=self._moved_bytes,
            fewest_bytes=round(fewest),
            held_bytes={node_id: self._bytes[node_id] for node_id in self._nodes},
            targets=changed,
        )

    def _fill(self) -> None:
        """Nobody holds much too much any more; who holds much too little still is given some by those that hold most."""
        given_up: set[str] = set()
        while True:
            poor = next((n for above, n in self._poorest if n not in given_up), "")
            if not poor or -self._above(poor) <= self._slack:
                return
            rich = (n for above, n in self._poorest[: -_TAKERS_TRIED - 1 : -1] if above > self._above(poor))
            if not any(self._gives(n, poor) for n in rich):
                given_up.add(poor)

    def _gives(self, giver: str, taker: str) -> bool:
        entry = self._best(giver, taker, self._above(giver), -self._above(taker))
        if entry is not None:
            self._move(entry, giver, taker)
        return entry is not None

    def _above(self, node_id: str) -> float:
        return self._bytes[node_id] - self._share[node_id]

    def _give(self, giver: str) -> str | None:
        """Move one replica of ``giver`` to one of those that are furthest below their share; who it was."""
        for above, taker in self._poorest[:_TAKERS_TRIED]:
            if above >= 0:
                break
            if self._gives(giver, taker):
                return taker
        return None

    def _best(self, giver: str, taker: str, too_much: float, too_little: float) -> tuple[int, bool, Key] | None:
        entries, node = self._on[giver], self._takers[taker]
        if node.budget and self._count[taker] >= node.budget:
            return None
        at = bisect_right(entries, min(too_much, too_little), key=lambda entry: entry[0])
        for numbers in (range(at - 1, -1, -1), range(at, len(entries))):
            for number in numbers:
                size, follows, key = entries[number]
                if max(abs(too_much - size), abs(too_little - size)) >= max(too_much, too_little):
                    break  # it is too small to help, or too large, and so are those that come after it
                if taker not in self._replicas[key] and self._keeps_racks(key, giver, taker):
                    return size, follows, key
        return None

    def _keeps_racks(self, key: Key, out: str, into: str) -> bool:
        def racks(replicas: Sequence[str]) -> int:
            return len({self._nodes[n].rack if n in self._nodes else "" for n in replicas})

        replicas = self._replicas[key]
        return racks(replicas) <= racks([into if n == out else n for n in replicas])

    def _move(self, entry: tuple[int, bool, Key], out: str, into: str) -> None:
        size, follows, key = entry
        self._on[out].remove(entry)
        entries = self._on[into]
        entries.insert(bisect_right(entries, entry), entry)
        self._replicas[key] = tuple(into if n == out else n for n in self._replicas[key])
        for node_id, step in ((out, -size), (into, size)):
            self._poorest.remove((self._above(node_id), node_id))
            self._bytes[node_id] += step
            insort(self._poorest, (self._above(node_id), node_id))
        self._count[out] -= 1
        self._count[into] += 1
        self._moved_bytes += size
        self._moves.append(Move(stream=key[0], partition=key[1], out=out, into=into, leads=not follows))
