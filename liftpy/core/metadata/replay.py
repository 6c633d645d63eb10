"""``replay(image, record) -> image``: the only way to change an image.

It is pure and decides nothing. It raises InvariantError for a record that cannot follow the image.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from liftpy.core.base.cooperative_apply import PER_STEP, Steps, run_to_end
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage, LeaderReport
from liftpy.core.metadata.records import (
    ControllersChanged,
    CountersMoved,
    DefaultQuotaSet,
    FeatureLevelSet,
    LeaderReported,
    NodeChanged,
    NodeRemoved,
    OperationDone,
    PartitionsAdded,
    PartitionStateChanged,
    Record,
    SessionTimesSet,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
)


def replay(image: ClusterImage, record: Record) -> ClusterImage:
    """Return ``image`` after the change that ``record`` describes. Raise InvariantError if the record cannot follow this image."""
    match record:
        case StreamCreated(stream):
            check(stream.name not in image.streams, "R9", "stream", stream.name, "exists")
            return image.with_stream(stream)
        case StreamDeleted(name, uid):
            existing = image.streams.get(name)
            check(existing is not None and existing.uid == uid, "M11", "delete of", name, uid)
            return image.without_stream(name)
        case PartitionsAdded(stream_name, uid, partitions):
            existing = image.streams.get(stream_name)
            check(existing is not None and existing.uid == uid, "M11", "more partitions of", stream_name, uid)
            assert existing is not None
            numbers = [partition.partition for partition in partitions]
            first = len(existing.partitions)
            check(numbers == list(range(first, first + len(numbers))), "C1", "numbering", numbers, first)
            for partition in partitions:
                check_partition(partition)
            return image.with_partitions_added(existing, partitions)
        case StreamAltered(stream_name, uid, factor, config, version):
            existing = image.streams.get(stream_name)
            check(existing is not None and existing.uid == uid, "M11", "other settings of", stream_name, uid)
            assert existing is not None
            fresh = replace(existing, replication_factor=factor)
            return image.with_altered(fresh if config is None else replace(fresh, config=config, config_version=version))
        case NodeChanged(node):
            return replace(image, nodes=image.nodes.set(node.node_id, node))
        case NodeRemoved(node_id):
            check(node_id in image.nodes and node_id not in image.hosted, "M5", "removal of", node_id)
            return replace(image, nodes=image.nodes.delete(node_id))
        case PartitionStateChanged(stream_name, uid, partition):
            return _change_partition(image, stream_name, uid, partition)
        case OperationDone(operation):
            return replace(image, operations=image.operations.with_operation(operation))
        case CountersMoved(counters):
            return replace(image, counters=counters)
        case LeaderReported(uid, number, report):
            return replace(image, reports=image.reports.set((uid, number), _with(image.reports.get((uid, number), ()), report)))
        case ControllersChanged(controllers):
            check(controllers.index > image.controllers.index, "M10", controllers, image.controllers)
            return replace(image, controllers=controllers)
        case FeatureLevelSet(level, rules, times):
            check(level > 0 and level != image.feature_level, "M5", "feature level", level, "after", image.feature_level)
            return replace(image, feature_level=level, rules=rules, session_times=times)
        case DefaultQuotaSet(quota):
            return replace(image, default_quota=quota)
        case SessionTimesSet(times):
            check(image.session_times is not None, "M5", "session times at level", image.feature_level)
            return replace(image, session_times=times)
    assert_never(record)


def replay_all(image: ClusterImage, records: Iterable[Record]) -> ClusterImage:
    """Return ``image`` after the changes that ``records`` describe, in order."""
    return run_to_end(replaying_all(image, records))


def replaying_all(image: ClusterImage, records: Iterable[Record]) -> Steps[ClusterImage]:
    """Return ``image`` after the changes that ``records`` describe, in steps with pauses for other work."""
    for number, record in enumerate(records, 1):
        image = replay(image, record)
        if number % PER_STEP == 0:
            yield
    return image


def _change_partition(image: ClusterImage, name: str, uid: str, changed: PartitionState) -> ClusterImage:
    location = image.find(name, uid, changed.partition)
    check(location is not None, "M5", "change of an unknown partition", name, uid, changed.partition)
    assert location is not None
    stream, old = location
    check(changed.epoch > old.epoch and changed.leader_epoch >= old.leader_epoch, "C2", old, changed)
    check_partition(changed)
    return image.with_partition(stream, changed)


def check_partition(partition: PartitionState) -> None:
    """Raise InvariantError if the fields of the partition break an invariant [C1, C3]."""
    isr = partition.isr
    check(bool(isr) and len(set(isr)) == len(isr), "C3", "empty or repeated", partition)
    check(all(node in partition.replicas for node in isr), "C3", "ISR beyond the replicas", partition)
    check(not partition.leader or partition.leader in isr, "C3", "leader outside its ISR", partition)
    check((partition.status is PartitionStatus.ONLINE) == bool(partition.leader), "C1", "leader and status", partition)
    check(
        (partition.status is PartitionStatus.CANDIDATE_FOUND) == bool(partition.candidate),
        "C1", "candidate and status", partition,
    )  # fmt: skip
    check(not partition.leader or partition.leader == partition.last_leader, "C1", "last leader", partition)
    check(not partition.candidate or partition.candidate in partition.replicas, "C5", "candidate", partition)
    check(not partition.joining or partition.joining not in partition.replicas, "C3", "a learner is no replica", partition)
    check(bool(partition.joining) == bool(partition.copy_epoch), "C12", "a learner without its copy's number", partition)
    counted = {*partition.complete, *partition.incomplete}
    check(counted <= set(partition.replicas), "C3", "who is no replica counts", partition)


def _with(reports: tuple[LeaderReport, ...], report: LeaderReport) -> tuple[LeaderReport, ...]:
    return (*(earlier for earlier in reports if earlier.witness != report.witness), report)
