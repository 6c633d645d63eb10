"""MemoryReplica: the shipped ``Replica``, ``Log`` and ``PartitionShell`` of one partition on one in-memory node.

The shell runs without a disk and a network. ``MemoryProposals`` sends the requests to the metadata group, like
``sidecar.partition.proposals``. ``Readers`` receives the requests of readers. ``liftpy.core.replication.reads`` decides
the answers.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionMetadata, PartitionState
from liftpy.core.log.flush import Flush
from liftpy.core.log.group_commit import GroupCommit
from liftpy.core.log.log import Log
from liftpy.core.metadata.controller.request_batcher import purge_report
from liftpy.core.metadata.image import StreamImage
from liftpy.core.partition.shell import FetchedBatches, PartitionShell
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.state_transfer import StateServer
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.effects import acts_of
from liftpy.core.replication.metadata_requests import Request, request_of
from liftpy.core.replication.reads import Chunks, Reads, ReplicaSource
from liftpy.core.replication.replica import Replica
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import LiftError, StorageError
from liftpy.testing.memory.home import Answered, HomeNode, ReplicaEndpoint
from liftpy.testing.memory.nats import BusSubscription
from liftpy.testing.memory.peers import Peers
from liftpy.testing.memory.publishers import MemoryPublishers


def _nobody(response: pb.ControlResponse) -> None:
    pass


class MemoryProposals:
    """Part of a ``MemoryReplica`` that sends requests to the metadata group and processes the answers."""

    node: HomeNode
    node_id: str
    key: PartitionKey

    log: Log
    state: PartitionState | None
    """State of the partition in the last update."""

    def feed(self, event: ev.Event) -> None:
        raise NotImplementedError

    def _ask(self, request: pb.ControlRequest, answered: Answered = _nobody) -> None:
        self.node.ask(request, answered)

    def _request(self, effect: Request) -> pb.ControlRequest:
        return request_of(effect, self.key, self.node_id, self.node.incarnation)

    def propose_isr(self, effect: do.ProposeIsr) -> None:
        def answered(response: pb.ControlResponse) -> None:
            accepted = response.error == pb.ControlResponse.OK
            self.feed(ev.IsrChangeAnswered(epoch=effect.epoch, accepted=accepted))

        self._ask(self._request(effect), answered)

    def report_leader(self, effect: do.ReportLeader) -> None:
        self._ask(self._request(effect))

    def leave_isr(self, effect: do.LeaveIsr) -> None:
        self._ask(self._request(effect))

    def give_up_leadership(self, effect: do.GiveUpLeadership) -> None:
        self._ask(self._request(effect))

    def wake_partition(self, effect: do.WakePartition) -> None:
        self._ask(self._request(effect))

    def step_aside(self, effect: do.StepAside) -> None:
        self._ask(self._request(effect))

    def report_promotion(self, effect: do.ReportPromotion) -> None:
        self._ask(self._request(effect))

    def report_purged(self) -> None:
        """Tell the metadata group which purges this replica has completed, if the group does not know it yet."""
        purged = self.log.cleaning.purged
        report = purge_report(self.key, self.state, self.node_id, self.node.incarnation, purged) if self.state else None
        if report is not None:
            self._ask(report)


class Readers:
    """Receives the read requests for one replica (implements ``ReadShell``). A reader is identified by its reply subject."""

    def __init__(self, replica: ReplicaEndpoint, is_heard: Callable[[], bool], giver: StateServer) -> None:
        self._replica = replica
        self._bus = replica.node.bus
        key, node, subjects = replica.key, replica.node, replica.node.subjects
        source = ReplicaSource(
            replica.replica,
            replica.log,
            failed=lambda: bool(replica.failed),
            is_heard=is_heard,
        )
        self._reads = Reads[str](key, node.node_id, source, self, node.counters, node.read_budget)
        self._reads.give_state = giver.read_piece_below
        self.advanced = self._reads.advanced
        self._subject = subjects.read(key.stream, key.partition)
        self._own = self._bus.listen(subjects.read_from(key.stream, key.partition, node.node_id), self._message_arrived)
        self._shared: BusSubscription | None = None

    def share(self, wanted: bool) -> None:
        """Subscribe to reads that any in-sync replica may answer if ``wanted`` is True. Otherwise unsubscribe."""
        if wanted and self._shared is None:
            self._shared = self._bus.listen(self._subject, self._message_arrived, self._subject)
        elif not wanted and self._shared is not None:
            self._shared.close()
            self._shared = None

    def close(self) -> None:
        """Unsubscribe, and reject all waiting read requests, because the replica is closed."""
        self.share(False)
        self._own.close()
        self._reads.close()

    def _message_arrived(self, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        if self._replica.node.inboxes.allows(reply):
            self._reads.answer_request(payload, reply.decode())

    # ---- what carries the answers ----------------------------------------------------------------------------------------
    @property
    def max_payload(self) -> int:
        return self._bus.max_payload

    @property
    def has_room(self) -> bool:
        """Always True: answers are only in memory, so the connection is never full."""
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


_COMPACT_FROM_DIRTY_RATIO = 0.5
_LATER_NS = 20_000_000
"""Pause before another attempt to delete records of a log that is not replayed completely, in nanoseconds."""


class MemoryReplica(PartitionShell, MemoryProposals, Peers):
    """One partition on one in-memory node, until ``stop`` or ``die``. It runs on the event loop of the cluster."""

    def __init__(self, node: HomeNode, stream: StreamImage, number: int, log: Log) -> None:
        self.node = node
        self.node_id = node.node_id
        self.key = stream.key(number)
        self.subject = data_subject(stream.subject, number)
        self.log = log
        seed = zlib.crc32(f"{node.node_id} {self.key}".encode())
        self.replica = Replica(
            node.node_id, node.incarnation, node.config, seed, node.intake, copy_pace=node.copy_pace, lease=node.lease
        )
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
        self.begin_peers()
        publishers = self.publishers = MemoryPublishers(self)
        self.ingest, self.acks, self.derived = publishers.ingest, publishers.acks, publishers.derived
        self.standby, self.taker = publishers.standby, publishers.taker
        self.reads = self.readers = Readers(self, lambda: self.ingest.heard, publishers.giver)
        self.commit = GroupCommit(log, log.config.flush, _Flusher(self))
        self._do = acts_of(self)

    def open(self) -> None:
        """Start the state machine with the content of the log."""
        self.feed_log_opened()

    def update(self, held: PartitionMetadata, incarnations: Mapping[str, int]) -> None:
        """Apply changed metadata of the partition.

        ``held``: state of the partition and settings of its stream. ``incarnations``: incarnation of each live node.
        """
        self.state = held.state
        if self.apply_metadata(held, incarnations, self.replica.announced):
            self.apply_retention()
        self.readers.share(self.node_id in held.isr)
        self.readers.advanced()

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
        self.publishers.close()
        self.readers.close()
        self.publishers.derived.join(NodeStateMemory())
        self.end_peers()

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
        """Return the wall clock of the cluster, in nanoseconds."""
        return self.node.wall_ns()

    def flush_appended(self) -> None:
        """Start a flush as the flush policy of the stream requires."""
        self.commit.appended()

    def run_alone(self, work: Callable[[], None]) -> None:
        """Run ``work``, which changes the log, while no flush runs."""
        self.commit.alone(work)

    def named_leader(self) -> tuple[str, int, int]:
        """Return (leader, LeaderEpoch, Epoch) of the last state that the replica has processed."""
        state = self.replica.state
        return state.leader, state.leader_epoch, state.epoch

    def store_promise(self, leader_epoch: int, then: Callable[[StorageError | None], None]) -> None:
        """Store the promise in the memory of the node, which survives a restart of the node."""
        self.node.promises[self.key] = max(leader_epoch, self.node.promises.get(self.key, 0))
        then(None)

    def store(self, change: Callable[[], Any]) -> bool:
        """Call ``change``, which changes the log. Return whether it succeeded. After a failure, the state machine gets an event."""
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
        states = self.publishers.states
        if not states.may_drop(log_start_offset):
            self.log.checkpoint()
            self.publishers.store_state()
        if states.may_drop(log_start_offset):
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
            self.publishers.store_state()
            self.apply_retention()
        if self.log.may_be_cleaned and not self.failed:
            compaction = self.log.begin_compaction(self.node.wall_ns(), min_dirty_ratio=dirty_ratio)
            if compaction is not None:
                compaction.run()
                self.store(lambda: self.commit.alone(lambda: self.log.complete_compaction(compaction)))
            self.report_purged()

    # ---- derived state -------------------------------------------------------------------------------------------------
    def replay_log(self, effect: do.ReplayLog) -> None:
        self._replaying = effect
        self.later(lambda: self._replay(effect))

    def _replay(self, effect: do.ReplayLog) -> None:
        if self._replaying is not effect:
            return
        derived = self.publishers.derived
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


class _Flusher:
    """Flushes of an in-memory log (implements ``FlushShell``). A flush ends within the next turn of the event loop."""

    def __init__(self, replica: MemoryReplica) -> None:
        self._replica = replica

    def begin(self) -> None:
        """Start a flush, which ends in the next turn of the event loop and includes all records of this turn."""
        self._replica.later(self._run)

    def _run(self) -> None:
        commit = self._replica.commit
        flush = commit.start()
        if flush is None:
            return
        error: StorageError | None = None
        try:
            flush.run()
        except StorageError as refused:
            error = refused
        commit.flush_ended(flush, 0, error)

    def wait(self, flush: Flush) -> tuple[int, Exception | None]:
        raise AssertionError("Internal error: an in-memory flush never waits. Please report it.")

    def wait_for_checkpoint(self) -> None:
        """Do nothing: no checkpoint runs in the background."""

    def arm(self) -> None:
        """Start the timer for the interval of the flush policy."""
        interval_s = self._replica.log.config.flush.interval_s
        self._replica.later(self._replica.commit.interval_over, round(interval_s * NS_PER_S))

    def flush_succeeded(self) -> None:
        """Do nothing: the duration of flushes is not measured in memory."""

    def flushed(self, end_offset: int, disk_ns: int) -> None:
        self._replica.feed(ev.LogFlushed(end_offset=end_offset, took_ns=disk_ns))

    def flush_failed(self, error: StorageError) -> None:
        self._replica.log_failed(error)
