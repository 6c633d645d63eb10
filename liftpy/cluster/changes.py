"""What leads from one image to another, as records: for a process that holds the first one and is to hold the second. Pure.

The second need not be the next after the first: of images that follow fast only the newest is passed on. Left out is what decides and
shows nothing (counters, operations, reports). What records can't say (an image that was given up for another one) is None: then the
image goes as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from liftpy.cluster.image import ClusterImage, StreamImage
from liftpy.cluster.records import (
    ControllersChanged,
    DefaultQuotaSet,
    FeatureLevelSet,
    NodeChanged,
    NodeRemoved,
    PartitionsAdded,
    PartitionStateChanged,
    Record,
    SessionTimesSet,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
    record_to_pb,
)
from liftpy.wire._pb import cluster_pb2 as pb


class _Unsayable(Exception):
    """No records lead there."""


def entry_between(old: ClusterImage, new: ClusterImage) -> pb.FeedEntry | None:
    """The entry that makes ``new`` of ``old``; None: none does."""
    records = records_between(old, new)
    if records is None:
        return None
    return pb.FeedEntry(previousIndex=old.index, index=new.index, records=map(record_to_pb, records))


def records_between(old: ClusterImage, new: ClusterImage) -> list[Record] | None:
    """The records that make ``new`` of ``old``, in an order in which they can be replayed; None: none do."""
    if new.index < old.index:
        return None
    try:
        return [*_nodes_come(old, new), *_streams(old, new), *_nodes_go(old, new), *_group(old, new)]
    except _Unsayable:
        return None


def _nodes_come(old: ClusterImage, new: ClusterImage) -> Iterator[Record]:
    if old.nodes is not new.nodes:
        for name in sorted(new.nodes):
            if old.nodes.get(name) != new.nodes[name]:
                yield NodeChanged(new.nodes[name])


def _nodes_go(old: ClusterImage, new: ClusterImage) -> Iterator[Record]:
    if old.nodes is not new.nodes:
        yield from (NodeRemoved(name) for name in sorted(old.nodes) if name not in new.nodes)


def _streams(old: ClusterImage, new: ClusterImage) -> Iterator[Record]:
    if old.streams is new.streams:
        return
    touched = new.trail.since(old.trail)
    for name in sorted({*old.streams, *new.streams} if touched is None else touched):
        before, after = old.streams.get(name), new.streams.get(name)
        if before is after:
            continue
        if before is not None and (after is None or after.uid != before.uid):
            yield StreamDeleted(name, before.uid)
            before = None
        if before is None and after is not None:
            yield StreamCreated(after)
        elif before is not None and after is not None:
            yield from _changed(before, after)


def _changed(before: StreamImage, after: StreamImage) -> Iterator[Record]:
    count = len(before.partitions)
    if len(after.partitions) < count or before.subject != after.subject:
        raise _Unsayable
    settings = (before.replication_factor, before.config_version, before.config)
    if settings != (after.replication_factor, after.config_version, after.config):
        yield StreamAltered(after.name, after.uid, after.replication_factor, after.config, after.config_version)
    for was, now in zip(before.partitions, after.partitions[:count], strict=True):
        if was is now or was == now:
            continue
        if now.epoch <= was.epoch or now.leader_epoch < was.leader_epoch:
            raise _Unsayable
        yield PartitionStateChanged(after.name, after.uid, now)
    if len(after.partitions) > count:
        yield PartitionsAdded(after.name, after.uid, after.partitions[count:])


def _group(old: ClusterImage, new: ClusterImage) -> Iterator[Record]:
    if old.controllers != new.controllers:
        if new.controllers.index <= old.controllers.index:
            raise _Unsayable
        yield ControllersChanged(new.controllers)
    if old.feature_level != new.feature_level:
        yield FeatureLevelSet(new.feature_level, new.rules, new.session_times)
    elif old.session_times != new.session_times and new.session_times is not None:
        yield SessionTimesSet(new.session_times)
    if old.default_quota != new.default_quota:
        yield DefaultQuotaSet(new.default_quota)
