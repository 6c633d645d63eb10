"""Mutants of the metadata member: old bugs, and classical ones, brought back one at a time in the shipped code. Seeds must kill each.

``python -m tests.simulation.raft --mutants``: says how many seeds each took, and what broke first. ``seed`` of a mutant is one that
kills it; without the mutant it is clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import crc32c

from liftpy.config import NS_PER_S
from liftpy.core.metadata import controller_list, data_deletion, node_identity
from liftpy.core.metadata.controller import quorum_member as member_module
from liftpy.core.metadata.controller.quorum_member import EntryOutcome, ProposedEntry, QuorumMember
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.feed import FeedProducer, FeedSubscription
from liftpy.core.metadata.idempotency import ForwardedRequest
from liftpy.core.metadata.sessions import AnsweredHeartbeats, LeaseGrant, NodeSessions
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.metadata import member_log
from sidecar.quorum import probation, transport
from sidecar.quorum.journal import GroupJournal, LogControllers, change_in
from sidecar.quorum.library import LogEnd, RaftCore
from sidecar.quorum.probation import DirectoryLineage, Probation
from sidecar.quorum.transport import RaftMessageChecks, SessionTransport

Patches = list[Any]


@dataclass(frozen=True)
class RaftMutant:
    """``patches()`` gives the replacements; ``seed`` kills it. ``slow``: it takes that seed half a minute to show that a
    group comes to nothing; tried by the command alone."""

    name: str
    patches: Callable[[], Patches]
    seed: int
    slow: bool = False

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for change in self.patches():
                stack.enter_context(change)
            yield


# ---- leases ----------------------------------------------------------------------------------------------------------
def leases_from_the_answer() -> Patches:
    """A majority's word counts from when it is heard, not from when it was asked for."""
    real = SessionTransport._process_answer

    def answered(self: SessionTransport, sender: str, answer: Any, term: int) -> None:
        real(self, sender, {**answer, "echo_ns": self._stamp()}, term)

    return [patch.object(SessionTransport, "_process_answer", answered)]


def votes_at_once() -> Patches:
    """And grants pre-votes at once: whoever asks for a vote has been granted it before, so that each rule alone covers the other."""

    def grant(*, leads: bool, own: LogEnd, asker: LogEnd, **_: Any) -> bool:
        return not leads and asker >= own

    return [
        patch.object(SessionTransport, "_may_vote_again", lambda self, request: True),
        patch.object(transport, "may_grant", grant),
    ]


def leases_without_a_majority() -> Patches:
    real = NodeSessions.heartbeat
    return [
        patch.object(
            NodeSessions, "heartbeat", lambda self, node, incarnation, now, confirmed: real(self, node, incarnation, now, now)
        )
    ]


def lease_on_an_old_image() -> Patches:
    return [
        patch.object(
            AnsweredHeartbeats,
            "response_received",
            lambda self, sent_ns, answer, seen_index: LeaseGrant(sent_ns, answer.leaseMs * 10**6),
        )
    ]


def session_ended_with_the_connection() -> Patches:
    """Nobody listens for the node: its session ends at once, and not with its lease."""
    real = NodeSessions.record_no_responders

    def gone(self: NodeSessions, node_id: str) -> None:
        real(self, node_id)
        session = self._sessions.get(node_id)
        if session is not None and not session.fenced:
            session.deadline_ns = self._earliest_ns = 0

    return [patch.object(NodeSessions, "record_no_responders", gone)]


def sessions_shorter_than_leases() -> Patches:
    real = NodeSessions._use_times

    def go_by(self: NodeSessions, times: Any, now_ns: int) -> None:
        real(self, times, now_ns)
        self._session_ns = self._longest_session_ns = NS_PER_S

    return [patch.object(NodeSessions, "_use_times", go_by)]


def sessions_not_restarted_by_a_new_leader() -> Patches:
    """What the metadata leader before granted is not waited for."""
    real = NodeSessions.lead

    def lead(self: NodeSessions, image: Any, now_ns: int) -> None:
        real(self, image, now_ns)
        self._has_heartbeats = True
        for session in self._sessions.values():
            session.deadline_ns = now_ns

    return [patch.object(NodeSessions, "lead", lead)]


# ---- outcomes --------------------------------------------------------------------------------------------------------
def unknown_outcome_is_a_refusal_of_the_leader() -> Patches:
    real = QuorumMember.proposal_ended

    def ended(self: QuorumMember, order: ProposedEntry, outcome: EntryOutcome, answer: bytes | None, now_ns: int) -> Any:
        return real(self, order, EntryOutcome.NEVER if outcome is EntryOutcome.UNKNOWN else outcome, answer, now_ns)

    return [patch.object(QuorumMember, "proposal_ended", ended)]


def silence_is_a_refusal() -> Patches:
    real = ForwardedRequest.attempt_failed
    return [patch.object(ForwardedRequest, "attempt_failed", lambda self, detail, *, sent: real(self, detail, sent=False))]


