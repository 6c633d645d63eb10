"""Descriptions of the cluster in pages that fit into a message, and what stopping a node would do. Pure.

The request names the position after which the page begins. So controllers keep no state between pages, and any
controller may answer the next one. Nodes are ordered by id, then streams by name. A large stream continues on the next
page, by its uid.

Example: 3 nodes, streams ``a`` (2 partitions) and ``b`` (10,000). Page 1: the nodes, ``a``, and ``b`` up to partition
1,199. Page 2 begins at ``b``, partition 1,200.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import nsmallest
from typing import Any

from liftpy.config import NO_QUOTA
from liftpy.core.base.ids import quote
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.codec import COUNTERS, NODE, PARTITION, QUOTA, STREAM, TIMES
from liftpy.core.metadata.controller_list import CONTROLLERS, majority
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import NotFoundError, ProtocolError

DEFAULT_PAGE_BYTES = 128 * 1024
"""Maximum size of a page's list, in bytes: about 20 ms of the metadata leader's time."""
MAX_PAGE_BYTES = 512 * 1024
_MIN_PAGE_BYTES = 512
_ITEM_BYTES = 6
"""Maximum overhead of one item of a list in a protobuf, in bytes."""
_NAMED = 10


def page_bytes(requested_bytes: int, max_payload_bytes: int) -> int:
    """Return the maximum size of a page in bytes, for a request that asks for ``requested_bytes`` (0: the default).

    A page takes at most half of the maximum size of a message, ``max_payload_bytes``.
    """
    return max(_MIN_PAGE_BYTES, min(requested_bytes or DEFAULT_PAGE_BYTES, MAX_PAGE_BYTES, max_payload_bytes // 2))


class _PageBudget:
    """Number of bytes that a page still has room for. The first item always fits."""

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes
        self._is_empty = True

    def takes(self, item: Any) -> bool:
        self._left_bytes -= item.ByteSize() + _ITEM_BYTES
        fits = self._left_bytes >= 0 or self._is_empty
        self._is_empty = False
        return fits


def describe(image: ClusterImage, request: pb.DescribeCluster) -> pb.ControlResponse:
    """Return the page of the cluster's description that ``request`` asks for. The caller adds the leader and the controllers."""
    page = pb.ClusterDescription(image=pb.Image(index=image.index, timeNs=image.time_ns, featureLevel=image.feature_level))
    if image.default_quota != NO_QUOTA:
        page.image.defaultQuota.CopyFrom(QUOTA.to_pb(image.default_quota))
    if image.session_times is not None:
        page.image.sessionTimes.CopyFrom(TIMES.to_pb(image.session_times))
    if image.controllers.index:
        page.image.controllers.CopyFrom(CONTROLLERS.to_pb(image.controllers))
    room = _PageBudget(page_bytes(request.maxBytes, MAX_PAGE_BYTES * 2))
    if request.afterStream or _add_nodes(page, image, request.afterNode, room):
        _add_streams(page, image, request, room)
    return pb.ControlResponse(index=image.index, cluster=page)


def _add_nodes(page: pb.ClusterDescription, image: ClusterImage, after: str, room: _PageBudget) -> bool:
    if not after:
        page.image.counters.CopyFrom(COUNTERS.to_pb(image.counters))
    for node_id in sorted(node_id for node_id in image.nodes if node_id > after):
        node = NODE.to_pb(image.nodes[node_id])
        if not room.takes(node):
            page.more = True
            return False
        page.image.nodes.append(node)
    return True


def _add_streams(page: pb.ClusterDescription, image: ClusterImage, request: pb.DescribeCluster, room: _PageBudget) -> None:
    after = request.afterStream
    if request.fromPartition and after in image.streams:
        stream = image.streams[after]
        first = request.fromPartition if stream.uid == request.uid else 0
        if not _add_stream(page, stream, first, room):
            return
    for name in sorted(name for name in image.streams if name > after):
        if not _add_stream(page, image.streams[name], 0, room):
            return


