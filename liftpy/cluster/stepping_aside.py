"""Before a planned transfer by command: the leader's node takes no more publishes and answers those that have come. Pure.

A leader learns of a transfer from the metadata, and what it appended meanwhile may be cut: its publishers would wait in vain.
So the metadata leader asks it first. It is a courtesy, not a promise: a node that does not answer in time loses the leadership
all the same, and a node whose leadership was not moved in the end takes publishes again by itself.
"""

from __future__ import annotations

from liftpy.cluster.image import ClusterImage
from liftpy.partition import PartitionStatus
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire._pb import replication_pb2


def who_steps_aside(image: ClusterImage, request: pb.ControlRequest) -> tuple[str, replication_pb2.StepAside] | None:
    """The node that is to be asked before ``request`` is logged, and what it is asked; None: nobody."""
    move = request.electLeader
    found = image.find(move.stream, move.uid, move.partition) if request.HasField("electLeader") else None
    if found is None or move.unclean:
        return None
    stream, partition = found
    wanted = move.node or partition.replicas[0]
    if partition.status is not PartitionStatus.ONLINE or wanted == partition.leader or wanted not in partition.isr:
        return None
    return partition.leader, replication_pb2.StepAside(
        stream=stream.name, streamUid=stream.uid, partition=partition.partition, leaderEpoch=partition.leader_epoch
    )