def new_operation_id_with_every_attempt() -> Patches:
    real = QuorumMember.entry

    def entry(self: QuorumMember, order: ProposedEntry, *given: int) -> Any:
        order.request.operationId = self._new_id()
        return real(self, order, *given)

    return [patch.object(QuorumMember, "entry", entry)]


# ---- data and markers ------------------------------------------------------------------------------------------------
def clean_stop_marker_after_an_unclean_stop() -> Patches:
    return [patch.object(node_identity, "stopped_cleanly", lambda **_: True)]


def folders_of_unknown_streams_deleted() -> Patches:
    return [patch.object(data_deletion, "may_delete", lambda *_: True)]


# ---- probation -------------------------------------------------------------------------------------------------------
def probation_ends_with_a_leader() -> Patches:
    real = Probation.end_if_complete

    def look(self: Probation) -> None:
        real(self)
        if not self.over and self._core is not None and self._core.leader_id:
            self._end()

    return [patch.object(Probation, "end_if_complete", look)]


def folder_that_went_back_is_believed() -> Patches:
    """By the others and by itself; by which process each is known they still remember."""

    def heard(self: DirectoryLineage, peer_id: str, tail: bytes) -> bool:
        if tail and self.known.get(peer_id) != (nonce := probation._parse(tail)[0]):
            self.known[peer_id], self._changed = nonce, True
        return True

    return [patch.object(DirectoryLineage, "process_hello", heard)]


# ---- the log ---------------------------------------------------------------------------------------------------------
def held_entries_cut() -> Patches:
    """A re-sent append cuts what is held already, as the library does."""
    return [patch.object(RaftMessageChecks, "_strip_known_entries", lambda *_: None)]


def conflicts_left_to_the_library() -> Patches:
    """It asks for ever for the same place."""

    def append(self: RaftMessageChecks, node: Any, message: Any) -> bool:
        self._handler(node, message)
        return True

    return [patch.object(RaftMessageChecks, "_append", append)]


def journal_not_flushed() -> Patches:
    """Written, and never flushed: a power cut takes it."""
    real = GroupJournal.__init__
    return [
        patch.object(GroupJournal, "__init__", lambda self, path, *, flush=True, **more: real(self, path, flush=False, **more))
    ]


def duties_without_a_barrier() -> Patches:
    """A new leader decides on what it has applied so far."""

    def take_over(self: QuorumMember) -> list[Any]:
        self._term, self._image = self._log.term, self._log.image
        self._duties.lead(self._image, self._now_ns, self._term)  # type: ignore[attr-defined]
        self._feed.lead()
        return []

    real = QuorumMember.tick

    def tick(self: QuorumMember, now_ns: int, **given: bool) -> list[Any]:
        self._now_ns = now_ns  # type: ignore[attr-defined]
        return real(self, now_ns, **given)

    return [patch.object(QuorumMember, "_begin_leadership", take_over), patch.object(QuorumMember, "tick", tick)]


# ---- the feed --------------------------------------------------------------------------------------------------------
def snapshot_served_at_index_0() -> Patches:
    """By a controller that has applied nothing yet."""
    real = FeedProducer.answer

    def answer(self: FeedProducer, request: pb.FeedSnapshotRequest) -> Any:
        if self.index or 0 not in self._snapshots:
            return real(self, request) if self.index else None
        data = self._snapshots[0]
        return pb.FeedSnapshotResponse(sizeBytes=len(data), chunk=data, crc=crc32c.crc32c(data))

    def ready(self: FeedProducer, index: int, data: bytes) -> None:
        self._snapshots[index] = data

    return [patch.object(FeedProducer, "answer", answer), patch.object(FeedProducer, "snapshot_is_ready", ready)]


def feed_goes_on_over_a_restored_image() -> Patches:
    def restored(self: FeedProducer, index: int) -> None:
        self.index = self._published_index = index

    return [patch.object(FeedProducer, "snapshot_loaded", restored)]


def feed_gap_not_seen() -> Patches:
    real = FeedSubscription._apply_entry

    def take(self: FeedSubscription, entry: pb.FeedEntry) -> None:
        if self.synced and entry.index > entry.previousIndex > self.image.index:
            entry.previousIndex = self.image.index
        real(self, entry)

    return [patch.object(FeedSubscription, "_apply_entry", take)]


def feed_chunks_of_two_snapshots_joined() -> Patches:
    """No wrong image comes of it, the snapshot has a checksum; but none may come at all."""
    real = FeedSubscription._add_chunk

    def take(self: FeedSubscription, response: pb.FeedSnapshotResponse) -> None:
        self._parts_index = response.index
        real(self, response)

    return [patch.object(FeedSubscription, "_add_chunk", take)]


# ---- who forms the group (seeds from CHANGES_FROM on) --------------------------------------------------------------------
def a_change_counts_when_it_is_applied() -> Patches:
    """Not when it is appended: a member that has just started counts by a list of long ago."""
    follow, tick, init = RaftCore._follow, RaftCore.doTick, LogControllers.newest

    def applied(self: RaftCore, *, anew: bool = False) -> None:
        with patch.object(LogControllers, "newest", lambda held, changes: held.at(self.raftLastApplied, changes)):
            follow(self, anew=anew)

    def do_tick(self: RaftCore, timeToWait: float = 0.0) -> None:
        tick(self, timeToWait)
        self._follow()

    def nothing_yet(self: LogControllers, changes: Any) -> Any:
        return init(self, [])

    return [
        patch.object(RaftCore, "_follow", applied),
        patch.object(RaftCore, "doTick", do_tick),
        patch.object(LogControllers, "newest", nothing_yet),
    ]


