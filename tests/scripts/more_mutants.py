"""Mutants for scripts whose bugs ``tests.simulation.mutants`` has no use for: the shell's, and those that seeds rarely meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from liftpy.client import progress
from liftpy.core.base.partition import PartitionState
from liftpy.core.log import compaction_point as horizon
from liftpy.core.log import recovery
from liftpy.core.log.compaction_point import CompactionHorizon
from liftpy.core.log.leader_epochs import EpochCache
from liftpy.core.log.log import Log, RecheckResult
from liftpy.core.log.range_reads import Portion
from liftpy.core.log.segment import Segment
from liftpy.core.metadata.controller import elections, nodes
from liftpy.core.metadata.controller.election_triggers import ElectionTimers, FailureReports, ProbeResult
from liftpy.core.metadata.image import StreamImage
from liftpy.core.metadata.sessions import NodeSessions
from liftpy.core.partition import reads
from liftpy.core.partition.reads import Reads
from liftpy.core.publish import message_decoder as columns
from liftpy.core.publish.ingest import Ingest
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication import follower, leader, quiescence, replica
from liftpy.core.replication import isr as commit
from liftpy.core.replication import isr as lag
from liftpy.core.replication.fetch_handler import FetchHandler
from liftpy.core.replication.follower import FollowerRole
from liftpy.core.replication.isr import FollowerProgress, IsrChange, SlowFlushes
from liftpy.core.replication.leader import LeaderRole
from liftpy.core.replication.log_offsets import EpochVerdict, LogOffsets, OffsetCheck
from liftpy.core.replication.replica import FailedRole, InactiveRole
from liftpy.core.wire.chunking import Assembly, Piece
from liftpy.core.wire.subjects import InboxRule
from liftpy.errors import CorruptionError, LiftError
from sidecar.partition import replication
from sidecar.quorum.journal import GroupJournal
from tests.scripts import clock_mutants, pause_mutants
from tests.simulation.mutants.bug import Mutant, Patches, decided, method


def read_only_is_not_heeded() -> Patches:
    real = LeaderRole.publishes_received

    def heedless(self: LeaderRole, event: Any, now_ns: int, out: list) -> None:
        held = self.shared.metadata
        self.shared.metadata = replace(held, config=replace(held.config, read_only=False))
        real(self, event, now_ns, out)
        self.shared.metadata = held

    return [method(LeaderRole, "publishes_received", heedless)]


def one_report_deposes() -> Patches:
    return [method(elections, "_most_have_reported", lambda *args: True)]


def reports_of_any_leadership_count() -> Patches:
    real = elections.report_leader

    def count(draft: Any, request: Any) -> Any:
        found = draft.image.find(request.stream, request.uid, request.partition)
        if found is not None and found[1].leader == request.leader:
            request.leaderEpoch = found[1].leader_epoch
        return real(draft, request)

    return [decided("reportLeader", count)]


def nobody_is_passed_over() -> Patches:
    return [decided("passOver", lambda draft, request: draft.done())]


def progress_does_not_count() -> Patches:
    return [method(ElectionTimers, "progress", lambda self, report, now_ns: False)]


def stored_though_there_is_no_space() -> Patches:
    real = replica.Replica._storage_failed

    def swallow(self: replica.Replica, event: Any, now_ns: int, out: list) -> None:
        if not event.no_space:
            real(self, event, now_ns, out)

    return [method(replica.Replica, "_storage_failed", swallow)]


def silent_when_there_is_no_space() -> Patches:
    def drop(self: FailedRole, event: Any, now_ns: int, out: list) -> None:
        out.append(do.DropPublishes(token=event.token))

    return [method(FailedRole, "publishes_received", drop)]


def flush_error_forgotten() -> Patches:
    real = Log.complete_flush
    return [method(Log, "complete_flush", lambda self, flush, error=None: real(self, flush))]


def checkpoint_is_not_checked() -> Patches:
    real = recovery.decode_checkpoint

    def strict(data: bytes | None) -> Any:
        found = real(data)
        if data is not None and found is None:
            raise CorruptionError("a small file is damaged")
        return found

    return [method(recovery, "decode_checkpoint", strict)]


def damaged_journal_is_cut() -> Patches:
    real = GroupJournal._load

    def load(self: GroupJournal) -> None:
        try:
            real(self)
        except CorruptionError:
            pass

    return [method(GroupJournal, "_load", load)]


def journal_ignores_errors() -> Patches:
    real = GroupJournal.sync

    def sync(self: GroupJournal) -> None:
        try:
            real(self)
        except LiftError:
            pass

    return [method(GroupJournal, "sync", sync)]


def ingest_without_bounds() -> Patches:
    def submit(self: Ingest, messages: list) -> None:
        now, self._config = self._config, _Boundless()  # type: ignore[assignment]
        try:
            real(self, messages)
        finally:
            self._config = now

    real = Ingest._submit
    return [method(Ingest, "_submit", submit)]


class _Boundless:
    ingest_queue_records = 1 << 40


def overloaded_is_silent() -> Patches:
    return [method(Ingest, "_reject_for_overload", lambda self, messages: None)]


def expected_sequence_ignored() -> Patches:
    return [method(Ingest, "_meets_conditions", lambda self, columns, messages: True)]


def empty_answer_when_it_does_not_fit() -> Patches:
    real = replication.read_portion

    def read(*args: Any, **named: Any) -> Portion:
        portion = real(*args, **named)
        return portion if portion.piece is None else Portion((), 0, portion.next_offset)

    return [method(replication, "read_portion", read)]


def batches_of_any_size() -> Patches:
    return [method(module, "room_bytes", lambda *bounds: 1 << 30) for module in (replication, reads)]


def pieces_of_any_batch() -> Patches:
    """What is held is asked on for, whatever it is part of, and taken without a look at where it belongs."""

    def take(self: Assembly, piece: Piece) -> memoryview | None:
        self._held += piece.data
        if len(self._held) < piece.total_bytes:
            return None
        whole = memoryview(self._held)
        self.forget()
        return whole

    return [method(Assembly, "add_piece", take)]


def poison_raises() -> Patches:
    real = columns.MessageDecoder._open_envelope

    def opened(self: columns.MessageDecoder, payload: bytes) -> Any:
        published = real(self, payload)
        if published is None:
            raise ValueError("poison")
        return published

    return [method(columns.MessageDecoder, "_open_envelope", opened)]


def any_reply_subject() -> Patches:
    return [method(InboxRule, "allows", lambda self, subject: bool(subject))]


def lineage_not_looked_at() -> Patches:
    return [method(replica, "judge", lambda *args, **known: EpochVerdict(OffsetCheck.SAME))]


def lagging_says_cut() -> Patches:
    real = replica.judge
    return [method(replica, "judge", lambda *args, **known: real(*args, **{**known, "is_latest": True}))]


def negative_ack_before_the_heirs_have_joined() -> Patches:
    return [method(FetchHandler, "has_all_successors", True)]


def negative_ack_when_the_isr_has_joined() -> Patches:
    def joined(self: FetchHandler) -> bool:
        isr = self._shared.state.isr
        return all(p.position is not None for replica, p in self.followers.items() if replica in isr)

    return [method(FetchHandler, "has_all_successors", property(joined))]


def positions_of_the_isr_only() -> Patches:
    real = InactiveRole.enter

    def enter(self: InactiveRole, now_ns: int, out: list) -> None:
        real(self, now_ns, out)
        if self.shared.node_id not in self.shared.state.isr:
            out[:] = [effect for effect in out if not isinstance(effect, do.ReportLeader)]

    return [method(InactiveRole, "enter", enter)]


def quorum_log_stays_uncommitted() -> Patches:
    real = commit.quorum_high_watermark
    return [method(commit, "quorum_high_watermark", lambda *args: real(*args[:6]))]


def who_has_lost_something_stays_complete() -> Patches:
    real = StreamImage.with_isr
    return [method(StreamImage, "with_isr", lambda self, partition, isr, lost=(): real(self, partition, isr))]


def reports_by_the_wall_clock() -> Patches:
    def near(held: Any, report: Any) -> bool:
        return abs(report.time_ns - held.time_ns) <= elections.REPORT_WINDOW_NS

    return [method(elections, "_within_window", near)]


def one_follower_of_two_deposes_unasked() -> Patches:
    real = elections.report_leader

    def report(draft: Any, request: Any) -> Any:
        request.accusedAsked = True
        return real(draft, request)

    return [method(FailureReports, "add", lambda *args: False), decided("reportLeader", report)]


def nobody_witnesses_against_a_sole_member() -> Patches:
    def counts(stream: Any, partition: Any, witness: str) -> bool:
        return witness in partition.isr or (not partition.leader and witness in stream.may_lead(partition))

    return [method(elections, "_counts", counts), method(LeaderRole, "_why_unreachable", lambda self, now_ns: "")]


def a_leader_without_a_data_path_stays() -> Patches:
    return [method(LeaderRole, "_why_unreachable", lambda self, now_ns: "")]


def the_accused_always_serves() -> Patches:
    real = FailureReports.record_testimony

    def record_testimony(self: FailureReports, question: Any, testimony: Any) -> None:
        real(self, question, ProbeResult.SERVES)

    return [
        method(FailureReports, "record_testimony", record_testimony),
        method(LeaderRole, "_why_unreachable", lambda self, now_ns: ""),
    ]


def a_leader_that_comes_back_leads_unasked() -> Patches:
    real = nodes._complete_back

    def goes_on(draft: Any, stream: Any, partition: Any, node_id: str) -> Any:
        if partition.leader == node_id:
            return replace(partition, leader_epoch=draft.next_leader_epochs())
        return real(draft, stream, partition, node_id)

    cuts = method(FollowerRole, "_would_lose_committed", lambda self, end_offset: False)
    return [method(nodes, "_complete_back", goes_on), cuts]


def cut_below_what_is_known_to_be_committed() -> Patches:
    return [method(FollowerRole, "_would_lose_committed", lambda self, end_offset: False)]


def told_once_and_never_again() -> Patches:
    real = LeaderRole._probe

    def probe(self: LeaderRole, now_ns: int, out: list) -> None:
        real(self, now_ns, out)
        out[:] = [effect for effect in out if not isinstance(effect, do.NotifyReplica)]

    return [method(LeaderRole, "_probe", probe)]


def whoever_registers_takes_the_place() -> Patches:
    return [method(NodeSessions, "may_still_run", lambda self, node_id, now_ns: False)]


def who_is_fenced_has_stopped() -> Patches:
    real = NodeSessions.may_still_run

    def keeps(self: NodeSessions, node_id: str, now_ns: int) -> bool:
        return real(self, node_id, now_ns) and not self._sessions[node_id].fenced

    return [method(NodeSessions, "may_still_run", keeps)]


def nobody_is_asked_for() -> Patches:
    return [method(LeaderRole, "_probe", lambda *args: None)]


def silence_is_absence() -> Patches:
    real = LeaderRole._probe

    def probe(self: LeaderRole, now_ns: int, out: list) -> None:
        asked: list = []
        real(self, now_ns, asked)
        out += asked
        for effect in asked:
            if isinstance(effect, do.ProbeReplica):
                self.replica_absent(ev.ReplicaAbsent(replica=effect.replica), now_ns, out)

    return [method(LeaderRole, "_probe", probe)]


def slow_disks_are_not_told_from_others() -> Patches:
    return [method(SlowFlushes, "_is_slow", lambda *args: False)]


def slow_leader_stays() -> Patches:
    return [method(LeaderRole, "_transfer_from_slow_disk", lambda *args: None)]


def slow_members_leave_below_min_isr() -> Patches:
    real = lag.wanted_isr

    def wanted(of: str, *args: Any, slow_disks: frozenset[str] = frozenset(), **rest: Any) -> frozenset[str]:
        return real(of, *args, **rest) - slow_disks | {of}

    return [method(lag, "wanted_isr", wanted)]


def slow_by_one_flush() -> Patches:
    real = SlowFlushes.flushed
    return [method(SlowFlushes, "flushed", lambda self, *args, in_isr=True: real(self, *args, in_isr=False))]


def compacted_log_is_cut_like_any_other() -> Patches:
    return [method(LogOffsets, "compacted", lambda self, horizon: None)]


def compacted_log_that_ends_early_goes_on() -> Patches:
    return [method(follower, "lacks_superseding", lambda log: False)]


def horizon_is_not_stored() -> Patches:
    def rise(self: CompactionHorizon, horizon: Any) -> bool:
        self.value = max(self.value, horizon)
        return True

    return [method(CompactionHorizon, "rise", rise), method(horizon, "infer_horizon", lambda segments: horizon.NEVER)]


def fetched_compacted_and_not_noted() -> Patches:
    real = Log.append_batches
    return [method(Log, "append_batches", lambda self, data, batches, now=0, *, compacted=None: real(self, data, batches, now))]


def wrong_bytes_are_not_complained_of() -> Patches:
    real = FollowerRole._fetch

    def fetch(self: FollowerRole, now_ns: int, out: list) -> None:
        self._bad_offset = None
        real(self, now_ns, out)

    return [method(FollowerRole, "_fetch", fetch)]


def complaints_are_ignored() -> Patches:
    return [method(Log, "complaint", lambda self, offset, asker, now_ns: RecheckResult.SOUND)]


def a_complaint_is_not_looked_into() -> Patches:
    return [method(Segment, "recheck", lambda self, offset: self.check(0, self.size_bytes))]


def every_complaint_is_believed() -> Patches:
    def believe(self: Log, offset: int, asker: str, now_ns: int) -> RecheckResult:
        self.handle_damage(CorruptionError("somebody says so"))
        return RecheckResult.DAMAGED

    return [method(Log, "complaint", believe)]


def a_stream_is_its_name() -> Patches:
    real = Reads._why_not

    def by_name(self: Reads[Any], request: Any) -> Any:
        request.streamUid = ""
        return real(self, request)

    check_head = progress.check_head

    def any_uid(head: Any, uid: str, *rest: Any) -> None:
        check_head(head, "", *rest)

    return [method(Reads, "_why_not", by_name), method(progress, "check_head", any_uid)]


def failed_flush_is_believed() -> Patches:
    def trusting(
        storage: Any, segments: list[Any], checkpoint: Any, names: Any, *, flush_failed: bool = False
    ) -> tuple[list[Any], int]:
        for segment in segments:
            segment.file.sync()
        storage.sync_folder()
        return segments, 0

    return [method(recovery, "prove", trusting)]


def sealed_segments_are_not_flushed_on_opening() -> Patches:
    def hasty(
        storage: Any, segments: list[Any], checkpoint: Any, names: Any, *, flush_failed: bool = False
    ) -> tuple[list[Any], int]:
        for segment in segments[-1:]:
            segment.file.sync()
        return segments, 0

    return [method(recovery, "prove", hasty)]


def failed_replica_stays() -> Patches:
    return [method(FailedRole, "_make_way", lambda self, now_ns, out: None)]


def any_quiet_fetch_is_confirmed() -> Patches:
    def confirm(self: FetchHandler, event: ev.QuiescentFetchReceived, now_ns: int) -> bool:
        self.followers[event.replica].still_waits(now_ns)
        return True

    return [method(FetchHandler, "still_waits", confirm)]


def confirmed_and_not_counted() -> Patches:
    return [method(FollowerProgress, "still_waits", lambda self, now_ns: None)]


def silent_node_is_waited_for() -> Patches:
    return [method(quiescence, "MISSES", 1 << 30)]


def quiet_follower_forgets_its_leader() -> Patches:
    real = FollowerRole._leave_quiet

    def leave(self: FollowerRole, heard_ns: int, now_ns: int, out: list) -> None:
        real(self, heard_ns, now_ns, out)
        self.shared.deadlines.cancel(ev.Deadline.LEADER, out)

    return [method(FollowerRole, "_leave_quiet", leave)]


def idle_leader_looks_no_more() -> Patches:
    return [method(LeaderRole, "_compute_next_check_ns", lambda self, now_ns: now_ns + 3_600_000_000_000)]


def emptied_log_forgets_its_epoch() -> Patches:
    return [patch.object(EpochCache, "position_epoch", property(lambda self: self.latest_epoch))]


def an_earlier_copy_counts() -> Patches:
    return [method(FollowerProgress, "set_copy_epoch", lambda self, copy_epoch: None)]


def one_replica_set_is_counted() -> Patches:
    return [method(IsrChange, "replica_sets", lambda self, replicas: iter((replicas,)))]


def who_is_wanted_no_more_stays() -> Patches:
    return [patch.object(leader, "next_to_go", lambda state, isr, min_isr: "")]


def the_leader_goes_unasked() -> Patches:
    return [method(LeaderRole, "_transfer_to_target", lambda self, now_ns, out: None)]


def evicted_below_the_copies_that_are_wanted() -> Patches:
    def next_to_go(state: PartitionState, isr: frozenset[str], min_isr: int) -> str:
        return state.leaving if len(isr - {state.leaving}) >= min_isr - 1 else ""

    return [patch.object(leader, "next_to_go", next_to_go)]


def one_damaged_log_makes_all_logs_incomplete() -> Patches:
    return [method(nodes, "damaged_logs_of", lambda image, request: frozenset())]


MUTANTS: Sequence[Mutant] = (
    *pause_mutants.MUTANTS,
    *clock_mutants.MUTANTS,
    Mutant("an emptied log forgets its epoch", "C9; found by seed 50064", emptied_log_forgets_its_epoch),
    Mutant("a failed replica stays where it is", "L10", failed_replica_stays),
    Mutant("believes a failed flush at the next start", "S4; fsyncgate", failed_flush_is_believed),
    Mutant("does not flush sealed segments on opening", "S12", sealed_segments_are_not_flushed_on_opening),
    Mutant("a leader heeds no read-only", "none: a script asks for the refusal", read_only_is_not_heeded),
    Mutant("one report deposes", "C9", one_report_deposes),
    Mutant("reports of any leadership count", "C9", reports_of_any_leadership_count),
    Mutant("nobody is passed over", "L1", nobody_is_passed_over),
    Mutant("progress does not count", "a long replay", progress_does_not_count),
    Mutant("stored though there is no space", "S8", stored_though_there_is_no_space),
    Mutant("silent when there is no space", "S8", silent_when_there_is_no_space),
    Mutant("flush error forgotten", "S4; fsyncgate", flush_error_forgotten),
    Mutant("a damaged checkpoint stops the node", "S5", checkpoint_is_not_checked),
    Mutant("a damaged journal is cut", "M2", damaged_journal_is_cut),
    Mutant("the journal ignores errors", "S4", journal_ignores_errors),
    Mutant("ingest without bounds", "L7", ingest_without_bounds),
    Mutant("overloaded and silent", "L4", overloaded_is_silent),
    Mutant("expected sequence ignored", "A3", expected_sequence_ignored),
    Mutant("an empty answer when it does not fit", "Liftbridge", empty_answer_when_it_does_not_fit),
    Mutant("batches of any size", "A10", batches_of_any_size),
    Mutant("pieces of any batch", "D16", pieces_of_any_batch),
    Mutant("poison raises", "A6", poison_raises),
    Mutant("any reply subject", "A5", any_reply_subject),
    Mutant("a compacted log is cut like any other", "D5", compacted_log_is_cut_like_any_other),
    Mutant("a compacted log that ends early goes on", "D5", compacted_log_that_ends_early_goes_on),
    Mutant("the horizon is not stored", "S5", horizon_is_not_stored),
    Mutant("fetched compacted, and not noted", "D5", fetched_compacted_and_not_noted),
    Mutant("wrong bytes are not complained of", "S14", wrong_bytes_are_not_complained_of),
    Mutant("complaints are ignored", "S14", complaints_are_ignored),
    Mutant("a complaint is not looked into", "S14", a_complaint_is_not_looked_into),
    Mutant("every complaint is believed", "S14", every_complaint_is_believed),
    Mutant("a stream is its name", "R9", a_stream_is_its_name),
    Mutant("negative ack before the ISR has joined", "A2", negative_ack_before_the_heirs_have_joined),
    Mutant("negative ack when the ISR alone has joined", "A2", negative_ack_when_the_isr_has_joined),
    Mutant("positions of the ISR only", "L1", positions_of_the_isr_only),
    Mutant("a quorum's log stays uncommitted", "L3", quorum_log_stays_uncommitted),
    Mutant("who has lost something stays complete", "C10; KIP-966", who_has_lost_something_stays_complete),
    Mutant("reports by the wall clock", "C9", reports_by_the_wall_clock),
    Mutant("one follower of two deposes unasked", "L10", one_follower_of_two_deposes_unasked),
    Mutant("nobody witnesses against a sole member", "L10", nobody_witnesses_against_a_sole_member),
    Mutant("a leader without a data path stays", "L10", a_leader_without_a_data_path_stays),
    Mutant("the accused always serves", "L10", the_accused_always_serves),
    Mutant("a leader that comes back leads unasked", "S15", a_leader_that_comes_back_leads_unasked),
    Mutant("cut below what is known to be committed", "D9", cut_below_what_is_known_to_be_committed),
    Mutant("whoever registers takes the place", "C12", whoever_registers_takes_the_place, "folders"),
    Mutant("who is fenced has stopped", "C12", who_is_fenced_has_stopped, "folders"),
    Mutant("nobody is asked for", "L3", nobody_is_asked_for),
    Mutant("told once and never again", "L2", told_once_and_never_again),
    Mutant("silence is taken for absence", "L8", silence_is_absence),
    Mutant("a slow disk is never told from others", "L3", slow_disks_are_not_told_from_others),
    Mutant("a slow leader stays", "L3", slow_leader_stays),
    Mutant("slow members leave below min_isr", "D20", slow_members_leave_below_min_isr),
    Mutant("slow by one flush", "L8", slow_by_one_flush),
    Mutant("what was read is not looked at", "R6; KIP-320", lineage_not_looked_at),
    Mutant("a replica that lags says cut", "R6", lagging_says_cut),
    Mutant("any quiet fetch is confirmed", "KIP-227: a session that outlives what it is about", any_quiet_fetch_is_confirmed),
    Mutant("a quiet fetch is confirmed and not counted", "L8", confirmed_and_not_counted),
    Mutant("a silent leader's node is waited for", "L1", silent_node_is_waited_for),
    Mutant("a quiet follower forgets its leader", "L1", quiet_follower_forgets_its_leader),
    Mutant("an idle leader looks no more for lag", "L8", idle_leader_looks_no_more),
    Mutant("a learner's earlier copy counts", "C12", an_earlier_copy_counts),
    Mutant("one replica set is counted while it changes", "D6", one_replica_set_is_counted),
    Mutant("who is wanted no more stays", "L2", who_is_wanted_no_more_stays),
    Mutant("one damaged log makes all logs incomplete", "L1", one_damaged_log_makes_all_logs_incomplete),
    Mutant("the leader goes unasked", "L2", the_leader_goes_unasked),
    Mutant("evicted below the copies that are wanted", "D21", evicted_below_the_copies_that_are_wanted),
)
