"""Nodes of an in-memory cluster and their replicas: the shipped ``Replica``, ``Log`` and ``PartitionShell``, without disk and network.

A message between two replicas becomes an event of the receiver in the next turn of the event loop, and the answer becomes
one in the turn after it. So no replica calls the state machine of another one directly. Clients and publishers use the
in-memory NATS.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from liftpy.config import NS_PER_MS, NS_PER_S, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionMetadata, PartitionState
from liftpy.core.log.flush import Flush
from liftpy.core.log.group_commit import GroupCommit
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import read_portion
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.metadata.controller.request_batcher import purge_report
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.image_delta import diff
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.core.partition.reads import Chunks, ReadBudget, Reads, ReadSubscriptions, ReplicaSource
from liftpy.core.partition.shell import FetchedBatches, PartitionShell
from liftpy.core.publish import state_writer
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import derived_state
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.publish.ports import PublishRejector, Sink
from liftpy.core.publish.standby import NodeStandbyMemory, Standby, StandbyBuffer, StandbyReplayRules
from liftpy.core.publish.state_file import state_owner
from liftpy.core.publish.state_transfer import StateFetcher, StatePiece, StatePieceRequest, StateServer
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import pace_of
from liftpy.core.replication.control_requests import Request, request_of
from liftpy.core.replication.effects import acts_of
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import Lease
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, LeaderNotice
from liftpy.core.replication.replica import Replica
from liftpy.core.replication.role import NodeContext
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.batch import split_batches
from liftpy.core.wire.chunking import NOTHING
from liftpy.core.wire.subjects import InboxRule, Subjects, data_subject
from liftpy.errors import LiftError, StorageError
from liftpy.testing.memory.group import MemoryGroup
from liftpy.testing.memory.nats import Bus, BusSubscription

_ROOM_BYTES = 1 << 40
"""Size limit of a fetch answer, practically unlimited, because no NATS message contains it."""
_COMPACT_FROM_DIRTY_RATIO = 0.5
_ROUNDING_NS = 1_000
"""Delay of the timer for the end of the lease, in nanoseconds. The event loop counts in seconds, and rounding could set it earlier."""
_LATER_NS = 20_000_000
"""Pause before another attempt to delete records of a log that is not replayed completely, in nanoseconds."""


class MemoryNode:
    """One node of an in-memory cluster.

    ``others``: all nodes by id, including this one. ``served``: replica that serves a partition as leader or candidate, for all nodes.
    """

    def __init__(
        self,
        node_id: str,
        loop: asyncio.AbstractEventLoop,
        bus: Bus,
        subjects: Subjects,
        config: ReplicationConfig,
        others: Mapping[str, MemoryNode],
        served: dict[PartitionKey, MemoryReplica],
    ) -> None:
        self.node_id = node_id
        self.loop = loop
        self.bus = bus
        self.subjects = subjects
        self.config = config
        self.inboxes = InboxRule(subjects.inbox_prefixes)
        self.counters: Counter[str] = Counter()
        self.copy_limit = pace_of(config)
        self.now_ns: Callable[[], int] = time.monotonic_ns
        self.wall_ns: Callable[[], int] = time.time_ns
        self.promises: dict[PartitionKey, int] = {}
        self.replicas: dict[PartitionKey, MemoryReplica] = {}
        self.up = False
        self.incarnation = 0
        self.others = others
        self.served = served
        self._group: MemoryGroup | None = None
        self._storages: dict[PartitionKey, MemoryStorage] = {}
        self._starts = DirectoryIdentity(f"memory-{node_id}")
        self._image = ClusterImage()
        self._lease_ends: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        """Create the memory of a new process of the node, which has no metadata yet."""
        self.inflight = NodeInflight()
        self.lease = Lease(round(self.config.lease_s * NS_PER_S))
        self.derived = NodeStateMemory(self.config.node_dedup_state_bytes)
        self.standby_memory = NodeStandbyMemory(self.config.node_standby_bytes)
        self.read_budget = ReadBudget()
        self._image = ClusterImage()

    # ---- life ------------------------------------------------------------------------------------------------------------
    def start(self, group: MemoryGroup) -> None:
        """Register the node in the metadata group, and open the partitions of the metadata image."""
        self._begin()
        self._group = group
        self._starts = self._starts.next(self._starts.starts + 1)
        register = pb.RegisterNode(nodeId=self.node_id, previousIncarnation=self.incarnation, flushedAlways=True)
        SUPPORTED_LEVELS.write_to(register)
        self._starts.write_to(register)
        self.incarnation = group.apply(pb.ControlRequest(registerNode=register)).node.incarnation
        self._starts = self._starts.after_registration()
        self.up = True
        self.image_changed(group.image)

    def kill(self) -> None:
        """End the process of the node at once, as SIGKILL does. Its written data remains."""
        self.up = False
        self._cancel_lease_timer()
        for replica in self.replicas.values():
            replica.die()
        self.replicas.clear()
        self._storages = {key: storage.crash(power=False) for key, storage in self._storages.items()}

    def close(self) -> None:
        self.up = False
        self._cancel_lease_timer()
        for replica in self.replicas.values():
            replica.stop()
        self.replicas.clear()

    def beat(self) -> None:
        """Renew the lease of the node, because its heartbeat was answered, unless it does not have the newest metadata image.

        The node must first learn which leaderships it has lost [D22].
        """
        if self._group is None or self._image.index < self._group.changed_index:
            return
        times, now_ns = self._image.session_times, self.now_ns()
        had_ended = self.lease.extend(now_ns, 0 if times is None else times.lease_ms * NS_PER_MS, now_ns)
        self._cancel_lease_timer()
        self._set_lease_timer(now_ns)
        if had_ended:
            self._lease_changed()

    def _set_lease_timer(self, now_ns: int) -> None:
        at_s = (self.lease.until_ns(now_ns) + _ROUNDING_NS) / NS_PER_S
        self._lease_ends = self.loop.call_at(at_s, self._check_lease)

    def _check_lease(self) -> None:
        """Tell the leaders that the lease has ended. The event loop may call this method a moment too early."""
        now_ns = self.now_ns()
        if self.lease.is_current(now_ns):
            self._set_lease_timer(now_ns)
        else:
            self._lease_changed()

    def _cancel_lease_timer(self) -> None:
        if self._lease_ends is not None:
            self._lease_ends.cancel()
            self._lease_ends = None

    def _lease_changed(self) -> None:
        for replica in list(self.replicas.values()):
            replica.feed(ev.LeaseChanged())

    def keep_house(self, dirty_ratio: float | None = None) -> None:
        """Run retention and compaction of all logs of the node.

        ``dirty_ratio``: minimum share of a log that is not compacted, for compaction. None: the default.
        """
        for replica in list(self.replicas.values()):
            replica.keep_house(*() if dirty_ratio is None else (dirty_ratio,))

    # ---- the image -------------------------------------------------------------------------------------------------------
    def image_changed(self, image: ClusterImage) -> None:
        """Apply a new metadata image: stop removed partitions, open new ones, update the others."""
        if not self.up or image.index <= self._image.index:
            return
        old, self._image = self._image, image
        changes = diff(old, image)
        for key in [key for key in self.replicas if not self._holds(key, image)]:
            self.replicas.pop(key).stop(clean=False)
            del self._storages[key]
        live = {node_id: node.incarnation for node_id, node in image.nodes.items() if not node.fenced}
        changed = {change.key for change in changes.partitions}
        for stream, partition in image.partitions_of(self.node_id):
            key = stream.key(partition.partition)
            replica = self.replicas.get(key)
            if replica is None:
                replica = self._open(stream, partition.partition)
            elif key not in changed and not (changes.nodes or changes.lease_changed):
                continue
            replica.replica.announce_change(self.now_ns())
            replica.update(image.partition_metadata(stream, partition), live)
        self.beat()

    def _holds(self, key: PartitionKey, image: ClusterImage) -> bool:
        location = image.find(key.stream, key.uid, key.partition)
        return location is not None and self.node_id in location[1].holders

    def _open(self, stream: StreamImage, number: int) -> MemoryReplica:
        key = stream.key(number)
        storage = self._storages.setdefault(key, MemoryStorage())
        log, _ = Log.open(storage, stream.config, now_wall_ns=self.wall_ns(), promised_epoch=self.promises.get(key, 0))
        replica = self.replicas[key] = MemoryReplica(self, stream, number, log)
        replica.feed_log_opened()
        return replica

    # ---- what replicas ask -----------------------------------------------------------------------------------------------
    def ask(self, request: pb.ControlRequest, answered: Callable[[pb.ControlResponse], object]) -> None:
        """Send a request to the metadata group. It decides in the next turn of the event loop and then calls ``answered``."""
        incarnation = self.incarnation

        def asked() -> None:
            if self.up and self.incarnation == incarnation and self._group is not None:
                response = self._group.decide(request)
                self.loop.call_soon(answered, response)

        self.loop.call_soon(asked)

    def serving_replica(self, key: PartitionKey) -> MemoryReplica | None:
        """Return the replica of any node that serves the partition as leader or candidate. None: there is none."""
        return self.served.get(key)

    def replica_of(self, node_id: str, key: PartitionKey) -> MemoryReplica | None:
        other = self.others.get(node_id)
        return None if other is None else other.replicas.get(key)


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    """Replica that has sent a request, and the id of the request."""

    peer: MemoryReplica
    request_id: int


class MemoryReplica(PartitionShell):
    """One partition on one in-memory node, until ``stop`` or ``die``. It runs on the event loop of the cluster.

    It implements ``IngestShell`` and ``StandbyShell`` for its publishers, and ``FlushShell`` for its log. A flush ends within the
    next turn of the event loop.
    """

    reads: Readers
    state_fetcher: StateFetcher

    def __init__(self, node: MemoryNode, stream: StreamImage, number: int, log: Log) -> None:
        self.node = node
        self.node_id = node.node_id
        self.key = stream.key(number)
        self.subject = data_subject(stream.subject, number)
        self.log = log
        seed = zlib.crc32(f"{node.node_id} {self.key}".encode())
        shared = NodeContext(node.node_id, node.incarnation, node.config, node.lease, node.inflight, node.copy_limit)
        self.replica = Replica(shared, seed)
        self.counters = node.counters
        self.state: PartitionState | None = None
        self.gone = False
        """True if the replica is stopped or its node was killed. It receives no more events."""
        self._inbox: deque[ev.Event] = deque()
        self._stepping = False
        self._timers: dict[ev.Deadline, asyncio.TimerHandle] = {}
        self._replaying: do.ReplayLog | None = None
        self._loop = node.loop
        self.fetched: dict[int, FetchedBatches] = {}
        self._next_token = 1
        self._requests: dict[int, _PendingRequest] = {}
        self._parked: dict[str, _PendingRequest] = {}
        """Replica -> its last fetch, which got an empty answer and waits for records."""
        self._waiting: FetchRequest | None = None
        """Fetch that is sent after the state of the leader has arrived. None: none."""
        self.send_lines, self.call_after_read = node.bus.send_lines, node.bus.call_after_read
        self._build_publishers(node, log)
        self.reads = Readers(self)
        self.commit = GroupCommit(log, log.config.flush, self)
        self._do = acts_of(self)

    def _build_publishers(self, node: MemoryNode, log: Log) -> None:
        config, stream, owner = node.config, log.config, state_owner(self.key)
        self.acks = PendingAcks(self, self.key, self.subject)
        self.derived = derived_state(log, self.subject, stream, config, self.now_ns)
        self.derived.join(node.derived)
        self.derived.on_lacking = self._read_soon
        self._reading = False
        state_writer.restore_state(self.derived, log, owner)
        self.states = state_writer.StateWriter(self.derived, log, owner, state_writer.pace_of(config), self.now_ns)
        self.state_server = StateServer(self.derived, owner, self.now_ns)
        self.state_fetcher = StateFetcher(self.derived, log, owner)
        self.ingest = Ingest(
            shell=self, reader=MessageDecoder(self.key, self.subject, stream.ack_policy, node.inboxes, stream.codec),
            config=config, acks=self.acks, replica=self.replica, feed=self.feed, log=log, derived=self.derived,
            now_ns=self.now_ns, wall_ns=node.wall_ns, on_drop=self._count_dropped,
        )  # fmt: skip
        self.standby = Standby(
            shell=self, subject=self.subject, replica=self.replica, log=log, ids=self.derived.ids,
            reader=MessageDecoder(self.key, self.subject, stream.ack_policy, node.inboxes, stream.codec),
            buffer=StandbyBuffer(node.standby_memory, config.standby_bytes, round(config.standby_age_s * NS_PER_S)),
            now_ns=self.now_ns, wall_ns=node.wall_ns, rules=StandbyReplayRules(uncertainty_ns=round(config.lease_s * NS_PER_S)),
        )  # fmt: skip

    def update(self, held: PartitionMetadata, incarnations: Mapping[str, int]) -> None:
        """Apply changed metadata of the partition.

        ``held``: state of the partition and settings of its stream. ``incarnations``: incarnation of each live node.
        """
        self.state = held.state
        if self.apply_metadata(held, incarnations, self.replica.announced):
            self.apply_retention()
        self.reads.share(self.node_id in held.isr)
        self.reads.advanced()

    def stop(self, *, clean: bool = True) -> None:
        """Stop the replica and close its log. ``clean``: True to flush the log and to store its checkpoint first."""
        self.feed(ev.StopRequested())
        self.die()
        if not self.log.closed:
            self.log.close(clean=clean and not self.failed)

    def die(self) -> None:
        """End the replica as a killed process does. Its storage does not change."""
        self.gone = True
        for timer in self._timers.values():
            timer.cancel()
        self.standby.cancel()
        self.standby.stop()
        self.ingest.stop()
        self.acks.drop()
        self.reads.close()
        self.derived.join(NodeStateMemory())
        self.stop_serving()
        self.fetched.clear()

    # ---- events in, effects out --------------------------------------------------------------------------------------
    def feed(self, event: ev.Event) -> None:
        """Pass an event to the state machine, and carry out its effects. Events that the effects cause are processed afterwards."""
        if self.gone:
            return
        self._inbox.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inbox and not self.gone:
                event = self._inbox.popleft()
                for effect in self.replica.step(event, self.now_ns()):
                    self._do[type(effect)](effect)
        finally:
            self._stepping = False

    def now_ns(self) -> int:
        return self.node.now_ns()

    def later(self, callback: Callable[[], None], delay_ns: int = 0) -> asyncio.Handle:
        def call() -> None:
            if not self.gone:
                callback()

        return self._loop.call_later(delay_ns / NS_PER_S, call) if delay_ns else self._loop.call_soon(call)

    # ---- the log -----------------------------------------------------------------------------------------------------
    def append_time_ns(self) -> int:
        return self.node.wall_ns()

    def flush_appended(self) -> None:
        self.commit.appended()

    def run_without_flush(self, work: Callable[[], None]) -> None:
        self.commit.alone(work)

    def begin(self) -> None:
        self.later(self._flush)

    def _flush(self) -> None:
        flush = self.commit.start()
        if flush is None:
            return
        error: StorageError | None = None
        try:
            flush.run()
        except StorageError as refused:
            error = refused
        self.commit.flush_ended(flush, 0, error)

    def wait(self, flush: Flush) -> tuple[int, Exception | None]:
        raise AssertionError("Internal error: an in-memory flush never waits. Please report it.")

    def wait_for_checkpoint(self) -> None:
        """Do nothing: no checkpoint runs in the background."""

    def arm(self) -> None:
        self.later(self.commit.interval_over, round(self.log.config.flush.interval_s * NS_PER_S))

    def flush_succeeded(self) -> None:
        """Do nothing: the duration of flushes is not measured in memory."""

    def named_leader(self) -> tuple[str, int, int]:
        state = self.replica.state
        return state.leader, state.leader_epoch, state.epoch

    def store_promise(self, leader_epoch: int, then: Callable[[StorageError | None], None]) -> None:
        """Store the promise in the memory of the node, which survives a restart of the node."""
        self.node.promises[self.key] = max(leader_epoch, self.node.promises.get(self.key, 0))
        then(None)

    def store(self, change: Callable[[], Any]) -> bool:
        try:
            change()
        except StorageError as error:
            self.log_failed(error)
            return False
        return True

    def apply_retention(self) -> None:
        before = self.log.log_start_offset
        if not self.failed and self.log.may_give_up:
            wall_ns = self.node.wall_ns()
            done = self.store(lambda: self.commit.alone(lambda: self.log.apply_retention(wall_ns, may_drop=self._may_drop)))
            if done and self.log.log_start_offset != before:
                self.feed(ev.LogStartMoved(log_start_offset=self.log.log_start_offset))

    def _may_drop(self, log_start_offset: int) -> bool:
        """Return whether the records below ``log_start_offset`` may be deleted: the state that belongs to them is stored.

        If it is not, it is stored now if possible, and retention runs again later.
        """
        if not self.states.may_drop(log_start_offset):
            self.log.checkpoint()
            self._store_state()
        if self.states.may_drop(log_start_offset):
            return True
        self.later(self.apply_retention, _LATER_NS)
        return False

    def keep_house(self, dirty_ratio: float = _COMPACT_FROM_DIRTY_RATIO) -> None:
        """Store the HW, apply retention, and compact the log if its stream is compacted.

        ``dirty_ratio``: minimum share of the log that is not compacted, for compaction.
        """
        if self.failed or self.gone:
            return
        if self.store(self.log.checkpoint):
            self._store_state()
            self.apply_retention()
        if self.log.may_be_cleaned and not self.failed:
            compaction = self.log.begin_compaction(self.node.wall_ns(), min_dirty_ratio=dirty_ratio)
            if compaction is not None:
                compaction.run()
                self.store(lambda: self.commit.alone(lambda: self.log.complete_compaction(compaction)))
            self._report_purged()

    # ---- derived state -------------------------------------------------------------------------------------------------
    def _store_state(self) -> None:
        """Store the state of producers and message ids if that is due, after a checkpoint of the HW."""
        unwritten = self.states.begin()
        if unwritten is not None:
            self.states.write(unwritten)

    def _read_soon(self) -> None:
        if not self._reading:
            self._reading = True
            self.later(self._read_missing_records)

    def _read_missing_records(self) -> None:
        self._reading = False
        try:
            complete = self.derived.read_missing_records()
        except LiftError:
            return  # its log cannot be read: the next read raises the error
        if not complete:
            self._read_soon()

    def replay_log(self, effect: do.ReplayLog) -> None:
        self._replaying = effect
        self.later(lambda: self._replay(effect))

    def _replay(self, effect: do.ReplayLog) -> None:
        if self._replaying is not effect:
            return
        derived = self.derived
        try:
            complete = derived.is_complete or derived.replay()
        except LiftError as error:
            self.log_failed(StorageError(f"The log cannot be replayed: {error}"))
            return
        if complete:
            self._replaying = None
            self.feed(ev.ReplayFinished(end_offset=effect.end_offset))
        else:
            self.feed(ev.ReplayProgressed(end_offset=derived.end_offset or 0))
            self.later(lambda: self._replay(effect))

    # ---- publishers ----------------------------------------------------------------------------------------------------
    @property
    def max_payload(self) -> int:
        return self.node.bus.max_payload

    def listen(
        self, subject: str, sink: Sink, *, on_dropped: Callable[[int], None], rejector: PublishRejector | None = None
    ) -> BusSubscription:
        return self.node.bus.listen(subject, sink)

    def subscribe(self, subject: str, sink: Sink, on_dropped: Callable[[int], None]) -> _StandbySubscription:
        return _StandbySubscription(self, self.node.bus, subject, sink)

    def when_subscribed(self, on_subscribed: Callable[[], None]) -> None:
        """Call ``on_subscribed`` in the next turn of the event loop, because subscriptions take effect immediately."""
        self.later(on_subscribed)

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """Report an unexpected error in the processing of a message on ``subject`` to the event loop."""
        self.counters["not_taken"] += 1
        self._loop.call_exception_handler({"message": f"a message on {subject!r}", "exception": error})

    def _count_dropped(self, reason: str, count: int) -> None:
        self.counters[f"messages dropped: {reason}"] += count

    def close_subject(self, effect: do.CloseSubject) -> None:
        super().close_subject(effect)
        self._replaying = None
        self.stop_serving()

    # ---- time and status -----------------------------------------------------------------------------------------------
    def set_deadline(self, effect: do.SetDeadline) -> None:
        kind = effect.kind
        timer = self._timers.pop(kind, None)
        if timer is not None:
            timer.cancel()
        if effect.at_ns is not None:
            reached = ev.DeadlineReached(kind=kind)
            self._timers[kind] = self._loop.call_at(effect.at_ns / NS_PER_S, lambda: self.feed(reached))

    def role_changed(self, effect: do.RoleChanged) -> None:
        self._waiting = None
        self.standby.review()

    # ---- requests to the metadata group --------------------------------------------------------------------------------
    def propose_isr(self, effect: do.ProposeIsr) -> None:
        def answered(response: pb.ControlResponse) -> None:
            accepted = response.error == pb.ControlResponse.OK
            self.feed(ev.IsrChangeAnswered(epoch=effect.epoch, accepted=accepted))

        self._send_request(effect, answered)

    def _send_request(self, effect: Request, answered: Callable[[pb.ControlResponse], object] = lambda response: None) -> None:
        self.node.ask(request_of(effect, self.key, self.node_id, self.node.incarnation), answered)

    report_leader = leave_isr = give_up_leadership = wake_partition = transfer_leadership = report_promotion = _send_request

    def _report_purged(self) -> None:
        """Tell the metadata group which purges this replica has completed, if the group does not know it yet."""
        purged = self.log.cleaning.purged
        report = purge_report(self.key, self.state, self.node_id, self.node.incarnation, purged) if self.state else None
        if report is not None:
            self.node.ask(report, lambda response: None)

    def _token(self) -> int:
        token, self._next_token = self._next_token, self._next_token + 1
        return token

    # ---- a follower ------------------------------------------------------------------------------------------------------
    def _ask_leader(self, request: FetchRequest | EpochQuery) -> None:
        def ask() -> None:
            leader = self.node.serving_replica(self.key)
            if leader is None or leader is self:
                self.feed(ev.RequestFailed(request_id=request.request_id, reason="no responders"))
                return
            leader.feed(replace(request, token=leader.asked_by(self, request.request_id)))

        self.later(ask)

    def send_fetch_request(self, message: FetchRequest) -> None:
        question = self.state_fetcher.asks(message.leader_epoch)
        self._waiting = None if question is None else message
        if question is not None:
            self.later(lambda: self._ask_state(message, question))
            return
        self._ask_leader(message)

    def _ask_state(self, fetch: FetchRequest, question: StatePieceRequest) -> None:
        """Request the leader's state of producers and message ids that belongs to deleted records. Then send ``fetch``."""
        if self._waiting is not fetch:
            return  # it has another role
        leader, piece = self.node.serving_replica(self.key), None
        if leader is None or leader is self:
            self.state_fetcher.note_no_responders()
        else:
            piece = leader.read_state(question)
        try:
            goes_on = self.state_fetcher.add_piece(piece)
        except StorageError as error:
            self.log_failed(error)
            return
        if goes_on:
            self.send_fetch_request(fetch)
        else:
            self.feed(ev.RequestFailed(request_id=fetch.request_id, reason="the leader's state is not ready"))

    def read_state(self, question: StatePieceRequest) -> StatePiece | None:
        return self.state_server.read_piece(question)

    def send_epoch_query(self, message: EpochQuery) -> None:
        self._ask_leader(message)

    def answer_arrived(self, request_id: int, leader_epoch: int, high_watermark: int, data: bytes) -> None:
        self.state_fetcher.fetch_answered()
        view = memoryview(data)
        batches = split_batches(view)
        spans = tuple(
            ev.BatchSpan(base_offset=b.base_offset, last_offset=b.last_offset, leader_epoch=b.leader_epoch) for b in batches
        )
        token = self._token() if spans else 0
        if spans:
            self.fetched[token] = FetchedBatches(view, batches)
        answer = ev.FetchAnswered(
            token=token, request_id=request_id, leader_epoch=leader_epoch, high_watermark=high_watermark, spans=spans,
            size_bytes=len(data),
        )  # fmt: skip
        self.feed(answer)

    def combine_fetch(self, effect: do.CombineFetch) -> None:
        self.feed(ev.CombinedFetchEnded(last_answer_ns=None))  # it is asked for alone

    def end_combined_fetch(self, effect: do.EndCombinedFetch) -> None:
        pass

    def confirm_combined_fetch(self, effect: do.ConfirmCombinedFetch) -> None:
        pass

    def asked_by(self, peer: MemoryReplica, request_id: int) -> int:
        token = self._token()
        self._requests[token] = _PendingRequest(peer, request_id)
        return token

    # ---- a leader --------------------------------------------------------------------------------------------------------
    def start_serving(self, effect: do.StartServing) -> None:
        self.node.served[self.key] = self

    def stop_serving(self) -> None:
        if self.node.served.get(self.key) is self:
            del self.node.served[self.key]
        self._requests.clear()
        self._parked.clear()

    def send_fetch_response(self, effect: do.SendFetchResponse) -> None:
        request = self._requests.pop(effect.token, None)
        if request is not None:
            self._send_batches(request, effect.leader_epoch, effect.from_offset, effect.max_bytes)
        self.ingest.settle()

    def park_fetch(self, effect: do.ParkFetch) -> None:
        request = self._requests.pop(effect.token, None)
        if request is not None:
            self._parked[effect.replica] = request
        self.ingest.settle()

    def answer_parked_fetch(self, effect: do.AnswerParkedFetch) -> None:
        request = self._parked.pop(effect.replica, None)
        if request is not None and effect.from_offset < self.log.log_end_offset:
            self._send_batches(request, effect.leader_epoch, effect.from_offset, effect.max_bytes)

    def send_high_watermark(self, effect: do.SendHighWatermark) -> None:
        request = self._parked.get(effect.replica)
        if request is not None:
            self._send(request, effect.leader_epoch, b"")

    def _send_batches(self, request: _PendingRequest, leader_epoch: int, from_offset: int, max_bytes: int) -> None:
        try:
            end_offset = self.log.log_end_offset
            portion = read_portion(self.log, from_offset, max_bytes, _ROOM_BYTES, end_offset=end_offset, held=NOTHING)
        except LiftError as error:
            if isinstance(error, StorageError):
                return  # a read that fails is answered by nothing: an empty response would say "you are caught up"
            raise
        self._send(request, leader_epoch, b"".join(portion.chunks))

    def _send(self, request: _PendingRequest, leader_epoch: int, data: bytes) -> None:
        high_watermark, peer = self.replica.high_watermark, request.peer
        peer.later(lambda: peer.answer_arrived(request.request_id, leader_epoch, high_watermark, data))

    def _answer(self, message: FetchRefusal | EpochAnswer) -> None:
        request = self._requests.pop(message.token, None)
        if request is not None:
            request.peer.later(lambda: request.peer.feed(message))

    def send_fetch_refusal(self, message: FetchRefusal) -> None:
        self._answer(message)

    def send_epoch_answer(self, message: EpochAnswer) -> None:
        self._answer(message)

    def notify_replica(self, effect: do.NotifyReplica) -> None:
        self._send_event(effect.replica, ev.NotificationReceived())

    def send_leader_notice(self, message: LeaderNotice) -> None:
        for replica in message.replicas:
            self._send_event(replica, message)

    def _send_event(self, node_id: str, event: ev.Event) -> None:
        other = self.node.replica_of(node_id, self.key)
        if other is not None:
            other.later(lambda: other.feed(event))

    def probe_replica(self, effect: do.ProbeReplica) -> None:
        other = self.node.others.get(effect.replica)
        if other is None or not other.up:
            self.later(lambda: self.feed(ev.ReplicaAbsent(replica=effect.replica)))


