"""``RaftMember``: the backend of a controller. It logs and applies control requests, and serves the other nodes.

    propose -> (leader? into the log : forwarded on ``<ns>.control.node.<id>``) -> applied on every member -> image ->
    watchers, feed

``MemberLog`` is its part of the log. ``liftpy.core.metadata.controller.quorum_member`` decides. This module starts the member,
carries out the decisions, passes on the applied image, transfers the leadership and stops.

Every start ends with a barrier of this process. The applied image then has everything that was committed before. After
that, a member with a new or emptied directory may vote (``probation.py``). A member that later learns that its
directory is an old copy requests another barrier.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from nats.aio.client import Client

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.metadata.controller.cluster_events import EventLog
from liftpy.core.metadata.controller.election_triggers import ANSWER_NS, LeaderCheck, ProbeResult
from liftpy.core.metadata.controller.quorum_member import (
    CatchUp,
    MemberEffect,
    ProbeNode,
    ProposedEntry,
    PublishEntry,
    QuorumMember,
    TransferMetadataLeadership,
)
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.decode_errors import REFUSED, counter_name
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import ProtocolError, StorageError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.metadata.cluster_events import EventsHandler, EventWriter
from sidecar.metadata.control import ControlHandler, Forwarder
from sidecar.metadata.controller import MetadataController
from sidecar.metadata.feed import FeedPublisher
from sidecar.metadata.group import MetadataGroup
from sidecar.metadata.member_log import UNLED_S, MemberDirectory, MemberLog
from sidecar.quorum.codec import seal, unseal
from sidecar.quorum.driver import GroupDriver
from sidecar.quorum.library import check_library
from sidecar.runtime import clock
from sidecar.runtime.tasks import TaskSet, spawn
from sidecar.transport.connection import BusConnection, Listener, PublishQueue
from sidecar.transport.liveness import is_absent

logger = logging.getLogger("liftpy.quorum")

_LEADER = 2
_TRANSFER_TIMEOUT_S = 2.0
_HAND_OVER_TIMEOUT_S = 1.5
_JOIN_ATTEMPT_S = 1.0
_LOG_AFTER_S = 2.0
_LOG_PERIOD_S = 10.0
"""Interval at which a slow start logs what it waits for, in seconds."""


class RaftMember(MetadataGroup):
    """Metadata group on a controller: a Raft member with its own NATS connection.

    ``inboxes``: inboxes of applications [A5]. ``connect``: opens the connection for the event stream. ``fatal``: called
    once when the disk or the state machine fails.
    """

    def __init__(
        self,
        opened: MemberDirectory,
        connection: BusConnection,
        subjects: Subjects,
        config: ReplicationConfig,
        fatal: Callable[[Exception], None],
        inboxes: InboxRule,
        *,
        elections: bool = False,
        connect: Callable[[], Awaitable[Client]] | None = None,
    ) -> None:
        super().__init__()
        check_library()
        self.node_id = node_id = opened.node_id
        self._connection = connection
        self._subjects = subjects
        fsm, producer = ClusterFsm(subjects.namespace, elections=elections), FeedProducer()
        self._outgoing = PublishQueue(connection)
        self._events = EventsHandler(node_id, connection, subjects, self._outgoing, inboxes)
        self._log = MemberLog(opened, fsm, producer, self._state_changed, events=self._events.trail)
        self._member = QuorumMember(config, fsm.rules, self._log, producer, lambda: secrets.token_bytes(16))
        self._feed = FeedPublisher(connection, subjects, self._outgoing, producer, fsm)
        log = self._log
        self._driver = GroupDriver(log.core, log.transport, log.journal, self._send, self._process_tick, fatal, self._rest_s)
        self._controller = MetadataController(connection, subjects, log, self._member, self._driver)
        self._event_writer: EventWriter | None = None
        if connect is not None and config.events_stream:
            self._event_writer = EventWriter(EventLog(self._events.trail), subjects, connect, self, self._controller)
        self._has_ticked = asyncio.Event()
        """Set by each tick, for those that wait for an entry to be applied."""
        self._tasks = TaskSet()
        """Tasks that carry out decisions of ``QuorumMember``."""
        self._forwarder = Forwarder(connection, subjects, node_id)
        self._handler = ControlHandler(connection, subjects, inboxes, self._controller, config)
        self._listener: Listener | None = None
        self._listens_since = time.monotonic()
        """Time since which the member has no leader, or time of its last question about its membership."""
        self._lookup_task: asyncio.Task[None] | None = None
        self._shown = fsm.image
        """Image that the watchers have received last."""

    def _state_changed(self, old: int, new: int) -> None:
        if new == _LEADER:
            logger.info("metadata leader elected node=%s term=%d", self.node_id, self._log.term)
        elif old == _LEADER:
            logger.info("metadata leadership lost node=%s", self.node_id)
            self._member.resign()
        self._handler.follow_leadership()

    # ---- every tick ----------------------------------------------------------------------------------------------------
    def _send(self, receiver: str, frame: bytes) -> None:
        self._connection.hold()
        self._outgoing.put(self._subjects.raft(receiver, self.node_id), seal(receiver, self.node_id, frame))

    def _process_tick(self) -> None:
        """Process the results of a Raft tick: show a new image to the watchers, carry out the next decisions, publish events."""
        self._has_ticked.set()
        self._log.probation.end_if_complete()
        self._ask_when_unled()
        self._forwarder.leader_is(self._log.leader_id, self._log.term)
        image, before = self.image, self._shown
        if image is not before:
            self._shown = image
            self._notify(before, image)
        online = self._connection.is_connected
        for decision in self._member.tick(clock.now_ns(), votes=self._log.probation.over, online=online):
            self._do(decision)
        self._events.publish_new(leads=self._log.leads)
        self._connection.hold()
        self.ticked()
        self._connection.release()

    def _rest_s(self) -> float:
        return self._member.time_to_next_duty_ns(clock.now_ns()) / NS_PER_S

    def _ask_when_unled(self) -> None:
        """If no leader was heard for ``UNLED_S``, ask other controllers whether this node was removed from the group."""
        now = time.monotonic()
        if now - self._listens_since > UNLED_S and (self._lookup_task is None or self._lookup_task.done()):
            since, self._listens_since = self._listens_since, now
            if not self._log.has_leader_contact(since):
                self._lookup_task = spawn(self._request_controllers(), "requesting the list of controllers")

    async def _request_controllers(self) -> None:
        request = pb.ControlRequest(describeCluster=pb.DescribeCluster(maxBytes=1), linearizable=True)
        if self._log.process_leader_description(await self._forwarder.request_until_decided(request, _JOIN_ATTEMPT_S)):
            logger.warning("controller removed node=%s index=%d", self.node_id, self._log.core.dismissed_at)

    def _frame_received(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        sender = subject.decode().rsplit(".", 1)[1]
        try:
            frame = unseal(self.node_id, sender, payload)
        except ProtocolError as error:
            self._log.transport.sessions.counters[counter_name(error)] += 1
            return
        self._driver.frame_received(sender, frame)

    # ---- its part in the group -----------------------------------------------------------------------------------------
    @property
    def is_member(self) -> bool:
        return self._log.is_member

    @property
    def has_voted(self) -> bool:
        """True if the Raft directory belongs to a member that votes."""
        return self._log.probation.has_been_member

    @property
    def controllers(self) -> ControllerList:
        return self._controller.controllers

    @property
    def removed_at(self) -> int:
        """Index of the log entry whose controller list removed this node, as far as this member knows.

        A list that names this node may follow in its log, because the group may add a node again before it has stopped.
        """
        listed = self.controllers
        return max(self._log.core.dismissed_at, -1 if listed.names(self.node_id) else listed.index)

    # ---- MetadataGroup ---------------------------------------------------------------------------------------------------------
    @property
    def image(self) -> ClusterImage:
        return self._log.image

    @property
    def leader(self) -> str:
        return self._log.leader_id

    @property
    def is_controller(self) -> bool:
        return True

    @property
    def counters(self) -> dict[str, int]:
        totals: Counter[str] = self._log.transport.sessions.counters + self._outgoing.counters + self._handler.counters
        totals.update(self._feed.counters + self._member.counters + self._events.counters + self._forwarder.counters)
        if self._event_writer is not None:
            totals.update(self._event_writer.counters)
        if self._driver.frames_lost:
            totals[f"{REFUSED}too many frames at once"] = self._driver.frames_lost
        if self._log.fsm.refused_count:
            totals["entries refused"] = self._log.fsm.refused_count
        return dict(totals)

    @property
    def held(self) -> dict[str, int]:
        return {**self._log.held, "inbox_bytes": self._driver.inbox_bytes}

    async def start(self) -> None:
        """Start the member. Return when a new barrier is applied on it, or when the node is not a controller anymore."""
        self._listens_since = time.monotonic()
        inbox = self._subjects.raft_inbox(self.node_id)
        guard = RequestGuard("raft frame", self._outgoing.counters)
        self._listener = self._connection.listen(inbox, guard.handler(self._frame_received))
        await self._handler.open()
        await self._events.open()
        if self._event_writer is not None:
            self._event_writer.start()
        await self._feed.start()
        self.bus_changed(True)
        self._driver.start()
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Request barriers until one is applied. It ends the probation of this member."""
        probation = self._log.probation
        say_at = time.monotonic() + _LOG_AFTER_S
        while not self._driver.stopped and self.is_member:
            turn = probation.turn
            if await self._apply_barrier(_JOIN_ATTEMPT_S):
                probation.barrier_applied(turn)
                if probation.over:
                    break
            if time.monotonic() >= say_at:
                say_at = time.monotonic() + _LOG_PERIOD_S
                logger.warning("controller waits node=%s reason=%s", self.node_id, self.waits_for())
        self._member.caught_up()

    def waits_for(self) -> str:
        return self._log.waits_for()

    def bus_changed(self, online: bool) -> None:
        """Process a change of the NATS connection. ``online``: False if it was lost, True if it is connected again.

        A new NATS server may have a lower limit of the message size.
        """
        if online:
            self._log.transport.sessions.fit(self._connection.max_payload)
            self._feed.producer.set_message_size(self._connection.max_payload)
        self._log.transport.sessions.set_online(online)
        self._driver.wake()

    def prefer(self, every_s: float) -> None:
        self._member.set_preferred_leader_interval(every_s)

    def retire(self) -> None:
        self._log.core.retired = True

    async def hand_over(self) -> None:
        """Transfer the metadata leadership to another member. Retry while no other member has all entries."""
        self._member.leave()
        deadline = time.monotonic() + _HAND_OVER_TIMEOUT_S
        ask_at = 0.0
        while not self._driver.stopped and self._somebody_is_up() and time.monotonic() < deadline:
            if self._log.leads and time.monotonic() >= ask_at:
                self._transfer()
                ask_at = time.monotonic() + _HAND_OVER_TIMEOUT_S / 5
            elif self._log.leader_id not in ("", self.node_id):
                return
            await asyncio.sleep(0.01)

    def _transfer(self) -> None:
        """Request that the best follower takes the leadership now, without an election timeout."""
        self._member.transfer_requested()
        self._log.core.hand_over()
        self._driver.wake()

    def _somebody_is_up(self) -> bool:
        return any(peer.up for peer in self._log.peers.values())

    async def stop(self) -> None:
        self._member.leave()
        if self._event_writer is not None:
            await self._event_writer.close()
        if not self._driver.stopped and self._log.leads and self._log.peers:
            self._transfer()
            deadline = time.monotonic() + _TRANSFER_TIMEOUT_S
            while self._log.leads and self._somebody_is_up() and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
        self._driver.stop()
        await end_tasks([self._lookup_task])
        if self._listener is not None:
            self._listener.close()
        self._forwarder.close()
        await self._feed.close()
        await self._handler.close()
        await self._events.close()
        await self._tasks.end()
        try:
            self._log.journal.close()
        except StorageError as error:
            logger.error("journal not closed error=%s: continuing", error)
        self._log.core.destroy()

    def send_heartbeat(self, request: pb.ControlRequest, answered: Callable[[pb.ControlResponse], None]) -> None:
        """Send a heartbeat to the metadata leader, which may be this member. ``answered``: called with the answer."""
        response = self._controller.answer_heartbeat(request)
        if response is None:
            self._forwarder.send_heartbeat(request, answered)
        else:
            answered(response)

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        return await self._forwarder.request_until_decided(request, timeout_s, self._controller.decide)

    async def _apply_barrier(self, timeout_s: float) -> bool:
        """Commit a barrier, and wait until it is applied here. Return whether this happened within ``timeout_s`` seconds."""
        response = await self.propose(pb.ControlRequest(barrier=pb.Barrier()), timeout_s)
        if response.error != pb.ControlResponse.OK:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                while self._log.applied_index < response.index:
                    self._has_ticked.clear()
                    await self._has_ticked.wait()
        except TimeoutError:
            return False
        return True

    def status(self) -> list[pb.ControllerStatus]:
        return self._log.status()

    async def events(self, question: bytes) -> dict[str, Any] | None:
        return self._events.answer(question)

    def ticks(self) -> dict[str, float]:
        return {**self._driver.lateness.report(), "late": self._driver.late_tick_count}

    # ---- effects of ``QuorumMember`` -----------------------------------------------------------------------------------
    def _do(self, effect: MemberEffect) -> None:
        match effect:
            case PublishEntry():
                self._feed.publish_entry(effect.entry)
            case ProposedEntry():
                self._tasks.start(self._controller.propose(effect), "proposing to the metadata group")
            case ProbeNode():
                self._tasks.start(self._probe(effect.node_id), f"checking whether {effect.node_id} has ended")
            case LeaderCheck():
                self._tasks.start(self._ask(effect), f"probing {effect.node}")
            case TransferMetadataLeadership():
                self._transfer()
            case CatchUp():
                self._tasks.start(self._catch_up(), "catching up with the metadata group")

    async def _probe(self, node_id: str) -> None:
        self._member.probe_ended(node_id, absent=await is_absent(self._connection, self._subjects, node_id))
        self._driver.wake()

    async def _ask(self, question: LeaderCheck) -> None:
        self._member.question_answered(question, await probe_accused_leader(self._connection, self._subjects, question))
        self._driver.wake()


# ---- questions to nodes over NATS ------------------------------------------------------------------------------------


async def probe_accused_leader(connection: Client, subjects: Subjects, question: LeaderCheck) -> ProbeResult | None:
    """Ask a node whether it serves as leader of a partition, because a follower has reported it as silent.

    Return its answer, or ABSENT if NATS reports no responders. None: there is no valid answer in time.
    """
    key = question.key
    request = replication_pb2.LeaderQuestion(
        stream=key.stream, streamUid=key.uid, partition=key.partition, leaderEpoch=question.leader_epoch
    )
    subject, timeout_s = subjects.notify(question.node), ANSWER_NS / NS_PER_S
    try:
        answer = await connection.request(subject, frames.seal(request), timeout=timeout_s)
        testimony = frames.decode(answer.data, replication_pb2.LeaderTestimony)
        if testimony.question != request:
            return None  # about another leadership
    except nats.errors.NoRespondersError:
        return ProbeResult.ABSENT
    except (nats.errors.Error, TimeoutError, OSError, ProtocolError):
        return None
    return ProbeResult.SERVES if testimony.serves else ProbeResult.DOES_NOT
