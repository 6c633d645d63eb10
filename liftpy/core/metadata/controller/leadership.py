"""Changes the partitions of a node that registers or is fenced.

A complete replica that registers again stays in its ISRs, and the partitions that it led get a new LeaderEpoch, so that
one LeaderEpoch never spans two processes. An election chooses the best replica, and prefers the old leader on a tie. A
node that may have lost acknowledged data leaves every ISR, except those in which it is the only member: these go
Offline until an operator decides [C7, C10]. A node whose session ends loses its leaderships, and is skipped as a
candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from liftpy.core.base.cooperative_apply import PER_STEP, Steps
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata import election
from liftpy.core.metadata.image import StreamImage
from liftpy.core.metadata.record_builder import RecordBuilder

Step = Callable[[RecordBuilder, StreamImage, PartitionState, str], PartitionState]


def after_registration(draft: RecordBuilder, node_id: str, complete: bool) -> Steps[str]:
    """Record the changes of all partitions of the node. Return a text about them."""
    if complete:
        yield from _each(draft, node_id, _complete_back)
        return ""
    changed = yield from _each(draft, node_id, _incomplete_back)
    offline = sum(partition.status is PartitionStatus.OFFLINE for partition in changed)
    return f"may have lost acknowledged data: out of {len(changed)} partitions until it has caught up, {offline} are offline"


def after_fencing(draft: RecordBuilder, node_id: str) -> Steps[str]:
    """Start elections for the partitions that the node leads.

    Without a candidate the node stays the leader, although its lease ends [D22].
    """
    if not draft.rules.elections:
        return ""
    changed = yield from _each(draft, node_id, _gone)
    return f"{len(changed)} partitions need another leader" if changed else ""


def after_return(draft: RecordBuilder, node_id: str) -> Steps[str]:
    """Elect leaders for partitions that wait for a member of their last known ISR: this node is back."""
    yield from _each(draft, node_id, _revive)
    return ""


def _each(draft: RecordBuilder, node_id: str, step: Step) -> Steps[list[PartitionState]]:
    """Run ``step`` for each partition that the node can be elected for. Record and return the changes."""
    changes = []
    for number, (stream, partition) in enumerate(draft.image.partitions_of(node_id), 1):
        if number % PER_STEP == 0:
            yield
        counts = node_id in partition.isr or node_id in partition.complete or election.is_quorum(stream)
        if counts or node_id == partition.candidate:
            changed = step(draft, stream, partition, node_id)
            if changed != partition:
                changes.append(draft.change(stream, changed))
    return changes


def _complete_back(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> PartitionState:
    if partition.leader == node_id:
        if not draft.rules.elections or election.eligible(draft, stream, partition) == (node_id,):
            return replace(partition, leader_epoch=draft.next_leader_epochs())
        return election.begin(draft, stream, partition)
    if partition.candidate == node_id:
        partition = election.pass_over(draft, stream, partition)  # the process that promoted itself is gone
    elif partition.status is PartitionStatus.ELECTION:
        return election.answered(draft, stream, partition)
    return _revive(draft, stream, partition, node_id)


def _incomplete_back(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> PartitionState:
    quorum = election.is_quorum(stream)
    sole = partition.isr == (node_id,)
    incomplete = set(partition.incomplete) | ({node_id} if sole or quorum else set())
    staying = partition.isr if sole else tuple(member for member in partition.isr if member != node_id)
    shrunk = replace(
        stream.with_isr(partition, staying, lost=(node_id,)),
        incomplete=tuple(node for node in partition.replicas if node in incomplete),
    )
    if partition.leader == node_id:
        return _replace_leader(draft, stream, shrunk)
    if partition.candidate == node_id:
        return election.pass_over(draft, stream, shrunk)
    if partition.status is PartitionStatus.ELECTION:
        return election.answered(draft, stream, shrunk)
    return shrunk


def _gone(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> PartitionState:
    if partition.leader == node_id:
        return election.begin(draft, stream, partition, deposed=node_id)
    if partition.candidate == node_id:
        return election.pass_over(draft, stream, partition)
    if partition.status is PartitionStatus.ELECTION:
        return election.answered(draft, stream, partition)
    return partition


def _revive(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> PartitionState:
    waits = partition.status is PartitionStatus.OFFLINE and node_id in stream.may_lead(partition)
    return _replace_leader(draft, stream, partition) if waits else partition


def _replace_leader(draft: RecordBuilder, stream: StreamImage, partition: PartitionState) -> PartitionState:
    if draft.rules.elections:
        return election.begin(draft, stream, partition)
    vacant = election.offline(partition)
    candidates = [node for node in election.eligible(draft, stream, vacant) if node in vacant.isr]
    if not candidates:
        return vacant
    return replace(vacant, leader=candidates[0], leader_epoch=draft.next_leader_epochs(), status=PartitionStatus.ONLINE)
