"""Bugs that the models are to find and that ``tests.simulation.mutants`` has no use for. Each patches shipped code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liftpy.config import NS_PER_MS, SessionTimes
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata import codec
from liftpy.core.metadata.controller import elections
from liftpy.core.metadata.controller.record_builder import RecordBuilder
from liftpy.core.metadata.image import StreamImage
from liftpy.core.metadata.sessions import NodeSessions
from liftpy.core.replication import isr
from liftpy.core.replication.lease import EarlierLeaders, Lease, ReplicaLease
from sidecar.metadata import member_log
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import RaftCore
from sidecar.quorum.probation import Probation
from sidecar.quorum.transport import RaftMessageChecks, SessionTransport
from tests.simulation.mutants.bug import method

Patches = list[Any]


# ---- replica -----------------------------------------------------------------------------------------------------------
def joins_before_it_has_caught_up() -> Patches:
    """Nor is it looked at whether a member still holds what is committed."""
    may_join = method(isr, "may_join", lambda progress, live, high_watermark, epoch_start: progress.position is not None)
    return [may_join, method(isr, "has_lost", lambda progress, high_watermark: False)]


def two_lead_in_one_epoch() -> Patches:
    """A candidate gets the LeaderEpoch of the leader before."""

    def propose(builder: RecordBuilder, partition: Any, candidate: str) -> Any:
        return real(builder, replace(partition), candidate)

    real = elections.propose
    return [method(elections, "propose", propose), method(RecordBuilder, "next_leader_epochs", lambda self, count=1: 1)]


# ---- control -----------------------------------------------------------------------------------------------------------
def fenced_nodes_are_elected() -> Patches:
    return [method(RecordBuilder, "is_live", lambda self, node_id: True)]


def one_report_deposes() -> Patches:
    return [method(elections, "_most_have_reported", lambda *args: True)]


def snapshot_forgets_the_complete() -> Patches:
    real = codec.STREAM.to_pb

    def forget(value: StreamImage) -> Any:
        return real(replace(value, partitions=tuple(replace(partition, passed_over=()) for partition in value.partitions)))

    return [method(codec.STREAM, "to_pb", forget)]


def learners_may_lead() -> Patches:
    real = PartitionState.electable_replicas

    def also_the_learner(partition: PartitionState, policy: Any) -> tuple[str, ...]:
        return (*real(partition, policy), *((partition.joining,) if partition.joining else ()))

    return [method(PartitionState, "electable_replicas", also_the_learner)]


# ---- lease -------------------------------------------------------------------------------------------------------------
def no_lease() -> Patches:
    return [method(Lease, "is_current", lambda self, now_ns: True)]


def a_replica_that_lags_uses_the_lease_of_the_node() -> Patches:
    return [method(ReplicaLease, "announce_change", lambda self, now_ns: None)]


def lease_from_the_answer() -> Patches:
    """It runs from when the answer came, and not from when the heartbeat was sent."""
    heard = Lease.extend
    return [method(Lease, "extend", lambda self, sent_ns, lease_ns, now_ns: heard(self, now_ns, lease_ns, now_ns))]


def stale_metadata_leader_grants() -> Patches:
    """It does not look when a majority confirmed it last."""
    real = NodeSessions.heartbeat
    return [
        method(
            NodeSessions,
            "heartbeat",
            lambda self, node, incarnation, now_ns, confirmed_ns: real(self, node, incarnation, now_ns, now_ns),
        )
    ]


def nobody_waits_for_the_leader_before() -> Patches:
    return [method(EarlierLeaders, "is_over", lambda self, now_ns: True)]


def sessions_end_with_the_lease() -> Patches:
    """A session lasts less than the lease that it gave."""

    def heartbeat(self: NodeSessions, *args: Any) -> Any:
        answer = real(self, *args)
        if args[0] in self._sessions:
            self._sessions[args[0]].deadline_ns -= self._session_ns // 2
        return answer

    real = NodeSessions.heartbeat
    return [method(NodeSessions, "heartbeat", heartbeat)]


def silence_is_death() -> Patches:
    """For a new metadata leader: sessions do not begin anew with it."""
    real = NodeSessions.lead

    def lead(self: NodeSessions, image: Any, now_ns: int) -> None:
        real(self, image, now_ns)
        self._has_heartbeats = True
        for session in self._sessions.values():
            session.deadline_ns = now_ns

    return [method(NodeSessions, "lead", lead)]


# ---- raft --------------------------------------------------------------------------------------------------------------
def promises_are_not_written() -> Patches:
    """Terms and votes wait for the next entry."""
    real = GroupJournal.setCurrentTerm

    def remember(self: GroupJournal, term: int, vote: str | None) -> None:
        before = self._meta_changed
        real(self, term, vote)
        self._meta_changed = before

    return [method(GroupJournal, "setCurrentTerm", remember)]


def journal_is_not_flushed() -> Patches:
    """It is written: the end of the process loses nothing, a power cut does."""
    real = GroupJournal.__init__
    return [method(GroupJournal, "__init__", lambda self, path, *, flush=True, **more: real(self, path, flush=False, **more))]


def votes_twice() -> Patches:
    real = SessionTransport._may_vote_again

    def may_vote(self: SessionTransport, request: Any) -> bool:
        assert self._core is not None
        self._core._SyncObj__votedForNodeId = None
        return real(self, request)

    return [method(SessionTransport, "_may_vote_again", may_vote)]


def entries_of_old_terms_are_counted() -> Patches:
    """A leader commits what a majority has, whoever's it is."""
    real = RaftCore.doTick

    def tick(self: RaftCore, wait: float = 0.0) -> None:
        real(self, wait)
        if self.leads:
            held = sorted((self.log.last_index, *self._SyncObj__raftMatchIndex.values()))
            if held[1] > self.raftCommitIndex:
                self._SyncObj__raftCommitIndex = held[1]
                self.log.setRaftCommitIndex(held[1])

    return [method(RaftCore, "doTick", tick)]


