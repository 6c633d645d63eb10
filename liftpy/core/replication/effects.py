"""Effects: what the shell must do. ``Replica.step`` returns them in order.

THE ORDERING CONTRACT. "On disk" means: it survives a power cut. Under a flush policy other than ``always``, appended
records count as on disk. ``tests/conformance/test_ordering_contract.py`` checks both shells, by these numbers.

1. The shell carries out the effects of one step in order, and finishes their synchronous parts before it feeds the next
event. An event that an effect causes waits for the end of the list.
2. ``AppendBatch`` and ``AppendFetched`` have written, but not flushed, when the next effect is carried out. A flush
begins by the stream's policy. Followers may receive these records at once: ``SendFetchResponse`` and ``AnswerWaiter``
read up to the log end. Publishers, readers of committed records and the metadata group do not see them yet.
3. Positions that this replica reports are on disk. ``LogFlushed`` is fed when everything below its end offset is on
disk. ``SendFetch.offset``, ``SendAcks.through_offset``, ``ReportPromotion.newest_offset``,
``ReportLeader.newest_offset`` and ``RaiseHighWatermark.high_watermark`` name nothing beyond it.
4. ``SendFetchResponse``, ``AnswerWaiter`` and ``TellWaiter`` carry the high watermark at the time of sending. A failed
read is not answered: an empty response would mean "caught up". Nothing is sent after the role has changed.
5. ``CutLog`` and ``StartLogAfresh`` are on disk before ``LogCut`` is fed. The core fetches nothing in between.
6. ``PersistLeaderEpoch`` is on disk before ``LeaderEpochPersisted`` is fed.
7. ``RaiseHighWatermark`` is applied to the log before any later read is served. Its checkpoint may come later, and is
never above what is on disk.
8. An effect that fails becomes an event (``StorageFailed``, ``RequestFailed``), never an exception.

Offsets are inclusive, except names with ``end_offset`` (exclusive). ``token`` is a handle of the shell from an event.

``EffectHandler`` has one method per effect. A shell implements it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol, get_args

from liftpy.config import AckPolicy
from liftpy.core.base.partition import Pause
from liftpy.core.replication.events import Deadline, RefusalReason, value
from liftpy.core.replication.phases import RoleName


@value
class AppendBatch:
    """Leader: seal the publishes under ``token`` as one batch with these timestamps, and append it. They are acked only
    after LogFlushed.
    """

    token: int
    """Token of the PublishesReceived."""
    base_offset: int
    """Inclusive: offset of its first record, the current log end."""
    leader_epoch: int
    """LeaderEpoch in which this replica leads. It is stamped on the batch."""
    timestamp_ns: int
    """Wall clock, ns since 1970: when the publishes came."""


class RejectReason(Enum):
    """Reason for the rejection of a publish. The numbers are those of ``Ack.Error``."""

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
    UNSUPPORTED = 12
    PRODUCER_FENCED = 13
    OUT_OF_ORDER = 14
    DIVERGED_PRODUCER = 15
    UNKNOWN_PRODUCER = 16
    PRODUCER_CONFLICT = 17
    PAUSED = 18
    QUOTA = 19
    RECORDS_LOST = 20


@value
class RejectPublishes:
    """Answer the publishes under ``token`` with a negative ack and forget them: they were not appended [A2]."""

    token: int
    """Token of the PublishesReceived."""
    reason: RejectReason
    """Reason that the publishers get."""


@value
class DropPublishes:
    """Drop the publishes under ``token`` without an answer.

    Either they have no reply subject, or another node may have stored them, so that a negative ack could be false [A2].
    """

    token: int
    """Token of the PublishesReceived."""
    reason: RejectReason | None = None
    """Reason for the counters. None: this replica does not lead."""


@value
class SendAcks:
    """Answer every waiting publish of ``policy`` at or below ``through_offset``. ALL also frees those with no reply."""

    policy: AckPolicy
    """LEADER or ALL: the publishers that get answers now."""
    through_offset: int
    """Inclusive: flushed here, and with ALL committed. A batch that reaches beyond it waits as a whole [D23]."""
    leader_epoch: int
    """LeaderEpoch in which this replica leads, with a valid lease."""


@value
class DropPendingAcks:
    """Forget the waiting publishers without an answer: their records may or may not survive the change of leader."""


@value
class AppendFetched:
    """Follower: append the batches of ``token`` unchanged, through ``last_offset``.

    If they show compaction, first store the horizon (``leader_high_watermark`` in ``leader_epoch``) and feed LogCompacted.
    """

    token: int
    """Token of the FetchAnswered."""
    last_offset: int
    """Inclusive: last offset of the last batch. Messages after it under ``token`` are not appended."""
    leader_high_watermark: int
    """Inclusive: the leader's compaction has not looked past it."""
    leader_epoch: int
    """LeaderEpoch of the leader that sent the records."""


