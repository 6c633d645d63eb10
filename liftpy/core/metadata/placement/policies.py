"""The placement policies. Each one computes the replicas of the partitions of a stream. Pure.

Policy ``round-robin``: round robin with gaps.

Goal: every node leads and follows equally many partitions. The partitions that one node leads have different followers, so that the
load of a lost node spreads over all others.

Constraint: the input has only node ids, numbers and a start index. Equal input gives an equal map. The start index is stored, and the
next stream continues where the last one stopped.

Algorithm: let n be the number of nodes, RF the replication factor, G = n - RF + 1 the number of distinct gaps. For the
global index i = start + partition, the gap g = (i div n) mod G is constant for one turn around the ring::

    leader       = nodes[i mod n]
    follower r   = nodes[(i + r + g) mod n]      for r = 1 .. RF - 1

There is one gap, between the leader and its first follower. The leader is never shifted. RF - 1 + g <= n - 1, so the replicas are
distinct. The period is n * G, and in one period every node leads equally often.

Worked example, nodes 0 to 4, RF 3, start 0::

    partition   0      1      2      3      4      5      6         14     15
    gap         0      0      0      0      0      1      1         2      0
    replicas  0 1 2  1 2 3  2 3 4  3 4 0  4 0 1  0 2 3  1 3 4 ... 4 2 3  0 1 2 ...

Source: the replica assignment of Fluvio 0.11 ("round robin with gaps"). ``tests/vectors/placement.json`` has vectors.

Policies ``rack`` and ``rack-strict``: neighbors in one long row of nodes are in different racks.

Goal: the replicas of a partition are on different racks, so that the loss of a rack loses only one of them. Every node leads and
follows equally many partitions.

Algorithm ``rack``, three stages:

1. Matrix: one row per rack, with its nodes in order. Longer rows come first. Equally long rows are ordered by the rack's name.
2. Diagonal: let R be the number of rows and C the length of the longest row. For d = 0 .. C-1, go down the rows r = 0 .. R-1 and take
   the cell ``(r + d) mod C``. A row that is too short is read repeatedly. A node that was taken before is skipped. The result is
   one row of all nodes.
3. Window: partition p has the replicas ``row[(start + p + r) mod n]``, r = 0 .. RF - 1.

If all racks are equally large and RF <= R, every window has RF different racks. Otherwise some windows have fewer.

Algorithm ``rack-strict``: as ``rack``, but a node is skipped if the partition already has its rack. So all replicas are always on
different racks. The price is that a node that is alone in its rack holds more than others. A stream with more replicas than racks is
rejected.

Worked example, racks a: 0, b: 1 2, c: 3 4 5, RF 3: rows c, b, a; diagonals 3 2 0 | 4 1 (0) | 5 (2) (0); the row is 3 2 0 4 1 5::

    partition       0      1      2      3      4      5
    rack          3 2 0  2 0 4  0 4 1  4 1 5  1 5 3  5 3 2
    rack-strict   3 2 0  2 0 4  0 4 1  4 1 0  1 5 0  5 2 0

Source: the rack-aware replica assignment of Fluvio 0.11. ``tests/vectors/placement.json`` has vectors.

Policy ``rendezvous``: weighted highest random weight.

Goal: the replicas of a node depend on its own name and weight, and as little as possible on the other nodes. A node that leaves moves
nothing between the others. A new node takes only the replicas that become its own. Shares are proportional to weights.

Algorithm: for partition p of stream s and node n, let h be BLAKE2b of 8 bytes, big endian, over ``s/p NUL n``. Then::

    score = - weight / ln((h + 0.5) / 2^64)

The nodes with the best scores get the replicas. The best of all is the preferred leader. Equal scores are ordered by id. Weight 0 is
never chosen. If nodes have racks, the best node of each rack comes first, so that replicas are on different racks if there are enough.
Nodes without a rack count as one rack.

Constraint: every controller computes an equal map, on any machine, but logarithms of machines differ in their last bits. So the scores
only sort roughly. Neighbors that are closer than ``CLOSE`` are compared by logarithms of ``DIGITS`` decimal digits, which are equal
everywhere.

A full node is skipped. Cost: one hash per partition and node, about 0.8 us each. 10,000 partitions on 1,000 nodes take 8 s of a core,
in steps.

Source: Thaler and Ravishankar 1998, with logarithmic weights. ``tests/vectors/placement.json`` has vectors.

Policy ``least-loaded``: every replica goes to the node with the fewest replicas.

Goal: nodes with few replicas, or new nodes, are filled first, in proportion to their weights. Leaders are balanced, too.

Algorithm: for each partition in turn, choose the nodes with the fewest replicas per weight, then the fewest leaders, then by id. Among
them, the node with the fewest leaders per weight is the preferred leader (then in the order of choice). The others follow in the order
of choice. Each placement counts for the next one. At the end, a second pass gives a leadership to a follower that would still lead less
than the leader does. Weight 0 is never chosen, and a full node is skipped.

Worked example, nodes a and b of weight 1, c of weight 2, all empty, RF 1: a (0/1, by id), b, c (0/2), c (1/2 is fewer than 1/1), and
so on. c gets half of the replicas.

Policy ``manual``: an assignment by hand.

The policy computes nothing. It checks everything, and names all errors with their entries. Entries come in the order of their
partitions, from the first requested one (0 for a new stream). Every partition has an equal number of distinct replicas on existing
nodes. Nodes that are not live are accepted only if that is allowed.

Source: the replica assignment of Fluvio, its rules and texts. ``tests/vectors/placement.json`` has vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from hashlib import blake2b
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from liftpy.core.base.cooperative_apply import PER_STEP, Steps
from liftpy.core.metadata.placement.facts import (
    AssignmentEntry,
    Defect,
    ManualError,
    NodeFacts,
    NoRoomError,
    PlacementRequest,
    Replicas,
    in_order,
)

CLOSE = 1e-9
"""Relative difference below which scores are compared exactly. Floating-point errors are about 1e-15."""
DIGITS = 60
HASHES_PER_STEP = 5_000
_TWO_64 = 2.0**64
_EXACT = Context(prec=DIGITS)
EMPTY = "no assigned partitions found"


def round_robin(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> Steps[list[Replicas]]:
    """Return the replicas of each partition by the policy ``round-robin``."""
    ids = [node.node_id for node in nodes]
    count, factor = len(ids), wanted.replication_factor
    gaps = count - factor + 1
    placed: list[Replicas] = []
    for index in range(wanted.start, wanted.start + wanted.partitions):
        gap = index // count % gaps
        followers = (ids[(index + r + gap) % count] for r in range(1, factor))
        placed.append((ids[index % count], *followers))
        if len(placed) % PER_STEP == 0:
            yield
    return placed


def rack(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> Steps[list[Replicas]]:
    """Return the replicas of each partition by the policy ``rack``. Every node must have a rack."""
    row = [node.node_id for node in row_of(nodes)]
    count, factor = len(row), wanted.replication_factor
    twice = row + row
    placed: list[Replicas] = []
    for partition in range(wanted.partitions):
        at = (wanted.start + partition) % count
        placed.append(tuple(twice[at : at + factor]))
        if len(placed) % PER_STEP == 0:
            yield
    return placed


def rack_strict(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> Steps[list[Replicas]]:
    """Return the replicas of each partition by the policy ``rack-strict``.

    Every node must have a rack, and there must be at least as many racks as replicas.
    """
    row = row_of(nodes)
    windows: dict[int, Replicas] = {}
    placed: list[Replicas] = []
    for partition in range(wanted.partitions):
        at = (wanted.start + partition) % len(row)
        if at not in windows:
            windows[at] = _window(row, at, wanted.replication_factor)
        placed.append(windows[at])
        if len(placed) % PER_STEP == 0:
            yield
    return placed


def row_of(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Return all nodes in one row, for the policies ``rack`` and ``rack-strict`` (stages 1 and 2).

    Neighbors are in different racks, as far as the sizes of the racks allow.
    """
    racks: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        racks.setdefault(node.rack, []).append(node)
    rows = [racks[name] for name in sorted(racks, key=lambda name: (-len(racks[name]), name))]
    columns = len(rows[0])
    first_nodes: dict[str, NodeFacts] = {}
    for diagonal in range(columns):
        for number, row in enumerate(rows):
            node = row[(number + diagonal) % columns % len(row)]
            first_nodes.setdefault(node.node_id, node)
    return list(first_nodes.values())


