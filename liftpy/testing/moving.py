"""Moves in the simulator: what an operator asks for, and, in the planner's place, which learners are named when."""

from __future__ import annotations

import random

from liftpy.ids import PartitionKey
from liftpy.partition import PartitionState
from liftpy.testing.clock import MS
from liftpy.testing.cluster import Cluster
from liftpy.testing.plan import Fault
from liftpy.wire._pb import cluster_pb2 as pb

_EVERY_NS = 150 * MS
_BEGINS, _GIVES_UP = 0.5, 0.02
"""Of the looks at a partition that wants a learner, or has one, so many."""


class Mover:
    """Names learners until the end of the run; gives copies up while there are faults."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"{cluster.seed}/mover")
        self._look()

    def _look(self) -> None:
        cluster = self._cluster
        for key in cluster.keys if cluster.group.available else ():
            partition = cluster.group.partition(key.stream, key.partition)
            drawn = self._rng.random()
            if partition.joining and drawn < _GIVES_UP and not cluster.healed:
                self._begin(key, partition, "")
            elif partition.wants_next and drawn < _BEGINS and cluster.group.image.is_live(partition.wants_next):
                self._begin(key, partition, partition.wants_next)
        cluster.clock.after(_EVERY_NS, self._look)

    def _begin(self, key: PartitionKey, partition: PartitionState, node: str) -> None:
        copy = pb.BeginCopy(stream=key.stream, uid=key.uid, partition=key.partition, epoch=partition.epoch, node=node)
        self._cluster.group.apply(pb.ControlRequest(beginCopy=copy))
        self._cluster.counters["copy begun" if node else "copy given up"] += 1


def move(cluster: Cluster, fault: Fault) -> bool:
    """Somebody wants the replicas of a partition elsewhere: one of them swapped, more or fewer, in another order; or as they are."""
    rng, keys = random.Random(fault.draw), cluster.keys
    if not cluster.group.available:
        return False
    key = rng.choice(keys)
    partition = cluster.group.partition(key.stream, key.partition)
    wanted, others = list(partition.target or partition.replicas), []
    others = [node for node in sorted(cluster.nodes) if node not in wanted]
    what = rng.choice(("swap", "swap", "swap", "swap", "more", "fewer", "order", "all", "cancel"))
    if what == "swap" and others:
        wanted[rng.randrange(len(wanted))] = rng.choice(others)
    elif what == "more" and others:
        wanted.insert(rng.randrange(len(wanted) + 1), rng.choice(others))
    elif what == "fewer" and len(wanted) > 1:
        wanted.remove(rng.choice(wanted))
    elif what == "order":
        rng.shuffle(wanted)
    elif what == "all":
        wanted = rng.sample(sorted(cluster.nodes), len(wanted))
    request = pb.Reassign(stream=key.stream, uid=key.uid, partition=key.partition, replicas=wanted)
    if what == "cancel":
        request = pb.Reassign(stream=key.stream, uid=key.uid, partition=key.partition, cancel=True)
    response = cluster.group.apply(pb.ControlRequest(reassign=request))
    cluster.counters[f"move: {what}{'' if response.error == pb.ControlResponse.OK else ' (refused)'}"] += 1
    return True
