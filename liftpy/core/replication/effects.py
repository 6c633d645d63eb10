"""Effects: instructions of the replica to the shell, the code around it that does all input and output. ``Replica.step``
returns them.

THE ORDERING CONTRACT. "On disk" means: it survives a power cut. Under a flush policy other than ``always``, appended
records count as on disk. ``tests/conformance/test_ordering_contract.py`` checks both shells, by these numbers.

1. The shell carries out the effects of one step in order, and finishes their synchronous parts before it feeds the next
   event. An event that an effect causes waits for the end of the list.
2. ``AppendBatch`` and ``AppendFetched`` have written, but not flushed, when the next effect is carried out. A flush
   begins by the stream's policy. Followers may receive these records at once: ``SendFetchResponse`` and
   ``AnswerParkedFetch`` read up to the log end. Publishers, readers of committed records and the metadata group do not see
   them yet.
3. Positions that this replica reports are on disk. ``LogFlushed`` is fed when everything below its end offset is on
   disk. ``FetchRequest.offset``, ``SendAcks.through_offset``, ``ReportPromotion.newest_offset``,
   ``ReportLeader.newest_offset`` and ``RaiseHighWatermark.high_watermark`` name nothing beyond it.
4. ``SendFetchResponse``, ``AnswerParkedFetch`` and ``SendHighWatermark`` contain the high watermark at the time of sending. After a
   failed read, the shell sends no answer, because an empty response would mean "caught up". It sends nothing after the
   role has changed.
5. ``TruncateLog`` and ``ResetLog`` are on disk before ``LogTruncated`` is fed. The core fetches nothing in between.
6. ``PersistLeaderEpoch`` is on disk before ``LeaderEpochPersisted`` is fed.
7. ``RaiseHighWatermark`` is applied to the log before any later read is served. Its checkpoint may come later, and is
   never above the records on disk.
8. An effect that fails becomes an event (``StorageFailed``, ``RequestFailed``), never an exception.

Offsets are inclusive, except names with ``end_offset`` (exclusive). ``token`` is a handle of the shell from an event.

A message to another replica is an effect, too (``messages.py``). It is complete. Only its addressee's shell gives it a token.

A shell has one method per effect (``method_name``). ``liftpy.core.partition.shell.PartitionShell`` changes the log and the
publishers. Two classes add a network and timers: ``sidecar.partition.worker.PartitionWorker`` and
``tests.simulation.replica.sim_replica.SimReplica``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, get_args

from liftpy.config import AckPolicy
from liftpy.core.base.partition import Pause
from liftpy.core.replication.events import Deadline
from liftpy.core.replication.messages import Message, value
from liftpy.core.replication.phases import RoleName
from liftpy.core.wire.rejections import RejectReason


@value
class AppendBatch:
    """Leader: append the publishes under ``token`` as one batch. The fields below become part of its header.

    Publishers get their acks only after LogFlushed.
    """

    token: int
    """Handle of the publishes, from PublishesReceived."""
    base_offset: int
    """Offset of the first record of the batch, inclusive. It is the current log end."""
    leader_epoch: int
    """LeaderEpoch in which this replica leads. The batch header contains it."""
    timestamp_ns: int
    """Wall clock when the publishes arrived, in nanoseconds since 1970."""


@value
class RejectPublishes:
    """Leader: reject the publishes under ``token``.

    The shell sends each publisher a negative ack, because nothing was appended [A2].
    """

    token: int
    """Handle of the publishes, from PublishesReceived."""
    reason: RejectReason
    """Reason that the publishers get."""


@value
class DropPublishes:
    """Drop the publishes under ``token``. Their publishers get no answer.

    Either they have no reply subject, or another node may have stored them, so that a negative ack could be false [A2].
    """

    token: int
    """Handle of the publishes, from PublishesReceived."""
    reason: RejectReason | None = None
    """Reason for the counters. None: this replica does not lead."""


@value
class SendAcks:
    """Leader: ack every publish that requested ``policy`` and whose last record is at or below ``through_offset``."""

    policy: AckPolicy
    """LEADER or ALL: the publishers that get answers now."""
    through_offset: int
    """Last offset to ack, inclusive. It is flushed on this node, and committed if ``policy`` is ALL [D23]."""
    leader_epoch: int
    """LeaderEpoch in which this replica leads, with a valid lease."""


@value
class DropPendingAcks:
    """Forget all publishers that wait for an ack, without an answer. Their records may or may not survive the change of leader."""


@value
class AppendFetched:
    """Follower: append the fetched batches under ``token`` unchanged, up to ``last_offset``.

    The batches may lack records that compaction removed. Then the shell first stores durably how far the leader's log was
    compacted (``leader_high_watermark`` in ``leader_epoch``), and feeds LogCompacted.
    """

    token: int
    """Handle of the received bytes, from FetchAnswered."""
    last_offset: int
    """Inclusive: last offset of the last batch. Messages after it under ``token`` are not appended."""
    leader_high_watermark: int
    """High watermark of the leader, inclusive. The leader's compaction has processed only records up to it."""
    leader_epoch: int
    """LeaderEpoch of the leader that sent the records."""


