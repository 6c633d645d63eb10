"""``ServiceHost``: one process that runs a Service next to a sidecar. It registers, reads, acks, stores snapshots and emits.

The machine has the state that must be equal on all nodes. This module adds NATS, files and time. Everything runs on one
event loop. Records come only from the sidecar of the own node, through the client's reader, so they are never above the
high watermark of that node. Applying records pauses after ``step_s`` for the heartbeats. The role follows the orders of the
sidecar (JoinLog). The host becomes FOLLOWER if no order arrives within the lease that the last order named.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from liftpy.client import Client, ReadOptions
from liftpy.client.consumer import PartitionReader
from liftpy.config import NS_PER_S
from liftpy.core.services.effects import EffectNumbering, NumberingDecision
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.outbox import Outbox
from liftpy.core.services.replies import ReplyBuffer
from liftpy.core.services.rules import NO_PARAMETERS, check_outputs
from liftpy.core.services.service import DivergedError, Role, Service
from liftpy.core.services.snapshot import BEGINNING, MAX_POSITIONS, Identity, Snapshot
from liftpy.core.services.versions import VersionDecision
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, LiftError, NotFoundError, ProtocolError, UnavailableError
from liftpy.nats.transport import Transport
from liftpy.service.bad_record_writer import DecisionWriter, RecordWriter
from liftpy.service.effect_runner import EffectRunner
from liftpy.service.node_orders import NodeOrders
from liftpy.service.output_writer import Emitter, Router
from liftpy.service.query_server import QueryServer
from liftpy.service.record_feeder import Feeder
from liftpy.service.reply_sender import Replier
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshots import ServiceLock, SnapshotFetcher, SnapshotKeeper, SnapshotServer, SnapshotStore

logger = logging.getLogger("liftpy.service")

_Reason = pb.ServiceRefusal.Reason
_READ_PATIENCE_S = 2.0
_CANCEL_AGAIN_S = 0.1
_MAX_UNANSWERED_HELLOS = 5
"""Number of hellos without an answer after which the host uses the other subject. The node may have an older version."""
_ASK_S = 0.25
"""Interval of hellos in seconds while the service is not registered."""
MAX_REASON = 500
"""Maximum number of characters of a problem or a reason that a service reports. An error of its code may have any length."""
_AHEAD_S = 5.0
"""Difference in seconds between log time and the records above which the status shows it. Clocks of nodes differ by less."""


MessageCallback = Callable[[pb.JoinLog | pb.ServiceRefusal], None]
Say = Callable[[pb.ServiceHello | pb.ServiceAck, str, MessageCallback], None]
"""Sends a message to a node in the same process: (message, name of the sender, callback for the answer)."""


def _text_of(error: Exception | str) -> str:
    text = str(error) if isinstance(error, LiftError | str) else f"{type(error).__name__}: {error}"
    return (text or type(error).__name__)[:MAX_REASON]


class ServiceHost:
    """Runs one service in this process, as an instance next to a sidecar.

    Create it with a factory of the Service and a connected transport. ``run`` ends after ``stop``, or with the error that
    ended the service.
    """

    def __init__(
        self,
        factory: Callable[[], Service],
        settings: ServiceSettings,
        transport: Transport,
        namespace: str = "liftpy",
        reader_of: Callable[[ReadOptions], PartitionReader] | None = None,
        say: Say | None = None,
    ) -> None:
        """Create the host.

        ``factory``: returns a new Service. ``transport``: connected transport. ``reader_of``: returns the reader of the records.
        None: read over NATS, as any client. ``say``: sends messages to a node in the same process. None: send them over NATS.
        """
        if isinstance(factory, type):
            check_outputs(factory, settings.output_stream)
        self._factory = factory
        self._settings = settings
        self._transport = transport
        self._subjects = Subjects(namespace)
        self._client = Client(transport, self._subjects, owns_connection=False)
        self._instance = secrets.randbits(63) or 1
        self._inbox = transport.connection.new_inbox()
        self._greeted = False
        """True after the first JoinLog. Later hellos of this host do not replace another instance."""
        self._orders = NodeOrders(is_same_process=say is not None)
        self._unanswered_hellos = 0
        """Number of hellos since the last answer of the node."""
        self._unbound = False
        """True if the host uses the subject without stream and service, because older nodes know only that one."""
        self._emitter: Emitter | None = None
        self._routers: list[Router] = []
        self._feeder: Feeder | None = None
        self._keeper: SnapshotKeeper | None = None
        self._fetcher: SnapshotFetcher | None = None
        self._reader_of = reader_of
        self._say = say
        self._replies = ReplyBuffer()
        self._replier: Replier | None = None
        self._effects: EffectRunner | None = None
        self._queries: QueryServer | None = None
        self._emitted: tuple[int, float] | None = None
        """Last seen end of the output stream, and the monotonic time in seconds at which it grew."""
        self._acknowledged = (0, -1)
        """(order, position) of the last ack that the node has received."""
        self._thread = threading.get_ident()
        self._refusal = ""
        self._stopped = False
        self._end_reason: Exception | str | None = None
        """Error that ended the service. None: none, or ``stop`` was called."""
        self._diverged_at: int | None = None
        """Position of the snapshot that differs from those of most other nodes."""
        self._snapshots_wanted = 0
        """Number of snapshots that an operator has requested, from the last order."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._joined = asyncio.Event()
        self._upgrader = Upgrader(self._client, settings)
        self.machine: ServiceMachine | None = None
        """The running state machine. Each restore creates another one. None: before the first JoinLog."""

    # ---- start, stop------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Run the service until ``stop`` is called.

        Raises the LiftError that ended the service earlier: it failed, diverged or was fenced, or the storage failed.
        """
        settings = self._settings
        lock = ServiceLock(settings.data, settings.service, settings.stream, settings.partition)
        try:
            await self._run()
        except DivergedError:
            if self._keeper is not None:
                self._keeper.quarantine_diverged(self._diverged_at)
            raise
        finally:
            lock.close()

    async def _run(self) -> None:
        subscription = await self._transport.connection.subscribe(self._inbox, cb=self._message_arrived)
        self._spawn(self._heartbeats())
        self._spawn(self._serve())
        try:
            try:
                await self._ended
            finally:
                await self._cancel_tasks()
            if self._stopped and self._keeper is not None and self.machine is not None:
                await self._keeper.keep(self.machine)  # the next process starts from this snapshot
        except Exception as error:
            self._end_reason = error
            raise
        finally:
            with contextlib.suppress(Exception):
                await self._send(self._hello(leaving=True))
                await subscription.unsubscribe()
                await self._transport.settle()

    async def _cancel_tasks(self) -> None:
        while self._tasks:  # until it is canceled: nats-py may swallow a cancellation
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_CANCEL_AGAIN_S)

    def stop(self, because: str = "") -> None:
        """End ``run`` in order, with a snapshot of the state.

        ``because``: reason that the node gets if other code ends the service because of an error. '': no error.
        """
        self._stopped = True
        self._end_reason = self._end_reason or because or None
        if not self._ended.done():
            self._ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception())  # type: ignore[arg-type]

    async def _serve(self) -> None:
        """Restore the state, then start the tasks that read records, emit outputs, reply, run effects and answer queries."""
        await self._joined.wait()
        order = self._orders.last
        assert order is not None
        settings = self._settings
        identity = Identity(settings.service, settings.stream, order.streamUid, settings.partition)
        snapshot_count, max_bytes = settings.snapshots_kept, settings.max_snapshot_bytes
        store = SnapshotStore(settings.data, identity, kept=snapshot_count, max_bytes=max_bytes)
        outbox = None
        if settings.output_stream:
            bounds = {"max_records": settings.outbox_records, "max_bytes": settings.outbox_bytes}
            outbox = Outbox(f"{identity.uid}/{identity.partition}", service=identity.service, **bounds)
            self._emitter = Emitter(self._client, self._transport, settings, outbox, self)
            self._routers = [
                Router(self._client, self._transport, settings, route, source=outbox.source, instance=self)
                for route in settings.routes
            ]
        reading = ReadOptions(
            node=settings.node,
            wait_s=settings.read_wait_s,
            answer_timeout_s=1.0,
            patience_s=_READ_PATIENCE_S,
            max_bytes=settings.read_max_bytes,
        )
        peers = (self._transport, self._subjects, settings, identity, store)
        self._fetcher = SnapshotFetcher(self._client, *peers, lambda: self._orders.valid)
        self._keeper = SnapshotKeeper(store, settings, outbox, self._fetcher)
        if self._reader_of is not None:
            reader = self._reader_of(reading)
        else:
            reader = PartitionReader(self._transport, self._subjects, settings.stream, settings.partition, reading)
        self._feeder = Feeder(
            reader=reader,
            settings=settings,
            keeper=self._keeper,
            factory=self._factory,
            emitter=self._emitter,
            orders=self._orders,
            decisions=DecisionWriter(self._client, settings.dead_letter_stream, settings.emit_timeout_s),
            started=self._machine_started,
        )
        await self._feeder.restart(order.startOffset)
        self._spawn(SnapshotServer(*peers, self._keeper).run())
        self._spawn(self._feeder.run())
        if self._emitter is not None:
            self._spawn(self._emitter.run())
            for router in self._routers:
                self._spawn(router.run())
        self._replier = Replier(self._transport, settings, self._replies, self)
        self._spawn(self._replier.run())
        self._effects = EffectRunner(RecordWriter(self._client, settings.emit_timeout_s), settings, self)
        self._spawn(self._effects.run())
        if self.machine is not None and self.machine.takes_queries:
            self._queries = QueryServer(self._client, self._transport, self._subjects, settings, self)
            self._spawn(self._queries.run())

    def _machine_started(self, machine: ServiceMachine, snapshot: Snapshot | None) -> None:
        """Use a restored machine. ``snapshot``: its first state. None: it started with an empty state."""
        machine.is_apply_thread = self._at_home
        machine.on_work = self._wake
        self._replies.restart()
        self.machine, machine.replies = machine, self._replies
        where = "no snapshot" if snapshot is None else f"the snapshot at {snapshot.position}"
        logger.info("service started service=%s from=%s", machine.identity, where)
        self._apply_order()

    def _at_home(self) -> bool:
        """Return whether the caller runs in the thread that applies records. False: it runs in the thread of an effect."""
        return threading.get_ident() == self._thread

    def _wake(self) -> None:
        """Let the tasks that send replies and run effects check for work now."""
        if self._replier is not None:
            self._replier.wake()
        if self._effects is not None:
            self._effects.wake()

    # ---- orders ----------------------------------------------------------------------------------------------------------
    async def _message_arrived(self, message: Any) -> None:
        if not message.data:  # an empty message of NATS: no responders
            self._refusal = f"node {self._settings.node} does not respond"
            return
        try:
            kind, body = envelope.decode(message.data)
            if kind is MessageType.JOIN_LOG:
                self._process_message(frames.parse(body, pb.JoinLog))
            elif kind is MessageType.SERVICE_REFUSAL:
                self._process_message(frames.parse(body, pb.ServiceRefusal))
        except ProtocolError as error:
            logger.warning("invalid frame from the sidecar error=%s: ignored", error)

    def _process_message(self, message: pb.JoinLog | pb.ServiceRefusal) -> None:
        self._unanswered_hellos = 0
        if self._ended.done():
            return
        try:
            if isinstance(message, pb.JoinLog):
                self._join_log(message)
            else:
                self._service_rejected(message)
        except LiftError as error:
            self.fail(error)

    def _join_log(self, order: pb.JoinLog) -> None:
        before = self._orders.last
        if order.instance != self._instance or (before is not None and order.ackId < before.ackId):
            return
        if before is not None and order.streamUid != before.streamUid:
            raise NotFoundError(f"Stream {order.stream} was deleted and created again. Restart the service.")
        if self._feeder is not None and (before is None or order.ackId != before.ackId):
            self._feeder.ask_again()
        self._orders.accept(order)
        self._greeted, self._refusal = True, ""
        self._joined.set()
        if self.machine is not None:
            self._apply_order()

    def _service_rejected(self, refusal: pb.ServiceRefusal) -> None:
        if refusal.instance != self._instance:
            return
        if refusal.reason == _Reason.REPLACED and self._greeted:
            # the old order is no longer valid, and the next hello registers again
            self._greeted = False
            self._orders.revoke()
            if self.machine is not None:
                self._apply_order()
        if refusal.reason == _Reason.WRONG_STREAM:
            raise NotFoundError(f"Node {refusal.node} stopped the feed: {refusal.detail}. Restart the service.")
        if refusal.reason in (_Reason.MALFORMED, _Reason.COMPACTED):
            raise ConfigError(f"Node {refusal.node} rejected the service: {refusal.detail}")
        if refusal.reason == _Reason.DIVERGED and refusal.position == BEGINNING:
            raise ConfigError(f"Node {refusal.node} rejected the service: {refusal.detail}")
        if refusal.reason == _Reason.DIVERGED:
            self._diverged_at = refusal.position
            raise DivergedError(
                f"Service {self._settings.service} has diverged. Node {refusal.node} reports: {refusal.detail}. The snapshots from "
                "this position on are quarantined. Make the code deterministic, then start the service again: it uses an older "
                "snapshot."
            )
        if refusal.detail != self._refusal:
            logger.warning(
                "service not registered service=%s node=%s reason=%s: retrying",
                self._settings.service,
                refusal.node,
                refusal.detail,
            )
        self._refusal = refusal.detail

    @property
    def is_fed(self) -> bool:
        """True if the host gets orders and records: the node's last order is valid, and reads from the node work."""
        feeding = self._refusal or (self._feeder.problem if self._feeder is not None else "")
        return self._orders.valid is not None and not feeding

    @property
    def has_caught_up(self) -> bool:
        """True if the state has all records that were committed at the time of the last order from the node."""
        machine, order = self.machine, self._orders.last
        return machine is not None and order is not None and machine.position > order.highWatermark

    @property
    def emitted_end(self) -> int | None:
        """Number of outputs of this service that are written to the output stream. None: the service has no outputs."""
        outbox = self.machine.outbox if self.machine is not None else None
        return None if outbox is None else outbox.emitted_end if not outbox.diverged else 0

    @property
    def leads(self) -> bool:
        return self.machine is not None and self.machine.role is Role.LEADER

    def _apply_order(self) -> None:
        """Apply the last order of the node: set the role and the stop position, and report the position of the state to the node."""
        order, machine, feeder = self._orders.last, self.machine, self._feeder
        assert order is not None
        assert machine is not None
        assert feeder is not None
        # otherwise it would write outputs that another instance has written
        known = machine.outbox is None or machine.outbox.known
        # after a rewind, the node orders a FOLLOWER to catch up, which would drop the outputs again
        leads = order.role == pb.SERVICE_LEADER or (order.leads and machine.rewind_epoch == order.leaderEpoch)
        role = Role.LEADER if leads and self._orders.valid is not None and known else Role.FOLLOWER
        if machine.change_role(role, order.leaderEpoch):
            logger.info(
                "service role changed service=%s role=%s leader_epoch=%d position=%d",
                machine.identity,
                role.value,
                order.leaderEpoch,
                machine.position,
            )
            self._wake()
            if self._emitter is not None:
                self._emitter.reread_end()
            feeder.verify(order.startOffset)
        feeder.check_replay(order.leaderEpoch, order.highWatermark + 1)
        if order.logEndOffset >= 0 and machine.position > order.logEndOffset:
            feeder.cut_at(order.logEndOffset)
        if order.snapshotRequest > self._snapshots_wanted:
            feeder.request_snapshot()
        self._snapshots_wanted = order.snapshotRequest
        if self._keeper is not None:
            self._keeper.turn = order.turn
        feeder.stop_at(order.stopPosition if order.stopPosition >= 0 else None, self._acknowledge)
        self._acknowledge()

    def outputs_written(self) -> None:
        """Let the routers copy new outputs now."""
        for router in self._routers:
            router.wake()

    def outputs_known(self) -> None:
        """Apply the last order again, because a LEADER must know the end of the output stream."""
        if self.machine is not None and self._orders.last is not None:
            self._apply_order()

    def outputs_disproven(self) -> None:
        """Let the feeder restore another snapshot, because the written outputs differ from those of this state."""
        if self._feeder is not None:
            self._feeder.disproven()

    def _acknowledge(self) -> None:
        """Report the position of the machine to the node."""
        order, machine = self._orders.last, self.machine
        if order is None or machine is None:
            return
        acknowledged = (order.ackId, machine.position)
        if self._say is not None and order.stopPosition < 0 and acknowledged == self._acknowledged:
            return
        self._acknowledged = acknowledged
        settings = self._settings
        ack = pb.ServiceAck(
            service=settings.service,
            stream=settings.stream,
            partition=settings.partition,
            streamUid=order.streamUid,
            instance=self._instance,
            ackId=order.ackId,
            position=machine.position,
        )
        self._spawn(self._try_to_send(ack))

    # ---- heartbeats ------------------------------------------------------------------------------------------------------
    async def _heartbeats(self) -> None:
        while True:
            self._unanswered_hellos += 1
            if self._unanswered_hellos % _MAX_UNANSWERED_HELLOS == 0:
                self._unbound = not self._unbound
            await self._try_to_send(self._hello())
            await asyncio.sleep(0)  # first process an answer that is here already: this process was suspended, not its node
            self._upgrade_if_due()
            if self._keeper is not None and self._keeper.must_retain:
                self._spawn(self._keeper.retain())
            order = self._orders.last
            if order is not None and self.leads and self._orders.valid is None:
                logger.warning(
                    "node silent stream=%s node=%s: service is FOLLOWER until it answers", order.stream, self._settings.node
                )
                self._apply_order()
            if self._queries is not None and not self.is_fed:
                self._queries.wake()
            await asyncio.sleep(self._until_the_next_s())

    def _until_the_next_s(self) -> float:
        """Return the time until the next heartbeat to the node, in seconds.

        All services that run in the node's own process send their heartbeats at the same time.
        """
        every_s = self._settings.heartbeat_interval_s
        if not self._greeted or self._refusal:
            return min(_ASK_S, every_s)
        if self._say is None:
            return every_s
        left_s = every_s - time.monotonic() % every_s
        return left_s if left_s > every_s / 2 else left_s + every_s

    def _upgrade_if_due(self) -> None:
        order, machine = self._orders.last, self.machine
        if order is not None and machine is not None and self.leads and self._orders.is_beside_leader:
            decision = self._upgrader.due_decision(order, machine)
            if decision is not None:
                self._spawn(self._upgrader.decide(machine, *decision))
            numbering = self._upgrader.due_numbering(order, machine)
            if numbering is not None:
                self._spawn(self._upgrader.decide_numbering(machine, numbering))

    def _hello(self, *, leaving: bool = False) -> pb.ServiceHello:
        settings, machine, ended_by = self._settings, self.machine, self._end_reason
        ending = pb.ServiceHello.STOPPED
        if ended_by is not None:
            ending = pb.ServiceHello.DIVERGED if isinstance(ended_by, DivergedError) else pb.ServiceHello.FAILED
        outbox = machine.outbox if machine is not None else None
        problem = self.problem[:MAX_REASON] if ended_by is None else _text_of(ended_by)
        fetching = self._fetcher is not None and bool(self._fetcher.problem)
        return pb.ServiceHello(
            service=settings.service,
            stream=settings.stream,
            partition=settings.partition,
            streamUid=self._orders.last.streamUid if self._orders.last is not None else "",
            instance=self._instance,
            first=not self._greeted,
            leaving=leaving,
            position=machine.position if machine is not None else 0,
            outputCount=outbox.output_count if outbox is not None else 0,
            emittedEnd=outbox.emitted_end if outbox is not None else 0,
            problem=problem.encode(errors="replace").decode(),  # an error of the service's code may have any text
            ending=ending,
            life=self._keeper.life if self._keeper is not None else 0,
            figures=self._figures(),
            version=machine.version if machine is not None else 0,
            activeVersion=machine.active_version if machine is not None else 0,
            snapshots=[
                pb.SnapshotDigest(position=BEGINNING, digest=settings.parameters_digest or NO_PARAMETERS),
                *(
                    pb.SnapshotDigest(position=at, digest=digest)
                    for at, digest in (self._keeper.digests if self._keeper else ())
                    if at != BEGINNING  # the digest of BEGINNING is that of the parameters
                ),
            ],
            failing=fetching or (machine is not None and self._feeder is not None and self._feeder.failing is not None),
            fetching=fetching,
            fetchedBytes=self._fetcher.fetched_bytes if self._fetcher is not None else 0,
            givenBytes=self._keeper.given_bytes if self._keeper is not None else 0,
            snapshotPosition=self._keeper.retain_from() if self._keeper is not None and machine is not None else 0,
            replayPoints=[
                pb.ReplayPoint(
                    position=point.position,
                    outputCount=point.output_count,
                    effectCount=point.effect_count,
                    version=point.version,
                )
                for point in (self._keeper.replay_points if self._keeper is not None else [])[-MAX_POSITIONS:]
            ],
            effectCount=machine.effects.count if machine is not None else 0,
            effectNumbers=pb.EFFECT_NUMBERS_BY_RECORD,
        )

    def _figures(self) -> pb.ServiceFigures:
        machine, keeper, queries, now_s = self.machine, self._keeper, self._queries, time.monotonic()
        outbox = machine.outbox if machine is not None else None
        if outbox is not None and outbox.known and (self._emitted is None or outbox.emitted_end != self._emitted[0]):
            self._emitted = (outbox.emitted_end, now_s)
        saved_s = keeper.saved_s if keeper is not None else None
        return pb.ServiceFigures(
            sinceOutputMs=-1 if self._emitted is None else round((now_s - self._emitted[1]) * 1000),
            queriesWaiting=queries.waiting_count if queries is not None else 0,
            queriesAnswered=queries.answered_count if queries is not None else 0,
            queriesRefused=queries.refused_count if queries is not None else 0,
            snapshotsStored=keeper.stored_count if keeper is not None else 0,
            sinceSnapshotMs=-1 if saved_s is None else round((now_s - saved_s) * 1000),
            snapshotBytes=keeper.state_bytes if keeper is not None else 0,
            timersWaiting=machine.timer_count if machine is not None else 0,
            effectsWaiting=len(machine.effects) if machine is not None else 0,
        )

    @property
    def problem(self) -> str:
        """Reason why the service makes no progress or cannot write, for the status. '': there is none."""
        feeding = (self._fetcher.problem if self._fetcher else "") or (self._feeder.problem if self._feeder is not None else "")
        effects = self._effects.problem if self._effects is not None else ""
        snapshot = self._keeper.problem if self._keeper is not None else ""
        outputs = (self._emitter.problem if self._emitter is not None else "") or "".join(r.problem for r in self._routers)
        stands = self._refusal or feeding or outputs or effects or snapshot
        ahead_s = self.machine.ahead_ns / NS_PER_S if self.machine is not None else 0.0
        if stands or ahead_s < _AHEAD_S:
            return stands
        return f"log time is {ahead_s:.0f} s ahead of the newest record: a leader's clock was; timers wait until records come there"

    async def _send(self, message: pb.ServiceHello | pb.ServiceAck) -> None:
        if self._say is not None:
            self._say(message, self._inbox, self._process_message)
            return
        settings, subjects = self._settings, self._subjects
        subject = subjects.service(settings.node)
        if not self._unbound:
            subject = subjects.service_session(settings.node, settings.stream, settings.service)
        await self._transport.publish(subject, frames.seal(message), reply=self._inbox)

    async def _try_to_send(self, message: pb.ServiceHello | pb.ServiceAck) -> None:
        with contextlib.suppress(UnavailableError):  # the next heartbeat contains it again
            await self._send(message)


