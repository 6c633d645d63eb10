"""Placement policy ``round-robin``: round robin with gaps.

Goal: every node leads and follows equally many partitions, and the partitions that one node leads have different
followers, so that the load of a lost node spreads over all others.

Constraint: only node ids, numbers and a start index go in; the same input gives the same map. The start index is
chained: it is stored, and the next stream goes on where the last one stopped.

Algorithm: let n be the number of nodes, RF the replication factor, G = n - RF + 1 the number of distinct gaps. For the
global index i = start + partition, the gap g = (i div n) mod G is constant for one turn round the ring::

    leader       = nodes[i mod n]
    follower r   = nodes[(i + r + g) mod n]      for r = 1 .. RF - 1

The gap stands once, between the leader and its first follower; the leader is never shifted. RF - 1 + g <= n - 1, so the
replicas are distinct; the period is n * G, and over it every node leads equally often.

Worked example, nodes 0 to 4, RF 3, start 0::

    partition   0      1      2      3      4      5      6         14     15
    gap         0      0      0      0      0      1      1         2      0
    replicas  0 1 2  1 2 3  2 3 4  3 4 0  4 0 1  0 2 3  1 3 4 ... 4 2 3  0 1 2 ...

Source: the replica assignment of Fluvio 0.11 ("round robin with gaps"); vectors in ``tests/vectors/placement.json``.
"""

from __future__ import annotations

from collections.abc import Sequence

from liftpy.cluster.placement.facts import NodeFacts, Replicas, Wanted
from liftpy.cluster.steps import PER_STEP, Steps


def round_robin(nodes: Sequence[NodeFacts], wanted: Wanted) -> Steps[list[Replicas]]:
    """The replicas of each partition; see ``Policy``."""
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
