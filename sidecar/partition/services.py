"""Replicated services on this node: receives and sends the messages of ``liftpy.core.services.sessions`` [protocol:
Replicated services].

``ServiceHandler`` listens on ``<ns>.service.<node>`` for all partitions. ``PartitionServices`` belongs to one partition. A
promotion may wait for a service, but appending to the log never does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from liftpy.config import NS_PER_S
from liftpy.core.base.worker_assignment import WHOLE, WorkerShare
from liftpy.core.metadata.features import EFFECT_NUMBERS, NO_LEVEL
from liftpy.core.partition.shell import PartitionShell
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.replication.phases import LeaderPhase, RoleName
from liftpy.core.services.sessions import (
    MAX_REPORTED,
    QUIET_ROUNDS,
    REPORT_EVERY_S,
    Effect,
    ReplicaView,
    SendToService,
    ServiceEnded,
    ServiceHealth,
    ServiceSessions,
    ServicesHealth,
    ServicesReplayed,
)
from liftpy.core.services.snapshot import MAX_POSITIONS, Difference, StateComparison
from liftpy.core.services.versions import CodeVersions
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.decode_errors import REPLY, counter_name
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import ProtocolError
from liftpy.nats.request_guard import RequestGuard
from sidecar.partition.node_tools import NodeTools
from sidecar.runtime import clock
from sidecar.runtime.timers import Timer
from sidecar.transport.connection import send_answer
from sidecar.transport.ports import Bus

logger = logging.getLogger("liftpy.services")

SESSION_LEASE_FACTOR = 2
"""Time without a heartbeat after which a service is removed, as a multiple of ``ReplicationConfig.lease_s``.

