"""``FetchHandler``: answers the fetches of followers, for a leader or a candidate [D11, D16-D18, D27].

It checks each request first. A request changes nothing if it names another stream, epoch or incarnation, if it is
outdated, or if its (offset, epoch) is not on this log.

Followers receive appended records before they are flushed on the leader, so that both flushes run in parallel. The high
watermark counts only flushed positions, including the leader's own.

The fetch of a follower at the leader's log end waits. When there are more records, the leader sends them if the
follower sent ``awaits_more``. Otherwise it sends a notification once, and the follower fetches again.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.core.log.leader_epochs import NO_EPOCH
from liftpy.core.replication.effects import (
    AnswerParkedFetch,
    NotifyReplica,
    ParkFetch,
    RecheckLog,
    SendFetchResponse,
    SendHighWatermark,
)
from liftpy.core.replication.events import CombinedFetchReceived
from liftpy.core.replication.isr import FollowerProgress
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, RefusalReason
from liftpy.core.replication.role import Effects, ReplicaContext


@dataclass(frozen=True, slots=True)
class ParkedFetch:
    """Waiting fetch of a follower that has all records below ``end_offset`` (exclusive)."""

    replica: str
    end_offset: int
    max_bytes: int
    """Maximum size of the later answer with records, in bytes. 0: send a notification instead."""


class FetchHandler:
    """Answers the fetches of followers in one LeaderEpoch, and records their positions. ``shared``: log and metadata of the replica."""

    __slots__ = ("_leader_epoch", "_log", "_shared", "followers", "parked")

    def __init__(self, shared: ReplicaContext, leader_epoch: int, now_ns: int) -> None:
        self._shared = shared
        self._log = shared.log
        self._leader_epoch = leader_epoch
        self.followers: dict[str, FollowerProgress] = {}
        """Node id -> progress of each other replica and of the learner. Positions are those of this LeaderEpoch [D6]."""
        self.parked: dict[str, ParkedFetch] = {}
        """Node id -> fetch that waits for new records."""
        self.partition_changed(now_ns)

    def partition_changed(self, now_ns: int) -> None:
        """Apply changed metadata: add and remove followers. Forget the positions of restarted followers [C12]."""
        state, live = self._shared.state, self._shared.live
        others = [replica for replica in state.holders if replica != self._shared.node_id]
        for replica in [replica for replica in self.followers if replica not in others]:
            del self.followers[replica]
            self.parked.pop(replica, None)
        for replica in others:
            progress = self.followers.setdefault(replica, FollowerProgress(caught_up_ns=now_ns, last_contact_ns=now_ns))
            progress.set_live(live.get(replica, 0), now_ns)
            progress.set_copy_epoch(state.copy_of(replica))
            progress.set_in_isr(replica in state.isr)

    def fetch_received(self, event: FetchRequest, now_ns: int) -> RefusalReason | None:
        """Check a follower's fetch. If it is valid, record its offset as the follower's position.

        Return the reason for a rejection, or None if the fetch is valid. The caller sends the rejection. For a valid fetch, the
        caller updates the HW and then calls ``answer``.
        """
        self.record_request(event.replica, event.leader_epoch, now_ns)
        reason = self._refusal(event)
        if reason is not None:
            return reason
        progress = self.followers[event.replica]
        live = self._shared.live.get(event.replica, 0)
        copy_epoch = self._shared.state.copy_of(event.replica)
        if live == 0:
            self.parked.pop(event.replica, None)
        if live == 0 or event.incarnation != live or (copy_epoch and event.copy_epoch != copy_epoch):
            return None  # fenced, a peer without incarnations, or a learner's earlier copy: it may read, it does not count
        if not progress.accepts_request_id(event.request_id, now_ns):
            return RefusalReason.UNKNOWN
        progress.fetched(event.offset, event.request_id, self._log.log_end_offset, now_ns)
        if event.offset + 1 >= self._log.log_end_offset:
            max_bytes = self._max_bytes(event) if event.awaits_more else 0
            self.parked[event.replica] = ParkedFetch(event.replica, event.offset + 1, max_bytes)
        else:
            self.parked.pop(event.replica, None)
        return None

    def still_waits(self, event: CombinedFetchReceived, now_ns: int) -> bool:
        """Return whether the waiting fetch that a follower asks about is still valid. If it is, record it as a new fetch.

        It must be the last valid fetch of a live ISR member in this LeaderEpoch, be at the log end, and have a reply subject.
        """
        progress = self.followers.get(event.replica)
        if (
            progress is None
            or not event.request_id
            or event.request_id != progress.last_request_id
            or event.leader_epoch != self._leader_epoch
            or not progress.live
            or event.incarnation != progress.incarnation
            or progress.position is None
            or progress.position + 1 != self._log.log_end_offset
            or event.replica not in self._shared.metadata.isr
            or not self.awaits_answer(event.replica)
        ):
            return False
        progress.still_waits(now_ns)
        return True

    def record_request(self, replica: str, leader_epoch: int, now_ns: int) -> None:
        """Record at ``now_ns`` that ``replica`` sent a request in ``leader_epoch``, even if the request is rejected."""
        progress = self.followers.get(replica)
        if progress is not None:
            progress.last_contact_ns = now_ns
        if leader_epoch == self._leader_epoch:
            self._shared.earlier_leaders.record_fetch(replica)

    def newest_offset_of(self, replica: str) -> int | None:
        """Return the newest offset (inclusive) that ``replica`` has flushed, according to its last valid fetch.

        Return None if ``replica`` has not fetched in this LeaderEpoch.
        """
        progress = self.followers.get(replica)
        return progress.position if progress is not None else None

    @property
    def has_all_successors(self) -> bool:
        """True if the current process of every electable replica has fetched in this LeaderEpoch."""
        electable = self._shared.metadata.electable_replicas
        return all(progress.position is not None for replica, progress in self.followers.items() if replica in electable)

    def may_send_acks(self, now_ns: int) -> bool:
        """Return whether no earlier leader can send acks at ``now_ns``, so that this leader may send them."""
        return self._shared.earlier_leaders.is_over(now_ns)

    def answer(self, event: FetchRequest, now_ns: int, out: Effects) -> bool:
        """Answer a valid fetch with the records after ``event.offset`` and the current HW.

        If there are no records and the fetch can be answered later, keep it. Return True if the fetch was kept. If the follower
        reports damage, first request a check of the log.
        """
        if event.bad_offset is not None and event.incarnation == self._shared.live.get(event.replica, 0):
            out.append(RecheckLog(offset=event.bad_offset, replica=event.replica))
        progress = self.followers[event.replica]
        counts = event.incarnation == progress.incarnation and event.request_id == progress.last_request_id
        if counts and self.awaits_answer(event.replica):
            progress.mark_stale(now_ns)
            out.append(ParkFetch(token=event.token, replica=event.replica))
            return True
        if counts or not self.awaits_answer(event.replica):
            progress.record_sent_high_watermark(self._log.high_watermark)
        out.append(
            SendFetchResponse(
                token=event.token,
                from_offset=event.offset + 1,
                max_bytes=self._max_bytes(event),
                leader_epoch=self._leader_epoch,
            )
        )
        return False

    def has_stale_followers(self, now_ns: int) -> bool:
        """Return whether a live follower with a waiting fetch has not received the current HW.

        Record ``now_ns`` for each such follower as the time since which it lacks the HW.
        """
        high_watermark, has_stale = self._log.high_watermark, False
        for replica, progress in self.followers.items():
            lacks = progress.sent_high_watermark < high_watermark and replica in self.parked
            if lacks and replica in self._shared.live:
                progress.mark_stale(now_ns)
                has_stale = True
        return has_stale

    def send_high_watermark_to_stale(self, before_ns: int, out: Effects) -> tuple[str, ...]:
        """Send the current HW to the live followers that have lacked it since ``before_ns`` or longer.

        Return the live followers that need a notice instead, because they have no open fetch or have not fetched in this
        LeaderEpoch. The caller sends the notices.
        """
        stale_replicas = []
        for replica, progress in self.followers.items():
            if replica not in self._shared.live:
                continue
            if progress.position is not None and not (self._is_stale(replica) and progress.notice_since_ns <= before_ns):
                continue
            if progress.position is not None and self.awaits_answer(replica):
                self.send_high_watermark(replica, out)
            else:
                progress.record_sent_high_watermark(self._log.high_watermark)
                stale_replicas.append(replica)
        return tuple(stale_replicas)

    def _is_stale(self, replica: str) -> bool:
        return self.followers[replica].notice_since_ns > 0 and replica in self.parked

    def stale_since_ns(self) -> int | None:
        """Return the monotonic time since which a live follower lacks the current HW. None: all live followers have it."""
        owed = (
            progress.notice_since_ns
            for replica, progress in self.followers.items()
            if self._is_stale(replica) and progress.live
        )
        return min(owed, default=None)

    def send_high_watermark(self, replica: str, out: Effects) -> None:
        """Answer the waiting fetch of ``replica`` with only the HW. It then still waits for records."""
        self.followers[replica].record_sent_high_watermark(self._log.high_watermark)
        out.append(SendHighWatermark(replica=replica, leader_epoch=self._leader_epoch))

    def awaits_answer(self, replica: str) -> bool:
        """Return whether ``replica`` has an open fetch, which waits for records and can be answered."""
        parked = self.parked.get(replica)
        return parked is not None and parked.max_bytes > 0

    def _max_bytes(self, event: FetchRequest) -> int:
        maximum = self._shared.config.replication_max_bytes
        return min(event.max_bytes, maximum) if event.max_bytes > 0 else maximum

    def appended(self, out: Effects) -> None:
        """Send the appended records to all followers with a waiting fetch.

        A follower that did not send ``awaits_more`` gets a notification instead, and then fetches.
        """
        if not self.parked:
            return
        end_offset = self._log.log_end_offset
        for parked in sorted((one for one in self.parked.values() if one.end_offset < end_offset), key=lambda one: one.replica):
            del self.parked[parked.replica]
            if parked.max_bytes:
                self.followers[parked.replica].record_sent_high_watermark(self._log.high_watermark)
                out.append(
                    AnswerParkedFetch(
                        replica=parked.replica,
                        from_offset=parked.end_offset,
                        max_bytes=parked.max_bytes,
                        leader_epoch=self._leader_epoch,
                    )
                )
            else:
                out.append(NotifyReplica(replica=parked.replica))

    def epoch_query_received(self, event: EpochQuery, now_ns: int, out: Effects) -> None:
        """Answer a follower's epoch query: the largest epoch in this log that is not above the requested one, and its last offset
        [D11].

        A query for another stream or LeaderEpoch is rejected.
        """
        log = self._log
        self.record_request(event.replica, event.current_epoch, now_ns)
        reason: RefusalReason | None = None
        if event.stream_uid and event.stream_uid != self._shared.metadata.key.uid:
            reason = RefusalReason.WRONG_STREAM
        elif event.current_epoch != self._leader_epoch:
            reason = RefusalReason.STALE_EPOCH
        if reason is not None:
            out.append(
                FetchRefusal(
                    token=event.token,
                    request_id=event.request_id,
                    reason=reason,
                    leader_epoch=self._leader_epoch,
                    log_start_offset=log.log_start_offset,
                )
            )
            return
        epoch, end_offset = log.epochs.end_offset_for(event.requested_epoch, log.log_end_offset)
        last_offset = end_offset - 1 if epoch != NO_EPOCH else -1
        out.append(
            EpochAnswer(
                token=event.token,
                request_id=event.request_id,
                leader_epoch=epoch,
                last_offset=last_offset,
                current_epoch=self._leader_epoch,
                log_start_offset=log.log_start_offset,
            )
        )

    def positions(self) -> dict[str, int | None]:
        """Return node id -> newest flushed offset (inclusive), for the followers and this node. None: unknown in this LeaderEpoch."""
        positions = {replica: progress.position for replica, progress in self.followers.items()}
        positions[self._shared.node_id] = self._log.flushed_newest_offset
        return positions

    def _refusal(self, event: FetchRequest) -> RefusalReason | None:
        if event.stream_uid and event.stream_uid != self._shared.metadata.key.uid:
            return RefusalReason.WRONG_STREAM
        if event.replica not in self.followers:
            return RefusalReason.NOT_A_REPLICA
        if event.leader_epoch != self._leader_epoch:
            return RefusalReason.STALE_EPOCH
        live = self._shared.live.get(event.replica)
        if live is not None and event.incarnation not in (live, 0):
            return RefusalReason.STALE_INCARNATION
        reason = self._position_refusal(event.offset, event.offset_epoch)
        return RefusalReason.DELETES_GONE if reason is None and self._lacks_deletes(event) else reason

    def _lacks_deletes(self, event: FetchRequest) -> bool:
        """Return whether compaction has removed tombstones from this log that the follower has not fetched [D30].

        The follower may then still have records that the tombstones deleted. The result is False for ISR members, because they
        have all committed records.
        """
        if event.deletes_end is None or event.replica in self._shared.metadata.isr:
            return False
        return self._log.horizon.deletes_end > max(event.offset + 1, event.deletes_end)

    def _position_refusal(self, offset: int, offset_epoch: int) -> RefusalReason | None:
        """Return the reason for a rejection if this log has no record with ``offset`` and ``offset_epoch``. None: it has.

        ``offset_epoch`` 0: the follower's log is empty and begins after ``offset``. Then only the offset is checked.
        """
        log = self._log
        if offset + 1 < log.log_start_offset:
            return RefusalReason.BEFORE_LOG_START
        if offset >= log.log_end_offset:
            return RefusalReason.DIVERGED
        if offset_epoch == NO_EPOCH:
            return None
        if offset < log.log_start_offset:
            return RefusalReason.BEFORE_LOG_START  # its record is gone here, so that it can't be compared
        return None if log.epochs.epoch_at(offset) == offset_epoch else RefusalReason.DIVERGED