@value
class DropFetched:
    """Follower: free the leader's answer under ``token`` without using its records. They are outdated, or offsets are missing."""

    token: int
    """Handle of the received bytes, from FetchAnswered."""
    why: str
    """Reason for dropping the answer, as text for counters and logs."""


@value
class TruncateLog:
    """Follower: truncate the log. Feed LogTruncated when the truncation is durable."""

    end_offset: int
    """Log end after the truncation, exclusive. The log becomes shorter if this offset is inside a batch."""


@value
class ResetLog:
    """Discard the local log and begin an empty one. Feed LogTruncated when the new log is on disk.

    There are four reasons. The log ends before the leader's log start [D26]. It has no records in common with the
    leader's log. It was compacted by records that will be truncated. It lacks tombstones that the leader has deleted
    already [D30].
    """

    start_offset: int
    """Log start and log end of the new empty log, inclusive."""
    deletes_end: int = 0
    """Offset below which the leader's log may lack tombstones, exclusive."""


@value
class RaiseHighWatermark:
    """Apply a higher high watermark. The shell then serves the records up to it, and answers readers that wait for them."""

    high_watermark: int
    """New high watermark, inclusive. Records up to it are flushed on this node."""


@value
class RecheckLog:
    """Leader: read the batch at ``offset`` from disk again, because a follower received it damaged.

    The shell limits the number of such reads.
    """

    offset: int
    """Offset at which the follower received wrong bytes, inclusive."""
    replica: str
    """Replica that reported the damage."""


@value
class CombineFetch:
    """Follower: send no more fetches while the leader's node confirms that this replica's last fetch still waits there.

    The node asks about the fetches of many partitions in one message (``combined_fetches.py``). The shell feeds CombinedFetchEnded
    when the wait ends, unless EndCombinedFetch comes first.
    """

    request_id: int
    """Id of the fetch that waits."""
    leader: str
    """Node id of the leader whose node is asked."""
    leader_epoch: int
    """LeaderEpoch in which this replica follows."""


@value
class EndCombinedFetch:
    """Follower: end CombineFetch. The shell no longer asks the leader's node about the fetch of this replica."""


@value
class ConfirmCombinedFetch:
    """Leader: confirm to a follower's node that the follower's fetch still waits. The confirmation replaces a fetch."""

    token: int
    """Token of the CombinedFetchReceived."""


@value
class SendFetchResponse:
    """Leader or candidate: answer the fetch ``token`` with the current HW and with complete batches.

    The batches need not be flushed on this node.
    """

    token: int
    """Token of the FetchRequest."""
    from_offset: int
    """First requested offset, inclusive."""
    max_bytes: int
    """Maximum size of the batches, in bytes. The answer always has at least one batch."""
    leader_epoch: int
    """LeaderEpoch of the answer."""


@value
class ParkFetch:
    """Leader: keep the reply subject of the fetch ``token``. The fetch is answered later, when there are records to send."""

    token: int
    """Token of the FetchRequest."""
    replica: str
    """Replica that fetches."""