class Readers(ReadSubscriptions):
    """Receives the read requests for one replica (implements ``ReadShell``). A reader is identified by its reply subject."""

    _bus: Bus

    def __init__(self, replica: MemoryReplica) -> None:
        self._replica = replica
        key, node = replica.key, replica.node
        self._reads = Reads[str](key, node.node_id, ReplicaSource(replica), self, node.counters, node.read_budget)
        self._reads.give_state = replica.state_server.read_piece_below
        self.advanced = self._reads.advanced
        super().__init__(node.bus, node.subjects, key, node.node_id, self._message_arrived)

    def close(self) -> None:
        super().close()
        self._reads.close()

    def _message_arrived(self, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        if self._replica.node.inboxes.allows(reply):
            self._reads.answer_request(payload, reply.decode())

    # ---- what carries the answers ----------------------------------------------------------------------------------------
    def has_room_for(self, _: str) -> bool:
        return True

    def now_ns(self) -> int:
        return self._replica.now_ns()

    def answer(self, asker: str, chunks: Chunks) -> None:
        self._bus.send(asker, chunks)

    def request_failed(self, asker: str, error: Exception) -> None:
        """Raise ``error``, the error of a read request of ``asker``, so that the test fails."""
        raise error

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self._replica.node.loop.call_at(at_ns / NS_PER_S, callback).cancel


class _StandbySubscription:
    """Subscription of a standby follower to the data subject of its partition."""

    is_denied = False

    def __init__(self, replica: MemoryReplica, bus: Bus, subject: str, sink: Sink) -> None:
        self._replica = replica
        self._sink = sink
        self._subscription = bus.listen(subject, self._message_arrived)
        self.call_after_read = bus.call_after_read

    def _message_arrived(self, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        self._sink(subject, reply, payload, block)

    def feed_to(self, sink: Sink, on_dropped: Callable[[int], None], lost: Callable[[], None]) -> None:
        self._sink = sink

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._replica.later(callback)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the next turn of the event loop. A real connection would first wait for messages in flight."""
        self._replica.later(callback)

    def leave(self) -> None:
        self._subscription.close()

    def close(self) -> None:
        self._subscription.close()
