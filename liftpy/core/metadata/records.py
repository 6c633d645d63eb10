"""Records: the changes that a decision made. ``replay`` applies them on controllers and other nodes.

A record holds the state after the change, so that replay decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from liftpy.config import DefaultQuota, SessionTimes, StreamConfig
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata import codec
from liftpy.core.metadata.controller_list import CONTROLLERS, ControllerList
from liftpy.core.metadata.idempotency_cache import Operation
from liftpy.core.metadata.image import ClusterRules, Counters, LeaderReport, NodeImage, StreamImage
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
