"""Messages between the replicas of a partition, one class each. A message is an effect of its sender and an event of its
receiver.

A codec converts it to the NATS frame in ``replication.proto`` and back. So a new field needs a number there and a field
of the class. The simulator delivers the message itself.

Some fields are not in the frame: the ``token`` of the receiver, and the addressees of a notice. A frame also names the
partition, for the checks in ``liftpy/core/wire/frames.py``. The core does not need this address.

The answers of a leader that contain record batches are not here. The shell builds them from the log, so that no record
passes through the core (``SendFetchResponse``, ``FetchAnswered``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar, dataclass_transform

from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.message_codec import Converter, MessageCodec

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make ``cls`` a dataclass with slots and keyword arguments. Only the type checker treats its fields as frozen."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)


@value
class FetchRequest:
    """A follower's fetch (ReplicationRequest) on ``.replicate``. It acknowledges ``offset`` and requests the records after it.

    The follower sets a timer for the answer. The leader checks all fields before use.
    """

    token: int = 0
    """Handle of the request in the leader's shell. SendFetchResponse, FetchRefusal or ParkFetch names it in this step. 0: not
    received.
    """
    replica: str
    """Node id of the sender."""
    offset: int
    """Newest flushed offset of the sender, inclusive. Log start - 1: the sender has no records."""
    leader_epoch: int
    """LeaderEpoch that the sender follows."""
    offset_epoch: int
    """LeaderEpoch of the sender's record at ``offset``. 0: its log is empty."""
    incarnation: int
    """Incarnation of the sender's process. 0: a reader of the published protocol, which does not count as a replica."""
    request_id: int
    """Id of the request, which grows for each sender. A lower id than the last valid one means an outdated request."""
    max_bytes: int
    """Maximum size of the answer in bytes. A larger batch comes in pieces. 0: the leader decides."""
    stream_uid: str
    """Uid of the requested stream. '': the sender follows the published protocol, which has no uid."""
    awaits_more: bool = False
    """True if the sender accepts a second answer with later records, instead of a wake-up."""
    bad_offset: int | None = None
    """Offset at which the last answer had wrong bytes, inclusive [S14]. None: no damage."""
    flush_ns: int = 0
    """Duration of the sender's last flush, in nanoseconds. 0: unknown."""
    copy_epoch: int = 0
    """Number of the learner's copy (``PartitionState.copy_epoch``). 0: the sender is a replica."""
    deletes_end: int | None = None
    """Offset below which the leader had deleted tombstones before the sender fetched its log in this LeaderEpoch,
    exclusive.

    0: the sender has records from before. None: an older node that does not report the value.
    """


@value
class EpochQuery:
    """A follower's question on ``.offset`` where an epoch ends in the leader's log (LeaderEpochOffsetRequest)."""

    token: int = 0
    """Handle of the request in the leader's shell. EpochAnswer or FetchRefusal names it in this step. 0: not received."""
    replica: str
    """Node id of the sender."""
    request_id: int
    """Id of the request, which the answer repeats. Ids grow."""
    requested_epoch: int
    """LeaderEpoch whose end in the leader's log is requested."""
    current_epoch: int
    """LeaderEpoch that the sender follows. Only the leader of this epoch answers."""
    stream_uid: str
    """Uid of the requested stream. '': the sender follows the published protocol, which has no uid."""


@value
class EpochAnswer:
    """Answer of a leader or candidate to an epoch query (LeaderEpochOffsetResponse).

    It names the largest epoch in the leader's log that is not above the requested one, and the last offset of that epoch.
    """

    token: int = 0
    """Handle of the epoch query in the leader's shell. 0: the answer was received."""
    request_id: int
    """Id of the request that the answer repeats. The follower ignores answers to earlier requests [D16]."""
    leader_epoch: int
    """LeaderEpoch found in the leader's log. 0: the log does not have such an epoch."""
    last_offset: int
    """Offset of the last record of ``leader_epoch`` in the leader's log, inclusive. -1: there is none."""
    current_epoch: int
    """LeaderEpoch in which the sender leads. If it is not the followed one, the follower asks again."""
    log_start_offset: int
    """Log start of the leader, inclusive. A log without common records starts again at this offset."""


