"""One partition on this node: its log, its replica, its services, and the queue of its events.

``PartitionWorker`` runs the partition, ``ReplicaDriver`` feeds events to its replica.

A worker starts when the image first shows the partition on this node. It stops when the partition leaves the node or
the node stops. A log is opened and closed outside the event loop. Everything else is synchronous on the event loop. A
worker whose batches are traced carries out some effects by ``TRACED_METHODS``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from weakref import WeakSet

from liftpy.config import NS_PER_S, FlushMode, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments, PublishTimes
from liftpy.core.base.partition import PartitionMetadata, PartitionState
from liftpy.core.log.log import Log, RecheckResult
from liftpy.core.log.recovery import OpenReport, delete_quarantined_files
from liftpy.core.observe.tracing import SWITCHED, PartitionTraces
from liftpy.core.partition.reads import ReplicaSource
from liftpy.core.partition.shell import PartitionShell
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import LogState, create_log_state
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.publish.standby import FailoverBacklog, Standby, StandbyBuffer, StandbyReplayRules
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.replication.control_requests import Request
from liftpy.core.replication.effects import CombineFetch, ConfirmCombinedFetch, Effect, Methods, SetDeadline, methods_of
from liftpy.core.replication.events import (
    CombinedFetchReceived,
    DeadlineReached,
    Event,
    LeaseChanged,
    NotificationReceived,
)
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, LeaderNotice
from liftpy.core.replication.phases import LeaderPhase
from liftpy.core.replication.replica import Replica
from liftpy.core.replication.role import NodeContext
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import CorruptionError, InvariantError, LiftError, NoSpaceError, StorageError
from sidecar.disk.data_folder import LAZY_FLUSH
from sidecar.partition.flushing import Flusher, StateCheckpoints, StateFileMatch, load_state_file, read_state_file
from sidecar.partition.node_tools import NodeTools
from sidecar.partition.reads import ReadSubjects
from sidecar.partition.recovery import LogReplay
from sidecar.partition.replication import FetchClient, ReplicationHandler
from sidecar.partition.services import NoServices, PartitionServices
from sidecar.runtime import clock
from sidecar.runtime.logs import INFO_LOG_LIMIT, WarningLogRateLimit
from sidecar.runtime.restarts import RunningNode
from sidecar.runtime.tasks import open_in_thread
from sidecar.runtime.timers import EventTimer, Timer

logger = logging.getLogger("liftpy.partition")
replica_logger = logging.getLogger("liftpy.replica")
driver_logger = logging.getLogger("liftpy.driver")
_seldom = WarningLogRateLimit()
_REACHED = {kind.name: events.DeadlineReached(kind=kind) for kind in events.Deadline}
"""Event for each kind of deadline."""

_REQUEST_ID_BASE = secrets.randbits(61)
"""First request id of this process. Nodes that do not see its requests cannot guess it, and a leader rejects other ids."""
MAX_QUEUE = 65_536
RECENT_STEPS = 64
"""Number of steps that one partition keeps for error reports, about 50 KB for a busy partition."""
RECENT_STEPS_OF_NODE = 8192
"""Maximum number of stored steps over all partitions of a process. Above it, each partition stores fewer steps."""
_MIN_RECENT_STEPS = 8
"""Number of steps that a partition always keeps. With more than 1,024 partitions, they are more than RECENT_STEPS_OF_NODE."""
_IDLE_RECENT_STEPS = 2
"""Number of steps that an idle partition keeps. A node may have thousands of idle partitions."""
_MAX_STEP_CHARS = 500
"""Maximum length of a printed step, in characters."""
_REPLACEABLE_EVENTS = (LeaseChanged, LeaderNotice, NotificationReceived)
"""Events that arrive regularly. A newer waiting event of the same kind replaces an older one."""
_ROUTINE_EVENTS = frozenset({LeaseChanged, DeadlineReached, CombinedFetchReceived})
"""Events of idle partitions. A step with such an event changes no metric if all its effects are in ``_EFFECTS_WITHOUT_CHANGE``."""
_EFFECTS_WITHOUT_CHANGE = frozenset({SetDeadline, ConfirmCombinedFetch})
Step = tuple[int, Event, list[Effect]]
"""One step of a replica: (monotonic time in nanoseconds, event, effects)."""


class PartitionWorker(PartitionShell):
    """Runs one partition on a node: its log, its replica and its services. It carries out the effects of the replica.

    Create it with ``open_worker``, call ``update`` with each new state, and ``stop`` at the end. ``execute`` calls the method for
    an effect, for example ``append_batch`` for AppendBatch.
    """

    reads: ReadSubjects
    _traces: PartitionTraces | None = None
    has_ended = False
    """True if the worker is stopped or is being stopped.

    Its closed log is then not a failure, and another worker may have opened the directory.
    """
    has_flushed_all = False
    """True if all records were on the disk when the log was closed, or if the log was deleted."""

    def __init__(
        self,
        node: NodeTools,
        key: PartitionKey,
        subject: str,
        config: StreamConfig,
        log: Log,
        quarantined_files: tuple[str, ...] = (),
        log_state: LogState | None = None,
    ) -> None:
        self.key, self.config, self.log = key, config, log
        self._node, self.counters, self.quarantined_files = node, node.counters, quarantined_files
        """Paths of existing files that recovery has quarantined."""
        self.damage_offset = -1
        """First missing offset of the damage that the last start found. -1: none."""
        self.state: PartitionState | None = None
        self.replica = _replica(node, key)
        own_subject, node_id = data_subject(subject, key.partition), node.settings.node_id
        self._driver = ReplicaDriver(self, node.process)
        feed = self._driver.feed
        times = PublishTimes(node.instruments, clock.now_ns)
        self.acks = PendingAcks(node.links.ingest, key, own_subject, times)
        self.reads = ReadSubjects(
            node.reads, key, node_id, ReplicaSource(self), str(node.folder.partition_path(key).absolute())
        )
        self.log_state = log_state or create_log_state(log, own_subject, config, node.settings.replication, clock.now_ns)
        self.log_state.join(node.state_memory)
        self.replay = LogReplay(self)
        self.ingest = Ingest(
            self,
            node.links.ingest,
            self._decoder(own_subject),
            node.settings.replication,
            node.clocks.stamp_ns,
            node.memory_budget,
        )
        self.standby = self._standby(node, own_subject)
        self.replication = ReplicationHandler(
            node.links.replication, node.subjects, key, node.node_inboxes, feed, node.counters, node.instruments
        )
        self.fetches = FetchClient(node.router, node.subjects, key, node_id, feed, node.counters, node.instruments)
        self.flusher = Flusher(self, node.pool, node.timers, node.flush_times, node.flush_runner)
        self.states = StateCheckpoints(self, node.settings.replication, self.flusher, node.pool)
        self.services: PartitionServices | NoServices = NoServices(feed)
        self.fetched, self.state_fetcher = self.fetches.fetched, self.states.state_fetcher
        self._deadlines: dict[str, Timer] = {}
        """Name -> timer of a deadline. A timer is created when it is first set."""
        self._do = METHODS
        self._join_parts()

    def open_services(self) -> PartitionServices:
        """Return the services of this partition. The first message of a service creates the object."""
        if isinstance(self.services, NoServices):
            self.services = PartitionServices(self, self._node)
        return self.services

    def _join_parts(self) -> None:
        self.log.on_damage = self._restart_for_repair
        self.ingest.reader.mark_changed = self.reads.mark_changed = self.mark_changed
        self.replication.state_server = self.states.state_server
        self.fetches.state_fetcher = self.states.state_fetcher
        self.reads.set_state_server(self.states.state_server)
        self.fetches.failed = self.log_failed
        self.states.written = self._state_written
        self.trace()

    def standby_unreadable(self, error: LiftError) -> None:
        logger.error("standby buffer not compared with the log partition=%s error=%s", self.key, error)

    def mark_changed(self) -> None:
        self._node.changed_partitions.add(self)

    def publishes_dropped(self, reason: str, count: int) -> None:
        self.mark_changed()
        self._node.drops.count(str(self.key), reason, count)

    def trace(self) -> None:
        """Start or stop tracing this partition, as the settings of the node require now."""
        before, self._traces = self._traces, self._node.tracing.traces_of(self.key)
        if before is not None:
            before.end_all(SWITCHED)
        traces = self._traces
        self._driver.replica = self.replica if traces is None else TracedReplica(self.replica, traces)
        self._do = METHODS if traces is None else TRACED_METHODS

    @property
    def traces(self) -> PartitionTraces:
        """Traces of this partition. Use it only while the partition is traced."""
        assert self._traces is not None
        return self._traces

    def followers(self) -> frozenset[str]:
        return frozenset(self.state.replicas).difference((self.node_id,)) if self.state is not None else frozenset()

    def _decoder(self, own_subject: str) -> MessageDecoder:
        return MessageDecoder(self.key, own_subject, self.config.ack_policy, self._node.reads.inboxes, self.config.codec)

    def _standby(self, node: NodeTools, own_subject: str) -> Standby:
        bounds = node.settings.replication
        buffer = StandbyBuffer(node.standby_memory, bounds.standby_bytes, round(bounds.standby_age_s * NS_PER_S))
        rules = StandbyReplayRules(uncertainty_ns=round(bounds.lease_s * NS_PER_S))
        return Standby(self, node.links.standby, self._decoder(own_subject), buffer, rules, node.clocks.stamp_ns)

    # ---- events -------------------------------------------------------------------------------------------------------
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
        if self.apply_metadata(metadata, incarnations, self.replica.announced):
            self.apply_retention(self._node.clocks.time_of_age_ns())
        self.reads.share(self._node.settings.node_id in metadata.isr)
        self.reads.advanced()

    def _restart_for_repair(self, error: CorruptionError) -> None:
        """Restart the node, because a read found damage (``error``). Afterwards other replicas repair the log [S3]."""

        def checkpoint() -> None:
            try:
                self.log.checkpoint()
            except LiftError as failure:
                logger.warning("HW checkpoint failed partition=%s error=%s: retrying", self.key, failure)

        if not self.storage_failed:
            # a flip in the newest batch looks like a torn write: the stored HW shows recovery that it is damage
            self.flusher.alone(checkpoint)
            self._node.counters["damage_met"] += 1
            self._node.instruments.damaged_segments += 1
            self.log_failed(error)

    def log_was_closed(self, error: StorageError) -> None:
        """Report to the replica that its log has failed, if other code has closed the log because of ``error``."""
        if self.log.closed and not self.storage_failed:
            self.log_failed(error)

    def _storage_failed(self, error: StorageError) -> None:
        """Restart the node after a storage error, unless the disk is full.

        Only a new process may continue the log, because it relies on no earlier flush [S4]. The whole node restarts, because a
        disk seldom fails for one file alone, and planned leadership transfers are faster than timeouts. After a full disk,
        written data stays valid, and housekeeping restarts the node when space is free [S8].
        """
        if not isinstance(error, NoSpaceError):
            self._node.process.repair(f"{self.key}: {error}")

    # ---- state for reads and status -------------------------------------------------------------------------------------
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
    def is_in_sync(self) -> bool:
        """True if the replica is in the ISR and its log agrees with the leader's log."""
        in_isr = self.state is not None and self._node.settings.node_id in self.state.isr
        return in_isr and self.replica.may_serve_committed()

    def ingest_left(self) -> None:
        """Schedule a leadership transfer to a standby follower, which has received the publishes that this leader missed."""
        if not self.has_ended:
            self._node.transfers.begin_after_lost_publishes(self, self.transfer_after_lost_publishes)

    def transfer_after_lost_publishes(self) -> bool:
        """Transfer the leadership to a standby follower, because this leader missed publishes.

        Return False if no standby follower has received them. Then this replica continues to lead.
        """
        next_leader = self.replica.standby_successor()
        if next_leader:
            reason, cause = "publishes may have gone past it", do.TransferCause.MISSED_PUBLISHES
            self.transfer_leadership(
                do.TransferLeadership(leader_epoch=self.leader_epoch, toward=next_leader, reason=reason, cause=cause)
            )
        return bool(next_leader)

    # ---- effects -------------------------------------------------------------------------------------------------------
    def execute(self, effect: Effect) -> None:
        self._do[type(effect)](self, effect)

    # ---- the log and the publishers ------------------------------------------------------------------------------------
    def feed(self, event: events.Event) -> None:
        self._driver.feed(event)

    def now_ns(self) -> int:
        return clock.now_ns()

    def append_time_ns(self) -> int:
        return time.time_ns()

    def flush_appended(self) -> None:
        self.flusher.appended()

    def named_leader(self) -> tuple[str, int, int]:
        return self.leader, self.leader_epoch, self.state.epoch if self.state is not None else 0

    def log_failed(self, error: StorageError, token: int = 0) -> None:
        """Report a storage error to the replica (StorageFailed). After the first error, restart the node if that is needed.

        ``token``: handle of the publishes that could not be stored. 0: none.
        """
        is_first = not self.failed
        if is_first:
            self.counters["storage_failure"] += 1
            replica_logger.error("storage failed partition=%s error=%s", self.key, error)
        super().log_failed(error, token)
        if is_first:
            self._storage_failed(error)

    def truncate_log(self, effect: do.TruncateLog) -> None:
        replica_logger.info("log truncated partition=%s log_end=%d", self.key, effect.end_offset)
        super().truncate_log(effect)

    def reset_log(self, effect: do.ResetLog) -> None:
        replica_logger.warning("log discarded partition=%s: fetching it again from=%d", self.key, effect.start_offset)
        super().reset_log(effect)

    def run_without_flush(self, work: Callable[[], None]) -> None:
        """Run ``work``, which changes files of the log. If a slow flush is running, run it after the flush.

        So the event loop does not wait. The replica gets no event until then.
        """
        is_delayed = False
        if self.flusher.alone(lambda: self._driver.resume(work) if is_delayed else work()):
            is_delayed = True
            replica_logger.warning("truncation delayed partition=%s: waiting for the running flush", self.key)
            self._driver.hold()

    def recheck_log(self, effect: do.RecheckLog) -> RecheckResult:
        outcome = super().recheck_log(effect)
        text = "replica fetched damaged bytes partition=%s replica=%s offset=%d result=%s"
        _seldom.warning(replica_logger, text, self.key, effect.replica, effect.offset, outcome.value)
        return outcome

    def store_promise(self, leader_epoch: int, then: Callable[[StorageError | None], None]) -> None:
        def stored(error: StorageError | None) -> None:
            if not self.has_ended:
                then(error)

        self._node.promises.store(self.key.folder, leader_epoch, stored)

    # ---- other replicas -------------------------------------------------------------------------------------------------
    def send_fetch_request(self, message: FetchRequest) -> None:
        self.fetches.send_fetch(message)

    def combine_fetch(self, effect: do.CombineFetch) -> None:
        self._node.fetch_combiner.wait(self.key, effect, self._driver.feed)

    def end_combined_fetch(self, _: do.EndCombinedFetch) -> None:
        self._node.fetch_combiner.stop(self.key)

    def confirm_combined_fetch(self, effect: do.ConfirmCombinedFetch) -> None:
        self._node.fetch_combiner.confirm(effect)

    def send_epoch_query(self, message: EpochQuery) -> None:
        self.fetches.send_epoch_query(message)

    def send_fetch_response(self, effect: do.SendFetchResponse) -> None:
        self.replication.send_response(effect, self.log, self.high_watermark)
        self.ingest.settle()

    def park_fetch(self, effect: do.ParkFetch) -> None:
        self.replication.park(effect)
        self.ingest.settle()

    def answer_parked_fetch(self, effect: do.AnswerParkedFetch) -> None:
        self.replication.answer_parked_fetch(effect, self.log, self.high_watermark)

    def send_high_watermark(self, effect: do.SendHighWatermark) -> None:
        self.replication.send_high_watermark(effect, self.high_watermark)

    def send_fetch_refusal(self, message: FetchRefusal) -> None:
        self.replication.send_refusal(message)

    def send_epoch_answer(self, message: EpochAnswer) -> None:
        self.replication.send_epoch_answer(message)

    def notify_replica(self, effect: do.NotifyReplica) -> None:
        self._node.notifications.wake(self.key, effect)

    def probe_replica(self, effect: do.ProbeReplica) -> None:
        self._node.probes.ask(effect.replica, lambda: self.feed(events.ReplicaAbsent(replica=effect.replica)))

    def send_leader_notice(self, message: LeaderNotice) -> None:
        self._node.notifications.send_notice(self.key, message)

    # ---- the metadata group -----------------------------------------------------------------------------------------------
    def propose_isr(self, effect: do.ProposeIsr) -> None:
        self.counters["slow_replica_evicted"] += len(effect.slow)
        self._node.proposals.propose_isr(self.key, effect, self._driver.feed)

    def transfer_leadership(self, effect: do.TransferLeadership) -> None:
        """Stop accepting publishes and answer the earlier ones, then request a leadership transfer from the metadata group.

        ``effect`` names the new leader. There is a time limit for the answers.
        """
        self.counters[f"transfer_{effect.cause.value}"] += 1
        self.prepare_transfer(effect.leader_epoch, lambda: self.send_request(effect))

    def prepare_transfer(self, leader_epoch: int, done: Callable[[], None]) -> None:
        """Stop accepting publishes and answer the earlier ones, then call ``done``.

        If this node does not lead the partition in ``leader_epoch``, call ``done`` at once.
        """
        if self.leads and self.leader_epoch == leader_epoch:
            self._node.transfers.begin(self, done)
        else:
            done()

    def send_request(self, effect: Request) -> None:
        self._node.proposals.send(self.key, effect)

    report_leader = leave_isr = give_up_leadership = wake_partition = report_promotion = send_request

    # ---- role -----------------------------------------------------------------------------------------------------------
    def replay_log(self, effect: do.ReplayLog) -> None:
        self.replay.run(lambda: self.services.replay(effect.end_offset))

    def start_serving(self, _: do.StartServing) -> None:
        self.replication.start()

    def open_subject(self, _: do.OpenSubject) -> None:
        self.standby.replay(self._open)

    def _open(self, backlog: FailoverBacklog | None) -> None:
        if backlog is not None and (backlog.fresh or backlog.known or backlog.undecided):
            text = "standby buffer replayed partition=%s to_append=%d already_in_log=%d with_condition=%d"
            replica_logger.info(text, self.key, len(backlog.fresh), len(backlog.known), len(backlog.undecided))
        self.ingest.start(backlog)

    def close_subject(self, effect: do.CloseSubject) -> None:
        super().close_subject(effect)
        self.replay.forget()
        self.replication.stop()

    def _timer(self, kind: events.Deadline) -> Timer:
        return EventTimer(self._driver.feed, _REACHED[kind._name_])

    def set_deadline(self, effect: do.SetDeadline) -> None:
        name = effect.kind._name_  # an enum member's hash is a call into Python
        timer = self._deadlines.get(name)
        if effect.at_ns is None:
            if timer is not None:
                self._node.timers.cancel(timer)
            return
        if timer is None:
            timer = self._deadlines[name] = self._timer(effect.kind)
        self._node.timers.set(timer, effect.at_ns)

    def role_changed(self, effect: do.RoleChanged) -> None:
        INFO_LOG_LIMIT.info(
            replica_logger,
            "replica role changed partition=%s role=%s phase=%s epoch=%d",
            self.key,
            effect.role,
            effect.phase,
            effect.leader_epoch,
        )
        self.fetches.forget_pieces()
        self.services.role_changed()
        self.standby.review()

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
                _seldom.warning(logger, "retention failed partition=%s error=%s: retrying in the next round", self.key, error)
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
            if self.no_space:
                logger.warning(
                    "old records deleted on a full disk partition=%s log_start=%d: restarting when enough space is free",
                    self.key,
                    self.log.log_start_offset,
                )
                self.states.store_after_deletion()

        self.flusher.alone(retain)
        return self.log.log_start_offset > start_before

    def _state_written(self) -> None:
        """Apply retention again, because it waited for a state file that is now written."""
        if not self.has_ended:
            self.apply_retention(self._node.clocks.time_of_age_ns())

    def report_purged(self) -> None:
        """Report the purges that this log has carried out to the metadata group, unless it knows them."""
        if self.state is not None and self.state.purges and not self.storage_failed:
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
        self.quarantined_files = ()
        if removed:
            logger.info("replica repaired partition=%s: removed quarantined files=%s", self.key, ", ".join(removed))

    async def stop(self, *, delete: bool = False) -> bool:
        """End the role of the replica, flush and close its log. Return True if all data is on disk.

        ``delete``: True if the caller deletes the directory then. The log is closed without a flush, and no state is stored.
        """
        self.has_ended = True
        self.feed(events.StopRequested())
        self._driver.stop()
        self.standby.stop()
        self.ingest.stop()
        self.replication.stop()
        self.acks.drop()
        self.log_state.join(NodeStateMemory())
        self.reads.close()
        self.fetches.close()
        self.services.close()
        self.replay.close()
        for timer in self._deadlines.values():
            self._node.timers.cancel(timer)
        if self._traces is not None:
            self._traces.end_all()
        self._node.notifications.forget(self.key)
        await self.flusher.close()
        loop, pool, healthy = asyncio.get_running_loop(), self._node.pool, not self.storage_failed
        if self.no_space and not delete:
            await loop.run_in_executor(pool, self.flush_full_log)  # only the state of flushed records can be stored
        store_state = await self.states.close()
        return await loop.run_in_executor(pool, self._close, healthy, delete, store_state)

    def flush_full_log(self) -> None:
        """Flush the log that a full disk has stopped, or whose checkpoint could not be stored."""
        try:
            self.has_flushed_all = self.log.flush_before_close()
        except (LiftError, OSError) as error:
            logger.error("log not closed partition=%s error=%s: continuing", self.key, error)

    def _close(self, healthy: bool, delete: bool, store_state: Callable[[], None] = lambda: None) -> bool:
        self.has_flushed_all = self.has_flushed_all or delete
        try:
            if self.has_flushed_all and not delete:
                with contextlib.suppress(StorageError):  # the next start then replays more
                    self.log.checkpoint()
                    store_state()
            self.log.close(clean=healthy and not delete)
            if healthy and not delete:
                store_state()
        except (LiftError, OSError) as error:
            logger.error("log not closed partition=%s error=%s: continuing", self.key, error)
            if healthy and not delete:  # a full disk may have no room for the checkpoint of a log that is complete
                self.flush_full_log()
            return False
        return healthy


