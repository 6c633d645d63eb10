"""Services that are registered on the node of one replica: their roles, health, and the promotions that wait for them. Pure.

Goal: a service is LEADER only on the node of the partition's leader, after the promotion, and after it has replayed the log up
to the offset that was committed when the promotion began. A promotion waits for the services on the candidate's node.
Constraint: a service that hangs must not keep the partition without a leader.

The replica answers every heartbeat of a service with its current order (JoinLog). So a lost frame costs one heartbeat. The
orders:

    this replica               its order
    follows                    FOLLOWER, gets records up to HW
    is the candidate           FOLLOWER, gets records up to ``stop`` = HW + 1. The promotion waits for the services
    leads, not yet replayed    FOLLOWER, up to ``stop`` (a service that registers with a leader)
    leads, replayed            LEADER, gets records up to HW. It first needs all records of earlier epochs, because a
                               decision of an earlier LEADER may be among them (``bad_records.py``)

``stop`` is never above HW + 1. Later records may be truncated, and a service cannot undo a record. A service that hangs makes
one promotion time out, so that a node with a healthy service is tried. A slow service delays a promotion by at most
``patience_ns``. Then the node leads without it. The next promotions do not wait for either service until it has caught up once.
No promotion waits for a service that is blocked at a record that it cannot apply.

Services fail at most one promotion of a partition, whatever names they have [L12]. A promotion waits only for services that
have caught up with the log since they registered. After a failed promotion, no later one fails because of services: it waits
for half of ``patience_ns``, then the node leads without the late ones. This holds on a node until a promotion there had all its
services in time, and on every node while the partition's election has skipped a candidate.

An instance stays registered while it sends heartbeats, even if another process says that it is this service. A hello alone
proves nothing. When an instance has been silent for half a session, the next process that registers replaces it. The replaced
instance then tries to register again.

``ServicesHealth`` moves the leadership away from a node whose services are unhealthy.

A compacted stream takes no services, because a replay on one node would miss records that another node has applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey, check_name
from liftpy.core.services.snapshot import MAX_POSITIONS, Difference
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.errors import InvalidNameError

MAX_SERVICES = 16
STOPPED, FAILED, DIVERGED, SILENT = "stopped", "failed", "diverged", "silent"
"""How a service ended: on request, with an error, with a state that differs from other nodes, or without a last message."""
_ENDINGS = {pb.ServiceHello.FAILED: FAILED, pb.ServiceHello.DIVERGED: DIVERGED}
_ENDING_TEXTS = {
    STOPPED: "it was stopped",
    FAILED: "it failed",
    DIVERGED: "its state differs from those beside other nodes",
    SILENT: "nothing is heard from it",
}
NO_STOP = -1
_MAX_PROBLEM = 500
_NOTHING_YET = {"sinceOutputMs": -1, "sinceSnapshotMs": -1}
_FIGURE_NAMES = {name: re.sub(r"(?=[A-Z])", "_", name).lower() for name in pb.ServiceFigures.DESCRIPTOR.fields_by_name}
"""Field of ServiceFigures -> its name with underscores."""
REPORT_EVERY_S = 1.0
QUIET_ROUNDS = 2
"""Factor of the report interval while all services are healthy and unchanged. A report is repeated before it expires."""
REST_S = 60.0
_BELIEVED_S = 4.0
"""Time for which a report is valid, in seconds."""
MAX_REPORTED = 16
"""Maximum number of services in one report, and of nodes whose reports are kept."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """State of the replica that its services need to know.

    ``high_watermark``: inclusive. ``log_end_offset``: exclusive. ``leads``: True if it leads with a lease and all records of
    earlier epochs are committed.
    """

    leads: bool
    candidate: bool
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    epoch_start_offset: int = 0
    """First offset of the epoch in which the replica leads."""
    turn: int = 0
    """Place of this node among the replicas that do not lead, from 1. 0: this node leads."""
    is_retry: bool = False
    """True if the election has skipped another candidate."""


@dataclass(frozen=True, slots=True)
class SendToService:
    """Effect: the caller must send ``message`` to ``inbox``, the inbox of a service."""

    inbox: str
    message: pb.JoinLog | pb.ServiceRefusal


@dataclass(frozen=True, slots=True)
class ServicesReplayed:
    """Effect: the services that a promotion waits for have replayed the log up to ``position`` (exclusive).

    ``finished``: True if the promotion may continue.
    """

    position: int
    finished: bool


@dataclass(frozen=True, slots=True)
class ServiceEnded:
    """A service that ended without a request of an operator.

    ``ending``: failed, diverged or silent. ``reason``: text for operators.
    """

    service: str
    ending: str
    reason: str

    def __str__(self) -> str:
        return f"{self.service} {self.ending}: {self.reason}"


Effect = SendToService | ServicesReplayed | ServiceEnded


@dataclass(slots=True)
class _Instruction:
    """Current instruction to a service: its role, and up to which offset it reads."""

    role: pb.ServiceRole
    stop_position: int
    leader_epoch: int
    kind: str
    """Kind of the order: follow, replay (for a promotion), catch-up (on the leader's node) or lead."""
    ack_id: int
    acknowledged: bool = False


@dataclass(slots=True)
class _ServiceSession:
    """One service that is registered for the replica, with the values of its last heartbeat."""

    service: str
    instance: int
    inbox: str
    expires_ns: int
    hello: pb.ServiceHello = field(default_factory=pb.ServiceHello)
    """Last heartbeat. It has figures, and its texts and lists are not longer than allowed."""
    position: int = 0
    problem: str = ""
    order: _Instruction | None = None
    replayed_epoch: int = 0
    """LeaderEpoch in which the service finished its replay up to the stop position."""
    has_caught_up: bool = False
    """True if a service of this name has caught up since it first registered. A promotion waits for it."""
    excused: bool = False
    """True if promotions do not wait for the service. It made one time out and has not caught up since."""
    failing: bool = False
    """True if the service is blocked at a record that it cannot apply."""
    snapshot_position: int = 0
    """Position of the newest snapshot from which a replay can start. 0: none."""
    snapshots_wanted: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)
    """Position -> digest of the service's newest snapshots, by its last report."""
    lowest_version: int = 0
    """Lowest version that the code in the hosts of all replicas supports. 0: not known for all."""
    effect_numbers: pb.EffectNumbers = pb.EFFECT_NUMBERS_UNCHANGED
    """Numbering of effects that the service should activate."""
    agreed: tuple[pb.AgreedSnapshot, ...] = ()
    """Position -> (digest, number of nodes) of snapshots that the other nodes have reported."""
    differs: str = ""
    """Text about a difference between the state of the service here and on other nodes. '': no difference is known."""


