"""MemoryNode: one node of an in-memory cluster: its storage, which survives a kill, and the replicas that it runs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping

from liftpy.config import NS_PER_MS, NS_PER_S, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.metadata.features import SPOKEN
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.image_delta import diff
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.standby import NodeStandbyMemory
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import pace_of
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import Lease
from liftpy.core.replication.reads import ReadBudget
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.testing.memory.group import MemoryGroup
from liftpy.testing.memory.home import Answered, FellowReplica
from liftpy.testing.memory.nats import Bus
from liftpy.testing.memory.replica import MemoryReplica


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
        served: dict[PartitionKey, FellowReplica],
    ) -> None:
        self.node_id = node_id
        self.loop = loop
        self.bus = bus
        self.subjects = subjects
        self.config = config
        self.inboxes = InboxRule(subjects.inbox_prefixes)
        self.counters: Counter[str] = Counter()
        self.copy_pace = pace_of(config)
        self.now_ns: Callable[[], int] = time.monotonic_ns
        self.wall_ns: Callable[[], int] = time.time_ns
        self.promises: dict[PartitionKey, int] = {}
        self.replicas: dict[PartitionKey, MemoryReplica] = {}
        self.up = False
        self.incarnation = 0
        self._others = others
        self._served = served
        self._group: MemoryGroup | None = None
        self._storages: dict[PartitionKey, MemoryStorage] = {}
        self._starts = DirectoryIdentity(f"memory-{node_id}")
        self._image = ClusterImage()
        self._lease_ends: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        """Create the memory of a new process of the node, which has no metadata yet."""
        self.intake = NodeInflight()
        self.lease = Lease(round(self.config.lease_s * NS_PER_S))
        self.derived = NodeStateMemory(self.config.node_dedup_state_bytes)
        self.heard = NodeStandbyMemory(self.config.node_standby_bytes)
        self.read_budget = ReadBudget()
        self._image = ClusterImage()

    # ---- life ------------------------------------------------------------------------------------------------------------
    def start(self, group: MemoryGroup) -> None:
        """Register the node in the metadata group, and open the partitions of the metadata image."""
        self._begin()
        self._group = group
        self._starts = self._starts.next(self._starts.starts + 1)
        register = pb.RegisterNode(nodeId=self.node_id, previousIncarnation=self.incarnation, flushedAlways=True)
        SPOKEN.write_to(register)
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
        self._lease_ends = self.loop.call_at(self.lease.until_ns(now_ns) / NS_PER_S, self._lease_changed)
        if had_ended:
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
        found = image.find(key.stream, key.uid, key.partition)
        return found is not None and self.node_id in found[1].holders

    def _open(self, stream: StreamImage, number: int) -> MemoryReplica:
        key = stream.key(number)
        storage = self._storages.setdefault(key, MemoryStorage())
        log, _ = Log.open(storage, stream.config, now_wall_ns=self.wall_ns(), promised_epoch=self.promises.get(key, 0))
        replica = self.replicas[key] = MemoryReplica(self, stream, number, log)
        replica.open()
        return replica

    # ---- what replicas ask -----------------------------------------------------------------------------------------------
    def ask(self, request: pb.ControlRequest, answered: Answered) -> None:
        incarnation = self.incarnation

        def asked() -> None:
            if self.up and self.incarnation == incarnation and self._group is not None:
                response = self._group.decide(request)
                self.loop.call_soon(answered, response)

        self.loop.call_soon(asked)

    def serving_replica(self, key: PartitionKey) -> FellowReplica | None:
        return self._served.get(key)

    def serve(self, key: PartitionKey, peer: FellowReplica) -> None:
        self._served[key] = peer

    def serve_no_more(self, key: PartitionKey, peer: FellowReplica) -> None:
        if self._served.get(key) is peer:
            del self._served[key]

    def replica_of(self, node_id: str, key: PartitionKey) -> FellowReplica | None:
        other = self._others.get(node_id)
        return None if other is None else other.replicas.get(key)

    def is_up(self, node_id: str) -> bool:
        other = self._others.get(node_id)
        return other is not None and other.up
