"""Roles and phases of a replica, and the allowed transitions of a follower.

Status, logs and metrics show these values. ``replica.py`` decides about changes of the role.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from liftpy.errors import InvariantError


class RoleName(StrEnum):
    """Role of a replica in its partition."""

    LEADER = "LEADER"
    CANDIDATE = "CANDIDATE"
    FOLLOWER = "FOLLOWER"
    LEARNER = "LEARNER"
    """A follower that is not a replica yet. Only the status shows this value."""
    WAITING = "WAITING"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


class LeaderPhase(StrEnum):
    """Phase of a candidate or of a leader."""

    LOG_REPLICATION = "LEADER_LOG_REPLICATION"
    """The candidate flushes its LeaderEpoch and its log."""
    REPLAY = "LEADER_REPLAY"
    """The replica replays the log until the derived state covers it."""
    INIT = "LEADER_INIT"
    """A candidate waits for the metadata. A leader waits until no earlier leader may send acks."""
    READY = "LEADER_READY"
    NO_LEASE = "LEADER_NO_LEASE"
    """The leader has no lease. It accepts publishes, but sends no acks [D22]."""


class FollowerPhase(StrEnum):
    """Phase of a follower."""

    RECONCILING = "FOLLOWER_RECONCILE"
    RECONCILE_BACKOFF = "FOLLOWER_RECONCILE_BACKOFF"
    TRUNCATING = "FOLLOWER_CUT"
    FETCHING = "FOLLOWER_FETCH"
    FLUSHING = "FOLLOWER_FLUSH"
    IDLE = "FOLLOWER_IDLE"
    QUIET = "FOLLOWER_QUIET"
    FETCH_BACKOFF = "FOLLOWER_FETCH_BACKOFF"
    PACED = "FOLLOWER_PACED"
    """A learner waits until its node may copy more."""


class InactivePhase(StrEnum):
    """Phase of a replica that neither leads nor follows. The name is the reason."""

    NO_METADATA = "NO_METADATA"
    OFFLINE = "OFFLINE"
    ONLINE = "ONLINE"
    ELECTION = "ELECTION"
    CANDIDATE_FOUND = "CANDIDATE_FOUND"
    STORAGE_FAILED = "STORAGE_FAILED"
    STOPPED = "STOPPED"


Phase = LeaderPhase | FollowerPhase | InactivePhase

_F = FollowerPhase
FOLLOWS_ON: dict[FollowerPhase, frozenset[FollowerPhase]] = {
    # Before the logs agree: nothing is fetched [D11]. An empty log agrees with every other.
    _F.RECONCILING: frozenset({_F.RECONCILING, _F.RECONCILE_BACKOFF, _F.TRUNCATING, _F.FETCHING, _F.FLUSHING}),
    _F.RECONCILE_BACKOFF: frozenset({_F.RECONCILE_BACKOFF, _F.RECONCILING, _F.FETCHING}),
    _F.TRUNCATING: frozenset({_F.RECONCILING, _F.FETCHING, _F.FLUSHING}),
    # After it. Back only by what the leader says: that they diverge, or that its log starts behind this log's end [D26].
    _F.FETCHING: frozenset(
        {_F.FETCHING, _F.FLUSHING, _F.IDLE, _F.QUIET, _F.FETCH_BACKOFF, _F.RECONCILE_BACKOFF, _F.TRUNCATING}
    ),
    _F.FLUSHING: frozenset({_F.FETCHING, _F.PACED}),
    _F.PACED: frozenset({_F.FETCHING}),
    _F.IDLE: frozenset({_F.FETCHING, _F.FLUSHING, _F.FETCH_BACKOFF}),
    _F.QUIET: frozenset({_F.IDLE}),
    _F.FETCH_BACKOFF: frozenset({_F.FETCHING}),
}
"""Phase of a follower -> phases that may come next. A new follower begins in RECONCILING."""


def check_phase(phases: Sequence[FollowerPhase], after: FollowerPhase) -> None:
    """Raise InvariantError if a follower must not change from its last phase to ``after``. ``phases``: its phases so far."""
    if after not in FOLLOWS_ON[phases[-1]]:
        story = " -> ".join(phase.name for phase in phases)
        raise InvariantError(f"a follower may not go from {phases[-1].name} to {after.name}; its way: {story}")
