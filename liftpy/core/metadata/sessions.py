"""``NodeSessions``: on the metadata leader, decides from heartbeats which nodes are alive, and grants leases. Pure.

The metadata leader proposes FenceNode when a node sends no heartbeat for ``session_s``, and UnfenceNode when heartbeats return.
A new metadata leader starts all sessions from zero.

A lease lets a node ack as leader [D22]. It lasts ``lease_s`` from the time when the node sent the heartbeat, so it ends before
the session. The metadata leader grants leases only while a majority confirmed its leadership less than ``confirmed_within_s``
ago: confirmed_within_s + lease_s <= election timeout + session_s.

From feature level 5 on, the times are in the image and may change at run time. Until a change is settled, the longer times
apply.

If heartbeats are late, the metadata leader probes the node over NATS. If NATS reports no responders, the session of the node
ends together with its lease. A process keeps its node id while it sends heartbeats, and until NATS reports no responders. A
process on a suspended host keeps it for ``REGISTRATION_HOLD_S``. After a start of all nodes, sessions wait up to
``COLD_START_S``, because opening thousands of logs takes time.

``AnsweredHeartbeats`` and ``registration_result`` are the view of a node on its session.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from liftpy.config import NS_PER_MS, NS_PER_S, ReplicationConfig, SessionTimes
from liftpy.core.metadata.features import UNSUPPORTED
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb

DEFAULT_CONFIRMED_WITHIN_S = 0.4
"""Maximum time since a majority confirmed the metadata leader for granting leases, in seconds. It is below the election timeout."""
_LATE_AFTER_HEARTBEATS = 2
_MISSED_AFTER_HEARTBEATS = 1.2
"""Silence after which a node is probed over NATS, as a multiple of the heartbeat interval."""
_WANTED_NS = NS_PER_S
"""Time after a rejected registration for which the registered process is probed on NATS, in nanoseconds."""
REGISTRATION_HOLD_S = 5.0
"""Time after the last heartbeat for which a fenced process keeps its node id, in seconds. No responders on NATS end it
earlier.
"""
_DRIFT_SHARE = 50
"""Divisor of a lease that gives the reserve for different speeds of two monotonic clocks. 50 means 1/50."""
_NEVER = -1
BEATS_PER_LEASE = 3
"""Minimum number of heartbeats that a node sends within one lease."""
COLD_START_S = 15.0
"""Maximum time by which other nodes may start later than the first one, in seconds."""
MAX_WAITING = 64
"""Maximum number of answered heartbeats that wait for the image. The oldest ones are dropped first."""


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """Answer to a heartbeat. If the lease is not granted, ``error`` and ``detail`` contain the reason."""

    granted: bool
    error: pb.ControlResponse.Error = pb.ControlResponse.OK
    detail: str = ""
    lease_ms: int = 0
    """Granted lease in milliseconds. 0: the lease of the node's own settings."""


def heartbeat_every_s(own_s: float, times: SessionTimes | None) -> float:
    """Return how often a node sends heartbeats, in seconds.

    ``own_s``: interval in the settings of the node. ``times``: session times of the image, or None.
    """
    return own_s if times is None else min(own_s, times.lease_ms / 1000 / BEATS_PER_LEASE)


@dataclass(slots=True)
class _NodeSession:
    incarnation: int
    fenced: bool
    """True if the node is fenced in the image."""
    began_ns: int
    """Monotonic time when the node registered, or when this metadata leader started its sessions."""
    deadline_ns: int
    """Monotonic time when the session ends without a further heartbeat."""
    lasts_ns: int
    """Monotonic time when the session ends by its heartbeats alone. ``deadline_ns`` is earlier if NATS reports no responders."""
    leased_ns: int
    """Latest time when a granted lease can end, by the clock of this metadata leader."""
    heard_ns: int = _NEVER
    """Monotonic time of the last heartbeat that renewed the session."""
    proposed_ns: int = _NEVER
    """Monotonic time of the last proposal about this node that the image does not show yet."""
    ending: bool = False
    """True while a proposed FenceNode may still be applied. Until the image shows it, the node gets no lease."""
    beat_ns: int = _NEVER
    """Monotonic time of the last heartbeat of this incarnation, even while the node was fenced."""
    absent: bool = False
    """True if NATS reported no responders for the node, and no heartbeat has arrived since."""
    wanted_ns: int = _NEVER
    """Monotonic time when another process last requested this node id."""


