"""Events of a replica: what happened. ``Replica.step(event, now)`` takes one at a time.

Offsets are inclusive unless the name says ``end_offset`` (exclusive). ``token`` is a handle of the shell, such as a
reply subject, and the core only returns it in an effect. Times are monotonic nanoseconds, except ``*_wall_ns``.
``effects.py`` says what must be on disk before an event may be fed.

Events and effects are never changed after creation. They are not frozen dataclasses, because these take four times as
long to create.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar, dataclass_transform

from liftpy.core.base.partition import HeldPartition

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Return a dataclass with slots, made by keywords, equal and hashed by its fields, and frozen for the type checker."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)


@value
class LogOpened:
    """The log is open and recovered, and completely on disk. It is the first event of a replica, before any PartitionChanged."""

    log_start_offset: int
    """Inclusive: of the oldest record. Always the first offset of a batch, here and in every other event."""
    log_end_offset: int
    """Exclusive: everything below is on the disk."""
    high_watermark: int
    """Inclusive, -1: none. From the checkpoint. The core limits it to the log."""
    epochs: tuple[tuple[int, int], ...]
    """(LeaderEpoch, offset of its first record, inclusive), ascending: a scan of the log [D13]."""
    persisted_epoch: int = 0
    """The LeaderEpoch that PersistLeaderEpoch stored last. States of an older one are ignored. 0: none."""
    epoch_before_start: int = 0
    """LeaderEpoch of the newest record that retention has dropped; 0: not known."""


@value
class LogCompacted:
    """Compaction processed the log, on this node or at its source, and the result is durable. Also fed after LogOpened."""

    end_offset: int
    """Exclusive: below it the log may lack what later records below it superseded; 0: never compacted."""
    leader_epoch: int
    """Highest LeaderEpoch of the records below ``end_offset``, or a higher one."""
    deletes_end: int = 0
    """Exclusive: below it, delete markers may be missing in this log. 0: none is missing [D30]."""


@value
class PartitionChanged:
    """The metadata image shows this partition in a new state, or the set of live nodes changed."""

    held: HeldPartition
    """State of the partition. A state with a lower Epoch than the last one is ignored [C2]."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """Node id -> incarnation of every node that is registered and not fenced, including this one.

    A replica leads only if this has its own incarnation. So a state from before its registration makes no leader [C7].
    """


@value
class MetadataHeard:
    """The metadata leader answered a heartbeat that was SENT at ``sent_ns``. The lease begins then [D22].

    Feed it only when the local image has reached the index in the answer and all its PartitionChanged events were fed.
    Otherwise a node that continues after a pause would have a lease on leaderships that it has lost. A new replica gets it
    with the node's last such heartbeat.
    """

    sent_ns: int
    """Monotonic ns, of this node."""
    lease_ns: int = 0
    """The lease that the answer granted, in ns, whatever this node's image or settings say; 0: it is as the settings say."""


@value
class DataPathChanged:
    """The connection that carries replication was lost, or is back. Also fed to a replica that is new, while it is down."""

    is_up: bool
    """True if the data path works now."""


@value
class PublishesReceived:
    """Messages arrived on the data subject.

    They become one batch. Unless the replica ``takes_publishes``, an event has only plain messages or none. They are not stored
    before the core returns AppendBatch.
    """

    token: int
    """Token of the messages. AppendBatch, RejectPublishes or DropPublishes answers it, at once or later."""
    record_count: int
    """Number of records, at least 1."""
    size_bytes: int
    """Size of the batch as it will be stored, in bytes."""
    received_wall_ns: int
    """Wall clock, ns since 1970: for the batch's timestamp, and for nothing that is decided."""
    plain_count: int = 0
    """Number of publishes without reply subject. They cannot be rejected, only dropped."""
    conditional: bool = False
    """True if the publish requires the next offset: it is appended at once or not at all."""

    @property
    def is_plain(self) -> bool:
        """True if no publisher waits for an answer."""
        return self.plain_count >= self.record_count


@value
class FetchReceived:
    """A ReplicationRequest arrived on ``.replicate``. All its fields are validated before use."""

    token: int
    """Token of the request. SendFetchResponse or SendFetchRefusal answers it in this step, or KeepFetch keeps it."""
    replica: str
    """Node id of the sender."""
    offset: int
    """Inclusive: the newest record that it has flushed; log start - 1: none."""
    leader_epoch: int
    """LeaderEpoch that it follows."""
    offset_epoch: int
    """LeaderEpoch of its record at ``offset``. 0: its log is empty."""
    incarnation: int
    """Incarnation of the sender's process. 0: a peer of the published protocol. It may read and does not count."""
    request_id: int
    """Grows with each of its requests. A request below the last valid one was overtaken."""
    max_bytes: int
    """Maximum size of the answer in bytes. 0: the leader decides."""
    stream_uid: str
    """Uid of the requested stream. '': a peer of the published protocol."""
    awaits_more: bool = False
    """True if the sender accepts a second answer with later records, instead of a wake-up."""
    bad_offset: int | None = None
    """Inclusive: offset at which it received other bytes than were written, a wrong CRC, or no batch [S14]. None: none."""
    flush_ns: int = 0
    """Duration of the flush that made ``offset`` durable, in ns. 0: not given."""
    copy_epoch: int = 0
    """Number of a learner's copy. 0: the sender is a replica."""
    deletes_end: int | None = None
    """Exclusive: everything it has was fetched in this LeaderEpoch after the delete markers below were gone. 0: not
    everything. None: an older node that does not report it.
    """


