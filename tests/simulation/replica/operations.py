"""Operators of the simulator: they move replicas, drain nodes, and pause streams. The planner names learners.

Draining and its like: a node is drained and taken back, weighs something else, or a stream is to have more or fewer
replicas. Each is one request that the metadata group decides; what follows is the shipped planner's and the leaders' business.
"""

from __future__ import annotations

import random

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.simulation.replica.clock import MS
from tests.simulation.replica.cluster import Cluster
from tests.simulation.replica.plan import DRAIN, FACTOR, PAUSE_STREAM, WEIGHT, Fault

_EVERY_NS = 150 * MS
_BEGINS, _GIVES_UP = 0.5, 0.02
"""Shares of the checks at which a partition gets a learner, and at which a learner is removed."""


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
            elif partition.next_learner and drawn < _BEGINS and cluster.group.image.is_live(partition.next_learner):
                self._begin(key, partition, partition.next_learner)
        cluster.clock.after(_EVERY_NS, self._look)

    def _begin(self, key: PartitionKey, partition: PartitionState, node: str) -> None:
        copy = pb.BeginCopy(stream=key.stream, uid=key.uid, partition=key.partition, epoch=partition.epoch, node=node)
        self._cluster.group.apply(pb.ControlRequest(beginCopy=copy))
        self._cluster.counters["copy begun" if node else "copy given up"] += 1


def move(cluster: Cluster, fault: Fault) -> bool:
    """Request other replicas for a partition: a swap, more, fewer, or another order."""
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


_WEIGHTS = (0.0, 0.5, 1.0, 4.0)


def _apply(cluster: Cluster, request: pb.ControlRequest) -> bool:
    """Return whether the group has done it."""
    return cluster.group.available and cluster.group.apply(request).error == pb.ControlResponse.OK


def _drain(cluster: Cluster, fault: Fault) -> bool:
    """Drain a node, and undo it later."""

    def leaving(yes: bool) -> bool:
        return _apply(cluster, pb.ControlRequest(setNode=pb.SetNode(nodeId=fault.node, leaving=yes)))

    def stays() -> None:
        leaving(False)

    cluster.clock.after(2 * fault.for_ns, stays)
    return leaving(True)


def _weight(cluster: Cluster, fault: Fault) -> bool:
    weight = _WEIGHTS[int(fault.draw * len(_WEIGHTS))]
    return _apply(cluster, pb.ControlRequest(setNode=pb.SetNode(nodeId=fault.node, weight=weight)))


def _factor(cluster: Cluster, fault: Fault) -> bool:
    streams = sorted(cluster.group.image.streams)
    name, factor = streams[int(fault.draw * 100) % len(streams)], 1 + int(fault.draw * 4)
    return _apply(cluster, pb.ControlRequest(alterStream=pb.AlterStream(name=name, replicationFactor=factor)))


_UNTIL = (pb.UNTIL_RESUMED, pb.UNTIL_RESUMED, pb.UNTIL_PUBLISH, pb.UNTIL_PUBLISH_TO_ANY)
_SOON_NS = 20_000_000


def _set_pause(cluster: Cluster, stream: str, partitions: tuple[int, ...], pause: pb.Pause) -> bool:
    """Return whether the group has done it."""
    return _apply(
        cluster, pb.ControlRequest(pausePartitions=pb.PausePartitions(stream=stream, partitions=partitions, pause=pause))
    )


def _pause(cluster: Cluster, fault: Fault) -> bool:
    """Pause a stream or a partition, and resume it later or at once."""
    streams = sorted(cluster.group.image.streams.items())
    name, image = streams[int(fault.draw * 100) % len(streams)]
    chosen = int(fault.draw * 1000)
    partitions = () if chosen % 3 == 0 or not image.partitions else (chosen % len(image.partitions),)
    pause = _UNTIL[int(fault.draw * 10_000) % len(_UNTIL)]

    def resume() -> None:
        _set_pause(cluster, name, partitions, pb.NOT_PAUSED)

    cluster.clock.after(_SOON_NS if chosen % 4 == 0 else fault.for_ns, resume)
    return _set_pause(cluster, name, partitions, pause)


def heal(cluster: Cluster) -> None:
    """Undo all drains, except of nodes that are gone, and all pauses."""
    for node_id, node in sorted(cluster.group.image.nodes.items()):
        if node.leaving and not cluster.nodes[node_id].is_gone:
            _apply(cluster, pb.ControlRequest(setNode=pb.SetNode(nodeId=node_id, leaving=False)))
    for name in sorted(cluster.group.image.streams):
        _set_pause(cluster, name, (), pb.NOT_PAUSED)


STRIKES = {DRAIN: _drain, WEIGHT: _weight, FACTOR: _factor, PAUSE_STREAM: _pause}
"""Faults by kind."""
