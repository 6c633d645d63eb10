"""Describes the current moves of replicas, for status output and for placement. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage, StreamImage


class Phase(Enum):
    """Phase of the move of a partition's replicas or leadership."""

    WAITS = "waits"
    """The move waits for its turn, for a complete partition, or for a node."""
    COPIES = "copies"
    """The new replica copies the log."""
    DROPS = "drops"
    """The new replica is in the ISR, or there is none. Another replica transfers its leadership if it leads, and then
    leaves.
    """
    LEADS = "leads"
    """No replica moves. Another replica becomes the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """The current move of one partition's replicas, for display."""

    stream: str
    uid: str
    partition: int
    replicas: tuple[str, ...]
    target: tuple[str, ...]
    phase: Phase
    into: str
    """Node that joins or becomes the leader. '': none."""
    out: str
    """Node that leaves. '': none."""
    why: str


def movement_of(stream: StreamImage, partition: PartitionState) -> Movement | None:
    """Return the current move of the partition's replicas or leadership. None: there is none."""
    leads = partition.leader_to_elect if not partition.target else ""
    if not (partition.target or partition.joining or leads):
        return None
    into = partition.joining or partition.next_learner or leads
    going = [partition.leader] if leads else [n for n in partition.replicas if n not in partition.target]
    return Movement(
        stream=stream.name,
        uid=stream.uid,
        partition=partition.partition,
        replicas=partition.replicas,
        target=partition.target,
        phase=Phase.LEADS if leads else Phase.COPIES if partition.joining else Phase.WAITS if into else Phase.DROPS,
        into=into,
        out=partition.leaving or (going[0] if going else ""),
        why=partition.moved_for.words,
    )


def movements(image: ClusterImage) -> list[Movement]:
    """Return the current moves of all partitions, ordered by stream and partition."""
    places = ((image.streams[name], p) for name in sorted(image.streams) for p in image.streams[name].partitions)
    return [movement for stream, partition in places if (movement := movement_of(stream, partition)) is not None]


def offline_partitions_of(image: ClusterImage, node_id: str) -> list[tuple[StreamImage, PartitionState]]:
    """Return the partitions with a replica on the node and without a live node that can lead.

    Their replicas cannot be copied. They stay on the node until a complete replica returns or an operator gives them up.
    """
    return [place for place in image.partitions_of(node_id) if place[1].status is PartitionStatus.OFFLINE]


def yield_replica_changes(partition: PartitionState) -> Iterator[tuple[str, int]]:
    """Yield (node, change) for a partition: 1 for a node that will get a replica, -1 for a node that will lose one."""
    if not partition.target:
        return
    for node_id in partition.target:
        if node_id not in partition.holders:
            yield node_id, 1
    for node_id in partition.holders:
        if node_id not in partition.target:
            yield node_id, -1
