"""Reassign and BeginCopy: the target replicas of a partition, and the node that copies its log next.

The number of copies never falls during a move. Each step is in the image, so a move continues after any crash. One swap
runs at a time: a learner copies the log (BeginCopy), and joins the replicas and the ISR. Then the unwanted replica
transfers its leadership and leaves (both by ChangeIsr).

Example: replicas a b c, target a b d. BeginCopy d: d is ``joining``. ISR a b c d: replicas a b d c. ISR a b d without
c: replicas a b d, no target.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from liftpy.core.base.partition import MoveReason, PartitionState
from liftpy.core.metadata.image import StreamImage
from liftpy.core.metadata.record_builder import Decision, RecordBuilder, refuse
from liftpy.core.wire._pb import cluster_pb2 as pb

MAX_REPLICAS = 32


def reassign(draft: RecordBuilder, request: pb.Reassign) -> Decision:
    """Set the target replicas of a partition, to which its replicas then move.

    If only the order of the replicas changes, the change takes effect at once.
    """
    stream, partition = draft.find_partition(request)
    if request.epoch not in (0, partition.epoch):
        return refuse(pb.ControlResponse.STALE, f"Epoch {partition.epoch} now, not {request.epoch}", partition)
    if request.cancel:
        return draft.store(stream, finish_reached_target(stream, without_further_moves(partition)))
    wanted = tuple(request.replicas)
    wrong = _why_not(draft, partition, wanted)
    if wrong:
        return refuse(pb.ControlResponse.INVALID, wrong, partition)
    reason = MoveReason.of(request.movedFor)
    base = partition if partition.joining in wanted else replace(partition, joining="", copy_epoch=0)
    changed = finish_reached_target(stream, replace(base, target=wanted, moved_for=reason))
    if reason is MoveReason.REBALANCED and not changed.target and draft.rules.elections:
        # only the order is another one: leaderships are what is evened out, and the planner moves them, some at a time
        changed = finish_reached_target(stream, replace(changed, moved_for=MoveReason.LEADERSHIPS))
    return draft.store(stream, changed)


def begin_copy(draft: RecordBuilder, request: pb.BeginCopy) -> Decision:
    """Make the node the partition's learner. If the request names no node, cancel the running copy."""
    stream, partition = draft.find_partition(request)
    if request.epoch != partition.epoch:
        return refuse(pb.ControlResponse.STALE, f"Epoch {partition.epoch} now, not {request.epoch}", partition)
    if request.node and request.node != partition.next_learner:
        detail = f"{request.node!r} is not the next one that is wanted: {partition.next_learner or 'nobody is'}"
        return refuse(pb.ControlResponse.INVALID, detail, partition)
    if request.node and not draft.is_live(request.node):
        return refuse(pb.ControlResponse.FENCED, f"node {request.node!r} is not live", partition)
    copy = partition.epoch if request.node else 0
    return draft.store(stream, replace(partition, joining=request.node, copy_epoch=copy))


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


def _why_not(draft: RecordBuilder, partition: PartitionState, wanted: tuple[str, ...]) -> str:
    if not 1 <= len(wanted) <= MAX_REPLICAS:
        return f"{len(wanted)} replicas are outside 1..{MAX_REPLICAS}"
    twice = sorted(node for node, count in Counter(wanted).items() if count > 1)
    if twice:
        return f"{', '.join(twice)}: a node holds one replica of a partition at most"
    for node_id in wanted:
        node = draft.node(node_id)
        if node is None:
            return f"there is no node {node_id!r}"
        if node_id in partition.holders or node_id in partition.target:
            continue  # it is chosen already: what has become of it is the planner's business
        if node.fenced or node.leaving:
            return f"node {node_id!r} " + (
                "is not live" if node.fenced else "is leaving (liftpy node drain): it is given nothing"
            )
        replica_count = draft.image.replica_counts.get(node_id, 0)
        if node.partition_budget and replica_count >= node.partition_budget:
            return f"no room on {node_id!r}: it holds {replica_count} of {node.partition_budget} replicas"
    return ""
