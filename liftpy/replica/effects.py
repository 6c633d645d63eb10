"""Effects: what the shell must do, in the imperative. ``Replica.step`` returns them in order.

THE ORDERING CONTRACT. The shell carries out the effects of one step in order, and finishes the synchronous part of one step
before it feeds the next event. In particular:

1. ``AppendBatch`` and ``AppendFetched`` write (not flush) before anything after them in the list happens, and start a flush
   by the stream's policy. Nobody hears of the records before ``LogFlushed`` has been fed back and the core has said so.
2. ``SendFetch`` says ``offset``: only what ``LogFlushed`` has reported. ``SendAcks(LEADER)`` and ``SendAcks(ALL)`` likewise.
3. ``SendFetchResponse`` reads the log below its flushed end, and the HW, when it is sent, and sends nothing if the role has
   changed since. A read that fails is answered by nothing, never by an empty response, which would mean "caught up".
4. ``TruncateLog`` and ``ResetLog`` are durable before ``LogTruncated`` is fed back; the core fetches nothing in between.
5. ``RaiseHighWatermark`` is applied to the log before any later read is served; its checkpoint may come later.
6. An effect that fails becomes an event (``StorageFailed``, ``RequestFailed``), never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from liftpy.config import AckPolicy
from liftpy.replica.events import Deadline, RefusalReason


@dataclass(frozen=True, slots=True)
class AppendBatch:
    """Leader: seal the publishes under ``token`` as one batch with these stamps, and append it."""

    token: int
    base_offset: int
    leader_epoch: int
    timestamp_ns: int


class RejectReason(Enum):
    """Why a publish is refused; the numbers are those of ``Ack.Error``."""

    UNKNOWN = 1
    INCORRECT_OFFSET = 2
    TOO_LARGE = 3
    READ_ONLY = 5
    BELOW_MIN_ISR = 6
    NO_SPACE = 7
    NOT_LEADER = 8
    MALFORMED = 9
    OVERLOADED = 10
    WRONG_STREAM = 11


@dataclass(frozen=True, slots=True)
class RejectPublishes:
    """Answer the publishes under ``token`` with a negative ack and forget them: they were not appended [A2]."""

    token: int
    reason: RejectReason


@dataclass(frozen=True, slots=True)
class DropPublishes:
    """Forget the publishes under ``token`` without an answer: this replica may not speak for the partition, and the
    one that may has heard them too, so that a negative ack could be a lie [A2]. Or nobody waits for one; ``reason``: why they are
    lost, None: this replica does not lead."""

    token: int
    reason: RejectReason | None = None


@dataclass(frozen=True, slots=True)
class SendAcks:
    """Answer every waiting publish of ``policy`` at or below ``through_offset``. ALL also frees those with no reply."""

    policy: AckPolicy
    through_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class DropPendingAcks:
    """Forget the waiting publishers without an answer: their records may or may not survive the change of leader."""


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Follower: append the batches kept under ``token`` as they are, through ``last_offset``. Where they show compaction, first store
    that the log is compacted up to ``leader_high_watermark`` in ``leader_epoch``, and feed LogCompacted."""

    token: int
    last_offset: int
    leader_high_watermark: int
    """Inclusive: the leader's compaction has not looked past it."""
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class DropFetched:
    """Follower: the answer under ``token`` is not used (stale, gap); free it. ``why`` is counted."""

    token: int
    why: str


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Cut the log so that its log end is ``end_offset``; answer LogTruncated."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Throw the local log away and begin an empty one at ``start_offset``: it ends behind the leader's log start [D26], has nothing in
    common with the leader's, or was compacted by records that are to be cut."""

    start_offset: int


@dataclass(frozen=True, slots=True)
class RaiseHighWatermark:
    """Records through ``high_watermark`` are committed: serve them, wake readers, checkpoint by the interval."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class RecheckLog:
    """Leader: ``replica`` complains of what it was served at ``offset``; read that again from the disk, within bounds
    (``Log.complaint``)."""

    offset: int
    replica: str


@dataclass(frozen=True, slots=True)
class SendFetch:
    """Follower: ReplicationRequest to the leader on ``.replicate``; the core keeps the deadline of the answer."""

    request_id: int
    leader: str
    offset: int
    offset_epoch: int
    leader_epoch: int
    max_bytes: int
    bad_offset: int | None = None
    """What the leader served last is not what was written at this offset: the request says so."""
    flush_ns: int = 0
    """What the last flush took."""


@dataclass(frozen=True, slots=True)
class SendEpochQuery:
    """Follower: LeaderEpochOffsetRequest to the leader on ``.offset``."""

    request_id: int
    leader: str
    asked_epoch: int
    current_epoch: int


@dataclass(frozen=True, slots=True)
class SendFetchResponse:
    """Leader: answer ``token`` with whole batches from ``from_offset`` on, at most ``max_bytes`` (one batch at least), flushed
    here or not. ``kept_for``: the replica for which the way back is kept, for one AnswerWaiter; '': it is not."""

    token: int
    from_offset: int
    max_bytes: int
    leader_epoch: int
    kept_for: str = ""


@dataclass(frozen=True, slots=True)
class AnswerWaiter:
    """Leader: there is more for ``replica``, whose last fetch was answered with nothing: answer that fetch again. Nothing is sent
    where the way back was not kept, or the log can't be read: the follower fetches when its idle wait is over."""

    replica: str
    from_offset: int
    max_bytes: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TellWaiter:
    """Leader: HW has risen, and ``replica`` waits at the log end: answer its last fetch once more, with nothing but the HW of now.
    The way back stays kept for AnswerWaiter. Nothing is sent where it was not kept: the follower's next fetch brings HW."""

    replica: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SendFetchRefusal:
    """Leader: answer ``token`` (of a fetch or of an epoch query) with a ReplicationRefusal."""

    token: int
    reason: RefusalReason
    leader_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class SendEpochAnswer:
    """Leader: answer ``token`` with a LeaderEpochOffsetResponse."""

    token: int
    leader_epoch: int
    last_offset: int
    current_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class NotifyReplica:
    """Leader: one PartitionNotification to ``<ns>.notify.<replica>``."""

    replica: str


