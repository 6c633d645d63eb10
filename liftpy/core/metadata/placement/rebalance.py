"""Plans moves of replicas and leaderships so that each node has its share. Pure.

Moves by number of replicas: after nodes were added, drained or got another weight.

Goal: every node that stays has its share of the replicas, by weight, to within one replica. Nodes that leave have none. As few
replicas move as possible, because each move copies a log. Constraint: a partition never has a node twice, never has fewer racks than
before, and no node gets more than its budget. Moves of one partition run one after the other, in the given order.

Algorithm: let T be the number of replicas on all nodes that count (those that stay and those that leave). A node's share is T times its
weight divided by all weights, at most one replica of each partition. The excess over that limit goes to the other nodes. A node may
have its share rounded down or up.

1. Nodes that leave give all their replicas away.
2. Nodes above their share rounded up give the excess away.
3. Nodes that are still below their share rounded down get one replica each from nodes at the upper bound.

A replica goes to the allowed node with the fewest replicas for its weight. Replicas that do not lead move first. ``fewest`` is a lower
bound: no plan with such shares moves fewer replicas than the total excess, or the total lack.

Worked example: a, b and c hold 4 partitions of 3 replicas, 4 replicas each. d joins. Each share is 3. a, b and c give one replica each
to d: 3 moves, and ``fewest`` is 3. Now a leaves: its 3 replicas go to nodes that do not have these partitions, one each to b, c and d:
3 moves.

Choice of one node (``DestinationNodes``): for the replica of a lost or leaving node, and for another replication factor.

Goal: the replica goes to the node with the fewest replicas for its weight, and nothing else moves. Constraint: a partition never has a
node twice, and no node gets more than its budget. A node of a rack that the partition does not have yet is preferred. Without one, a
second replica in a rack is better than none. Only a stream with the policy ``rack-strict`` waits for a node of another rack.

Algorithm: the nodes are in a queue by replicas per weight, including replicas that this plan gave them. The first node that may take
the replica and has a new rack gets it. If there is none, the first node that may take it gets it. If a partition has too many
replicas, the leader never leaves. A replica outside the ISR leaves first, then one that shares its rack, then one on the node
with most replicas for its weight.

Worked example: a (rack x), b (y) and c (z) hold a partition. c is lost. d (x) has 3 replicas, e (z) has 5. e gets the replica, because
a and b are not in rack z. Without e, d gets it. With ``rack-strict`` the partition would wait.

Leaderships: no log is copied, only the order of replicas changes.

Goal: every node leads its share of the partitions, by weight, to within one, with as few transfers as possible. Constraint: only a live
replica of a partition that is not about to leave can lead it.

Algorithm: a node's share is computed over all partitions with a choice of leaders, at most the partitions that it holds. A node that
leads more than its share rounded up gives to the nearest node that leads less. The nearest node follows it in a partition. Otherwise
the path goes over other nodes, each of which gets one partition and gives one. A shortest path needs the fewest transfers. Then nodes
that lead less than their share rounded down get leaderships from the nearest node that leads more. ``fewest``: the total excess, or the
total lack. A node may lead less than its share if no path leads to it.

Worked example: a leads 4 partitions with the follower b, b leads 1 with the follower c, c leads none. Each share is 5/3, so 1 or 2. a
gives one to b (1 transfer), then one over b to c: a's to b, and b's to c (2 transfers). Then a leads 2, b 2, c 1.

Moves by bytes: partitions have different sizes, and so have disks.

Goal: every node that accepts replicas has about its share of all bytes, by weight, with few moves. Constraint: a partition never has a
node twice, never has fewer racks than before, and no node gets more replicas than its budget.

Algorithm: the node that is furthest above its share gives to the node that is furthest below, while that makes the larger of the two
distances smaller. It gives the largest replica that is no larger than either distance, or the smallest one if all are larger. A node
within ``TOLERANCE`` of the mean share gives nothing, because a small difference is not worth a copy. Of equal replicas, those that do
not lead move first. Then nodes that are further below their share than the tolerance get replicas in the same way, from the nodes with
most bytes. ``fewest_bytes``: the excess beyond the tolerance. No plan that reaches the shares copies less.

Worked example: a holds 10, 6 and 2 GB, b 4 GB, with equal weights. Each share is 11 GB. a is 7 GB above, b 7 GB below. The largest
replica of at most 7 GB moves, 6 GB. Then a has 12 and b 10 GB. A move of 2 GB would only exchange the roles. So there is one move.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, floor

from liftpy.core.metadata.placement.facts import NodeFacts, Replicas, sort_by_id

Key = tuple[str, int]
"""Key of a partition: (stream name, partition number)."""
_ROUNDING = 1e-9
RACK_STRICT = "rack-strict"
TOLERANCE = 0.02
_MAX_RECIPIENTS_TRIED = 16
"""Number of receiving nodes that are tried for each giving node. More tries rarely find a better move."""


def _keeps_racks(nodes: Mapping[str, NodeFacts], replicas: Sequence[str], out: str, into: str) -> bool:
    def count(members: Iterable[str]) -> int:
        return len({nodes[node_id].rack if node_id in nodes else "" for node_id in members})

    return count(replicas) <= count(into if node_id == out else node_id for node_id in replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One replica to move: the node ``into`` gets a copy, then the node ``out`` loses its replica.

    ``leads``: True if ``out`` is the preferred leader.
    """

    stream: str
    partition: int
    out: str
    into: str
    leads: bool
    """True if ``out`` is the preferred leader. Its leadership is transferred first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """All moves of a plan, in order."""

    moves: tuple[Move, ...]
    fewest: int
    """Lower bound of the number of moves for the shares of this plan."""
    stuck: tuple[Key, ...]
    """Partitions that a drained node keeps, because no other node may take them."""
    held: Mapping[str, int]
    """Node id -> number of its replicas after the plan, in order."""

    def targets(self, replica_sets: Mapping[Key, Replicas]) -> dict[Key, Replicas]:
        """Return the partitions that the plan changes, with their replicas after it.

        ``replica_sets``: replicas of each partition before it, as they were passed to ``plan_moves``.
        """
        targets: dict[Key, Replicas] = {}
        for move in self.moves:
            key = (move.stream, move.partition)
            targets[key] = tuple(move.into if n == move.out else n for n in targets.get(key, replica_sets[key]))
        return {key: target for key, target in targets.items() if target != replica_sets[key]}


def shares_of(total: float, takers: Sequence[NodeFacts], most: Mapping[str, float]) -> dict[str, float]:
    """Divide ``total`` among the nodes ``takers`` by weight. Return the share of each node, by its id.

    ``most``: maximum share of each node. A node whose share would be larger gets its maximum. The others divide the rest.
    """
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
    """Return (``share`` rounded down, ``share`` rounded up)."""
    return floor(share + _ROUNDING), ceil(share - _ROUNDING)


def plan_moves(nodes: Sequence[NodeFacts], replica_sets: Mapping[Key, Replicas], leaving: Collection[str] = ()) -> MovePlan:
    """Return the moves that balance the number of replicas on ``nodes``.

    ``replica_sets``: replicas of each partition, preferred leader first. Nodes that are not live neither give nor take replicas,
    except nodes in ``leaving``, which give all their replicas away.
    """
    leaving_nodes = frozenset(leaving) | {node.node_id for node in nodes if node.leaving}
    return _ReplicaBalancer(sort_by_id(nodes), replica_sets, leaving_nodes).plan()


class _ReplicaBalancer:
    def __init__(self, nodes: Sequence[NodeFacts], replica_sets: Mapping[Key, Replicas], leaving: frozenset[str]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._replicas = dict(replica_sets)
        self._leaving = leaving
        self._recipients = [n for n in nodes if n.takes and n.weight > 0 and n.node_id not in leaving]
        self._on: dict[str, list[Key]] = {node.node_id: [] for node in nodes}
        for key in sorted(replica_sets):
            for node_id in replica_sets[key]:
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
            self._move_replicas_away(node_id, self._high[node_id])
        for node_id in sorted(self._low, key=lambda n: (-self._count[n] / self._nodes[n].weight if n in self._low else 0, n)):
            if any(self._count[n] < low for n, low in self._low.items()):
                self._move_replicas_away(node_id, self._low[node_id], only_below_share=True)
        return MovePlan(
            moves=tuple(self._moves),
            fewest=max(too_much, too_little),
            stuck=tuple(self._stuck),
            held={node_id: self._count[node_id] for node_id in self._nodes},
        )

    def _shares(self) -> dict[str, float]:
        total = sum(self._count[n] for n, node in self._nodes.items() if node.live or n in self._leaving)
        return shares_of(total, self._recipients, {node.node_id: self._most(node.node_id) for node in self._recipients})

    def _most(self, node_id: str) -> int:
        budget = self._nodes[node_id].budget
        return min(len(self._replicas), budget) if budget else len(self._replicas)

    def _bound(self, givers: Sequence[str]) -> None:
        for node_id in givers:
            self._high[node_id] = 0
        for node_id, share in self._shares().items():
            self._low[node_id], self._high[node_id] = bounds_of(share)

    def _move_replicas_away(self, node_id: str, keep: int, *, only_below_share: bool = False) -> None:
        """Move replicas away from a node until it has ``keep`` of them.

        If ``only_below_share`` is True, only nodes below their share may take them.
        """
        if self._count[node_id] <= keep:
            return
        queue = [(self._count[n.node_id] / n.weight, number) for number, n in enumerate(self._recipients)]
        heapify(queue)
        for key in sorted(self._on[node_id], key=lambda key: self._replicas[key][0] == node_id):
            if self._count[node_id] <= keep:
                return
            if node_id not in self._replicas[key]:
                continue  # moved away before
            into = self._find_recipient(queue, key, node_id, self._low if only_below_share else self._high)
            if into is None and node_id in self._leaving:  # one that is above its share then gives something else
                into = self._find_recipient(queue, key, node_id, {n.node_id: self._most(n.node_id) for n in self._recipients})
            if into is not None:
                self._move(key, node_id, into)
            elif node_id in self._leaving:
                self._stuck.append(key)

    def _find_recipient(self, queue: list[tuple[float, int]], key: Key, out: str, limits: Mapping[str, int]) -> str | None:
        """Return the node that takes the replica of partition ``key`` from the node ``out``. None: no node may take it.

        It is the node with the fewest replicas for its weight. ``queue``: heap of nodes by replicas per weight. ``limits``: maximum
        number of replicas per node.
        """
        passed: list[tuple[float, int]] = []
        taker: str | None = None
        while queue and taker is None:
            _, number = heappop(queue)
            node = self._recipients[number]
            n, count = node.node_id, self._count[node.node_id]
            if (
                n != out
                and count < limits[n]
                and n not in self._replicas[key]
                and _keeps_racks(self._nodes, self._replicas[key], out, n)
            ):
                taker, count = n, count + 1
            passed.append((count / node.weight, number))
        for entry in passed:
            heappush(queue, entry)
        return taker

    def _move(self, key: Key, out: str, into: str) -> None:
        replicas = self._replicas[key]
        self._moves.append(Move(stream=key[0], partition=key[1], out=out, into=into, leads=replicas[0] == out))
        self._replicas[key] = tuple(into if n == out else n for n in replicas)
        self._on[into].append(key)
        self._count[out] -= 1
        self._count[into] += 1


class DestinationNodes:
    """Nodes that may take replicas: they are live, have a weight above 0, and are not drained.

    ``replica_counts``: number of replicas of each node, including those that move to the node, without those that leave it.
    """

    def __init__(self, nodes: Sequence[NodeFacts], replica_counts: Mapping[str, int]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._order = [node for node in nodes if node.takes and node.weight > 0]
        self._number = {node.node_id: number for number, node in enumerate(self._order)}
        self._held = Counter(replica_counts)
        self._has_racks = any(node.rack for node in nodes)
        self._queue = [(self._load(node.node_id), number) for number, node in enumerate(self._order)]
        """Heap of (load, node). A changed load adds another entry. An entry with an outdated load is dropped when it is read."""
        heapify(self._queue)

    @property
    def count(self) -> int:
        return len(self._order)

    def rack(self, node_id: str) -> str:
        node = self._nodes.get(node_id)
        return node.rack if node is not None else ""

    def choose(self, remaining: Collection[str], never: Collection[str] = (), *, strictly: bool = False) -> str | None:
        """Choose the node for one more replica of a partition, and count the replica there. None: no node may take it.

        ``remaining``: nodes with the other replicas. ``never``: excluded nodes. ``strictly``: True to require a rack that the other
        replicas do not have.
        """
        racks = {self.rack(node_id) for node_id in remaining} if self._has_racks else set[str]()
        passed: list[tuple[float, int]] = []
        second = choice = ""
        while self._queue and not choice:
            load, number = heappop(self._queue)
            node = self._order[number]
            if load != self._load(node.node_id) or (load, number) in passed[-1:]:
                continue
            passed.append((load, number))
            if node.node_id in remaining or node.node_id in never or self._is_full(node):
                continue
            if not self._has_racks or node.rack not in racks:
                choice = node.node_id
            second = second or node.node_id
        choice = choice or ("" if strictly else second)
        for entry in passed:
            heappush(self._queue, entry)
        if choice:
            self._count(choice, 1)
        return choice or None

    def replica_to_remove(self, replicas: Replicas, leader: str, isr: Collection[str]) -> str:
        """Return the replica to remove first from a partition with too many replicas. ``replicas`` has at least two."""
        racks = Counter(self.rack(node_id) for node_id in replicas)

        def rank(node_id: str) -> tuple[bool, bool, float, int]:
            return node_id not in isr, racks[self.rack(node_id)] > 1, self._load(node_id), replicas.index(node_id)

        surplus_node = max((node_id for node_id in replicas if node_id != leader), key=rank)
        self._count(surplus_node, -1)
        return surplus_node

    def _load(self, node_id: str) -> float:
        node = self._nodes.get(node_id)
        return self._held[node_id] / node.weight if node is not None and node.weight > 0 else float("inf")

    def _count(self, node_id: str, step: int) -> None:
        self._held[node_id] += step
        if node_id in self._number:
            heappush(self._queue, (self._load(node_id), self._number[node_id]))

    def _is_full(self, node: NodeFacts) -> bool:
        return bool(node.budget) and self._held[node.node_id] >= node.budget


def with_replication_factor(
    replicas: Replicas, factor: int, takers: DestinationNodes, leader: str, isr: Collection[str], policy: str
) -> Replicas | None:
    """Return the replicas changed to ``factor`` members, preferred leader first. None: no node may take one more.

    ``takers``: nodes that may take replicas. ``leader``, ``isr``: leader and ISR of the partition. ``policy``: placement
    policy of its stream.
    """
    now = list(replicas)
    while len(now) < factor:
        more = takers.choose(now, strictly=policy == RACK_STRICT)
        if more is None:
            return None
        now.append(more)
    while len(now) > factor:
        now.remove(takers.replica_to_remove(tuple(now), leader, isr))
    return tuple(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One leadership to transfer, from the node ``out`` to the node ``into``."""

    stream: str
    partition: int
    out: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipPlan:
    """All leadership transfers of a plan, ordered by partition."""

    transfers: tuple[Transfer, ...]
    fewest: int
    """Lower bound of the number of transfers for the shares of this plan."""
    led: Mapping[str, int]
    """Node id -> number of partitions that the node leads after the plan."""

    def targets(self, replica_sets: Mapping[Key, Replicas]) -> dict[Key, Replicas]:
        """Return the replicas of the partitions that the plan changes, new leader first.

        ``replica_sets``: replicas of each partition, as they were passed to ``plan_leaderships``.
        """
        return {
            (t.stream, t.partition): (t.into, *(n for n in replica_sets[t.stream, t.partition] if n != t.into))
            for t in self.transfers
        }


