"""``decide(image, request, now) -> (records, response)``: which decision a request is, and nothing else.

Called inside apply, on every controller, on the same image: a decision reads nothing but its arguments.
"""

from __future__ import annotations

from liftpy.cluster.decisions import elections, isr, nodes, streams
from liftpy.cluster.draft import Decision, Draft, Rules, refuse
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.pages import describe, describe_stream
from liftpy.wire._pb import cluster_pb2 as pb

READ_ONLY = frozenset({"barrier", "describeCluster", "describeStream", "heartbeat"})
"""Requests that change nothing, and so need no deduplication."""


def decide(image: ClusterImage, request: pb.ControlRequest, now_ns: int, rules: Rules) -> Decision:
    """What ``request`` does to ``image`` at image time ``now_ns`` (ns since 1970; written down, never decided by)."""
    return decide_on(Draft(image, now_ns, rules), request)


def decide_on(draft: Draft, request: pb.ControlRequest) -> Decision:
    """The same on a draft that was made for it."""
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
            return draft.done(describe(draft.image, request.describeCluster))
        case "describeStream":
            return Decision((), describe_stream(draft.image, request.describeStream))
        case "heartbeat":
            return refuse(pb.ControlResponse.INVALID, "heartbeats are answered by the metadata leader and not logged")
    return refuse(pb.ControlResponse.INVALID, "a request of a kind that this version does not know")