class NodeSessions:
    """Sessions of all nodes on the metadata leader. ``now_ns`` is its monotonic clock."""

    def __init__(self, config: ReplicationConfig, confirmed_within_s: float = DEFAULT_CONFIRMED_WITHIN_S) -> None:
        self._config = config
        self._confirmed_within_ns = round(confirmed_within_s * NS_PER_S)
        self._cold_start_ns = round(COLD_START_S * NS_PER_S)
        self._times: SessionTimes | None = None
        """Session times of the image. None: the times of the settings apply."""
        self._times_ns = 0
        """Monotonic time when this metadata leader began to use ``_times``."""
        self._settling_ns = _NEVER
        """Monotonic time of the last proposal to settle the session times."""
        self._use_times(None, 0)
        self._sessions: dict[str, _NodeSession] = {}
        self._nodes: object = None
        self._leading = False
        self._earliest_ns = 0
        self._began_ns = 0
        """Monotonic time when this node became the metadata leader."""
        self._has_heartbeats = False
        """True if this metadata leader has answered a heartbeat."""

    def lead(self, image: ClusterImage, now_ns: int) -> None:
        self._leading = True
        self._began_ns, self._has_heartbeats = now_ns, False
        self._use_times(image.session_times, now_ns)
        self._sessions.clear()
        self._nodes = None
        self.image_changed(image, now_ns)

    def resign(self) -> None:
        self._leading = False
        self._sessions.clear()
        self._nodes = None

    def image_changed(self, image: ClusterImage, now_ns: int) -> None:
        """Start, change or end sessions after nodes were registered, fenced or removed. A new incarnation gets a new session."""
        if not self._leading:
            return
        if image.session_times != self._times:
            self._use_times(image.session_times, now_ns)
        if image.nodes is self._nodes:
            return
        self._nodes = image.nodes
        for node_id in [node_id for node_id in self._sessions if node_id not in image.nodes]:
            del self._sessions[node_id]
        for node_id in sorted(image.nodes):  # one order in all processes: an image's own is that of hashes
            node = image.nodes[node_id]
            session = self._sessions.get(node_id)
            if session is None or session.incarnation != node.incarnation:
                ends_ns, leased_ns = now_ns + self._longest_session_ns, now_ns + self._longest_lease_ns
                self._sessions[node_id] = _NodeSession(node.incarnation, node.fenced, now_ns, ends_ns, ends_ns, leased_ns)
            elif session.fenced != node.fenced:
                session.fenced, session.proposed_ns, session.ending = node.fenced, _NEVER, False
                if node.fenced:
                    session.heard_ns = (
                        _NEVER  # only a heartbeat from now on brings it back: it may have said itself that it stops
                    )
        self._earliest_ns = now_ns

    def heartbeat(self, node_id: str, incarnation: int, now_ns: int, confirmed_ns: int) -> LeaseAnswer:
        """Process a heartbeat of the process ``incarnation`` of a node. Return the answer, which grants or denies a lease.

        ``confirmed_ns``: time when a majority last confirmed this node as the metadata leader.
        """
        if not self._leading:
            return LeaseAnswer(False, error=pb.ControlResponse.NOT_METADATA_LEADER)
        if now_ns - confirmed_ns > self._confirmed_within_ns:
            return LeaseAnswer(
                False, error=pb.ControlResponse.UNAVAILABLE, detail="no majority has confirmed the metadata leader lately"
            )
        session = self._sessions.get(node_id)
        if session is None:
            return LeaseAnswer(False, error=pb.ControlResponse.NOT_FOUND, detail=f"node {node_id!r} is not registered")
        if session.incarnation != incarnation:
            detail = f"node {node_id!r} is incarnation {session.incarnation} now, not {incarnation}"
            return LeaseAnswer(False, error=pb.ControlResponse.FENCED, detail=detail)
        if not self._has_heartbeats:
            self._extend_sessions(now_ns)
        session.heard_ns = session.beat_ns = now_ns
        session.absent = False
        session.deadline_ns = session.lasts_ns = max(session.lasts_ns, now_ns + self._session_ns)
        session.leased_ns = max(session.leased_ns, now_ns + self._lease_ns)
        if session.fenced or session.ending:
            self._earliest_ns = now_ns
            return LeaseAnswer(False, error=pb.ControlResponse.FENCED, detail="the session had ended; it begins again")
        return LeaseAnswer(True, lease_ms=0 if self._times is None else self._times.lease_ms)

    def _use_times(self, times: SessionTimes | None, now_ns: int) -> None:
        config = self._config
        own_ns = round(config.session_s * NS_PER_S), round(config.lease_s * NS_PER_S)
        self._times, self._times_ns, self._settling_ns = times, now_ns, _NEVER
        if times is None:
            self._session_ns, self._lease_ns = self._longest_session_ns, self._longest_lease_ns = own_ns
        else:
            self._session_ns, self._lease_ns = times.session_ms * NS_PER_MS, times.lease_ms * NS_PER_MS
            self._longest_session_ns, self._longest_lease_ns = times.longest_session_ns, times.longest_lease_ns
        every_ns = round(heartbeat_every_s(config.heartbeat_interval_s, times) * NS_PER_S)
        self._missed_ns = round(_MISSED_AFTER_HEARTBEATS * every_ns)
        self._late_ns = _LATE_AFTER_HEARTBEATS * every_ns
        self._retry_ns = self._session_ns // 2
        self._registration_hold_ns = max(round(REGISTRATION_HOLD_S * NS_PER_S), self._longest_session_ns)
        self._earliest_ns = now_ns

    def _extend_sessions(self, now_ns: int) -> None:
        """Extend the sessions of all nodes that have not sent a heartbeat yet, when the first heartbeat of any node arrives.

        After a start of the whole cluster, the other nodes may need as long as the first one.
        """
        self._has_heartbeats = True
        took_ns = min(now_ns - self._began_ns, self._cold_start_ns)
        if took_ns > self._longest_session_ns:
            for session in self._sessions.values():
                session.began_ns = max(session.began_ns, now_ns + took_ns - self._longest_session_ns)
                session.deadline_ns = max(session.deadline_ns, session.began_ns + self._longest_session_ns)
                session.leased_ns = max(session.leased_ns, session.began_ns + self._longest_lease_ns)
        self._earliest_ns = now_ns

    def overdue(self, now_ns: int) -> list[str]:
        """Return the nodes to probe on NATS, to find out whether they still run.

        Their sessions have not ended, but their heartbeats are late or another process wants their node id.
        """
        latest_ns = now_ns - self._late_ns
        wanted_ns = max(now_ns - _WANTED_NS, 0)

        def asked_for(session: _NodeSession) -> bool:
            if session.wanted_ns >= wanted_ns and not session.absent:
                return True
            return not (session.fenced or session.ending) and max(session.heard_ns, session.began_ns) < latest_ns

        return [node_id for node_id, session in self._sessions.items() if asked_for(session)]

    def may_still_run(self, node_id: str, now_ns: int) -> bool:
        """Return whether the registered process of the node may still run, so that another process cannot get its node id."""
        session = self._sessions.get(node_id)
        if session is None:
            return False
        session.wanted_ns = now_ns
        if self.runs(node_id, now_ns):
            return True
        return not session.absent and now_ns - max(session.beat_ns, session.began_ns) <= self._registration_hold_ns

    def runs(self, node_id: str, now_ns: int) -> bool:
        session = self._sessions.get(node_id)
        if session is None:
            return False
        if not (session.fenced or session.absent):
            return True
        return session.beat_ns != _NEVER and now_ns - session.beat_ns <= (self._missed_ns if session.absent else self._late_ns)

    def record_no_responders(self, node_id: str) -> None:
        """Record that NATS reported no responders for the node. Its session ends with its lease, unless a heartbeat arrives."""
        session = self._sessions.get(node_id)
        if session is None:
            return
        session.absent = True
        if session.fenced or not self._has_heartbeats:
            return  # it may be starting, as all others are
        session.deadline_ns = min(session.deadline_ns, session.leased_ns + self._longest_lease_ns // _DRIFT_SHARE)
        self._earliest_ns = min(self._earliest_ns, session.deadline_ns)

    def take_due(self, now_ns: int) -> list[pb.FenceNode | pb.UnfenceNode | pb.SettleSessionTimes]:
        """Return the requests that the metadata leader proposes now, ordered by node id.

        A request without effect is repeated after half a session.
        """
        if not self._leading or now_ns < self._earliest_ns:
            return []
        if not self._has_heartbeats and now_ns - self._began_ns < self._cold_start_ns:
            self._earliest_ns = self._began_ns + self._cold_start_ns
            return []
        proposals: list[pb.FenceNode | pb.UnfenceNode | pb.SettleSessionTimes] = []
        self._earliest_ns = now_ns + self._session_ns
        if self._times is not None and not self._times.is_settled:
            proposals += self._settle(self._times, now_ns)
        for node_id in sorted(self._sessions):
            session = self._sessions[node_id]
            is_current = now_ns < session.deadline_ns and (session.heard_ns != _NEVER or not session.fenced)
            alive = is_current and not session.ending
            if alive != session.fenced:
                if alive:
                    self._earliest_ns = min(self._earliest_ns, session.deadline_ns)
                continue
            if session.proposed_ns == _NEVER or now_ns - session.proposed_ns >= self._retry_ns:
                session.proposed_ns, session.ending = now_ns, not alive
                kind = pb.UnfenceNode if alive else pb.FenceNode
                proposals.append(kind(nodeId=node_id, incarnation=session.incarnation))
            self._earliest_ns = min(self._earliest_ns, session.proposed_ns + self._retry_ns)
        return proposals

    def _settle(self, times: SessionTimes, now_ns: int) -> list[pb.SettleSessionTimes]:
        """Return the request that ends the use of the earlier session times. []: sessions with them may still exist."""
        at_ns = self._times_ns + self._longest_session_ns
        if self._settling_ns != _NEVER:
            at_ns = max(at_ns, self._settling_ns + self._retry_ns)
        is_due = now_ns >= at_ns
        if is_due:
            self._settling_ns, at_ns = now_ns, now_ns + self._retry_ns
        self._earliest_ns = min(self._earliest_ns, at_ns)
        return [pb.SettleSessionTimes(change=times.change)] if is_due else []

    def next_deadline_ns(self) -> int | None:
        return self._earliest_ns if self._leading else None


# ---- view of a node --------------------------------------------------------------------------------------------------


class RegistrationOutcome(Enum):
    """Meaning of the answer to a registration for the process that sent it."""

    TAKEN_IN = "this process is the node now"
    TAKEN = "another process runs in its place: ask again for as long as one may need to end"
    REFUSED = "the group never takes it"
    UNSPOKEN = "the cluster is at a feature level that this version does not speak"
    AGAIN = "nothing is decided: ask again under the same operation id"


def registration_result(response: pb.ControlResponse) -> RegistrationOutcome:
    """Return what the answer to a RegisterNode request means for the process that sent it."""
    match response.error:
        case pb.ControlResponse.OK:
            return RegistrationOutcome.TAKEN_IN
        case pb.ControlResponse.EXISTS:
            return RegistrationOutcome.TAKEN
        case pb.ControlResponse.INVALID if response.detail.startswith(UNSUPPORTED):
            return RegistrationOutcome.UNSPOKEN
        case pb.ControlResponse.INVALID | pb.ControlResponse.STALE:
            return RegistrationOutcome.REFUSED
    return RegistrationOutcome.AGAIN


class LeaseGrant(NamedTuple):
    """A granted lease."""

    sent_ns: int
    """Monotonic time when the heartbeat was sent, in nanoseconds. The lease starts then."""
    lease_ns: int
    """Granted lease in nanoseconds. 0: the lease of the node's own settings."""


class AnsweredHeartbeats:
    """Holds the answers to heartbeats until the image of this node is as new as the answer. Only then does a lease count [D22].

    An answer extends the lease from the moment that the heartbeat was sent. Both methods return the lease that counts now.
    None: there is no new one.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[LeaseGrant, int]] = deque(maxlen=MAX_WAITING)
        """Waiting leases, each with the image index of its answer."""

    def response_received(self, sent_ns: int, answer: pb.ControlResponse, seen_index: int) -> LeaseGrant | None:
        """Process the answer to a heartbeat that was sent at ``sent_ns``. Return the lease if it counts now, else None.

        ``seen_index``: index of the newest image that all parts of this node have.
        """
        granted = LeaseGrant(sent_ns, answer.leaseMs * NS_PER_MS)
        if seen_index >= answer.index:
            self._waiting.clear()
            return granted
        self._waiting.append((granted, answer.index))
        return None

    def image_seen(self, index: int) -> LeaseGrant | None:
        """Record that all parts of this node have the image ``index``. Return the lease that this allows, or None."""
        granted = None
        while self._waiting and self._waiting[0][1] <= index:
            granted, _ = self._waiting.popleft()
        return granted
