r"""FollowerRole: one replica that follows one leader in one LeaderEpoch [protocol: Writing; Idle followers; Truncation].

    RECONCILING <-> RECONCILE_BACKOFF          nothing is fetched and HW is not raised before the logs agree [D11]
        |  \-> TRUNCATING -> (next epoch query, or the logs agree)
        v
    FETCHING -> FLUSHING -> FETCHING ...       while there is more
        |  \-> IDLE -> FETCHING               caught up: until the idle wait ends or the leader wakes it
        |  \-> QUIET -> IDLE                  caught up for long: until the leader has more, or does not confirm the fetch
        |  \-> PACED -> FETCHING              a learner that is behind: when its node may copy more
        \-> FETCH_BACKOFF -> FETCHING         an error never leads into the idle wait
    FETCHING -> RECONCILE_BACKOFF              the leader says that the logs diverge
    FETCHING -> TRUNCATING                     the leader's log starts after this log's end [D26], or the leader deleted
                                               tombstones that this log lacks [D30]: start an empty log

``phases.FOLLOWS_ON`` has these transitions as a table. Every step is checked against it.

A fetch acknowledges the flushed records and requests the next ones. So the next fetch is sent when the flush of the
last answer is done, and one request is in flight at a time. Only the answer with its id is used [D16]. While IDLE or
QUIET, this is the id of the fetch that got an empty answer. The leader answers it again: without records when HW has
risen, and once with records.

Reconcile: the follower truncates its log to a prefix of its leader's log [D9, D11, D12].

Goal: truncate to the largest common prefix, without using HW. HW lags one round trip, so a truncation to it can drop
committed records (KIP-101).

Algorithm: the follower asks the leader for its own last epoch. The leader answers with the largest epoch <= that epoch
in its log, and the end of this epoch. Up to the smaller end, both logs have equal records of an epoch, because one
leader wrote them in order. So the follower truncates to min(that end, own end of that epoch). If the follower's last
epoch is then the answered one, the logs agree. Otherwise the follower asks again with an older epoch. One answer is not
enough after several fast elections (KIP-279). Each round ends with a smaller epoch.

Worked example: own epochs (1, 0) (3, 10), log end 14; leader's (1, 0) (2, 8) (4, 12). For epoch 3 the leader answers
(2, end 12). The own end of the largest epoch <= 2, which is 1, is 10: truncate to 10. The own last epoch is 1, not 2:
ask for 1. The answer is (1, end 8): truncate to 8. Now both logs have epoch 1 up to 8: they agree.

A compacted log is valid only with its records up to the compaction horizon. It starts empty in two cases: it must be
truncated below the horizon, or it ends below the horizon (damage, or an interrupted fetch) and the leader does not have
the records up to there [D5].
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.log.compaction_point import Horizon
from liftpy.core.log.leader_epochs import NO_EPOCH
from liftpy.core.replication.catchup_throttle import LearnerCopy
from liftpy.core.replication.combined_fetches import QUIET_WAIT
from liftpy.core.replication.effects import (
    AppendFetched,
    CombineFetch,
    DropFetched,
    EndCombinedFetch,
    ReportLeader,
    ResetLog,
    TruncateLog,
)
from liftpy.core.replication.events import (
    CombinedFetchEnded,
    Deadline,
    FetchAnswered,
    FetchPieceArrived,
    RequestFailed,
)
from liftpy.core.replication.log_offsets import LogOffsets
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, LeaderNotice, RefusalReason
from liftpy.core.replication.phases import FollowerPhase, RoleName, check_phase
from liftpy.core.replication.role import Effects, ReplicaContext, ReplicaRole, nanoseconds

_AWAITING_RECORDS = frozenset({FollowerPhase.IDLE, FollowerPhase.QUIET})
"""Phases in which the last fetch got an empty answer and waits for records."""
_AGREED = (
    frozenset({FollowerPhase.FETCHING, FollowerPhase.FLUSHING, FollowerPhase.FETCH_BACKOFF, FollowerPhase.PACED})
    | _AWAITING_RECORDS
)
"""Phases in which the log is known to be a prefix of the leader's log."""
_PHASES_KEPT = 16
_STALE_EPOCH = "stale epoch"
_SENT_BY_LEADER = frozenset({RefusalReason.STALE_INCARNATION, RefusalReason.NOT_A_REPLICA, RefusalReason.UNKNOWN})
"""Rejections that only the leader of the epoch sends. They prove that it can be reached."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Result of ``reconcile``: truncate the log to ``end_offset`` (exclusive).

    ``agreed``: True if the log is then a prefix of the leader's log, so that the follower may fetch.
    """

    end_offset: int
    agreed: bool


