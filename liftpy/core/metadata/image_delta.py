"""Difference of two images, as records that turn the first one into the second. Pure.

Shared parts are compared by identity. The parent process of a multi-process node sends the difference to its workers.
If records cannot express it, the result is None, and the parent sends the whole image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from immutables import Map

from liftpy.config import DefaultQuota
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.image import ClusterImage, NodeImage, StreamImage
from liftpy.core.metadata.records import (
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
from liftpy.core.wire._pb import cluster_pb2 as pb


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """Change of a partition, or of its stream's settings. ``old`` None: the partition is new. ``new`` None: it was removed."""

    stream: StreamImage
    """Stream of the partition after the change. If the stream was deleted, its state before the deletion."""
    old: PartitionState | None
    new: PartitionState | None

    @property
    def key(self) -> PartitionKey:
        either = self.new or self.old
        assert either is not None
        return self.stream.key(either.partition)


@dataclass(frozen=True, slots=True)
class NodeChange:
    """Change of a node. ``old`` None: the node is new. ``new`` None: the node was removed."""

    old: NodeImage | None
    new: NodeImage | None


@dataclass(frozen=True, slots=True)
class ImageDiff:
    """All differences between two images, ordered by name and partition number."""

    nodes: tuple[NodeChange, ...] = ()
    created: tuple[StreamImage, ...] = ()
    deleted: tuple[StreamImage, ...] = ()
    """Deleted streams. If a name was deleted and created again, the old stream is here and the new one in the created streams
    [R9, M11].
    """
    partitions: tuple[PartitionChange, ...] = ()
    """Changed partitions. Partitions of deleted streams come first."""
    lease_changed: bool = False
    """True if the longest lease of any node has changed. The node then informs every replica."""

    def __bool__(self) -> bool:
        return bool(self.nodes or self.created or self.deleted or self.partitions or self.lease_changed)

    def for_node(self, node_id: str) -> Iterator[PartitionChange]:
        """Yield the changes of partitions that have a replica or learner on the node, or had one before the change."""
        for change in self.partitions:
            if any(p is not None and node_id in p.holders for p in (change.old, change.new)):
                yield change


def diff(old: ClusterImage, new: ClusterImage) -> ImageDiff:
    """Return the differences between the images ``old`` and ``new``. It takes little time if they share most of their parts."""
    nodes = () if old.nodes is new.nodes else tuple(_nodes(old.nodes, new.nodes))
    has_same_default = old.default_quota == new.default_quota
    lease_changed = old.longest_lease_ns != new.longest_lease_ns
    if old.streams is new.streams and has_same_default:
        return ImageDiff(nodes=nodes, lease_changed=lease_changed)
    created: list[StreamImage] = []
    deleted: list[StreamImage] = []
    changed: list[PartitionChange] = []
    for name in _changed_streams(old, new) if has_same_default else sorted({*old.streams, *new.streams}):
        before, after = old.streams.get(name), new.streams.get(name)
        if before is not None and after is not None and before.uid == after.uid:
            changed.extend(_partitions(before, after, old.default_quota, new.default_quota))
            continue
        if before is not None:
            deleted.append(before)
        if after is not None:
            created.append(after)
    deleted_partitions = [PartitionChange(stream, partition, None) for stream in deleted for partition in stream.partitions]
    come = [PartitionChange(stream, None, partition) for stream in created for partition in stream.partitions]
    return ImageDiff(nodes, tuple(created), tuple(deleted), (*deleted_partitions, *changed, *come), lease_changed)


def _nodes(old: Map[str, NodeImage], new: Map[str, NodeImage]) -> Iterator[NodeChange]:
    for node_id in _changed_keys(old, new):
        before, after = old.get(node_id), new.get(node_id)
        if before != after:
            yield NodeChange(before, after)