def changes_beside_one_that_is_not_committed() -> Patches:
    """And beside the rule for new leaders: what is not committed is no reason to wait."""
    return [patch.object(RaftCore, "blocked", property(lambda self: ""))]


def a_learner_counts() -> Patches:
    real = RaftCore._follow

    def follow(self: RaftCore, *, anew: bool = False) -> None:
        real(self, anew=anew)
        if self.controllers.learner:
            self._SyncObj__otherNodes = self._SyncObj__otherNodes | self._SyncObj__readonlyNodes

    return [patch.object(RaftCore, "_follow", follow)]


def replaced_in_one_step() -> Patches:
    real = controller_list.next_step

    def step(view: Any) -> Any:
        after = real(view)
        if after is None or not after.leaving or after.leaving == view.leader:
            return after
        return ControllerList(tuple(v for v in after.voters if v != after.leaving))

    def may(self: RaftCore, command: bytes) -> bool:
        after = change_in(command, self.log.last_index + 1)
        return after is not None and not self.blocked and self.selfNode.id in after.voters

    return [
        patch.object(controller_list, "next_step", step),
        patch.object(member_module, "next_step", step),
        patch.object(RaftCore, "_SyncObj__changeCluster", may),
    ]


def snapshots_without_the_controllers() -> Patches:
    real = member_log.write_snapshot_file
    return [patch.object(member_log, "write_snapshot_file", lambda path, held: real(path, replace(held, controllers=None)))]


def deaf_to_those_of_the_list_before() -> Patches:
    """A member whose newest list is not committed hears only those on it."""
    return [patch.object(RaftCore, "controllers_at", lambda self, index: self._by_log.newest(self.log.changes))]


def nobody_is_told_that_he_is_none() -> Patches:
    return [patch.object(member_log.MemberLog, "process_leader_description", lambda self, response: False)]


MUTANTS = (
    RaftMutant("leases taken from the answer instead of the question", leases_from_the_answer, 32),
    RaftMutant("votes, and pre-votes, at once after an append", votes_at_once, 51),
    RaftMutant("leases without a majority's word", leases_without_a_majority, 9),
    RaftMutant("a lease on an image that is not seen", lease_on_an_old_image, 15),
    RaftMutant("a session ended early: with the connection", session_ended_with_the_connection, 6),
    RaftMutant("sessions shorter than leases", sessions_shorter_than_leases, 6),
    RaftMutant("sessions not restarted by a new leader", sessions_not_restarted_by_a_new_leader, 2),
    RaftMutant("the leader takes an unknown outcome for a refusal", unknown_outcome_is_a_refusal_of_the_leader, 9),
    RaftMutant("silence taken for a refusal", silence_is_a_refusal, 2),
    RaftMutant("another operation id with every attempt", new_operation_id_with_every_attempt, 0),
    RaftMutant("a clean-stop marker after an unclean stop", clean_stop_marker_after_an_unclean_stop, 1),
    RaftMutant("folders of unknown streams deleted", folders_of_unknown_streams_deleted, 1),
    RaftMutant("probation ended early: with a leader", probation_ends_with_a_leader, 4),
    RaftMutant("a folder that went back is believed", folder_that_went_back_is_believed, 1),
    RaftMutant("entries cut that are held", held_entries_cut, 20),
    RaftMutant("conflicts left to the library", conflicts_left_to_the_library, 2, slow=True),
    RaftMutant("the journal is not flushed", journal_not_flushed, 1),
    RaftMutant("duties without a barrier", duties_without_a_barrier, 2),
    RaftMutant("a snapshot served at index 0", snapshot_served_at_index_0, 0),
    RaftMutant("a feed that goes on over a restored image", feed_goes_on_over_a_restored_image, 6),
    RaftMutant("a gap in the feed not seen", feed_gap_not_seen, 0),
    RaftMutant("chunks of two snapshots joined", feed_chunks_of_two_snapshots_joined, 15, slow=True),
    RaftMutant("controllers: a change counts when it is applied", a_change_counts_when_it_is_applied, 1000, slow=True),
    RaftMutant(
        "controllers: changes beside one that is not committed", changes_beside_one_that_is_not_committed, 1006, slow=True
    ),
    RaftMutant("controllers: a learner counts", a_learner_counts, 1001, slow=True),
    RaftMutant("controllers: replaced in one step", replaced_in_one_step, 1003, slow=True),
    RaftMutant("controllers: snapshots without them", snapshots_without_the_controllers, 1002, slow=True),
    RaftMutant("controllers: deaf to those of the list before", deaf_to_those_of_the_list_before, 1000, slow=True),
    RaftMutant("controllers: nobody is told that he is none", nobody_is_told_that_he_is_none, 1000, slow=True),
)