@dataclass(frozen=True, slots=True)
class LogReset:
    """Result of ``reconcile``: discard all records and start an empty log at ``start_offset``, the log start of the leader [D26]."""

    start_offset: int


def reconcile(log: LogOffsets, answer: EpochAnswer) -> Truncation | LogReset:
    """Return the next action of a follower that compares its log with the leader's log: truncate, or start an empty log.

    ``log``: offsets of the follower's log, which must have records. ``answer``: answer of the leader to an epoch query.
    """
    if answer.leader_epoch == NO_EPOCH:
        return LogReset(answer.log_start_offset)
    leader_end_offset = answer.last_offset + 1
    _, own_end_offset = log.epochs.end_offset_for(answer.leader_epoch, log.log_end_offset)
    end_offset = min(leader_end_offset, own_end_offset)
    is_below_horizon = end_offset < min(log.horizon.end_offset, log.log_end_offset)
    if end_offset <= log.log_start_offset or is_below_horizon:
        return LogReset(answer.log_start_offset)
    return Truncation(end_offset, log.epochs.epoch_at(end_offset - 1) == answer.leader_epoch)


def ends_below_horizon(log: LogOffsets) -> bool:
    """Return whether the log ends below its compaction horizon.

    Compaction has then removed records from the log without the log having the later records of their keys. The log is only
    valid if the leader has the missing records.
    """
    return log.log_end_offset < log.horizon.end_offset


def holds_horizon(horizon: Horizon, answer: EpochAnswer) -> bool:
    """Return whether the leader has all records below the follower's compaction ``horizon``.

    ``answer``: answer of the leader to an epoch query for the LeaderEpoch of the horizon.
    """
    return answer.leader_epoch != NO_EPOCH and answer.last_offset + 1 >= horizon.end_offset