def _add_stream(page: pb.ClusterDescription, stream: StreamImage, first: int, room: _PageBudget) -> bool:
    head = STREAM.to_pb(replace(stream, partitions=()))
    if not room.takes(head):
        page.more = True
        return False
    page.image.streams.append(head)
    page.nextPartition = _add_partitions(page.image.streams[-1], stream, first, room)
    page.more = page.nextPartition > 0
    return not page.more


def _add_partitions(described: pb.Stream, stream: StreamImage, first: int, room: _PageBudget) -> int:
    """Add the partitions of ``stream`` from number ``first`` on to ``described``, at least one.

    Return the number of the first partition that does not fit, or 0 if all partitions fit.
    """
    for partition in stream.partitions[first:]:
        message = PARTITION.to_pb(partition)
        if not room.takes(message) and described.partitions:
            return partition.partition
        described.partitions.append(message)
    return 0


def describe_stream(image: ClusterImage, request: pb.DescribeStream) -> pb.ControlResponse:
    """Return the answer to DescribeStream: the stream with as many of its partitions as fit."""
    stream = image.streams.get(request.name)
    if stream is None:
        known = ", ".join(nsmallest(_NAMED, image.streams)) or "none"
        detail = f"there is no stream {quote(request.name)}; there are: {known}"
        return pb.ControlResponse(index=image.index, error=pb.ControlResponse.NOT_FOUND, detail=detail)
    if request.uid and request.uid != stream.uid:
        detail = f"stream {request.name!r} is {stream.uid} now; {quote(request.uid)} is gone"
        return pb.ControlResponse(index=image.index, error=pb.ControlResponse.NOT_FOUND, detail=detail)
    response = pb.ControlResponse(index=image.index, stream=STREAM.to_pb(replace(stream, partitions=())))
    room = _PageBudget(page_bytes(request.maxBytes, MAX_PAGE_BYTES * 2))
    response.nextPartition = _add_partitions(response.stream, stream, request.fromPartition, room)
    return response


def cut_stream(response: pb.ControlResponse, limit_bytes: int) -> None:
    """Remove the partitions of the stream in ``response`` that do not fit into ``limit_bytes``.

    Set the first partition of the next page in the response.
    """
    if not response.HasField("stream") or response.stream.ByteSize() <= limit_bytes:
        return
    room = _PageBudget(limit_bytes)
    count = 0
    for partition in response.stream.partitions:
        if not room.takes(partition):
            break
        count += 1
    if count < len(response.stream.partitions):
        response.nextPartition = response.stream.partitions[count].partition
        del response.stream.partitions[count:]


class ClusterPages:
    """Assembles the description of the cluster. Send ``request`` until it is None, and pass each answer to ``add``."""

    def __init__(self) -> None:
        self.cluster = pb.ClusterDescription()
        self._next: pb.DescribeCluster | None = pb.DescribeCluster(paged=True)

    @property
    def request(self) -> pb.DescribeCluster | None:
        """Next request to send. None: the description is complete."""
        return self._next

    def add(self, page: pb.ClusterDescription) -> None:
        """Add the answer to ``request``. Raise ProtocolError if it has nothing new."""
        request, image = self._next, self.cluster.image
        assert request is not None
        rest = list(page.image.streams)
        if request.fromPartition:
            self._continue(rest)
        if not request.afterNode and not request.afterStream:
            self.cluster.CopyFrom(page)
        else:
            image.nodes.extend(page.image.nodes)
            image.streams.extend(rest)
        self._next = self._after(page) if page.more else None

    def _continue(self, rest: list[pb.Stream]) -> None:
        """Add the rest of the last stream of the previous page. ``rest``: streams of the new page.

        The page may have more partitions, repeat the stream, or show that it was deleted.
        """
        image = self.cluster.image
        last = image.streams[-1]
        goes_on = bool(rest) and rest[0].name == last.name
        if goes_on and rest[0].uid == last.uid and _follows(last, rest[0]):
            last.partitions.extend(rest.pop(0).partitions)
        else:
            del image.streams[-1]

    def _after(self, page: pb.ClusterDescription) -> pb.DescribeCluster:
        if page.image.streams:
            last = page.image.streams[-1]
            return pb.DescribeCluster(paged=True, afterStream=last.name, uid=last.uid, fromPartition=page.nextPartition)
        if page.image.nodes:
            return pb.DescribeCluster(paged=True, afterNode=page.image.nodes[-1].nodeId)
        raise ProtocolError(
            "A node sent an empty page of the cluster description. Retry. If this repeats, check the version of the nodes."
        )