@value
class EpochQueryReceived:
    """A LeaderEpochOffsetRequest on ``.offset``."""

    token: int
    """Token of the request. SendEpochAnswer or SendFetchRefusal answers it in this step."""
    replica: str
    """Node id of the sender."""
    asked_epoch: int
    """LeaderEpoch whose end is requested."""
    current_epoch: int
    """LeaderEpoch that it follows."""
    stream_uid: str
    """Uid of the requested stream. '': a peer of the published protocol."""


@value
class BatchSpan:
    """Offsets, epoch and size of one received record batch whose CRC was checked."""

    base_offset: int
    """Inclusive: offset of its first record, which compaction may have removed."""
    last_offset: int
    """Inclusive: offset of its last record, not below ``base_offset``."""
    leader_epoch: int
    """LeaderEpoch in which the batch was written."""


@value
class FetchAnswered:
    """A ReplicationResponse. Without spans, the follower is caught up, and ``token`` has no bytes. Bytes that cannot be
    parsed are a RequestFailed.
    """

    token: int
    """Token of the received bytes, until AppendFetched or DropFetched."""
    request_id: int
    """Id of the SendFetch or SendEpochQuery. It counts only if the replica waits for it [D16]."""
    leader_epoch: int
    """LeaderEpoch of the sender. If this replica follows another one, the answer is dropped."""
    high_watermark: int
    """Inclusive: the leader's HW when it answered. Only the part that is flushed here is used."""
    spans: tuple[BatchSpan, ...]
    """Batches in the order of the bytes kept under ``token``."""
    size_bytes: int = 0
    """Size of the kept bytes."""


@value
class FetchPieceArrived:
    """A part of the next batch arrived. The shell keeps it. The next fetch requests more."""

    request_id: int
    """Id of the SendFetch or SendEpochQuery. It counts only if the replica waits for it [D16]."""
    leader_epoch: int
    """LeaderEpoch of the sender."""
    has_room: bool = True
    """False: the piece was not kept, because other batches are incomplete. It is requested again after a pause."""


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
class FetchRefused:
    """A ReplicationRefusal, of a fetch or an epoch query."""

    request_id: int
    """Id of the SendFetch or SendEpochQuery. It counts only if the replica waits for it [D16]."""
    reason: RefusalReason
    """Reason of the rejection."""
    leader_epoch: int
    """LeaderEpoch of the sender. DIVERGED and BEFORE_LOG_START count only from the followed leader."""
    log_start_offset: int
    """Inclusive: of the leader's log."""
    deletes_end: int = 0
    """Exclusive, with DELETES_GONE and BEFORE_LOG_START: up to where the leader's log may lack delete markers."""


@value
class RequestFailed:
    """A fetch or an epoch query got no usable answer: timeout, no responders, disconnected, or unreadable."""

    request_id: int
    """Id of the SendFetch or SendEpochQuery. It counts only if the replica waits for it [D16]."""
    reason: str
    """Reason, as text for logs."""
    bad_offset: int | None = None
    """Inclusive: the answer has wrong bytes at this offset. -1: from its first batch on."""


@value
class EpochQueryAnswered:
    """A LeaderEpochOffsetResponse: where the largest epoch <= the asked one ends on the leader's log."""

    request_id: int
    """Id of the SendFetch or SendEpochQuery. It counts only if the replica waits for it [D16]."""
    leader_epoch: int
    """LeaderEpoch found in the leader's log. 0: the log does not have such an epoch."""
    last_offset: int
    """Inclusive: its last record. -1 if there is none."""
    current_epoch: int
    """LeaderEpoch in which the leader leads. If this replica follows another one, it asks again."""
    log_start_offset: int
    """Inclusive: start of the leader's log. A log that has nothing in common with it begins again there."""


@value
class LogFlushed:
    """More of the log is durable, or counts as durable under the flush policy of the stream.

    If a truncation overtook a flush, only the remaining part is reported, and never an offset that was appended after the
    flush began.
    """

    end_offset: int
    """Exclusive: everything below is on the disk. Never acted on beyond the log end."""
    took_ns: int = 0
    """Time that the disk needed, in ns, without waiting before or after. 0: nothing was flushed, or it was not measured."""


