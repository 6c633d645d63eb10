"""Requests about partitions: ISR, pause, log start, purges, and moves of replicas.

- ChangeIsr: the leader requests a new ISR. It is a compare-and-set on (leader, LeaderEpoch, Epoch) [C4].
- LeaveIsr: a follower leaves the ISR, because its storage failed.
- PausePartitions: an operator pauses or resumes partitions.
- WakePartition: a leader received a publish and ends the pause.
- TruncateBefore: an operator raises the log start.
- PurgeRecords: an operator deletes records by subject or key.
- ReportPurged: a replica has deleted them (``liftpy/core/base/purge.py``).
- Reassign: the target replicas of a partition.
- BeginCopy: the node that copies the log of a partition next.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from liftpy.core.base.cooperative_apply import PER_STEP, Steps
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus, Pause, Purge
from liftpy.core.base.purge import MAX_PURGE_BYTES, MAX_PURGES, waits_for, with_purge, with_report
from liftpy.core.metadata.codec import PARTITION, STREAM
from liftpy.core.metadata.controller.record_builder import Decision, RecordBuilder, RejectedError, refuse
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.filters import Filter
from liftpy.errors import LiftError

MAX_OFFSET = 1 << 62
MAX_REPLICAS = 32
REQUESTED_PAUSES = {
    pb.NOT_PAUSED: Pause.ENDING,
    pb.UNTIL_RESUMED: Pause.UNTIL_RESUMED,
    pb.UNTIL_PUBLISH: Pause.UNTIL_PUBLISH,
    pb.UNTIL_PUBLISH_TO_ANY: Pause.UNTIL_PUBLISH_TO_ANY,
}
"""Value of ``pause`` in a request -> state of the partition after it. A request cannot have another value."""


def change_isr(builder: RecordBuilder, request: pb.ChangeIsr) -> Decision:
    """Set the requested ISR if the request is based on the current state of the partition.

    Otherwise answer STALE with that state.
    """
    stream, partition = builder.find_partition(request)
    _check_change(builder, request, partition)
    # A repeated ISR raises the Epoch too, so a leader that never got the result of its last attempt can settle it [C8].
    incomplete = tuple(node for node in partition.incomplete if node not in request.isr)
    if partition.joining in request.isr:
        partition = add_learner_to_replicas(partition)
    moved = replace(stream.with_isr(partition, request.isr, request.lost), incomplete=incomplete)
    if request.evicted:
        moved = remove_replica(moved, request.evicted)
    changed = builder.change(stream, finish_reached_target(stream, moved) if partition.target else moved)
    return builder.done(pb.ControlResponse(partition=PARTITION.to_pb(changed)))


def leave_isr(builder: RecordBuilder, request: pb.LeaveIsr) -> Decision:
    """Remove a follower with a failed log from the ISR, so that commits continue without it.

    The other members have the committed records. A leader gives up the leadership instead. During an election the ISR
    does not change.
    """
    stream, partition = builder.find_partition(request)
    builder.find_process(request.node, request.incarnation)
    if partition.status is not PartitionStatus.ONLINE or partition.leader == request.node:
        detail = f"{partition.status.name}, led by {partition.leader!r}: only a follower leaves the ISR of an Online partition"
        return refuse(pb.ControlResponse.STALE, detail, partition)
    if request.node not in partition.isr:
        return builder.store(stream, partition)
    moved = stream.with_isr(partition, [member for member in partition.isr if member != request.node])
    return builder.done(pb.ControlResponse(partition=PARTITION.to_pb(builder.change(stream, moved))))


def _check_change(builder: RecordBuilder, request: pb.ChangeIsr, partition: PartitionState) -> None:
    current = (partition.leader, partition.leader_epoch, partition.epoch)
    if partition.status is not PartitionStatus.ONLINE or (request.leader, request.leaderEpoch, request.epoch) != current:
        detail = f"{partition.status.name}, (leader, LeaderEpoch, Epoch) is {current} now"
        raise RejectedError(pb.ControlResponse.STALE, detail, partition)
    members = set(request.isr)
    if len(members) != len(request.isr) or not members <= set(partition.holders) or partition.leader not in members:
        detail = f"ISR {list(request.isr)}: must hold the leader, and only replicas {list(partition.holders)}, each once"
        raise RejectedError(pb.ControlResponse.INVALID, detail, partition)
    if request.evicted and (request.evicted != partition.leaving or request.evicted in (partition.leader, *members)):
        detail = (
            f"{request.evicted!r} is not the next to go, leads, or is to be in the ISR; to go: {partition.leaving or 'nobody'}"
        )
        raise RejectedError(pb.ControlResponse.INVALID, detail, partition)
    if request.evicted and partition.joining in members:
        detail = f"{partition.joining!r} joins and {request.evicted!r} goes: the replica set changes by one node at a time"
        raise RejectedError(pb.ControlResponse.INVALID, detail, partition)
    if not builder.image.is_live(partition.leader):
        raise RejectedError(pb.ControlResponse.FENCED, f"leader {partition.leader!r} is fenced", partition)
    for node_id in sorted(members.difference(partition.isr)):
        detail = _why_not_join(builder, request, node_id)
        if detail:
            raise RejectedError(pb.ControlResponse.FENCED, detail, partition)


def _why_not_join(builder: RecordBuilder, request: pb.ChangeIsr, node_id: str) -> str:
    """Return why a node may not join the ISR. '': it may.

    A new member must be live and have the incarnation that caught up [C6]. An existing member may be fenced. It is
    removed later.
    """
    node = builder.image.nodes.get(node_id)
    if node is None or node.fenced:
        return f"node {node_id!r} is not live"
    seen = request.incarnations.get(node_id, 0)
    return "" if seen == node.incarnation else f"node {node_id!r} is incarnation {node.incarnation} now, not {seen}"


def pause_partitions(builder: RecordBuilder, request: pb.PausePartitions) -> Steps[Decision]:
    """Pause or resume all partitions that the request names, or none if one is rejected.

    A partition in the requested state does not change.
    """
    stream = builder.find_stream(request.stream, request.uid)
    pause = REQUESTED_PAUSES.get(request.pause)
    if pause is None:
        return refuse(pb.ControlResponse.INVALID, f"pause = {request.pause}: nobody asks for that")
    if request.HasField("configVersion") and request.configVersion != stream.config_version:
        detail = (
            f"the settings of {stream.name!r} are at version {stream.config_version}, not {request.configVersion}: look again"
        )
        return refuse(pb.ControlResponse.STALE, detail)
    missing = sorted(number for number in set(request.partitions) if number >= len(stream.partitions))
    if missing or not stream.partitions:
        there = f"it has {len(stream.partitions)}" if stream.partitions else "it waits for nodes"
        detail = f"there is no partition {stream.name}/{missing[0] if missing else 0}: {there}"
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    partitions = list(stream.partitions)
    for place, number in enumerate(sorted(set(request.partitions)) or range(len(partitions))):
        changed = _with_pause(partitions[number], pause)
        if changed is not partitions[number]:
            partitions[number] = builder.change(stream, changed)
        if place % PER_STEP == PER_STEP - 1:
            yield
    return builder.done(pb.ControlResponse(stream=STREAM.to_pb(replace(stream, partitions=tuple(partitions)))))


def wake_partition(builder: RecordBuilder, request: pb.WakePartition) -> Decision:
    """Take one step to end a pause after a publish: UNTIL_PUBLISH becomes ENDING, and ENDING becomes NOT_PAUSED.

    If requested, all partitions that were paused together change.
    """
    stream, partition = builder.find_partition(request, f"of the id {request.uid!r}")
    current = (partition.leader, partition.leader_epoch, partition.pause.name, partition.pauses)
    requested_state = (request.leader, request.leaderEpoch, Pause.of(request.pause).name, request.pauses)
    if partition.status is not PartitionStatus.ONLINE or requested_state != current:
        detail = f"{partition.status.name}, (leader, LeaderEpoch, pause, pauses) is {current} now"
        return refuse(pb.ControlResponse.STALE, detail, partition)
    if partition.pause is Pause.ENDING:
        partition = builder.change(stream, replace(partition, pause=Pause.NOT_PAUSED))
    elif partition.pause.until_publish:
        partition = _wake(builder, stream, partition)
    else:
        return refuse(pb.ControlResponse.INVALID, f"{partition.pause.name}: operators alone resume it", partition)
    return builder.done(pb.ControlResponse(partition=PARTITION.to_pb(partition)))


def _with_pause(partition: PartitionState, pause: Pause) -> PartitionState:
    if pause is Pause.ENDING:
        return replace(partition, pause=Pause.ENDING) if partition.pause.takes_nothing else partition
    if partition.pause is pause:
        return partition
    return replace(partition, pause=pause, pauses=partition.pauses + 1)


def _wake(builder: RecordBuilder, stream: StreamImage, partition: PartitionState) -> PartitionState:
    if partition.pause is Pause.UNTIL_PUBLISH:
        return builder.change(stream, replace(partition, pause=Pause.ENDING))
    for other in stream.partitions:
        if other.pause is Pause.UNTIL_PUBLISH_TO_ANY:
            changed = builder.change(stream, replace(other, pause=Pause.ENDING))
            partition = changed if other is partition else partition
    return partition


def truncate_before(builder: RecordBuilder, request: pb.TruncateBefore) -> Decision:
    """Raise the log start of a partition, so that older records are deleted.

    All replicas delete the records below the new log start. Replicas that are down delete them later. The log start never
    falls.
    """
    stream, partition = _find_by_uid(builder, request)
    if not 0 <= request.offset <= MAX_OFFSET:
        return refuse(pb.ControlResponse.INVALID, f"offset = {request.offset} is outside 0..{MAX_OFFSET}", partition)
    return builder.store(stream, replace(partition, asked_start=max(request.offset, partition.asked_start)))


def _find_by_uid(builder: RecordBuilder, request: pb.TruncateBefore | pb.PurgeRecords) -> tuple[StreamImage, PartitionState]:
    ending = f"of the id {request.uid!r}"
    if not request.uid:
        raise RejectedError(
            pb.ControlResponse.NOT_FOUND, f"there is no partition {request.stream}/{request.partition} {ending}"
        )
    return builder.find_partition(request, ending)


def purge_records(builder: RecordBuilder, request: pb.PurgeRecords) -> Decision:
    """Store the request of an operator to delete records by subject or key.

    All replicas delete the matching records, also those that are down now.
    """
    stream, partition = _find_by_uid(builder, request)
    if not 0 < request.endOffset <= MAX_OFFSET:
        return refuse(pb.ControlResponse.INVALID, f"end offset = {request.endOffset} is outside 1..{MAX_OFFSET}", partition)
    try:
        wanted = Filter(tuple(sorted(set(request.subjects))), tuple(sorted(set(request.keys))))
    except LiftError as error:
        return refuse(pb.ControlResponse.INVALID, str(error), partition)
    if not wanted:
        detail = "a purge names subjects or keys; to give up everything below an offset, truncate the stream"
        return refuse(pb.ControlResponse.INVALID, detail, partition)
    purge = Purge(number=builder.next_epochs(), subjects=wanted.subjects, keys=wanted.keys, end_offset=request.endOffset)
    changed = with_purge(partition, purge)
    if changed is None:
        return refuse(pb.ControlResponse.INVALID, _no_room(partition, purge), partition)
    if changed is partition:
        return Decision((), pb.ControlResponse(partition=PARTITION.to_pb(partition)))
    return builder.store(stream, changed)


def report_purged(builder: RecordBuilder, request: pb.ReportPurged) -> Decision:
    """Store the report of a replica that it has deleted the records of purges.

    The replica must be an ISR member in its registered incarnation. Other reports change nothing.
    """
    stream, partition = builder.find_partition(request)
    builder.find_process(request.node, request.incarnation)
    return builder.store(stream, with_report(partition, request.node, request.number))


def _no_room(partition: PartitionState, new: Purge) -> str:
    waits = sorted({node for purge in partition.purges for node in waits_for(partition, purge)})
    if new.size_bytes > MAX_PURGE_BYTES:
        return f"the subjects and keys of a purge have at most {MAX_PURGE_BYTES} bytes, not {new.size_bytes}: purge in several turns"
    return (
        f"{len(partition.purges)} purges are under way, of at most {MAX_PURGES} and {MAX_PURGE_BYTES} bytes of subjects and keys: they "
        f"wait for {', '.join(waits)}. Try again when they are done"
    )


# ---- moves -----------------------------------------------------------------------------------------------------------


def reassign(builder: RecordBuilder, request: pb.Reassign) -> Decision:
    """Set the target replicas of a partition, to which its replicas then move.

    If only the order of the replicas changes, the change takes effect at once. The number of copies never falls during a move.
    Each step is in the image, so a move continues after any crash. One swap runs at a time: a learner copies the log
    (BeginCopy), and joins the replicas and the ISR. Then the unwanted replica transfers its leadership and leaves (both by
    ChangeIsr).

    Example: replicas a b c, target a b d. BeginCopy d: d is ``joining``. ISR a b c d: replicas a b d c. ISR a b d without c:
    replicas a b d, no target.
    """
    stream, partition = builder.find_partition(request)
    if request.epoch not in (0, partition.epoch):
        return refuse(pb.ControlResponse.STALE, f"Epoch {partition.epoch} now, not {request.epoch}", partition)
    if request.cancel:
        return builder.store(stream, finish_reached_target(stream, without_further_moves(partition)))
    wanted = tuple(request.replicas)
    wrong = _why_not(builder, partition, wanted)
    if wrong:
        return refuse(pb.ControlResponse.INVALID, wrong, partition)
    reason = MoveReason.of(request.movedFor)
    base = partition if partition.joining in wanted else replace(partition, joining="", copy_epoch=0)
    changed = finish_reached_target(stream, replace(base, target=wanted, moved_for=reason))
    if reason is MoveReason.REBALANCED and not changed.target and builder.rules.elections:
        # only the order is another one: leaderships are what is evened out, and the planner moves them, some at a time
        changed = finish_reached_target(stream, replace(changed, moved_for=MoveReason.LEADERSHIPS))
    return builder.store(stream, changed)


def begin_copy(builder: RecordBuilder, request: pb.BeginCopy) -> Decision:
    """Make the node the partition's learner. If the request names no node, cancel the running copy."""
    stream, partition = builder.find_partition(request)
    if request.epoch != partition.epoch:
        return refuse(pb.ControlResponse.STALE, f"Epoch {partition.epoch} now, not {request.epoch}", partition)
    if request.node and request.node != partition.next_learner:
        detail = f"{request.node!r} is not the next one that is wanted: {partition.next_learner or 'nobody is'}"
        return refuse(pb.ControlResponse.INVALID, detail, partition)
    if request.node and not builder.is_live(request.node):
        return refuse(pb.ControlResponse.FENCED, f"node {request.node!r} is not live", partition)
    copy = partition.epoch if request.node else 0
    return builder.store(stream, replace(partition, joining=request.node, copy_epoch=copy))


