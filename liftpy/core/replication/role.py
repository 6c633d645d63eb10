"""``ReplicaRole``: the base class of all roles. It ignores or rejects events that are not for the role.

By default publishes are dropped without an answer, because another node may have stored them [A2]. Requests are
rejected, and answers to requests of an earlier role are ignored [D16].

The module also has what all roles share, ``ReplicaContext``, with its two helpers:

- Deadlines of a replica. They detect a late, early or cancelled timer.
- Retry pauses with jitter. The n-th failure in a row waits ``minimum * 2**n``, at most ``maximum``, times a factor in
  [0.5, 1) from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from liftpy.config import NS_PER_S, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionMetadata, PartitionState, PartitionStatus
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.effects import (
    DropFetched,
    DropPublishes,
    Effect,
    RaiseHighWatermark,
    RoleChanged,
    SetDeadline,
)
from liftpy.core.replication.events import (
    CombinedFetchEnded,
    CombinedFetchReceived,
    Deadline,
    FetchAnswered,
    FetchPieceArrived,
    IsrChangeAnswered,
    PublishesReceived,
    ReplicaAbsent,
    RequestFailed,
)
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import EarlierLeaders, Lease, ReplicaLease
from liftpy.core.replication.log_offsets import LogOffsets
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, LeaderNotice, RefusalReason
from liftpy.core.replication.phases import Phase, RoleName

_MASK = (1 << 64) - 1
Effects = list[Effect]
EMPTY_METADATA = PartitionMetadata(
    key=PartitionKey("", "", 0),
    config=StreamConfig(),
    state=PartitionState(partition=0, replicas=(), isr=(), leader="", leader_epoch=0, epoch=0, status=PartitionStatus.OFFLINE),
)


class Deadlines:
    """Timers of a replica, at most one per kind.

    ``at_ns`` is a monotonic time in nanoseconds. The methods append SetDeadline effects to ``out``.
    """

    __slots__ = ("_at_ns",)

    def __init__(self) -> None:
        self._at_ns: dict[Deadline, int] = {}

    def set(self, kind: Deadline, at_ns: int, out: list[Effect]) -> None:
        if self._at_ns.get(kind) != at_ns:
            self._at_ns[kind] = at_ns
            out.append(SetDeadline(kind=kind, at_ns=at_ns))

    def set_earlier(self, kind: Deadline, at_ns: int, out: list[Effect]) -> None:
        """Set the timer of ``kind`` to ``at_ns``, unless it is already set to this time or an earlier one."""
        if at_ns < self._at_ns.get(kind, at_ns + 1):
            self.set(kind, at_ns, out)

    def cancel(self, kind: Deadline, out: list[Effect]) -> None:
        if self._at_ns.pop(kind, None) is not None:
            out.append(SetDeadline(kind=kind, at_ns=None))

    def cancel_all(self, out: list[Effect]) -> None:
        for kind in list(self._at_ns):
            self.cancel(kind, out)

    def is_set(self, kind: Deadline) -> bool:
        return kind in self._at_ns

    def take_reached(self, kind: Deadline, now_ns: int, out: list[Effect]) -> int | None:
        """Remove the timer of ``kind`` if its time is reached, and return how late the call is, in nanoseconds.

        Return None if the timer is not set or its time is not reached. In the latter case, set it again.
        """
        at_ns = self._at_ns.get(kind)
        if at_ns is None:
            return None
        if now_ns < at_ns:
            out.append(SetDeadline(kind=kind, at_ns=at_ns))
            return None
        del self._at_ns[kind]
        return now_ns - at_ns


def splitmix64(state: int) -> tuple[int, int]:
    """Return (next ``state``, random 64-bit number) of the generator SplitMix64 by Steele, Lea and Flood."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return state, mixed ^ (mixed >> 31)


