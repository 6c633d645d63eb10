"""Records: the changes that a decision made. ``replay`` applies them on controllers and other nodes.

A record holds the state after the change, so that replay decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, assert_never

from liftpy.config import DefaultQuota, SessionTimes, StreamConfig
from liftpy.core.base.cooperative_apply import PER_STEP, Steps, run_to_end
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata import codec
from liftpy.core.metadata.controller_list import CONTROLLERS, ControllerList
from liftpy.core.metadata.idempotency import Operation
from liftpy.core.metadata.image import ClusterImage, ClusterRules, Counters, LeaderReport, NodeImage, StreamImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import has_unknown_fields
from liftpy.core.wire.message_codec import MessageCodec
from liftpy.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class StreamCreated:
    """Record: a stream was created. Its name was free."""

    stream: StreamImage


@dataclass(frozen=True, slots=True)
class StreamDeleted:
    """Record: a stream was deleted. Only this record allows nodes to delete its data [M11]."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """Record: partitions were added to a stream. A stream that waited for nodes does not wait anymore."""

    stream: str
    uid: str
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class StreamAltered:
    """Record: the stream ``stream`` with ``uid`` has a new number of replicas or new settings."""

    stream: str
    uid: str
    replication_factor: int
    config: StreamConfig | None = None
    """New settings of the stream. None: they did not change."""
    config_version: int = 0
    """Version of the settings ``config``."""


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """Record: a node was registered, fenced or unfenced, or an operator changed its settings."""

    node: NodeImage


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """Record: a node was removed from the cluster."""

    node_id: str


@dataclass(frozen=True, slots=True)
class PartitionStateChanged:
    """Record: new state of one partition of the stream ``stream`` with ``uid``."""

    stream: str
    uid: str
    partition: PartitionState


@dataclass(frozen=True, slots=True)
class OperationDone:
    """Record: an operation and its answer, for deduplication. Nodes that decide nothing do not get this record."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class CountersMoved:
    """Record: new values of the counters."""

    counters: Counters


@dataclass(frozen=True, slots=True)
class LeaderReported:
    """Record: a failure report that counts. It replaces an older report of the same witness about the partition [C9]."""

    uid: str
    partition: int
    report: LeaderReport


@dataclass(frozen=True, slots=True)
class ControllersChanged:
    """Record: the new controllers of the metadata group, valid from the entry with this index [M10]."""

    controllers: ControllerList


@dataclass(frozen=True, slots=True)
class FeatureLevelSet:
    """Record: the feature level for decisions from the next entry on."""

    level: int
    rules: ClusterRules | None = None
    """Rules that the image stores from this entry on. None: they did not change."""
    times: SessionTimes | None = None
    """Session times that the image stores from this entry on. None: they did not change."""


@dataclass(frozen=True, slots=True)
class DefaultQuotaSet:
    """Record: the new default quota of the cluster."""

    quota: DefaultQuota


@dataclass(frozen=True, slots=True)
class SessionTimesSet:
    """Record: the new session and lease times of the cluster."""

    times: SessionTimes


Record: TypeAlias = (
    StreamCreated
    | StreamDeleted
    | PartitionsAdded
    | StreamAltered
    | NodeChanged
    | NodeRemoved
    | PartitionStateChanged
    | OperationDone
    | CountersMoved
    | LeaderReported
    | ControllersChanged
    | FeatureLevelSet
    | DefaultQuotaSet
    | SessionTimesSet
)


_KINDS: dict[str, tuple[Callable[..., Record], str, MessageCodec[Any, Any]]] = {
    "streamCreated": (StreamCreated, "stream", codec.STREAM),
    "streamDeleted": (StreamDeleted, "", MessageCodec(StreamDeleted, pb.StreamDeleted)),
    "nodeRegistered": (NodeChanged, "node", codec.NODE),
    "nodeRemoved": (NodeRemoved, "", MessageCodec(NodeRemoved, pb.NodeRemoved)),
    "partitionChanged": (PartitionStateChanged, "", MessageCodec(PartitionStateChanged, pb.PartitionStateChanged)),
    "operationDone": (OperationDone, "operation", codec.OPERATION),
    "countersMoved": (CountersMoved, "counters", codec.COUNTERS),
    "partitionsAdded": (PartitionsAdded, "", MessageCodec(PartitionsAdded, pb.PartitionsAdded)),
    "streamAltered": (StreamAltered, "", MessageCodec(StreamAltered, pb.StreamAltered)),
    "controllersChanged": (ControllersChanged, "controllers", CONTROLLERS),
    "featureLevelSet": (
        FeatureLevelSet,
        "",
        MessageCodec(FeatureLevelSet, pb.FeatureLevelSet, renamed={"times": "sessionTimes"}),
    ),
    "defaultQuotaSet": (DefaultQuotaSet, "quota", codec.QUOTA),
    "sessionTimesSet": (SessionTimesSet, "times", codec.TIMES),
}
"""Name in the protobuf Record -> class of the record, its only field if that field is the whole message, and the codec."""
_NAMES: dict[Any, str] = {kind: name for name, (kind, _, _) in _KINDS.items()}


def record_to_pb(record: Record) -> pb.Record:
    """Convert a record to protobuf."""
    if isinstance(record, LeaderReported):
        return pb.Record(leaderReported=codec.report_to_pb(record.uid, record.partition, record.report))
    name = _NAMES[type(record)]
    _, whole, of_message = _KINDS[name]
    return pb.Record(**{name: of_message.to_pb(getattr(record, whole) if whole else record)})


def record_from_pb(message: pb.Record) -> Record:
    """Decode a record. Raise ProtocolError if its kind or a field is unknown.

    A node that ignored an unknown record would have a wrong image.
    """
    if has_unknown_fields(message):
        raise ProtocolError("The metadata record has fields that this version of liftpy does not support. Upgrade this node.")
    name = message.WhichOneof("record")
    if name == "leaderReported":
        report = message.leaderReported
        return LeaderReported(report.uid, report.partition, codec.REPORT.from_pb(report))
    if name not in _KINDS:
        raise ProtocolError("The metadata record has a kind that this version of liftpy does not support. Upgrade this node.")
    kind, whole, of_message = _KINDS[name]
    value = of_message.from_pb(getattr(message, name))
    return kind(value) if whole else value


def replay(image: ClusterImage, record: Record) -> ClusterImage:
    """Return ``image`` after the change that ``record`` describes. Raise InvariantError if the record cannot follow this image.

    This is the only way to change an image. It decides nothing.
    """
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
