"""ReplicaRole: what every role of a replica shares, and what a role does with an event that is not for it.

A role is an object with one method per event. The base class is the answer of a replica that does not act: publishes are
dropped in silence (another node may have appended them, so a refusal could be false [A2]), requests are refused, answers to
requests of an earlier role are not used [D16].
"""

from __future__ import annotations

from dataclasses import field

from liftpy.config import NS_PER_S, ReplicationConfig, StreamConfig
from liftpy.dataclass import dataclass
from liftpy.ids import PartitionKey
from liftpy.partition import HeldPartition, PartitionState, PartitionStatus
from liftpy.replica.backoff import Backoff
from liftpy.replica.copying import CopyPace
from liftpy.replica.deadlines import Deadlines
from liftpy.replica.effects import DropFetched, DropPublishes, Effect, RaiseHighWatermark, RoleChanged, SendFetchRefusal
from liftpy.replica.events import (
    Deadline,
    EpochQueryAnswered,
    EpochQueryReceived,
    FetchAnswered,
    FetchPieceArrived,
    FetchReceived,
    FetchRefused,
    IsrChangeAnswered,
    NoticeReceived,
    PublishesReceived,
    QuietEnded,
    QuietFetchReceived,
    RefusalReason,
    ReplicaAbsent,
    RequestFailed,
)
from liftpy.replica.intake import NodeIntake
from liftpy.replica.lease import Lease
from liftpy.replica.local_log import LocalLog
from liftpy.replica.phases import Phase, RoleName
from liftpy.replica.succession import Succession

Effects = list[Effect]

NOTHING_HELD = HeldPartition(
    key=PartitionKey("", "", 0),
    config=StreamConfig(),
    state=PartitionState(partition=0, replicas=(), isr=(), leader="", leader_epoch=0, epoch=0, status=PartitionStatus.OFFLINE),
)


def nanoseconds(seconds: float) -> int:
    """A setting in seconds as ns."""
    return round(seconds * NS_PER_S)


@dataclass(slots=True)
class Shared:
    """What outlives a role: the replica's identity, log, lease and what the metadata says."""

    node_id: str
    incarnation: int
    config: ReplicationConfig
    lease: Lease
    backoff: Backoff
    succession: Succession
    log: LocalLog = field(default_factory=LocalLog)
    deadlines: Deadlines = field(default_factory=Deadlines)
    live: dict[str, int] = field(default_factory=dict)
    """Node id -> incarnation of the registered nodes that are not fenced, as of the last PartitionChanged."""
    intake: NodeIntake = field(default_factory=NodeIntake)
    """Sums over all partitions of the node."""
    copy_pace: CopyPace = field(default_factory=CopyPace)
    """Of all learners of the node."""
    flush_ns: int = 0
    """What the last flush of the log took, 0: it is not known."""
    data_path_down_ns: int | None = None
    """Monotonic: since when the data path is down; None: it is up."""
    held: HeldPartition = NOTHING_HELD
    """The partition as of the last PartitionChanged; epoch 0: none yet."""
    next_request_id: int = 1
    """Grows over roles, and over replica objects of one process, so that a leader can tell an overtaken request; and at least with the
    clock, so that it can tell one that this process has not sent."""
    request_id_base: int = 0
    """Ids are this much above the clock; the same for all replica objects of a process, and nothing that can be guessed."""

    @property
    def state(self) -> PartitionState:
        """The partition as of the last PartitionChanged."""
        return self.held.state

    @property
    def copy_epoch(self) -> int:
        """The copy that this node makes as the partition's learner; 0: it is none."""
        return self.state.copy_of(self.node_id)

    def raise_high_watermark(self, offset: int, out: Effects) -> None:
        """Raise HW to ``offset`` (inclusive), if it is higher, and tell the log."""
        if self.log.raise_high_watermark(offset):
            out.append(RaiseHighWatermark(high_watermark=offset))