class Backoff:
    """Wait times after repeated failures, in nanoseconds. They double with each failure, between a minimum and a maximum."""

    __slots__ = ("_failures", "_maximum_ns", "_minimum_ns", "_state")

    def __init__(self, minimum_ns: int, maximum_ns: int, seed: int) -> None:
        self._minimum_ns = minimum_ns
        self._maximum_ns = maximum_ns
        self._state = seed & _MASK
        self._failures = 0  # in a row

    def next_ns(self) -> int:
        base = min(self._minimum_ns << min(self._failures, 30), self._maximum_ns)
        self._failures += 1
        return self.jittered_ns(base)

    def jittered_ns(self, base_ns: int) -> int:
        """Return ``base_ns`` multiplied by a random factor in [0.5, 1)."""
        self._state, number = splitmix64(self._state)
        return base_ns // 2 + base_ns * (number >> 32) // (1 << 33)

    def reset(self) -> None:
        self._failures = 0


def nanoseconds(seconds: float) -> int:
    """Convert seconds to nanoseconds."""
    return round(seconds * NS_PER_S)


@dataclass(slots=True)
class NodeContext:
    """Context that all replicas of a process share: its identity, settings, lease and limits."""

    node_id: str
    incarnation: int
    """Incarnation of the process, as registered with the metadata group."""
    config: ReplicationConfig
    lease: Lease
    inflight: NodeInflight = field(default_factory=NodeInflight)
    """Totals over all partitions of the node."""
    copy_limit: CatchupThrottle = field(default_factory=CatchupThrottle)
    """Throttle that all learners of the node share."""
    request_id_base: int = 0
    """Offset between request ids and the clock, which others cannot guess."""


@dataclass(slots=True)
class ReplicaContext:
    """State that a replica keeps when its role changes: log, lease, metadata, and the context of its node."""

    node: NodeContext
    lease: ReplicaLease
    backoff: Backoff
    earlier_leaders: EarlierLeaders
    node_id: str = field(init=False)
    incarnation: int = field(init=False)
    config: ReplicationConfig = field(init=False)
    log: LogOffsets = field(default_factory=LogOffsets)
    deadlines: Deadlines = field(default_factory=Deadlines)
    live: dict[str, int] = field(default_factory=dict)
    """Node id -> incarnation of each registered node that is not fenced, by the last PartitionChanged."""
    flush_ns: int = 0
    """Duration of the last flush of the log, in nanoseconds. 0: unknown."""
    data_path_down_ns: int | None = None
    """Monotonic time when the data path was lost. None: the data path works."""
    metadata: PartitionMetadata = EMPTY_METADATA
    """Partition by the last PartitionChanged. Epoch 0: there was no such event."""
    next_request_id: int = 1
    """Id of the next request.

    It grows over roles and over replica objects of one process, so that a leader can detect an overtaken request. It also
    grows with the clock, so that the leader can detect a request that this process has not sent.
    """

    def __post_init__(self) -> None:  # the copies of what never changes save a lookup in every step
        self.node_id, self.incarnation, self.config = self.node.node_id, self.node.incarnation, self.node.config

    @property
    def state(self) -> PartitionState:
        """State of the partition at the last PartitionChanged."""
        return self.metadata.state

    @property
    def copy_epoch(self) -> int:
        """Number of the copy that this node makes as a learner. 0: it is no learner."""
        return self.state.copy_of(self.node_id)

    def raise_high_watermark(self, offset: int, out: Effects) -> None:
        if self.log.raise_high_watermark(offset):
            out.append(RaiseHighWatermark(high_watermark=offset))