def without_further_moves(partition: PartitionState) -> PartitionState:
    """Return the partition without its target: the running copy is canceled, and an already replaced replica is removed."""
    if not partition.leaving:
        return replace(partition, target=(), joining="", copy_epoch=0, moved_for=MoveReason.BY_HAND)
    staying = tuple(node for node in partition.replicas if node != partition.leaving)
    return replace(partition, target=staying, joining="", copy_epoch=0)


def add_learner_to_replicas(partition: PartitionState) -> PartitionState:
    """Return the partition after the learner became a replica. The target replicas come first."""
    replicas = (*partition.replicas, partition.joining)
    wanted = [node for node in partition.target if node in replicas]
    order = (*wanted, *(node for node in replicas if node not in wanted))
    return replace(partition, replicas=order, joining="", copy_epoch=0)


def remove_replica(partition: PartitionState, node_id: str) -> PartitionState:
    """Return the partition without ``node_id`` in replicas and ISR."""

    def without(nodes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(node for node in nodes if node != node_id)

    return replace(
        partition,
        replicas=without(partition.replicas),
        isr=without(partition.isr),
        incomplete=without(partition.incomplete),
        complete=without(partition.complete),
        passed_over=without(partition.passed_over),
    )


def finish_reached_target(stream: StreamImage, partition: PartitionState) -> PartitionState:
    """If the replicas have reached the target, return the partition without target. Sort the ISR in replica order.

    Replicas outside the ISR no longer count as complete if the HW can rise without them.
    """
    if partition.target and set(partition.target) == set(partition.replicas):
        partition = replace(partition, replicas=partition.target, target=())
    if not partition.target and not partition.leader_to_elect:
        partition = replace(partition, moved_for=MoveReason.BY_HAND)
    moves = len(partition.isr) >= partition.min_isr(stream.config)

    def ordered(nodes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(node for node in partition.replicas if node in nodes)

    return replace(
        partition,
        isr=ordered(partition.isr),
        incomplete=ordered(partition.incomplete),
        complete=() if moves else ordered(partition.complete),
    )


def _why_not(builder: RecordBuilder, partition: PartitionState, wanted: tuple[str, ...]) -> str:
    if not 1 <= len(wanted) <= MAX_REPLICAS:
        return f"{len(wanted)} replicas are outside 1..{MAX_REPLICAS}"
    twice = sorted(node for node, count in Counter(wanted).items() if count > 1)
    if twice:
        return f"{', '.join(twice)}: a node holds one replica of a partition at most"
    for node_id in wanted:
        node = builder.node(node_id)
        if node is None:
            return f"there is no node {node_id!r}"
        if node_id in partition.holders or node_id in partition.target:
            continue  # it is chosen already: what has become of it is the planner's business
        if node.fenced or node.leaving:
            return f"node {node_id!r} " + (
                "is not live" if node.fenced else "is leaving (liftpy node drain): it is given nothing"
            )
        replica_count = builder.image.replica_counts.get(node_id, 0)
        if node.partition_budget and replica_count >= node.partition_budget:
            return f"no room on {node_id!r}: it holds {replica_count} of {node.partition_budget} replicas"
    return ""