@value
class DropFetched:
    """Follower: free the answer under ``token`` without using it, because it is outdated or has a gap."""

    token: int
    """Token of the FetchAnswered."""
    why: str
    """Reason, for counters and logs."""


@value
class CutLog:
    """Truncate the log. Feed LogCut when that is durable."""

    end_offset: int
    """Exclusive: the log end after the truncation. It is lower if ``end_offset`` is inside a batch."""


@value
class StartLogAfresh:
    """Discard the local log and begin an empty one.

    The log ends before the leader's log start [D26], has nothing in common with the leader's, was compacted by records that
    will be truncated, or lacks delete markers that the leader has dropped [D30]. Answer LogCut when the new log is on disk.
    """

    start_offset: int
    """Inclusive: log start and log end of the new one."""
    deletes_end: int = 0
    """Exclusive: up to where the leader's log, which is fetched next, may lack delete markers."""


@value
class RaiseHighWatermark:
    """Records are committed: serve them, wake readers, checkpoint by the interval."""

    high_watermark: int
    """Inclusive: the newest committed record. It is flushed here, and never below an earlier value."""


@value
class RecheckLog:
    """Leader: a follower reported damage. Read that batch from the disk again, with limits (``Log.complaint``)."""

    offset: int
    """Inclusive: offset at which it received wrong bytes."""
    replica: str
    """Replica that reported the damage."""


@value
class SendFetch:
    """Follower: send a ReplicationRequest to the leader on ``.replicate``. The core watches the deadline of the answer."""

    request_id: int
    """Id of the request, repeated in its answer. It grows."""
    leader: str
    """Node id of the leader or candidate, for people: the subject leads to it."""
    offset: int
    """Inclusive: the newest record that is flushed here. Acknowledges all up to it, and asks for what follows."""
    offset_epoch: int
    """LeaderEpoch of the record at ``offset``. 0: the log is empty."""
    leader_epoch: int
    """LeaderEpoch that is followed."""
    max_bytes: int
    """Maximum size of the answer, in bytes. A larger batch comes in pieces."""
    bad_offset: int | None = None
    """Inclusive: offset at which the leader's last answer had wrong bytes. The request reports it."""
    flush_ns: int = 0
    """Duration of the last flush, in ns. 0: not known."""
    copy_epoch: int = 0
    """Number of a learner's copy (``PartitionState.copy_epoch``). 0: this is a replica."""
    deletes_end: int = 0
    """Exclusive: delete markers below it were gone from the log of this leader when the fetches of this log began."""


@value
class WaitQuietly:
    """Follower: send no fetch while ``leader`` confirms, with others, that the fetch with an empty answer still waits
    (``quiescence.py``).

    The answer is QuietEnded, unless StopWaiting comes first.
    """

    request_id: int
    """Id of the fetch."""
    leader: str
    """Leader whose node is asked."""
    leader_epoch: int
    """LeaderEpoch in which this replica follows."""


@value
class StopWaiting:
    """Follower: stop asking for the fetch of WaitQuietly."""


@value
class ConfirmQuiet:
    """Leader: a fetch still waits at the log end and was counted."""

    token: int
    """Token of the QuietFetchReceived."""


@value
class SendEpochQuery:
    """Follower: LeaderEpochOffsetRequest to the leader on ``.offset``."""

    request_id: int
    """Id of the request, repeated in its answer. It grows."""
    leader: str
    """Leader to ask, as in SendFetch."""
    asked_epoch: int
    """LeaderEpoch whose end in the leader's log is requested."""
    current_epoch: int
    """LeaderEpoch that is followed: only its leader answers."""


