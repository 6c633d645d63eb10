"""Table of all requests to the metadata group, and ``decide(image, request, now)``, which runs the decision of a request.
Pure.

Every controller calls ``decide`` on the same image when it applies an entry. So a decision reads only its arguments.

A row of the table defines for one kind of request: the function that decides it, which senders may send it, on which
subject it is accepted, whether it may be part of a batch, and whether the log deduplicates it. Admission, batches and
the state machine read these rules from the table.

The table is complete. A test compares its rows with the kinds in ``cluster.proto``. A kind without a row is always
rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from liftpy.core.base.cooperative_apply import Steps, run_to_end
from liftpy.core.metadata.controller import elections, feature_levels, nodes, partitions, streams
from liftpy.core.metadata.controller.record_builder import Decision, RecordBuilder, RejectedError, Rules, refuse
from liftpy.core.metadata.describe import describe, describe_stream
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb


class RequesterKind(Enum):
    """Kinds of senders that may make a request. The metadata leader may make every request."""

    READERS = "whoever may read"
    OPERATORS = "operators"
    NODES = "nodes"
    NOBODY = "nobody: the metadata leader proposes it itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKind:
    """Row of the request table: rules for one kind of request."""

    decide: Callable[[RecordBuilder, Any], Decision | Steps[Decision]]
    """Function that applies the request, in steps if it may concern thousands of partitions.

    It reads only its arguments and raises only RejectedError [M6].
    """
    asked_by: RequesterKind
    asker: str = ""
    """For requests of nodes: name of the field with the id of the sender. '': any node may send the request."""
    read_only: bool = False
    """True if requests of this kind change nothing, so that they need no deduplication."""
    batched: bool = False
    """True if the request concerns one partition and may be part of a batch. Other requests have their own log entry."""
    names_stream: str = ""
    """Field with a stream name that must not be that of an internal stream. '': the request may name any stream."""
    has_preflight: bool = False
    """True if the metadata leader must know the sessions before it answers. A newly elected leader does not know them."""


def _decide_nothing(builder: RecordBuilder, _: Any) -> Decision:
    return builder.done()


def _describe_cluster(builder: RecordBuilder, request: pb.DescribeCluster) -> Decision:
    return builder.done(describe(builder.image, request))


def _describe_stream(builder: RecordBuilder, request: pb.DescribeStream) -> Decision:
    return Decision((), describe_stream(builder.image, request))


def _not_logged(_builder: RecordBuilder, _: Any) -> Decision:
    return refuse(pb.ControlResponse.INVALID, "heartbeats are answered by the metadata leader and not logged")


def unknown(_builder: RecordBuilder, _: Any) -> Decision:
    """Return the rejection of a request of an unknown kind, or of a batch that was not split."""
    return refuse(pb.ControlResponse.INVALID, "a request of a kind that this version does not know")


_BY = RequesterKind
REQUESTS: dict[str, RequestKind] = {
    "describeCluster": RequestKind(decide=_describe_cluster, asked_by=_BY.READERS, read_only=True),
    "describeStream": RequestKind(decide=_describe_stream, asked_by=_BY.READERS, read_only=True),
    "openGroups": RequestKind(decide=streams.open_groups, asked_by=_BY.READERS),
    "createStream": RequestKind(decide=streams.create_stream, asked_by=_BY.OPERATORS, names_stream="name"),
    "addPartitions": RequestKind(decide=streams.add_partitions, asked_by=_BY.OPERATORS, names_stream="name"),
    "deleteStream": RequestKind(decide=streams.delete_stream, asked_by=_BY.OPERATORS, names_stream="name"),
    "removeNode": RequestKind(decide=nodes.remove_node, asked_by=_BY.OPERATORS),
    "setNode": RequestKind(decide=nodes.set_node, asked_by=_BY.OPERATORS),
    "alterStream": RequestKind(decide=streams.alter_stream, asked_by=_BY.OPERATORS, names_stream="name"),
    "truncateBefore": RequestKind(
        decide=partitions.truncate_before, asked_by=_BY.OPERATORS, names_stream="stream", batched=True
    ),
    "purgeRecords": RequestKind(decide=partitions.purge_records, asked_by=_BY.OPERATORS, names_stream="stream", batched=True),
    "pausePartitions": RequestKind(decide=partitions.pause_partitions, asked_by=_BY.OPERATORS, names_stream="stream"),
    "reassign": RequestKind(decide=partitions.reassign, asked_by=_BY.OPERATORS, batched=True),
    "changeControllers": RequestKind(decide=nodes.change_controllers, asked_by=_BY.OPERATORS, has_preflight=True),
    "setDefaultQuota": RequestKind(decide=streams.set_default_quota, asked_by=_BY.OPERATORS),
    "setSessionTimes": RequestKind(decide=nodes.set_session_times, asked_by=_BY.OPERATORS),
    "setFeatureLevel": RequestKind(decide=feature_levels.set_feature_level, asked_by=_BY.OPERATORS, has_preflight=True),
    "electLeader": RequestKind(decide=elections.elect_leader, asked_by=_BY.OPERATORS, batched=True),
    "barrier": RequestKind(decide=_decide_nothing, asked_by=_BY.NODES, read_only=True),
    "batch": RequestKind(decide=unknown, asked_by=_BY.NODES),
    "heartbeat": RequestKind(decide=_not_logged, asked_by=_BY.NODES, asker="nodeId", read_only=True, has_preflight=True),
    "registerNode": RequestKind(decide=nodes.register_node, asked_by=_BY.NODES, asker="nodeId", has_preflight=True),
    "fenceNode": RequestKind(decide=nodes.fence_node, asked_by=_BY.NODES, asker="nodeId"),
    "drainNode": RequestKind(decide=elections.drain_node, asked_by=_BY.NODES, asker="nodeId"),
    "changeIsr": RequestKind(decide=partitions.change_isr, asked_by=_BY.NODES, asker="leader", batched=True),
    "leaveIsr": RequestKind(decide=partitions.leave_isr, asked_by=_BY.NODES, asker="node", batched=True),
    "reportLeader": RequestKind(
        decide=elections.report_leader, asked_by=_BY.NODES, asker="witness", batched=True, has_preflight=True
    ),
    "reportPromotion": RequestKind(decide=elections.report_promotion, asked_by=_BY.NODES, asker="candidate", batched=True),
    "reportPurged": RequestKind(decide=partitions.report_purged, asked_by=_BY.NODES, asker="node", batched=True),
    "reportService": RequestKind(decide=nodes.report_service, asked_by=_BY.NODES, asker="node", batched=True),
    "giveUpLeadership": RequestKind(decide=elections.give_up_leadership, asked_by=_BY.NODES, asker="leader", batched=True),
    "wakePartition": RequestKind(decide=partitions.wake_partition, asked_by=_BY.NODES, asker="leader", batched=True),
    "unfenceNode": RequestKind(decide=nodes.unfence_node, asked_by=_BY.NOBODY),
    "placeStream": RequestKind(decide=streams.place_stream, asked_by=_BY.NOBODY),
    "beginCopy": RequestKind(decide=partitions.begin_copy, asked_by=_BY.NOBODY, batched=True),
    "passOver": RequestKind(decide=elections.pass_over, asked_by=_BY.NOBODY, batched=True),
    "settleSessionTimes": RequestKind(decide=nodes.settle_session_times, asked_by=_BY.NOBODY),
    "concludeElection": RequestKind(decide=elections.conclude_election, asked_by=_BY.NOBODY, batched=True),
}
"""Name of the field in ``ControlRequest.request`` -> rules for this kind of request."""
_UNKNOWN = RequestKind(decide=unknown, asked_by=_BY.NOBODY)


def kind_of(request: pb.ControlRequest) -> RequestKind:
    """Return the rules for the kind of ``request``. For an unknown kind, these rules reject every sender."""
    return REQUESTS.get(request.WhichOneof("request") or "", _UNKNOWN)


def changes_nothing(request: pb.ControlRequest) -> bool:
    """Return whether the request is read-only, so that it needs no deduplication."""
    asked = getattr(request, request.WhichOneof("request") or "", None)
    return kind_of(request).read_only or getattr(asked, "dryRun", False)


def may_be_logged(request: pb.ControlRequest) -> bool:
    """Return whether the request may need a log entry. Otherwise the metadata leader answers at once."""
    kind = kind_of(request)
    return request.linearizable or request.HasField("barrier") or not kind.read_only


def decide(image: ClusterImage, request: pb.ControlRequest, now_ns: int, rules: Rules) -> Decision:
    """Decide ``request`` on ``image``. Return the records and the answer.

    ``now_ns``: image time in ns since 1970, which is stored but never used for a decision.
    """
    return run_to_end(deciding_on(RecordBuilder(image, now_ns, rules), request))


def deciding_on(builder: RecordBuilder, request: pb.ControlRequest) -> Steps[Decision]:
    """Decide ``request`` on the image of ``builder``, which collects the records, in steps, so that the event loop is not blocked."""
    name = request.WhichOneof("request")
    try:
        decision = REQUESTS[name].decide(builder, getattr(request, name)) if name in REQUESTS else unknown(builder, None)
        return decision if isinstance(decision, Decision) else (yield from decision)
    except RejectedError as rejected:
        return rejected.decision