@value
class LogCut:
    """The truncation of CutLog, or the new log of StartLogAfresh, is durable.

    The remaining records need not be flushed. LogFlushed reports when they are, and must be fed for them too.
    """

    end_offset: int
    """Exclusive: the log end now. It is below the requested one if that was inside a batch."""


@value
class LogStartMoved:
    """Retention moved the log start. Earlier records are not served any more."""

    log_start_offset: int
    """Inclusive. It never falls, and is never above HW + 1 [D26]."""


@value
class StorageFailed:
    """The log has failed permanently (flush error, full disk, corruption). Nothing is acked any more [S4, S8]."""

    reason: str
    """Reason, as text for logs."""
    no_space: bool = False
    """True if the disk is full. The rejected data was not stored, and publishers may get a negative ack."""
    token: int = 0
    """Token of the AppendBatch that failed before any byte was written. Its publishes get a negative ack. 0: none."""


@value
class WokenUp:
    """A PartitionNotification arrived: there are records to fetch."""


@value
class NoticeReceived:
    """A LeaderNotice arrived: NewLeadershipTerm or CommitPosition of the claimed leader of ``leader_epoch``.

    It wakes the follower. Its other content is not used, because nobody requested it.
    """

    leader: str
    """Leader that the notice claims."""
    leader_epoch: int
    """Another one than is followed: ignored."""
    epoch: int
    """Epoch of the partition that the leader knows."""
    epoch_start_offset: int
    """Inclusive: of the first record of ``leader_epoch``."""
    high_watermark: int
    """Inclusive: the leader's HW. If it is above the own one, the follower fetches."""
    log_start_offset: int
    """Inclusive: of the leader's log."""


@value
class QuietFetchReceived:
    """A follower asks whether its fetch ``request_id`` still waits, together with many other partitions."""

    token: int
    """Token of the part of the request about this fetch. ConfirmQuiet names it."""
    replica: str
    """Replica that asks."""
    incarnation: int
    """Incarnation of its process."""
    leader_epoch: int
    """LeaderEpoch in which it follows."""
    request_id: int
    """Id of its last fetch."""


@value
class QuietEnded:
    """The fetch of WaitQuietly may wait no more, or can't be asked for together with others."""

    heard_ns: int | None
    """Monotonic time when the leader's node last answered, in ns. None: the fetch may still wait, but is not confirmed
    anymore.
    """


@value
class IsrChangeAnswered:
    """The metadata group answered ProposeIsr."""

    epoch: int
    """Epoch of the partition on which the change was based. If it has changed, the answer is ignored."""
    accepted: bool | None
    """True if accepted. None: unknown. Both ISRs then count until the image shows one of them [C8]."""


class Deadline(Enum):
    """Kind of a timer. At most one of each kind runs. Setting it again replaces it."""

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


@value
class ReplicaAbsent:
    """A replica is not connected to NATS: its process has ended or lost its connection (answer to ProbeReplica)."""

    replica: str
    """Replica that the leader looked for."""


@value
class DeadlineReached:
    """A deadline of SetDeadline is reached."""

    kind: Deadline
    """Kind of the deadline. A deadline that was canceled before is ignored."""


@value
class ReplayProgressed:
    """The derived state covers more of the log, but not all of it. It shows that the candidate is alive."""

    end_offset: int
    """Exclusive: covered below it."""


@value
class LeaderEpochPersisted:
    """A LeaderEpoch is on the disk (answer to PersistLeaderEpoch)."""

    leader_epoch: int
    """States of an older one are ignored from now on."""


@value
class ReplayFinished:
    """Derived state covers the log (answer to ReplayLog)."""

    end_offset: int
    """Exclusive: covered below it."""


@value
class DuplicateReceived:
    """Leader: publishers repeated records that are in the log. They are answered together with those of the record [A3]."""

    last_offset: int
    """Inclusive: last offset of the batch that holds the record. The lowest one of several batches."""


@value
class StopRequested:
    """The node stops: give up the role in good order. Last event of a replica."""


Event = (
    LogOpened
    | LogCompacted
    | PartitionChanged
    | MetadataHeard
    | DataPathChanged
    | PublishesReceived
    | DuplicateReceived
    | FetchReceived
    | EpochQueryReceived
    | FetchAnswered
    | FetchPieceArrived
    | FetchRefused
    | RequestFailed
    | EpochQueryAnswered
    | LogFlushed
    | LogCut
    | LogStartMoved
    | StorageFailed
    | WokenUp
    | NoticeReceived
    | QuietFetchReceived
    | QuietEnded
    | IsrChangeAnswered
    | DeadlineReached
    | ReplicaAbsent
    | ReplayProgressed
    | LeaderEpochPersisted
    | ReplayFinished
    | StopRequested
)
