"""Builds the image of a metadata group that has permanently lost its majority. Pure.

The new image contains everything in the surviving log. All counters (LeaderEpoch, Epoch, incarnations, stream ids)
jump, so that values of lost entries are never used again [C1, C2]. No partition has a leader, all nodes are fenced
until they send a heartbeat, and copies start again. Changes of streams, settings, moves and ISRs after the end of the
surviving log are lost.
"""

from __future__ import annotations

from dataclasses import replace

from immutables import Map

from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.image import ClusterImage

LEAP = 1 << 20
"""Step by which a rescue increases all counters. It is more than a group decides between two flushes of all its members."""


def rescued_image(image: ClusterImage, voters: tuple[str, ...], now_ns: int) -> ClusterImage:
    """Return the image of a rescued metadata group with the controllers ``voters``. ``image``: image of the surviving log.

    All counters and the index increase by a large step.
    """
    index, empty = image.index + LEAP, ClusterImage()
    was = image.counters
    epoch, leader_epoch = was.next_epoch + LEAP, was.next_leader_epoch + LEAP
    streams = []
    for name in sorted(image.streams):
        stream = image.streams[name]
        partitions = []
        for partition in stream.partitions:
            partitions.append(_leaderless(partition, leader_epoch, epoch))
            epoch, leader_epoch = epoch + 1, leader_epoch + 1
        streams.append(replace(stream, partitions=tuple(partitions)))
    new_image = replace(  # of the image: a field that is new later is kept, not forgotten
        image,
        index=index,
        time_ns=max(image.time_ns, now_ns),
        nodes=Map((node_id, replace(node, fenced=True)) for node_id, node in image.nodes.items()),
        counters=replace(
            was,
            next_incarnation=was.next_incarnation + LEAP,
            next_stream_uid=was.next_stream_uid + LEAP,
            next_leader_epoch=leader_epoch,
            next_epoch=epoch,
        ),
        controllers=ControllerList(tuple(sorted(voters)), index=index),
        reports=empty.reports,  # of leaders that there are no more
        streams=empty.streams,
        hosted=empty.hosted,
        replica_counts=empty.replica_counts,
        leader_counts=empty.leader_counts,
        answering=empty.answering,
        waiting=empty.waiting,
        trail=empty.trail,
    )
    return new_image.with_streams(streams)


def _leaderless(partition: PartitionState, leader_epoch: int, epoch: int) -> PartitionState:
    return replace(
        partition,
        leader="",
        candidate="",
        passed_over=(),
        deposed="",
        joining="",
        copy_epoch=0,
        status=PartitionStatus.OFFLINE,
        leader_epoch=leader_epoch,
        epoch=epoch,
    )
