"""``LeaderRole``: the leader of one partition in one LeaderEpoch [protocol: Writing; Idle followers; Membership of the ISR].

It assigns offsets to published records, answers fetches, moves the high watermark, sends acks, wakes idle followers and
asks the metadata group for ISR changes. It never truncates its own log [D25]. Without a lease it appends but sends no
acks [D22].

Phases: LEADER_REPLAY (message ids, producers and subjects are rebuilt; fetches are served already), LEADER_INIT (only
while an earlier leader may still send acks), then LEADER_READY or LEADER_NO_LEASE.

Removing a replica while a partition moves: the unwanted replica leaves only if enough complete copies and ``min_isr``
members remain. With the commit policy ``quorum``, a majority of the remaining replicas must also hold everything that
may be committed. A leader that must leave first transfers its leadership. Example: replicas a b d c, wanted a b d. With
ISR a b d c, c leaves. With ISR a b c (d has failed), c stays, because it is the third copy.

Pausing [A13]: once a leader knows of a pause, it stores nothing that arrives later.

- UNTIL_RESUMED: publishes are rejected with PAUSED, or dropped without a reply subject.
- UNTIL_PUBLISH: the publish is held, and the leader asks the metadata group to resume. The publish gets a slow ack.
- ENDING: the leader accepts publishes again and says so. Only then do standby followers buffer messages. A follower
  that buffered earlier could store a message that the leader rejected.

A changed setting that rejects publishes (``liftpy.config.REFUSED_BY``) is a pause that ends at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from liftpy.config import AckPolicy, CommitPolicy
from liftpy.core.base.partition import PartitionState, Pause
from liftpy.core.replication import isr
from liftpy.core.replication.combined_fetches import QUIET_WAIT
from liftpy.core.replication.effects import (
    AppendBatch,
    CloseSubject,
    ConfirmCombinedFetch,
    DropPendingAcks,
    DropPublishes,
    GiveUpLeadership,
    NotifyReplica,
    OpenSubject,
    ProbeReplica,
    ProposeIsr,
    RejectPublishes,
    ReplayLog,
    SendAcks,
    StartServing,
    TransferCause,
    TransferLeadership,
    WakePartition,
)
from liftpy.core.replication.events import (
    CombinedFetchReceived,
    Deadline,
    IsrChangeAnswered,
    PublishesReceived,
    ReplicaAbsent,
)
from liftpy.core.replication.fetch_handler import FetchHandler
from liftpy.core.replication.inflight_limits import InflightLimits, size_in_memory
from liftpy.core.replication.isr import IsrChange, SlowFlushes, fast_successor, new_high_watermark, slow_to_exclude
from liftpy.core.replication.messages import EpochQuery, FetchRequest, LeaderNotice
from liftpy.core.replication.phases import LeaderPhase, Phase, RoleName
from liftpy.core.replication.role import Effects, ReplicaContext, ReplicaRole, nanoseconds
from liftpy.core.wire.rejections import RejectReason

REASONS_OF_ANY_LEADER = frozenset({RejectReason.READ_ONLY, RejectReason.PAUSED})
_RESUME_RETRY_NS = 250_000_000
"""Pause before a repeated request to the metadata group, in nanoseconds."""
_LAG_CHECKS_PER_LAG_TIME = 4
_NOTICE_DELAY_NS = 2_000_000
"""Time that a follower at the log end waits for a raised HW or the answer to its fetch, in nanoseconds.

Records that arrive in this time carry the HW. So a busy partition sends no notice, and a burst of commits needs only
one.
"""
_ISR_RETRY_NS = 250_000_000
"""Pause after a rejected or unanswered ISR request, in nanoseconds."""
_PROBE_AGAIN_NS = 100_000_000
_TRANSFER_AGAIN_NS = 10_000_000_000
"""Pause between two attempts to transfer the leadership away from a slow disk, in nanoseconds."""
_MOVE_AGAIN_NS = 3_000_000_000
"""Pause between two attempts to transfer the leadership of a replica that moves away, in nanoseconds.