METHODS: Methods = methods_of(PartitionWorker)


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
    shared = NodeContext(
        node_id, node.incarnation, node.settings.replication, node.lease, node.inflight, node.copy_limit, _REQUEST_ID_BASE
    )
    return Replica(shared, seed)


async def open_worker(node: NodeTools, key: PartitionKey, subject: str, config: StreamConfig) -> PartitionWorker:
    """Open the log of the partition ``key`` and return its worker. Raises StorageError.

    ``subject``: data subject of the stream. If files must be read, the function does this in a thread.
    """
    path = node.folder.partition_path(key)
    recovered = node.recovered.take(path)
    flushes_always = config.flush.mode is FlushMode.ALWAYS

    def open_log() -> tuple[Log, OpenReport, StateFileMatch, LogState | None]:
        if not flushes_always:
            node.folder.set_mark(LAZY_FLUSH)
        storage = recovered.storage if recovered is not None else node.folder.partition_storage(key)
        promised = node.promises.epoch_of(key.folder)
        log, report = Log.open(storage, config, now_wall_ns=time.time_ns(), recovered=recovered, promised_epoch=promised)
        node.recovered.unrecovered.discard(path)
        if recovered is None or not recovered.segments:
            node.folder.mark_log(key.folder)
        if recovered is not None and not recovered.has_states:
            return log, report, StateFileMatch(), None
        state_match = load_state_file(log, key)
        own_subject = data_subject(subject, key.partition)
        return log, report, state_match, read_state_file(state_match, log, own_subject, config, node.settings.replication)

    if recovered is not None and recovered.is_complete and flushes_always and not recovered.has_states:
        log, report, state_match, log_state = open_log()
    else:
        log, report, state_match, log_state = await open_in_thread(
            node.pool, open_log, lambda opened: opened[0].close(clean=False)
        )
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
    worker = PartitionWorker(node, key, subject, config, log, report.quarantined_files, log_state)
    node.counters["dedup_state_discarded"] += state_match.left_out
    worker.damage_offset = min((one.first_offset for one in report.damage), default=-1)
    node.instruments.damaged_segments += len(report.damage)
    if state_match.state is not None:
        node.counters["dedup_state_discarded" if log_state is None else "dedup_state_restored"] += 1
    worker.feed_log_opened()
    return worker


