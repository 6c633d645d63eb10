"""Partitions of the groups stream whose coordinators run on this node."""

from __future__ import annotations

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.worker_assignment import WHOLE, WorkerShare
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire.subjects import GROUPS_STREAM


def hosted_partitions(image: ClusterImage, node_id: str, share: WorkerShare = WHOLE) -> frozenset[PartitionKey]:
    """Return the partitions of the groups stream whose coordinators run in this process.

    These are the partitions in ``share`` that have a replica on the node.
    """
    stream = image.streams.get(GROUPS_STREAM)
    if stream is None:
        return frozenset()
    keys = (stream.key(part.partition) for part in stream.partitions if node_id in part.replicas)
    return frozenset(key for key in keys if share.holds(key.stream, key.partition))
