"""Messages between the replicas of a partition. A message is an effect of the sender, a NATS frame, and an event of the
receiver.

The three have equal field names. So a new field needs a number in ``replication.proto``, a field of the effect and a
field of the event. The codecs in this module convert to and from frames. The simulator and the in-memory cluster call
``received_from`` instead.

A frame also names the partition and the request, for the checks in ``liftpy/core/wire/frames.py``. The codecs handle
these fields separately, because the core does not need them.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import RefusalReason
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.message_codec import Converter, MessageCodec

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
