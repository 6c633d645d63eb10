"""Events: what happened, in the past tense. ``Replica.step(event, now)`` takes one at a time.

Offsets are inclusive unless the name says ``end_offset`` (exclusive: the offset of the next record). ``token`` is a handle of
the shell's (a reply subject, a buffer of payloads); the core only hands it back in an effect. Times are monotonic ns, but
for ``*_wall_ns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from liftpy.replica.partition import PartitionState


@dataclass(frozen=True, slots=True)
class LogOpened:
    """The log is open and recovered, and all of it is on disk. First event of a replica, before any PartitionChanged."""

    log_start_offset: int
    """Always the first offset of a batch, here and in every other event."""
    log_end_offset: int
    high_watermark: int
    epochs: tuple[tuple[int, int], ...]
    """(LeaderEpoch, offset of its first record), ascending: a scan of the log [D13]."""
    persisted_epoch: int = 0
    """The LeaderEpoch that PersistLeaderEpoch stored last; states of an older one are ignored. 0: none."""


@dataclass(frozen=True, slots=True)
class LogCompacted:
    """The log may lack, below ``end_offset``, what later records below it superseded; that is durable. None of these records was
    written after ``leader_epoch``. Fed behind LogOpened too, where the log has such a horizon."""

    end_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """The metadata image shows this partition in a new state, or the set of live nodes changed."""

    state: PartitionState
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """Node id -> incarnation of every node that is registered and not fenced, this one included: a replica leads only
    where its own incarnation stands here, so that a state from before its registration makes it no leader [C7]."""


@dataclass(frozen=True, slots=True)
class MetadataHeard:
    """The metadata leader answered a heartbeat that was SENT at ``sent_ns``: the lease runs from there [D22].

    To be fed only when the local image is at or past the index that the answer names, and every PartitionChanged of it has
    been fed: a node that comes back after a pause would otherwise hold a lease on leaderships that it has lost. Also fed
    to a replica that is new, with the last such heartbeat of the node.
    """

    sent_ns: int


@dataclass(frozen=True, slots=True)
class DataPathChanged:
    """The connection that carries replication was lost, or is back. Also fed to a replica that is new, while it is down."""

    is_up: bool


@dataclass(frozen=True, slots=True)
class PublishesReceived:
    """Messages arrived on the data subject; together they become one batch of ``record_count`` records. Of ``plain_count`` of them
    the publisher waits for no answer: it can't be told "no", only be lost. Where the replica does not ``takes_publishes``, all of
    the messages of one event are plain, or none is."""

    token: int
    record_count: int
    size_bytes: int
    received_wall_ns: int
    plain_count: int = 0
    conditional: bool = False
    """It is bound to the offset that it would get now: it is appended at once or not at all."""

    @property
    def is_plain(self) -> bool:
        """Whether nobody waits for an answer."""
        return self.plain_count >= self.record_count


@dataclass(frozen=True, slots=True)
class FetchReceived:
    """A ReplicationRequest on ``.replicate``. ``stream_uid`` '' and ``incarnation`` 0: a peer of the published protocol."""

    token: int
    replica: str
    offset: int
    leader_epoch: int
    offset_epoch: int
    incarnation: int
    request_id: int
    max_bytes: int
    stream_uid: str
    awaits_more: bool = False
    """It takes a second answer to this request, when there is more, in the place of a wake-up."""
    bad_offset: int | None = None
    """What it was served at this offset is not what was written: a wrong CRC, or no batch where one must be [S14]."""
    flush_ns: int = 0
    """What the flush took that made ``offset`` durable; 0: it does not say."""


@dataclass(frozen=True, slots=True)
class EpochOffsetReceived:
    """A LeaderEpochOffsetRequest on ``.offset``."""

    token: int
    replica: str
    asked_epoch: int
    current_epoch: int
    stream_uid: str


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """What the core needs to know of one received record batch (its CRC has been checked)."""

    base_offset: int
    last_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class FetchAnswered:
    """A ReplicationResponse to ``request_id``; ``spans`` in the order of the bytes kept under ``token``.

    No spans: caught up; then nothing is kept under ``token``. Bytes that do not parse are a RequestFailed.
    """

    token: int
    request_id: int
    leader_epoch: int
    high_watermark: int
    spans: tuple[BatchSpan, ...]


@dataclass(frozen=True, slots=True)
class FetchPieceArrived:
    """Part of the next batch came in answer to ``request_id``; what is held of it is kept outside. The next fetch asks for more.
    ``has_room`` False: it was not kept, others are being put together."""

    request_id: int
    leader_epoch: int
    has_room: bool = True


class RefusalReason(Enum):
    """Why a leader does not serve a fetch; the numbers are those of ``ReplicationRefusal.Reason``."""

    UNKNOWN = 0
    NOT_LEADER = 1
    STALE_EPOCH = 2
    STALE_INCARNATION = 3
    DIVERGED = 4
    BEFORE_LOG_START = 5
    NOT_A_REPLICA = 6
    WRONG_STREAM = 7


@dataclass(frozen=True, slots=True)
class FetchRefused:
    """A ReplicationRefusal to ``request_id``, a fetch or an epoch query."""

    request_id: int
    reason: RefusalReason
    leader_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No answer to ``request_id`` (a fetch or an epoch query): time-out, no responders, disconnected, unreadable."""

    request_id: int
    reason: str
    bad_offset: int | None = None
    """The answer came, but what it holds at this offset is not what was written. -1: from its first batch on."""