_NUMBERINGS = {
    pb.EFFECT_NUMBERS_BY_COUNT: EffectNumbering.BY_COUNT,
    pb.EFFECT_NUMBERS_BY_RECORD: EffectNumbering.BY_RECORD,
}
AGAIN_S = 10.0
"""Time in seconds after which a decision that is not in the state is appended again."""


class Upgrader:
    """Appends the decisions that activate new versions of a service, and another numbering of its effects.

    It runs on the node of the partition's leader. ``liftpy.core.services.versions`` and ``liftpy.core.services.effects`` have the
    rules.
    """

    def __init__(self, client: Client, settings: ServiceSettings) -> None:
        self._writer = DecisionWriter(client, "", settings.emit_timeout_s)
        self._service = settings.service
        self._decided_s = self._numbered_s = -math.inf

    def due_decision(self, order: pb.JoinLog, machine: ServiceMachine) -> tuple[VersionDecision, bool] | None:
        """Return the decision to activate a version that the caller should append now. None: no decision is due.

        It comes with True if it may be appended only as the first record of the log. At most one decision is due within
        ``AGAIN_S``. ``order``: last order of the node.
        """
        if machine.is_replaying:  # the log may have the decision
            return None
        active, newest = machine.active_version, machine.version
        first = order.highWatermark < 0 and machine.position == 0 and newest > active + 1
        version = newest if first else active + 1
        if version > min(newest, order.lowestVersion) or time.monotonic() - self._decided_s < AGAIN_S:
            return None
        self._decided_s = time.monotonic()
        return VersionDecision(self._service, version, order.leaderEpoch), first

    async def decide(self, machine: ServiceMachine, decision: VersionDecision, first: bool) -> None:
        """Append the decision. If that fails, it is due again later. ``first``: True to append it only as the first record."""
        try:
            await self._writer.upgrade(machine.identity, decision, first=first)
        except LiftError as error:
            logger.warning(
                "service version not activated service=%s version=%d code=%s error=%s: retrying",
                machine.identity,
                decision.version,
                error.code,
                error,
            )

    def due_numbering(self, order: pb.JoinLog, machine: ServiceMachine) -> NumberingDecision | None:
        """Return the decision to number effects in another way that the caller should append now. None: no decision is due.

        At most one decision is due within ``AGAIN_S``. ``order``: last order of the node.
        """
        wanted = _NUMBERINGS.get(order.effectNumbers)
        if machine.is_replaying or wanted in (None, machine.effects.numbering) or not machine.has_effects:
            return None
        if time.monotonic() - self._numbered_s < AGAIN_S:
            return None
        self._numbered_s = time.monotonic()
        return NumberingDecision(self._service, wanted, order.leaderEpoch)

    async def decide_numbering(self, machine: ServiceMachine, decision: NumberingDecision) -> None:
        """Append the decision. If that fails, it is due again later."""
        try:
            await self._writer.change_numbering(machine.identity, decision)
        except LiftError as error:
            logger.warning(
                "effect numbering not activated service=%s numbering=%s code=%s error=%s: retrying",
                machine.identity,
                decision.numbering.value,
                error.code,
                error,
            )
