"""Records: the changes that a decision made. ``replay`` applies them on controllers and other nodes.

A record holds the state after the change, so that replay decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from liftpy.config import DefaultQuota, SessionTimes, StreamConfig
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata import codec
from liftpy.core.metadata.codec import config_from_pb, config_to_pb, quota_from_pb, quota_to_pb
from liftpy.core.metadata.controller_list import ControllerList, list_from_pb, list_to_pb
from liftpy.core.metadata.idempotency_cache import Operation
from liftpy.core.metadata.image import ClusterRules, Counters, LeaderReport, NodeImage, StreamImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import has_unknown_fields
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


def record_to_pb(record: Record) -> pb.Record:
    """Convert a record to protobuf."""
    match record:
        case StreamCreated(stream):
            return pb.Record(streamCreated=codec.stream_to_pb(stream))
        case StreamDeleted(name, uid):
            return pb.Record(streamDeleted=pb.StreamDeleted(name=name, uid=uid))
        case PartitionsAdded(stream_name, uid, partitions):
            added = pb.PartitionsAdded(stream=stream_name, uid=uid, partitions=map(codec.partition_to_pb, partitions))
            return pb.Record(partitionsAdded=added)
        case StreamAltered(stream_name, uid, factor, config, version):
            altered = pb.StreamAltered(stream=stream_name, uid=uid, replicationFactor=factor)
            if config is not None:
                altered.config.CopyFrom(config_to_pb(config))
                altered.configVersion = version
            return pb.Record(streamAltered=altered)
        case NodeChanged(node):
            return pb.Record(nodeRegistered=codec.node_to_pb(node))
        case NodeRemoved(node_id):
            return pb.Record(nodeRemoved=pb.NodeRemoved(nodeId=node_id))
        case PartitionStateChanged(stream_name, uid, partition):
            changed = pb.PartitionStateChanged(stream=stream_name, uid=uid, partition=codec.partition_to_pb(partition))
            return pb.Record(partitionChanged=changed)
        case OperationDone(operation):
            return pb.Record(operationDone=codec.operation_to_pb(operation))
        case CountersMoved(counters):
            return pb.Record(countersMoved=codec.counters_to_pb(counters))
        case LeaderReported(uid, number, report):
            return pb.Record(leaderReported=codec.report_to_pb(uid, number, report))
        case ControllersChanged(controllers):
            return pb.Record(controllersChanged=list_to_pb(controllers))
        case FeatureLevelSet(level, rules, times):
            message = pb.FeatureLevelSet(level=level, rules=None if rules is None else codec.rules_to_pb(rules))
            if times is not None:
                message.sessionTimes.CopyFrom(codec.times_to_pb(times))
            return pb.Record(featureLevelSet=message)
        case DefaultQuotaSet(quota):
            return pb.Record(defaultQuotaSet=quota_to_pb(quota))
        case SessionTimesSet(times):
            return pb.Record(sessionTimesSet=codec.times_to_pb(times))
    assert_never(record)


def record_from_pb(message: pb.Record) -> Record:
    """Decode a record. Raise ProtocolError if its kind or a field is unknown.

    A node that ignored an unknown record would have a wrong image.
    """
    if has_unknown_fields(message):
        raise ProtocolError("The metadata record has fields that this version of liftpy does not support. Upgrade this node.")
    match message.WhichOneof("record"):
        case "streamCreated":
            return StreamCreated(codec.stream_from_pb(message.streamCreated))
        case "streamDeleted":
            return StreamDeleted(message.streamDeleted.name, message.streamDeleted.uid)
        case "partitionsAdded":
            more, names = message.partitionsAdded, codec.Names()
            return PartitionsAdded(more.stream, more.uid, tuple(codec.partition_from_pb(p, names) for p in more.partitions))
        case "streamAltered":
            altered = message.streamAltered
            config = config_from_pb(altered.config) if altered.HasField("config") else None
            return StreamAltered(altered.stream, altered.uid, altered.replicationFactor, config, altered.configVersion)
        case "nodeRegistered":
            return NodeChanged(codec.node_from_pb(message.nodeRegistered))
        case "nodeRemoved":
            return NodeRemoved(message.nodeRemoved.nodeId)
        case "partitionChanged":
            changed = message.partitionChanged
            return PartitionStateChanged(changed.stream, changed.uid, codec.partition_from_pb(changed.partition))
        case "operationDone":
            return OperationDone(codec.operation_from_pb(message.operationDone))
        case "countersMoved":
            return CountersMoved(codec.counters_from_pb(message.countersMoved))
        case "leaderReported":
            report = message.leaderReported
            return LeaderReported(report.uid, report.partition, codec.report_from_pb(report))
        case "controllersChanged":
            return ControllersChanged(list_from_pb(message.controllersChanged))
        case "featureLevelSet":
            level = message.featureLevelSet
            times = codec.times_from_pb(level.sessionTimes) if level.HasField("sessionTimes") else None
            return FeatureLevelSet(level.level, codec.rules_from_pb(level.rules) if level.HasField("rules") else None, times)
        case "defaultQuotaSet":
            return DefaultQuotaSet(quota_from_pb(message.defaultQuotaSet))
        case "sessionTimesSet":
            return SessionTimesSet(codec.times_from_pb(message.sessionTimesSet))
    raise ProtocolError("The metadata record has a kind that this version of liftpy does not support. Upgrade this node.")