class RefusalReason(Enum):
    """Reason for the rejection of a fetch. The numbers are those of ``ReplicationRefusal.Reason``."""

    UNKNOWN = 0
    NOT_LEADER = 1
    STALE_EPOCH = 2
    STALE_INCARNATION = 3
    DIVERGED = 4
    BEFORE_LOG_START = 5
    NOT_A_REPLICA = 6
    WRONG_STREAM = 7
    DELETES_GONE = 8


@value
class FetchRefusal:
    """Rejection of a fetch or an epoch query (ReplicationRefusal)."""

    token: int = 0
    """Handle of the rejected request in the sender's shell. 0: the rejection was received."""
    request_id: int
    """Id of the request that the answer repeats. The follower ignores answers to earlier requests [D16]."""
    reason: RefusalReason
    """Reason for the rejection."""
    leader_epoch: int
    """LeaderEpoch of the sender. DIVERGED and BEFORE_LOG_START count only from the leader that the follower follows."""
    log_start_offset: int
    """Log start of the sender, inclusive. A follower that is rejected with BEFORE_LOG_START or DELETES_GONE begins its log there."""
    deletes_end: int = 0
    """Offset below which the sender's log may lack tombstones, exclusive. A follower that begins a new log stores it."""


@value
class LeaderNotice:
    """Notice of a leader without a request (LeaderNotice): NewLeadershipTerm or CommitPosition.

    It makes the follower fetch. The follower does not use its offsets, because any client may send a notice.
    """

    replicas: tuple[str, ...] = ()
    """Node ids of the addressees. (): the notice was received."""
    leader: str
    """Node id of the sender. For the receiver, it is only a claim."""
    leader_epoch: int
    """LeaderEpoch in which the sender leads. The core ignores a notice of an epoch that it does not follow."""
    epoch: int
    """Epoch of the partition that the leader knows."""
    epoch_start_offset: int
    """Offset of the first record of ``leader_epoch``, inclusive. The record may not exist yet."""
    high_watermark: int
    """High watermark of the leader, inclusive. If it is above the HW of the receiver, the receiver fetches."""
    log_start_offset: int
    """Log start of the leader, inclusive."""


Message = FetchRequest | EpochQuery | EpochAnswer | FetchRefusal | LeaderNotice

# ---- codecs ----------------------------------------------------------------------------------------------------------
_MAX_MICROS = (1 << 32) - 1
_FLUSH: Converter = (lambda flush_ns: min(-(-flush_ns // 1000), _MAX_MICROS), lambda micros: micros * 1000)


def _reason(number: int) -> RefusalReason:
    try:
        return RefusalReason(number)
    except ValueError:
        return RefusalReason.UNKNOWN


_REASON: Converter = (lambda reason: reason.value, _reason)
_ADDRESS = ("streamUid", "partition")

FETCH_REQUEST = MessageCodec(
    FetchRequest,
    pb.ReplicationRequest,
    renamed={"replica": "replicaID", "flush_ns": "flushMicros"},
    wire_only=("partition", "position", "batchCrc"),
    local_only=("token",),
    converters={"flush_ns": _FLUSH},
)
EPOCH_QUERY = MessageCodec(
    EpochQuery,
    pb.LeaderEpochOffsetRequest,
    renamed={"requested_epoch": "leaderEpoch", "replica": "replicaID"},
    wire_only=("partition",),
    local_only=("token",),
)
EPOCH_ANSWER = MessageCodec(
    EpochAnswer, pb.LeaderEpochOffsetResponse, renamed={"last_offset": "endOffset"}, wire_only=_ADDRESS, local_only=("token",)
)
FETCH_REFUSAL = MessageCodec(
    FetchRefusal, pb.ReplicationRefusal, wire_only=_ADDRESS, local_only=("token",), converters={RefusalReason: _REASON}
)
LEADER_NOTICE = MessageCodec(
    LeaderNotice, pb.LeaderNotice, wire_only=("stream", "streamUid", "partition"), local_only=("replicas",)
)