@value
class SendFetchResponse:
    """Leader, candidate: answer ``token`` with whole batches, flushed here or not, and the HW of then."""

    token: int
    """Token of the FetchReceived."""
    from_offset: int
    """Inclusive: the first requested record."""
    max_bytes: int
    """Maximum size of the batches in bytes, but at least one batch."""
    leader_epoch: int
    """LeaderEpoch of the answer."""


@value
class KeepFetch:
    """Leader: keep the fetch ``token``, because there are no records for it yet."""

    token: int
    """Token of the FetchReceived."""
    replica: str
    """Replica that fetches."""


@value
class AnswerWaiter:
    """Leader: there are new records for ``replica``, whose last fetch waits: answer it.

    If the reply address was not kept or the log cannot be read, send nothing: the follower fetches when its idle wait ends.
    """

    replica: str
    """Replica that waits."""
    from_offset: int
    """Inclusive: the first record that is new to it."""
    max_bytes: int
    """Maximum size of the answer, as in SendFetchResponse."""
    leader_epoch: int
    """LeaderEpoch of the answer."""


@value
class TellWaiter:
    """Leader: the HW has risen, and ``replica`` waits at the log end.

    Answer its last fetch once more, with only the HW. The reply address is kept for AnswerWaiter. Without one nothing is sent,
    and the next fetch returns the HW.
    """

    replica: str
    """Replica that waits."""
    leader_epoch: int
    """LeaderEpoch of the answer."""


@value
class SendFetchRefusal:
    """Answer ``token`` (of a fetch or of an epoch query) with a ReplicationRefusal."""

    token: int
    """Token of the FetchReceived or EpochQueryReceived."""
    reason: RefusalReason
    """Reason for the rejection."""
    leader_epoch: int
    """LeaderEpoch in which this replica acts, in any role."""
    log_start_offset: int
    """Inclusive: start of this log. A follower that is rejected with BEFORE_LOG_START or DELETES_GONE begins its log there."""
    deletes_end: int = 0
    """Exclusive: ``Horizon.deletes_end`` of this log. The follower stores it."""


@value
class SendEpochAnswer:
    """Leader, candidate: answer ``token`` with a LeaderEpochOffsetResponse."""

    token: int
    """Token of the EpochQueryReceived."""
    leader_epoch: int
    """The largest epoch in this log at or below the requested one. 0: there is none."""
    last_offset: int
    """Inclusive: the last record of that epoch. -1: there is none."""
    current_epoch: int
    """LeaderEpoch in which this replica leads."""
    log_start_offset: int
    """Inclusive: of this log."""


@value
class NotifyReplica:
    """Leader: one PartitionNotification to ``<ns>.notify.<replica>``."""

    replica: str
    """Replica to wake."""


@value
class ProbeReplica:
    """Leader: check with NATS whether ``replica`` is connected. If not, feed ReplicaAbsent."""

    replica: str
    """Replica to look for."""


@value
class SendNotice:
    """Leader: send one LeaderNotice to each of ``replicas``. It wakes them. The offsets are for observers."""

    replicas: tuple[str, ...]
    """Ids of the nodes that get the notice."""
    leader_epoch: int
    """LeaderEpoch in which this replica leads."""
    epoch: int
    """Epoch of the partition in the metadata, as known here."""
    epoch_start_offset: int
    """Inclusive: of the first record of ``leader_epoch``, there or to come."""
    high_watermark: int
    """Inclusive: the current high watermark."""
    log_start_offset: int
    """Inclusive: of this log."""


@value
class ProposeIsr:
    """Leader: request the ISR ``isr`` by compare-and-set on (leader, leader_epoch, epoch). Feed IsrChangeAnswered."""

    isr: frozenset[str]
    """All members of the requested ISR, including the leader."""
    leader_epoch: int
    """LeaderEpoch in which this replica leads."""
    epoch: int
    """Epoch of the partition on which the change is based. The change is rejected if the Epoch has changed."""
    incarnations: tuple[tuple[str, int], ...]
    """(member, incarnation that has caught up), for every member [C6]."""
    lost: frozenset[str] = frozenset()
    """Replicas that requested records which they had acknowledged. They are no longer complete, in the ISR or outside of it."""
    slow: tuple[tuple[str, int], ...] = ()
    """(member, duration of its last flush, in ns) of members that leave because their disks are far slower than the others'."""
    evicted: str = ""
    """Node that leaves the replica set with this change, not only the ISR. ``isr`` is without it. '': no node."""


