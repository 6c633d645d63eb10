"""``NodeTools``: what all partitions of a node share. ``create_node_tools`` creates it, in a node and in an in-memory cluster."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from typing import Any

from liftpy.client.closest_replica import this_host
from liftpy.config import NS_PER_S
from liftpy.core.base.instruments import Instruments
from liftpy.core.metadata.image import ClusterImage
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """Parts of ``NodeTools`` that differ between a node and a node of an in-memory cluster."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTools(NodePorts):
    """Objects that all partitions of a node share. Create it with ``create_node_tools``."""

    settings: NodeSettings
    incarnation: int
    ack_ids: Iterator[int]
    """Ids of the orders to services. No process of the node has used an id twice."""
    lease: Lease
    state_memory: NodeStateMemory
    copy_limit: CatchupThrottle
    subjects: Subjects
    node_inboxes: InboxRule
    router: AnswerRouter
    notifications: Notifications
    fetch_combiner: FetchCombiner
    proposals: Proposals
    reads: ReadTools
    """Read tools with the inboxes of applications."""
    transfers: LeadershipTransfers
    deletions: Deletions
    image: Callable[[], ClusterImage]
    """Returns the cluster as this node knows it now."""


def create_node_tools(
    settings: NodeSettings,
    incarnation: int,
    group: MetadataGroup,
    deliver: Callable[[str, int, str, Any], None],
    read_budget: ReadBudget,
    ports: NodePorts,
) -> NodeTools:
    """Create what all partitions of a node share.

    Args:
        settings: Settings of the node.
        incarnation: Incarnation of the process.
        group: Metadata group, as the process sees it.
        deliver: Passes an event to a partition: stream, number and uid of the partition, and the event.
        read_budget: Memory budget of waiting readers.
        ports: Parts that a node of an in-memory cluster replaces.
    """
    times, node_id = settings.replication, settings.node_id
    links, timers, counters = ports.links, ports.timers, ports.counters
    bus, subjects = links.replication, Subjects(settings.namespace, settings.inbox_prefixes)
    inboxes, node_inboxes = InboxRule(settings.inbox_prefixes), InboxRule((subjects.inboxes(),))
    router, sender = AnswerRouter(bus), FetchSender(node_id, incarnation)
    host = this_host() if settings.local_file_reads else ""
    return NodeTools(
        **{field.name: getattr(ports, field.name) for field in fields(ports)},
        settings=settings,
        incarnation=incarnation,
        ack_ids=itertools.count(incarnation * _ACK_IDS_PER_INCARNATION),
        lease=Lease(round(times.lease_s * NS_PER_S)),
        state_memory=NodeStateMemory(times.node_dedup_state_bytes),
        copy_limit=CatchupThrottle.from_config(times),
        subjects=subjects,
        node_inboxes=node_inboxes,
        router=router,
        notifications=Notifications(bus, subjects),
        fetch_combiner=FetchCombiner(router, subjects, sender, node_inboxes, times, timers, deliver, counters),
        proposals=Proposals(group, node_id, incarnation),
        reads=ReadTools(links.reads, subjects, inboxes, timers, counters, read_budget, ports.instruments, host),
        transfers=LeadershipTransfers(links),
        deletions=Deletions(group, node_id),
        image=lambda: group.image,
    )
