"""Decides whether a node that is not a controller may delete the data of a partition. Pure.

Data is deleted only after a committed change that names it [M11]. Such a node gets its image from the feed, where a
client with publish permission could forge a record. So the node sends a linearizable question about the stream, by its
uid, to a controller. It may delete the data if the stream does not exist, or if its replicas are on other nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.wire._pb import cluster_pb2 as pb


class DepartedPartitions:
    """Finds the partitions that left this node by a change in its image, so that their data may be deleted.

    A partition that is only missing in the image stays on the disk [M11].
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._deleted_uids: set[str] = set()

    def note_deleted_streams(self, deleted: Iterable[StreamImage]) -> None:
        """Record that the image shows the streams ``deleted`` as deleted, so that their partitions have left this node."""
        self._deleted_uids.update(stream.uid for stream in deleted)

    def has_moved_away(self, key: PartitionKey, image: ClusterImage) -> bool:
        """Return whether the partition ``key`` has left this node: its stream was deleted, or its replicas are elsewhere."""
        return key.uid in self._deleted_uids or self._moved_away(key, image)

    def _moved_away(self, key: PartitionKey, image: ClusterImage) -> bool:
        location = image.find(key.stream, key.uid, key.partition)
        return location is not None and self._node_id not in location[1].holders

    def deletion_denied(self, key: PartitionKey) -> None:
        """Record that the stream of ``key`` exists, by the answer of a controller. The image of this node was wrong."""
        self._deleted_uids.discard(key.uid)


def question(key: PartitionKey) -> pb.ControlRequest:
    """Return the request to a controller that asks whether the data of ``key`` may be deleted."""
    description = pb.DescribeStream(name=key.stream, uid=key.uid, fromPartition=key.partition, maxBytes=1)
    return pb.ControlRequest(describeStream=description, linearizable=True)


def may_delete(response: pb.ControlResponse, key: PartitionKey, node_id: str) -> bool | None:
    """Return whether ``response``, a controller's answer to ``question``, allows ``node_id`` to delete its data of ``key``.

    None: the answer does not decide it.
    """
    if response.error == pb.ControlResponse.NOT_FOUND:
        return True
    partitions = [p for p in response.stream.partitions if p.partition == key.partition]
    if response.error != pb.ControlResponse.OK or response.stream.uid != key.uid or not partitions:
        return None
    return node_id not in (*partitions[0].replicas, partitions[0].joining)
