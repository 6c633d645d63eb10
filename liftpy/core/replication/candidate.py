"""``CandidateRole``: a replica that promotes itself to the leader [protocol: Promotion]."""

from __future__ import annotations

from liftpy.core.replication.effects import (
    CloseSubject,
    PersistLeaderEpoch,
    ReplayLog,
    ReportPromotion,
    StartServing,
)
from liftpy.core.replication.events import Deadline
from liftpy.core.replication.fetch_handler import FetchHandler
from liftpy.core.replication.messages import EpochQuery, FetchRequest
from liftpy.core.replication.phases import LeaderPhase, RoleName
from liftpy.core.replication.role import Effects, ReplicaContext, ReplicaRole, nanoseconds

_REPORTS_PER_TIMEOUT = 4
"""Number of promotion reports that a candidate sends within ``candidate_timeout_s``."""


class CandidateRole(ReplicaRole):
    """Role of a replica that promotes itself in a proposed LeaderEpoch, because the metadata names it as candidate
    [protocol: Promotion].

    The candidate stores the epoch, waits until its log is flushed, and serves fetches in the new epoch. It replays its log,
    including the uncommitted tail, to rebuild message ids, producers and subjects. It reports success until the metadata
    names it leader. Until then it appends nothing and raises no high watermark, so a failed promotion leaves no trace.

    Phases: LEADER_LOG_REPLICATION (epoch and log become durable), LEADER_REPLAY, LEADER_INIT (reported; waits for Online).
    """

    name = RoleName.CANDIDATE

    def __init__(self, shared: ReplicaContext, now_ns: int) -> None:
        super().__init__(shared, LeaderPhase.LOG_REPLICATION)
        self.handler = FetchHandler(shared, self.leader_epoch, now_ns)
        self._persisted = False
        self._replayed_end_offset = 0  # exclusive: derived state covers the log below it

    def enter(self, now_ns: int, out: Effects) -> None:
        """Start the promotion: store the proposed LeaderEpoch durably, so that the replica ignores older metadata after a restart."""
        super().enter(now_ns, out)
        out.append(PersistLeaderEpoch(leader_epoch=self.leader_epoch))

    def leave(self, out: Effects) -> None:
        """End the role without becoming the leader: unsubscribe from the partition's subjects and stop the timers.

        The replica does not call this method when the candidate becomes the leader. The leader keeps the subscriptions and the
        followers.
        """
        super().leave(out)
        out.append(CloseSubject())

    def partition_changed(self, epoch_rose: bool, now_ns: int, out: Effects) -> None:
        """Apply changed metadata: a new set of replicas, or a restarted follower.

        ``epoch_rose``: True if the partition's Epoch is higher. A finished promotion is then reported again, with the new
        Epoch.
        """
        self.handler.partition_changed(now_ns)
        if epoch_rose and self.phase is LeaderPhase.INIT:
            self._report(now_ns, out)  # the last report named the Epoch before

    def epoch_persisted(self, leader_epoch: int, now_ns: int, out: Effects) -> None:
        if leader_epoch == self.leader_epoch:
            self._persisted = True
            self._replay_when_durable(now_ns, out)

    def log_flushed(self, now_ns: int, out: Effects) -> None:
        self._replay_when_durable(now_ns, out)

    def _replay_when_durable(self, now_ns: int, out: Effects) -> None:
        if self.phase is not LeaderPhase.LOG_REPLICATION or not self._persisted or not self.log.is_flushed:
            return
        self.to_phase(LeaderPhase.REPLAY, out)
        out.append(StartServing())
        out.append(ReplayLog(end_offset=self.log.log_end_offset))
        self._report(now_ns, out)

    def replay_progressed(self, end_offset: int, finished: bool, now_ns: int, out: Effects) -> None:
        """Record that the replay has reached ``end_offset`` (exclusive). If it has ``finished``, report this to the metadata leader."""
        if self.phase is not LeaderPhase.REPLAY:
            return
        self._replayed_end_offset = end_offset
        if finished:
            self.to_phase(LeaderPhase.INIT, out)
            self._report(now_ns, out)

    def deadline_reached(self, kind: Deadline, late_ns: int, now_ns: int, out: Effects) -> None:
        if kind is Deadline.PROMOTION:
            self._report(now_ns, out)

    def _report(self, now_ns: int, out: Effects) -> None:
        """Report the progress of the promotion to the metadata leader, so that it does not choose another candidate.

        Set a timer for the next report, because a report may be lost.
        """
        finished = self.phase is LeaderPhase.INIT
        epoch, newest_offset = self.shared.state.epoch, self.log.flushed_newest_offset
        out.append(
            ReportPromotion(
                leader_epoch=self.leader_epoch,
                epoch=epoch,
                replayed_end_offset=self._replayed_end_offset,
                newest_offset=newest_offset,
                finished=finished,
            )
        )
        interval_ns = nanoseconds(self.shared.config.candidate_timeout_s) // _REPORTS_PER_TIMEOUT
        self.shared.deadlines.set(Deadline.PROMOTION, now_ns + interval_ns, out)

    def fetch_received(self, event: FetchRequest, now_ns: int, out: Effects) -> None:
        """Answer a follower's fetch in the proposed epoch. Before the LeaderEpoch and the log are durable, reject it.

        The fetched position is recorded. It has an effect on the high watermark only when this replica leads.
        """
        if self.phase is LeaderPhase.LOG_REPLICATION:
            self.handler.record_request(event.replica, event.leader_epoch, now_ns)
            super().fetch_received(event, now_ns, out)
            return
        reason = self.handler.fetch_received(event, now_ns)
        if reason is not None:
            self.refuse(event, reason, out)
        elif self.handler.answer(event, now_ns, out):
            self.handler.send_high_watermark(event.replica, out)  # what it needs to know of a candidate is that it is there

    def epoch_query_received(self, event: EpochQuery, now_ns: int, out: Effects) -> None:
        if self.phase is LeaderPhase.LOG_REPLICATION:
            self.handler.record_request(event.replica, event.current_epoch, now_ns)
            super().epoch_query_received(event, now_ns, out)
        else:
            self.handler.epoch_query_received(event, now_ns, out)
