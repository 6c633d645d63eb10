"""``Replica``: one partition on one node. ``step(event, now_ns)`` returns a list of effects.

Only this module changes roles:

    Waiting(NO_METADATA) --LogOpened, PartitionChanged--> by the metadata:

        status           this node is                      role
        ONLINE           the leader, registered as now     Leader      (a Candidate of the same epoch keeps its followers)
        ONLINE           another replica                   Follower of the leader
        CANDIDATE_FOUND  the candidate, registered as now  Candidate
        CANDIDATE_FOUND  another replica                   Follower of the candidate, in the proposed epoch
        ELECTION         a replica                         Waiting     (the ISR is frozen, nobody may ack)
        OFFLINE          a replica                         Waiting
        any              no replica                        Waiting

    any --StorageFailed--> Failed        any --StopRequested--> Stopped

A change of (role, leader, LeaderEpoch) creates a new role object, so nothing of an old leadership remains. States apply
in the order of their Epoch, and older ones are ignored [C2]. "Registered as now" means: the metadata shows the
incarnation of this process [C7].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from liftpy.core.base.partition import PartitionState, PartitionStatus, Pause
from liftpy.core.log.compaction_point import Horizon
from liftpy.core.replication import events as ev
from liftpy.core.replication import isr
from liftpy.core.replication.candidate import CandidateRole
from liftpy.core.replication.effects import (
    Effect,
)
from liftpy.core.replication.follower import FollowerRole
from liftpy.core.replication.inactive import FailedRole, InactiveRole, StoppedRole
from liftpy.core.replication.leader import LeaderRole
from liftpy.core.replication.lease import EarlierLeaders, ReplicaLease
from liftpy.core.replication.log_offsets import LogOffsets, OffsetCheckResult, check_offset
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, LeaderNotice
from liftpy.core.replication.phases import InactivePhase, LeaderPhase, RoleName
from liftpy.core.replication.role import Backoff, Effects, NodeContext, ReplicaContext, ReplicaRole, nanoseconds


@dataclass(frozen=True, slots=True)
class FollowerSnapshot:
    """State of one follower as the leader knows it."""

    replica: str
    position: int | None
    """Newest offset that the follower has flushed in this LeaderEpoch, inclusive. None: unknown."""
    lag_records: int | None
    """Number of flushed records of the leader that the follower lacks. None: unknown."""
    in_isr: bool
    caught_up_age_s: float
    """Time since the follower was last at the log end, in seconds."""
    flush_ms: float = 0.0
    """Duration of the follower's last flush, as it reported, in milliseconds. 0: unknown."""
    has_slow_disk: bool = False
    """True if the follower's flushes are far slower than those of the others. It stays out of a large enough ISR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSnapshot:
    """State of one replica at one moment, for status and tests."""

    stream: str
    partition: int
    role: str
    phase: str
    leader: str
    leader_epoch: int
    epoch: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    log_start_offset: int
    log_end_offset: int
    """Log end, exclusive."""
    flushed_end_offset: int
    """End of the flushed records, exclusive."""
    high_watermark: int
    """High watermark, inclusive. -1: none."""
    lease_is_current: bool
    followers: tuple[FollowerSnapshot, ...]
    """Followers, if this replica leads. Otherwise (): there are none."""
    target: tuple[str, ...] = ()
    """Requested replicas of the partition. (): the current ones."""
    joining: str = ""
    """Node id of the learner. '': there is none."""
    copy_lag_records: int | None = None
    """Number of committed records that a learner lacks. None: the replica is no learner, or the number is unknown."""
    has_slow_disk: bool = False
    """True if this replica leads, and its flushes are far slower than its followers'."""
    paused: str = ""
    """Condition that ends the pause, as text. '': the partition is not paused."""