def _follows(known: pb.Stream, part: pb.Stream) -> bool:
    return not part.partitions or part.partitions[0].partition == len(known.partitions)


class StreamPages:
    """Assembles the description of one stream. Pass the first answer to ``add``, then send ``request`` until it is None."""

    def __init__(self) -> None:
        self.stream = pb.Stream()
        self._next_partition = 0

    @property
    def request(self) -> pb.DescribeStream | None:
        if not self._next_partition:
            return None
        return pb.DescribeStream(name=self.stream.name, uid=self.stream.uid, fromPartition=self._next_partition)

    def add(self, response: pb.ControlResponse) -> None:
        """Add the first page, or the answer to ``request``.

        Raise ProtocolError if the page does not continue the description.
        """
        part = response.stream
        if not self._next_partition:
            self.stream.CopyFrom(part)
        elif part.uid != self.stream.uid:
            raise NotFoundError(f"Stream {self.stream.name!r} was deleted during the request. Retry.")
        elif not part.partitions or not _follows(self.stream, part):
            raise ProtocolError(
                f"A node sent an inconsistent description of stream {part.name!r}: expected partition "
                f"{self._next_partition}. Retry."
            )
        else:
            self.stream.partitions.extend(part.partitions)
        self._next_partition = response.nextPartition


Describe = Callable[[ClusterImage], pb.ControlResponse]


def describer(request: pb.ControlRequest) -> Describe | None:
    """Return the function that answers a request for a description. None: it is another request."""
    match request.WhichOneof("request"):
        case "describeCluster":
            return lambda image: describe(image, request.describeCluster)
        case "describeStream":
            return lambda image: describe_stream(image, request.describeStream)
    return None


def fit_request(request: pb.ControlRequest, max_payload_bytes: int) -> None:
    """Limit the page size that ``request`` asks for, so that the answer fits into one message of this NATS server."""
    match request.WhichOneof("request"):
        case "describeCluster":
            request.describeCluster.maxBytes = page_bytes(request.describeCluster.maxBytes, max_payload_bytes)
        case "describeStream":
            request.describeStream.maxBytes = page_bytes(request.describeStream.maxBytes, max_payload_bytes)


def reasons_to_keep_running(image: ClusterImage, node_id: str, controllers: dict[str, bool]) -> list[str]:
    """Return the reasons why the node should not be stopped now, as texts. []: it can be stopped.

    ``controllers``: each voter of the metadata group, True if it is connected.
    """
    if node_id not in image.nodes:
        return [f"there is no node {node_id!r}"]
    reasons = []
    for stream, partition in image.partitions_of(node_id):
        name = f"{stream.name}/{partition.partition}"
        if node_id not in partition.replicas or len(partition.replicas) == 1:
            continue
        if partition.status is not PartitionStatus.ONLINE:
            reasons.append(f"{name} has no leader now")
            continue
        left = [node for node in partition.isr if node != node_id and image.is_live(node)]
        quorum = majority(len(partition.replicas)) if stream.commits_by_quorum else 1
        least = max(partition.min_isr(stream.config), quorum)
        if node_id in partition.isr and len(left) < least:
            reasons.append(f"{name} would have {len(left)} of the {least} in-sync replicas that it needs")
    if node_id in controllers:
        left_count = sum(connected for name, connected in controllers.items() if name != node_id)
        needed = majority(len(controllers))
        if len(controllers) > 1 and left_count < needed:
            reasons.append(f"the metadata group would have {left_count} of its {len(controllers)} members, and needs {needed}")
    return reasons
