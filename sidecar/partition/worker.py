"""One partition on this node: its log, its replica and its services.

A worker starts when the image first shows the partition on this node. It stops when the partition leaves the node or
the node stops. A log is opened and closed outside the event loop. Everything else is synchronous on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from dataclasses import dataclass
from functools import partial

from liftpy.config import NS_PER_S, FlushMode, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments, PublishTimes
from liftpy.core.base.partition import PartitionMetadata, PartitionState
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import OpenReport, delete_quarantined_files
from liftpy.core.observe.tracing import SWITCHED, PartitionTraces
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import LogState, derived_state
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.memory_budget import WAITING_PUBLISHER_BYTES, MemoryBudget, PartitionMemoryBudget
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.publish.standby import NodeStandbyMemory, Standby, StandbyBuffer, StandbyReplayRules
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import Lease
from liftpy.core.replication.reads import ReplicaSource
from liftpy.core.replication.replica import Replica
from liftpy.core.services.sessions import ServiceEnded
from liftpy.core.wire.subjects import InboxRule, Subjects, data_subject
from liftpy.errors import CorruptionError, LiftError, NoSpaceError, StorageError
from sidecar.disk.data_folder import DataDirectory
from sidecar.disk.flush_thread import FlushThread, NodeFlushTimes
from sidecar.metadata.clock_watch import ClockWatch
from sidecar.metadata.identity import NodeFile, WorkerMarks
from sidecar.partition.deletions import Deletions
from sidecar.partition.driver import ReplicaDriver
from sidecar.partition.executor import Executor, Tools, trace
from sidecar.partition.flushing import Flusher, StateCheckpoints, StateFileMatch, load_state_file, read_state_file
from sidecar.partition.promises import Promises
from sidecar.partition.proposals import Proposals
from sidecar.partition.quiescence import FetchCombiner
from sidecar.partition.reads import ReadSubjects, ReadTools
from sidecar.partition.recovery import LogReplay, RecoveredLogs
from sidecar.partition.replication import AnswerRouter, FetchClient, ReplicationHandler
from sidecar.partition.services import PartitionServices
from sidecar.runtime import clock
from sidecar.runtime.logs import INFO_LOG_LIMIT
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.timers import Timers
from sidecar.tracing.node_tracing import Tracing
from sidecar.transport.connections import NodeConnections
from sidecar.transport.dropped_publishes import Drops
from sidecar.transport.liveness import Probes
from sidecar.transport.notify import Notifications

logger = logging.getLogger("liftpy.partition")

_REQUEST_ID_BASE = secrets.randbits(61)
"""First request id of this process. Nodes that do not see its requests cannot guess it, and a leader rejects other ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTools:
    """Objects that all partitions of a node share."""

    settings: NodeSettings
    incarnation: int
    links: NodeConnections
    inflight: NodeInflight
    lease: Lease
    standby_memory: NodeStandbyMemory
    state_memory: NodeStateMemory
    copy_limit: CatchupThrottle
    clocks: ClockWatch
    drops: Drops
    subjects: Subjects
    node_inboxes: InboxRule
    router: AnswerRouter
    notifications: Notifications
    fetch_combiner: FetchCombiner
    probes: Probes
    proposals: Proposals
    timers: Timers
    pool: Pool
    counters: Counter[str]
    touched: set[PartitionWorker]
    """Partitions whose metrics may have changed. Use it only on the event loop."""
    memory_budget: MemoryBudget
    reads: ReadTools
    """Read tools with the inboxes of applications."""
    flush_times: NodeFlushTimes
    flush_runner: FlushThread
    instruments: Instruments
    tracing: Tracing
    fatal: Callable[[Exception], None]
    repair: Callable[[str], None]
    """Function that restarts the node for a reason, because a log needs recovery."""
    transfer_leadership: Callable[[PartitionKey, int, Callable[[], None]], None]
    """Function that stops accepting publishes for a partition led in a LeaderEpoch, answers the earlier ones, then calls back."""
    transfer_after_lost_publishes: Callable[[PartitionKey], None]
    """Callback for a leader that missed publishes. It transfers the leadership or accepts publishes again."""
    folder: DataDirectory
    deletions: Deletions
    identity: NodeFile | WorkerMarks
    recovered: RecoveredLogs
    promises: Promises


