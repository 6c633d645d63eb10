"""``NodeTools``: what all partitions of a node share."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import InitVar, dataclass, field
from typing import Any

from liftpy.client.closest_replica import this_host
from liftpy.config import NS_PER_S
from liftpy.core.base.instruments import Instruments
from liftpy.core.partition.reads import ReadBudget
from liftpy.core.partition.shell import PartitionShell
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.standby import NodeStandbyMemory
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import Lease
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.disk.flush_thread import FlushThread, NodeFlushTimes
from sidecar.metadata.group import MetadataGroup
from sidecar.metadata.identity import PreviousProcess
from sidecar.partition.combined_fetches import FetchCombiner, FetchSender
from sidecar.partition.deletions import Deletions
from sidecar.partition.leadership import LeadershipTransfers
from sidecar.partition.ports import PartitionFolders, PresenceProbes, WallClock
from sidecar.partition.promises import Promises
from sidecar.partition.proposals import Proposals
from sidecar.partition.reads import ReadTools
from sidecar.partition.recovery import RecoveredLogs
from sidecar.partition.replication import AnswerRouter, Notifications
from sidecar.runtime.restarts import RunningNode
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.timers import Timers
from sidecar.tracing.node_tracing import Tracing
from sidecar.transport.ingest_connection import Drops
from sidecar.transport.ports import Links

_ACK_IDS_PER_INCARNATION = 1 << 32


@dataclass(eq=False, slots=True, kw_only=True)
class NodeTools:
    """Objects that all partitions of a node share, in a node and in a node of an in-memory cluster.

    Args:
        deliver: Passes an event to a partition: stream, number and uid of the partition, and the event.
        read_budget: Memory budget of waiting readers.
    """

    settings: NodeSettings
    incarnation: int
    """Incarnation of the process."""
    group: MetadataGroup
    """Metadata group, as the process sees it."""
    deliver: InitVar[Callable[[str, int, str, Any], None]]
    read_budget: InitVar[ReadBudget]
    links: Links
    folder: PartitionFolders
    clocks: WallClock
    probes: PresenceProbes
    process: RunningNode
    """The process that hosts the partitions."""
    timers: Timers
    pool: Executor
    flush_runner: FlushThread
    flush_times: NodeFlushTimes
    inflight: NodeInflight
    standby_memory: NodeStandbyMemory
    memory_budget: MemoryBudget
    drops: Drops
    counters: Counter[str]
    instruments: Instruments
    tracing: Tracing
    changed_partitions: set[PartitionShell]
    """Partitions whose metrics may have changed. Use it only on the event loop."""
    previous: PreviousProcess
    recovered: RecoveredLogs
    promises: Promises

    ack_ids: Iterator[int] = field(init=False)
    """Ids of the orders to services. No process of the node has used an id twice."""
    lease: Lease = field(init=False)
    state_memory: NodeStateMemory = field(init=False)
    copy_limit: CatchupThrottle = field(init=False)
    subjects: Subjects = field(init=False)
    node_inboxes: InboxRule = field(init=False)
    router: AnswerRouter = field(init=False)
    notifications: Notifications = field(init=False)
    fetch_combiner: FetchCombiner = field(init=False)
    proposals: Proposals = field(init=False)
    reads: ReadTools = field(init=False)
    """Read tools with the inboxes of applications."""
    transfers: LeadershipTransfers = field(init=False)
    deletions: Deletions = field(init=False)

    def __post_init__(self, deliver: Callable[[str, int, str, Any], None], read_budget: ReadBudget) -> None:
        settings, incarnation, group = self.settings, self.incarnation, self.group
        times, node_id = settings.replication, settings.node_id
        links, timers, counters = self.links, self.timers, self.counters
        self.subjects = subjects = Subjects(settings.namespace, settings.inbox_prefixes)
        self.node_inboxes = node_inboxes = InboxRule((subjects.inboxes(),))
        self.ack_ids = itertools.count(incarnation * _ACK_IDS_PER_INCARNATION)
        self.lease = Lease(round(times.lease_s * NS_PER_S))
        self.state_memory = NodeStateMemory(times.node_dedup_state_bytes)
        self.copy_limit = CatchupThrottle.from_config(times)
        self.router = AnswerRouter(links.replication)
        self.notifications = Notifications(links.replication, subjects)
        sender = FetchSender(node_id, incarnation)
        self.fetch_combiner = FetchCombiner(self.router, subjects, sender, node_inboxes, times, timers, deliver, counters)
        self.proposals = Proposals(group, node_id, incarnation)
        inboxes, host = InboxRule(settings.inbox_prefixes), this_host() if settings.local_file_reads else ""
        self.reads = ReadTools(links.reads, subjects, inboxes, timers, counters, read_budget, self.instruments, host)
        self.transfers = LeadershipTransfers(links)
        self.deletions = Deletions(group, node_id)
