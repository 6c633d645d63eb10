"""Connects the placement algorithms with the image: node facts, partitions, and plans for dry runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from liftpy.core.base.cooperative_apply import Steps
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.placement import candidates_for, place_in_steps, takes_long
from liftpy.core.metadata.placement.facts import (
    AssignmentEntry,
    NodeFacts,
    NotEnoughNodesError,
    PlacementRequest,
    PlacementResult,
    Replicas,
    sort_by_id,
)
from liftpy.core.metadata.record_builder import RecordBuilder
from liftpy.core.wire._pb import cluster_pb2 as pb


def facts_of(image: ClusterImage) -> list[NodeFacts]:
    """Return the facts about all nodes in the image that placement needs, in order of the node ids."""
    return sort_by_id(
        [
            NodeFacts(
                node_id=node.node_id,
                rack=node.rack,
                weight=node.weight,
                live=not node.fenced,
                replicas=image.replica_counts.get(node.node_id, 0),
                leaders=image.leader_counts.get(node.node_id, 0),
                budget=node.partition_budget,
                leaving=node.leaving,
            )
            for node in image.nodes.values()
        ]
    )


def assignment_from_pb(lists: Iterable[pb.ReplicaList]) -> tuple[AssignmentEntry, ...]:
    """Convert a manual assignment of replicas to partitions from protobuf."""
    return tuple(AssignmentEntry(partition=entry.partition, replicas=tuple(entry.replicas)) for entry in lists)


def place_on_image(draft: RecordBuilder, wanted: PlacementRequest) -> Steps[PlacementResult]:
    """Choose nodes of the image for the partitions ``wanted``. Raises the errors of ``place``.

    The start index for the next placement does not change.
    """
    nodes = facts_of(draft.image)
    if takes_long(nodes, wanted):
        candidates_for(nodes, wanted)
        draft.takes_long()
    return (yield from place_in_steps(nodes, wanted))


def new_partitions(draft: RecordBuilder, placed: Sequence[Replicas], first: int = 0) -> tuple[PartitionState, ...]:
    """Return new empty partitions with numbers from ``first`` on. ``placed``: replicas of each.

    The first live replica leads, all live replicas are in the ISR. If all are down, the partition waits.
    """
    leader_epoch, epoch = draft.next_leader_epochs(len(placed)), draft.next_epochs(len(placed))
    live = {node for node in set().union(*placed) if draft.is_live(node)}
    return tuple(
        _new_partition(first + number, replicas, live, leader_epoch + number, epoch + number)
        for number, replicas in enumerate(placed)
    )


def _new_partition(number: int, replicas: Replicas, live: set[str], leader_epoch: int, epoch: int) -> PartitionState:
    up = replicas if live.issuperset(replicas) else tuple(node for node in replicas if node in live)
    leader = up[0] if up else ""
    return PartitionState(
        partition=number,
        replicas=replicas,
        isr=up or replicas,
        leader=leader,
        leader_epoch=leader_epoch,
        epoch=epoch,
        status=PartitionStatus.ONLINE if leader else PartitionStatus.OFFLINE,
        last_leader=leader,
        leaderships=1 if leader else 0,
    )


def plan_of(image: ClusterImage, wanted: PlacementRequest, placed: PlacementResult | NotEnoughNodesError) -> pb.PlacementPlan:
    """Return the answer to a dry run of a placement: the assignment, or the reason why the stream would wait.

    ``wanted``: requested partitions. ``placed``: result of ``place``, or its error.
    """
    nodes = facts_of(image)
    plan = pb.PlacementPlan(
        firstPartition=wanted.first,
        replicationFactor=wanted.replication_factor,
        nodes=[
            pb.PlannedNode(
                nodeId=node.node_id,
                rack=node.rack,
                weight=node.weight,
                replicas=node.replicas,
                leaders=node.leaders,
                fenced=not node.live,
            )
            for node in nodes
        ],
    )
    if isinstance(placed, NotEnoughNodesError):
        plan.waits = str(placed)
        return plan
    at = {node.node_id: number for number, node in enumerate(nodes)}
    plan.replicationFactor = len(placed.replicas[0])
    plan.replicas.extend(at[node] for replicas in placed.replicas for node in replicas)
    plan.notes.extend(placed.notes)
    return plan
