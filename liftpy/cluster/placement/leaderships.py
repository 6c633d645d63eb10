"""Which leaderships to move so that nodes lead their shares: no log is copied, only the order of replicas changes. Pure.

Goal: every node leads its share of the partitions, by weight, to within one, with as few transfers as that takes. Constraint: only a
replica of a partition leads it, and one that is live and not about to leave.

Algorithm: a node's share is that of all partitions that have a leader to choose, at most those that it holds. Whoever leads more than
its share rounded up gives to the nearest node that leads less: one that follows it in a partition, else over others, each of which
takes one partition and gives one (a shortest path, so that it costs the fewest transfers). Then those that lead less than their share
rounded down are given to, by the nearest that leads more. ``fewest``: what is too much on some nodes, or too little on others; a node
may lead less than its share where no path leads to it.

Worked example: a leads 4 partitions with the follower b, b leads 1 with the follower c, c leads none; each share is 5/3, so 1 or 2.
a gives one to b (1 transfer), then one more over b to c: a's to b, and b's to c (2 transfers). Then a leads 2, b 2, c 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from liftpy.cluster.placement.facts import NodeFacts, Replicas, ordered
from liftpy.cluster.placement.moves import Key, bounds_of, shares_of
from liftpy.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One leadership."""

    stream: str
    partition: int
    out: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipPlan:
    """All transfers, by partition."""

    transfers: tuple[Transfer, ...]
    fewest: int
    """No plan with these shares has fewer."""
    led: Mapping[str, int]
    """Partitions that each node leads afterwards, in order."""

    def targets(self, held: Mapping[Key, Replicas]) -> dict[Key, Replicas]:
        """The replicas of the partitions that change, the new leader first; ``held``: as it was given to the plan."""
        return {
            (t.stream, t.partition): (t.into, *(n for n in held[t.stream, t.partition] if n != t.into)) for t in self.transfers
        }


def plan_leaderships(nodes: Sequence[NodeFacts], held: Mapping[Key, Replicas]) -> LeadershipPlan:
    """The transfers that even out who leads (``held``: partition -> replicas, preferred leader first)."""
    return _Evening(ordered(nodes), held).plan()


class _Evening:
    def __init__(self, nodes: Sequence[NodeFacts], held: Mapping[Key, Replicas]) -> None:
        self._nodes = [node.node_id for node in nodes]
        takers = {node.node_id: node for node in nodes if node.takes and node.weight > 0}
        self._held = {key: [n for n in replicas if n in takers] for key, replicas in held.items()}
        self._leader = {key: replicas[0] for key, replicas in held.items()}
        self._led: dict[str, dict[Key, None]] = {node_id: {} for node_id in (*self._nodes, *sorted(set(self._leader.values())))}
        most = dict.fromkeys(takers, 0)
        total = 0
        for key in sorted(held):
            self._led[self._leader[key]][key] = None
            total += bool(self._held[key])
            for node_id in self._held[key]:
                most[node_id] += 1
        shares = shares_of(total, list(takers.values()), most)
        self._low = {node_id: bounds_of(share)[0] for node_id, share in shares.items()}
        self._high = {node_id: bounds_of(share)[1] for node_id, share in shares.items()}

    def plan(self) -> LeadershipPlan:
        before = dict(self._leader)
        fewest = max(
            sum(max(0, sum(map(self._may_go, led)) - self._high.get(n, 0)) for n, led in self._led.items()),
            sum(max(0, low - len(self._led[n])) for n, low in self._low.items()),
        )
        for node_id in sorted(self._led):
            while len(self._led[node_id]) > self._high.get(node_id, 0):
                if not (self._pass_on(node_id, self._is_poor) or self._pass_on(node_id, self._has_room)):
                    break
        stuck = False
        while not stuck and any(self._is_poor(n) for n in self._low):
            rich = sorted(
                (n for n in self._led if len(self._led[n]) > self._low.get(n, 0)), key=lambda n: (-len(self._led[n]), n)
            )
            stuck = not any(self._pass_on(n, self._is_poor) for n in rich)
        transfers = tuple(
            Transfer(stream=key[0], partition=key[1], out=before[key], into=self._leader[key])
            for key in sorted(before)
            if before[key] != self._leader[key]
        )
        return LeadershipPlan(transfers=transfers, fewest=fewest, led={n: len(self._led[n]) for n in self._nodes})

    def _may_go(self, key: Key) -> bool:
        return bool(self._held[key])

    def _is_poor(self, node_id: str) -> bool:
        return len(self._led[node_id]) < self._low.get(node_id, 0)

    def _has_room(self, node_id: str) -> bool:
        return len(self._led[node_id]) < self._high.get(node_id, 0)

    def _pass_on(self, source: str, wanted: Callable[[str], bool]) -> bool:
        """Give one leadership of ``source`` to the nearest node that is ``wanted``, over others if it must be; whether there is one."""
        came: dict[str, tuple[str, Key]] = {}
        queue = deque([source])
        while queue:
            giver = queue.popleft()
            for key in self._led[giver]:
                for node_id in self._held[key]:
                    if node_id in (source, giver) or node_id in came:
                        continue
                    came[node_id] = (giver, key)
                    if wanted(node_id):
                        self._follow(source, node_id, came)
                        return True
                    queue.append(node_id)
        return False

    def _follow(self, source: str, node_id: str, came: Mapping[str, tuple[str, Key]]) -> None:
        while node_id != source:
            giver, key = came[node_id]
            del self._led[giver][key]
            self._led[node_id][key] = None
            self._leader[key] = node_id
            node_id = giver