@dataclass(frozen=True, slots=True)
class ProbeReplica:
    """Leader: ask the bus whether anybody listens for ``replica``; if nobody does, answer ReplicaAbsent."""

    replica: str


@dataclass(frozen=True, slots=True)
class SendNotice:
    """Leader: one LeaderNotice to each of ``replicas``. It wakes them; the offsets are for who looks on."""

    replicas: tuple[str, ...]
    leader_epoch: int
    epoch: int
    epoch_start_offset: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Leader: ask for ``isr``, by compare-and-set on (leader, leader_epoch, epoch); answer IsrChangeAnswered."""

    isr: frozenset[str]
    leader_epoch: int
    epoch: int
    incarnations: tuple[tuple[str, int], ...]
    lost: frozenset[str] = frozenset()
    """Replicas that asked for what they had acknowledged: they are complete no more, in the ISR or out of it."""
    slow: tuple[tuple[str, int], ...] = ()
    """(member, what its last flush took, in ns) of those that leave because their disks are far slower than the others'."""


@dataclass(frozen=True, slots=True)
class ReportLeader:
    """Follower: the leader can't be reached (or an election asks for positions); tell the metadata group where this log is."""

    leader: str
    leader_epoch: int
    last_epoch: int
    newest_offset: int
    high_watermark: int
    leader_lacks: bool = False
    """The leader lacks what is known here to be committed."""


@dataclass(frozen=True, slots=True)
class LeaveIsr:
    """Failed follower: have the metadata group take it out of the ISR; there is no answer to wait for, it is asked again."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUpLeadership:
    """Leader: ask the metadata group for a successor; there is no answer to wait for, it is asked again."""

    leader_epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepAside:
    """Leader: answer who has published, then ask the metadata group for a planned transfer to ``toward``; there is no answer to wait
    for. A leader that stays takes publishes again."""

    leader_epoch: int
    toward: str
    reason: str


@dataclass(frozen=True, slots=True)
class PersistLeaderEpoch:
    """Candidate: store the proposed LeaderEpoch, durably; answer LeaderEpochPersisted."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReportPromotion:
    """Candidate: tell the metadata group how far the promotion is; ``finished``: it may record this node as leader."""

    leader_epoch: int
    epoch: int
    replayed_end_offset: int
    newest_offset: int
    finished: bool


@dataclass(frozen=True, slots=True)
class ReplayLog:
    """Rebuild derived state from its checkpoint to the log end, the uncommitted tail included; answer ReplayFinished."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class StartServing:
    """Leader: listen on ``.replicate`` and ``.offset``."""


@dataclass(frozen=True, slots=True)
class OpenSubject:
    """Leader: subscribe to the stream's data subject and take publishes."""


@dataclass(frozen=True, slots=True)
class CloseSubject:
    """Stop taking publishes, and stop listening on ``.replicate`` and ``.offset``."""


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """Feed DeadlineReached(kind) at ``at_ns`` (monotonic), replacing an earlier one; None cancels it."""

    kind: Deadline
    at_ns: int | None


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """For status and logs: what this replica is now, and the phase in it (LEADER_READY, FOLLOWER_FETCH...)."""

    role: str
    phase: str
    leader_epoch: int


Effect = (
    AppendBatch
    | RejectPublishes
    | DropPublishes
    | SendAcks
    | DropPendingAcks
    | AppendFetched
    | DropFetched
    | TruncateLog
    | ResetLog
    | RaiseHighWatermark
    | RecheckLog
    | SendFetch
    | SendEpochQuery
    | SendFetchResponse
    | SendFetchRefusal
    | SendEpochAnswer
    | NotifyReplica
    | AnswerWaiter
    | TellWaiter
    | ProbeReplica
    | SendNotice
    | ProposeIsr
    | ReportLeader
    | GiveUpLeadership
    | LeaveIsr
    | StepAside
    | PersistLeaderEpoch
    | ReportPromotion
    | ReplayLog
    | StartServing
    | OpenSubject
    | CloseSubject
    | SetDeadline
    | RoleChanged
)
