"""Requests about nodes and sessions: RegisterNode, FenceNode, UnfenceNode, SetNode, RemoveNode, ReportService, SetSessionTimes,
SettleSessionTimes and ChangeControllers.

A starting node registers. It stays in the ISRs of all partitions whose records it has completely (C7, C10, C12).
``after_registration`` and ``after_fencing`` change the partitions of the node.

ChangeControllers records a change of the controller list in the image [M10]. The new list applies as soon as its entry
is appended (``liftpy.core.metadata.controller_list``).

SetSessionTimes is a compare-and-set on the number of the change. The previous times stay valid until no session and no
lease with them can exist. The metadata leader then sends SettleSessionTimes. Until then no further change is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from liftpy.config import NS_PER_S, SessionTimes, check_session_times
from liftpy.core.base.cooperative_apply import PER_STEP, Steps
from liftpy.core.base.ids import check_name, quote
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.codec import NODE, TIMES
from liftpy.core.metadata.controller import elections
from liftpy.core.metadata.controller.record_builder import Decision, RecordBuilder, refuse
from liftpy.core.metadata.controller_list import CONTROLLERS, well_formed
from liftpy.core.metadata.features import DAMAGED_LOGS, level_range_in, refused_level
from liftpy.core.metadata.image import ClusterImage, NodeImage, StreamImage
from liftpy.core.metadata.node_identity import (
    MAX_DAMAGED_LOGS,
    MAX_EARLIER_NONCES,
    ProcessRelation,
    compare_processes,
)
from liftpy.core.metadata.records import ControllersChanged, NodeChanged, NodeRemoved, SessionTimesSet
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import check_node_or_principal
from liftpy.errors import ConfigError, InvalidNameError

_RAISE = "raise it (ulimit -n, LimitNOFILE)"
MAX_NODES = 1000
"""Maximum number of nodes. A further node may replace a registered node that does not run and holds no data."""
MAX_TEXT_LENGTH = 255
MAX_WEIGHT = 1e6
DamagedLog = tuple[str, int]
"""A damaged log: (uid of the stream, number of the partition)."""
MAX_REASON = 500
"""Maximum length of the reason why a service has ended, in characters."""
Step = Callable[[RecordBuilder, StreamImage, PartitionState, str], PartitionState]


def register_node(builder: RecordBuilder, request: pb.RegisterNode) -> Steps[Decision]:
    """Register a new process of a node: a new incarnation, and new LeaderEpochs for the partitions that it still leads."""
    wrong = _wrong_registration(builder, request)
    if wrong:
        return refuse(pb.ControlResponse.INVALID, wrong)
    beyond = unsupported_level_of(builder.image, request)
    if beyond:
        return refuse(pb.ControlResponse.INVALID, beyond)
    known = builder.image.nodes.get(request.nodeId)
    how = compare_processes(known, request) if known is not None else ProcessRelation.FOLLOWS
    if known is not None and how is ProcessRelation.SAME:
        return builder.done(pb.ControlResponse(node=NODE.to_pb(known)))
    if known is not None and how is ProcessRelation.OUTDATED:
        detail = f"start {request.start} of {request.nodeId!r} has ended: start {known.start} has registered"
        return refuse(pb.ControlResponse.STALE, detail)  # a request that outlived its process must not depose the next one
    if not _make_room(builder, request.nodeId):
        detail = f"there are {MAX_NODES} nodes already, and all of them run or hold data: stop and remove some first"
        return refuse(pb.ControlResponse.INVALID, detail)
    node = NodeImage(
        node_id=request.nodeId,
        incarnation=builder.next_incarnation(),
        rack=known.rack if known is not None and known.rack_by_hand else request.rack,
        weight=known.weight if known is not None and known.weight_by_hand else _weight(request),
        version=request.version,
        status_address=request.statusAddress,
        fenced=False,
        session_time_ns=builder.now_ns,
        previous_incarnation=request.previousIncarnation,
        folder_id=request.folderId,
        start=request.start,
        nonce=request.nonce,
        earlier_nonces=tuple(request.earlierNonces),
        partition_budget=request.partitionBudget,
        weight_by_hand=known is not None and known.weight_by_hand,
        rack_by_hand=known is not None and known.rack_by_hand,
        leaving=known is not None and known.leaving,
        host=request.host,
    )
    builder.add(NodeChanged(node))
    damaged = damaged_logs_of(builder.image, request)
    complete = known is None or has_all_acknowledged_records(known, request, damaged)
    detail = yield from after_registration(builder, node.node_id, complete, damaged)
    replica_count = builder.image.replica_counts.get(node.node_id, 0)
    if 0 < node.partition_budget < replica_count:
        beyond = f"it holds {replica_count} partitions, its limit of open files is enough for {node.partition_budget}: {_RAISE}"
        detail = f"{beyond}; {detail}" if detail else beyond
    if how is ProcessRelation.OLDER_COPY:
        detail = f"its data folder is an older copy, or another one, than node {node.node_id!r} registered with; {detail}"
    return builder.done(pb.ControlResponse(node=NODE.to_pb(node), detail=detail))


def unsupported_level_of(image: ClusterImage, request: pb.RegisterNode) -> str:
    """Return why a process cannot run at the feature level of the image, or '' if it can."""
    return refused_level(image.feature_level, f"node {request.nodeId!r}", level_range_in(request))


def damaged_logs_of(image: ClusterImage, request: pb.RegisterNode) -> frozenset[DamagedLog]:
    """Return the damaged logs of a registering node, if the node knows that its other logs are complete. Otherwise return none.

    Below the feature level DAMAGED_LOGS, one damaged log makes all logs of the node count as incomplete.
    """
    if image.feature_level < DAMAGED_LOGS:
        return frozenset()
    return frozenset((log.streamUid, log.partition) for log in request.damagedLogs)


def has_all_acknowledged_records(
    known: NodeImage, request: pb.RegisterNode, damaged: Collection[DamagedLog] = frozenset()
) -> bool:
    """Return whether the directory of a registering node has all records that the node ever acknowledged [C7, S15].

    The logs ``damaged`` are exceptions. A node names them only if they are the single reason why it may lack records.

    ``previousIncarnation`` 0 means an empty directory. A directory of an older incarnation is a stale copy, with one
    exception: the directory with which the current incarnation registered. A process acts only after it has stored its new
    incarnation, so in this case the current one has never acted. An older copy of that directory is recognized because it
    does not know the process that registered (``compare_processes``).
    """
    known_to_it = request.previousIncarnation in (known.incarnation, known.previous_incarnation)
    unbroken = known_to_it and compare_processes(known, request) is not ProcessRelation.OLDER_COPY
    return request.previousIncarnation != 0 and unbroken and (request.cleanStop or request.flushedAlways or bool(damaged))


def fence_node(builder: RecordBuilder, request: pb.FenceNode) -> Steps[Decision]:
    """End the session of a node.

    A fenced node cannot join an ISR or become leader. Leaders remove it from their ISRs.
    """
    node = builder.find_process(request.nodeId, request.incarnation)
    if node.fenced:
        return builder.done(pb.ControlResponse(node=NODE.to_pb(node)))
    fenced = replace(node, fenced=True, session_time_ns=builder.now_ns)
    builder.add(NodeChanged(fenced))
    detail = yield from after_fencing(builder, node.node_id)
    return builder.done(pb.ControlResponse(node=NODE.to_pb(fenced), detail=detail))


def unfence_node(builder: RecordBuilder, request: pb.UnfenceNode) -> Steps[Decision]:
    """Unfence a node whose heartbeats are back, in the same process."""
    node = builder.find_process(request.nodeId, request.incarnation)
    if not node.fenced:
        return builder.done(pb.ControlResponse(node=NODE.to_pb(node)))
    back = replace(node, fenced=False, session_time_ns=builder.now_ns)
    builder.add(NodeChanged(back))
    detail = yield from after_return(builder, node.node_id)
    return builder.done(pb.ControlResponse(node=NODE.to_pb(back), detail=detail))


def _weight(request: pb.RegisterNode) -> float:
    return request.weight if request.HasField("weight") else 1.0


def set_node(builder: RecordBuilder, request: pb.SetNode) -> Decision:
    """Store the settings that an operator chose for a node.

    They override the node's own settings until they are reset. No replica moves.
    """
    node = builder.image.nodes.get(request.nodeId)
    if node is None:
        return refuse(pb.ControlResponse.NOT_FOUND, _unknown(builder.image, request.nodeId))
    try:
        changed = _set(node, request)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    if changed != node:
        builder.add(NodeChanged(changed))
    return builder.done(pb.ControlResponse(node=NODE.to_pb(changed)))


def _set(node: NodeImage, request: pb.SetNode) -> NodeImage:
    if request.HasField("weight"):
        if not 0 <= request.weight <= MAX_WEIGHT:
            raise ConfigError(f"weight = {request.weight} is outside 0..{MAX_WEIGHT:g}")
        node = replace(node, weight=request.weight, weight_by_hand=True)
    if request.HasField("rack"):
        if request.rack:
            check_name(request.rack, "rack")
        node = replace(node, rack=request.rack, rack_by_hand=True)
    if request.HasField("leaving"):
        node = replace(node, leaving=request.leaving)
    return replace(
        node,
        weight_by_hand=node.weight_by_hand and not request.weightAsItSays,
        rack_by_hand=node.rack_by_hand and not request.rackAsItSays,
    )


def remove_node(builder: RecordBuilder, request: pb.RemoveNode) -> Decision:
    """Remove a stopped node without replicas. Its replicas must be moved or deleted first."""
    wrong = why_still_controller(builder.image, request.nodeId)
    if wrong:
        known = request.nodeId in builder.image.nodes
        return refuse(pb.ControlResponse.INVALID if known else pb.ControlResponse.NOT_FOUND, wrong)
    builder.add(NodeRemoved(request.nodeId))
    return builder.done()


def still_a_controller(node_id: str) -> str:
    """Return the text that rejects the removal of a node that is a controller.

    A removed controller would still count as a voter.
    """
    return f"node {node_id!r} is a controller: take it out of the controllers first: liftpy controllers remove {node_id}"


def why_still_controller(image: ClusterImage, node_id: str) -> str:
    """Return why the node cannot be removed, because a controller list in the image contains it. '': none does."""
    node = image.nodes.get(node_id)
    if node is None:
        return _unknown(image, node_id)
    if image.controllers.names(node_id):
        return still_a_controller(node_id)
    hosted = image.hosted.get(node_id)
    if not hosted:
        return "" if node.fenced else f"node {node_id!r} is alive: stop it first"
    names = sorted(hosted)
    count = image.replica_counts.get(node_id, 0)
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    holds = f"node {node_id!r} {'' if node.fenced else 'is alive and '}holds {count} replicas of {some}"
    if node.leaving:
        return f"{holds}: they are on their way to others; liftpy node drain {node_id} --wait waits for that"
    if not node.fenced:
        return f"{holds}: drain it first: liftpy node drain {node_id}"
    moving = sum(node_id not in p.target for _, p in image.partitions_of(node_id) if p.target)
    return (
        f"{holds}: {moving} are on their way to others, {count - moving} wait until it has been down for replacement_grace_s; "
        f"or drain it first, then they move at once: liftpy node drain {node_id}"
    )


def _unknown(image: ClusterImage, node_id: str) -> str:
    some = ", ".join(sorted(image.nodes)[:10]) + (" ..." if len(image.nodes) > 10 else "")
    return f"there is no node {quote(node_id)}; there are: {some or 'none'}"


def _wrong_registration(builder: RecordBuilder, request: pb.RegisterNode) -> str:
    try:
        check_node_or_principal(request.nodeId, "node id")
    except InvalidNameError as error:
        return str(error)
    for what in ("rack", "version", "statusAddress", "folderId", "host"):
        if len(getattr(request, what)) > MAX_TEXT_LENGTH:
            return f"{what} is longer than {MAX_TEXT_LENGTH} characters"
    if len(request.earlierNonces) > MAX_EARLIER_NONCES:
        return f"{len(request.earlierNonces)} earlier nonces, more than {MAX_EARLIER_NONCES}"
    if len(request.damagedLogs) > MAX_DAMAGED_LOGS:
        return f"{len(request.damagedLogs)} damaged logs, more than {MAX_DAMAGED_LOGS}"
    if not 0 <= request.weight <= MAX_WEIGHT:
        return f"weight = {request.weight} is outside 0..{MAX_WEIGHT:g}"
    return ""


def _make_room(builder: RecordBuilder, node_id: str) -> bool:
    """Return whether the node can register within the limit of ``MAX_NODES``.

    If the limit is reached, remove the stopped empty node that was silent the longest.
    """
    nodes, stays = builder.image.nodes, builder.image.controllers.names
    if node_id in nodes or len(nodes) < MAX_NODES:
        return True
    useless = [n for n in nodes.values() if n.fenced and not builder.image.hosted.get(n.node_id) and not stays(n.node_id)]
    if not useless:
        return False
    builder.add(NodeRemoved(min(useless, key=lambda node: (node.session_time_ns, node.node_id)).node_id))
    return True


def report_service(builder: RecordBuilder, request: pb.ReportService) -> Decision:
    """Record that a replicated service on the node has ended.

    The entry is only an event and does not change the image.
    """
    builder.find_partition(request)
    builder.find_process(request.node, request.incarnation)
    if max(len(request.service), len(request.ending), len(request.reason)) > MAX_REASON:
        return refuse(pb.ControlResponse.INVALID, f"a reason has at most {MAX_REASON} characters")
    builder.needs_entry()
    return builder.done()


def change_controllers(builder: RecordBuilder, request: pb.ChangeControllers) -> Decision:
    """Store in the image the controller list that the metadata leader has put into the request."""
    after = replace(CONTROLLERS.from_pb(request.list), index=builder.image.index)
    if not well_formed(after) or request.after != builder.image.controllers.index:
        return refuse(pb.ControlResponse.INVALID, "a change of the controllers that no metadata leader has proposed")
    builder.add(ControllersChanged(after))
    return builder.done(pb.ControlResponse(detail=after.as_text()))


# ---- partitions of a node --------------------------------------------------------------------------------------------


def after_registration(
    builder: RecordBuilder, node_id: str, complete: bool, damaged: Collection[DamagedLog] = frozenset()
) -> Steps[str]:
    """Update all partitions of a registered node, and record the changes. Return a text about the changes.

    A complete replica that registers again stays in its ISRs, and the partitions that it led get a new LeaderEpoch, so that one
    LeaderEpoch never spans two processes. An election chooses the best replica, and prefers the old leader on a tie. A replica
    that may have lost acknowledged data leaves its ISR, unless it is the only member. Then the partition goes Offline until an
    operator decides [C7, C10].

    Args:
        builder: Draft of the request.
        node_id: The registered node.
        complete: True if its directory has all records that the node ever acknowledged, except those of ``damaged``.
        damaged: Logs that the node calls damaged. Their replicas may have lost data.
    """
    lacking: list[PartitionState] = []

    def back(builder: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> PartitionState:
        if complete and (stream.uid, partition.partition) not in damaged:
            return _complete_back(builder, stream, partition, node_id)
        changed = _incomplete_back(builder, stream, partition, node_id)
        if changed != partition:
            lacking.append(changed)
        return changed

    yield from _each(builder, node_id, back)
    if complete and not damaged:
        return ""
    offline = sum(partition.status is PartitionStatus.OFFLINE for partition in lacking)
    return f"may have lost acknowledged data: out of {len(lacking)} partitions until it has caught up, {offline} are offline"


def after_fencing(builder: RecordBuilder, node_id: str) -> Steps[str]:
    """Start elections for the partitions that the fenced node leads. Return a text about the changes.

    Without a candidate the node stays the leader, although its lease ends [D22].

    The node is skipped as a candidate.
    """
    if not builder.rules.elections:
        return ""
    changed = yield from _each(builder, node_id, _without_node)
    return f"{len(changed)} partitions need another leader" if changed else ""


def after_return(builder: RecordBuilder, node_id: str) -> Steps[str]:
    """Elect leaders for partitions that had none until the node returned, because it was in their last known ISR. Return ''."""
    yield from _each(builder, node_id, _revive)
    return ""


def _each(builder: RecordBuilder, node_id: str, step: Step) -> Steps[list[PartitionState]]:
    changes = []
    for number, (stream, partition) in enumerate(builder.image.partitions_of(node_id), 1):
        if number % PER_STEP == 0:
            yield
        counts = node_id in partition.isr or node_id in partition.complete or stream.commits_by_quorum
        if counts or node_id == partition.candidate:
            changed = step(builder, stream, partition, node_id)
            if changed != partition:
                changes.append(builder.change(stream, changed))
    return changes


def _complete_back(builder: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> PartitionState:
    if partition.leader == node_id:
        if not builder.rules.elections or elections.eligible(builder, stream, partition) == (node_id,):
            return replace(partition, leader_epoch=builder.next_leader_epochs())
        return elections.begin_election(builder, stream, partition)
    if partition.candidate == node_id:
        partition = elections.skip_candidate(builder, stream, partition)  # the process that promoted itself is gone
    elif partition.status is PartitionStatus.ELECTION:
        return elections.add_report(builder, stream, partition)
    return _revive(builder, stream, partition, node_id)


def _incomplete_back(builder: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> PartitionState:
    quorum = stream.commits_by_quorum
    sole = partition.isr == (node_id,)
    incomplete = set(partition.incomplete) | ({node_id} if sole or quorum else set())
    staying = partition.isr if sole else tuple(member for member in partition.isr if member != node_id)
    shrunk = replace(
        stream.with_isr(partition, staying, lost=(node_id,)),
        incomplete=tuple(node for node in partition.replicas if node in incomplete),
    )
    if partition.leader == node_id:
        return _replace_leader(builder, stream, shrunk)
    if partition.candidate == node_id:
        return elections.skip_candidate(builder, stream, shrunk)
    if partition.status is PartitionStatus.ELECTION:
        return elections.add_report(builder, stream, shrunk)
    return shrunk


def _without_node(builder: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> PartitionState:
    if partition.leader == node_id:
        return elections.begin_election(builder, stream, partition, deposed=node_id)
    if partition.candidate == node_id:
        return elections.skip_candidate(builder, stream, partition)
    if partition.status is PartitionStatus.ELECTION:
        return elections.add_report(builder, stream, partition)
    return partition


def _revive(builder: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> PartitionState:
    waits = partition.status is PartitionStatus.OFFLINE and node_id in stream.electable_replicas(partition)
    return _replace_leader(builder, stream, partition) if waits else partition


def _replace_leader(builder: RecordBuilder, stream: StreamImage, partition: PartitionState) -> PartitionState:
    if builder.rules.elections:
        return elections.begin_election(builder, stream, partition)
    vacant = elections.offline(partition)
    candidates = [node for node in elections.eligible(builder, stream, vacant) if node in vacant.isr]
    if not candidates:
        return vacant
    return replace(vacant, leader=candidates[0], leader_epoch=builder.next_leader_epochs(), status=PartitionStatus.ONLINE)


# ---- session times ---------------------------------------------------------------------------------------------------


def set_session_times(builder: RecordBuilder, request: pb.SetSessionTimes) -> Decision:
    """Set the session and lease times of the cluster that the request names. Without a change, do nothing."""
    current = _session_times_in_effect(builder)
    try:
        check_session_times(request.sessionMs, request.leaseMs)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    if (request.sessionMs, request.leaseMs) == (current.session_ms, current.lease_ms):
        return _session_times_response(builder, current)
    if request.change != current.change:
        return refuse(pb.ControlResponse.STALE, f"the session times were changed meanwhile: {current.words}")
    if not current.is_settled:
        longest_s = current.longest_session_ns / NS_PER_S
        detail = f"the change before is not settled yet, which takes {longest_s:g} s of one metadata leader: {current.words}"
        return refuse(pb.ControlResponse.STALE, detail)
    changed = current.changed(request.sessionMs, request.leaseMs)
    builder.add(SessionTimesSet(changed))
    return _session_times_response(builder, changed)


def settle_session_times(builder: RecordBuilder, request: pb.SettleSessionTimes) -> Decision:
    """Stop using the session times from before the last change, because no session and no lease with them can exist any more."""
    current = _session_times_in_effect(builder)
    if request.change != current.change:
        return refuse(pb.ControlResponse.STALE, f"the session times were changed meanwhile: {current.words}")
    if not current.is_settled:
        current = current.settled()
        builder.add(SessionTimesSet(current))
    return _session_times_response(builder, current)


def _session_times_response(builder: RecordBuilder, times: SessionTimes) -> Decision:
    return builder.done(pb.ControlResponse(sessionTimes=TIMES.to_pb(times)))


def _session_times_in_effect(builder: RecordBuilder) -> SessionTimes:
    times = builder.image.session_times
    check(times is not None, "M5", "session times at level", builder.image.feature_level)
    assert times is not None
    return times
