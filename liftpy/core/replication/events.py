"""Events: inputs of a replica. ``Replica.step(event, now)`` processes one at a time.

Offsets are inclusive unless the name contains ``end_offset`` (exclusive). ``token`` is a handle of the shell (the code
around the replica), such as a reply subject. The core only returns it in an effect. Times are monotonic nanoseconds,
except ``*_wall_ns``. ``effects.py`` defines what must be on disk before an event may be fed.

Events and effects are never changed after creation. They are not frozen dataclasses, because these take four times as
long to create.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from liftpy.core.base.partition import PartitionMetadata
from liftpy.core.replication.messages import Message, value


@value
class LogOpened:
    """First event of a replica: its log is open and recovered, and all records of the log are on disk."""

    log_start_offset: int
    """Offset of the oldest record, inclusive. It is always the first offset of a batch."""
    log_end_offset: int
    """Log end, exclusive. All records below it are on disk."""
    high_watermark: int
    """High watermark of the checkpoint, inclusive. -1: none. The core limits it to the log."""
    epochs: tuple[tuple[int, int], ...]
    """(LeaderEpoch, offset of its first record, inclusive) in ascending order, from a scan of the log [D13]."""
    persisted_epoch: int = 0
    """Last LeaderEpoch that PersistLeaderEpoch stored. The replica ignores states of older epochs. 0: none."""
    epoch_before_start: int = 0
    """LeaderEpoch of the newest record that retention has deleted. 0: not known."""


@value
class LogCompacted:
    """A compaction of the log ended and is durable, or fetched records were compacted at the leader.

    The event is also fed after LogOpened.
    """

    end_offset: int
    """Offset below which this log may lack records that a later record replaced, exclusive. 0: it was never compacted."""
    leader_epoch: int
    """Highest LeaderEpoch of the records below ``end_offset``, or a higher one."""
    deletes_end: int = 0
    """Offset below which this log may lack tombstones, exclusive. 0: it lacks none [D30]."""


@value
class PartitionChanged:
    """The metadata of this node shows this partition in a new state, or another set of live nodes."""

    metadata: PartitionMetadata
    """State of the partition. A state with a lower Epoch than the last one is ignored [C2]."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """Node id -> incarnation of every node that is registered and not fenced, including this one.

    A replica leads only if this has its own incarnation. So a state from before its registration makes no leader [C7].
    """
    announced: int = 0
    """Number of changes of this partition that the node's image had shown when the event was built [D22]."""


@value
class LeaseChanged:
    """The lease of the node has ended, or it was extended after its end. Only leaders need the event.

    The lease itself is shared by all replicas of the node, and a replica compares it with the clock [D22]. So the event only
    sends the acks that wait for the lease, and changes the phase. It may be late, or arrive more than once.
    """


@value
class DataPathChanged:
    """The connections that a leader needs were lost or restored. A new replica also gets this event if they are down."""

    is_up: bool
    """True if the data path works now."""


@value
class PublishesReceived:
    """Messages arrived on the data subject. They become one batch.

    The shell keeps the messages. It stores them only after the core returns AppendBatch. While ``takes_publishes`` is False, an
    event has either only messages with a reply subject, or only messages without one.
    """

    token: int
    """Handle of the messages. AppendBatch, RejectPublishes or DropPublishes names it, at once or later."""
    record_count: int
    """Number of records, at least 1."""
    size_bytes: int
    """Size of the batch as it will be stored, in bytes."""
    received_wall_ns: int
    """Wall clock at the arrival, in nanoseconds since 1970. It is used only for the batch's timestamp."""
    plain_count: int = 0
    """Number of publishes without reply subject. They cannot be rejected, only dropped."""
    conditional: bool = False
    """True if the publish requires a certain next offset. It is appended at once or rejected."""

    @property
    def is_plain(self) -> bool:
        """True if none of the messages has a reply subject, so that no publisher waits for an answer."""
        return self.plain_count >= self.record_count


@value
class BatchSpan:
    """Offsets, epoch and size of one received record batch whose CRC was checked."""

    base_offset: int
    """Offset of the first record of the batch, inclusive. Compaction may have removed this record."""
    last_offset: int
    """Offset of the last record of the batch, inclusive. It is at least ``base_offset``."""
    leader_epoch: int
    """LeaderEpoch in which the batch was written."""


@value
class FetchAnswered:
    """The leader's answer to a fetch (ReplicationResponse) arrived. Without batches, this replica has all records of the leader.

    If the bytes cannot be parsed, the shell feeds RequestFailed instead.
    """

    token: int
    """Handle of the received bytes. AppendFetched or DropFetched ends its use."""
    request_id: int
    """Id of the request that the answer repeats. The core ignores answers to earlier requests [D16]."""
    leader_epoch: int
    """LeaderEpoch of the sender. The core drops an answer of another LeaderEpoch."""
    high_watermark: int
    """High watermark of the leader when it answered, inclusive."""
    spans: tuple[BatchSpan, ...]
    """Batches in the order of the bytes kept under ``token``."""
    size_bytes: int = 0
    """Size of the fetched batches, in bytes."""


@value
class FetchPieceArrived:
    """A piece of a batch that is larger than one message arrived. The shell stores the piece. The next fetch requests the next one."""

    request_id: int
    """Id of the request that the answer repeats. The core ignores answers to earlier requests [D16]."""
    leader_epoch: int
    """LeaderEpoch of the sender."""
    has_room: bool = True
    """True if the shell kept the piece. Otherwise memory was short, and the follower requests the piece again after a pause."""