class FollowerRole(ReplicaRole):
    """A replica that follows one leader in one LeaderEpoch."""

    name = RoleName.FOLLOWER
    phase: FollowerPhase

    def __init__(self, shared: ReplicaContext, leader: str, now_ns: int) -> None:
        super().__init__(shared, FollowerPhase.RECONCILING)
        self.leader = leader
        self._phases = [FollowerPhase.RECONCILING]
        """The last phases, including the current one."""
        self._request_id = 0
        """Id of the outstanding fetch or epoch query. 0: none."""
        self._idle_request_id = 0
        """Id of the fetch that got an empty answer and waits at the leader. It is only valid while IDLE or QUIET."""
        self._woken = False
        """True if the leader has announced new records since the last fetch was sent."""
        self._quiet_rounds = 0
        """Number of consecutive fetches without new records."""
        self._leader_contact_ns = now_ns
        """Monotonic time at which the leader was last known to be alive."""
        self._awaits_leader = False
        """True if the leader is still a candidate, and no request was sent to it."""
        self._has_leader_contact = False
        """True if a message of this leader has arrived in this epoch."""
        self._leader_high_watermark = -1
        """HW in the last answer, inclusive. -1: unknown."""
        self._bad_offset: int | None = None
        """Offset at which the last answer differed from what the leader wrote. None: it was correct."""
        self._has_next_query = False
        """While TRUNCATING: True if the logs may not agree yet."""
        self._requested_epoch = 0
        """Epoch of the outstanding epoch query."""
        self._is_horizon_query = False
        """True if the epoch query is about the compaction horizon, and not about the log end."""
        self._horizon_reached = False
        """True if the leader has all records below the compaction horizon of this log."""
        self._deletes_end = 0
        """Offset (exclusive) below which the leader had removed tombstones when this log was started empty [D30]."""
        self._copy: LearnerCopy | None = None
        """Copy of a learner, after its first fetch."""

    # ---- life ------------------------------------------------------------------------------------------------------
    def enter(self, now_ns: int, out: Effects) -> None:
        """Start to follow the leader. Compare the log with the leader's log, unless the own log is empty.

        If the node to follow is still a candidate, wait a random time first. It stores its epoch before it subscribes. In an
        election of thousands of partitions, requests sent too early would be lost.
        """
        super().enter(now_ns, out)
        self.shared.backoff.reset()
        self.shared.deadlines.set(Deadline.LEADER, now_ns + self._leader_timeout_ns(), out)
        if self.shared.state.status is PartitionStatus.CANDIDATE_FOUND:
            self._awaits_leader = True
            self._change_phase(FollowerPhase.RECONCILE_BACKOFF)
            wait_ns = self.shared.backoff.jittered_ns(nanoseconds(self.shared.config.fetch_backoff_max_s))
            self.shared.deadlines.set(Deadline.FETCH, now_ns + wait_ns, out)
        else:
            self._reconcile_or_fetch(now_ns, out)

    def partition_changed(self, epoch_rose: bool, now_ns: int, out: Effects) -> None:
        """Apply changed metadata that keeps this role. If the followed candidate now leads, compare the logs at once.

        Until then, this replica may have waited a random time, because a candidate may not be subscribed yet.
        """
        leads = self.shared.state.status is PartitionStatus.ONLINE
        if self._awaits_leader and leads and self.phase is FollowerPhase.RECONCILE_BACKOFF:
            self._reconcile_or_fetch(now_ns, out)

    def _reconcile_or_fetch(self, now_ns: int, out: Effects) -> None:
        self._awaits_leader = False
        if self.log.is_empty:
            self._send_fetch(now_ns, out)
        else:
            self._send_epoch_query(now_ns, out)

    def leave(self, out: Effects) -> None:
        super().leave(out)
        if self.phase is FollowerPhase.QUIET:
            out.append(EndCombinedFetch())
        if self._copy is not None:
            self._copy.release()

    @property
    def agrees(self) -> bool:
        """True if the log is known to be a prefix of the leader's log in this epoch."""
        return self.phase in _AGREED

    @property
    def copy_lag_records(self) -> int | None:
        """Number of committed records that a learner lacks. None: the replica is no learner, or does not know the leader's HW yet."""
        if not self.shared.copy_epoch or self._leader_high_watermark < 0:
            return None
        return max(self._leader_high_watermark - self.log.newest_offset, 0)

    def _change_phase(self, following: FollowerPhase) -> None:
        check_phase(self._phases, following)
        self._phases.append(following)
        del self._phases[:-_PHASES_KEPT]
        self.phase = following

    def _next_request(self, now_ns: int, out: Effects) -> int:
        self._request_id = max(self.shared.next_request_id, self.shared.node.request_id_base + now_ns)
        self.shared.next_request_id = self._request_id + 1
        self.shared.deadlines.set(Deadline.REQUEST, now_ns + nanoseconds(self.shared.config.fetch_timeout_s), out)
        return self._request_id

    def _request_ended(self, out: Effects) -> None:
        self._request_id = 0
        self.shared.deadlines.cancel(Deadline.REQUEST, out)

    def _retry_later(self, now_ns: int, out: Effects) -> None:
        """Set a timer to send the failed fetch or epoch query again.

        The follower never truncates without an answer of the leader [D9].
        """
        self._request_ended(out)
        if self._is_quiet:  # from now on the leader timeout of a busy partition applies
            self._quiet_rounds = 0
            self.shared.deadlines.set(Deadline.LEADER, self._leader_contact_ns + self._leader_timeout_ns(), out)
        fetching = self.phase in _AGREED
        self._change_phase(FollowerPhase.FETCH_BACKOFF if fetching else FollowerPhase.RECONCILE_BACKOFF)
        self.shared.deadlines.set(Deadline.FETCH, now_ns + self.shared.backoff.next_ns(), out)

    def data_path_restored(self, now_ns: int, out: Effects) -> None:
        """Send the open fetch or epoch query again after the retry pause, because the lost connection may have lost its answer."""
        self._leave_quiet(now_ns, now_ns, out)
        if self._request_id or self.phase is FollowerPhase.IDLE:
            self._retry_later(now_ns, out)

    # ---- reconcile -------------------------------------------------------------------------------------------------
    def _send_epoch_query(self, now_ns: int, out: Effects) -> None:
        self._change_phase(FollowerPhase.RECONCILING)
        self.shared.deadlines.cancel(Deadline.FETCH, out)
        request_id = self._next_request(now_ns, out)
        self._is_horizon_query = ends_below_horizon(self.log) and not self._horizon_reached
        self._requested_epoch = self.log.horizon.leader_epoch if self._is_horizon_query else self.log.epochs.latest_epoch
        out.append(
            EpochQuery(
                replica=self.shared.node_id,
                request_id=request_id,
                requested_epoch=self._requested_epoch,
                current_epoch=self.leader_epoch,
                stream_uid=self.shared.metadata.key.uid,
            )
        )

    def epoch_query_answered(self, event: EpochAnswer, now_ns: int, out: Effects) -> None:
        """Truncate the log to the common prefix that the leader's answer shows. If the last epochs still differ, send the next
        epoch query [D12].
        """
        if event.request_id != self._request_id or self.phase is not FollowerPhase.RECONCILING:
            return
        if event.current_epoch != self.leader_epoch or event.leader_epoch > self._requested_epoch:
            self._retry_later(now_ns, out)
            return
        self._request_ended(out)
        self._record_leader_contact(now_ns)
        if self._is_horizon_query and holds_horizon(self.log.horizon, event):
            self._horizon_reached = True
            self._send_epoch_query(now_ns, out)
            return
        action = LogReset(event.log_start_offset) if self._is_horizon_query else reconcile(self.log, event)
        if isinstance(action, LogReset):
            self._reset_log(action.start_offset, out)
            return
        if self._would_lose_committed(action.end_offset):
            if self.shared.state.status is PartitionStatus.ONLINE and not self.shared.copy_epoch:
                out.append(report_leader(self.shared, leader_lacks=True))
            self._retry_later(now_ns, out)
            return
        self._has_next_query = not action.agreed
        if action.end_offset < self.log.log_end_offset:
            self._change_phase(FollowerPhase.TRUNCATING)
            self.log.truncate(action.end_offset)
            out.append(TruncateLog(end_offset=action.end_offset))
        else:
            self._truncation_ended(now_ns, out)

    def _would_lose_committed(self, end_offset: int) -> bool:
        """Return whether a truncation to ``end_offset`` (exclusive) would remove committed records.

        If so, the leader's log has lost committed records [S15]. The follower reports this and truncates nothing [D9]. After an
        unclean election such a truncation is allowed, and the result is False.
        """
        return end_offset <= self.log.high_watermark and not self.shared.state.unclean_elected

    def _reset_log(self, start_offset: int, out: Effects, deletes_end: int = 0) -> None:
        self._has_next_query = False
        self._deletes_end = deletes_end
        self._change_phase(FollowerPhase.TRUNCATING)
        self.log.reset(start_offset, deletes_end)
        out.append(ResetLog(start_offset=start_offset, deletes_end=deletes_end))

    def log_truncated(self, now_ns: int, out: Effects) -> None:
        if self.phase is FollowerPhase.TRUNCATING:
            self._truncation_ended(now_ns, out)

    def _truncation_ended(self, now_ns: int, out: Effects) -> None:
        if self._has_next_query:
            self._send_epoch_query(now_ns, out)
        else:
            self._send_fetch(now_ns, out)

    # ---- fetch -----------------------------------------------------------------------------------------------------
    def _send_fetch(self, now_ns: int, out: Effects) -> None:
        self.shared.deadlines.cancel(Deadline.FETCH, out)
        if not self.log.is_flushed:
            self._change_phase(FollowerPhase.FLUSHING)
            return
        self._change_phase(FollowerPhase.FETCHING)
        self._woken = False
        log, most_bytes = self.log, self.shared.config.replication_max_bytes
        copy_epoch = self.shared.copy_epoch
        if copy_epoch:
            self._copy = self._copy or LearnerCopy(self.shared.node.copy_limit)
            most_bytes = self._copy.fetch_sent(now_ns, most_bytes)
        out.append(
            FetchRequest(
                replica=self.shared.node_id,
                offset=log.flushed_newest_offset,
                leader_epoch=self.leader_epoch,
                offset_epoch=0 if log.is_empty else log.epochs.latest_epoch,
                incarnation=self.shared.incarnation,
                request_id=self._next_request(now_ns, out),
                max_bytes=most_bytes,
                stream_uid=self.shared.metadata.key.uid,
                awaits_more=True,
                bad_offset=self._bad_offset,
                flush_ns=self.shared.flush_ns,
                copy_epoch=copy_epoch,
                deletes_end=self._deletes_end,
            )
        )

    def fetch_answered(self, event: FetchAnswered, now_ns: int, out: Effects) -> None:
        """Append the fetched records. If the answer has none, wait for records. An answer that does not fit the log is dropped."""
        if not self._is_awaited(event):
            self._drop(event, "stale request", out)
            return
        if self.phase in _AWAITING_RECORDS and not event.spans:
            self._process_empty_answer(event, now_ns, out)
            return
        self._leave_quiet(now_ns, now_ns, out)
        problem = self._why_not_append(event)
        if problem:
            self._drop(event, problem, out)
            if problem != _STALE_EPOCH:
                self._bad_offset = self.log.log_end_offset  # the header of the batch is wrong, so its offset is unknown
            self._retry_later(now_ns, out)
            return
        self._request_ended(out)
        self._record_leader_contact(now_ns)
        self.shared.backoff.reset()
        grown = event.high_watermark - self._leader_high_watermark if self._leader_high_watermark >= 0 else 0
        self._leader_high_watermark = event.high_watermark
        if event.spans:
            if self._copy is not None:
                record_count = event.spans[-1].last_offset + 1 - event.spans[0].base_offset
                self._copy.answered(event.size_bytes, record_count, max(grown, 0))
            self._quiet_rounds, self._bad_offset = 0, None
            self._change_phase(FollowerPhase.FLUSHING)
            self.log.append_spans(event.spans)
            out.append(
                AppendFetched(
                    token=event.token,
                    last_offset=self.log.newest_offset,
                    leader_high_watermark=event.high_watermark,
                    leader_epoch=event.leader_epoch,
                )
            )
        else:
            self._follow_high_watermark(event.high_watermark, out)
            self._idle_request_id = event.request_id
            self._wait_for_records(now_ns, out)

    def _send_fetch_in_turn(self, now_ns: int, out: Effects) -> None:
        """Send a fetch at once. A learner with a backlog first waits until the copy throttle of its node gives it a turn."""
        copy = self._copy
        if copy is None:
            self._send_fetch(now_ns, out)
            return
        copy.flushed(now_ns)
        behind = self.shared.copy_epoch and self.log.newest_offset < self._leader_high_watermark
        begins_ns = copy.turn(now_ns) if behind else now_ns
        if begins_ns <= now_ns:
            self._send_fetch(now_ns, out)
            return
        self._change_phase(FollowerPhase.PACED)
        self.shared.deadlines.set(Deadline.FETCH, begins_ns, out)

    def fetch_piece_arrived(self, event: FetchPieceArrived, now_ns: int, out: Effects) -> None:
        answers_waiting_fetch = self.phase in _AWAITING_RECORDS and event.request_id == self._idle_request_id
        if not answers_waiting_fetch and (event.request_id != self._request_id or self.phase is not FollowerPhase.FETCHING):
            return
        self._leave_quiet(now_ns, now_ns, out)
        if event.leader_epoch != self.leader_epoch:
            self._retry_later(now_ns, out)
            return
        self._record_leader_contact(now_ns)
        if not event.has_room:
            self._retry_later(now_ns, out)
            return
        self._request_ended(out)
        self.shared.backoff.reset()
        self._quiet_rounds = 0
        self._send_fetch(now_ns, out)

    def _is_awaited(self, event: FetchAnswered) -> bool:
        """Return whether the answer belongs to this replica's last fetch [D16].

        A fetch may be answered again: after an empty answer, the leader sends records or a higher HW to the same fetch.
        """
        if self.phase in _AWAITING_RECORDS:
            return event.request_id == self._idle_request_id
        return event.request_id == self._request_id and self.phase is FollowerPhase.FETCHING

    def _process_empty_answer(self, event: FetchAnswered, now_ns: int, out: Effects) -> None:
        """Process a second empty answer to the waiting fetch: raise the HW if the answer has a higher one. The fetch still waits."""
        if event.leader_epoch == self.leader_epoch:
            self._record_leader_contact(now_ns)
            self._follow_high_watermark(event.high_watermark, out)

    def _drop(self, event: FetchAnswered, why: str, out: Effects) -> None:
        if event.spans:
            out.append(DropFetched(token=event.token, why=why))

    def _why_not_append(self, event: FetchAnswered) -> str:
        """Return the reason why the records of a fetch answer must not be appended. '': they may be appended [D14, D15, D16]."""
        if event.leader_epoch != self.leader_epoch:
            return _STALE_EPOCH
        next_offset, epoch = self.log.log_end_offset, self.log.epochs.latest_epoch
        for span in event.spans:
            if span.base_offset != next_offset or span.last_offset < span.base_offset:
                return "gap"
            if not epoch <= span.leader_epoch <= self.leader_epoch:
                return "epoch out of order"
            next_offset, epoch = span.last_offset + 1, span.leader_epoch
        return ""

    def log_flushed(self, now_ns: int, out: Effects) -> None:
        if self.phase is FollowerPhase.FLUSHING and self.log.is_flushed:
            self._follow_high_watermark(self._leader_high_watermark, out)
            self._send_fetch_in_turn(now_ns, out)

    def _follow_high_watermark(self, leader_high_watermark: int, out: Effects) -> None:
        """Raise this replica's HW to the leader's HW, but at most to the newest flushed offset of this replica [D7]."""
        self.shared.raise_high_watermark(min(leader_high_watermark, self.log.flushed_newest_offset), out)

    def _wait_for_records(self, now_ns: int, out: Effects) -> None:
        if self._woken:
            self._send_fetch(now_ns, out)
            return
        self._quiet_rounds += 1
        if self._is_quiet and self._may_wait_quietly:
            self._change_phase(FollowerPhase.QUIET)
            self.shared.deadlines.cancel(Deadline.FETCH, out)
            self.shared.deadlines.cancel(Deadline.LEADER, out)  # the combined fetches of the node detect a silent leader
            out.append(CombineFetch(request_id=self._idle_request_id, leader=self.leader, leader_epoch=self.leader_epoch))
            return
        self._change_phase(FollowerPhase.IDLE)
        self.shared.deadlines.set(Deadline.FETCH, now_ns + self._idle_wait_ns(), out)

    @property
    def _is_quiet(self) -> bool:
        return self._quiet_rounds >= self.shared.config.idle_polls_before_quiet

    @property
    def _may_wait_quietly(self) -> bool:
        """True if this follower's fetch may be combined with those of other partitions.

        That is so if it is in the ISR and all its records are known to be committed.
        """
        state = self.shared.state
        all_committed = self.log.high_watermark == self.log.newest_offset
        return all_committed and state.status is PartitionStatus.ONLINE and self.shared.node_id in state.isr

    def _idle_wait_ns(self) -> int:
        """Return the time that a follower with all records waits before its next fetch, in nanoseconds.

        It is longer for a partition without new records, because a node may follow thousands of them. It is short enough that
        one lost fetch does not remove the follower from the ISR.
        """
        config = self.shared.config
        if not self._is_quiet:
            return nanoseconds(config.max_idle_wait_s)
        return nanoseconds(max(config.max_idle_wait_s, config.max_lag_time_s * QUIET_WAIT))

    def _leave_quiet(self, receive_ns: int, now_ns: int, out: Effects) -> None:
        """End the combined fetches of this partition: change from phase QUIET to IDLE.

        ``receive_ns``: monotonic time of the last message from the leader. The leader is reported as silent only after a further
        timeout.
        """
        if self.phase is not FollowerPhase.QUIET:
            return
        out.append(EndCombinedFetch())
        self._change_phase(FollowerPhase.IDLE)
        self._quiet_rounds, self._leader_contact_ns = 0, receive_ns
        timeout_ns = self._leader_timeout_ns()
        self.shared.deadlines.set(Deadline.LEADER, max(receive_ns + timeout_ns, now_ns + timeout_ns // 2), out)

    def combined_fetch_ended(self, event: CombinedFetchEnded, now_ns: int, out: Effects) -> None:
        """Send own fetches again, because the partition is no longer part of the combined fetches of this node.

        Fetch at once if ``event.last_answer_ns`` is set, because the leader's node answered. Otherwise fetch after the idle wait.
        """
        if self.phase is not FollowerPhase.QUIET:
            return
        if event.last_answer_ns is not None:
            self._leave_quiet(event.last_answer_ns, now_ns, out)
            self._send_fetch(now_ns, out)
            return
        rounds = self._quiet_rounds
        self._leave_quiet(now_ns, now_ns, out)
        self._quiet_rounds = rounds
        self.shared.deadlines.set(Deadline.FETCH, now_ns + self._idle_wait_ns(), out)
        self.shared.deadlines.set(Deadline.LEADER, now_ns + self._leader_timeout_ns(), out)

    def notification_received(self, now_ns: int, out: Effects) -> None:
        """Send a fetch, because the leader notified this replica about new records.

        If a fetch is open, send the next one after its answer.
        """
        self._woken = True
        self._leave_quiet(now_ns, now_ns, out)
        self._quiet_rounds = 0
        if self.phase is FollowerPhase.IDLE:
            self._send_fetch(now_ns, out)

    # ---- failures and refusals -------------------------------------------------------------------------------------
    def request_failed(self, event: RequestFailed, now_ns: int, out: Effects) -> None:
        """Wait, then send the failed fetch or epoch query again.

        If the answer was damaged, the next fetch reports the damaged offset.
        """
        if event.request_id == self._request_id and self._request_id:
            if event.bad_offset is not None:
                self._bad_offset = max(event.bad_offset, self.log.log_end_offset)
            self._retry_later(now_ns, out)

    def fetch_refused(self, event: FetchRefusal, now_ns: int, out: Effects) -> None:
        """Handle a rejected fetch: compare the logs if they diverge, start an empty log if needed, or retry later.

        A leader that rejects a request id answers every copy of the request, including copies that another sender made. An old
        leader that hears no controller answers the requests to the new leader, too. In both cases the right answer may still
        come, so the replica continues to wait [D16].
        """
        if event.request_id != self._request_id or not self._request_id or event.reason is RefusalReason.UNKNOWN:
            return
        if event.leader_epoch < self.leader_epoch and self._has_leader_contact:
            return
        is_current = event.leader_epoch == self.leader_epoch
        if is_current and event.reason in _SENT_BY_LEADER:
            self._record_leader_contact(now_ns)
        fetching = is_current and self.phase is FollowerPhase.FETCHING
        if fetching and event.reason is RefusalReason.DIVERGED:
            self._record_leader_contact(now_ns)
            self._change_phase(FollowerPhase.RECONCILE_BACKOFF)
            self._retry_later(now_ns, out)
        elif fetching and self._requires_reset(event):
            self._record_leader_contact(now_ns)
            self._request_ended(out)
            self._reset_log(event.log_start_offset, out, event.deletes_end)
        else:
            self._retry_later(now_ns, out)

    def _requires_reset(self, event: FetchRefusal) -> bool:
        """Return whether the rejection of a fetch means that this log must be discarded.

        The log then ends before the leader's log start [D26], or lacks tombstones that the leader has removed [D30].
        """
        if event.reason is RefusalReason.BEFORE_LOG_START:
            return event.log_start_offset >= self.log.log_end_offset
        return event.reason is RefusalReason.DELETES_GONE and event.deletes_end > self._deletes_end

    # ---- the leader's health ---------------------------------------------------------------------------------------
    def notice_received(self, event: LeaderNotice, now_ns: int, out: Effects) -> None:
        """Send a fetch, because the leader sent a notice (NewLeadershipTerm or CommitPosition).

        Any client may send a notice. So the log and the HW do not change before the leader answers the fetch.
        """
        if event.leader_epoch != self.leader_epoch or event.leader != self.leader:
            return
        first_sign = not self._has_leader_contact
        self._record_leader_contact(now_ns)
        if first_sign:
            self._resend_request(now_ns, out)
        if self.agrees and event.high_watermark > self.log.high_watermark:
            self.notification_received(now_ns, out)

    def _resend_request(self, now_ns: int, out: Effects) -> None:
        """Send the open fetch or epoch query again, once per leadership, because the new leader is ready to answer.

        The earlier request may have reached only the old leader.
        """
        if self.phase in (FollowerPhase.RECONCILING, FollowerPhase.RECONCILE_BACKOFF):
            self._reconcile_or_fetch(now_ns, out)
        elif self.phase in (FollowerPhase.FETCHING, FollowerPhase.FETCH_BACKOFF):
            self._send_fetch(now_ns, out)

    def _record_leader_contact(self, now_ns: int) -> None:
        self._leader_contact_ns, self._has_leader_contact = now_ns, True

    def _leader_timeout_ns(self) -> int:
        """Return the time without a message of the leader after which this replica reports the leader, in nanoseconds.

        A longer idle wait increases it.
        """
        config = self.shared.config
        return nanoseconds(config.max_leader_timeout_s) + self._idle_wait_ns() - nanoseconds(config.max_idle_wait_s)

    def deadline_reached(self, kind: Deadline, late_ns: int, now_ns: int, out: Effects) -> None:
        if kind is Deadline.REQUEST:
            self._retry_later(now_ns, out)
        elif kind is Deadline.LEADER:
            self._check_leader(late_ns, now_ns, out)
        elif kind is Deadline.FETCH:
            if self.phase is FollowerPhase.RECONCILE_BACKOFF:
                self._reconcile_or_fetch(now_ns, out)
            elif self.phase in (FollowerPhase.IDLE, FollowerPhase.FETCH_BACKOFF, FollowerPhase.PACED):
                self._send_fetch(now_ns, out)

    def _check_leader(self, late_ns: int, now_ns: int, out: Effects) -> None:
        """Report the leader to the metadata group if it was silent for too long.

        ``late_ns``: delay of the timer. Time in which this process was stopped is not counted.
        """
        timeout_ns = self._leader_timeout_ns()
        if late_ns > timeout_ns // 4:
            self._leader_contact_ns = now_ns
        silent_ns = now_ns - self._leader_contact_ns
        if silent_ns < timeout_ns:
            self.shared.deadlines.set(Deadline.LEADER, self._leader_contact_ns + timeout_ns, out)
            return
        state = self.shared.state
        may_witness = self.shared.node_id in (state.isr if len(state.isr) > 1 else state.replicas)
        if state.status is PartitionStatus.ONLINE and may_witness:
            out.append(report_leader(self.shared))
        self.shared.deadlines.set(Deadline.LEADER, now_ns + timeout_ns // 2, out)


def report_leader(shared: ReplicaContext, leader_lacks: bool = False) -> ReportLeader:
    """Return a report for the metadata group about the leader in the current metadata [C9]. It has the position of this log.

    ``leader_lacks``: True if the leader lacks a record that this replica knows to be committed.
    """
    state, log = shared.state, shared.log
    return ReportLeader(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        last_epoch=log.epochs.position_epoch,
        newest_offset=log.flushed_newest_offset,
        high_watermark=log.high_watermark,
        leader_lacks=leader_lacks,
    )