class Replica:
    """Replica of a partition as a pure state machine.

    ``node``: what it shares with the other replicas of its process. ``seed``: seed for the random part of waits, different for
    each replica.
    """

    def __init__(self, node: NodeContext, seed: int = 0) -> None:
        config = node.config
        backoff = Backoff(nanoseconds(config.fetch_backoff_min_s), nanoseconds(config.fetch_backoff_max_s), seed)
        earlier_leaders = EarlierLeaders(node.node_id, nanoseconds(config.lease_s))
        self._shared = ReplicaContext(node, ReplicaLease(node.lease), backoff, earlier_leaders)
        self._role: ReplicaRole = InactiveRole(self._shared)
        self._persisted_epoch = 0  # the highest LeaderEpoch that PersistLeaderEpoch is known to have stored

    # ---- views -----------------------------------------------------------------------------------------------------
    @property
    def node_id(self) -> str:
        return self._shared.node_id

    @property
    def role(self) -> RoleName:
        return self._role.name

    @property
    def phase(self) -> str:
        """Phase of the replica in its role, for status and logs. For a follower it has more details than RoleChanged."""
        return self._role.shown_phase

    @property
    def state(self) -> PartitionState:
        """State of the partition at the last PartitionChanged."""
        return self._shared.state

    @property
    def min_isr(self) -> int:
        return self._shared.metadata.min_isr

    @property
    def longest_lease_ns(self) -> int:
        """Longest lease that another node may have, in nanoseconds. 0: the lease in this node's settings."""
        return self._shared.metadata.longest_lease_ns

    @property
    def log(self) -> LogOffsets:
        """Offsets of the replica's log. The caller must not change them."""
        return self._shared.log

    @property
    def high_watermark(self) -> int:
        return self._shared.log.high_watermark

    @property
    def epoch_start_offset(self) -> int:
        """First offset of the LeaderEpoch in which this replica leads, inclusive. 0: it does not lead."""
        return self._role.epoch_start_offset if isinstance(self._role, LeaderRole) else 0

    @property
    def leader_epoch(self) -> int:
        return self._role.leader_epoch

    def live_incarnation(self, node_id: str) -> int:
        """Return the incarnation of the node's process, as of the last PartitionChanged. 0: ``node_id`` is fenced or unknown."""
        return self._shared.live.get(node_id, 0)

    def may_reject_publishes(self, now_ns: int) -> bool:
        """Return whether the shell may send a negative ack for a message that it has not passed to the core [A2, D22]."""
        role = self._role
        return (
            isinstance(role, LeaderRole) and role.phase in (LeaderPhase.READY, LeaderPhase.NO_LEASE) and role.may_reject(now_ns)
        )

    def may_reject_locally(self, now_ns: int) -> bool:
        """Return whether the shell may reject a publish for a reason of this node only, such as a full queue.

        With standby followers the result is False, because the next leader may store the rejected publish.
        """
        role = self._role
        return self.may_reject_publishes(now_ns) and isinstance(role, LeaderRole) and role.may_reject_locally(now_ns)

    def takes_publishes(self) -> bool:
        """True if this replica leads and appends each arriving publish at once."""
        return isinstance(self._role, LeaderRole) and self._role.takes_publishes

    @property
    def held_bytes(self) -> int:
        return self._role.inflight.held_bytes if isinstance(self._role, LeaderRole) else 0

    @property
    def uncommitted_bytes(self) -> int:
        """Size of the uncommitted batches that this leader has appended, in bytes, as stored on disk."""
        return self._role.inflight.uncommitted_bytes if isinstance(self._role, LeaderRole) else 0

    def serves(self, leader_epoch: int, now_ns: int) -> bool:
        """Return whether the replica leads in ``leader_epoch``, has a lease, and counts as reachable by other nodes."""
        role = self._role
        return isinstance(role, LeaderRole) and role.leader_epoch == leader_epoch and role.serves(now_ns)

    def may_serve_committed(self) -> bool:
        """Return whether this replica may answer reads up to its HW [R7].

        It leads, or its log agrees with its leader's log and it is no learner.
        """
        role = self._role
        if isinstance(role, FollowerRole):
            return role.agrees and not self._shared.copy_epoch
        return isinstance(role, LeaderRole)

    def may_answer_latest(self, now_ns: int) -> bool:
        """Return whether the HW of this replica is certainly the latest one of the partition [D8, R4].

        That is so if the replica leads with a lease and the HW has reached the start of its epoch.
        """
        role, shared = self._role, self._shared
        if not isinstance(role, LeaderRole) or not shared.lease.is_current(now_ns):
            return False
        return role.phase is LeaderPhase.READY and shared.log.high_watermark + 1 >= role.epoch_start_offset

    @property
    def is_standby(self) -> bool:
        """True if the replica is a standby follower, which buffers publishes because it may lead next.

        It is False while the partition is paused.
        """
        could = not isinstance(self._role, FailedRole | StoppedRole) and self._shared.node_id in self._shared.metadata.isr
        return could and self._shared.metadata.has_standby and self._shared.state.pause is Pause.NOT_PAUSED

    def standby_successor(self) -> str:
        """Return the standby follower that should lead next, or '' if there is none.

        The shell calls it after this leader missed publishes in a short NATS disconnect, which standby followers have
        buffered. The leader then accepts no more publishes, and transfers the leadership when the connection is back. The new
        leader stores the buffered publishes in order.
        """
        role, shared = self._role, self._shared
        if not isinstance(role, LeaderRole) or not shared.metadata.has_standby:
            return ""
        request_times_ns = {replica: progress.last_contact_ns for replica, progress in role.handler.followers.items()}
        return isr.standby_successor(shared.node_id, shared.metadata.isr, shared.live, request_times_ns)

    def check_reader_offset(self, last_offset: int, last_epoch: int, now_ns: int) -> OffsetCheckResult:
        """Return whether the last record that a reader has read, ``last_offset`` (inclusive) of ``last_epoch``, is in this log [R6]."""
        is_latest = self.may_answer_latest(now_ns)
        return check_offset(self._shared.log, last_offset=last_offset, last_epoch=last_epoch, is_latest=is_latest)

    def snapshot(self, now_ns: int) -> ReplicaSnapshot:
        shared, state = self._shared, self._shared.state
        log = shared.log
        return ReplicaSnapshot(
            stream=shared.metadata.key.stream,
            partition=shared.metadata.key.partition,
            role=(RoleName.LEARNER if isinstance(self._role, FollowerRole) and shared.copy_epoch else self._role.name).value,
            phase=self._role.shown_phase,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            epoch=state.epoch,
            replicas=state.replicas,
            isr=state.isr,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            flushed_end_offset=log.flushed_end_offset,
            high_watermark=log.high_watermark,
            lease_is_current=shared.lease.is_current(now_ns),
            followers=self._followers(now_ns),
            target=state.target,
            joining=state.joining,
            paused=state.pause.words,
            copy_lag_records=self._role.copy_lag_records if isinstance(self._role, FollowerRole) else None,
            has_slow_disk=isinstance(self._role, LeaderRole) and self._role.flushes.is_slow(shared.node_id, now_ns),
        )

    def worst_lag(self, now_ns: int) -> tuple[int, int, int]:
        """Return the worst lag of the followers as (missing records, lag in nanoseconds, number of slow disks).

        The number includes a slow disk of this node. Unknown values count as 0.
        """
        records, since_ns, slow_until_ns = self.lag()
        return records, max(0, now_ns - since_ns) if records else 0, sum(until_ns > now_ns for until_ns in slow_until_ns)

    def lag(self) -> tuple[int, int, Sequence[int]]:
        """Return the lag of the followers as (records, monotonic time in ns, monotonic times in ns). Zeros if this replica does
        not lead.

        The parts are: number of records that the slowest follower lacks, time since which a follower lags, and times until
        which replicas with slow disks count as slow. The values do not change between events.
        """
        role = self._role
        if not isinstance(role, LeaderRole):
            return 0, 0, ()
        newest, least, since_ns = self._shared.log.flushed_newest_offset, None, 0
        for progress in role.handler.followers.values():
            position = progress.position
            if position is not None and position < newest:
                if least is None:
                    least, since_ns = position, progress.caught_up_ns
                else:
                    least, since_ns = min(least, position), min(since_ns, progress.caught_up_ns)
        return 0 if least is None else newest - least, since_ns, role.flushes.slow_until_ns()

    def _followers(self, now_ns: int) -> tuple[FollowerSnapshot, ...]:
        role, log = self._role, self._shared.log
        if not isinstance(role, LeaderRole):
            return ()
        return tuple(
            FollowerSnapshot(
                replica,
                progress.position,
                None if progress.position is None else max(0, log.flushed_newest_offset - progress.position),
                replica in self._shared.state.isr,
                (now_ns - progress.caught_up_ns) / 1e9,
                role.flushes.last_ns(replica) / 1e6,
                role.flushes.is_slow(replica, now_ns),
            )
            for replica, progress in role.handler.followers.items()
        )

    # ---- the lease ---------------------------------------------------------------------------------------------------
    def announce_change(self, now_ns: int) -> None:
        """Record that the image of the node shows a change of the partition, or of the live nodes.

        Until the replica processes the PartitionChanged that contains it, no heartbeat answer extends its lease [D22]. The
        shell must call the method before it extends the lease of the node for that image.
        """
        self._shared.lease.announce_change(now_ns)

    @property
    def announced(self) -> int:
        """Number of changes that ``announce_change`` has recorded, for PartitionChanged."""
        return self._shared.lease.announced

    # ---- the one way in --------------------------------------------------------------------------------------------
    def step(self, event: ev.Event, now_ns: int) -> list[Effect]:
        """Process one event at the monotonic time ``now_ns``. Return the effects that the shell must carry out, in order."""
        out: list[Effect] = []
        role = self._role
        match event:
            case FetchRequest():
                role.fetch_received(event, now_ns, out)
            case ev.FetchAnswered():
                role.fetch_answered(event, now_ns, out)
            case ev.LogFlushed():
                self._shared.log.flushed(event.end_offset)
                self._shared.flush_ns = event.took_ns
                role.log_flushed(now_ns, out)
            case ev.PublishesReceived():
                role.publishes_received(event, now_ns, out)
            case ev.DuplicateReceived():
                role.duplicate_received(event.last_offset, now_ns, out)
            case ev.NotificationReceived():
                role.notification_received(now_ns, out)
            case ev.LeaseChanged():
                role.lease_changed(now_ns, out)
            case ev.DataPathChanged():
                self._data_path_changed(event, now_ns, out)
            case ev.DeadlineReached():
                late_ns = self._shared.deadlines.take_reached(event.kind, now_ns, out)
                if late_ns is not None:
                    role.deadline_reached(event.kind, late_ns, now_ns, out)
            case ev.CombinedFetchReceived():
                role.combined_fetch_received(event, now_ns, out)
            case ev.CombinedFetchEnded():
                role.combined_fetch_ended(event, now_ns, out)
            case ev.FetchPieceArrived():
                role.fetch_piece_arrived(event, now_ns, out)
            case FetchRefusal():
                role.fetch_refused(event, now_ns, out)
            case ev.RequestFailed():
                role.request_failed(event, now_ns, out)
            case EpochQuery():
                role.epoch_query_received(event, now_ns, out)
            case EpochAnswer():
                role.epoch_query_answered(event, now_ns, out)
            case ev.ReplicaAbsent():
                role.replica_absent(event, now_ns, out)
            case LeaderNotice():
                role.notice_received(event, now_ns, out)
            case ev.IsrChangeAnswered():
                role.isr_change_answered(event, now_ns, out)
            case ev.LogTruncated():
                self._shared.log.was_truncated(event.end_offset)
                role.log_truncated(now_ns, out)
            case ev.ReplayProgressed() | ev.ReplayFinished():
                role.replay_progressed(event.end_offset, isinstance(event, ev.ReplayFinished), now_ns, out)
            case ev.LeaderEpochPersisted():
                self._persisted_epoch = max(self._persisted_epoch, event.leader_epoch)
                role.epoch_persisted(event.leader_epoch, now_ns, out)
            case ev.LogStartMoved():
                self._shared.log.start_moved(event.log_start_offset)
            case ev.PartitionChanged():
                self._partition_changed(event, now_ns, out)
                self._role.lease_changed(now_ns, out)
            case ev.LogOpened():
                self._log_opened(event, now_ns)
            case ev.LogCompacted():
                self._shared.log.compacted(Horizon(event.end_offset, event.leader_epoch, event.deletes_end))
            case ev.StorageFailed():
                self._storage_failed(event, now_ns, out)
            case ev.StopRequested():
                self._become(StoppedRole(self._shared, InactivePhase.STOPPED), now_ns, out)
            case _:
                assert_never(event)
        return out

    def _log_opened(self, event: ev.LogOpened, now_ns: int) -> None:
        self._shared.log.set_recovered(
            event.log_start_offset, event.log_end_offset, event.high_watermark, event.epochs, event.epoch_before_start
        )
        # Above every id of an earlier replica object of this process.
        self._shared.next_request_id = self._shared.node.request_id_base + max(now_ns, 1)
        self._persisted_epoch = event.persisted_epoch

    def _data_path_changed(self, event: ev.DataPathChanged, now_ns: int, out: Effects) -> None:
        shared = self._shared
        if event.is_up:
            shared.data_path_down_ns = None
            self._role.data_path_restored(now_ns, out)
        elif shared.data_path_down_ns is None:
            shared.data_path_down_ns = now_ns
            self._role.data_path_lost(now_ns, out)

    def _storage_failed(self, event: ev.StorageFailed, now_ns: int, out: Effects) -> None:
        role = self._role
        may_reject = event.no_space and isinstance(role, LeaderRole) and role.may_reject_locally(now_ns)
        failed = FailedRole(self._shared, event.reason, may_reject_publishes=may_reject)
        if event.token:
            failed.publishes_received(
                ev.PublishesReceived(token=event.token, record_count=0, size_bytes=0, received_wall_ns=0), now_ns, out
            )
        self._become(failed, now_ns, out)

    # ---- roles -----------------------------------------------------------------------------------------------------
    def _partition_changed(self, event: ev.PartitionChanged, now_ns: int, out: Effects) -> None:
        shared, state = self._shared, event.metadata.state
        shared.lease.record_change(event.announced)
        if isinstance(self._role, StoppedRole) or state.epoch < shared.state.epoch:
            return
        if state.leader_epoch < self._persisted_epoch:
            return  # this node is a candidate of a later epoch, the image has not caught up with that
        epoch_rose = state.epoch > shared.state.epoch
        old, shared.metadata, shared.live = shared.state, event.metadata, dict(event.incarnations)
        shared.earlier_leaders.partition_changed(state, shared.live, now_ns, event.metadata.longest_lease_ns)
        role = self._role_for(state, now_ns)
        if isinstance(self._role, FailedRole):
            self._role.partition_changed(epoch_rose, now_ns, out)
            return
        if role is None:
            self._role.partition_changed(epoch_rose, now_ns, out)
        else:
            role_is_new = not isinstance(role, InactiveRole) or not isinstance(self._role, InactiveRole)
            if role_is_new or (old.status, old.leader_epoch) != (state.status, state.leader_epoch) or not old.epoch:
                self._become(role, now_ns, out)

    def _role_for(self, state: PartitionState, now_ns: int) -> ReplicaRole | None:
        """Return a new role object if ``state`` requires another role, leader or LeaderEpoch. None: the role stays."""
        shared, role = self._shared, self._role
        leader = {PartitionStatus.ONLINE: state.leader, PartitionStatus.CANDIDATE_FOUND: state.candidate}.get(state.status, "")
        if not leader or shared.node_id not in state.holders:
            return InactiveRole(shared)
        same_epoch = role.leader_epoch == state.leader_epoch
        if leader != shared.node_id:
            follows = isinstance(role, FollowerRole) and same_epoch and role.leader == leader
            return None if follows else FollowerRole(shared, leader, now_ns)
        if state.status is PartitionStatus.ONLINE and isinstance(role, LeaderRole) and same_epoch:
            return None
        if state.status is PartitionStatus.CANDIDATE_FOUND and isinstance(role, CandidateRole) and same_epoch:
            return None
        if shared.live.get(shared.node_id) != shared.incarnation:
            return InactiveRole(shared)
        if state.status is PartitionStatus.CANDIDATE_FOUND:
            return CandidateRole(shared, now_ns)
        promoted = isinstance(role, CandidateRole) and same_epoch and role.phase is LeaderPhase.INIT
        return LeaderRole(shared, now_ns, role.handler if promoted and isinstance(role, CandidateRole) else None)

    def _become(self, role: ReplicaRole, now_ns: int, out: Effects) -> None:
        if isinstance(role, LeaderRole) and role.was_candidate:
            self._shared.deadlines.cancel_all(out)  # it goes on serving the followers that it has
        else:
            self._role.leave(out)
        self._role = role
        role.enter(now_ns, out)
