"""Placement policy ``least-loaded``: every replica goes where the fewest are.

Goal: nodes that hold little, or have just joined, are filled first, in proportion to their weights; leaders are balanced too.

Algorithm: for each partition in turn, the nodes with the fewest replicas per weight, then the fewest leaders, then by id. The one of
them with the fewest leaders per weight is the preferred leader (then as chosen); the others follow as they were chosen. What has been
placed counts for the next one. In the end a second look gives a leadership to a follower that would still lead less than the leader
does. Weight 0 is never chosen; a node that is full is passed over.

Worked example, nodes a and b of weight 1, c of weight 2, all empty, RF 1: a (0/1, by id), b, c (0/2), c (1/2 is fewer than 1/1), and
so on: c gets half of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from liftpy.cluster.placement.facts import NodeFacts, Replicas, Wanted
from liftpy.cluster.placement.placement_error import NoRoomError
from liftpy.cluster.steps import PER_STEP, Steps


def least_loaded(nodes: Sequence[NodeFacts], wanted: Wanted) -> Steps[list[Replicas]]:
    """The replicas of each partition; see ``Policy``. Every weight is above 0."""
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