It is longer than the time that publishers wait in a transfer.
"""
_RELEASE_BYTES = 1024 * 1024
"""Maximum size of delayed publishes that are appended in one step, in bytes. Other events run in between."""


def removable_replica(state: PartitionState, isr: frozenset[str], min_isr: int) -> str:
    """Return the node id of the replica that may leave the replica set now. It may be the leader. '': none may leave.

    ``isr``: ISR after the change that the leader requests.
    """
    leaving = state.leaving
    if not leaving or state.joining in isr:  # one change of the replica set at a time
        return ""
    staying = isr - {leaving}
    enough = len(staying) >= min_isr and (leaving not in isr or len(staying) >= len(state.target))
    return leaving if enough else ""


def majority_holds(
    state: PartitionState, leaving: str, positions: Mapping[str, int | None], high_watermark: int, epoch_start_offset: int
) -> bool:
    """Return whether, without the replica ``leaving``, a majority of the other replicas has all records that may be committed.

    Args:
        state: Partition in the metadata.
        leaving: Node id of the replica that moves away.
        positions: Node id -> newest flushed offset (inclusive) in this LeaderEpoch. None or absent: unknown.
        high_watermark: HW of the leader, inclusive.
        epoch_start_offset: First offset of the LeaderEpoch, inclusive.
    """
    staying = [node for node in state.replicas if node != leaving]
    needed_offset = max(high_watermark, epoch_start_offset - 1)
    flushed_ends = [positions.get(node) for node in staying if node not in state.incomplete]
    return sum(position is not None and position >= needed_offset for position in flushed_ends) > len(staying) // 2


def transfer_target(state: PartitionState, caught_up: Iterable[str]) -> str:
    """Return the node id of the replica that should get the leadership, because the leader's own replica moves away.

    It is the first target replica that is in the ISR and in ``caught_up`` (live replicas without lag). '': there is none.
    """
    ready = frozenset(caught_up)
    return next((node for node in state.target if node in ready and node in state.isr), "")


class PauseEnforcer:
    """Applies the pause of one partition during one leadership: rejects publishes, or requests the end of the pause."""

    __slots__ = ("_again_ns", "_requested", "_shared")

    def __init__(self, shared: ReplicaContext) -> None:
        self._shared = shared
        self._requested: tuple[Pause, int] = (Pause.NOT_PAUSED, 0)
        self._again_ns = 0

    @property
    def reject_reason(self) -> RejectReason | None:
        """Reason for which all publishes are rejected now: the partition is paused or read-only. None: publishes are not rejected."""
        metadata = self._shared.metadata
        if metadata.config.read_only:
            return RejectReason.READ_ONLY
        return RejectReason.PAUSED if metadata.state.pause is Pause.UNTIL_RESUMED else None

    @property
    def ends_with_publish(self) -> bool:
        """True if the next publish ends the pause. The leader delays publishes until the metadata shows the end of the pause."""
        return self._shared.state.pause.until_publish

    def should_resume(self, inflight: InflightLimits) -> bool:
        """Return whether the leader must request the end of the pause from the metadata group.

        That is the case if ``inflight`` has delayed publishes, or if an operator has resumed the partition.
        """
        return (self.ends_with_publish and inflight.holds) or self._shared.state.pause is Pause.ENDING

    def request_resume_if_due(self, phase: Phase, inflight: InflightLimits, now_ns: int, out: Effects) -> None:
        """Request the end of the pause from the metadata group, if it is due. The request is repeated, because one may be lost."""
        state = self._shared.state
        current = state.pause, state.pauses
        if (
            phase is LeaderPhase.READY
            and self.should_resume(inflight)
            and (current != self._requested or now_ns >= self._again_ns)
        ):
            self._requested, self._again_ns = current, now_ns + _RESUME_RETRY_NS
            out.append(WakePartition(leader_epoch=state.leader_epoch, pause=state.pause, pauses=state.pauses))


class LeaderRole(ReplicaRole):
    """Role of the replica that leads a partition.

    ``handler``: fetch handler of the candidate that becomes the leader, with its followers. None: the role creates a new one.
    """

    name = RoleName.LEADER

    def __init__(self, shared: ReplicaContext, now_ns: int, handler: FetchHandler | None = None) -> None:
        super().__init__(shared, LeaderPhase.REPLAY)
        self.epoch_start_offset = shared.log.log_end_offset
        """Offset of the first record of this LeaderEpoch, inclusive. It is set before anything is appended."""
        self.handler = handler or FetchHandler(shared, self.leader_epoch, now_ns)
        self.isr_change = IsrChange()
        self.flushes = SlowFlushes(shared.config)
        self._stays_until_ns = now_ns + (nanoseconds(shared.config.min_leadership_s) if shared.state.leaderships > 1 else 0)
        """Monotonic time before which the leadership is not transferred away from a slow disk."""
        self._next_transfer_ns = 0
        """Monotonic time of the next attempt to transfer the leadership of a replica that moves away."""
        self._waiting_end_offset = -1
        """Flushed end (exclusive) when the last check first saw a running flush. -1: no flush ran."""
        self._waiting_ns = 0
        """Monotonic time of that check."""
        self.inflight = InflightLimits(shared.node.inflight, shared.config)
        self.pause_enforcer = PauseEnforcer(shared)
        self._probe_after_ns = nanoseconds(shared.config.follower_ping_delay_s)
        self._lag_interval_ns = nanoseconds(shared.config.max_lag_time_s) // _LAG_CHECKS_PER_LAG_TIME
        self.was_candidate = handler is not None
        self._acked_leader_through = self._acked_all_through = shared.log.newest_offset
        """Newest offset (inclusive) for which SendAcks was sent, by policy. Publishers of older records repeat their messages."""

    # ---- life ------------------------------------------------------------------------------------------------------
    def enter(self, now_ns: int, out: Effects) -> None:
        """Start the leadership: answer fetches, replay the log, and send notices to the replicas.

        A promoted candidate has already replayed its log. Publishes are accepted after the replay.
        """
        super().enter(now_ns, out)
        self.handler.partition_changed(now_ns)
        if self.was_candidate:
            self.to_phase(LeaderPhase.INIT, out)
        else:
            out.append(StartServing())
            out.append(ReplayLog(end_offset=self.log.log_end_offset))
        deadlines = self.shared.deadlines
        deadlines.set(Deadline.LAG, now_ns + self._lag_interval_ns, out)
        self._send_notices(now_ns, out)
        self._accept_publishes_if_allowed(now_ns, out)
        self._advance_high_watermark(now_ns, out)

    def _accept_publishes_if_allowed(self, now_ns: int, out: Effects) -> None:
        """Accept publishes if the replay has ended and no earlier leader has a lease.

        Otherwise set a timer for the end of that lease.
        """
        if self.phase is not LeaderPhase.INIT:
            return
        if self.handler.may_send_acks(now_ns):
            self.shared.deadlines.cancel(Deadline.PROMOTION, out)
            self._accept_publishes(now_ns, out)
            self._advance_high_watermark(now_ns, out)
        else:
            self.shared.deadlines.set(Deadline.PROMOTION, self.shared.earlier_leaders.until_ns(), out)

    def _accept_publishes(self, now_ns: int, out: Effects) -> None:
        out.append(OpenSubject())
        self.to_phase(LeaderPhase.READY if self.shared.lease.is_current(now_ns) else LeaderPhase.NO_LEASE, out)
        self.pause_enforcer.request_resume_if_due(self.phase, self.inflight, now_ns, out)

    def leave(self, out: Effects) -> None:
        """End the leadership. Publishers that wait for an ack get none, because their records may or may not survive."""
        super().leave(out)
        out.extend(DropPublishes(token=event.token, reason=RejectReason.NOT_LEADER) for event in self.inflight.close())
        out.append(CloseSubject())
        out.append(DropPendingAcks())

    def replay_progressed(self, end_offset: int, finished: bool, now_ns: int, out: Effects) -> None:
        if finished and self.phase is LeaderPhase.REPLAY:
            self.to_phase(LeaderPhase.INIT, out)
            self._accept_publishes_if_allowed(now_ns, out)

    def lease_changed(self, now_ns: int, out: Effects) -> None:
        """Show whether the leader has a lease, and send the acks that waited for it.

        The acks may also wait in phase READY, because the lease may end and be extended before any event reports its end.
        """
        if self.phase is not LeaderPhase.READY and self.phase is not LeaderPhase.NO_LEASE:
            return
        if not self.shared.lease.is_current(now_ns):
            self.to_phase(LeaderPhase.NO_LEASE, out)
            return
        if self.phase is LeaderPhase.NO_LEASE:
            self.to_phase(LeaderPhase.READY, out)
            self.pause_enforcer.request_resume_if_due(self.phase, self.inflight, now_ns, out)
        self._acknowledge(now_ns, out)

    def partition_changed(self, epoch_rose: bool, now_ns: int, out: Effects) -> None:
        """Apply changed metadata during the leadership: another ISR, replica set or set of live nodes.

        ``epoch_rose``: True if the partition's Epoch is higher, so that no earlier ISR change is open.
        """
        self.handler.partition_changed(now_ns)
        self.flushes.keep(self.shared.state.holders)
        if epoch_rose:
            self.isr_change.record_new_epoch()
            self.shared.deadlines.cancel(Deadline.ISR_CHANGE, out)
            if self._is_below_min_isr and self.inflight.holds and self.may_reject_locally(now_ns):
                withdrawn_events = self.inflight.withdraw_answerable()
                out.extend(RejectPublishes(token=event.token, reason=RejectReason.BELOW_MIN_ISR) for event in withdrawn_events)
        self._accept_publishes_if_allowed(now_ns, out)
        self._advance_high_watermark(now_ns, out)
        self._append_delayed(out)
        self.pause_enforcer.request_resume_if_due(self.phase, self.inflight, now_ns, out)
        self._request_isr_change(now_ns, out)
        self._schedule_lag_check(now_ns, out)

    def data_path_lost(self, now_ns: int, out: Effects) -> None:
        self._schedule_lag_check(now_ns, out)

    # ---- publishes, log, commit ------------------------------------------------------------------------------------
    @property
    def _is_below_min_isr(self) -> bool:
        """True if the ISR has fewer members than ``min_isr``, so that no record can be committed."""
        return len(self.shared.metadata.isr) < self.shared.metadata.min_isr

    @property
    def takes_publishes(self) -> bool:
        return (
            not (self._is_below_min_isr or self.inflight.holds or self.pause_enforcer.ends_with_publish)
            and self.inflight.may_append()
        )

    def publishes_received(self, event: PublishesReceived, now_ns: int, out: Effects) -> None:
        """Append publishes, delay them, or reject them. A rejected publish without a reply subject is dropped.

        Publishes are rejected during a pause, above a limit, or if the ISR is too small and the leader may send negative acks
        [D20, D22].
        """
        self._schedule_lag_check(now_ns, out)
        is_below_min_isr, holds, ends_with_publish = (
            self._is_below_min_isr,
            self.inflight.holds,
            self.pause_enforcer.ends_with_publish,
        )
        if (reject_reason := self.pause_enforcer.reject_reason) is not None:
            out.append(self._rejection(event, reject_reason, now_ns))
        elif is_below_min_isr and not event.is_plain and self.may_reject_locally(now_ns):
            out.append(RejectPublishes(token=event.token, reason=RejectReason.BELOW_MIN_ISR))
        elif not (holds or ends_with_publish or (is_below_min_isr and event.is_plain)) and self.inflight.may_append():
            self._append(event, out)
        elif (event.conditional and (holds or not ends_with_publish)) or not self.inflight.hold(event, now_ns):
            out.append(
                self._rejection(event, RejectReason.BELOW_MIN_ISR if is_below_min_isr else RejectReason.OVERLOADED, now_ns)
            )
        self.pause_enforcer.request_resume_if_due(self.phase, self.inflight, now_ns, out)

    def _rejection(self, event: PublishesReceived, reason: RejectReason, now_ns: int) -> RejectPublishes | DropPublishes:
        """Return an effect that rejects the publishes for ``reason``, if their publishers may get a negative ack.

        Otherwise return an effect that drops them without an answer.
        """
        may_answer = self.may_reject(now_ns) if reason in REASONS_OF_ANY_LEADER else self.may_reject_locally(now_ns)
        return (RejectPublishes if may_answer and not event.is_plain else DropPublishes)(token=event.token, reason=reason)

    def duplicate_received(self, last_offset: int, now_ns: int, out: Effects) -> None:
        """Send acks again for the stored records from ``last_offset`` on, because publishers repeated one of them.

        The acks are sent as soon as these records may be acked [D22].
        """
        self._acked_leader_through = min(self._acked_leader_through, last_offset - 1)
        self._acked_all_through = min(self._acked_all_through, last_offset - 1)
        self._acknowledge(now_ns, out)

    def _append(self, event: PublishesReceived, out: Effects) -> None:
        base_offset = self.log.append(event.record_count, self.leader_epoch)
        self.inflight.appended(self.log.newest_offset, event.size_bytes)
        out.append(
            AppendBatch(
                token=event.token, base_offset=base_offset, leader_epoch=self.leader_epoch, timestamp_ns=event.received_wall_ns
            )
        )
        self.handler.appended(out)

    def _append_delayed(self, out: Effects) -> None:
        size_bytes = 0
        awake = not (self._is_below_min_isr or self.pause_enforcer.ends_with_publish)
        while awake and self.inflight.holds and self.inflight.may_append() and size_bytes < _RELEASE_BYTES:
            event = self.inflight.next()
            size_bytes += size_in_memory(event)
            self._append(event, out)

    def _reject_expired(self, now_ns: int, out: Effects) -> None:
        """Drop or reject the delayed publishes that have waited longer than the stream's limit."""
        bound_ns, reason = nanoseconds(self.shared.metadata.config.min_isr_hold_timeout_s), RejectReason.PAUSED
        if bound_ns and (self._is_below_min_isr or self.pause_enforcer.ends_with_publish):
            reason = RejectReason.BELOW_MIN_ISR if self._is_below_min_isr else reason
            out += [self._rejection(old, reason, now_ns) for old in self.inflight.withdraw_older(now_ns - bound_ns)]

    def may_reject(self, now_ns: int) -> bool:
        """Return whether a negative ack from this leader is certainly true [A2].

        The leader needs a lease. In addition, no possible next leader may still get records of an earlier leader, which may
        have stored the rejected message.
        """
        settled = self._commits_by_quorum and self.log.high_watermark >= self.epoch_start_offset
        return self.shared.lease.is_current(now_ns) and (settled or self.handler.has_all_successors)

    def may_reject_locally(self, now_ns: int) -> bool:
        """Return whether publishers may get a negative ack for a reason of this node only, such as a full queue.

        With standby followers the result is False, because the next leader may store the rejected publish.
        """
        return self.may_reject(now_ns) and not self.shared.metadata.has_standby

    def log_flushed(self, now_ns: int, out: Effects) -> None:
        if self.shared.flush_ns:
            self.flushes.flushed(self.shared.node_id, self.shared.flush_ns, now_ns)
        self._advance_high_watermark(now_ns, out)
        self._append_delayed(out)

    def _advance_high_watermark(self, now_ns: int, out: Effects) -> None:
        """Raise the HW to the offset that the commit policy allows. Then send the acks for committed records."""
        if not self.handler.may_send_acks(now_ns):
            return
        metadata, log, positions = self.shared.metadata, self.log, self.handler.positions()
        offset = new_high_watermark(metadata, self.isr_change, positions, self.epoch_start_offset, log.high_watermark)
        if offset > log.high_watermark:
            self.shared.raise_high_watermark(min(offset, log.flushed_newest_offset), out)
            self.inflight.committed(log.high_watermark)
            if self.handler.has_stale_followers(now_ns):
                self._schedule_notice(now_ns + _NOTICE_DELAY_NS, out)
        if log.high_watermark < log.flushed_newest_offset and self._probe_after_ns:
            self.shared.deadlines.set_earlier(Deadline.PROBE, now_ns + self._probe_after_ns, out)
        self._acknowledge(now_ns, out)

    def _probe_silent_followers(self, now_ns: int, out: Effects) -> None:
        """Ask NATS whether the ISR members that delay the HW are connected, and send them a notification.

        These are members without a fetch for ``follower_ping_delay_s``. A timer repeats the check.
        """
        log, state = self.log, self.shared.state
        if log.high_watermark >= log.flushed_newest_offset or not self._probe_after_ns:
            return
        silent = [
            (replica, progress)
            for replica, progress in self.handler.followers.items()
            if replica in state.isr
            and (progress.position is None or progress.position < log.flushed_newest_offset)
            and now_ns - progress.last_fetch_ns >= self._probe_after_ns
        ]
        for replica, progress in silent:
            progress.probed = True
            out.append(ProbeReplica(replica=replica))
            out.append(NotifyReplica(replica=replica))
        again_ns = _PROBE_AGAIN_NS if silent else self._probe_after_ns
        self.shared.deadlines.set(Deadline.PROBE, now_ns + again_ns, out)

    def replica_absent(self, event: ReplicaAbsent, now_ns: int, out: Effects) -> None:
        """Record that NATS reported a follower as not connected.

        Ignore the report if the follower has fetched since it was requested.
        """
        progress = self.handler.followers.get(event.replica)
        if progress is None or not progress.probed:
            return
        progress.absences += 1
        if progress.absences >= isr.ABSENCES:
            self._request_isr_change(now_ns, out)

    def _acknowledge(self, now_ns: int, out: Effects) -> None:
        log = self.log
        due_leader = log.flushed_newest_offset > self._acked_leader_through
        due_all = log.high_watermark > self._acked_all_through
        if not (due_leader or due_all) or not self.shared.lease.is_current(now_ns):
            return
        if due_leader:
            self._acked_leader_through = log.flushed_newest_offset
            out.append(
                SendAcks(policy=AckPolicy.LEADER, through_offset=log.flushed_newest_offset, leader_epoch=self.leader_epoch)
            )
        if due_all:
            self._acked_all_through = log.high_watermark
            out.append(SendAcks(policy=AckPolicy.ALL, through_offset=log.high_watermark, leader_epoch=self.leader_epoch))

    # ---- followers -------------------------------------------------------------------------------------------------
    def fetch_received(self, event: FetchRequest, now_ns: int, out: Effects) -> None:
        """Record the position of a follower's fetch and raise the HW. Then answer the fetch, so that the answer has the new HW.

        An invalid fetch is rejected.
        """
        before = self.handler.newest_offset_of(event.replica)
        if (reason := self.handler.fetch_received(event, now_ns)) is not None:
            self.refuse(event, reason, out)
            self._accept_publishes_if_allowed(now_ns, out)
            return
        self._accept_publishes_if_allowed(now_ns, out)
        if event.flush_ns and self.handler.newest_offset_of(event.replica) != before:
            self.flushes.flushed(event.replica, event.flush_ns, now_ns, in_isr=event.replica in self.shared.metadata.isr)
        self._advance_high_watermark(now_ns, out)
        if self.handler.answer(event, now_ns, out):
            self._schedule_notice(now_ns + _NOTICE_DELAY_NS, out)
        self._append_delayed(out)
        lost = not self._commits_by_quorum and isr.has_lost(self.handler.followers[event.replica], self.log.high_watermark)
        if lost or event.replica not in self.shared.metadata.isr:
            self._request_isr_change(now_ns, out)

    @property
    def _commits_by_quorum(self) -> bool:
        return self.shared.metadata.config.commit_policy is CommitPolicy.QUORUM

    def combined_fetch_received(self, event: CombinedFetchReceived, now_ns: int, out: Effects) -> None:
        """Confirm to a follower's node that the follower's fetch still waits, and record it as a new fetch.

        If it does not wait, send nothing. The follower then fetches again.
        """
        if self.handler.still_waits(event, now_ns):
            out.append(ConfirmCombinedFetch(token=event.token))

    def epoch_query_received(self, event: EpochQuery, now_ns: int, out: Effects) -> None:
        self.handler.epoch_query_received(event, now_ns, out)
        self._accept_publishes_if_allowed(now_ns, out)

    def _schedule_notice(self, at_ns: int, out: Effects) -> None:
        self.shared.deadlines.set_earlier(Deadline.NOTICE, at_ns, out)

    def _send_notices(self, now_ns: int, out: Effects) -> None:
        """Send notices to followers.

        Followers that have not fetched in this epoch get NewLeadershipTerm. Followers at the log end get the HW, in the answer
        to a waiting fetch or as CommitPosition.
        """
        log, replicas = self.log, self.handler.send_high_watermark_to_stale(now_ns - _NOTICE_DELAY_NS, out)
        if any(self.handler.followers[replica].position is None for replica in replicas):
            self._schedule_notice(now_ns + nanoseconds(self.shared.config.notice_interval_s), out)
        if (notice_since_ns := self.handler.stale_since_ns()) is not None:
            self._schedule_notice(notice_since_ns + _NOTICE_DELAY_NS, out)
        if replicas:
            out.append(
                LeaderNotice(
                    replicas=replicas,
                    leader=self.shared.node_id,
                    leader_epoch=self.leader_epoch,
                    epoch=self.shared.state.epoch,
                    epoch_start_offset=self.epoch_start_offset,
                    high_watermark=log.high_watermark,
                    log_start_offset=log.log_start_offset,
                )
            )

    # ---- the ISR ---------------------------------------------------------------------------------------------------
    def _request_isr_change(self, now_ns: int, out: Effects) -> None:
        """Request from the metadata group the ISR that the lag policy requires. Only one request is open at a time."""
        change, metadata, config = self.isr_change, self.shared.metadata, self.shared.config
        if change.in_flight or now_ns < change.retry_at_ns or not self.shared.lease.is_current(now_ns):
            return
        slow = slow_to_exclude(self.shared.node_id, metadata.isr, self.flushes.slow(now_ns))
        followers = self.handler.followers
        if not slow and not change.unsettled and not metadata.state.target and isr.is_unchanged(self.shared, followers, now_ns):
            return
        wanted = isr.wanted_isr(self.shared, followers, self.epoch_start_offset, slow, now_ns)
        joining = metadata.state.joining
        if joining and joining not in metadata.state.target:  # the number of replicas was lowered during the copy
            wanted -= {joining}
        electable = frozenset() if self._commits_by_quorum else metadata.electable_replicas
        lost = isr.lossy_replicas(followers, electable, self.log.high_watermark)
        evicted = self._removable_replica(wanted, now_ns)
        if evicted == self.shared.node_id:
            self._transfer_to_target(now_ns, out)
            evicted = ""
        wanted -= {evicted}
        if wanted == metadata.isr and not change.unsettled and not lost and not evicted:
            return
        if wanted == {self.shared.node_id} and not lost and self._may_be_disconnected(now_ns):
            return
        change.record_attempt(wanted, self._replicas_after(wanted, evicted))
        incarnations = tuple((replica, self.shared.live.get(replica, 0)) for replica in sorted(wanted))
        left = tuple((replica, self.flushes.last_ns(replica)) for replica in sorted(slow & metadata.isr - wanted))
        out.append(
            ProposeIsr(
                isr=wanted,
                leader_epoch=self.leader_epoch,
                epoch=metadata.state.epoch,
                incarnations=incarnations,
                lost=lost,
                slow=left,
                evicted=evicted,
            )
        )
        self.shared.deadlines.set(Deadline.ISR_CHANGE, now_ns + nanoseconds(config.session_s), out)

    def _removable_replica(self, wanted: frozenset[str], now_ns: int) -> str:
        """Return the node id of the replica that may leave the replica set now. '': none may.

        ``wanted``: ISR after the change. The leader must have a lease, so that an outdated leader removes no replica.
        """
        state = self.shared.state
        leaving = removable_replica(state, wanted, self.shared.metadata.min_isr)
        if not leaving or self.phase is not LeaderPhase.READY or not self.handler.may_send_acks(now_ns):
            return ""
        if leaving == self.shared.node_id or not self._commits_by_quorum:
            return leaving
        start_offset, positions = self.epoch_start_offset, self.handler.positions()
        return leaving if majority_holds(state, leaving, positions, self.log.high_watermark, start_offset) else ""

    def _replicas_after(self, wanted: frozenset[str], evicted: str) -> frozenset[str] | None:
        """Return the replica set after the ISR change, or None if it stays as it is.

        ``wanted``: ISR after the change. ``evicted``: node id of the replica that leaves, '' for none. A learner in ``wanted``
        joins.
        """
        state = self.shared.state
        joins = state.joining in wanted
        return frozenset(state.holders if joins else state.replicas) - {evicted} if joins or evicted else None

    def _transfer_to_target(self, now_ns: int, out: Effects) -> None:
        """Request a leadership transfer to a target replica, because this replica moves away.

        Repeat the request until it is granted.
        """
        if now_ns < self._next_transfer_ns:
            return
        lag_ns = nanoseconds(self.shared.config.max_lag_time_s)
        followers, live = self.handler.followers, self.shared.live
        toward = transfer_target(
            self.shared.state, (r for r, p in followers.items() if r in live and now_ns - p.caught_up_ns < lag_ns)
        )
        if toward:
            self._next_transfer_ns = now_ns + _MOVE_AGAIN_NS
            reason = "the replica moves away"
            effect = TransferLeadership(leader_epoch=self.leader_epoch, toward=toward, reason=reason, cause=TransferCause.MOVE)
            out.append(effect)

    def isr_change_answered(self, event: IsrChangeAnswered, now_ns: int, out: Effects) -> None:
        """Record the answer of the metadata group to a request for an ISR change.

        Until the metadata of this node shows an accepted change, both old and new members count as ISR members for the HW.
        """
        change = self.isr_change
        if event.epoch != self.shared.state.epoch or not change.in_flight or event.accepted:
            return
        if event.accepted is None:
            change.record_unknown_result(now_ns + _ISR_RETRY_NS)
        else:
            change.record_rejection(now_ns + _ISR_RETRY_NS)
        self.shared.deadlines.cancel(Deadline.ISR_CHANGE, out)
        self._schedule_lag_check(now_ns, out)
        self._advance_high_watermark(now_ns, out)
        self._append_delayed(out)

    def deadline_reached(self, kind: Deadline, late_ns: int, now_ns: int, out: Effects) -> None:
        if kind is Deadline.LAG:
            self._check_lag(late_ns, now_ns, out)
        elif kind is Deadline.NOTICE:
            self._send_notices(now_ns, out)
        elif kind is Deadline.PROMOTION:
            self._accept_publishes_if_allowed(now_ns, out)
        elif kind is Deadline.PROBE:
            self._probe_silent_followers(now_ns, out)
        elif kind is Deadline.ISR_CHANGE:
            self.isr_change.record_unknown_result(now_ns)
            self._request_isr_change(now_ns, out)

    def _check_lag(self, late_ns: int, now_ns: int, out: Effects) -> None:
        interval_ns = self._lag_interval_ns
        if late_ns > interval_ns:  # this process was stopped, and the fetches of its followers wait in its queues
            for progress in self.handler.followers.values():
                progress.caught_up_ns += late_ns
                progress.last_contact_ns += late_ns
        if unreachable := self._why_unreachable(now_ns):
            out.append(GiveUpLeadership(leader_epoch=self.leader_epoch, reason=unreachable))
        self._check_own_flush(late_ns, interval_ns, now_ns)
        self._reject_expired(now_ns, out)
        self.pause_enforcer.request_resume_if_due(self.phase, self.inflight, now_ns, out)
        self._request_isr_change(now_ns, out)
        if self.flushes.is_slow(self.shared.node_id, now_ns):
            self._transfer_from_slow_disk(now_ns, out)
        self.shared.deadlines.set(Deadline.LAG, max(now_ns + interval_ns, self._compute_next_check_ns(now_ns)), out)

    def _compute_next_check_ns(self, now_ns: int) -> int:
        """Return the earliest monotonic time at which a follower can lag too much or be silent for too long, in nanoseconds.

        0: check at every event, because a change is open. Idle partitions therefore need no regular checks.
        """
        state, log, followers = self.shared.state, self.log, self.handler.followers.values()
        is_complete = log.high_watermark == log.newest_offset and len(state.isr) == len(state.replicas) and not state.target
        change = self.isr_change
        if (
            not is_complete
            or change.in_flight
            or change.unsettled
            or self.shared.data_path_down_ns is not None
            or not followers
        ):
            return 0
        if self.flushes.slow(now_ns) or self.pause_enforcer.should_resume(self.inflight):
            return 0
        lagging_ns = min(progress.caught_up_ns for progress in followers) + nanoseconds(self.shared.config.max_lag_time_s)
        return min(lagging_ns + 1, max(progress.last_contact_ns for progress in followers) + self._max_silence_ns())

    def _schedule_lag_check(self, now_ns: int, out: Effects) -> None:
        self.shared.deadlines.set_earlier(Deadline.LAG, now_ns + self._lag_interval_ns, out)

    def _check_own_flush(self, late_ns: int, interval_ns: int, now_ns: int) -> None:
        """Record the age of a flush of this node that has not ended, to detect a slow disk.

        ``late_ns``: delay of the timer. ``interval_ns``: time between two checks. If the timer was later than this, the process
        was stopped, and the age is counted from now.
        """
        log = self.log
        if log.is_flushed or log.flushed_end_offset != self._waiting_end_offset or late_ns > interval_ns:
            self._waiting_end_offset, self._waiting_ns = -1 if log.is_flushed else log.flushed_end_offset, now_ns
        else:
            self.flushes.flush_running(self.shared.node_id, now_ns - self._waiting_ns, now_ns)

    def _transfer_from_slow_disk(self, now_ns: int, out: Effects) -> None:
        """Request a leadership transfer if flushes of this node are far slower than those of other replicas.

        Enough other replicas must be fast to commit records without this node.
        """
        state, shared = self.shared.state, self.shared
        if self.phase is not LeaderPhase.READY or now_ns < self._stays_until_ns or self.isr_change.in_flight:
            return
        members = [replica for replica in state.replicas if replica in state.isr and replica != shared.node_id]
        toward = fast_successor(
            self.flushes.fast(members, now_ns),
            self.handler.followers,
            shared.live,
            needed=len(state.replicas) // 2 + 1
            if self._commits_by_quorum
            else max(shared.metadata.min_isr, isr.MIN_REMAINING_ISR),
            now_ns=now_ns,
            max_lag_ns=nanoseconds(shared.config.max_lag_time_s),
        )
        if toward:
            self._stays_until_ns = now_ns + _TRANSFER_AGAIN_NS
            took_ms = [self.flushes.last_ns(replica) // 1_000_000 for replica in (shared.node_id, toward)]
            reason = f"a flush takes {took_ms[0]} ms here and {took_ms[1]} ms on {toward}"
            effect = TransferLeadership(
                leader_epoch=self.leader_epoch, toward=toward, reason=reason, cause=TransferCause.SLOW_DISK
            )
            out.append(effect)

    def serves(self, now_ns: int) -> bool:
        """Return whether this leader has a lease and counts as reachable by other nodes."""
        return self.shared.lease.is_current(now_ns) and not self._why_unreachable(now_ns)

    def _why_unreachable(self, now_ns: int) -> str:
        """Return the reason why this leader counts as unreachable, so that another node should lead. '': there is none.

        One silent follower may be faulty itself. Two or more silent followers show a fault of this node.
        """
        config, down_ns = self.shared.config, self.shared.data_path_down_ns
        timeout_ns = nanoseconds(config.max_leader_timeout_s)
        if down_ns is not None and now_ns - down_ns >= timeout_ns:
            return "its data path is down"
        if self._follower_silence_ns(now_ns) >= self._max_silence_ns():
            return "no live replica fetches from it"
        return ""

    def _follower_silence_ns(self, now_ns: int) -> int:
        """Return the time since the last request of any live follower, in nanoseconds. 0: fewer than two followers are live."""
        counted = self.shared.live.keys() & self.shared.state.replicas  # without learners, which may be slow
        request_times_ns = [p.last_contact_ns for replica, p in self.handler.followers.items() if replica in counted]
        return now_ns - max(request_times_ns) if len(request_times_ns) > 1 else 0

    def _may_be_disconnected(self, now_ns: int) -> bool:
        """Return whether all live followers have been silent for some time, so that this leader itself may be disconnected.

        Another node can be elected then. If the silence lasts longer, the result is False, and the leader continues alone in
        the ISR.
        """
        silent_ns, config = self._follower_silence_ns(now_ns), self.shared.config
        patience_ns = self._max_silence_ns() + nanoseconds(config.max_leader_timeout_s)
        return nanoseconds(config.max_lag_time_s) // 2 <= silent_ns < patience_ns

    def _max_silence_ns(self) -> int:
        """Return the time without any request of a follower after which the leader counts as unreachable, in nanoseconds."""
        config = self.shared.config
        quiet_s = max(config.max_idle_wait_s, config.max_lag_time_s * QUIET_WAIT)
        return nanoseconds(config.max_leader_timeout_s) + nanoseconds(quiet_s)