It is longer than the candidate's timeout, so a service that hangs first fails a promotion.
"""
_EVERY_NS = round(REPORT_EVERY_S * NS_PER_S)
_EVENTS, _EVENTS_EVERY_NS = 4, 60 * NS_PER_S
"""Maximum number of reported ends of services, and the time in nanoseconds in which it applies."""
NOT_EVENTS = "service_end_without_event"
_BINDING: dict[MessageType, type[pb.ServiceHello | pb.ServiceAck | pb.SnapshotRequest]] = {
    MessageType.SERVICE_HELLO: pb.ServiceHello,
    MessageType.SERVICE_ACK: pb.ServiceAck,
    MessageType.SNAPSHOT_REQUEST: pb.SnapshotRequest,
}


OnAnswer = Callable[[pb.JoinLog | pb.ServiceRefusal], None]
"""Callback for messages to a service in this process."""


class NoServices:
    """Stands for the services of a partition that had none yet.

    Most partitions have no services, and a ``PartitionServices`` needs 2 KB. ``feed``: passes an event to the replica.
    """

    __slots__ = ("_feed",)

    known = False

    def __init__(self, feed: Callable[[events.Event], None]) -> None:
        self._feed = feed

    def replay(self, end_offset: int) -> None:
        """Feed ReplayFinished at once, because no service must replay the log."""
        self._feed(events.ReplayFinished(end_offset=end_offset))

    def role_changed(self) -> None: ...

    def close(self) -> None: ...

    def retain_from(self) -> int | None:
        return None

    def report(self) -> list[dict[str, object]]:
        return []

    def left_services(self) -> list[dict[str, object]]:
        return []

    def services_that_ended(self) -> list[ServiceEnded]:
        return []


class PartitionServices:
    """The replicated services of one partition on this node. The partition gets ReplayProgressed and ReplayFinished."""

    def __init__(self, partition: PartitionShell, node: NodeTools) -> None:
        config, node_id = node.settings.replication, node.settings.node_id
        self.key = key = partition.key
        self._partition = partition
        self._node = node
        self._bus = node.links.replication
        self._counters = partition.counters
        self._timers = node.timers
        self._replica = partition.replica
        self._node_id = node_id
        self._agreements: dict[str, StateComparison] = {}
        self._differences: dict[str, Difference | None] = {}
        self._versions = CodeVersions()
        self._effect_numbers = CodeVersions()
        """Newest numbering of effects that the services on all nodes support."""
        self._here: dict[str, OnAnswer] = {}
        """Inbox -> callback of a service in this process, which gets its messages without NATS."""
        self._wellness = ServicesHealth(round(config.service_grace_s * NS_PER_S))
        self._session_ns = round(max(SESSION_LEASE_FACTOR * config.lease_s, config.candidate_timeout_s * 1.5) * NS_PER_S)
        self._sessions = ServiceSessions(
            key,
            node_id,
            ack_ids=node.ack_ids,
            session_ns=self._session_ns,
            lease_ms=round(config.lease_s * 1000),
            patience_ns=round(config.candidate_timeout_s * NS_PER_S),
            compacted=partition.log.config.is_cleaned,
            shown_ns=round(config.service_ended_retention_s * NS_PER_S),
        )
        self._events_ns: list[int] = []
        """Monotonic times of the last reported ends of services."""
        self._check = Timer(self._expire)
        self._patience = Timer(self._stop_waiting_for_services)
        self._checks = False
        """True if a check for overdue heartbeats is scheduled."""
        self._report = Timer(self._broadcast_states)
        self._report_ns = 0
        """Monotonic time of the next scheduled report. 0: none is scheduled."""
        self._reported: tuple[bytes, Sequence[str]] = (b"", ())
        """Last sent report, and its receivers."""
        self._replay_end_offset = 0
        """Offset up to which services must replay, exclusive. 0: no replay is requested."""

    # ---- what the worker says ----------------------------------------------------------------------------------------------
    def replay(self, end_offset: int) -> None:
        """Let the services of a candidate replay the log up to ``end_offset`` (exclusive), as the replica has done.

        If this replica is no candidate, feed ReplayFinished at once.
        """
        if self._replica.role is not RoleName.CANDIDATE:
            self._partition.feed(events.ReplayFinished(end_offset=end_offset))
            return
        self._replay_end_offset = end_offset
        self._carry_out(self._sessions.replay(self._view(), clock.now_ns()))
        if self._sessions.waits_until_ns is not None:
            self._timers.set(self._patience, self._sessions.waits_until_ns)

    def role_changed(self) -> None:
        """Send the new role or phase of this replica to its services."""
        self._carry_out(self._sessions.role_changed(self._view()))

    def close(self) -> None:
        self._timers.cancel(self._check)
        self._timers.cancel(self._patience)
        self._timers.cancel(self._report)

    # ---- what services say -------------------------------------------------------------------------------------------------
    def hello(self, hello: pb.ServiceHello, inbox: str, on_answer: OnAnswer | None = None) -> None:
        """Process a ServiceHello: a service registers, or repeats this as a heartbeat.

        ``inbox``: subject for answers. ``on_answer``: callback for answers to a service in this process, used instead of the inbox.
        """
        if hello.leaving:
            self._here.pop(inbox, None)
        elif on_answer is not None:
            self._here[inbox] = on_answer
        before = self._sessions.condition(hello.service)
        self._carry_out(self._sessions.hello(hello, inbox, self._view(), clock.now_ns()))
        if self._sessions.condition(hello.service) != before:
            self._partition.mark_changed()
            self._report_within()
        if len(self._sessions) and not self._checks:
            self._expire()

    def record_states(self, report: pb.ServiceReport) -> None:
        """Record the positions and states of the services on another node, which that node has reported."""
        state = self._replica.state
        if report.streamUid != self.key.uid or report.node == self._node_id or report.node not in state.replicas:
            return
        services = {
            service.service: ServiceHealth(service.position, not service.failing) for service in report.services[:MAX_REPORTED]
        }
        self._wellness.record_states(report.node, services, clock.now_ns())
        for service in report.services[:MAX_REPORTED]:
            if service.service in self._sessions:
                self._versions.note_version(service.service, report.node, service.version, clock.now_ns())
                self._effect_numbers.note_version(service.service, report.node, service.effectNumbers, clock.now_ns())
                digests = {snapshot.position: snapshot.digest for snapshot in service.snapshots[:MAX_POSITIONS]}
                agreement = self._agreements.setdefault(service.service, StateComparison())
                agreement.set_digests(report.node, service.life, digests)
                self._sessions.agree(service.service, agreement.agreed(self._node_id))
        if not self._report_ns:
            self._report_within()

    def ack(self, ack: pb.ServiceAck) -> None:
        """Process an ack of a service: it has taken its role, or has replayed the log."""
        self._carry_out(self._sessions.ack(ack, self._view()))

    def retain_from(self) -> int | None:
        """Return the offset of the first record that is in no snapshot of some service. Retention keeps the records from there on.

        None: there are no services.
        """
        return self._sessions.retain_from()

    def snapshot_wanted(self, service: str) -> None:
        self._carry_out(self._sessions.snapshot_wanted(service, self._view()))

    @property
    def known(self) -> bool:
        """True if the partition has or had services on this node."""
        return self._sessions.has_any

    def report(self) -> list[dict[str, object]]:
        return self._sessions.report(self._replica.high_watermark) if len(self._sessions) else []

    def left_services(self) -> list[dict[str, object]]:
        """Return the services that no longer run on this node, for the status page."""
        return self._sessions.missing_services(self._replica.high_watermark, clock.now_ns())

    def services_that_ended(self) -> list[ServiceEnded]:
        """Return the services that have ended recently without a request to leave, for status and metrics."""
        return self._sessions.recently_ended(clock.now_ns())

    # ---- inside ------------------------------------------------------------------------------------------------------------
    def _view(self) -> ReplicaView:
        replica = self._replica
        high_watermark, epoch_start_offset = replica.high_watermark, replica.epoch_start_offset
        return ReplicaView(
            leads=replica.role is RoleName.LEADER
            and replica.phase == LeaderPhase.READY
            and high_watermark + 1 >= epoch_start_offset,
            candidate=replica.role is RoleName.CANDIDATE,
            leader_epoch=replica.leader_epoch,
            log_start_offset=self._partition.log.log_start_offset,
            high_watermark=high_watermark,
            epoch_start_offset=epoch_start_offset,
            log_end_offset=self._partition.log.log_end_offset,
            turn=_turn(self._node_id, replica.state.replicas, replica.state.leader),
            is_retry=bool(replica.state.passed_over),
        )

    def _numbers_to_activate(self, service: str) -> pb.EffectNumbers:
        """Return the numbering of effects that ``service`` should activate.

        Below feature level ``EFFECT_NUMBERS``, services of earlier versions may start. They count effects.
        """
        level = self._node.group.image.feature_level
        if NO_LEVEL < level < EFFECT_NUMBERS:
            return pb.EFFECT_NUMBERS_BY_COUNT
        lowest = self._effect_numbers.lowest(service, self._replica.state.replicas, clock.now_ns())
        return pb.EFFECT_NUMBERS_BY_RECORD if level and lowest >= pb.EFFECT_NUMBERS_BY_RECORD else pb.EFFECT_NUMBERS_UNCHANGED

    def _report_within(self) -> None:
        self._report_by(clock.now_ns() + _EVERY_NS)

    def _report_by(self, at_ns: int) -> None:
        if not self._report_ns or at_ns < self._report_ns:
            self._report_ns = at_ns
            self._timers.set(self._report, at_ns)

    def _broadcast_states(self) -> None:
        """Send the states of the services to the other replicas. Then check whether another replica should lead.

        If all services work, reports are half as frequent.
        """
        self._report_ns, quiet = 0, False
        own, now_ns, state = self._sessions.states(), clock.now_ns(), self._replica.state
        digests = self._sessions.digests()
        self._compare(digests)
        versions = self._sessions.versions()
        for name, version in versions.items():
            self._versions.note_version(name, self._node_id, version, now_ns)
            self._sessions.can_do(name, self._versions.lowest(name, state.replicas, now_ns))
        numbers = self._sessions.effect_numbers()
        for name, newest in numbers.items():
            self._effect_numbers.note_version(name, self._node_id, newest, now_ns)
            self._sessions.number_effects(name, self._numbers_to_activate(name))
        if len(self._sessions):
            report = pb.ServiceReport(
                node=self._node_id,
                stream=self.key.stream,
                partition=self.key.partition,
                streamUid=self.key.uid,
                services=[
                    pb.ServiceReport.State(
                        service=name,
                        position=service.position,
                        failing=not service.well,
                        snapshots=[pb.SnapshotDigest(position=at, digest=digest) for at, digest in digests[name][1].items()],
                        life=digests[name][0],
                        version=versions.get(name, 0),
                        effectNumbers=numbers.get(name, pb.EFFECT_NUMBERS_UNCHANGED),
                    )
                    for name, service in own.items()
                    if name in self._sessions
                ],
            )
            frame = frames.seal(report)
            quiet, self._reported = (frame, state.replicas) == self._reported, (frame, state.replicas)
            for replica in state.replicas:
                if replica != self._node_id:
                    self._bus.send(self._node.subjects.notify(replica), (frame,))
        if self._view().leads:
            toward, why = self._wellness.toward(own, [node for node in state.isr if node != self._node_id], now_ns)
            if toward:
                logger.warning(
                    "leadership transferred for a service partition=%s from=%s to=%s reason=%s",
                    self.key,
                    self._node_id,
                    toward,
                    why,
                )
                _, leader_epoch, _ = self._partition.named_leader()
                self._partition.transfer_leadership(
                    do.TransferLeadership(leader_epoch=leader_epoch, toward=toward, reason=why, cause=do.TransferCause.SERVICE)
                )
        else:
            self._wellness.unhealthy_services(own, now_ns)
        if len(self._sessions) or self._wellness.knows(now_ns):
            if quiet and not self._wellness.anybody_is_ill:
                self._report_by((now_ns + QUIET_ROUNDS * _EVERY_NS) // _EVERY_NS * _EVERY_NS)  # all partitions in one turn
            else:
                self._report_within()

    def _compare(self, digests: dict[str, tuple[int, dict[int, bytes]]]) -> None:
        """Compare the snapshot digests of this node's services with those of other replicas. Log differences.

        ``digests``: service -> (number of its process, position of a snapshot -> digest).
        """
        for old_position in self._agreements.keys() - digests.keys():
            del self._agreements[old_position]
        for name, own in digests.items():
            agreement = self._agreements.setdefault(name, StateComparison())
            agreement.set_digests(self._node_id, *own)
            difference = agreement.difference(self._node_id)
            if difference is not None and difference != self._differences.get(name):
                logger.error("service problem partition=%s service=%s problem=%s", self.key, name, difference)
            self._differences[name] = difference
            self._carry_out(self._sessions.differs(name, difference))

    def _stop_waiting_for_services(self) -> None:
        effects = self._sessions.stop_waiting_for_services(clock.now_ns())
        if effects:
            logger.warning("promotion continues without slow services partition=%s", self.key)
        self._carry_out(effects)

    def _expire(self) -> None:
        """Remove the services whose heartbeats are overdue, and schedule the next check."""
        self._carry_out([*self._sessions.expire(clock.now_ns())])
        self._checks = len(self._sessions) > 0
        if self._checks:
            self._timers.set(self._check, self._sessions.expires_ns)

    def _has_ended(self, ended: ServiceEnded) -> None:
        logger.warning(
            "service ended partition=%s service=%s kind=%s reason=%s", self.key, ended.service, ended.ending, ended.reason
        )
        self._partition.mark_changed()
        self._report_within()
        now_ns, event_times_ns = clock.now_ns(), self._events_ns
        if len(event_times_ns) == _EVENTS and now_ns - event_times_ns[0] < _EVENTS_EVERY_NS:
            self._counters[NOT_EVENTS] += 1
            return
        event_times_ns.append(now_ns)
        del event_times_ns[:-_EVENTS]
        self._node.proposals.report_service(self.key, ended)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendToService(inbox, message) if inbox in self._here:
                    asyncio.get_running_loop().call_soon(self._here[inbox], message)
                case SendToService(inbox, message):
                    send_answer(self._bus, (self._node.reads.inboxes,), self._counters, inbox, (frames.seal(message),))
                case ServiceEnded():
                    self._has_ended(effect)
                case ServicesReplayed(_, True):
                    self._partition.feed(events.ReplayFinished(end_offset=self._replay_end_offset))
                case ServicesReplayed(position, False):
                    if position > 0:
                        self._partition.feed(events.ReplayProgressed(end_offset=min(position, self._replay_end_offset)))


def _service_and_node(message: pb.ServiceHello | pb.ServiceAck | pb.SnapshotRequest) -> tuple[str, str]:
    return message.stream, message.service


def _turn(node: str, replicas: Sequence[str], leader: str) -> int:
    followers = [replica for replica in replicas if replica != leader]
    return followers.index(node) + 1 if node in followers else 0


class ServiceHandler:
    """Receives the messages of services on the node's subject, and passes them to the services of their partitions."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        node_id: str,
        inboxes: InboxRule,
        find: Callable[[str, int], PartitionServices | None],
        counters: Counter[str],
        share: WorkerShare = WHOLE,
    ) -> None:
        self._share = share
        self._bus = bus
        self._node_id = node_id
        self._inboxes = inboxes
        self._find = find
        self._counters = counters
        guard = RequestGuard("service", counters)
        self._listeners = [
            bus.listen(subjects.service_session(node_id, "*", "*"), guard.handler(self._arrived_bound)),
            bus.listen(subjects.service(node_id), guard.handler(self._message_arrived)),
        ]

    def _arrived_bound(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        """Process a message of a service that arrived on a subject with the names of a stream and a service.

        The message itself must have equal names, otherwise it is counted and dropped.
        """
        self._message_arrived(subject, reply, payload, headers, tuple(subject.decode(errors="replace").rsplit(".", 2)[1:]))

    def _message_arrived(
        self, subject: bytes, reply: bytes, payload: bytes, headers: bytes, bound: tuple[str, ...] | None = None
    ) -> None:
        try:
            kind, body = envelope.decode(payload)
            if bound is not None and kind in _BINDING and _service_and_node(frames.parse(body, _BINDING[kind])) != bound:
                raise ProtocolError(
                    "The message names another stream or service than its subject. Check the version of its sender."
                )
            if kind is MessageType.SERVICE_ACK:
                self._ack_arrived(frames.parse(body, pb.ServiceAck))
            elif kind is MessageType.SNAPSHOT_REQUEST:
                self._snapshot_requested(frames.parse(body, pb.SnapshotRequest))
            elif kind is MessageType.SERVICE_HELLO:
                self._hello_arrived(frames.parse(body, pb.ServiceHello), reply)
            else:
                raise ProtocolError(
                    f"Messages of type {kind.name} are not allowed on this subject. Check the version of its sender."
                )
        except ProtocolError as error:
            self._counters[counter_name(error)] += 1
            logger.debug("invalid service frame error=%s: ignored", error)

    def process_local(self, message: pb.ServiceHello | pb.ServiceAck, inbox: str, on_answer: OnAnswer) -> None:
        """Process a message of a service that runs in this process.

        ``on_answer``: called with answers to the service. ``inbox``: name that identifies the service.
        """
        if isinstance(message, pb.ServiceAck):
            self._ack_arrived(message)
            return
        services = self._find(message.stream, message.partition)
        if services is not None:
            services.hello(message, inbox, on_answer)
        elif not message.leaving:
            asyncio.get_running_loop().call_soon(on_answer, self._not_here(message))

    def _ack_arrived(self, ack: pb.ServiceAck) -> None:
        services = self._find(ack.stream, ack.partition)
        if services is not None and ack.streamUid in ("", services.key.uid):
            services.ack(ack)

    def _snapshot_requested(self, request: pb.SnapshotRequest) -> None:
        services = self._find(request.stream, request.partition)
        if services is not None:
            services.snapshot_wanted(request.service)

    def _hello_arrived(self, hello: pb.ServiceHello, reply: bytes) -> None:
        if not hello.leaving and not self._inboxes.allows(reply):
            self._counters[REPLY] += 1
            return
        inbox = reply.decode(errors="replace")  # who leaves is answered nowhere
        services = self._find(hello.stream, hello.partition)
        if services is not None:
            services.hello(hello, inbox)
        elif not hello.leaving and self._share.holds(hello.stream, hello.partition):
            send_answer(self._bus, (self._inboxes,), self._counters, reply, (frames.seal(self._not_here(hello)),))

    def _not_here(self, hello: pb.ServiceHello) -> pb.ServiceRefusal:
        return pb.ServiceRefusal(
            reason=pb.ServiceRefusal.NO_SUCH_PARTITION,
            detail=(
                f"Node {self._node_id} holds no replica of {hello.stream}/{hello.partition}. Start the service next "
                "to a node that does (--node)."
            ),
            node=self._node_id,
            service=hello.service,
            stream=hello.stream,
            partition=hello.partition,
            instance=hello.instance,
        )

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