class PartitionWorker:
    """Runs one partition on a node: its log, its replica and its services.

    Create it with ``open_worker``, call ``update`` with each new state, and ``stop`` at the end.
    """

    _traces: PartitionTraces | None = None
    has_ended = False
    """True if the worker is stopped or is being stopped.

    Its closed log is then not a failure, and another worker may have opened the directory.
    """

    def __init__(
        self,
        node: NodeTools,
        key: PartitionKey,
        subject: str,
        config: StreamConfig,
        log: Log,
        set_aside: tuple[str, ...] = (),
        derived: LogState | None = None,
    ) -> None:
        self.key, self.config, self.log = key, config, log
        self._node, self.set_aside = node, set_aside
        """Paths of existing files that recovery has quarantined."""
        self.damage_offset = -1
        """First missing offset of the damage that the last start found. -1: none."""
        self.touched: Callable[[], None] = partial(node.touched.add, self)
        """Function that marks the partition as changed for the metrics."""
        self.state: PartitionState | None = None
        self.replica = _replica(node, key)
        own_subject, node_id = data_subject(subject, key.partition), node.settings.node_id
        self._driver = ReplicaDriver(key, self.replica, node.fatal)
        self.feed = self._driver.feed
        times = PublishTimes(node.instruments, clock.now_ns)
        self.acks = PendingAcks(node.links.ingest, key, own_subject, times)
        self.reads = ReadSubjects(node.reads, key, node_id, self._source(), str(node.folder.partition_path(key).absolute()))
        self.derived = derived or derived_state(log, own_subject, config, node.settings.replication, clock.now_ns)
        self.derived.join(node.state_memory)
        self.replay = LogReplay(self.derived, self.feed, self._flush_failed)
        self.ingest = Ingest(
            shell=node.links.ingest,
            subject=own_subject,
            config=node.settings.replication,
            policy=config.ack_policy,
            codec=config.codec,
            inboxes=node.reads.inboxes,
            acks=self.acks,
            feed=self.feed,
            wall_ns=node.clocks.stamp_ns,
            log_end_offset=self._log_end_offset,
            may_refuse=self._may_refuse,
            may_refuse_for_now=self._may_refuse_for_now,
            derived=self.derived,
            takes=self.replica.takes_publishes,
            on_drop=self._messages_dropped,
            may_leave=self._may_leave,
            times=times,
            room=PartitionMemoryBudget(node.memory_budget, node.settings.replication.ingest_queue_bytes, self._queued_bytes),
        )
        self.standby = self._standby(node, own_subject)
        self.replication = ReplicationHandler(
            node.links.replication, node.subjects, key, node.node_inboxes, self.feed, node.counters, node.instruments
        )
        self.fetches = FetchClient(node.router, node.subjects, key, node_id, self.feed, node.counters, node.instruments)
        self.flusher = self._flusher(node)
        self.states = StateCheckpoints(self.derived, log, key, node.settings.replication, self.flusher, node.pool)
        self.services = self._services(node)
        self.executor = self._executor(node)
        self._join_parts()

    def _services(self, node: NodeTools) -> PartitionServices:
        return PartitionServices(
            inboxes=node.reads.inboxes,
            counters=node.counters,
            bus=node.links.replication,
            key=self.key,
            node_id=node.settings.node_id,
            incarnation=node.incarnation,
            config=node.settings.replication,
            timers=node.timers,
            log=self.log,
            replica=self.replica,
            feed=self.feed,
            subjects=node.subjects,
            hand_over=self._hand_over,
            compacted=self.config.is_cleaned,
            report_ended=self._report_service,
        )

    def _join_parts(self) -> None:
        self._driver.execute, self._driver.step_over = self.executor.execute, self.replication.step_over
        self.log.on_damage = self._restart_for_repair
        for part in (self._driver, self.ingest.reader, self.standby, self.reads, self.replay, self.states, self.services):
            part.touched = self.touched
        self.replication.giver = self.states.giver
        self.fetches.taker = self.executor.taker = self.states.taker
        self.reads.set_state_server(self.states.giver)
        self.fetches.failed = self._flush_failed
        self.states.written = self._state_written
        self.trace()

    # Bound methods: a closure needs three times their memory, and a node has thousands of partitions.
    def _log_end_offset(self) -> int:
        return self.log.log_end_offset

    def _may_refuse(self) -> bool:
        return self.replica.may_refuse_publishers(clock.now_ns())

    def _may_refuse_for_now(self) -> bool:
        return self.replica.may_refuse_for_now(clock.now_ns())

    def _has_failed(self) -> bool:
        return self.executor.storage_failed

    def _is_heard(self) -> bool:
        return self.ingest.heard

    def _report_service(self, ended: ServiceEnded) -> None:
        self._node.proposals.report_service(self.key, ended)

    def _standby_lost(self, count: int) -> None:
        self._node.drops.count(str(self.key), "standby_overflow", count)

    def _standby_unreadable(self, error: LiftError) -> None:
        logger.error("standby buffer not compared with the log partition=%s error=%s", self.key, error)

    def _messages_dropped(self, reason: str, count: int) -> None:
        self.touched()
        self._node.drops.count(str(self.key), reason, count)

    def _executor(self, node: NodeTools) -> Executor:
        executor = Executor(self._tools(node))
        executor.on_failure = self._storage_failed
        return executor

    def trace(self) -> None:
        """Start or stop tracing this partition, as the settings of the node require now."""
        before, self._traces = self._traces, self._node.tracing.of(self.key)
        if before is not None:
            before.end_all(SWITCHED)
        if before is not None or self._traces is not None:
            trace(self, self._driver, self._traces)

    def followers(self) -> frozenset[str]:
        return frozenset(self.state.replicas).difference((self.node_id,)) if self.state is not None else frozenset()

    def _source(self) -> ReplicaSource:
        return ReplicaSource(
            self.replica,
            self.log,
            failed=self._has_failed,
            is_heard=self._is_heard,
        )

    def _flusher(self, node: NodeTools) -> Flusher:
        took = partial(node.flush_times.flushed, self.key)
        return Flusher(
            self.log, self.config.flush, node.pool, node.timers, self._log_flushed, self._flush_failed, took, node.flush_runner
        )

    def _standby(self, node: NodeTools, own_subject: str) -> Standby:
        bounds = node.settings.replication
        return Standby(
            shell=node.links.standby,
            subject=own_subject,
            reader=MessageDecoder(self.key, own_subject, self.config.ack_policy, node.reads.inboxes, self.config.codec),
            replica=self.replica,
            log=self.log,
            ids=self.derived.ids,
            heard=StandbyBuffer(node.standby_memory, bounds.standby_bytes, round(bounds.standby_age_s * NS_PER_S)),
            now_ns=clock.now_ns,
            wall_ns=node.clocks.stamp_ns,
            rules=StandbyReplayRules(uncertainty_ns=round(bounds.lease_s * NS_PER_S)),
            on_lost=self._standby_lost,
            on_unreadable=self._standby_unreadable,
        )

    def _tools(self, node: NodeTools) -> Tools:
        return Tools(
            key=self.key,
            incarnation=node.incarnation,
            log=self.log,
            flusher=self.flusher,
            promises=node.promises,
            timers=node.timers,
            ingest=self.ingest,
            derived=self.derived,
            standby=self.standby,
            replay=self.replay,
            acks=self.acks,
            replication=self.replication,
            fetches=self.fetches,
            notifications=node.notifications,
            fetch_combiner=node.fetch_combiner,
            probes=node.probes,
            reads=self.reads,
            proposals=node.proposals,
            services=self.services,
            counters=node.counters,
            feed=self.feed,
            driver=self._driver,
            transfer_leadership=node.transfer_leadership,
            high_watermark=lambda: self.replica.high_watermark,
            leader=lambda: (self.leader, self.leader_epoch, self.state.epoch if self.state is not None else 0),
        )

    # ---- events -------------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Feed LogOpened, the first event, to the replica."""
        self.executor.feed_log_opened()

    def announce_change(self) -> None:
        """Tell the replica that the image of the node has changed for it. ``update`` follows, with the newest image."""
        self.replica.announce_change(clock.now_ns())

    def update(self, metadata: PartitionMetadata, incarnations: Mapping[str, int]) -> None:
        """Pass the partition's new state in the metadata, or a new set of live nodes, to the replica.

        ``incarnations``: node id -> incarnation of each live node.
        """
        count_isr(self._node.instruments, self._node.settings.node_id, self.state, metadata.state)
        self.state = metadata.state
        self.config = metadata.config
        if self.executor.apply_metadata(metadata, incarnations, self.replica.announced):
            self.apply_retention(self._node.clocks.time_of_age_ns())
        self.reads.share(self._node.settings.node_id in metadata.isr)
        self.reads.advanced()

    def _log_flushed(self, end_offset: int) -> None:
        self.feed(events.LogFlushed(end_offset=end_offset, took_ns=self.flusher.disk_ns))

    def _flush_failed(self, error: StorageError) -> None:
        self.executor.log_failed(error)

    def _restart_for_repair(self, error: CorruptionError) -> None:
        """Restart the node, because a read found damage (``error``). Afterwards other replicas repair the log [S3]."""

        def checkpoint() -> None:
            try:
                self.log.checkpoint()
            except LiftError as failure:
                logger.warning("HW checkpoint failed partition=%s error=%s: retrying", self.key, failure)

        if not self.executor.storage_failed:
            # a flip in the newest batch looks like a torn write: the stored HW shows recovery that it is damage
            self.flusher.alone(checkpoint)
            self._node.counters["damage_met"] += 1
            self._node.instruments.damaged_segments += 1
            self.executor.log_failed(error)

    def log_was_closed(self, error: StorageError) -> None:
        """Report to the replica that its log has failed, if other code than the executor has closed the log because of ``error``."""
        if self.log.closed and not self.executor.storage_failed:
            self.executor.log_failed(error)

    def _storage_failed(self, error: StorageError) -> None:
        """Restart the node after a storage error, unless the disk is full.

        Only a new process may continue the log, because it relies on no earlier flush [S4]. The whole node restarts, because a
        disk seldom fails for one file alone, and planned leadership transfers are faster than timeouts. After a full disk,
        written data stays valid, and housekeeping restarts the node when space is free [S8].
        """
        if not isinstance(error, NoSpaceError):
            self._node.repair(f"{self.key}: {error}")

    # ---- what reads and status ask -----------------------------------------------------------------------------------
    @property
    def node_id(self) -> str:
        return self._node.settings.node_id

    @property
    def high_watermark(self) -> int:
        return self.replica.high_watermark

    @property
    def leader(self) -> str:
        """Node id of the leader in the metadata. '': there is none."""
        return self.state.leader if self.state is not None else ""

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch if self.state is not None else 0

    @property
    def leads(self) -> bool:
        """True if the metadata names this node as leader."""
        return self.leader == self._node.settings.node_id

    @property
    def storage_failed(self) -> bool:
        """True if the log has failed. It stays failed until the node restarts."""
        return self.executor.storage_failed

    @property
    def is_in_sync(self) -> bool:
        """True if the replica is in the ISR and its log agrees with the leader's log."""
        in_isr = self.state is not None and self._node.settings.node_id in self.state.isr
        return in_isr and self.replica.may_serve_committed()

    def _queued_bytes(self) -> int:
        replica = self.replica
        return replica.held_bytes + replica.uncommitted_bytes + self.acks.count * WAITING_PUBLISHER_BYTES

    def _may_leave(self) -> bool:
        """Return whether a standby follower has received the publishes that this leader missed while it was disconnected.

        If so, schedule a leadership transfer to it.
        """
        heir = self.replica.standby_to_lead_next()
        if heir:
            self._node.transfer_after_lost_publishes(self.key)
        return bool(heir)

    def transfer_after_lost_publishes(self) -> bool:
        """Transfer the leadership to a standby follower, because this leader missed publishes.

        Return False if no standby follower has received them. Then this replica continues to lead.
        """
        heir = self.replica.standby_to_lead_next()
        if heir:
            aside = do.StepAside(leader_epoch=self.leader_epoch, toward=heir, reason="publishes may have gone past it")
            self.executor.hand_over(aside, "missed_publishes")
        return bool(heir)

    def _hand_over(self, toward: str, reason: str) -> None:
        self.executor.hand_over(do.StepAside(leader_epoch=self.leader_epoch, toward=toward, reason=reason), "service")

    # ---- housekeeping ----------------------------------------------------------------------------------------------------
    def apply_retention(self, now_wall_ns: int) -> bool:
        """Delete records as the retention settings require. Return True if there may be more to delete.

        ``now_wall_ns``: wall clock. 0: delete no records because of their age.
        """
        if self.flusher.stalls:
            return False
        start_before = self.log.log_start_offset

        def retain() -> None:
            before, retain_from = self.log.log_start_offset, self.services.retain_from()
            try:
                hold_bytes = self._node.settings.replication.service_log_retention_bytes
                self.log.apply_retention(now_wall_ns, retain_from, hold_bytes, self.states.may_drop)
            except LiftError as error:
                logger.warning("retention failed partition=%s error=%s: retrying", self.key, error)
                return
            if self.log.log_start_offset == before:
                return
            if retain_from is not None and self.log.log_start_offset > retain_from:
                self._node.counters["service_records_deleted"] += 1
                logger.warning(
                    (
                        "records deleted before a service read them partition=%s log_start=%d snapshot=%d: an operator "
                        "deleted records, or service_log_retention_bytes is too small"
                    ),
                    self.key,
                    self.log.log_start_offset,
                    retain_from,
                )
            self.feed(events.LogStartMoved(log_start_offset=self.log.log_start_offset))

        self.flusher.alone(retain)
        return self.log.log_start_offset > start_before

    def _state_written(self) -> None:
        """Apply retention again, because it waited for a state file that is now written."""
        if not self.has_ended:
            self.apply_retention(self._node.clocks.time_of_age_ns())

    def report_purged(self) -> None:
        """Report the purges that this log has carried out to the metadata group, unless it knows them."""
        if self.state is not None and self.state.purges and not self.executor.storage_failed:
            self._node.proposals.report_purged(self.key, self.state, self.log.cleaning.purged)

    def delete_quarantined_files(self) -> None:
        """Delete the files that recovery has quarantined. Call it outside the event loop.

        It is safe when this replica is in sync again without an unclean election.
        """
        try:
            removed = delete_quarantined_files(self.log.storage)
        except StorageError as error:
            logger.warning("quarantined files not removed partition=%s error=%s: retrying", self.key, error)
            return
        self.set_aside = ()
        if removed:
            logger.info("replica repaired partition=%s: removed quarantined files=%s", self.key, ", ".join(removed))

    async def stop(self, *, delete: bool = False) -> bool:
        """End the role of the replica, flush and close its log. Return True if all data is on disk.

        ``delete``: True to delete the directory, too.
        """
        self.has_ended = True
        self.feed(events.StopRequested())
        self._driver.stop()
        self.standby.stop()
        self.ingest.stop()
        self.replication.stop()
        self.acks.drop()
        self.derived.join(NodeStateMemory())
        self.reads.close()
        self.fetches.close()
        self.services.close()
        self.executor.close()
        if self._traces is not None:
            self._traces.end_all()
        self._node.notifications.forget(self.key)
        await self.flusher.close()
        store_state = await self.states.close()
        healthy = not self.executor.storage_failed
        return await asyncio.get_running_loop().run_in_executor(self._node.pool, self._close, healthy, delete, store_state)

    def _close(self, healthy: bool, delete: bool, store_state: Callable[[], None] = lambda: None) -> bool:
        try:
            self.log.close(clean=healthy and not delete)
            if healthy and not delete:
                store_state()
            if delete:
                self._node.folder.delete_partition(self.key)
                self._node.promises.forget(self.key.folder)
        except (LiftError, OSError) as error:
            logger.error("log not closed partition=%s error=%s: continuing", self.key, error)
            return False
        return healthy


