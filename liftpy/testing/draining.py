"""Draining and its like: a node is drained and taken back, weighs something else, or a stream is to have more or fewer
replicas. Each is one request that the metadata group decides; what follows is the shipped planner's and the leaders' business.
"""

from __future__ import annotations

from liftpy.testing.cluster import Cluster
from liftpy.testing.plan import DRAIN, FACTOR, WEIGHT, Fault
from liftpy.wire._pb import cluster_pb2 as pb

_WEIGHTS = (0.0, 0.5, 1.0, 4.0)


def _apply(cluster: Cluster, request: pb.ControlRequest) -> bool:
    """Whether the group has done it."""
    return cluster.group.available and cluster.group.apply(request).error == pb.ControlResponse.OK


def _drain(cluster: Cluster, fault: Fault) -> bool:
    """And later it is not any more."""

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


def heal(cluster: Cluster) -> None:
    """Nobody is drained any more, but who is gone for good."""
    for node_id, node in sorted(cluster.group.image.nodes.items()):
        if node.leaving and not cluster.nodes[node_id].is_gone:
            _apply(cluster, pb.ControlRequest(setNode=pb.SetNode(nodeId=node_id, leaving=False)))


STRIKES = {DRAIN: _drain, WEIGHT: _weight, FACTOR: _factor}
"""By kind."""
