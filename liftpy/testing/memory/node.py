"""Nodes of an in-memory cluster: the shipped partitions of a node (``sidecar/partition``), without disk and network.

``MemoryNode`` keeps what survives a kill: the logs, and the LeaderEpochs that the node has promised. ``NodeProcess`` is one
process of the node. It gives the partitions their surroundings: an in-memory bus, a disk of dictionaries, the metadata group,
and work that ends at once instead of threads.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from liftpy.config import NS_PER_MS, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments
from liftpy.core.log.epoch_promises import PromiseJournal
from liftpy.core.log.flush import FlushScheduler
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.core.partition.reads import ReadBudget
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.standby import NodeStandbyMemory
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.testing.memory.group import MemoryGroup
from liftpy.testing.memory.nats import Bus, NodeConnection
from sidecar.disk.flush_thread import FlushThread, NodeFlushTimes
from sidecar.metadata.group import MetadataGroup
from sidecar.metadata.identity import PreviousProcess
from sidecar.partition.housekeeping import Housekeeping
from sidecar.partition.metric_sums import NodeCounts, StreamLabels
from sidecar.partition.node_tools import NodeTools
from sidecar.partition.promises import Promises
from sidecar.partition.recovery import RecoveredLogs
from sidecar.partition.replica_manager import NotifyHandler, Partitions
from sidecar.runtime import clock
from sidecar.runtime.memory import GarbageCollection
from sidecar.runtime.restarts import RunningNode
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import spawn
from sidecar.runtime.timers import Timers
from sidecar.tracing.node_tracing import Tracing
from sidecar.transport.ingest_connection import Drops


class MemoryNode:
    """One node of an in-memory cluster.

    ``others``: all nodes by id, including this one. It runs on the event loop of the cluster.
    """

    def __init__(
        self,
        node_id: str,
        loop: asyncio.AbstractEventLoop,
        bus: Bus,
        subjects: Subjects,
        config: ReplicationConfig,
        others: Mapping[str, MemoryNode],
    ) -> None:
        self.node_id = node_id
        self.loop = loop
        self.bus = bus
        self.subjects = subjects
        self.config = config
        self.others = others
        self.wall_ns: Callable[[], int] = time.time_ns
        self.storages: dict[PartitionKey, MemoryStorage] = {}
        """Partition -> directory of its log."""
        self.promises = MemoryStorage()
        """Directory of the LeaderEpochs that this node has promised."""
        self.incarnation = 0
        self.process: NodeProcess | None = None
        """The running process. None: the node is stopped."""
        self._starts = DirectoryIdentity(f"memory-{node_id}")

    @property
    def up(self) -> bool:
        """True if the node runs."""
        return self.process is not None

    def start(self, group: MemoryGroup, *, is_damaged: bool = False) -> None:
        """Register the node in the metadata group, and open the partitions of the metadata image.

        ``is_damaged``: True if a log may lack acknowledged records. Then all replicas of the node leave their ISRs first.
        """
        self._starts = self._starts.next(self._starts.starts + 1)
        register = pb.RegisterNode(nodeId=self.node_id, previousIncarnation=self.incarnation, flushedAlways=not is_damaged)
        SUPPORTED_LEVELS.write_to(register)
        self._starts.write_to(register)
        previous = PreviousProcess(self.incarnation, clean_stop=False, flushed_always=not is_damaged)
        self.incarnation = group.apply(pb.ControlRequest(registerNode=register)).node.incarnation
        self._starts = self._starts.after_registration()
        self.process = NodeProcess(self, group, previous)
        self.process.image_changed(group.image)

    def kill(self) -> None:
        """End the process of the node at once, as SIGKILL does. Its written data remains."""
        if self.process is not None:
            self.close()
            self.storages = {key: storage.crash(power=False) for key, storage in self.storages.items()}
            self.promises = self.promises.crash(power=False)

    def close(self) -> None:
        """End the process of the node at once. Do not start the node again."""
        process, self.process = self.process, None
        if process is not None:
            process.die()

    def image_changed(self, image: ClusterImage) -> None:
        """Apply a new metadata image: stop removed partitions, open new ones, update the others."""
        if self.process is not None:
            self.process.image_changed(image)

    def beat(self) -> None:
        """Renew the lease of the node, because its heartbeat was answered."""
        if self.process is not None:
            self.process.heartbeat_answered()

    async def keep_house(self) -> None:
        """Store checkpoints, and run retention and compaction of all logs of the node."""
        if self.process is not None:
            await self.process.keep_house()


class NodeProcess(RunningNode):
    """One process of a node, until ``die``. It runs on the event loop of the cluster."""

    def __init__(self, node: MemoryNode, group: MemoryGroup, previous: PreviousProcess) -> None:
        self._node = node
        self._group = group
        self._previous = previous
        self.incarnation = node.incarnation
        self.counters: Counter[str] = Counter()
        self.connection = NodeConnection(node.bus, node.loop, f"{node.subjects.inbox(node.node_id)}.{self.incarnation:x}")
        self.member = _Member(group, node.loop)
        self._counts = NodeCounts(StreamLabels())
        self._timers, self._drops = Timers(node.loop), Drops()
        tools = self._tools = self._create_tools()
        self.partitions = Partitions(tools, self._counts, garbage=_NoGarbageCollection())
        NotifyHandler(
            self.connection,
            node.subjects.notify(node.node_id),
            tools.node_inboxes,
            self.partitions,
            tools.fetch_combiner.answer_question,
            self.counters,
        )
        interval_s = node.config.hw_checkpoint_interval_s
        folder = Path(f"/memory/{node.node_id}")
        self._housekeeping = Housekeeping(self.partitions, interval_s, folder, self.repair, _run_inline)
        self._housekeeping.start()

    def _create_tools(self) -> NodeTools:
        node, config, subjects = self._node, self._node.config, self._node.subjects
        settings = NodeSettings(
            node.node_id, Path(f"/memory/{node.node_id}"), namespace=subjects.namespace, inbox_prefixes=subjects.inbox_prefixes,
            replication=config,
        )  # fmt: skip
        pool = _InlinePool()
        return NodeTools(
            settings=settings,
            incarnation=self.incarnation,
            group=self.member,
            deliver=self._deliver,
            read_budget=ReadBudget(),
            links=self.connection,
            folder=_Folders(node),
            clocks=_HostClock(node),
            probes=_Presence(node),
            process=self,
            timers=self._timers,
            pool=pool,
            flush_runner=_InlineFlushes(),
            flush_times=NodeFlushTimes(self.counters),
            inflight=NodeInflight(),
            standby_memory=NodeStandbyMemory(config.node_standby_bytes),
            memory_budget=MemoryBudget(),
            drops=self._drops,
            counters=self.counters,
            instruments=Instruments(),
            tracing=Tracing(settings, self.counters),
            changed_partitions=self._counts.changed_partitions,
            previous=self._previous,
            recovered=RecoveredLogs(),
            promises=Promises(PromiseJournal(node.promises), pool, self.counters, self.fatal),
        )

    def _deliver(self, stream: str, partition: int, uid: str, event: Any) -> None:
        self.partitions.deliver(stream, partition, uid, event)

    # ---- life ------------------------------------------------------------------------------------------------------------
    def die(self) -> None:
        """End the process at once. Afterwards it sends and receives nothing, and the metadata group does not hear it."""
        self.member.is_closed = True
        self.connection.close()
        self._timers.close()
        spawn(self._end(), f"the end of {self._node.node_id}")

    async def _end(self) -> None:
        """Stop the tasks and timers that still run. The next process has copies of the files, so it does not see what this changes."""
        tools = self._tools
        await self._housekeeping.close()
        await tools.proposals.close()
        tools.fetch_combiner.close()
        await self.partitions.stop()
        await tools.promises.close()
        self._drops.close()

    def fatal(self, error: Exception) -> None:
        """Kill the node, because of an unexpected ``error``, and report the error to the event loop."""
        node = self._node
        node.loop.call_exception_handler({"message": f"node {node.node_id} has failed", "exception": error})
        if node.process is self:
            node.kill()

    def repair(self, reason: str) -> None:
        """Restart the node in the next turn of the event loop, so that it recovers a damaged log."""
        self._node.loop.call_soon(self._restart)

    def _restart(self) -> None:
        if self._node.process is self:
            self._node.kill()
            self._node.start(self._group, is_damaged=True)

    # ---- the metadata group ------------------------------------------------------------------------------------------------
    def image_changed(self, image: ClusterImage) -> None:
        """Apply a new metadata image."""
        before = self.member.image
        if image.index <= before.index:
            return
        self.member.show(image)
        self.partitions.image_changed(before, image)
        self.heartbeat_answered()

    def heartbeat_answered(self) -> None:
        """Renew the lease of the node, unless it does not have the newest metadata image.

        The node must first learn which leaderships it has lost [D22].
        """
        image = self.member.image
        if image.index >= self._group.changed_index:
            times = image.session_times
            self.partitions.heartbeat_answered(clock.now_ns(), 0 if times is None else times.lease_ms * NS_PER_MS)

    async def keep_house(self) -> None:
        """Do the periodic work for all logs now, and wait until it is complete."""
        await self._housekeeping.run_once()


# ---- ports -----------------------------------------------------------------------------------------------------------


class _Member(MetadataGroup):
    """The metadata group as one process of a node sees it. A request is decided in the next turn of the event loop."""

    decides = True

    def __init__(self, group: MemoryGroup, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._group = group
        self._loop = loop
        self._image = ClusterImage()
        self.is_closed = False

    @property
    def image(self) -> ClusterImage:
        return self._image

    def show(self, image: ClusterImage) -> None:
        before, self._image = self._image, image
        self._notify(before, image)

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        await asyncio.sleep(0)
        if self.is_closed:
            return pb.ControlResponse(error=pb.ControlResponse.UNAVAILABLE)
        return self._group.decide(request)


class _Folders:
    """The logs of a node (implements ``PartitionFolders``)."""

    def __init__(self, node: MemoryNode) -> None:
        self._node = node
        self._storages = node.storages

    def partition_path(self, key: PartitionKey) -> Path:
        return Path(f"/memory/{self._node.node_id}/{key.folder}")

    def partition_storage(self, key: PartitionKey) -> MemoryStorage:
        return self._storages.setdefault(key, MemoryStorage())

    def set_mark(self, name: str) -> None:
        """Do nothing: only the process ends, so no written record is lost."""

    def mark_log(self, name: str) -> None:
        """Do nothing: only a test removes a log."""

    def delete_partition(self, key: PartitionKey) -> None:
        self._storages.pop(key, None)


class _HostClock:
    """The wall clock, which all nodes of the cluster share (implements ``WallClock``)."""

    def __init__(self, node: MemoryNode) -> None:
        self._node = node

    def start(self) -> None:
        """Do nothing: there is no other clock."""

    def stamp_ns(self) -> int:
        return self._node.wall_ns()

    time_of_age_ns = stamp_ns

    async def close(self) -> None:
        """Do nothing: no comparison runs."""


class _Presence:
    """Tells which nodes run (implements ``PresenceProbes``)."""

    def __init__(self, node: MemoryNode) -> None:
        self._node = node

    def ask(self, node_id: str, absent: Callable[[], None]) -> None:
        other = self._node.others.get(node_id)
        if other is None or not other.up:
            self._node.loop.call_soon(absent)


class _NoGarbageCollection(GarbageCollection):
    """Leaves the garbage collector alone, because the process belongs to the application."""

    def count_opened(self) -> None:
        """Do nothing."""

    def count_closed(self) -> None:
        """Do nothing."""


class _InlinePool(Executor):
    """Runs each work at once, because nothing in memory is slow."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


async def _run_inline(work: Callable[[], None]) -> None:
    """Run ``work`` on the event loop, because ``MemoryStorage`` belongs to one thread."""
    work()


class _InlineFlushes(FlushThread):
    """Runs short flushes on the event loop."""

    def __init__(self) -> None:
        super().__init__(FlushScheduler())
        self.place.on_loop = True

    def run(self, work: Callable[[], int], within_s: float) -> int:
        return work()