# ---- tracing ---------------------------------------------------------------------------------------------------------


def _append_traced(worker: PartitionWorker, effect: do.AppendBatch) -> None:
    owed, batch = worker.acks.count, worker.append_batch(effect)
    if not batch:
        return
    end_offset = worker.log.log_end_offset
    worker.traces.appended(
        batch,
        effect.base_offset,
        end_offset - effect.base_offset,
        effect.leader_epoch,
        arrived_wall_ns=min(effect.timestamp_ns, time.time_ns()),
        flushed=worker.log.flushed_end_offset >= end_offset,
        awaited=worker.acks.count > owed,
        followers=worker.followers(),
    )


def _raise_high_watermark_traced(worker: PartitionWorker, effect: do.RaiseHighWatermark) -> None:
    worker.raise_high_watermark(effect)
    if worker.traces.follows:
        worker.traces.committed(effect.high_watermark)


def _send_acks_traced(worker: PartitionWorker, effect: do.SendAcks) -> None:
    owed = worker.acks.count
    worker.send_acks(effect)
    if worker.traces.follows and worker.acks.count < owed:
        worker.traces.acked(effect.policy, effect.through_offset)


def _drop_pending_acks_traced(worker: PartitionWorker, effect: do.DropPendingAcks) -> None:
    worker.drop_pending_acks(effect)
    worker.traces.end_all()


