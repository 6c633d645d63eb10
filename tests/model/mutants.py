"""Bugs that the models are to find and that ``tests.simulation.mutants`` has no use for. Each patches shipped code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liftpy.cluster import codec, election
from liftpy.cluster.decisions import elections
from liftpy.cluster.draft import Draft
from liftpy.cluster.session import NodeSessions
from liftpy.replica import lag
from liftpy.replica.lease import Lease
from liftpy.replica.succession import Succession
from tests.simulation.mutants.catalogue import method

Patches = list[Any]


# ---- replica -----------------------------------------------------------------------------------------------------------
def joins_before_it_has_caught_up() -> Patches:
    """Nor is it looked at whether a member still holds what is committed."""
    may_join = method(lag, "may_join", lambda progress, live, high_watermark, epoch_start: progress.position is not None)
    return [may_join, method(lag, "has_lost", lambda progress, high_watermark: False)]


def two_lead_in_one_epoch() -> Patches:
    """A candidate gets the LeaderEpoch of the leader before."""

    def propose(draft: Draft, partition: Any, candidate: str) -> Any:
        return real(draft, replace(partition), candidate)

    real = election.propose
    return [method(election, "propose", propose), method(Draft, "next_leader_epochs", lambda self, count=1: 1)]


# ---- control -----------------------------------------------------------------------------------------------------------
def fenced_nodes_are_elected() -> Patches:
    return [method(Draft, "is_live", lambda self, node_id: True)]


def one_report_deposes() -> Patches:
    return [method(elections, "_most_have_reported", lambda *args: True)]


def snapshot_forgets_the_complete() -> Patches:
    real = codec.partition_to_pb

    def forget(partition: Any) -> Any:
        return real(replace(partition, passed_over=()))

    return [method(codec, "partition_to_pb", forget)]


# ---- lease -------------------------------------------------------------------------------------------------------------
def no_lease() -> Patches:
    return [method(Lease, "is_current", lambda self, now_ns: True)]


def lease_from_the_answer() -> Patches:
    """It runs from when the answer came, and not from when the heartbeat was sent."""
    from tests.model.lease import NOW

    heard = Lease.heard
    return [method(Lease, "heard", lambda self, sent_ns: heard(self, NOW))]


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
    return [method(Succession, "is_over", lambda self, now_ns: True)]


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
        self._anybody_heard = True
        for session in self._sessions.values():
            session.deadline_ns = now_ns

    return [method(NodeSessions, "lead", lead)]
