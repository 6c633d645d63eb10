"""Before a planned transfer by command: the leader's node takes no more publishes and answers those that have come.

A leader learns of a transfer from the metadata, and what it appended meanwhile may be cut: its publishers would wait in vain.
So the metadata leader asks it first. It is a courtesy, not a promise: a node that does not answer in time loses the leadership
all the same, and a node whose leadership was not moved in the end takes publishes again by itself.
"""

from __future__ import annotations

import nats.errors
from nats.aio.client import Client

from liftpy.cluster.image import ClusterImage
from liftpy.partition import PartitionStatus
from liftpy.wire import frames
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire._pb import replication_pb2
from liftpy.wire.subjects import Subjects

ANSWER_TIMEOUT_S = 0.8


async def ask_to_step_aside(connection: Client, subjects: Subjects, image: ClusterImage, move: pb.ElectLeader) -> None:
    """Ask the leader that ``move`` would replace, if there is one, and wait for its answer, a bounded time."""
    found = image.find(move.stream, move.uid, move.partition)
    if found is None or move.unclean:
        return
    stream, partition = found
    wanted = move.node or partition.replicas[0]
    if partition.status is not PartitionStatus.ONLINE or wanted == partition.leader or wanted not in partition.isr:
        return
    request = replication_pb2.StepAside(
        stream=stream.name, streamUid=stream.uid, partition=partition.partition, leaderEpoch=partition.leader_epoch
    )
    try:
        await connection.request(subjects.notify(partition.leader), frames.sealed(request), timeout=ANSWER_TIMEOUT_S)
    except (nats.errors.Error, TimeoutError, OSError):
        pass  # it stands still, or is gone: then nobody waits for its answers
