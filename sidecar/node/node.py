"""Builds one node from its settings, runs it until SIGTERM or SIGINT, and shuts it down in order.

``Node._components`` is the list of its parts, with a start and a close of each.

Start: lock and read the data directory, connect to NATS, check that no other process uses this node id, join the metadata
group or its feed, register, open the partitions, report "ready". With ``workers`` above 1, other processes host parts of
the partitions. Stop: transfer leaderships, close and flush partitions, report the stop to the group, transfer its
leadership, and write the clean-stop marker only if all data is on disk [S9].
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liftpy.core.base.instruments import Instruments
from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.log.epoch_promises import PromiseJournal
from liftpy.core.log.flush import FlushScheduler
from liftpy.core.metadata.controller_metrics import ControllerMetrics
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.node_identity import EarlierProcessCheck, damaged_logs_to_name, stopped_cleanly
from liftpy.core.observe.node_health import HealthInput
from liftpy.core.partition.reads import MAX_WAITING_BYTES, ReadBudget
from liftpy.core.publish.memory_budget import (
    READERS_SHARE,
    STANDBY_SHARE,
    WAITING_PUBLISHER_BYTES,
    MemoryBudget,
    NodePublishMemory,
    limit_of,
)
from liftpy.core.publish.standby import NodeStandbyMemory
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import NoSpaceError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.credentials import Credentials
from liftpy.nats.request_guard import RequestGuard
from sidecar.disk.data_folder import UNREPORTED_DAMAGE, DataDirectory
from sidecar.disk.files import OpenMaps, open_files_and_limit, raise_limit
from sidecar.disk.flush_thread import FlushThread, NodeFlushTimes, probe_flushes
from sidecar.groups.on_demand import CoordinatorsOnDemand
from sidecar.metadata.clock_watch import ClockWatch
from sidecar.metadata.group import MetadataGroup
from sidecar.metadata.group_role import MetadataConnection
from sidecar.metadata.group_thread import GroupThread
from sidecar.metadata.identity import NodeFile, PreviousProcess, unknown_folders
from sidecar.metadata.membership import Membership, wait_for_predecessor
from sidecar.node.reload import ReloadableParts, SettingsReloader
from sidecar.partition.combined_fetches import FetchCombiner
from sidecar.partition.deletions import UnknownStreams
from sidecar.partition.housekeeping import Housekeeping
from sidecar.partition.metric_sums import NodeCounts, StreamLabels
from sidecar.partition.node_tools import NodePorts, create_node_tools
from sidecar.partition.promises import Promises
from sidecar.partition.proposals import Proposals
from sidecar.partition.recovery import RecoveredLogs
from sidecar.partition.replica_manager import NotifyHandler, Partitions
from sidecar.partition.scrub import Scrub
from sidecar.partition.services import ServiceHandler
from sidecar.runtime import clock
from sidecar.runtime.components import Component, close_all, close_of, no_step, require_started, start_all
from sidecar.runtime.logs import LOGS
from sidecar.runtime.memory import make_collections_rare, memory_bytes, retain_freed_memory
from sidecar.runtime.restarts import (
    EXIT_NO_RESTART,
    EXIT_TO_REPAIR,
    RunningNode,
    Supervisor,
    exit_after,
    forced_exit_code,
    is_temporary,
    prevents_restart,
)
from sidecar.runtime.settings import NodeSettings, SettingsLoader, supervisor_of, was_open_nats_reported
from sidecar.runtime.tasks import TaskSet, fatal_on, open_in_thread, start_attended
from sidecar.runtime.timers import Timers
from sidecar.status.health import Health, LoopWatch
from sidecar.status.report import Reporter
from sidecar.status.status_api import StatusHandler
from sidecar.tracing.node_tracing import Tracing
from sidecar.transport.connections import NodeConnections, open_links
from sidecar.transport.credentials import Keys, PermissionWatch, prove
from sidecar.transport.ingest_connection import Drops, IngestConnection
from sidecar.transport.liveness import Probes
from sidecar.workers.workers import Workers, divided_settings

if TYPE_CHECKING:
    from sidecar.groups.coordinators import GroupCoordinators
    from sidecar.node.jetstream_api import JetStreamHandler

logger = logging.getLogger("liftpy.node")

FLUSH_THREADS = 4
HARD_STOP_S = 12.0
_END_S = 2.0
"""Part of ``HARD_STOP_S`` that is left for the end of a stop, after the logs of workers are closed, in seconds."""
_CLOSE_SUBJECTS_TIMEOUT_S = 0.5
_DRAIN_TIMEOUT_S = 3.0
_LEAVE_TIMEOUT_S = 1.0
_LIVE_TIMEOUT_S = 5.0
SLOW_STOP_S = 1.0
"""Time after a failed start at which the node logs the error, unless its stop has ended. The command prints the error at the end."""


class Node(RunningNode):
    """One running node: ``start``, then ``wait``, then ``stop``. ``run_node`` calls all three.

    ``share``: the part of the partitions that this process hosts. ``again``: sources of the settings, for a reload.
    """

    _lock: int | None = None
    """Descriptor of the lock of the data directory. None: this process takes the lock."""

    _stop_began_s = 0.0
    """Monotonic time at which the stop of the node began, in seconds. 0: it has not begun."""

    def __init__(self, settings: NodeSettings, share: WorkerShare | None = None, again: SettingsLoader | None = None) -> None:
        self.reloading = SettingsReloader(settings, again, self._live_parts, self._prove)
        self.share = share or WorkerShare(0, settings.workers)
        self.settings = settings = divided_settings(settings) if share is None else settings
        self.subjects = Subjects(settings.namespace, settings.inbox_prefixes)
        self.counters: Counter[str] = Counter()
        one = settings if share is None else replace(settings, workers=1)
        self._workers = Workers(one, self.fatal, self.repair, self.counters)
        self._keys = Keys(settings.credentials)
        self.instruments = Instruments()
        self._tracing = Tracing(settings, self.counters)
        self._cluster_watch = ControllerMetrics(self.instruments.failovers, self._tracing.failed_over)
        self._loop_watch = LoopWatch(
            self.instruments, lambda: self.group.leader if self.group is not None else "", self._update_publish_memory
        )
        self.incarnation = 0
        self.partitions: Partitions | None = None
        self.group: MetadataGroup | None = None
        self.status = StatusHandler(settings, self.counters, self._workers.handles)
        self.health = self.status.health = Health(
            lambda: self._workers.merged_health_input(self._health_input()),
            lambda: () if self.partitions is None else self.partitions.replicas(),
            lambda: self._workers.unsynced,
            lambda: self.status.unknown.names() if self.status.unknown is not None else [],
        )
        self.supervisor = Supervisor(*supervisor_of())
        self.status.answers.settings = self.reloading.setting_rows
        self.status.on_reload = lambda: self.reloading.reload_after_signal(self.supervisor)
        self._reload_guard = RequestGuard("settings reload", self.counters)
        self._metadata_contact_s: float | None = None
        """Monotonic time of the last answered heartbeat, in seconds. None: none was answered."""
        self._opened = False
        """True if the partitions of the metadata image at the start are open."""
        self._inboxes = InboxRule(settings.inbox_prefixes)
        self._node_inboxes = InboxRule((self.subjects.inboxes(),))
        self._permissions = PermissionWatch(settings.namespace, self.fatal, self.counters)
        self._stopping = asyncio.Event()
        self._failure: Exception | None = None
        self._transfers_leadership = self._stop_was_requested = self._repairs = False
        """How the node stops: after a transfer of its leaderships, without a restart, to recover a damaged log."""
        self.was_clean = False
        """True after a stop if all acknowledged data is on the disk."""
        self._recovered = RecoveredLogs()
        self._budget = raise_limit()
        self._pool = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="liftpy-disk")
        self._folder: DataDirectory | None = None
        self._identity: NodeFile | None = None
        self._memory = PublishMemory(settings, self.share.process_count)
        self._drops, self._timers = Drops(), Timers()
        self._links: NodeConnections | None = None
        self._group_thread: GroupThread | None = None
        self._membership: Membership | None = None
        self._promises: Promises | None = None
        self._proposals: Proposals | None = None
        self._probes: Probes | None = None
        self._fetch_combiner: FetchCombiner | None = None
        self._housekeeping: Housekeeping | None = None
        self._scrub: Scrub | None = None
        self._flush_times = NodeFlushTimes(self.counters, self.instruments.flushes)
        self._flush_runner = FlushThread(FlushScheduler())
        self._jetstream: JetStreamHandler | None = None
        self._services: ServiceHandler | None = None
        self._coordinators = CoordinatorsOnDemand(settings.node_id, self.share, self._make_coordinators)
        self._unwatch: Callable[[], None] = lambda: None
        self._recovered_by_workers: dict[str, list[str]] = {"damaged": [], "confined": [], "suspect": []}
        """Numbers of logs that the worker processes have recovered."""
        self._logs_are_clean = False
        """During the stop: True if all acknowledged data of the closed components is on the disk."""
        self.all_flushed = False
        """True if all records were on the disk when the logs were closed, also those of logs that a full disk has stopped."""

    def _make_coordinators(self, coordinators: type[GroupCoordinators]) -> GroupCoordinators:
        return coordinators(
            self.settings,
            self.settings.data / "groups",
            self.counters,
            require_started(self.partitions),
            require_started(self._services),
            self.share,
            self._keys,
        )

    def _live_parts(self) -> ReloadableParts:
        prefer = self._group_thread.prefer if self._group_thread is not None else None
        change, pages = self._workers.change_settings, self.status.change_hosts
        scrub = None if self._stopping.is_set() else self._scrub  # a reload during the stop would start a closed scrub again
        return ReloadableParts(self.partitions, scrub, pages, prefer, change, self._keys.change, self._tracing)

    async def _prove(self, credentials: Credentials) -> None:
        links = self._links
        await prove(
            self.settings.nats, self.subjects, self.settings.node_id, credentials, works=links is not None and links.are_up
        )

    def reload(self) -> Coroutine[Any, Any, None]:
        """Return a coroutine that reloads the settings after SIGHUP. An error in it is logged and does not stop the node [A15]."""
        return self._reload_guard.run(self.reloading.reload_after_signal(self.supervisor), b"")

    # ---- components ------------------------------------------------------------------------------------------------------
    def _components(self) -> list[Component]:
        """Return the parts of the node. They start in this order, and close in the reverse order."""
        return [
            Component("task failures", self._watch_tasks, self._unwatch),
            Component("loop watch", self._loop_watch.start, self._loop_watch.close),
            Component("tracing", self._tracing.start, self._tracing.close),
            Component("supervisor", lambda: self.supervisor.start(self.health.live, self.health.ready, self._start_step_text)),
            Component("flush thread", close=self._flush_runner.close),
            Component("data directory", self._open_folder, close_of(self._folder)),
            Component("node file", self._open_identity, self._end_cleanly),
            # The next process may use the data directory as soon as it is unlocked, so no disk thread may run then.
            Component("disk threads", close=lambda: asyncio.to_thread(self._pool.shutdown, cancel_futures=True)),
            Component("timers", close=self._timers.close),
            Component("status", self.status.open_page, self.status.close),
            Component("connections", self._connect, close_of(self._links)),
            Component("dropped publishes", close=self._drops.close),
            Component(
                "metadata group", self._recover_and_join, self._group_thread.stop if self._group_thread is not None else no_step
            ),
            Component("idle partitions", close=close_of(self._fetch_combiner)),
            Component("probes", close=close_of(self._probes)),
            Component("proposals", close=close_of(self._proposals)),
            Component("membership", close=self._report_stop),
            Component("promises", self._open_promises, close_of(self._promises)),
            Component("registration", self._register),
            Component("partitions", self._open_partitions, self._close_partitions),
            Component("heartbeats", close=close_of(self._membership)),
            Component("coordinators", close=self._coordinators.close),
            Component("leaderships", close=self._transfer_leaderships),
            Component("JetStream API", self._serve_jetstream, close_of(self._jetstream)),
            Component("scrub", close=close_of(self._scrub)),
            Component("housekeeping", close=close_of(self._housekeeping)),
            Component("service", self._permissions.start_completed, self.group.retire if self.group is not None else no_step),
        ]

    # ---- start -------------------------------------------------------------------------------------------------------------
    async def start(self) -> dict[str, Any]:
        """Start all components. Return the values for the ready line of ``--json``."""
        await start_all(self._components())
        return {"node": self.settings.node_id, "incarnation": self.incarnation, "status": self.status.url, "pid": os.getpid()}

    def _watch_tasks(self) -> None:
        self._unwatch = fatal_on(asyncio.get_running_loop(), self.fatal)

    def _open_folder(self) -> None:
        self._folder = folder = DataDirectory(self.settings.data, OpenMaps(self._budget.maps), lock=self._lock)
        self._probe_flushes(folder.worker_directory(self.share.number))

    def _open_identity(self) -> None:
        self._identity = NodeFile(require_started(self._folder), self.settings.node_id)

    async def _connect(self) -> None:
        self._links = links = await open_links(self.settings, self._memory.inflight, self._memory.room, self._keys)
        self._watch_permissions(links)

    async def _recover_and_join(self) -> None:
        """Recover the logs and join the metadata group at the same time, because the group may have to elect a leader first."""
        settings, folder, previous = self.settings, require_started(self._folder), require_started(self._identity).previous
        bus = require_started(self._links).replication
        await wait_for_predecessor(bus, self.subjects, settings.node_id, EarlierProcessCheck(clock.now_ns()))
        began = time.monotonic()
        await self._workers.start(folder, clean_stop=previous.clean_stop, flushed_always=previous.flushed_always)
        recovery = start_attended(self._recovered.run(folder, self._pool, clean_stop=previous.clean_stop, share=self.share))
        try:
            self._group_thread = group = GroupThread(
                lambda: MetadataConnection(
                    settings, folder, self.subjects, self._inboxes, self.counters, self.instruments, self._keys
                ),
                self.fatal,
                self.instruments,
            )
            await group.start()
            self.group = group
            self._membership = Membership(settings, group, self._lease_granted, self.fatal)
            await asyncio.shield(recovery)
            self._recovered_by_workers = await self._workers.wait_until_recovered()
            self.instruments.recovery_s = time.monotonic() - began
            self._tracing.trace_recovery(self.instruments.recovery_s, self._recovered.names, self._recovered.damaged)
        finally:
            await end_tasks([recovery])

    async def _open_promises(self) -> None:
        folder, has_log = require_started(self._folder), self._recovered.names.__contains__

        def open_journal() -> PromiseJournal:
            return folder.open_own_promises(self.share, has_log) if self.share.number else folder.open_promises(has_log)

        journal = await open_in_thread(self._pool, open_journal, PromiseJournal.close)
        self._promises = Promises(journal, self._pool, self.counters, self.fatal)

    async def _register(self) -> None:
        folder, identity, membership = (
            require_started(self._folder),
            require_started(self._identity),
            require_started(self._membership),
        )
        recovered, elsewhere, previous = self._recovered, self._recovered_by_workers, identity.previous
        image = require_started(self.group).image
        lost = await asyncio.get_running_loop().run_in_executor(self._pool, self._lost_logs, folder, image)
        damaged, suspect = [*recovered.damaged, *elsewhere["damaged"], *lost], [*recovered.suspect, *elsewhere["suspect"]]
        confined = [] if suspect else [*recovered.confined, *elsewhere["confined"]]
        self.counters["suspect_log"] += len(suspect)
        if damaged:
            folder.set_mark(
                UNREPORTED_DAMAGE
            )  # so that a crash before the registration does not lose the information about the damage
        # Check again, because joining and recovery may have taken minutes. One request is enough.
        inquiry = EarlierProcessCheck(clock.now_ns(), silences=1)
        await wait_for_predecessor(require_started(self._links).replication, self.subjects, self.settings.node_id, inquiry)
        self.incarnation = await membership.register(
            previous.incarnation,
            clean_stop=previous.clean_stop and not damaged,
            flushed_always=previous.flushed_always and not damaged,
            damaged_logs=damaged_logs_to_name(damaged, confined) if previous.clean_stop or previous.flushed_always else [],
            status_address=self.status.url,
            starts=identity.count_start(),
            partition_budget=self._budget.partitions,
        )
        identity.begin(self.incarnation)
        membership.start()  # now, because opening the logs may take longer than a session
        await recovered.forget_failed_flushes(folder, self._pool)

    async def _open_partitions(self) -> None:
        folder, group, promises = require_started(self._folder), require_started(self.group), require_started(self._promises)
        self._create_parts(require_started(self._links), group, folder, require_started(self._identity).previous, promises)
        LOGS.facts["incarnation"] = self.incarnation
        logger.info("node started node=%s incarnation=%d", self.settings.node_id, self.incarnation)
        await self._open_partitions_of_image(group)
        await require_started(self._membership).live(_LIVE_TIMEOUT_S)
        self._log_unknown_directories(folder, group, promises)

    async def _open_partitions_of_image(self, group: MetadataGroup) -> None:
        partitions = require_started(self.partitions)
        partitions.image_changed(ClusterImage(), group.image)
        group.watch(partitions.image_changed)
        self._workers.begin(self.incarnation, group)
        self._watch_image(group)
        await partitions.wait_until_open()
        await self._workers.wait_until_open()
        self.reloading.apply_again()
        self._opened = True
        # not earlier: a pass over no partitions ends at once, and the next one begins an hour later
        if self._scrub is not None:
            self._scrub.start()
        self._recovered.close()
        partitions.delete_moved_logs(self._recovered.names)

    def _lost_logs(self, folder: DataDirectory, image: ClusterImage) -> list[str]:
        """Return the names of logs that this node has lost: the directory is missing, but this replica counts as complete [S17].

        For other missing directories, remove the mark that says that the node has the log.
        """
        lost, node_id = [], self.settings.node_id
        streams = (
            {f"{stream.name}-{stream.uid}": stream for stream in image.streams.values()} if self._recovered.missing else {}
        )
        for name in self._recovered.missing:
            stream_folder, _, number = name.rpartition("/")
            stream = streams.get(stream_folder)
            partitions = stream.partitions if stream is not None else ()
            states = [one for one in partitions if str(one.partition) == number]
            if stream is not None and any(node_id in (*one.isr, *stream.may_lead(one)) for one in states):
                logger.error(
                    "log directory missing log=%s: records that this node acknowledged are lost here, copying the log again",
                    name,
                )
                lost.append(name)
            else:
                folder.unmark_log(name)
        return lost

    def _log_unknown_directories(self, folder: DataDirectory, group: MetadataGroup, promises: Promises) -> None:
        """Log the directories of streams that the cluster does not know. They stay until an operator requests their removal."""
        folders = unknown_folders(folder, group.image)
        self.status.unknown = UnknownStreams(folders, folder, group, promises.forget)
        for name in folders:
            logger.warning(
                "unknown stream directory=%s: keeping it. If the data is not needed, run: liftpy node remove-data %s %s",
                name,
                self.settings.node_id,
                name,
            )

    def _serve_jetstream(self) -> None:
        if self.settings.jetstream_api:
            from sidecar.node.jetstream_api import JetStreamHandler  # only nodes with this setting need the client library

            self._jetstream = JetStreamHandler(
                require_started(self._links).reads, self.settings, self._inboxes, self.counters, self._keys
            )
            self._jetstream.open()

    def _watch_image(self, group: MetadataGroup) -> None:
        self._watch_cluster(group.image, group.image)
        group.watch(self._watch_cluster)
        self._coordinators.follow(ClusterImage(), group.image)
        group.watch(self._coordinators.follow)

    def _update_publish_memory(self) -> bool:
        waiting = sum(worker.acks.count for worker in self.partitions.led_partitions()) if self.partitions is not None else 0
        return self._memory.update(self._links.ingest if self._links is not None else None, waiting)

    def _health_input(self) -> HealthInput:
        workers, contact_s = list(self.partitions) if self.partitions is not None else [], self._metadata_contact_s
        return HealthInput(
            failure=str(self._failure or ""),
            longest_flush_s=max((worker.flusher.under_way_s for worker in workers), default=0.0),
            hung_flush_s=self.settings.replication.hung_flush_s,
            registered=self.incarnation > 0,
            nats=self._links is not None and self._links.are_up,
            metadata_silence_s=None if contact_s is None else time.monotonic() - contact_s,
            session_s=self._membership.session_s if self._membership else self.settings.replication.session_s,
            opening=self.partitions.opening_count if self.partitions is not None else 0,
            opened=self._opened,
            stopped_for_space=sum(worker.no_space for worker in workers),
        )

    def _start_step_text(self) -> str:
        """Return the step of the start that takes long now, as text for the supervisor. '': no step takes long."""
        done, count = self._recovered.progress
        if not self.incarnation and done < count:
            return f"recovering log {done + 1} of {count}"
        opening = self.partitions.opening_count if self.partitions is not None and not self._opened else 0
        return f"opening partitions, {opening} left" if opening else ""

    def _watch_cluster(self, old: ClusterImage, new: ClusterImage) -> None:
        if self.group is not None and self.group.is_controller:
            self._tracing.leads_group = self.group.leader == self.settings.node_id
            self._cluster_watch.update(new, clock.now_ns())

    def _probe_flushes(self, folder: Path) -> None:
        """Measure the duration of test flushes to ``folder`` in a thread. The start of the node does not wait for the result."""

        def tried_out(probing: asyncio.Future[list[float] | None]) -> None:
            if not probing.cancelled():  # a stop has canceled it
                self._flush_runner.place.tried_out(probing.result())

        asyncio.get_running_loop().run_in_executor(self._pool, probe_flushes, folder).add_done_callback(tried_out)

    def _watch_permissions(self, links: NodeConnections) -> None:
        for link in links.all():
            link.on_denial(self._permissions.record_denial)
        links.standby.on_denial = self._permissions.record_denial
        if not links.replication.requires_credentials and not was_open_nats_reported():
            logger.warning(
                "NATS server accepts clients without credentials: each client can delete streams, forge records and "
                "depose leaders. Create users with the permissions that `liftpy permissions` prints. See "
                "docs/security.md."
            )

    def _create_parts(
        self,
        links: NodeConnections,
        group: MetadataGroup,
        folder: DataDirectory,
        previous: PreviousProcess,
        promises: Promises,
    ) -> None:
        """Create the partitions, and the parts of the node that use them, and start these parts."""
        settings, bus = self.settings, links.replication
        counts = NodeCounts(StreamLabels(settings.metrics_streams))
        clocks = ClockWatch(settings.node_id, bus, self.subjects, group, self.counters)
        self._probes = Probes(bus, self.subjects)
        ports = NodePorts(
            links=links,
            folder=folder,
            clocks=clocks,
            probes=self._probes,
            process=self,
            timers=self._timers,
            pool=self._pool,
            flush_runner=self._flush_runner,
            flush_times=self._flush_times,
            inflight=self._memory.inflight,
            standby_memory=self._memory.standby,
            memory_budget=self._memory.room,
            drops=self._drops,
            counters=self.counters,
            instruments=self.instruments,
            tracing=self._tracing,
            changed_partitions=counts.changed_partitions,
            previous=previous,
            recovered=self._recovered,
            promises=promises,
        )
        tools = create_node_tools(settings, self.incarnation, group, self._deliver, self._memory.reads, ports)
        self._proposals, self._fetch_combiner = tools.proposals, tools.fetch_combiner
        self.partitions = Partitions(tools, counts, share=self.share)
        notify, combined = self.subjects.notify(settings.node_id), self._workers.answer_combined_fetches(tools.fetch_combiner)
        answer = combined if not self.share.number else lambda reply, body: None  # the first process answers for all processes
        NotifyHandler(bus, notify, self._node_inboxes, self.partitions, answer, self.counters, self.share)
        links.watch(self.partitions.data_path_changed)
        links.watch_publishes(self.partitions.publishes_lost)
        partitions, find, node_id = self.partitions, self.partitions.services_of, settings.node_id
        self._services = ServiceHandler(bus, self.subjects, node_id, self._inboxes, find, self.counters, share=self.share)
        own = folder.worker_directory(self.share.number)
        self._scrub = Scrub(partitions, own, settings.scrub_bytes_per_s, self.counters)
        self.status.reporter = Reporter(
            tools,
            links,
            clocks,
            group,
            partitions,
            self._scrub,
            self._coordinators,
            self._cluster_watch,
            lambda: open_files_and_limit(self._budget, folder.maps),
        )
        self.status.on_level, self.status.answers.share = self._workers.change_level, self.share
        self.status.listen(bus, self.subjects, (self._inboxes, self._node_inboxes))
        self.status.begin_history()
        self._housekeeping = Housekeeping(partitions, settings.replication.hw_checkpoint_interval_s, folder.path, self.repair)
        self._housekeeping.start()

    def _deliver(self, stream: str, partition: int, uid: str, event: Any) -> None:
        if self.partitions is not None:
            self.partitions.deliver(stream, partition, uid, event)

    def _lease_granted(self, sent_ns: int, lease_ns: int) -> None:
        self._metadata_contact_s = time.monotonic()
        self._loop_watch.heartbeat_answered()
        if self.partitions is not None:
            self.partitions.heartbeat_answered(sent_ns, lease_ns)
        self._workers.heartbeat_answered(sent_ns, lease_ns)

    # ---- stop --------------------------------------------------------------------------------------------------------------
    def fatal(self, error: Exception) -> None:
        """Stop the node because of a fatal ``error``, without the clean-stop marker. The node restarts if a restart may help."""
        if self._failure is None:
            exit_after(HARD_STOP_S, forced_exit_code(error))
            self._failure = error
            logger.critical("node failed node=%s error=%s: stopping", self.settings.node_id, error)
        self._begin_stop()

    def repair(self, reason: str) -> None:
        """Transfer the leaderships and restart the node without the clean-stop marker, because a log is damaged.

        The recovery at the next start quarantines the damage, and the replica fetches the data again. ``reason``: the damaged log.
        """
        if self._failure is None and not self._repairs:
            exit_after(HARD_STOP_S)
            self._repairs = self._transfers_leadership = True
            logger.error("log damaged node=%s log=%s: restarting to repair it", self.settings.node_id, reason)
        self._begin_stop()

    def request_stop(self, *, transfer_leaderships: bool) -> None:
        """Request a clean stop. ``wait`` then returns.

        ``transfer_leaderships``: True to transfer the leaderships first (SIGTERM). False to stop at once, because the whole cluster
        stops (SIGINT).
        """
        self._transfers_leadership = transfer_leaderships
        self._repairs, self._stop_was_requested = False, True
        self._begin_stop()

    def _begin_stop(self) -> None:
        self._stop_began_s = self._stop_began_s or time.monotonic()
        self._stopping.set()

    async def wait(self) -> None:
        await self._stopping.wait()

    async def stop(self) -> int:
        """Close all components and return the exit code. It may be called after a failed start.

        Each component closes even if another one fails. Then the stop is not clean, and the first error is raised at the end.
        """
        began = time.monotonic()
        self._stop_began_s = self._stop_began_s or began
        self.supervisor.stopping()
        self._logs_are_clean = self._failure is None and self.partitions is not None
        self.all_flushed = self.partitions is not None
        errors: list[Exception] = []

        def failed(error: Exception) -> None:
            errors.append(error)
            self._logs_are_clean = self.all_flushed = False

        await close_all(self._components(), failed)
        took_s = time.monotonic() - began
        LOGS.close()
        who = f"{self.settings.node_id}, worker {self.share.number}," if self.share.number else self.settings.node_id
        logger.info("node stopped node=%s clean=%s seconds=%.2f", who, "yes" if self.was_clean else "no", took_s)
        if errors:
            raise errors[0]
        if self._failure is None:
            return EXIT_TO_REPAIR if self._repairs and not self._stop_was_requested else 0
        if prevents_restart(self._failure):
            return EXIT_NO_RESTART
        return EXIT_TO_REPAIR if is_temporary(self._failure) and not self._stop_was_requested else 1

    @property
    def _registered(self) -> Membership | None:
        """The membership of this node in the cluster. None: this process has not registered the node."""
        return self._membership if self._membership is not None and self._membership.incarnation else None

    async def _transfer_leaderships(self) -> None:
        registered = self._registered
        if registered is None or not (self._transfers_leadership and self._logs_are_clean):
            return
        if self.group is not None:
            await self.group.hand_over()  # first, because the next steps need a metadata leader that does not change
        if self.partitions is not None:
            elsewhere = start_attended(self._workers.close_subjects(_CLOSE_SUBJECTS_TIMEOUT_S))
            await self.partitions.close_subjects(_CLOSE_SUBJECTS_TIMEOUT_S)
            await elsewhere
        await registered.drain(_DRAIN_TIMEOUT_S)

    async def _close_partitions(self) -> None:
        left_s = self._stop_began_s + HARD_STOP_S - _END_S - time.monotonic()
        workers = start_attended(self._workers.stop(left_s))
        try:
            if self.partitions is not None:
                self._logs_are_clean = await self.partitions.stop() and self._logs_are_clean
                self.all_flushed = self.partitions.all_flushed and self.all_flushed
        finally:
            self._recovered.close()
            self._logs_are_clean = await workers and self._logs_are_clean
            self.all_flushed = self.all_flushed and self._workers.all_flushed

    async def _report_stop(self) -> None:
        registered = self._registered
        if registered is not None and self._transfers_leadership and self._failure is None:
            await registered.leave(_LEAVE_TIMEOUT_S)

    def _end_cleanly(self) -> None:
        """Write the clean-stop marker at the end of a stop, unless some data is not on disk [S9].

        After a full disk, only note that no acknowledged record can be lost, if all records are on the disk.
        """
        self.was_clean = stopped_cleanly(
            failed=self._failure is not None,
            opened=self.partitions is not None,
            logs_are_clean=self._logs_are_clean,
            repairs=self._repairs,
        )
        if self._identity is not None and self.partitions is not None and self.was_clean:
            try:
                self._identity.end_cleanly({**self.partitions.log_ends, **self._workers.log_ends})
            except Exception as error:
                self.was_clean = False
                if isinstance(error, NoSpaceError) and self.all_flushed:  # the removal of a mark needs no space
                    self._identity.end_flushed()
                raise
        elif self._identity is not None and self.all_flushed and (self._failure is None or is_temporary(self._failure)):
            self._identity.end_flushed()


class PublishMemory:
    """Memory that this process uses for publishes and reads in progress, with its limits.

    ``processes``: number of processes of the node, which share the limit of the machine.
    """

    def __init__(self, settings: NodeSettings, processes: int) -> None:
        limit_bytes = limit_of(settings.memory_limit_bytes, memory_bytes() // processes)
        self.inflight = NodeInflight()
        self.room = MemoryBudget(limit_bytes, settings.replication.max_queue_delay_s)
        self.reads = ReadBudget(min(MAX_WAITING_BYTES, round(limit_bytes * READERS_SHARE)))
        self.standby = NodeStandbyMemory(min(settings.replication.node_standby_bytes, round(limit_bytes * STANDBY_SHARE)))

    def update(self, ingest: IngestConnection | None, waiting: int) -> bool:
        """Update the amount of memory in use. Return True if no memory is in use.

        ``ingest``: source of received publishes, None before the start. ``waiting``: number of publishers that wait for an ack.
        """
        if ingest is not None:
            self.room.update_wait(*ingest.read_and_parsed_bytes, clock.now_ns())
        memory = NodePublishMemory(
            unread=ingest.waiting_bytes if ingest is not None else 0,
            held_back=self.inflight.held_bytes,
            uncommitted=self.inflight.unreplicated_bytes,
            publishers=waiting * WAITING_PUBLISHER_BYTES,
            standby=self.standby.size_bytes,
            readers=self.reads.used_bytes,
        )
        self.room.update(memory)
        return memory == NodePublishMemory() and not self.room.is_pressed


async def run_node(
    settings: NodeSettings,
    say_ready: Callable[[dict[str, Any]], None],
    again: SettingsLoader | None = None,
    received: Sequence[int] = (),
) -> int:
    """Run one node until SIGTERM (transfers leaderships first) or SIGINT (stops at once). Return the exit code.

    ``say_ready`` is called with the values of the ready line. ``again``: sources of the settings for a reload by SIGHUP, None for no
    reload. ``received``: signals that have arrived before the node has its own handlers, updated until then. Raises the error of a
    failed start, except a temporary disk error.
    """
    retain_freed_memory()
    make_collections_rare()
    node = Node(settings, again=again)
    loop = asyncio.get_running_loop()

    def stop(transfer_leaderships: bool) -> None:
        exit_after(HARD_STOP_S)
        node.request_stop(transfer_leaderships=transfer_leaderships)

    loop.add_signal_handler(signal.SIGTERM, stop, True)
    loop.add_signal_handler(signal.SIGINT, stop, False)
    reloads = TaskSet()
    loop.add_signal_handler(signal.SIGHUP, lambda: reloads.start(node.reload(), "reloading the settings"))
    if received:
        stop(signal.SIGTERM in received)
    starting = start_attended(node.start())
    stopping = start_attended(node.wait())
    slow_stop: asyncio.TimerHandle | None = None
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            if is_temporary(failure := starting.exception()):
                assert isinstance(failure, Exception)
                node.fatal(failure)
            else:
                say_ready(starting.result())
            await stopping
    except Exception as error:  # the command prints it after the stop, and a hung disk may delay the stop
        exit_after(HARD_STOP_S, forced_exit_code(error))
        what = "node failed node=%s error=%s: stopping"
        slow_stop = loop.call_later(SLOW_STOP_S, logger.critical, what, settings.node_id, error)
        raise
    finally:
        await end_tasks([starting, stopping])
        try:
            code = await node.stop()
        except Exception:
            if slow_stop is None:  # otherwise the error of the start is raised. This one is in the log
                raise
        finally:
            await reloads.end()
        if slow_stop is not None:
            slow_stop.cancel()
    if code == EXIT_TO_REPAIR:  # a pause and a restart follow, and the handlers of a closed loop would ignore signals
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
    return code