def _change_role_traced(worker: PartitionWorker, effect: do.RoleChanged) -> None:
    worker.role_changed(effect)
    worker.traces.role_is(effect.role.value, effect.phase == LeaderPhase.READY, effect.leader_epoch)


TRACED_METHODS: Methods = {
    **METHODS,
    do.AppendBatch: _append_traced,
    do.RaiseHighWatermark: _raise_high_watermark_traced,
    do.SendAcks: _send_acks_traced,
    do.DropPendingAcks: _drop_pending_acks_traced,
    do.RoleChanged: _change_role_traced,
}


class TracedReplica:
    """Replica that reports received fetches and completed flushes to ``traces`` before it processes them."""

    def __init__(self, replica: Replica, traces: PartitionTraces) -> None:
        self._replica = replica
        self._traces = traces

    def step(self, event: events.Event, now_ns: int) -> list[Effect]:
        traces = self._traces
        if traces.follows:
            if type(event) is FetchRequest:
                traces.fetched(event.replica, event.offset, event.leader_epoch)
            elif type(event) is events.LogFlushed:
                traces.flushed(event.end_offset)
        return self._replica.step(event, now_ns)


# ---- driver ----------------------------------------------------------------------------------------------------------


class _RecentStepLimit:
    """Limits the steps that each driver keeps for error reports. All drivers of the process share the limit."""

    def __init__(self) -> None:
        self._drivers: WeakSet[ReplicaDriver] = WeakSet()
        self.steps = RECENT_STEPS
        """Maximum number of steps of one driver. It is computed when a driver is created."""

    def add(self, driver: ReplicaDriver) -> None:
        """Lower the limit for all drivers, because there is another one. Raise it if drivers are gone."""
        self._drivers.add(driver)
        self.steps = min(RECENT_STEPS, max(RECENT_STEPS_OF_NODE // len(self._drivers), _MIN_RECENT_STEPS))


_recent_step_limit = _RecentStepLimit()


class ReplicaDriver:
    """Feeds events to the replica of ``worker``, which carries out the effects, one step after the other.

    ``feed`` may be called anywhere on the event loop. During a step, and while the replica waits for the disk, events wait in a
    queue. The driver keeps the last steps for error reports. An exception in a step stops the process.
    """

    __slots__ = (
        "__weakref__", "_execute", "_held", "_process", "_queue", "_running", "_stopped", "_worker", "recent_steps", "replica",
    )  # fmt: skip

    def __init__(self, worker: PartitionWorker, process: RunningNode) -> None:
        self._worker = worker
        self._process = process
        self._execute = worker.execute
        self.replica: Replica | TracedReplica = worker.replica
        """Object that gets the events: the replica, or the tracer in front of it."""
        self._queue: list[events.Event] = []
        """Waiting events. It is a list, because it is nearly always empty, and an empty deque needs 760 bytes."""
        self._running = False
        self._stopped = False
        self._held = False
        _recent_step_limit.add(self)
        self.recent_steps: list[Step] = []
        """The last steps, for error reports. Steps that changed nothing are left out."""

    def feed(self, event: Event) -> None:
        """Pass an event to the replica now. During a step or after ``hold``, queue the event."""
        if self._stopped:
            return
        if self._held and isinstance(event, _REPLACEABLE_EVENTS):
            self._queue = [waiting for waiting in self._queue if type(waiting) is not type(event)]
        self._queue.append(event)
        if self._running or self._held:
            if len(self._queue) > MAX_QUEUE:
                self._stop_for(
                    InvariantError(
                        f"Internal error: one step of {self._worker.key} creates more than {MAX_QUEUE} events. Please report it."
                    )
                )
            return
        self._run()

    def hold(self) -> None:
        """Queue all further events until ``resume``, because an effect is still slow work. The running step is finished first."""
        self._held = True

    def resume(self, work: Callable[[], None]) -> None:
        """Run ``work``, the slow part of an effect, and end ``hold``: process the waiting events. After ``stop``, do nothing."""
        self._held = False
        if not self._stopped:
            self._run(work)

    def _run(self, work: Callable[[], None] | None = None) -> None:
        self._running = True
        event: Event | None = None
        try:
            if work is not None:
                work()
            queue, step, execute, worker = self._queue, self.replica.step, self._execute, self._worker
            recent_steps = self.recent_steps
            while queue and not self._held:
                event, now_ns = queue.pop(0), clock.now_ns()
                effects = step(event, now_ns)
                if type(event) not in _ROUTINE_EVENTS or any(type(effect) not in _EFFECTS_WITHOUT_CHANGE for effect in effects):
                    recent_steps.append((now_ns, event, effects))
                    if len(recent_steps) > _recent_step_limit.steps:
                        del recent_steps[: -_recent_step_limit.steps]
                    if CombineFetch in map(type, effects):  # the follower is idle
                        del recent_steps[:-_IDLE_RECENT_STEPS]
                    worker.mark_changed()
                elif type(event) is CombinedFetchReceived:  # a follower of this leader is idle
                    del recent_steps[:-_IDLE_RECENT_STEPS]
                if driver_logger.isEnabledFor(logging.DEBUG):  # the level may change
                    driver_logger.debug("replica step partition=%s event=%s effects=%s", self._worker.key, event, effects)
                for effect in effects:
                    execute(effect)
                if effects:
                    worker.replication.end_step()
        except Exception as error:
            self._stop_for(error, event)
        finally:
            self._running = False

    def _stop_for(self, error: Exception, event: Event | None = None) -> None:
        """Stop the process because of an unexpected ``error`` while ``event`` was processed.

        Expected conditions are events, so an exception is a bug. Continuing could violate a guarantee.
        """
        self._stopped = True
        self._queue.clear()
        driver_logger.critical(
            "replica stopped partition=%s error=%s\n%s", self._worker.key, error, self.last_steps_text(event), exc_info=error
        )
        self._process.fatal(error)

    def last_steps_text(self, event: Event | None = None) -> str:
        """Return the last steps as text for an error report, one line per step, the newest last.

        ``event``: the event that is being processed. None: none is.
        """
        now_ns = clock.now_ns()
        lines = [
            f"{(at_ns - now_ns) / 1e9:9.3f} s  {past_event} -> {effects}"[:_MAX_STEP_CHARS]
            for at_ns, past_event, effects in self.recent_steps
        ]
        if event is not None and not (self.recent_steps and self.recent_steps[-1][1] is event):
            lines.append(f"      now    {event}"[:_MAX_STEP_CHARS])
        return "\n".join(lines)

    def stop(self) -> None:
        """Stop processing events. Later events are dropped."""
        self._stopped = True
        self._queue.clear()