class ReplicaRole:
    """A replica that does not act, and the base of those that do. ``phase`` is shown in status and logs."""

    name: RoleName

    def __init__(self, shared: Shared, phase: Phase) -> None:
        self.shared = shared
        self.log = shared.log
        self.phase: Phase = phase
        self.leader_epoch = shared.state.leader_epoch
        """The LeaderEpoch in which this role acts; another one needs another role object."""

    @property
    def shown_phase(self) -> str:
        """The phase, as status and logs show it."""
        return self.phase.value

    def to_phase(self, phase: Phase, out: Effects) -> None:
        """Go on to ``phase``, and show it."""
        if phase != self.phase:
            self.phase = phase
            out.append(RoleChanged(role=self.name, phase=phase.value, leader_epoch=self.leader_epoch))

    # ---- life ------------------------------------------------------------------------------------------------------
    def enter(self, now_ns: int, out: Effects) -> None:
        """The role begins."""
        out.append(RoleChanged(role=self.name, phase=self.shown_phase, leader_epoch=self.leader_epoch))

    def leave(self, out: Effects) -> None:
        """The role ends; nothing of it may act afterwards."""
        self.shared.deadlines.cancel_all(out)

    def partition_changed(self, epoch_rose: bool, now_ns: int, out: Effects) -> None:
        """The metadata changed, but not this role."""

    def metadata_heard(self, now_ns: int, out: Effects) -> None:
        """The lease was extended."""

    def deadline_reached(self, kind: Deadline, late_ns: int, now_ns: int, out: Effects) -> None:
        """A deadline that this role set has come, ``late_ns`` after its time."""

    # ---- the log ---------------------------------------------------------------------------------------------------
    def log_flushed(self, now_ns: int, out: Effects) -> None:
        """More of the own log is on disk."""

    def log_cut(self, now_ns: int, out: Effects) -> None:
        """The cut that this role asked for is done."""

    def epoch_persisted(self, leader_epoch: int, now_ns: int, out: Effects) -> None:
        """The proposed LeaderEpoch is on disk."""

    def replay_progressed(self, end_offset: int, finished: bool, now_ns: int, out: Effects) -> None:
        """Derived state covers the log up to ``end_offset``."""

    # ---- requests of others ----------------------------------------------------------------------------------------
    def publishes_received(self, event: PublishesReceived, now_ns: int, out: Effects) -> None:
        """Messages on the data subject."""
        out.append(DropPublishes(token=event.token))

    def duplicate_received(self, last_offset: int, now_ns: int, out: Effects) -> None:
        """Publishers wait for the answer to a record that is in the log."""

    def fetch_received(self, event: FetchReceived, now_ns: int, out: Effects) -> None:
        """A follower fetches."""
        self.refuse(event.token, RefusalReason.NOT_LEADER, out)

    def epoch_query_received(self, event: EpochQueryReceived, now_ns: int, out: Effects) -> None:
        """A follower reconciles."""
        self.refuse(event.token, RefusalReason.NOT_LEADER, out)

    def refuse(self, token: int, reason: RefusalReason, out: Effects) -> None:
        """Answer a request with a refusal."""
        out.append(
            SendFetchRefusal(
                token=token,
                reason=reason,
                leader_epoch=self.leader_epoch,
                log_start_offset=self.log.log_start_offset,
                deletes_end=self.log.horizon.deletes_end,
            )
        )

    # ---- answers and notices ---------------------------------------------------------------------------------------
    def fetch_answered(self, event: FetchAnswered, now_ns: int, out: Effects) -> None:
        """An answer to a fetch."""
        if event.spans:
            out.append(DropFetched(token=event.token, why="not following"))

    def fetch_piece_arrived(self, event: FetchPieceArrived, now_ns: int, out: Effects) -> None:
        """An answer to a fetch held part of a batch."""

    def fetch_refused(self, event: FetchRefused, now_ns: int, out: Effects) -> None:
        """A refusal of a fetch or of an epoch query."""

    def request_failed(self, event: RequestFailed, now_ns: int, out: Effects) -> None:
        """No answer to a fetch or an epoch query."""

    def epoch_query_answered(self, event: EpochQueryAnswered, now_ns: int, out: Effects) -> None:
        """An answer to an epoch query."""

    def data_path_restored(self, now_ns: int, out: Effects) -> None:
        """The connection is back; what was asked, and answers to it, may be lost."""

    def data_path_lost(self, now_ns: int, out: Effects) -> None:
        """The connection is down: nobody can be asked or answered."""

    def woken_up(self, now_ns: int, out: Effects) -> None:
        """The leader says that there is more."""

    def notice_received(self, event: NoticeReceived, now_ns: int, out: Effects) -> None:
        """The leader tells its HW."""

    def replica_absent(self, event: ReplicaAbsent, now_ns: int, out: Effects) -> None:
        """Nobody listens for a replica."""

    def quiet_fetch_received(self, event: QuietFetchReceived, now_ns: int, out: Effects) -> None:
        """A follower asks whether its last fetch still waits; no answer is a no."""

    def quiet_ended(self, event: QuietEnded, now_ns: int, out: Effects) -> None:
        """The fetch that waited among others waits no more."""

    def isr_change_answered(self, event: IsrChangeAnswered, now_ns: int, out: Effects) -> None:
        """The metadata group answered."""