def _window(row: Sequence[NodeFacts], at: int, factor: int) -> Replicas:
    chosen: dict[str, str] = {}
    for step in range(len(row)):
        node = row[(at + step) % len(row)]
        if node.rack not in chosen:
            chosen[node.rack] = node.node_id
            if len(chosen) == factor:
                break
    return tuple(chosen.values())


def rendezvous(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> Steps[list[Replicas]]:
    """Return the replicas of each partition by the policy ``rendezvous``. Every weight must be above 0."""
    spread = any(node.rack for node in nodes)
    room = {node.node_id: node.room(wanted.partitions) for node in nodes}
    ranking = _Ranking(nodes, wanted.stream)
    placed: list[Replicas] = []
    hashes = 0
    for partition in range(wanted.first, wanted.first + wanted.partitions):
        taking = (node for node in ranking.best_first(partition) if room[node.node_id] > 0)
        replicas = _spread(taking, wanted.replication_factor) if spread else _first(taking, wanted.replication_factor)
        if len(replicas) < wanted.replication_factor:
            raise NoRoomError(f"fewer than {wanted.replication_factor} nodes have room for partition {partition}")
        for node_id in replicas:
            room[node_id] -= 1
        placed.append(replicas)
        hashes += len(nodes)
        if hashes >= HASHES_PER_STEP:
            hashes = 0
            yield
    return placed


def _first(best_first: Iterator[NodeFacts], factor: int) -> Replicas:
    return tuple(node.node_id for node, _ in zip(best_first, range(factor), strict=False))


def _spread(best_first: Iterator[NodeFacts], factor: int) -> Replicas:
    """Return ``factor`` nodes: the best node of each rack, then the best other nodes if there are too few racks.

    ``best_first``: nodes in the order of their scores.
    """
    racks: dict[str, str] = {}
    others: list[str] = []
    for node in best_first:
        if node.rack in racks:
            others.append(node.node_id)
            continue
        racks[node.rack] = node.node_id
        if len(racks) == factor:
            break
    return (*racks.values(), *others)[:factor]


class _Ranking:
    """Ranks the nodes for each partition of a stream by their rendezvous score, best first."""

    def __init__(self, nodes: Sequence[NodeFacts], stream: str) -> None:
        self._nodes = nodes
        self._stream = stream
        self._names = [b"\0" + node.node_id.encode() for node in nodes]
        self._weights = np.array([node.weight for node in nodes], np.float64)

    def best_first(self, partition: int) -> Iterator[NodeFacts]:
        hashes = self._hashes(partition)
        scores = _scores(hashes, self._weights)
        sorted_order = np.argsort(-scores, kind="stable")
        order: list[int] = sorted_order.tolist()
        ranked: list[float] = scores[sorted_order].tolist()
        begin = 0
        while begin < len(order):  # what is so close that it may be the other way round is sorted exactly
            end = begin + 1
            while end < len(order) and ranked[end - 1] - ranked[end] <= CLOSE * ranked[end - 1]:
                end += 1
            close = order[begin:end]
            if len(close) > 1:
                close.sort(key=lambda n: (-_exact_score(int(hashes[n]), self._nodes[n].weight), n))
            yield from (self._nodes[n] for n in close)
            begin = end

    def _hashes(self, partition: int) -> npt.NDArray[np.uint64]:
        partition_name = f"{self._stream}/{partition}".encode()
        digests = b"".join([blake2b(partition_name + name, digest_size=8).digest() for name in self._names])
        return np.frombuffer(digests, ">u8").astype(np.uint64)


def _scores(hashes: npt.NDArray[np.uint64], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the rendezvous score of each node from its hash and weight.

    The best hashes are near 2^64. The logarithm is computed from the distance to 2^64, because it would lose all digits
    otherwise.
    """
    from_above = (np.bitwise_not(hashes).astype(np.float64) + 0.5) / _TWO_64
    below = np.minimum((hashes.astype(np.float64) + 0.5) / _TWO_64, 0.5)
    logarithms = np.where(from_above < 0.5, np.log1p(-np.minimum(from_above, 0.5)), np.log(below))
    scores: npt.NDArray[np.float64] = -weights / logarithms
    return scores


def _exact_score(hashed: int, weight: float) -> Decimal:
    share = _EXACT.divide(Decimal(2 * hashed + 1), Decimal(2**65))
    return -_EXACT.divide(Decimal(weight), _EXACT.ln(share))


def least_loaded(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> Steps[list[Replicas]]:
    """Return the replicas of each partition by the policy ``least-loaded``. Every weight must be above 0."""
    replicas = [node.replicas for node in nodes]
    leaders = [node.leaders for node in nodes]
    rooms = [node.room(wanted.partitions) for node in nodes]
    weights = [node.weight for node in nodes]
    queue = [(replicas[n] / weights[n], leaders[n], n) for n in range(len(nodes)) if rooms[n] > 0]
    heapify(queue)
    placed: list[list[int]] = []
    for partition in range(wanted.first, wanted.first + wanted.partitions):
        if len(queue) < wanted.replication_factor:
            raise NoRoomError(f"fewer than {wanted.replication_factor} nodes have room for partition {partition}")
        chosen = [heappop(queue)[2] for _ in range(wanted.replication_factor)]
        _lead(chosen, min(chosen, key=lambda n: leaders[n] / weights[n]))
        leaders[chosen[0]] += 1
        for n in chosen:
            replicas[n] += 1
            rooms[n] -= 1
            if rooms[n] > 0:
                heappush(queue, (replicas[n] / weights[n], leaders[n], n))
        placed.append(chosen)
        if len(placed) % PER_STEP == 0:
            yield
    for chosen in placed:
        leader = chosen[0]
        least = min(chosen, key=lambda n: (leaders[n] + 1) / weights[n])
        if (leaders[least] + 1) / weights[least] < leaders[leader] / weights[leader]:
            _lead(chosen, least)
            leaders[leader] -= 1
            leaders[least] += 1
    return [tuple(nodes[n].node_id for n in chosen) for chosen in placed]


def _lead(chosen: list[int], leader: int) -> None:
    chosen.remove(leader)
    chosen.insert(0, leader)


def manual(nodes: Sequence[NodeFacts], wanted: PlacementRequest) -> list[Replicas]:
    """Return the manual assignment in ``wanted`` if it is valid. Raise ManualError with all its errors.

    ``nodes``: all nodes, live or not.
    """
    defects = [*_shape(wanted), *_nodes({node.node_id: node for node in nodes}, wanted)]
    if defects:
        raise ManualError(sorted(defects, key=lambda defect: defect.entry))
    return [entry.replicas for entry in wanted.assignment]


def _shape(wanted: PlacementRequest) -> Iterator[Defect]:
    entries, first = wanted.assignment, wanted.first
    if not entries:
        yield Defect(-1, EMPTY)
        return
    if entries[0].partition != first:
        yield Defect(0, f"assigned partitions must start with id {first}")
    if not entries[0].replicas:
        yield Defect(0, "assigned replicas must have at least one node id")
    factor = wanted.replication_factor or next((len(entry.replicas) for entry in entries if entry.replicas), 0)
    for number, entry in enumerate(entries):
        if number and entry.partition != entries[number - 1].partition + 1:
            yield Defect(number, "assigned partition ids must be in sequence and without gaps")
        if len(entry.replicas) != factor and (number or entry.replicas):
            yield Defect(number, f"all assigned replicas must have the same number of node ids: {factor}")
        if len(set(entry.replicas)) < len(entry.replicas):
            yield Defect(number, f"duplicate node ids found in {_at(entry)}")


def _nodes(nodes: dict[str, NodeFacts], wanted: PlacementRequest) -> Iterator[Defect]:
    counts: Counter[str] = Counter()
    for number, entry in enumerate(wanted.assignment):
        for node_id in in_order(list(set(entry.replicas))):
            node = nodes.get(node_id)
            if node is None:
                yield Defect(number, f"unknown node id: {node_id} in {_at(entry)}")
                continue
            if not node.live and not wanted.allow_offline:
                yield Defect(number, f"node id: {node_id} is not live, in {_at(entry)}: --allow-offline takes it all the same")
            if node.leaving:
                yield Defect(number, f"node id: {node_id} is being drained, in {_at(entry)}: give it to another one")
            counts[node_id] += 1
            if counts[node_id] > node.room(counts[node_id]):
                yield Defect(number, f"no room on node id: {node_id} in {_at(entry)}: it takes {node.budget} partitions")


def _at(entry: AssignmentEntry) -> str:
    return f"assigned partition with id: {entry.partition}"
