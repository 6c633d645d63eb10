"""``decide(image, request, now) -> (records, response)``: which decision a request is, and nothing else.

Called inside apply, on every controller, on the same image: a decision reads nothing but its arguments.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import nsmallest

from immutables import Map

from liftpy.cluster.codec import image_to_pb, stream_to_pb
from liftpy.cluster.decisions import elections, isr, nodes, streams
from liftpy.cluster.draft import Decision, Draft, Rules, refuse
from liftpy.cluster.image import ClusterImage
from liftpy.wire._pb import cluster_pb2 as pb

DEFAULT_PAGE_BYTES = 128 * 1024
"""Of the streams in one page: some 20 ms of the metadata leader's time."""
MAX_PAGE_BYTES = 512 * 1024
"""Below what a NATS server lets into a message, with room for nodes and reports."""
_NAMED = 10
READ_ONLY = frozenset({"barrier", "describeCluster", "describeStream", "heartbeat"})
"""Requests that change nothing, and so need no deduplication."""


def decide(image: ClusterImage, request: pb.ControlRequest, now_ns: int, rules: Rules) -> Decision:
    """What ``request`` does to ``image`` at image time ``now_ns`` (ns since 1970; written down, never decided by)."""
    draft = Draft(image, now_ns, rules)
    match request.WhichOneof("request"):
        case "createStream":
            return streams.create_stream(draft, request.createStream)
        case "deleteStream":
            return streams.delete_stream(draft, request.deleteStream)
        case "registerNode":
            return nodes.register_node(draft, request.registerNode)
        case "fenceNode":
            return nodes.fence_node(draft, request.fenceNode)
        case "unfenceNode":
            return nodes.unfence_node(draft, request.unfenceNode)
        case "removeNode":
            return nodes.remove_node(draft, request.removeNode)
        case "changeIsr":
            return isr.change_isr(draft, request.changeIsr)
        case "reportLeader":
            return elections.report_leader(draft, request.reportLeader)
        case "reportPromotion":
            return elections.report_promotion(draft, request.reportPromotion)
        case "passOver":
            return elections.pass_over(draft, request.passOver)
        case "concludeElection":
            return elections.conclude_election(draft, request.concludeElection)
        case "electLeader":
            return elections.elect_leader(draft, request.electLeader)
        case "leaveIsr":
            return isr.leave_isr(draft, request.leaveIsr)
        case "giveUpLeadership":
            return elections.give_up_leadership(draft, request.giveUpLeadership)
        case "drainNode":
            return elections.drain_node(draft, request.drainNode)
        case "barrier":
            return draft.done()
        case "describeCluster":
            return draft.done(describe(image, request.describeCluster))
        case "describeStream":
            return Decision((), describe_stream(image, request.describeStream.name))
        case "heartbeat":
            return refuse(pb.ControlResponse.INVALID, "heartbeats are answered by the metadata leader and not logged")
    return refuse(pb.ControlResponse.INVALID, "a request of a kind that this version does not know")


def describe(image: ClusterImage, request: pb.DescribeCluster | None = None) -> pb.ControlResponse:
    """The answer to DescribeCluster as far as the image goes; the caller adds leader and controllers.

    In pages: whole streams by name, behind the one that is asked for; the first page has everything else of the image.
    """
    if request is None or not request.paged:
        return pb.ControlResponse(index=image.index, cluster=pb.ClusterDescription(image=image_to_pb(image, operations=False)))
    page = pb.ClusterDescription(image=pb.Image(index=image.index, timeNs=image.time_ns))
    if not request.afterStream:
        page.image.CopyFrom(image_to_pb(replace(image, streams=Map()), operations=False))
    limit_bytes = min(request.maxBytes or DEFAULT_PAGE_BYTES, MAX_PAGE_BYTES)
    size_bytes = 0
    for name in sorted(name for name in image.streams if name > request.afterStream):
        described = stream_to_pb(image.streams[name])
        size_bytes += described.ByteSize()
        if page.image.streams and size_bytes > limit_bytes:
            page.more = True
            break
        page.image.streams.append(described)
    return pb.ControlResponse(index=image.index, cluster=page)


def describe_stream(image: ClusterImage, name: str) -> pb.ControlResponse:
    """The answer to DescribeStream."""
    stream = image.streams.get(name)
    if stream is None:
        known = ", ".join(nsmallest(_NAMED, image.streams)) or "none"
        detail = f"there is no stream {name!r}; there are: {known}"
        return pb.ControlResponse(index=image.index, error=pb.ControlResponse.NOT_FOUND, detail=detail)
    return pb.ControlResponse(index=image.index, stream=stream_to_pb(stream))