def plan_leaderships(nodes: Sequence[NodeFacts], replica_sets: Mapping[Key, Replicas]) -> LeadershipPlan:
    """Return the transfers that balance the leaderships. ``replica_sets``: replicas of each partition, preferred leader first."""
    return _LeadershipBalancer(sort_by_id(nodes), replica_sets).plan()


class _LeadershipBalancer:
    def __init__(self, nodes: Sequence[NodeFacts], replica_sets: Mapping[Key, Replicas]) -> None:
        self._nodes = [node.node_id for node in nodes]
        takers = {node.node_id: node for node in nodes if node.takes and node.weight > 0}
        self._held = {key: [n for n in replicas if n in takers] for key, replicas in replica_sets.items()}
        self._leader = {key: replicas[0] for key, replicas in replica_sets.items()}
        self._led: dict[str, dict[Key, None]] = {node_id: {} for node_id in (*self._nodes, *sorted(set(self._leader.values())))}
        most = dict.fromkeys(takers, 0)
        total = 0
        for key in sorted(replica_sets):
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
                if not (self._move_along_path(node_id, self._is_below_share) or self._move_along_path(node_id, self._has_room)):
                    break
        stuck = False
        while not stuck and any(self._is_below_share(n) for n in self._low):
            rich = sorted(
                (n for n in self._led if len(self._led[n]) > self._low.get(n, 0)), key=lambda n: (-len(self._led[n]), n)
            )
            stuck = not any(self._move_along_path(n, self._is_below_share) for n in rich)
        transfers = tuple(
            Transfer(stream=key[0], partition=key[1], out=before[key], into=self._leader[key])
            for key in sorted(before)
            if before[key] != self._leader[key]
        )
        return LeadershipPlan(transfers=transfers, fewest=fewest, led={n: len(self._led[n]) for n in self._nodes})

    def _may_go(self, key: Key) -> bool:
        return bool(self._held[key])

    def _is_below_share(self, node_id: str) -> bool:
        return len(self._led[node_id]) < self._low.get(node_id, 0)

    def _has_room(self, node_id: str) -> bool:
        return len(self._led[node_id]) < self._high.get(node_id, 0)

    def _move_along_path(self, source: str, wanted: Callable[[str], bool]) -> bool:
        """Move one leadership from ``source`` to the nearest node for which ``wanted`` is true, over other nodes if needed.

        Return False if there is no such path.
        """
        origins: dict[str, tuple[str, Key]] = {}
        queue = deque([source])
        while queue:
            giver = queue.popleft()
            for key in self._led[giver]:
                for node_id in self._held[key]:
                    if node_id in (source, giver) or node_id in origins:
                        continue
                    origins[node_id] = (giver, key)
                    if wanted(node_id):
                        self._follow(source, node_id, origins)
                        return True
                    queue.append(node_id)
        return False

    def _follow(self, source: str, node_id: str, origins: Mapping[str, tuple[str, Key]]) -> None:
        while node_id != source:
            giver, key = origins[node_id]
            del self._led[giver][key]
            self._led[node_id][key] = None
            self._leader[key] = node_id
            node_id = giver


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePlan:
    """Moves that balance bytes, in order."""

    moves: tuple[Move, ...]
    moved_bytes: int
    fewest_bytes: int
    held_bytes: Mapping[str, int]
    """Node id -> bytes on the node after the plan, in order."""
    targets: Mapping[Key, Replicas]
    """Partition -> its replicas after the plan, for changed partitions."""