@dataclass(slots=True)
class _EndedService:
    """A service that was registered and has ended.

    ``failed_at``: offset of the record at which it failed, -1: it did not fail. ``snapshot_position``: position of its
    newest snapshot. ``ending``: stopped, failed, diverged or silent.
    """

    failed_at: int
    snapshot_position: int
    position: int = 0
    has_caught_up: bool = False
    since_ns: int = 0
    ending: str = STOPPED
    problem: str = ""

    @property
    def reason(self) -> str:
        """Text for operators: the reason why the service has ended. It is never ''."""
        return self.problem or _ENDING_TEXTS[self.ending]


@dataclass(slots=True)
class _PromotionWait:
    """A promotion that waits for services. ``names``: services that must replay before it continues."""

    leader_epoch: int
    stop_position: int
    names: frozenset[str]
    ends_ns: int
    """Monotonic time until which the promotion waits for slow services."""
    began: dict[str, int]
    """Service -> its position when the promotion started."""
    may_fail: bool
    """True if the promotion fails when a service hangs."""
    position: int = field(default=-1)
    """Position of the slowest service, from its last report."""


class ServiceSessions:
    """All services that are registered for one replica. ``now_ns`` in its methods is monotonic time."""

    __slots__ = (
        "_ack_ids", "_compacted", "_ended_services", "_failed_one", "_gate", "_lease_ms", "_node", "_partition",
        "_patience_ns", "_session_ns", "_sessions", "_shown_ns", "_stream", "_uid",
    )  # fmt: skip

    def __init__(
        self,
        key: PartitionKey,
        node: str,
        *,
        ack_ids: Iterator[int],
        session_ns: int,
        lease_ms: int,
        patience_ns: int,
        compacted: bool = False,
        shown_ns: int = 24 * 3600 * NS_PER_S,
    ) -> None:
        """Create the sessions of the services of one replica on ``node``.

        Args:
            key: Partition of the replica.
            node: Id of the node.
            ack_ids: Ids of orders. Each is above all ids that the node has used for this partition, also by earlier replicas
                and processes.
            session_ns: Time without a heartbeat after which a service has ended.
            lease_ms: Time for which a service may follow its last order.
            patience_ns: Maximum time for which a promotion waits for services.
            compacted: True if the stream is compacted, so that it takes no services.
            shown_ns: Time for which ``recently_ended`` returns a service.
        """
        self._stream, self._uid, self._partition, self._node = key.stream, key.uid, key.partition, node
        self._ack_ids = ack_ids
        self._session_ns = session_ns
        self._lease_ms = lease_ms
        self._patience_ns = patience_ns
        self._compacted = compacted
        self._shown_ns = shown_ns
        self._sessions: dict[str, _ServiceSession] = {}
        self._ended_services: dict[str, _EndedService] = {}
        """Services that were registered and have ended."""
        self._gate: _PromotionWait | None = None
        self._failed_one = False
        """True if services made the last waiting promotion on this node fail."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, service: str) -> bool:
        return service in self._sessions

    # ---- messages of services ----------------------------------------------------------------------------------------------
    def hello(self, hello: pb.ServiceHello, inbox: str, view: ReplicaView, now_ns: int) -> list[Effect]:
        """Process a registration or a heartbeat of a service, and return the messages to send, such as its order.

        ``inbox``: inbox of the service. The caller has checked it. ``view``: state of the replica.
        """
        refusal = self._why_not(hello, now_ns)
        if refusal is not None:
            return [] if hello.leaving else [SendToService(inbox, self._refusal(hello, *refusal))]
        if hello.leaving:
            return self._end_session(hello, now_ns)
        session = self._sessions.get(hello.service)
        if session is None or session.instance != hello.instance:
            ended_service = self._ended_services.pop(hello.service, None)
            excused = session is not None and session.excused
            known = session if session is not None else ended_service
            session = self._sessions[hello.service] = _ServiceSession(hello.service, hello.instance, inbox, 0, excused=excused)
            session.has_caught_up = known is not None and known.has_caught_up
        session.inbox, session.expires_ns = inbox, now_ns + self._session_ns
        session.hello = hello = _bounded(hello)
        session.problem = hello.problem
        session.digests = {snapshot.position: snapshot.digest for snapshot in hello.snapshots}
        session.failing, session.snapshot_position = hello.failing, max(0, hello.snapshotPosition)
        if session.failing and self._gate is not None:
            self._gate.names -= {session.service}
        self._note_position(session, hello.position, view)
        self._send_order(session, view)
        return [self._join_log(session, view), *self._check_gate()]

    def ack(self, ack: pb.ServiceAck, view: ReplicaView) -> list[Effect]:
        """Process the report of a service that it has followed its order. Return the messages to send.

        The service has taken its role, or has replayed the log up to its stop position.
        """
        session = self._sessions.get(ack.service)
        order = session.order if session is not None else None
        if session is None or order is None or session.instance != ack.instance or ack.ackId != order.ack_id:
            return []
        order.acknowledged = True
        self._note_position(session, ack.position, view)
        if order.stop_position != NO_STOP and ack.position >= order.stop_position:
            session.replayed_epoch = order.leader_epoch
            session.excused = False
        effects: list[Effect] = [self._join_log(session, view)] if self._send_order(session, view) else []
        return [*effects, *self._check_gate()]

    def _why_not(self, hello: pb.ServiceHello, now_ns: int) -> tuple[pb.ServiceRefusal.Reason, str] | None:
        try:
            check_name(hello.service, "service")
        except InvalidNameError as error:
            return pb.ServiceRefusal.MALFORMED, str(error)
        if hello.streamUid and hello.streamUid != self._uid:
            return (
                pb.ServiceRefusal.WRONG_STREAM,
                f"the uid of the stream is {self._uid}, not {hello.streamUid}: it was deleted and created again",
            )
        if self._compacted:
            return pb.ServiceRefusal.COMPACTED, (
                f"{self._stream} is compacted: a replay would miss records that other nodes have applied. "
                "Use a stream without compaction"
            )
        session = self._sessions.get(hello.service)
        if session is None and len(self._sessions) >= MAX_SERVICES:
            return (
                pb.ServiceRefusal.TOO_MANY,
                f"{MAX_SERVICES} services are already registered for this partition. Stop one of them",
            )
        if session is None or session.instance == hello.instance:
            return None
        if not hello.first:
            return pb.ServiceRefusal.REPLACED, "another instance of this service has registered with this node"
        if now_ns < session.expires_ns - self._session_ns // 2:
            return (
                pb.ServiceRefusal.TAKEN,
                "another instance of this service is registered with this node. Stop it, or wait for the end of its session",
            )
        return None

    def _end_session(self, hello: pb.ServiceHello, now_ns: int) -> list[Effect]:
        session = self._sessions.get(hello.service)
        if session is None or session.instance != hello.instance:
            return []
        session.failing, session.position = hello.failing, max(session.position, hello.position)
        session.problem = hello.problem[:_MAX_PROBLEM]
        ended = self._forget(session, now_ns, _ENDINGS.get(hello.ending, STOPPED))
        if self._gate is not None:
            self._gate.names -= {hello.service}
        return [*ended, *self._check_gate()]

    def _note_position(self, session: _ServiceSession, position: int, view: ReplicaView) -> None:
        session.position = position
        if position > view.high_watermark:
            session.excused, session.has_caught_up = False, True

    def expire(self, now_ns: int) -> list[ServiceEnded]:
        late = [session for session in self._sessions.values() if now_ns >= session.expires_ns]
        return [ended for session in late for ended in self._forget(session, now_ns, SILENT)]

    def _forget(self, session: _ServiceSession, now_ns: int, ending: str) -> list[ServiceEnded]:
        del self._sessions[session.service]
        ended_service = self._ended_services[session.service] = _EndedService(
            failed_at=session.position if session.failing else -1,
            snapshot_position=session.snapshot_position,
            position=session.position,
            has_caught_up=session.has_caught_up,
            since_ns=now_ns,
            ending=ending,
            problem=session.differs or session.problem,
        )
        if len(self._ended_services) > MAX_SERVICES:
            del self._ended_services[next(iter(self._ended_services))]
        return [] if ending == STOPPED else [ServiceEnded(session.service, ending, ended_service.reason)]

    @property
    def expires_ns(self) -> int:
        """Monotonic time in ns at which the first session ends unless its service sends a heartbeat.

        At least one service must be registered.
        """
        return min(session.expires_ns for session in self._sessions.values())

    def condition(self, service: str) -> tuple[object, ...]:
        """Return a value that describes the service here. When it changes, the caller soon sends a report to the other nodes."""
        session = self._sessions.get(service)
        if session is None:
            return ()
        return session.instance, session.failing, session.hello.life, session.hello.version, session.digests

    def retain_from(self) -> int | None:
        """Return the first offset (inclusive) that services still need, so that retention keeps it. None: there is no service.

        It is the lowest snapshot position. Services that have ended also count.
        """
        here = [session.snapshot_position for session in self._sessions.values()]
        return min((*here, *(ended_service.snapshot_position for ended_service in self._ended_services.values())), default=None)

    def snapshot_wanted(self, service: str, view: ReplicaView) -> list[Effect]:
        session = self._sessions.get(service)
        if session is None or session.order is None:
            return []
        session.snapshots_wanted += 1
        return [self._join_log(session, view)]

    def digests(self) -> dict[str, tuple[int, dict[int, bytes]]]:
        """Return the newest snapshots of each registered service, by its name: (process number, digest by position)."""
        return {name: (session.hello.life, session.digests) for name, session in self._sessions.items()}

    def agree(self, service: str, snapshots: Mapping[int, tuple[bytes, int]]) -> None:
        """Store which snapshots of ``service`` the other nodes have: (digest, number of nodes) by position.

        The next orders tell the service about them if it searches for a snapshot.
        """
        if service in self._sessions:
            snapshot_messages = (
                pb.AgreedSnapshot(position=at, digest=digest, nodes=nodes) for at, (digest, nodes) in snapshots.items()
            )
            self._sessions[service].agreed = tuple(snapshot_messages)

    def versions(self) -> dict[str, int]:
        return {name: session.hello.version for name, session in self._sessions.items()}

    def can_do(self, service: str, version: int) -> None:
        """Store the highest version that the code of ``service`` on the nodes of all replicas supports. 0: not known."""
        if service in self._sessions:
            self._sessions[service].lowest_version = version

    def effect_numbers(self) -> dict[str, pb.EffectNumbers]:
        """Return the newest numbering of effects that each service supports, by its name."""
        return {name: session.hello.effectNumbers for name, session in self._sessions.items()}

    def number_effects(self, service: str, numbers: pb.EffectNumbers) -> None:
        """Store the numbering of effects that ``service`` should activate."""
        if service in self._sessions:
            self._sessions[service].effect_numbers = numbers

    def differs(self, service: str, difference: Difference | None) -> list[Effect]:
        """Store whether the state of ``service`` here differs from other nodes. ``difference`` None: it does not.

        If it has diverged, return a message that stops the service.
        """
        session = self._sessions.get(service)
        if session is None:
            return []
        session.differs = "" if difference is None else str(difference)
        if difference is None or not difference.diverged:
            return []
        hello = pb.ServiceHello(service=service, stream=self._stream, partition=self._partition, instance=session.instance)
        refusal = self._refusal(hello, pb.ServiceRefusal.DIVERGED, session.differs)
        refusal.position = difference.position
        return [SendToService(session.inbox, refusal)]

    def states(self) -> dict[str, ServiceHealth]:
        health = {name: ServiceHealth(ended_service.failed_at, False) for name, ended_service in self._ended_services.items()}
        return health | {name: ServiceHealth(s.position, not s.failing) for name, s in self._sessions.items()}

    # ---- events of the replica ---------------------------------------------------------------------------------------------
    def replay(self, view: ReplicaView, now_ns: int) -> list[Effect]:
        """Request that the services of a candidate replay the log. Return the messages that send this request.

        When the last service has replayed the log, the method that handles its answer returns the effect Replayed. If there are
        no services, this method returns the effect.
        """
        stop_position = view.high_watermark + 1
        names = frozenset(name for name, s in self._sessions.items() if s.has_caught_up and not (s.excused or s.failing))
        began = {name: self._sessions[name].position for name in names}
        may_fail = not (self._failed_one or view.is_retry)
        patience_ns = self._patience_ns if may_fail else self._patience_ns // 2  # it ends before the candidate's own timeout
        self._gate = _PromotionWait(view.leader_epoch, stop_position, names, now_ns + patience_ns, began, may_fail)
        return [*self._new_orders(view), *self._check_gate()]

    @property
    def waits_until_ns(self) -> int | None:
        """Monotonic time in ns until which a promotion waits for services. None: no promotion waits.

        At this time the caller calls ``stop_waiting_for_services``.
        """
        return self._gate.ends_ns if self._gate is not None else None

    def stop_waiting_for_services(self, now_ns: int) -> list[Effect]:
        """Continue a promotion without the slow services, after its wait has ended. Return the effect Replayed.

        If a service hangs (it applied nothing during the wait) or has ended, the promotion may fail instead. Then the result is
        empty.
        At most one promotion fails in this way, because the service may work on another node.
        """
        gate = self._gate
        if gate is None or now_ns < gate.ends_ns:
            return []
        late = [name for name in gate.names if not self._replayed(name, gate)]
        hangs = [name for name in late if name not in self._sessions or self._sessions[name].position <= gate.began[name]]
        if hangs and gate.may_fail:
            return []
        for name in late:
            if name in self._sessions:
                self._sessions[name].excused = True
        self._gate = None
        return [ServicesReplayed(gate.stop_position, True)]

    def _replayed(self, name: str, gate: _PromotionWait) -> bool:
        session = self._sessions.get(name)
        return session is not None and session.replayed_epoch == gate.leader_epoch

    def role_changed(self, view: ReplicaView) -> list[Effect]:
        """Return new orders for the services, as messages to send, because the role or phase of the replica has changed."""
        gate = self._gate
        if gate is not None and not (view.candidate and view.leader_epoch == gate.leader_epoch):
            self._gate, self._failed_one = None, True
            for name in gate.names & self._sessions.keys():
                session = self._sessions[name]
                session.excused = session.replayed_epoch != gate.leader_epoch
        return self._new_orders(view)

    def _new_orders(self, view: ReplicaView) -> list[Effect]:
        return [self._join_log(session, view) for session in self._sessions.values() if self._send_order(session, view)]

    def _send_order(self, session: _ServiceSession, view: ReplicaView) -> bool:
        replayed = session.replayed_epoch == view.leader_epoch and session.position >= view.epoch_start_offset
        gate = self._gate
        role, stop_position, kind = pb.SERVICE_FOLLOWER, NO_STOP, "follow"
        if view.leads and replayed:
            role, kind = pb.SERVICE_LEADER, "lead"
        elif view.leads:
            stop_position, kind = view.high_watermark + 1, "catch-up"
        elif gate is not None and gate.leader_epoch == view.leader_epoch:
            stop_position, kind = gate.stop_position, "replay"
        order = session.order
        if order is not None and (order.kind, order.leader_epoch) == (kind, view.leader_epoch):
            return False
        session.order = _Instruction(role, stop_position, view.leader_epoch, kind, next(self._ack_ids))
        return True

    def _check_gate(self) -> list[Effect]:
        gate = self._gate
        if gate is None:
            return []
        if all(self._replayed(name, gate) for name in gate.names):
            self._gate, self._failed_one = None, self._failed_one and not gate.names
            return [ServicesReplayed(gate.stop_position, True)]
        sessions = [self._sessions.get(name) for name in gate.names]
        position = min((session.position if session is not None else -1) for session in sessions)
        if position <= gate.position:
            return []
        gate.position = position
        return [ServicesReplayed(min(position, gate.stop_position), False)]

    # ---- messages and status -----------------------------------------------------------------------------------------------
    def _join_log(self, session: _ServiceSession, view: ReplicaView) -> SendToService:
        order = session.order
        assert order is not None
        return SendToService(
            session.inbox,
            pb.JoinLog(
                service=session.service,
                stream=self._stream,
                partition=self._partition,
                streamUid=self._uid,
                instance=session.instance,
                ackId=order.ack_id,
                role=order.role,
                leaderEpoch=order.leader_epoch,
                startOffset=view.log_start_offset,
                stopPosition=order.stop_position,
                highWatermark=view.high_watermark,
                logEndOffset=view.log_end_offset if view.leads and session.position > view.log_end_offset else -1,
                leaseMs=self._lease_ms,
                node=self._node,
                leads=view.leads,
                snapshotRequest=session.snapshots_wanted,
                turn=view.turn,
                lowestVersion=session.lowest_version,
                effectNumbers=session.effect_numbers,
                agreed=session.agreed if session.hello.fetching else (),
            ),
        )

    def _refusal(self, hello: pb.ServiceHello, reason: pb.ServiceRefusal.Reason, detail: str) -> pb.ServiceRefusal:
        return pb.ServiceRefusal(
            reason=reason,
            detail=detail,
            node=self._node,
            service=hello.service,
            stream=hello.stream,
            partition=hello.partition,
            instance=hello.instance,
        )

    def report(self, high_watermark: int) -> list[dict[str, object]]:
        """Return one object per registered service for the status of the node.

        A ``since_*_s`` value (seconds) is None if the event has not happened.
        """
        waiting = self._gate.names if self._gate is not None else frozenset()
        return [
            {
                "service": session.service,
                "role": "LEADER" if session.order is not None and session.order.kind == "lead" else "FOLLOWER",
                "order": session.order.kind if session.order is not None else "",
                "acknowledged": session.order is not None and session.order.acknowledged,
                "position": session.position,
                "lag": max(0, high_watermark + 1 - session.position),
                "output_count": session.hello.outputCount,
                "emitted_end": session.hello.emittedEnd,
                "output_backlog": max(0, session.hello.outputCount - session.hello.emittedEnd),
                **_figures_as_json(session.hello.figures),
                "promotion_waits": session.service in waiting,
                "excused": session.excused,
                "failing": session.failing,
                "differs": bool(session.differs),
                "snapshot": session.snapshot_position,
                "effect_count": session.hello.effectCount,
                "replay_points": [
                    {
                        "position": point.position,
                        "output_count": point.outputCount,
                        "effect_count": point.effectCount,
                        "version": point.version,
                    }
                    for point in session.hello.replayPoints
                ],
                "version": session.hello.version,
                "active_version": session.hello.activeVersion,
                "fetched_bytes": session.hello.fetchedBytes,
                "given_bytes": session.hello.givenBytes,
                "problem": session.differs or session.problem,
            }
            for session in self._sessions.values()
        ]

    @property
    def has_any(self) -> bool:
        return bool(self._sessions or self._ended_services)

    def recently_ended(self, now_ns: int) -> list[ServiceEnded]:
        """Return the services that ended without a request in the last ``shown_ns`` and did not come back, newest first."""
        return [
            ServiceEnded(name, ended_service.ending, ended_service.reason)
            for name, ended_service in reversed(self._ended_services.items())
            if ended_service.ending != STOPPED and now_ns - ended_service.since_ns < self._shown_ns
        ]

    def missing_services(self, high_watermark: int, now_ns: int) -> list[dict[str, object]]:
        """Return one object per service that has ended and did not come back, for the status of the node.

        There are at most ``MAX_SERVICES`` of them. The services that ended first come first.
        """
        return [
            {
                "service": name,
                "role": "GONE",
                "position": ended_service.position,
                "lag": max(0, high_watermark + 1 - ended_service.position),
                "failing": ended_service.failed_at >= 0,
                "snapshot": ended_service.snapshot_position,
                "gone_s": round(max(0, now_ns - ended_service.since_ns) / NS_PER_S, 1),
                "ending": ended_service.ending,
                "problem": ended_service.reason,
            }
            for name, ended_service in self._ended_services.items()
        ]


def _bounded(hello: pb.ServiceHello) -> pb.ServiceHello:
    bounded_hello = pb.ServiceHello(figures=pb.ServiceFigures(**_NOTHING_YET))
    if hello.HasField("figures"):
        bounded_hello.ClearField("figures")
    bounded_hello.MergeFrom(hello)
    bounded_hello.DiscardUnknownFields()
    bounded_hello.problem = hello.problem[:_MAX_PROBLEM]
    del bounded_hello.snapshots[MAX_POSITIONS:]
    del bounded_hello.replayPoints[MAX_POSITIONS:]
    return bounded_hello


def _figures_as_json(figures: pb.ServiceFigures) -> dict[str, object]:
    """Return the figures by their names in the status. A time is in seconds there, None: the event has not happened."""
    values: dict[str, object] = {}
    for field_name, name in _FIGURE_NAMES.items():
        value = getattr(figures, field_name)
        if name.endswith("_ms"):
            values[name.removesuffix("ms") + "s"] = None if value < 0 else round(value / 1000, 3)
        else:
            values[name] = value
    return values


# ---- health ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """Health of one service on one node.

    ``position``: offset of its next record. ``well``: True if it is registered and has not failed.
    """

    position: int
    well: bool


@dataclass(slots=True)
class _NodeReport:
    """The last report of one node about its services. ``heard_ns``: monotonic time of its arrival."""

    services: Mapping[str, ServiceHealth]
    heard_ns: int


@dataclass(slots=True)
class ServicesHealth:
    """Health of the services on all nodes, as one replica knows it. It decides to which node the leadership moves.

    If a service is dead or fails on the leader's node, and is healthy on the node of another replica, its outputs must
    continue. But a leadership transfer delays publishers for a moment, and the cause may be the same on all nodes: a record,
    the code, or an operator who stops all of them.

    The replicas report to each other once a second which services are registered, their positions, and which fail. A service is
    ill on a node while it fails there, or is not registered although it was, or is registered elsewhere. If a service is ill
    for ``grace_ns`` (longer than a restart), the leader transfers the leadership to an ISR member with a healthy instance that
    has passed the record at which it fails here. So a bad record never moves a leadership twice. No service may be ill there
    that is healthy here. Transfers are at least ``REST_S`` apart.

    Times are monotonic nanoseconds.

    Worked example: the leader's service fails at record 17. The others are blocked at 17 as well, so the leadership stays. If
    instead the leader's node has old code and the others are at 40, the leadership moves to one of them.
    """

    grace_ns: int
    _reports: dict[str, _NodeReport] = field(default_factory=dict)
    _failing_since_ns: dict[str, int] = field(default_factory=dict)
    _stays_until_ns: int = 0

    def record_states(self, node: str, services: Mapping[str, ServiceHealth], now_ns: int) -> None:
        self._forget_old(now_ns)
        if node in self._reports or len(self._reports) < MAX_REPORTED:
            self._reports[node] = _NodeReport(dict(list(services.items())[:MAX_REPORTED]), now_ns)

    def knows(self, now_ns: int) -> bool:
        """Return whether another node has reported services recently. ``now_ns``: monotonic time."""
        self._forget_old(now_ns)
        return any(report.services for report in self._reports.values())

    @property
    def anybody_is_ill(self) -> bool:
        """True if a service on this node was unhealthy at the last call of ``unhealthy_services``."""
        return bool(self._failing_since_ns)

    def _forget_old(self, now_ns: int) -> None:
        for node in [n for n, report in self._reports.items() if now_ns - report.heard_ns > _BELIEVED_S * NS_PER_S]:
            del self._reports[node]

    def unhealthy_services(self, own: Mapping[str, ServiceHealth], now_ns: int) -> list[str]:
        """Return the services on this node that have been unhealthy for longer than ``grace_ns``.

        ``own``: all services that were ever registered on this node. Call it regularly, also on a follower, so that a
        new leader knows since when a service is unhealthy.
        """
        self._forget_old(now_ns)
        elsewhere = {name for report in self._reports.values() for name in report.services}
        ill = [name for name in sorted(elsewhere | own.keys()) if name not in own or not own[name].well]
        self._failing_since_ns = {name: self._failing_since_ns.get(name, now_ns) for name in ill}
        return [name for name in ill if now_ns - self._failing_since_ns[name] >= self.grace_ns]

    def toward(self, own: Mapping[str, ServiceHealth], members: Iterable[str], now_ns: int) -> tuple[str, str]:
        """Return the node to which this leader should transfer the leadership, and the reason. ('', ''): it stays here.

        Another node is better if a service that is unhealthy here is healthy there, and no other service is worse there.

        ``own``: health of the services on this node. ``members``: the ISR without this node.
        """
        ill = self.unhealthy_services(own, now_ns)
        if not ill or now_ns < self._stays_until_ns:
            return "", ""
        best: tuple[int, int, str] = (0, 0, "")
        why = ""
        for node in sorted(members):
            there = self._reports[node].services if node in self._reports else {}
            helped = [name for name in ill if name in there and there[name].well and _has_passed(there[name], own.get(name))]
            hurt = [name for name, service in own.items() if service.well and not (name in there and there[name].well)]
            rank = (len(helped), sum(there[name].position for name in helped), node)
            if helped and not hurt and rank[:2] > best[:2]:
                best, why = rank, f"the service {', '.join(helped)} is healthy on {node}, and not here"
        if best[2]:
            self._stays_until_ns = now_ns + round(REST_S * NS_PER_S)
        return best[2], why


def _has_passed(there: ServiceHealth, here: ServiceHealth | None) -> bool:
    """Return whether the service on another node has passed the record at which it is blocked here.

    ``there``: its health on the other node. ``here``: its health on this node, None: it was never registered here.
    """
    return here is None or there.position > here.position