@value
class AnswerParkedFetch:
    """Leader: answer the waiting fetch of ``replica``, because there are new records.

    If the reply subject is unknown or the log cannot be read, the shell sends nothing. The follower fetches when its
    idle wait ends.
    """

    replica: str
    """Node id of the follower that waits."""
    from_offset: int
    """First offset that the follower does not have, inclusive."""
    max_bytes: int
    """Maximum size of the answer, as in SendFetchResponse."""
    leader_epoch: int
    """LeaderEpoch of the answer."""


@value
class SendHighWatermark:
    """Leader: send the raised HW to ``replica``, whose fetch waits at the log end.

    The shell answers the fetch once more, with only the HW. The fetch still waits for AnswerParkedFetch. If the reply
    subject is unknown, the shell sends nothing, and the next fetch returns the HW.
    """

    replica: str
    """Node id of the follower whose fetch waits for new records."""
    leader_epoch: int
    """LeaderEpoch of the answer."""


@value
class NotifyReplica:
    """Leader: send a PartitionNotification to ``<ns>.notify.<replica>``, so that the follower sends a fetch."""

    replica: str
    """Node id of the follower that gets the notification."""


@value
class ProbeReplica:
    """Leader: ask NATS whether the node ``replica`` is connected. If it is not, the shell feeds ReplicaAbsent."""

    replica: str
    """Node id of the replica to probe."""


@value
class ProposeIsr:
    """Leader: request the ISR ``isr`` from the metadata group. The shell feeds its answer as IsrChangeAnswered.

    The metadata group decides by compare-and-set on (leader, leader_epoch, epoch).
    """

    isr: frozenset[str]
    """All members of the requested ISR, including the leader."""
    leader_epoch: int
    """LeaderEpoch in which this replica leads."""
    epoch: int
    """Epoch of the partition on which the change is based. The change is rejected if the Epoch has changed."""
    incarnations: tuple[tuple[str, int], ...]
    """(member, incarnation that has caught up), for every member [C6]."""
    lost: frozenset[str] = frozenset()
    """Replicas that lack records which they had acknowledged. They do not count as complete anymore."""
    slow: tuple[tuple[str, int], ...] = ()
    """Members that leave because their disks are slow: (node id, duration of its last flush in nanoseconds)."""
    evicted: str = ""
    """Node that leaves the replica set with this change. ``isr`` does not contain it. '': no node."""


@value
class ReportLeader:
    """Follower: report to the metadata group that the leader is unreachable. In an election, report the position of this log."""

    leader: str
    """Node id of the unreachable leader. '': the report is a position for an election."""
    leader_epoch: int
    """LeaderEpoch of the reported leadership."""
    last_epoch: int
    """LeaderEpoch of the newest record of this log, even if retention has deleted it. 0: there was no record."""
    newest_offset: int
    """Newest flushed offset of this replica, inclusive."""
    high_watermark: int
    """High watermark that this replica knows, inclusive."""
    leader_lacks: bool = False
    """True if the leader lacks a record that this node knows to be committed."""


@value
class LeaveIsr:
    """Follower whose log has failed: request from the metadata group that it removes this replica from the ISR.

    A learner sends the request, too. The metadata leader then ends the copy, and another node gets it. The replica repeats the
    request, so it needs no answer.
    """

    reason: str
    """Reason, as text for logs."""
    is_learner: bool = False
    """True if the replica is a learner, which is not in the ISR."""


@value
class GiveUpLeadership:
    """Leader: request from the metadata group that another replica becomes the leader.

    The leader repeats the request, so it needs no answer.
    """

    leader_epoch: int
    """LeaderEpoch of the leadership to give up. A request for an earlier leadership has no effect."""
    reason: str
    """Reason, as text for logs."""


@value
class WakePartition:
    """Leader: request from the metadata group that it ends the pause of this partition.

    The leader repeats the request, so it needs no answer.
    """

    leader_epoch: int
    """LeaderEpoch of the leadership. A request of an earlier leadership has no effect."""
    pause: Pause
    """Pause that this leader knows. If the metadata has another one, the request has no effect."""
    pauses: int
    """Number of pauses that this leader knows. If the metadata has another number, the request has no effect."""