@dataclass(frozen=True, slots=True)
class EpochOffsetAnswered:
    """A LeaderEpochOffsetResponse: the largest epoch <= the asked one on the leader's log and its last offset."""

    request_id: int
    leader_epoch: int
    """0 when the leader's log has no such epoch."""
    last_offset: int
    """-1 when there is none."""
    current_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """Everything below ``end_offset`` is on disk (or counts as such by the stream's flush policy).

    A flush that a cut overtook is reported with what the cut left of it: never an offset that was appended after it began.
    """

    end_offset: int
    took_ns: int = 0
    """What the disk needed for it, without any waiting before or after; 0: nothing was flushed, or nobody has looked."""


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """The cut asked for by TruncateLog, or the fresh start by ResetLog, is done and durable.

    What it left need not be flushed: LogFlushed says when it is, and has to be fed for that too.
    """

    end_offset: int


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """Retention or truncate-before moved the log start."""

    log_start_offset: int


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """The log refused for good (flush error, no space, corruption). Nothing is acknowledged any more [S4, S8]."""

    reason: str
    no_space: bool = False
    token: int = 0
    """Of the AppendBatch that failed before any of its bytes were written: its publishes get a negative ack. 0: none."""


@dataclass(frozen=True, slots=True)
class WokenUp:
    """A PartitionNotification for this partition: there is something to fetch."""


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    """A LeaderNotice: NewLeadershipTerm or CommitPosition of the leader of ``leader_epoch``, or so it says: nobody asked for it."""

    leader: str
    leader_epoch: int
    epoch: int
    epoch_start_offset: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class IsrChangeAnswered:
    """The metadata group answered ProposeIsr of partition epoch ``epoch``. ``accepted`` None: the outcome is unknown."""

    epoch: int
    accepted: bool | None


class Deadline(Enum):
    """What a deadline is for; one of each kind runs at a time, setting it again replaces it."""

    FETCH = "fetch"  # follower: end of the idle sleep or of a back-off
    REQUEST = "request"  # follower: no answer to the outstanding request
    LEADER = "leader"  # follower: the leader has been silent too long
    LAG = "lag"  # leader: look for followers that lag
    LEASE = "lease"  # leader: the lease runs out
    NOTICE = "notice"  # leader: repeat CommitPosition
    PROBE = "probe"  # leader: HW has not moved for a while, who holds it back?
    ISR_CHANGE = "isr-change"  # leader: no answer from the metadata group
    PROMOTION = "promotion"  # candidate: progress

    __hash__ = object.__hash__  # by identity, as they are compared: an enum's own is a call into Python, several times an event


@dataclass(frozen=True, slots=True)
class ReplicaAbsent:
    """Nobody listens for ``replica`` on the bus: its process has ended, or lost its connection (answer to ProbeReplica)."""

    replica: str


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The time given by SetDeadline has come."""

    kind: Deadline


@dataclass(frozen=True, slots=True)
class ReplayProgressed:
    """Derived state covers the log up to ``end_offset``, not yet all of it: the candidate is alive."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpochPersisted:
    """``leader_epoch`` is on disk (answer to PersistLeaderEpoch)."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReplayFinished:
    """Derived state covers the log up to ``end_offset`` (answer to ReplayLog)."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The node stops: give up the role in good order. Last event of a replica."""


Event = (
    LogOpened
    | LogCompacted
    | PartitionChanged
    | MetadataHeard
    | DataPathChanged
    | PublishesReceived
    | FetchReceived
    | EpochOffsetReceived
    | FetchAnswered
    | FetchPieceArrived
    | FetchRefused
    | RequestFailed
    | EpochOffsetAnswered
    | LogFlushed
    | LogTruncated
    | LogStartMoved
    | StorageFailed
    | WokenUp
    | NoticeReceived
    | IsrChangeAnswered
    | DeadlineReached
    | ReplicaAbsent
    | ReplayProgressed
    | LeaderEpochPersisted
    | ReplayFinished
    | StopRequested
)
