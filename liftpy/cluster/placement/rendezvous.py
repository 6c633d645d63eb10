"""Placement policy ``rendezvous``: weighted highest random weight.

Goal: what a node holds depends on its own name and weight, and as little as possible on who else is there: a node that goes takes its
own replicas along and moves none between the others; one that comes takes only what becomes its own. Shares are as the weights.

Algorithm: for partition p of stream s and node n, let h be BLAKE2b of 8 bytes, big endian, over ``s/p NUL n``. Then::

    score = - weight / ln((h + 0.5) / 2^64)

The best scores are the replicas, the best of all the preferred leader; equal ones by id. Weight 0 is never chosen. Where nodes have
racks the best of each rack come first, so that replicas are on different racks as far as there are as many; nodes that did not say
where they stand count as one rack.

Constraint: every controller comes to the same map, on any machine, and logarithms differ between machines in their last bits. So the
scores only sort roughly: neighbours that are closer than ``CLOSE`` are compared by logarithms of ``DIGITS`` decimal digits, which are
the same everywhere.

A node that is full is passed over. Cost: a hash per partition and node, some 0.8 us each: 8 s of a core for 10,000 partitions on 1,000
nodes, in steps.

Source: Thaler and Ravishankar 1998, with logarithmic weights; vectors in ``tests/vectors/placement.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from liftpy.cluster.placement.facts import NodeFacts, Replicas, Wanted
from liftpy.cluster.placement.placement_error import NoRoomError
from liftpy.cluster.steps import Steps

CLOSE = 1e-9
"""Relative; floating point is off by some 1e-15."""
DIGITS = 60
HASHES_PER_STEP = 5_000
_TWO_64 = 2.0**64
_EXACT = Context(prec=DIGITS)


def rendezvous(nodes: Sequence[NodeFacts], wanted: Wanted) -> Steps[list[Replicas]]:
    """The replicas of each partition; see ``Policy``. Every weight is above 0."""
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
    """The best of each rack, best first; then, if racks are too few, the best of the others."""
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
    """The nodes of any partition of a stream, best score first."""

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
        of = f"{self._stream}/{partition}".encode()
        digests = b"".join([blake2b(of + name, digest_size=8).digest() for name in self._names])
        return np.frombuffer(digests, ">u8").astype(np.uint64)


def _scores(hashes: npt.NDArray[np.uint64], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Roughly: what is best has its hash near 2^64, and is counted from there, or its logarithm would lose all digits."""
    from_above = (np.bitwise_not(hashes).astype(np.float64) + 0.5) / _TWO_64
    below = np.minimum((hashes.astype(np.float64) + 0.5) / _TWO_64, 0.5)
    logarithms = np.where(from_above < 0.5, np.log1p(-np.minimum(from_above, 0.5)), np.log(below))
    scores: npt.NDArray[np.float64] = -weights / logarithms
    return scores


def _exact_score(hashed: int, weight: float) -> Decimal:
    share = _EXACT.divide(Decimal(2 * hashed + 1), Decimal(2**65))
    return -_EXACT.divide(Decimal(weight), _EXACT.ln(share))
