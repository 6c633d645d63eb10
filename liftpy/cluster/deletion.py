"""Whether a partition's data may go: what a node that only follows the feed asks a controller first. Pure.

Goal: data goes only by a committed change that names it [M11]. A controller's image is made of such changes. The image of any other
node is made of what came on the feed, where whoever may publish can put a record; it decides what runs, never alone what is deleted.

Algorithm: the node asks for the stream, by its unique id, with a read that the group orders in its log, so that no controller answers
which knows less than was committed. Data may go when the stream is not there, or its partition has its replicas elsewhere. Any other
answer says that the image is wrong; no answer says nothing, and is asked for again.
"""

from __future__ import annotations

from liftpy.ids import PartitionKey
from liftpy.wire._pb import cluster_pb2 as pb


def question(key: PartitionKey) -> pb.ControlRequest:
    """What to ask a controller about ``key``."""
    asked = pb.DescribeStream(name=key.stream, uid=key.uid, fromPartition=key.partition, maxBytes=1)
    return pb.ControlRequest(describeStream=asked, linearizable=True)


def may_go(response: pb.ControlResponse, key: PartitionKey, node_id: str) -> bool | None:
    """Whether the answer lets ``node_id`` delete what it holds of ``key``; None: it says nothing about that."""
    if response.error == pb.ControlResponse.NOT_FOUND:
        return True
    partitions = [p for p in response.stream.partitions if p.partition == key.partition]
    if response.error != pb.ControlResponse.OK or response.stream.uid != key.uid or not partitions:
        return None
    return node_id not in partitions[0].replicas
