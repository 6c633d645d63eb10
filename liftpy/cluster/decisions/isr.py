"""ChangeIsr: the leader asks, apply decides, by compare-and-set on (leader, LeaderEpoch, Epoch) [C4]. LeaveIsr: a follower asks for
itself, because its storage has failed."""

from __future__ import annotations

from dataclasses import replace

from liftpy.cluster.codec import partition_to_pb
from liftpy.cluster.decisions.moving import evicted, joined, settled
from liftpy.cluster.decisions.nodes import current_node
from liftpy.cluster.draft import Decision, Draft, refuse
from liftpy.partition import PartitionState, PartitionStatus
from liftpy.wire._pb import cluster_pb2 as pb


def change_isr(draft: Draft, request: pb.ChangeIsr) -> Decision:
    """The ISR as asked, if the request was made on the partition's current state; else STALE with that state."""
    found = draft.image.find(request.stream, request.uid, request.partition)
    if found is None:
        detail = f"there is no partition {request.stream}/{request.partition} of stream {request.uid or 'of that name'}"
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    stream, partition = found
    refusal = _refusal(draft, request, partition)
    if refusal is not None:
        return refusal
    # The same ISR again raises the Epoch too: so a leader that never heard of its last attempt's outcome settles it [C8].
    incomplete = tuple(node for node in partition.incomplete if node not in request.isr)
    if partition.joining in request.isr:
        partition = joined(partition)
    moved = replace(stream.with_isr(partition, request.isr, request.lost), incomplete=incomplete)
    if request.evicted:
        moved = evicted(moved, request.evicted)
    changed = draft.change(stream, settled(stream, moved) if partition.target else moved)
    return draft.done(pb.ControlResponse(partition=partition_to_pb(changed)))


def leave_isr(draft: Draft, request: pb.LeaveIsr) -> Decision:
    """The ISR without a follower whose log can't be worked with any more: commits go on without it, as if it were gone.

    What is committed is on the others. A leader gives the leadership up instead; in an election the ISR is frozen.
    """
    found = draft.image.find(request.stream, request.uid, request.partition)
    if found is None:
        detail = f"there is no partition {request.stream}/{request.partition} of stream {request.uid or 'of that name'}"
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    stream, partition = found
    node = current_node(draft, request.node, request.incarnation)
    if isinstance(node, Decision):
        return node
    if partition.status is not PartitionStatus.ONLINE or partition.leader == request.node:
        detail = f"{partition.status.name}, led by {partition.leader!r}: only a follower leaves the ISR of an Online partition"
        return refuse(pb.ControlResponse.STALE, detail, partition)
    if request.node not in partition.isr:
        return draft.done(pb.ControlResponse(partition=partition_to_pb(partition)))
    moved = stream.with_isr(partition, [member for member in partition.isr if member != request.node])
    return draft.done(pb.ControlResponse(partition=partition_to_pb(draft.change(stream, moved))))


def _refusal(draft: Draft, request: pb.ChangeIsr, partition: PartitionState) -> Decision | None:
    current = (partition.leader, partition.leader_epoch, partition.epoch)
    if partition.status is not PartitionStatus.ONLINE or (request.leader, request.leaderEpoch, request.epoch) != current:
        detail = f"{partition.status.name}, (leader, LeaderEpoch, Epoch) is {current} now"
        return refuse(pb.ControlResponse.STALE, detail, partition)
    members = set(request.isr)
    if len(members) != len(request.isr) or not members <= set(partition.holders) or partition.leader not in members:
        detail = f"ISR {list(request.isr)}: must hold the leader, and only replicas {list(partition.holders)}, each once"
        return refuse(pb.ControlResponse.INVALID, detail, partition)
    if request.evicted and (request.evicted != partition.leaving or request.evicted in (partition.leader, *members)):
        detail = (
            f"{request.evicted!r} is not the next to go, leads, or is to be in the ISR; to go: {partition.leaving or 'nobody'}"
        )
        return refuse(pb.ControlResponse.INVALID, detail, partition)
    if request.evicted and partition.joining in members:
        detail = f"{partition.joining!r} joins and {request.evicted!r} goes: the replica set changes by one node at a time"
        return refuse(pb.ControlResponse.INVALID, detail, partition)
    if not draft.image.is_live(partition.leader):
        return refuse(pb.ControlResponse.FENCED, f"leader {partition.leader!r} is fenced", partition)
    for node_id in sorted(members.difference(partition.isr)):
        detail = _why_not_join(draft, request, node_id)
        if detail:
            return refuse(pb.ControlResponse.FENCED, detail, partition)
    return None


def _why_not_join(draft: Draft, request: pb.ChangeIsr, node_id: str) -> str:
    """A new member is live and of the incarnation that caught up [C6]. A present one may be fenced: it leaves later."""
    node = draft.image.nodes.get(node_id)
    if node is None or node.fenced:
        return f"node {node_id!r} is not live"
    seen = request.incarnations.get(node_id, 0)
    return "" if seen == node.incarnation else f"node {node_id!r} is incarnation {node.incarnation} now, not {seen}"
