"""Decides which partitions have left a node, and whether the node may delete their data. Pure.

Data is deleted only after a committed change that names it [M11]. A node that is not a controller gets its image from the
feed, where a client with publish permission could forge a record. So the node sends a linearizable question about the
stream, by its uid, to a controller. It may delete the data if the stream does not exist, or if its replicas are on other
nodes.

A metadata group may forget decisions: all controllers have new disks, or older ones, or the group was rescued from an older
log. Then streams and replicas are missing in the image that were never deleted or moved. Two rules keep their data:

- A running node deletes nothing because of an image that does not continue the image before (``continues``).
- A node keeps a partition that has moved away and has no leader, because it may have the only copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.image import RESCUE_LEAP, ClusterImage
from liftpy.core.metadata.image_delta import ImageDiff
from liftpy.core.wire._pb import cluster_pb2 as pb

REMEMBERED = 1_000
"""Number of deleted streams from which a node forgets those without data on it."""


def continues(before: ClusterImage, image: ClusterImage, node_id: str) -> bool:
    """Return whether ``image`` is a later image of the metadata group that had the image ``before``.

    A group whose controllers have new or older disks does not know the process of the node ``node_id``, or its index or its counters
    are lower. After a rescue, the counters are much higher, although the rescue began with lower ones.
    """
    new_streams = image.counters.next_stream_uid - before.counters.next_stream_uid
    own, now = before.nodes.get(node_id), image.nodes.get(node_id)
    is_known = own is None or (now is not None and now.incarnation >= own.incarnation)
    return is_known and before.index <= image.index and 0 <= new_streams < RESCUE_LEAP // 2


class DepartedPartitions:
    """Finds the partitions that left this node by a change in its image, so that their data may be deleted.

    A partition that is only missing in the image stays on the disk [M11].

    ``uids_with_data``: returns the uids of all streams that may have data on this node. When the number of deleted streams reaches
    ``REMEMBERED``, and then at twice the number of those that had to stay, the others are forgotten.
    """

    def __init__(self, node_id: str, uids_with_data: Callable[[], Iterable[str]]) -> None:
        self._node_id = node_id
        self._uids_with_data = uids_with_data
        self._deleted_uids: set[str] = set()
        self._forget_at = REMEMBERED
        self._kept: set[PartitionKey] = set()
        """Partitions that are missing on this node in an image that does not continue the image before."""

    def image_changed(self, before: ClusterImage, image: ClusterImage, change: ImageDiff) -> list[PartitionKey]:
        """Record which streams were deleted, and which partitions left this node. ``change``: difference of the two images.

        Return the partitions whose data stays, because ``image`` does not continue ``before``.
        """
        own = list(change.for_node(self._node_id))
        gone = [each.key for each in own if each.new is None or self._node_id not in each.new.holders]
        if not continues(before, image, self._node_id):
            self._kept.update(gone)
            return gone
        self._deleted_uids.update(stream.uid for stream in change.deleted)
        if len(self._deleted_uids) >= self._forget_at:
            self._deleted_uids.intersection_update(self._uids_with_data())
            self._forget_at = max(REMEMBERED, 2 * len(self._deleted_uids))
        if self._kept:
            self._kept.difference_update(each.key for each in own if each.key not in gone)
        return []

    def has_moved_away(self, key: PartitionKey, image: ClusterImage) -> bool:
        """Return whether the partition ``key`` has left this node: its stream was deleted, or its replicas are elsewhere."""
        return key not in self._kept and (key.uid in self._deleted_uids or self._moved_away(key, image))

    def _moved_away(self, key: PartitionKey, image: ClusterImage) -> bool:
        location = image.find(key.stream, key.uid, key.partition)
        return location is not None and self._node_id not in location[1].holders

    def may_be_the_only_copy(self, key: PartitionKey, image: ClusterImage) -> bool:
        """Return whether the data of ``key`` must stay, although the partition has left this node, because it has no leader."""
        location = image.find(key.stream, key.uid, key.partition)
        return location is not None and location[1].status is not PartitionStatus.ONLINE

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
