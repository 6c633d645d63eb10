"""Mutants: the classical bugs of replication, brought back one at a time. A checker must kill each.

A mutant replaces a rule of the shipped code for the length of a run. Its name is the mistake; ``cites`` is where it was made before.
A safety net often hangs under a safety net here (a fetch that diverges is refused even if the follower did not cut): where one rule is
covered by another, the mutant takes both away, as the system had neither where the bug comes from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.log.leader_epochs import EpochCache
from liftpy.core.log.log import Log
from liftpy.core.metadata.controller import elections, nodes
from liftpy.core.metadata.controller import nodes as leadership
from liftpy.core.metadata.controller import partitions as isr
from liftpy.core.metadata.node_identity import ProcessRelation
from liftpy.core.metadata.sessions import AnsweredHeartbeats, LeaseGrant
from liftpy.core.partition.reads import Reads
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.replication import effects as do
from liftpy.core.replication import follower
from liftpy.core.replication import isr as commit
from liftpy.core.replication import isr as lag
from liftpy.core.replication.events import LeaseChanged
from liftpy.core.replication.fetch_handler import FetchHandler
from liftpy.core.replication.follower import FollowerRole, Truncation
from liftpy.core.replication.isr import FollowerProgress, IsrChange
from liftpy.core.replication.leader import LeaderRole
from liftpy.core.replication.lease import Lease, ReplicaLease
from liftpy.core.replication.log_offsets import LogOffsets
from liftpy.core.replication.messages import EpochAnswer, RefusalReason
from liftpy.core.replication.phases import FollowerPhase, LeaderPhase
from liftpy.core.replication.replica import Replica
from liftpy.core.replication.role import ReplicaContext
from liftpy.core.wire.rejections import RejectReason
from tests.simulation.mutants import moving, unseen
from tests.simulation.mutants.bug import Mutant, Patches, method


def _go(follower: FollowerRole, phase: FollowerPhase) -> None:
    """Without a look at the table of phases, which would notice before the rule that is broken."""
    follower._phases.append(phase)
    follower.phase = phase


# ---- truncation ------------------------------------------------------------------------------------------------------
def truncate_by_high_watermark() -> Patches:
    def ask(self: FollowerRole, now_ns: int, out: list) -> None:
        end_offset = self.log.high_watermark + 1
        self._has_next_query = False
        _go(self, FollowerPhase.TRUNCATING)
        if end_offset < self.log.log_end_offset:
            self.log.truncate(end_offset)
            out.append(do.TruncateLog(end_offset=end_offset))
        else:
            self._truncation_ended(now_ns, out)

    return [method(FollowerRole, "_send_epoch_query", ask)]


def truncate_by_high_watermark_when_nobody_answers() -> Patches:
    failed = FollowerRole._retry_later

    def guess(self: FollowerRole, now_ns: int, out: list) -> None:
        end_offset = self.log.high_watermark + 1
        if self.phase is FollowerPhase.RECONCILING and end_offset < self.log.log_end_offset:
            self._request_ended(out)
            self._has_next_query = False
            _go(self, FollowerPhase.TRUNCATING)
            self.log.truncate(end_offset)
            out.append(do.TruncateLog(end_offset=end_offset))
        else:
            failed(self, now_ns, out)

    return [method(FollowerRole, "_retry_later", guess)]


def single_shot_epoch_query() -> Patches:
    real = follower.reconcile

    def once(log: LogOffsets, answer: Any) -> Any:
        cut = real(log, answer)
        return Truncation(cut.end_offset, True) if isinstance(cut, Truncation) else cut

    return [method(follower, "reconcile", once)]


def minus_one_sentinel() -> Patches:
    """A leader without the asked epoch answers its own log end, as one that takes -1 for 'no later epoch' does."""

    def answer(self: FetchHandler, event: Any, now_ns: int, out: list) -> None:
        epoch, end_offset = self._log.epochs.end_offset_for(event.requested_epoch, self._log.log_end_offset)
        if epoch == 0:
            epoch, end_offset = event.requested_epoch, self._log.log_end_offset
        out.append(
            EpochAnswer(
                token=event.token,
                leader_epoch=epoch,
                last_offset=end_offset - 1,
                current_epoch=self._leader_epoch,
                log_start_offset=self._log.log_start_offset,
            )
        )

    return [method(FetchHandler, "epoch_query_received", answer)]


def off_by_one_epoch_start() -> Patches:
    def append(self: LogOffsets, record_count: int, leader_epoch: int) -> int:
        base_offset = self.log_end_offset
        self.epochs.assign(leader_epoch, max(base_offset - 1, 0))
        self.log_end_offset += record_count
        return base_offset

    return [method(LogOffsets, "append", append)]


def epoch_cache_not_cut() -> Patches:
    return [method(EpochCache, "truncate", lambda self, end_offset: None)]


def no_reconciliation() -> Patches:
    return [method(FollowerRole, "_send_epoch_query", FollowerRole._send_fetch)]


def offset_query_unfenced() -> Patches:
    real = FetchHandler.epoch_query_received

    def answer(self: FetchHandler, event: Any, now_ns: int, out: list) -> None:
        mine: list = []
        real(self, replace(event, current_epoch=self._leader_epoch), now_ns, mine)
        out += [replace(e, current_epoch=event.current_epoch) if isinstance(e, EpochAnswer) else e for e in mine]

    return [method(FetchHandler, "epoch_query_received", answer), method(LeaderRole, "leave", lambda self, out: None)]


# ---- positions and HW --------------------------------------------------------------------------------------------------
def positions_only_grow() -> Patches:
    def same(self: FollowerProgress, incarnation: int) -> None:
        if incarnation != self.incarnation:
            self.incarnation, self.last_request_id = incarnation, 0

    fetched = FollowerProgress.fetched

    def grow(self: FollowerProgress, offset: int, *rest: Any) -> None:
        before = self.position
        fetched(self, offset, *rest)
        self.position = offset if before is None else max(before, offset)

    return [method(FollowerProgress, "set_incarnation", same), method(FollowerProgress, "fetched", grow)]


def no_maximal_isr() -> Patches:
    return [method(IsrChange, "maximal", lambda self, isr: isr)]


def unknown_outcome_is_a_refusal() -> Patches:
    return [method(IsrChange, "record_unknown_result", lambda self, retry_at_ns: IsrChange.record_rejection(self, retry_at_ns))]


def notice_raises_high_watermark() -> Patches:
    real = FollowerRole.notice_received

    def believe(self: FollowerRole, event: Any, now_ns: int, out: list) -> None:
        real(self, event, now_ns, out)
        if self.agrees and (event.leader, event.leader_epoch) == (self.leader, self.leader_epoch):
            self._follow_high_watermark(event.high_watermark, out)

    return [method(FollowerRole, "notice_received", believe)]


def notice_moves_the_log_start() -> Patches:
    real = FollowerRole.notice_received

    def obey(self: FollowerRole, event: Any, now_ns: int, out: list) -> None:
        real(self, event, now_ns, out)
        if event.leader_epoch == self.leader_epoch and event.log_start_offset > self.log.log_start_offset:
            self._request_ended(out)
            self._reset_log(event.log_start_offset, out)

    return [method(FollowerRole, "notice_received", obey)]


def high_watermark_beyond_the_log() -> Patches:
    def learn(self: FollowerRole, leader_high_watermark: int, out: list) -> None:
        if leader_high_watermark > self.log.high_watermark:
            self.log.high_watermark = leader_high_watermark
            out.append(do.RaiseHighWatermark(high_watermark=leader_high_watermark))

    return [method(FollowerRole, "_follow_high_watermark", learn)]


def high_watermark_before_the_cut() -> Patches:
    return [method(FollowerRole, "agrees", property(lambda self: True)), *notice_raises_high_watermark()]


def fetches_of_other_epochs_count() -> Patches:
    real = FetchHandler._refusal

    def lax(self: FetchHandler, event: Any) -> Any:
        return real(self, replace(event, leader_epoch=self._leader_epoch))

    return [method(FetchHandler, "_refusal", lax)]


def diverging_fetch_counts() -> Patches:
    return [method(FetchHandler, "_position_refusal", lambda self, offset, epoch: None), *no_reconciliation()]


def overtaken_fetch_counts() -> Patches:
    fetched = FollowerProgress.fetched
    return [method(FollowerProgress, "fetched", lambda self, offset, request_id, *rest: fetched(self, offset, 0, *rest))]


def min_isr_not_looked_at() -> Patches:
    by_isr, by_quorum = commit.isr_high_watermark, commit.quorum_high_watermark
    return [
        method(commit, "isr_high_watermark", lambda *a: by_isr(*a[:3], 1, a[4])),
        method(commit, "quorum_high_watermark", lambda *a: by_quorum(*a[:3], 1, *a[4:])),
    ]


def quorum_commits_older_epochs() -> Patches:
    real = commit.quorum_high_watermark
    return [method(commit, "quorum_high_watermark", lambda *a: real(*a[:4], -1, a[5]))]


def ack_before_flush_on_leader() -> Patches:
    return [method(LogOffsets, "flushed_newest_offset", property(lambda self: self.newest_offset)),
            method(LeaderRole, "publishes_received", _append_and_advance)]  # fmt: skip


_publishes_received = LeaderRole.publishes_received


def _append_and_advance(self: LeaderRole, event: Any, now_ns: int, out: list) -> None:
    _publishes_received(self, event, now_ns, out)
    self._advance_high_watermark(now_ns, out)


def ack_before_flush_on_follower() -> Patches:
    real = FollowerRole.fetch_answered

    def at_once(self: FollowerRole, event: Any, now_ns: int, out: list) -> None:
        real(self, event, now_ns, out)
        if self.phase is FollowerPhase.FLUSHING:
            self.log.flushed_end_offset = self.log.log_end_offset
            self._send_fetch(now_ns, out)

    return [method(FollowerRole, "fetch_answered", at_once)]


# ---- answers -----------------------------------------------------------------------------------------------------------
def stale_response_accepted() -> Patches:
    real = FollowerRole.fetch_answered

    def accept(self: FollowerRole, event: Any, now_ns: int, out: list) -> None:
        if self.phase in (FollowerPhase.FETCHING, FollowerPhase.IDLE, FollowerPhase.FETCH_BACKOFF):
            _go(self, FollowerPhase.FETCHING)
            real(self, replace(event, request_id=self._request_id, leader_epoch=self.leader_epoch), now_ns, out)
        else:
            real(self, event, now_ns, out)

    return [method(FollowerRole, "fetch_answered", accept), method(FollowerRole, "_why_not_append", lambda self, event: "")]


def gap_accepted() -> Patches:
    """A follower behind the log start is sent what there is, and appends it behind a hole."""

    def from_the_start(self: Log, from_offset: int, max_bytes: int, *, end_offset: int | None = None) -> Any:
        return read(self, max(from_offset, self.log_start_offset), max_bytes, end_offset=end_offset)

    read = Log.read
    real = FetchHandler._position_refusal

    def no_start(self: FetchHandler, offset: int, epoch: int) -> Any:
        reason = real(self, offset, epoch)
        return None if reason is RefusalReason.BEFORE_LOG_START else reason

    return [method(Log, "read", from_the_start), method(FetchHandler, "_position_refusal", no_start),
            method(FollowerRole, "_why_not_append", lambda self, event: "")]  # fmt: skip


# ---- the ISR ---------------------------------------------------------------------------------------------------------------
def join_by_time_only() -> Patches:
    return [method(lag, "may_join", lambda progress, live, hw, start: True), _never_lost()]


def join_without_high_watermark() -> Patches:
    return [method(lag, "may_join", lambda p, live, hw, start: p.position is not None and p.position + 1 >= start),
            method(lag, "is_lagging", lambda *a: False), _never_lost(), *_eager()]  # fmt: skip


def join_without_epoch_start() -> Patches:
    return [method(lag, "may_join", lambda p, live, hw, start: p.position is not None and p.position >= hw), *_eager()]


def _never_lost() -> Any:
    """Whoever is below HW is kept out by this net too."""
    return method(lag, "has_lost", lambda progress, high_watermark: False)


def _eager() -> Patches:
    """Joining asks for no caught-up moment: that would hide the rule that is taken away."""
    return [method(FollowerProgress, "was_caught_up", _Always())]


class _Always:
    def __get__(self, instance: object, owner: object = None) -> bool:
        return True

    def __set__(self, instance: object, value: object) -> None:
        pass


def join_by_another_incarnation() -> Patches:
    def lax(progress: FollowerProgress, live: int, hw: int, start: int) -> bool:
        return progress.position is not None and progress.position >= hw and progress.position + 1 >= start

    def same(self: FollowerProgress, incarnation: int) -> None:
        if incarnation != self.incarnation:
            self.incarnation, self.last_request_id = incarnation, 0

    return [
        method(lag, "may_join", lax),
        method(isr, "_why_not_join", lambda *a: ""),
        method(FollowerProgress, "set_incarnation", same),
    ]


def check_then_apply_isr() -> Patches:
    """The compare-and-set happens at the leader, not inside apply."""

    def lax(builder: Any, request: Any, partition: Any) -> None:
        if partition.status is not PartitionStatus.ONLINE or partition.leader not in request.isr:
            raise isr.RejectedError(isr.pb.ControlResponse.STALE, "", partition)

    return [method(isr, "_check_change", lax)]


def lossy_restart_stays_in_isr() -> Patches:
    return [
        method(nodes, "has_all_acknowledged_records", lambda known, request, damaged=frozenset(): True),
        method(nodes, "damaged_logs_of", lambda image, request: frozenset()),
    ]


def folder_put_back_counts() -> Patches:
    """Only a start below the known one shows that a folder is older: one that is put back counts up to exactly the known start."""

    def by_count(known: Any, request: Any) -> ProcessRelation:
        return (
            ProcessRelation.OUTDATED
            if known.folder_id == request.folderId and request.start < known.start
            else ProcessRelation.FOLLOWS
        )

    return [method(nodes, "compare_processes", by_count)]


def same_epoch_after_restart() -> Patches:
    def keep(builder: Any, stream: Any, partition: Any, node_id: str) -> Any:
        return partition if partition.leader == node_id else real(builder, stream, partition, node_id)

    real = leadership._complete_back
    return [method(leadership, "_complete_back", keep)]


def election_from_all_replicas() -> Patches:
    def all_live(builder: Any, stream: Any, partition: Any) -> tuple[str, ...]:
        others = (n for n in partition.replicas if n != partition.deposed and n not in partition.passed_over)
        return tuple(n for n in others if builder.is_live(n))

    return [method(elections, "eligible", all_live), method(elections, "finish_election", _finish_with_candidate)]


_finish = elections.finish_election


def _finish_with_candidate(stream: Any, partition: Any) -> Any:
    members = tuple(n for n in partition.replicas if n in partition.isr or n == partition.candidate)
    return replace(_finish(stream, replace(partition, isr=members, incomplete=())), unclean_elected=False)


# ---- who may speak ---------------------------------------------------------------------------------------------------------
def no_lease() -> Patches:
    return [method(ReplicaLease, "is_current", lambda self, now_ns: True)]


def lease_on_an_old_image() -> Patches:
    return [
        method(
            AnsweredHeartbeats,
            "response_received",
            lambda self, sent_ns, answer, seen_index: LeaseGrant(sent_ns, answer.leaseMs * 10**6),
        )
    ]


def lease_from_the_answer() -> Patches:
    """It runs from when the answer came, not from when the heartbeat was sent."""
    real = Lease.extend
    return [method(Lease, "extend", lambda self, sent_ns, lease_ns, now_ns: real(self, now_ns, lease_ns, now_ns))]


def a_replica_that_lags_uses_the_nodes_lease() -> Patches:
    """The node has the image that deposes the leader, and the replica does not know it yet."""
    return [method(ReplicaLease, "announce_change", lambda self, now_ns: None)]


def the_end_of_the_lease_is_an_event() -> Patches:
    """A leader acks until it is told that the lease has ended, whatever the clock says."""
    real = Replica.step

    def step(self: Replica, event: Any, now_ns: int) -> list:
        if isinstance(event, LeaseChanged) or self.phase != LeaderPhase.READY:
            return real(self, event, now_ns)
        with patch.object(ReplicaLease, "is_current", lambda self, now_ns: not self.lags):
            return real(self, event, now_ns)

    return [method(Replica, "step", step)]


def a_lease_that_is_valid_again_is_no_event() -> Patches:
    """What waited for the lease waits for ever."""
    real = Lease.extend

    def extend(self: Lease, sent_ns: int, lease_ns: int, now_ns: int) -> bool:
        real(self, sent_ns, lease_ns, now_ns)
        return False

    return [method(Lease, "extend", extend)]


def negative_ack_without_a_lease() -> Patches:
    def reject(self: LeaderRole, event: Any, now_ns: int, out: list) -> None:
        if self.shared.lease.is_current(now_ns):
            _publishes_received(self, event, now_ns, out)
        else:
            out.append(do.RejectPublishes(token=event.token, reason=RejectReason.NOT_LEADER))

    return [method(LeaderRole, "publishes_received", reject)]


def negative_ack_of_a_non_leader() -> Patches:
    from liftpy.core.replication.role import ReplicaRole

    def reject(self: ReplicaRole, event: Any, now_ns: int, out: list) -> None:
        out.append(do.RejectPublishes(token=event.token, reason=RejectReason.NOT_LEADER))

    return [method(ReplicaRole, "publishes_received", reject)]


def latest_before_the_epoch_start() -> Patches:
    def known(self: Replica, now_ns: int) -> bool:
        return self.role == "LEADER" and self._shared.lease.is_current(now_ns)

    return [method(Replica, "may_answer_latest", known)]


def waiting_publishers_kept_over_a_change_of_leader() -> Patches:
    return [method(PendingAcks, "drop", lambda self: None)]


def acks_name_the_next_record() -> Patches:
    real = PendingAcks._ack

    def ack(self: PendingAcks, envelope: Any, offset: int, *rest: Any, **more: Any) -> bytes:
        return real(self, envelope, offset + 1, *rest, **more)

    return [method(PendingAcks, "_ack", ack)]


def leads_before_it_is_registered() -> Patches:
    class Anyone(dict):
        def get(self, key: str, default: Any = None) -> Any:
            return self.mine if key == self.me else super().get(key, default)

    real = Replica._partition_changed

    def lax(self: Replica, event: Any, now_ns: int, out: list) -> None:
        live = Anyone(event.incarnations)
        live.me, live.mine = self._shared.node_id, self._shared.incarnation
        live[live.me] = live.mine
        real(self, replace(event, incarnations=live), now_ns, out)

    return [method(Replica, "_partition_changed", lax)]


def reads_beyond_the_high_watermark() -> Patches:
    return [method(Reads, "_end_offset", lambda self, isolation: self._source.log.log_end_offset)]


def raise_without_looking() -> Patches:
    def raised(self: ReplicaContext, offset: int, out: list) -> None:
        self.log.high_watermark = offset
        out.append(do.RaiseHighWatermark(high_watermark=offset))

    return [method(ReplicaContext, "raise_high_watermark", raised)]


MUTANTS = (
    *unseen.MUTANTS,
    *moving.MUTANTS,
    Mutant("truncate by HW", "KIP-101; Liftbridge", truncate_by_high_watermark),
    Mutant("truncate by HW when nobody answers", "Liftbridge truncateToHW", truncate_by_high_watermark_when_nobody_answers),
    Mutant("single-shot epoch query", "KIP-279; Liftbridge", single_shot_epoch_query, "elections"),
    Mutant("-1 sentinel", "Liftbridge LastOffsetForLeaderEpoch", minus_one_sentinel, "elections"),
    Mutant("off-by-one epoch start", "Liftbridge epoch cache", off_by_one_epoch_start),
    Mutant("epoch cache not cut", "KAFKA-10706", epoch_cache_not_cut),
    Mutant("no reconciliation before the fetch", "KIP-320 rule 1", no_reconciliation),
    Mutant("epoch query answered by anyone", "KIP-320; Liftbridge", offset_query_unfenced),
    Mutant("positions only grow", "Liftbridge updateLatestOffset", positions_only_grow, "disks"),
    Mutant("no maximal ISR", "KIP-497", no_maximal_isr),
    Mutant("unknown outcome taken for a refusal", "KIP-497", unknown_outcome_is_a_refusal, "metadata"),
    Mutant("a notice raises HW", "R1", notice_raises_high_watermark),
    Mutant("a notice moves the log start", "D26", notice_moves_the_log_start),
    Mutant("HW not bounded by the log", "Liftbridge SetHighWatermark", high_watermark_beyond_the_log),
    Mutant("HW raised before the cut", "KIP-320", high_watermark_before_the_cut),
    Mutant("HW set without looking", "KIP-207", raise_without_looking),
    Mutant("fetches of other epochs count", "KIP-320; Liftbridge", fetches_of_other_epochs_count),
    Mutant("a diverging fetch counts", "KAFKA-13141", diverging_fetch_counts),
    Mutant("min_isr not looked at", "KIP-966", min_isr_not_looked_at),
    Mutant("a quorum commits older epochs", "Raft, figure 8", quorum_commits_older_epochs, "quorum"),
    Mutant("ack before flush on the leader", "NATS #7564", ack_before_flush_on_leader),
    Mutant("ack before flush on a follower", "NATS #7564", ack_before_flush_on_follower),
    Mutant("stale response accepted", "KAFKA-18991", stale_response_accepted),
    Mutant("gap accepted", "Liftbridge", gap_accepted),
    Mutant("join by time only", "Liftbridge", join_by_time_only),
    Mutant("join without HW", "hachikuji 13", join_without_high_watermark),
    Mutant("join without epoch start", "KAFKA-7128", join_without_epoch_start, "elections"),
    Mutant("join by another incarnation", "KIP-903", join_by_another_incarnation, "disks"),
    Mutant("check-then-apply ISR", "KIP-497; Liftbridge", check_then_apply_isr),
    Mutant("lossy restart stays in the ISR", "KIP-966", lossy_restart_stays_in_isr),
    Mutant("a folder put back counts as complete", "restored backups", folder_put_back_counts, "disks"),
    Mutant("same epoch after a restart", "KIP-966; Liftbridge", same_epoch_after_restart),
    Mutant("election from all replicas", "unclean election", election_from_all_replicas),
    Mutant("no lease", "NATS; Liftbridge", no_lease),
    Mutant("lease on an old image", "a pause over a session", lease_on_an_old_image),
    Mutant("lease from the answer", "D22; Chubby", lease_from_the_answer, "elections"),
    Mutant(
        "a replica that lags uses the node's lease",
        "D22; one lease per node",
        a_replica_that_lags_uses_the_nodes_lease,
        "elections",
    ),
    Mutant("the end of the lease is an event", "D22; a late timer", the_end_of_the_lease_is_an_event, "elections"),
    Mutant(
        "a lease that is valid again is no event",
        "L3; one lease per node",
        a_lease_that_is_valid_again_is_no_event,
        "elections",
    ),
    Mutant("negative ack without a lease", "A2", negative_ack_without_a_lease),
    Mutant("negative ack of a non-leader", "A2", negative_ack_of_a_non_leader),
    Mutant("latest before the epoch start", "KIP-207; KAFKA-2334", latest_before_the_epoch_start),
    Mutant("publishers kept over a change of leader", "D1", waiting_publishers_kept_over_a_change_of_leader),
    Mutant("acks name the next record", "A1", acks_name_the_next_record),
    Mutant("leads before it is registered", "KIP-966", leads_before_it_is_registered),
    Mutant("reads beyond HW", "R1", reads_beyond_the_high_watermark),
)

__all__ = ["MUTANTS"]