def _partitions(old: StreamImage, new: StreamImage, was: DefaultQuota, now: DefaultQuota) -> Iterator[PartitionChange]:
    """Yield the changed partitions of one stream.

    ``was`` and ``now``: default quota of the cluster before and after, whose change affects all streams.
    """
    is_bound = new.config.has_quota or (now.has_rates and new.takes_default_quota)
    shares_change = is_bound and len(old.partitions) != len(new.partitions)
    default_changes = was != now and (was.has_rates or now.has_rates) and new.takes_default_quota
    config_changes = old.config is not new.config and old.config != new.config
    others_too = shares_change or default_changes or config_changes
    for before, after in zip_longest(old.partitions, new.partitions):
        if others_too or (before is not after and before != after):
            yield PartitionChange(new, before, after)


def _changed_streams(old: ClusterImage, new: ClusterImage) -> list[str]:
    touched = new.trail.since(old.trail)
    return _changed_keys(old.streams, new.streams) if touched is None else sorted(touched)


def _changed_keys(
    old: Map[str, NodeImage] | Map[str, StreamImage], new: Map[str, NodeImage] | Map[str, StreamImage]
) -> list[str]:
    keys = [key for key, value in new.items() if old.get(key) is not value]
    keys.extend(key for key in old if key not in new)
    return sorted(keys)


class _NoRecordForChangeError(Exception):
    """Raised if records cannot express the difference between two images."""


def entry_between(old: ClusterImage, new: ClusterImage) -> pb.FeedEntry | None:
    """Return a feed entry whose records turn ``old`` into ``new``. None: no records can express the difference."""
    records = records_between(old, new)
    if records is None:
        return None
    return pb.FeedEntry(previousIndex=old.index, index=new.index, records=map(record_to_pb, records))


def records_between(old: ClusterImage, new: ClusterImage) -> list[Record] | None:
    """Return the records that turn ``old`` into ``new``, in replay order. None: records cannot express the difference."""
    if new.index < old.index:
        return None
    nodes = () if old.nodes is new.nodes else tuple(_nodes(old.nodes, new.nodes))
    changed = [NodeChanged(change.new) for change in nodes if change.new is not None]
    removed = [NodeRemoved(change.old.node_id) for change in nodes if change.new is None and change.old is not None]
    try:
        return [*changed, *_streams(old, new), *removed, *_group(old, new)]
    except _NoRecordForChangeError:
        return None


def _streams(old: ClusterImage, new: ClusterImage) -> Iterator[Record]:
    if old.streams is new.streams:
        return
    for name in _changed_streams(old, new):
        before, after = old.streams.get(name), new.streams.get(name)
        if before is after:
            continue
        if before is not None and (after is None or after.uid != before.uid):
            yield StreamDeleted(name, before.uid)
            before = None
        if before is None and after is not None:
            yield StreamCreated(after)
        elif before is not None and after is not None:
            yield from _changed_records(before, after)


def _changed_records(before: StreamImage, after: StreamImage) -> Iterator[Record]:
    count = len(before.partitions)
    if len(after.partitions) < count or before.subject != after.subject:
        raise _NoRecordForChangeError
    settings = (before.replication_factor, before.config_version, before.config)
    if settings != (after.replication_factor, after.config_version, after.config):
        yield StreamAltered(after.name, after.uid, after.replication_factor, after.config, after.config_version)
    for was, now in zip(before.partitions, after.partitions[:count], strict=True):
        if was is now or was == now:
            continue
        if now.epoch <= was.epoch or now.leader_epoch < was.leader_epoch:
            raise _NoRecordForChangeError
        yield PartitionStateChanged(after.name, after.uid, now)
    if len(after.partitions) > count:
        yield PartitionsAdded(after.name, after.uid, after.partitions[count:])


def _group(old: ClusterImage, new: ClusterImage) -> Iterator[Record]:
    if old.controllers != new.controllers:
        if new.controllers.index <= old.controllers.index:
            raise _NoRecordForChangeError
        yield ControllersChanged(new.controllers)
    if old.feature_level != new.feature_level:
        yield FeatureLevelSet(new.feature_level, new.rules, new.session_times)
    elif old.session_times != new.session_times and new.session_times is not None:
        yield SessionTimesSet(new.session_times)
    if old.default_quota != new.default_quota:
        yield DefaultQuotaSet(new.default_quota)