@value
class RequestFailed:
    """A fetch or an epoch query of this replica failed: timeout, no responders, lost connection, or an invalid answer."""

    request_id: int
    """Id of the failed request. The replica ignores failures of requests before its last one [D16]."""
    reason: str
    """Reason, as text for logs."""
    bad_offset: int | None = None
    """Offset at which the answer has wrong bytes, inclusive. -1: its first batch is wrong. None: no damage."""


@value
class LogFlushed:
    """More records of the log are durable, or count as durable under the flush policy of the stream.

    If a truncation overtook a flush, only the remaining part is reported. An offset that was appended after the flush began is
    never reported.
    """

    end_offset: int
    """Offset below which all records are on disk, exclusive. The core limits it to the log end."""
    took_ns: int = 0
    """Duration of the flush, in nanoseconds. 0: nothing was flushed, or the duration is unknown."""


@value
class LogTruncated:
    """The truncation of TruncateLog is durable, or the new log of ResetLog.

    The remaining records need not be flushed. The shell feeds LogFlushed when they are.
    """

    end_offset: int
    """Log end after the truncation, exclusive. It may be below the requested one, because batches are not split."""


@value
class LogStartMoved:
    """Retention raised the log start. Earlier records are not served anymore."""

    log_start_offset: int
    """New log start, inclusive. It never falls, and is at most HW + 1 [D26]."""


@value
class StorageFailed:
    """The log has failed permanently: flush error, full disk or corruption. The replica sends no more acks [S4, S8]."""

    reason: str
    """Reason, as text for logs."""
    no_space: bool = False
    """True if the disk is full. The rejected data was not stored, and publishers may get a negative ack."""
    token: int = 0
    """Handle of the AppendBatch that failed before any byte was written. Its publishes get a negative ack. 0: none."""


@value
class NotificationReceived:
    """A PartitionNotification of the leader arrived: the leader has records that this follower can fetch."""


@value
class CombinedFetchReceived:
    """A follower's node asks whether the follower's fetch ``request_id`` still waits. The message asks about many partitions."""

    token: int
    """Handle of the part of the request about this fetch. ConfirmCombinedFetch names it."""
    replica: str
    """Node id of the follower that asks."""
    incarnation: int
    """Incarnation of the follower's process."""
    leader_epoch: int
    """LeaderEpoch in which the follower follows."""
    request_id: int
    """Id of the follower's last fetch."""


@value
class CombinedFetchEnded:
    """The wait that CombineFetch began has ended. The follower must send its own fetches again."""

    last_answer_ns: int | None
    """Monotonic time of the last answer of the leader's node, in nanoseconds.

    None: only this fetch is no longer confirmed.
    """


@value
class IsrChangeAnswered:
    """The metadata group answered the ISR change that ProposeIsr requested, or did not answer in time."""

    epoch: int
    """Epoch of the partition on which the change was based. If it has changed, the answer is ignored."""
    accepted: bool | None
    """True if the group accepted the change, False if it rejected it. None: unknown, so both ISRs count for now [C8]."""


class Deadline(Enum):
    """Kind of a timer. At most one of each kind runs. Setting it again replaces it."""

    FETCH = "fetch"  # follower: end of the idle sleep or of a back-off
    REQUEST = "request"  # follower: no answer to the outstanding request
    LEADER = "leader"  # follower: the leader has been silent too long
    LAG = "lag"  # leader: look for followers that lag
    NOTICE = "notice"  # leader: repeat CommitPosition
    PROBE = "probe"  # leader: HW has not moved for a while, who holds it back?
    ISR_CHANGE = "isr-change"  # leader: no answer from the metadata group
    PROMOTION = "promotion"  # candidate: progress

    __hash__ = object.__hash__  # by identity, as they are compared: an enum's own is a call into Python, several times an event


@value
class ReplicaAbsent:
    """A replica is not connected to NATS: its process has ended or lost its connection (answer to ProbeReplica)."""

    replica: str
    """Node id of the replica that the leader probed."""


@value
class DeadlineReached:
    """The timer of a SetDeadline expired."""

    kind: Deadline
    """Kind of the deadline. A deadline that was canceled before is ignored."""


@value
class ReplayProgressed:
    """The replay of the log has reached ``end_offset``, but not the log end. The event shows that the candidate makes progress."""

    end_offset: int
    """Offset below which the derived state covers the log, exclusive."""


@value
class LeaderEpochPersisted:
    """A LeaderEpoch is on the disk (answer to PersistLeaderEpoch)."""

    leader_epoch: int
    """LeaderEpoch that is on disk. The replica ignores states of older epochs from now on."""


@value
class ReplayFinished:
    """The replay of the log has reached the log end, so the derived state is complete (answer to ReplayLog)."""

    end_offset: int
    """Offset below which the derived state covers the log, exclusive."""


@value
class DuplicateReceived:
    """Leader: publishers sent records again that are already in the log.

    They get their acks as soon as the leader may ack the stored records [A3].
    """

    last_offset: int
    """Last offset of the batch with the record, inclusive. For several batches, the lowest such offset."""


@value
class StopRequested:
    """The node stops. The replica ends its role. This is the last event of a replica."""


Event = (
    LogOpened
    | LogCompacted
    | PartitionChanged
    | LeaseChanged
    | DataPathChanged
    | PublishesReceived
    | DuplicateReceived
    | Message
    | FetchAnswered
    | FetchPieceArrived
    | RequestFailed
    | LogFlushed
    | LogTruncated
    | LogStartMoved
    | StorageFailed
    | NotificationReceived
    | CombinedFetchReceived
    | CombinedFetchEnded
    | IsrChangeAnswered
    | DeadlineReached
    | ReplicaAbsent
    | ReplayProgressed
    | LeaderEpochPersisted
    | ReplayFinished
    | StopRequested
)
