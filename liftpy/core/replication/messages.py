"""Messages between the replicas of a partition. A message is an effect of the sender, a NATS frame, and an event of the
receiver.

The three have equal field names. So a new field needs a number in ``replication.proto``, a field of the effect and a
field of the event. The codecs in this module convert to and from frames. The simulator calls
``received_from`` instead.

A frame also names the partition and the request, for the checks in ``liftpy/core/wire/frames.py``. The codecs handle
these fields separately, because the core does not need them.

Other effects are requests to the metadata group (``request_of``). An effect and its request use equal names. A new
field needs only a number in ``cluster.proto`` and a field of the effect.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import RefusalReason
from liftpy.core.wire._pb import cluster_pb2
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.message_codec import Converter, MessageCodec, wire_name

E = TypeVar("E")
_MAX_MICROS = (1 << 32) - 1
_FLUSH: Converter = (lambda flush_ns: min(-(-flush_ns // 1000), _MAX_MICROS), lambda micros: micros * 1000)


def _reason(number: int) -> RefusalReason:
    try:
        return RefusalReason(number)
    except ValueError:
        return RefusalReason.UNKNOWN


_REASON: Converter = (lambda reason: reason.value, _reason)
_ADDRESS = ("streamUid", "partition", "requestId")

FETCH = MessageCodec(
    do.SendFetch,
    pb.ReplicationRequest,
    renamed={"flush_ns": "flushMicros"},
    apart=("replicaID", "incarnation", "streamUid", "partition", "awaitsMore", "maxBytes", "position", "batchCrc"),
    local=("leader", "max_bytes"),
    converters={"flush_ns": _FLUSH},
)
FETCH_RECEIVED = MessageCodec(
    ev.FetchReceived,
    pb.ReplicationRequest,
    renamed={"replica": "replicaID", "flush_ns": "flushMicros"},
    apart=("partition", "position", "batchCrc"),
    local=("token",),
    converters={"flush_ns": _FLUSH},
)
REFUSAL = MessageCodec(
    do.SendFetchRefusal, pb.ReplicationRefusal, apart=_ADDRESS, local=("token",), converters={RefusalReason: _REASON}
)
REFUSED = MessageCodec(
    ev.FetchRefused, pb.ReplicationRefusal, apart=_ADDRESS, local=("request_id",), converters={RefusalReason: _REASON}
)
EPOCH_QUERY = MessageCodec(
    do.SendEpochQuery,
    pb.LeaderEpochOffsetRequest,
    renamed={"requested_epoch": "leaderEpoch"},
    apart=("replicaID", "streamUid", "partition"),
    local=("leader",),
)
EPOCH_QUERY_RECEIVED = MessageCodec(
    ev.EpochQueryReceived,
    pb.LeaderEpochOffsetRequest,
    renamed={"requested_epoch": "leaderEpoch", "replica": "replicaID"},
    apart=("partition", "requestId"),
    local=("token",),
)
EPOCH_ANSWER = MessageCodec(
    do.SendEpochAnswer,
    pb.LeaderEpochOffsetResponse,
    renamed={"last_offset": "endOffset"},
    apart=_ADDRESS,
    local=("token",),
)
EPOCH_ANSWERED = MessageCodec(
    ev.EpochQueryAnswered,
    pb.LeaderEpochOffsetResponse,
    renamed={"last_offset": "endOffset"},
    apart=_ADDRESS,
    local=("request_id",),
)
NOTICE = MessageCodec(do.SendNotice, pb.LeaderNotice, apart=("stream", "streamUid", "partition", "leader"), local=("replicas",))
NOTICE_RECEIVED = MessageCodec(ev.NoticeReceived, pb.LeaderNotice, apart=("stream", "streamUid", "partition"))


def received_from(event: type[E], effect: object, **local: Any) -> E:
    """Return the event of class ``event`` that the receiver of the message ``effect`` gets.

    ``local``: values of the event's fields that the effect does not have, or has with another meaning.
    """
    return event(
        **{
            name: getattr(effect, name)
            for name in _shared_fields(cast(Any, event), cast(Any, type(effect)))
            if name not in local
        },
        **local,
    )


@cache
def _shared_fields(event: type, effect: type) -> tuple[str, ...]:
    return tuple({f.name for f in fields(cast(Any, event))}.intersection(f.name for f in fields(cast(Any, effect))))


# ---- requests to the metadata group ----------------------------------------------------------------------------------


Request = (
    do.ProposeIsr
    | do.ReportLeader
    | do.LeaveIsr
    | do.GiveUpLeadership
    | do.TransferLeadership
    | do.WakePartition
    | do.ReportPromotion
)
"""Effects that are requests to the metadata group."""
_NAMES: dict[type, str] = {
    do.ProposeIsr: "changeIsr",
    do.ReportLeader: "reportLeader",
    do.LeaveIsr: "leaveIsr",
    do.GiveUpLeadership: "giveUpLeadership",
    do.TransferLeadership: "giveUpLeadership",
    do.WakePartition: "wakePartition",
    do.ReportPromotion: "reportPromotion",
}
_IDS = ("leader", "witness", "node", "candidate")
"""Fields of requests with the node id of the sender, unless the effect has such a field."""
_INCARNATIONS = ("incarnation", "witnessIncarnation", "candidateIncarnation")


@cache
def _fields_of(effect: Any) -> tuple[str, dict[str, str], list[str], list[str]]:
    """Return how an effect of class ``effect`` becomes a request to the metadata group.

    The parts are the name of the request, a mapping from its fields to fields of the effect, and two lists. They contain the
    fields for the node id and for the incarnation of the sender.
    """
    name = _NAMES[effect]
    message: Any = cluster_pb2.ControlRequest.DESCRIPTOR.fields_by_name[name].message_type
    wire = message.fields_by_name
    own = {wire_name(field.name): field.name for field in fields(effect) if wire_name(field.name) in wire}
    return name, own, [field for field in _IDS if field in wire and field not in own], [f for f in _INCARNATIONS if f in wire]


def request_of(effect: Request, key: PartitionKey, node_id: str, incarnation: int) -> cluster_pb2.ControlRequest:
    """Return the request to the metadata group that ``effect`` stands for.

    Args:
        effect: Effect of the sending replica.
        key: Partition of the replica.
        node_id: Node of the replica.
        incarnation: Incarnation of the node's process.
    """
    name, own, ids, incarnations = _fields_of(cast(Any, type(effect)))
    arguments: dict[str, Any] = {"stream": key.stream, "uid": key.uid, "partition": key.partition}
    arguments |= dict.fromkeys(ids, node_id) | dict.fromkeys(incarnations, incarnation)
    for field, attribute in own.items():
        value = getattr(effect, attribute)
        arguments[field] = sorted(value) if isinstance(value, frozenset) else dict(value) if isinstance(value, tuple) else value
    return cluster_pb2.ControlRequest(**cast(Any, {name: arguments}))