@value
class ReportLeader:
    """Follower: report to the metadata group that the leader is unreachable, or the position of this log for an election."""

    leader: str
    """Reported leader. '': there is none, and the report is a position for an election."""
    leader_epoch: int
    """LeaderEpoch of the reported leadership."""
    last_epoch: int
    """LeaderEpoch of the newest record here, or of the newest one that retention has deleted. 0: there was none."""
    newest_offset: int
    """Inclusive: the newest record that is flushed here."""
    high_watermark: int
    """Inclusive: as known here."""
    leader_lacks: bool = False
    """True if the leader lacks a record that this node knows to be committed."""


@value
class LeaveIsr:
    """Failed follower: request its removal from the ISR. There is no answer, the request is repeated."""

    reason: str
    """Reason, as text for logs."""


@value
class GiveUpLeadership:
    """Leader: request a successor from the metadata group. There is no answer, the request is repeated."""

    leader_epoch: int
    """LeaderEpoch of the leadership. If it has changed, nothing happens."""
    reason: str
    """Reason, as text for logs."""


@value
class WakePartition:
    """Leader: report to the metadata group that the pause ends. It is repeated, so no answer is needed."""

    leader_epoch: int
    """LeaderEpoch of the leadership. If it has changed, nothing happens."""
    pause: Pause
    """Pause that this leader knows. If it has changed, nothing happens."""
    pauses: int
    """Number of pauses that this leader knows. If it has changed, nothing happens."""


@value
class StepAside:
    """Leader: answer the publishers, then request a planned transfer of the leadership.

    There is no answer. If the leader stays, it accepts publishes again.
    """

    leader_epoch: int
    """LeaderEpoch of the leadership. If it has changed, nothing happens."""
    toward: str
    """ISR member that becomes the leader."""
    reason: str
    """Reason, as text for logs."""


@value
class PersistLeaderEpoch:
    """Candidate: store the proposed LeaderEpoch. Feed LeaderEpochPersisted when it is durable."""

    leader_epoch: int
    """States of an older one are not followed any more, nor by the next process."""


@value
class ReportPromotion:
    """Candidate: report the progress of the promotion to the metadata group."""

    leader_epoch: int
    """Proposed LeaderEpoch."""
    epoch: int
    """Epoch of the partition in the metadata, as known here."""
    replayed_end_offset: int
    """Exclusive: derived state covers the log below it."""
    newest_offset: int
    """Inclusive: the newest record that is flushed here."""
    finished: bool
    """The metadata group may record this node as leader."""


@value
class ReplayLog:
    """Rebuild the derived state from its checkpoint to the log end, including uncommitted records. Answer with ReplayFinished."""

    end_offset: int
    """Exclusive: the current log end. Nothing is appended before ReplayFinished."""


@value
class StartServing:
    """Leader: listen on ``.replicate`` and ``.offset``."""


@value
class OpenSubject:
    """Leader: subscribe to the stream's data subject and take publishes."""


@value
class CloseSubject:
    """Stop taking publishes, and stop listening on ``.replicate`` and ``.offset``."""


@value
class SetDeadline:
    """Feed DeadlineReached(kind) at its time, not earlier. It replaces an earlier deadline of this kind."""

    kind: Deadline
    """Kind of the deadline."""
    at_ns: int | None
    """Monotonic time in ns. None: cancel the deadline."""


@value
class RoleChanged:
    """The new role of this replica, for status and logs."""

    role: RoleName
    """The new role."""
    phase: str
    """Phase in the role (LEADER_READY, FOLLOWER_FETCH...). For a failed role: the reason."""
    leader_epoch: int
    """LeaderEpoch in which the role acts."""