def plan_sizes(nodes: Sequence[NodeFacts], replica_sets: Mapping[Key, Replicas], sizes_bytes: Mapping[Key, int]) -> SizePlan:
    """Return the moves that balance the bytes on the nodes.

    ``replica_sets``: replicas of each partition, preferred leader first. ``sizes_bytes``: size of each partition. A partition whose
    size is not known stays.
    """
    return _SizeBalancer(sort_by_id(nodes), replica_sets, sizes_bytes).plan()


class _SizeBalancer:
    def __init__(
        self, nodes: Sequence[NodeFacts], replica_sets: Mapping[Key, Replicas], sizes_bytes: Mapping[Key, int]
    ) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._recipients = {node.node_id: node for node in nodes if node.takes and node.weight > 0}
        self._before = replica_sets
        self._replicas = dict(replica_sets)
        self._sizes = sizes_bytes
        self._bytes = Counter(dict.fromkeys(self._nodes, 0))
        self._count: Counter[str] = Counter()
        self._on: dict[str, list[tuple[int, bool, Key]]] = {node_id: [] for node_id in self._nodes}
        """Node id -> its replicas as (bytes, True for a follower, partition), in ascending order."""
        for key, replicas in replica_sets.items():
            for node_id in replicas:
                self._count[node_id] += 1
                if key in sizes_bytes:
                    self._bytes[node_id] += sizes_bytes[key]
                    self._on.setdefault(node_id, []).append((sizes_bytes[key], node_id != replicas[0], key))
        for entries in self._on.values():
            entries.sort()
        total = sum(self._bytes[node_id] for node_id in self._recipients)
        self._share = shares_of(total, list(self._recipients.values()), dict.fromkeys(self._recipients, float("inf")))
        self._slack = TOLERANCE * total / max(1, len(self._recipients))
        self._poorest = sorted((self._above(node_id), node_id) for node_id in self._recipients)
        self._moves: list[Move] = []
        self._moved_bytes = 0

    def plan(self) -> SizePlan:
        fewest = sum(max(0.0, self._above(n) - self._slack) for n in self._recipients)
        givers = [(-self._above(n), n) for n in self._recipients]
        heapify(givers)
        while givers:
            above, giver = heappop(givers)
            if -above != self._above(giver) or -above <= self._slack:
                continue
            taker = self._move_replica_away(giver)
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
        excluded_nodes: set[str] = set()
        while True:
            poor = next((n for above, n in self._poorest if n not in excluded_nodes), "")
            if not poor or -self._above(poor) <= self._slack:
                return
            rich = (n for above, n in self._poorest[: -_MAX_RECIPIENTS_TRIED - 1 : -1] if above > self._above(poor))
            if not any(self._gives_excess(n, poor) for n in rich):
                excluded_nodes.add(poor)

    def _gives_excess(self, giver: str, taker: str) -> bool:
        entry = self._best(giver, taker, self._above(giver), -self._above(taker))
        if entry is not None:
            self._move(entry, giver, taker)
        return entry is not None

    def _above(self, node_id: str) -> float:
        return self._bytes[node_id] - self._share[node_id]

    def _move_replica_away(self, giver: str) -> str | None:
        """Move one replica of ``giver`` to a node that is far below its share of bytes. Return this node, or None."""
        for above, taker in self._poorest[:_MAX_RECIPIENTS_TRIED]:
            if above >= 0:
                break
            if self._gives_excess(giver, taker):
                return taker
        return None

    def _best(self, giver: str, taker: str, too_much: float, too_little: float) -> tuple[int, bool, Key] | None:
        entries, node = self._on[giver], self._recipients[taker]
        if node.budget and self._count[taker] >= node.budget:
            return None
        at = bisect_right(entries, min(too_much, too_little), key=lambda entry: entry[0])
        for numbers in (range(at - 1, -1, -1), range(at, len(entries))):
            for number in numbers:
                size, follows, key = entries[number]
                if max(abs(too_much - size), abs(too_little - size)) >= max(too_much, too_little):
                    break  # it is too small to help, or too large, and so are those that come after it
                if taker not in self._replicas[key] and _keeps_racks(self._nodes, self._replicas[key], giver, taker):
                    return size, follows, key
        return None

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