def count_isr(instruments: Instruments, node_id: str, before: PartitionState | None, after: PartitionState) -> None:
    """Count in the metrics if the ISR became smaller or larger. Only the leader's node (``node_id``) counts it.

    ``before`` and ``after``: states of the partition. ``before`` None: unknown, nothing is counted.
    """
    if before is not None and after.leader == node_id:
        instruments.isr_shrinks += len(after.isr) < len(before.isr)
        instruments.isr_expands += len(after.isr) > len(before.isr)


def _replica(node: NodeTools, key: PartitionKey) -> Replica:
    node_id = node.settings.node_id
    seed = zlib.crc32(f"{node_id} {key}".encode())
    config, pace = node.settings.replication, node.copy_limit
    return Replica(node_id, node.incarnation, config, seed, node.inflight, _REQUEST_ID_BASE, pace, node.lease)


async def open_worker(node: NodeTools, key: PartitionKey, subject: str, config: StreamConfig) -> PartitionWorker:
    """Open the log of the partition ``key`` and return its worker. Raises StorageError.

    ``subject``: data subject of the stream. If files must be read, the function does this in a thread.
    """
    recovered = node.recovered.take(node.folder.partition_path(key))
    flushes_always = config.flush.mode is FlushMode.ALWAYS

    def open_log() -> tuple[Log, OpenReport, StateFileMatch, LogState | None]:
        if not flushes_always:
            node.identity.flushes_lazily()
        storage = recovered.storage if recovered is not None else node.folder.partition_storage(key)
        clean = node.identity.previous.clean_stop
        promised = node.promises.epoch_of(key.folder)
        log, report = Log.open(
            storage, config, now_wall_ns=time.time_ns(), clean=clean, recovered=recovered, promised_epoch=promised
        )
        if recovered is None or not recovered.segments:
            node.folder.mark_log(key.folder)
        if recovered is not None and not recovered.has_states:
            return log, report, StateFileMatch(), None
        state_match = load_state_file(log, key)
        own_subject = data_subject(subject, key.partition)
        return log, report, state_match, read_state_file(state_match, log, own_subject, config, node.settings.replication)

    if recovered is not None and recovered.is_complete and flushes_always and not recovered.has_states:
        log, report, state_match, derived = open_log()
    else:
        log, report, state_match, derived = await asyncio.get_running_loop().run_in_executor(node.pool, open_log)
    INFO_LOG_LIMIT.info(
        logger,
        "partition opened partition=%s log_start=%d newest_offset=%d hw=%d",
        key,
        log.log_start_offset,
        log.newest_offset,
        log.high_watermark,
    )
    if report.cut_bytes or report.damage:
        logger.warning("log recovered partition=%s report=%s", key, report)
    worker = PartitionWorker(node, key, subject, config, log, report.set_aside, derived)
    node.counters["dedup_state_discarded"] += state_match.left_out
    worker.damage_offset = min((one.first_offset for one in report.damage), default=-1)
    node.instruments.damaged_segments += len(report.damage)
    if state_match.state is not None:
        node.counters["dedup_state_discarded" if derived is None else "dedup_state_restored"] += 1
    worker.begin()
    return worker