Effect = (
    AppendBatch
    | RejectPublishes
    | DropPublishes
    | SendAcks
    | DropPendingAcks
    | AppendFetched
    | DropFetched
    | CutLog
    | StartLogAfresh
    | RaiseHighWatermark
    | RecheckLog
    | SendFetch
    | WaitQuietly
    | StopWaiting
    | ConfirmQuiet
    | SendEpochQuery
    | SendFetchResponse
    | KeepFetch
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
    | WakePartition
    | PersistLeaderEpoch
    | ReportPromotion
    | ReplayLog
    | StartServing
    | OpenSubject
    | CloseSubject
    | SetDeadline
    | RoleChanged
)


Acts = dict[type[Effect], Callable[[Any], None]]


class EffectHandler(Protocol):
    """The shell of one replica, with one method per effect.

    There are three shells: ``sidecar.partition.executor.Executor`` on asyncio, ``SimReplica`` in
    ``tests.sim.sim_replica``, and ``MemoryReplica`` in ``liftpy.testing.memory.replica``.
    """

    def append_batch(self, effect: AppendBatch, /) -> None: ...
    def reject_publishes(self, effect: RejectPublishes, /) -> None: ...
    def drop_publishes(self, effect: DropPublishes, /) -> None: ...
    def send_acks(self, effect: SendAcks, /) -> None: ...
    def drop_pending_acks(self, effect: DropPendingAcks, /) -> None: ...
    def append_fetched(self, effect: AppendFetched, /) -> None: ...
    def drop_fetched(self, effect: DropFetched, /) -> None: ...
    def cut_log(self, effect: CutLog, /) -> None: ...
    def start_log_afresh(self, effect: StartLogAfresh, /) -> None: ...
    def raise_high_watermark(self, effect: RaiseHighWatermark, /) -> None: ...
    def recheck_log(self, effect: RecheckLog, /) -> None: ...
    def send_fetch(self, effect: SendFetch, /) -> None: ...
    def wait_quietly(self, effect: WaitQuietly, /) -> None: ...
    def stop_waiting(self, effect: StopWaiting, /) -> None: ...
    def confirm_quiet(self, effect: ConfirmQuiet, /) -> None: ...
    def send_epoch_query(self, effect: SendEpochQuery, /) -> None: ...
    def send_fetch_response(self, effect: SendFetchResponse, /) -> None: ...
    def keep_fetch(self, effect: KeepFetch, /) -> None: ...
    def send_fetch_refusal(self, effect: SendFetchRefusal, /) -> None: ...
    def send_epoch_answer(self, effect: SendEpochAnswer, /) -> None: ...
    def notify_replica(self, effect: NotifyReplica, /) -> None: ...
    def answer_waiter(self, effect: AnswerWaiter, /) -> None: ...
    def tell_waiter(self, effect: TellWaiter, /) -> None: ...
    def probe_replica(self, effect: ProbeReplica, /) -> None: ...
    def send_notice(self, effect: SendNotice, /) -> None: ...
    def propose_isr(self, effect: ProposeIsr, /) -> None: ...
    def report_leader(self, effect: ReportLeader, /) -> None: ...
    def give_up_leadership(self, effect: GiveUpLeadership, /) -> None: ...
    def leave_isr(self, effect: LeaveIsr, /) -> None: ...
    def wake_partition(self, effect: WakePartition, /) -> None: ...
    def step_aside(self, effect: StepAside, /) -> None: ...
    def persist_leader_epoch(self, effect: PersistLeaderEpoch, /) -> None: ...
    def report_promotion(self, effect: ReportPromotion, /) -> None: ...
    def replay_log(self, effect: ReplayLog, /) -> None: ...
    def start_serving(self, effect: StartServing, /) -> None: ...
    def open_subject(self, effect: OpenSubject, /) -> None: ...
    def close_subject(self, effect: CloseSubject, /) -> None: ...
    def set_deadline(self, effect: SetDeadline, /) -> None: ...
    def role_changed(self, effect: RoleChanged, /) -> None: ...


def method_name(effect: type[Effect]) -> str:
    """Return the name of the handler's method for this effect."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", effect.__name__).lower()


_NAMES = {effect: method_name(effect) for effect in get_args(Effect)}
"""Made once: a node has thousands of handlers."""


def acts_of(handler: EffectHandler) -> Acts:
    """Return the handler's method for each effect."""
    return {effect: getattr(handler, name) for effect, name in _NAMES.items()}