class TransferCause(Enum):
    """Cause of a planned transfer that the leader requests. The value is a part of the name of a counter."""

    SLOW_DISK = "slow_disk"
    MOVE = "move"
    """The replica of the leader moves to another node."""
    MISSED_PUBLISHES = "missed_publishes"
    """The leader lost its connection for publishes. A standby follower has received them."""
    SERVICE = "service"
    """A replicated service on the node of the leader cannot continue."""


@value
class TransferLeadership:
    """Leader: answer all publishers that wait. Then request from the metadata group a planned transfer of the leadership.

    There is no answer. If the leader stays, it accepts publishes again.
    """

    leader_epoch: int
    """LeaderEpoch of the leadership. A request of an earlier leadership has no effect."""
    toward: str
    """Node id of the ISR member that becomes the leader."""
    reason: str
    """Reason, as text for logs."""
    cause: TransferCause
    """Cause, for the counters."""


@value
class PersistLeaderEpoch:
    """Candidate: store the proposed LeaderEpoch. Feed LeaderEpochPersisted when it is durable."""

    leader_epoch: int
    """LeaderEpoch to store. This process and later ones ignore states of older epochs."""


@value
class ReportPromotion:
    """Candidate: report the progress of the promotion to the metadata group."""

    leader_epoch: int
    """Proposed LeaderEpoch."""
    epoch: int
    """Epoch of the partition in the metadata of this node."""
    replayed_end_offset: int
    """Offset below which the derived state covers the log, exclusive."""
    newest_offset: int
    """Newest flushed offset of this replica, inclusive."""
    finished: bool
    """True if the metadata group may make this node the leader."""


@value
class ReplayLog:
    """Rebuild the state that derives from the log: message ids, producers and subjects.

    The shell begins at the checkpoint of this state and ends at the log end, including uncommitted records. It feeds
    ReplayFinished at the end.
    """

    end_offset: int
    """Exclusive: the current log end. Nothing is appended before ReplayFinished."""


@value
class StartServing:
    """Leader or candidate: subscribe to the fetches (``.replicate``) and the epoch queries (``.offset``) of followers."""


@value
class OpenSubject:
    """Leader: subscribe to the stream's data subject and accept publishes."""


@value
class CloseSubject:
    """Unsubscribe from the data subject, ``.replicate`` and ``.offset``."""


@value
class SetDeadline:
    """Set a timer. The shell feeds DeadlineReached(kind) at ``at_ns`` or later. An earlier timer of this kind is replaced."""

    kind: Deadline
    """Kind of the deadline."""
    at_ns: int | None
    """Monotonic time in ns. None: cancel the deadline."""


@value
class RoleChanged:
    """Report the new role or phase of this replica to the shell, which shows it in status and logs."""

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
    | TruncateLog
    | ResetLog
    | RaiseHighWatermark
    | RecheckLog
    | Message
    | CombineFetch
    | EndCombinedFetch
    | ConfirmCombinedFetch
    | SendFetchResponse
    | ParkFetch
    | NotifyReplica
    | AnswerParkedFetch
    | SendHighWatermark
    | ProbeReplica
    | ProposeIsr
    | ReportLeader
    | GiveUpLeadership
    | LeaveIsr
    | TransferLeadership
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


Methods = Mapping[type[Effect], Callable[[Any, Any], None]]


def method_name(effect: type[Effect]) -> str:
    """Return the name of the method of a shell that carries out effects of this class: ``append_batch``, ``send_fetch_request``."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", effect.__name__).lower()
    return f"send_{name}" if effect in get_args(Message) else name


_NAMES = {effect: method_name(effect) for effect in get_args(Effect)}
"""Effect -> name of its method."""


def methods_of(shell: type) -> Methods:
    """Return a mapping from each class of effects to the method of the class ``shell`` that carries it out.

    All objects of the class share it, because a method gets the object as its first argument. A node has thousands of replicas.
    """
    return {effect: getattr(shell, name) for effect, name in _NAMES.items()}
