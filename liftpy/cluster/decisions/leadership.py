"""What a node's coming and going does to the partitions that it holds.

A complete replica that registers anew stays in its ISRs, and what it leads gets a new LeaderEpoch, so that one
LeaderEpoch never spans two processes. One that may have lost acknowledged data leaves every ISR, but for those of which
it is the only member: these go Offline until the operator decides [C7, C10].
"""

from __future__ import annotations

from dataclasses import replace

from liftpy.cluster.draft import Draft
from liftpy.cluster.image import PartitionImage, PartitionStatus


def after_registration(draft: Draft, node_id: str, complete: bool) -> str:
    """Record the changes of every partition that the node holds; return what happened, for people."""
    left = offline = 0
    for stream, partition in draft.image.partitions_of(node_id):
        if node_id not in partition.isr:
            continue
        if complete:
            changed = _keep(draft, partition, node_id)
        elif partition.isr == (node_id,):
            changed = _doubt(partition)
            offline += 1
        else:
            changed = _leave(draft, partition, node_id)
            left += 1
        if changed is not partition:
            draft.change(stream, changed)
    if complete:
        return ""
    return f"may have lost acknowledged data: left {left} ISRs, {offline} partitions with no other member are offline"


def after_fencing(draft: Draft, node_id: str) -> str:
    """The node's leaderships stay with it until there are elections; it is fenced by its lease meanwhile [D22]."""
    del draft, node_id
    return ""


def after_return(draft: Draft, node_id: str) -> str:
    """A member of the last known ISR is back: partitions that wait for one get their leader."""
    for stream, partition in draft.image.partitions_of(node_id):
        if partition.status is PartitionStatus.OFFLINE:
            changed = _appoint(draft, partition, node_id)
            if changed is not partition:
                draft.change(stream, changed)
    return ""


def _keep(draft: Draft, partition: PartitionImage, node_id: str) -> PartitionImage:
    if partition.leader == node_id:
        return replace(partition, leader_epoch=draft.next_leader_epochs())
    if partition.status is PartitionStatus.OFFLINE:
        return _appoint(draft, partition, node_id)
    return partition


def _doubt(partition: PartitionImage) -> PartitionImage:
    if partition.status is PartitionStatus.OFFLINE and partition.incomplete == partition.isr:
        return partition
    return replace(partition, leader="", status=PartitionStatus.OFFLINE, incomplete=partition.isr)


def _leave(draft: Draft, partition: PartitionImage, node_id: str) -> PartitionImage:
    isr = tuple(member for member in partition.isr if member != node_id)
    shrunk = replace(partition, isr=isr, incomplete=tuple(n for n in partition.incomplete if n != node_id))
    if partition.leader != node_id:
        return shrunk
    alone = replace(shrunk, leader="", status=PartitionStatus.OFFLINE)
    for member in isr:
        if draft.image.is_live(member):
            return _appoint(draft, alone, member)
    return alone


def _appoint(draft: Draft, partition: PartitionImage, node_id: str) -> PartitionImage:
    if node_id not in partition.isr or node_id in partition.incomplete:
        return partition
    return replace(partition, leader=node_id, leader_epoch=draft.next_leader_epochs(), status=PartitionStatus.ONLINE)