def votes_for_shorter_logs() -> Patches:
    """Whoever asks says that its log is the longest."""
    real = SessionTransport.send

    def send(self: SessionTransport, node: Any, message: Any) -> bool:
        if message["type"] == "request_vote":
            message = {**message, "last_log_index": 1 << 40, "last_log_term": message["term"]}
        return real(self, node, message)

    return [method(SessionTransport, "send", send)]


def what_is_held_is_cut() -> Patches:
    """An append that comes late cuts what came after it, as the library does."""

    def append(self: RaftMessageChecks, node: Any, message: Any) -> bool:
        self._handler(node, message)
        return True

    return [method(RaftMessageChecks, "_append", append)]


def snapshot_without_last_term() -> Patches:
    real = member_log.MemberLog._save

    def save(self: member_log.MemberLog, name: str, state: Any) -> None:
        (command, index, _), (before, earlier, _), nodes = state
        real(self, name, ((command, index, 0), (before, earlier, 0), nodes))

    return [method(member_log.MemberLog, "_save", save)]


def snapshot_commits_what_is_not_matched() -> Patches:
    """What a snapshot brings raises the commit index over entries that nobody has compared."""

    def snapshot(self: RaftMessageChecks, node: Any, message: Any) -> bool:
        message["commit_index"] = max(message["commit_index"], self._core.log.last_index)
        return real(self, node, message)

    def beat(self: RaftMessageChecks, node: Any, message: Any, commit_index: int) -> None:
        self._handler(node, {"type": "append_entries", "term": message["term"], "commit_index": message["commit_index"]})

    real = RaftMessageChecks._snapshot
    return [method(RaftMessageChecks, "_snapshot", snapshot), method(RaftMessageChecks, "_beat", beat)]


def no_probation() -> Patches:
    """Who has lost its folder votes at once."""
    real = Probation.end_if_complete

    def look(self: Probation) -> None:
        real(self)
        if not self.over:
            self._end()

    return [method(Probation, "end_if_complete", look)]


def journal_ends_with_the_snapshot() -> Patches:
    """A start that finds more in the journal than its snapshot throws it away, as the library does."""
    return [method(member_log, "trim_journal", lambda *_: None)]


def barrier_of_any_time() -> Patches:
    """Probation is over with the first entry that is heard of."""
    real = Probation.end_if_complete

    def look(self: Probation) -> None:
        real(self)
        if not self.over and self._core is not None and self._core.raftCommitIndex > 1:
            self._end()

    return [method(Probation, "end_if_complete", look)]


def leaders_rest_whatever_is_missing() -> Patches:
    """A leader takes the longer interval, whatever its followers lack."""
    return [method(RaftCore, "_is_settled", property(lambda self: True))]


def entries_of_the_session_before_count() -> Patches:
    """The leader counts acknowledgments of an earlier process for the next process with the same directory."""
    return [method(RaftCore, "forget_match", lambda self, node: None)]


def sessions_shrink_below_what_was_granted() -> Patches:
    """A heartbeat that comes after a change of the times counts by the shorter session alone."""

    def heartbeat(self: NodeSessions, *args: Any) -> Any:
        answer = real(self, *args)
        if answer.granted:
            self._sessions[args[0]].deadline_ns = args[2] + self._session_ns
        return answer

    real = NodeSessions.heartbeat
    return [method(NodeSessions, "heartbeat", heartbeat)]


def nodes_go_by_their_own_lease() -> Patches:
    """Whatever the answer says."""
    real = Lease.extend
    return [method(Lease, "extend", lambda self, sent_ns, lease_ns, now_ns: real(self, sent_ns, 0, now_ns))]


def the_longest_lease_is_the_new_one() -> Patches:
    """That of the times before is forgotten by who is to open."""
    return [method(SessionTimes, "longest_lease_ns", property(lambda self: self.lease_ms * NS_PER_MS))]