class ReplicaRole:
    """Base class of all roles: one method per event. By default, an event has no effect, or a request is rejected.

    ``phase``: shown in status and logs. All methods append their effects to ``out``. ``now_ns``: monotonic time, in
    nanoseconds.
    """

    name: RoleName

    def __init__(self, shared: ReplicaContext, phase: Phase) -> None:
        self.shared = shared
        self.log = shared.log
        self.phase: Phase = phase
        self.leader_epoch = shared.state.leader_epoch
        """LeaderEpoch in which this role acts. Another LeaderEpoch needs another role object."""

    @property
    def shown_phase(self) -> str:
        return self.phase.value

    def to_phase(self, phase: Phase, out: Effects) -> None:
        if phase != self.phase:
            self.phase = phase
            out.append(RoleChanged(role=self.name, phase=phase.value, leader_epoch=self.leader_epoch))

    # ---- life ------------------------------------------------------------------------------------------------------
    def enter(self, now_ns: int, out: Effects) -> None:
        out.append(RoleChanged(role=self.name, phase=self.shown_phase, leader_epoch=self.leader_epoch))

    def leave(self, out: Effects) -> None:
        """End the role. The object must not act afterwards."""
        self.shared.deadlines.cancel_all(out)

    def partition_changed(self, epoch_rose: bool, now_ns: int, out: Effects) -> None:
        """Handle changed metadata with which this replica keeps its role. ``epoch_rose``: True if the partition's Epoch is higher."""

    def lease_changed(self, now_ns: int, out: Effects) -> None: ...

    def deadline_reached(self, kind: Deadline, late_ns: int, now_ns: int, out: Effects) -> None:
        """Handle an expired timer of this role. ``late_ns``: time since it was due, in nanoseconds."""

    # ---- the log ---------------------------------------------------------------------------------------------------
    def log_flushed(self, now_ns: int, out: Effects) -> None: ...

    def log_truncated(self, now_ns: int, out: Effects) -> None: ...

    def epoch_persisted(self, leader_epoch: int, now_ns: int, out: Effects) -> None: ...

    def replay_progressed(self, end_offset: int, finished: bool, now_ns: int, out: Effects) -> None:
        """Handle progress of the replay, which has reached ``end_offset`` (exclusive). ``finished``: True at the log end."""

    # ---- requests of others ----------------------------------------------------------------------------------------
    def publishes_received(self, event: PublishesReceived, now_ns: int, out: Effects) -> None:
        out.append(DropPublishes(token=event.token))

    def duplicate_received(self, last_offset: int, now_ns: int, out: Effects) -> None: ...

    def fetch_received(self, event: FetchRequest, now_ns: int, out: Effects) -> None:
        self.refuse(event, RefusalReason.NOT_LEADER, out)

    def epoch_query_received(self, event: EpochQuery, now_ns: int, out: Effects) -> None:
        self.refuse(event, RefusalReason.NOT_LEADER, out)

    def refuse(self, request: FetchRequest | EpochQuery, reason: RefusalReason, out: Effects) -> None:
        out.append(
            FetchRefusal(
                token=request.token,
                request_id=request.request_id,
                reason=reason,
                leader_epoch=self.leader_epoch,
                log_start_offset=self.log.log_start_offset,
                deletes_end=self.log.horizon.deletes_end,
            )
        )

    # ---- answers and notices ---------------------------------------------------------------------------------------
    def fetch_answered(self, event: FetchAnswered, now_ns: int, out: Effects) -> None:
        if event.spans:
            out.append(DropFetched(token=event.token, why="not following"))

    def fetch_piece_arrived(self, event: FetchPieceArrived, now_ns: int, out: Effects) -> None: ...

    def fetch_refused(self, event: FetchRefusal, now_ns: int, out: Effects) -> None: ...

    def request_failed(self, event: RequestFailed, now_ns: int, out: Effects) -> None: ...

    def epoch_query_answered(self, event: EpochAnswer, now_ns: int, out: Effects) -> None: ...

    def data_path_restored(self, now_ns: int, out: Effects) -> None: ...

    def data_path_lost(self, now_ns: int, out: Effects) -> None: ...

    def notification_received(self, now_ns: int, out: Effects) -> None: ...

    def notice_received(self, event: LeaderNotice, now_ns: int, out: Effects) -> None: ...

    def replica_absent(self, event: ReplicaAbsent, now_ns: int, out: Effects) -> None: ...

    def combined_fetch_received(self, event: CombinedFetchReceived, now_ns: int, out: Effects) -> None:
        """Handle the question of a follower's node whether the follower's last fetch still waits at this replica.

        Without a confirmation, the follower fetches again.
        """

    def combined_fetch_ended(self, event: CombinedFetchEnded, now_ns: int, out: Effects) -> None: ...

    def isr_change_answered(self, event: IsrChangeAnswered, now_ns: int, out: Effects) -> None: ...
