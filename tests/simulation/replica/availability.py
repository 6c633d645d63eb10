"""L10: during a lasting fault, a connected majority of healthy replicas commits again within ``WITHIN_S``.

Checked every ``_EVERY_NS`` of virtual time. A fault is lasting if the state of the world has not changed for
``WITHIN_S``: no node failed,
returned, was disconnected or reconnected. In such a state, a publish with ack policy ALL must be acked by a majority of
the replica set that
runs, reaches NATS, each other and the metadata group, and has a member that may lead when the fault begins. That holds
whatever the other
replicas do. A network that loses messages at random is excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.invariants import check
from liftpy.core.replication.lease import INGEST, INGEST_GRACE_NS
from tests.simulation.replica.clock import MS, S
from tests.simulation.replica.cluster import Cluster
from tests.simulation.replica.network import SILENT_NS

WITHIN_S = 10.0
_EVERY_NS = 250 * MS


@dataclass(slots=True)
class _Watched:
    """Watched state of one partition."""

    acked_ns: int
    """When a publish was seen to be acknowledged ALL last."""
    acked: int = 0
    electable_replicas: frozenset[str] = frozenset()
    """Replicas that could lead when the world last changed. A bad decision since then is no excuse."""


class Availability:
    """The watch over one cluster, from the start of its chaos until it is healed; over each partition for itself."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world: object = None
        self._changed_ns = cluster.clock.now_ns
        self._watched = {key: _Watched(self._changed_ns) for key in cluster.keys}
        self.stopped = False
        noise, plan = cluster.plan.noise, cluster.plan
        if not (noise.loss or noise.spike or plan.metadata_loss):
            self._look()

    def _look(self) -> None:
        if self.stopped:
            return
        cluster = self._cluster
        now_ns, world = cluster.clock.now_ns, self._seen()
        changed = world != self._world
        if changed:
            self._world, self._changed_ns = world, now_ns
        lasts = now_ns - self._changed_ns >= round(WITHIN_S * S)
        for key, watched in self._watched.items():
            acked = cluster.checkers.ghost(key).acks_all
            if changed:
                watched.electable_replicas = self._electable_replicas(key)
            if acked != watched.acked:
                watched.acked, watched.acked_ns = acked, now_ns
            quiet_s = (now_ns - max(self._changed_ns, watched.acked_ns, self._asked_ns(key))) / S
            if quiet_s >= WITHIN_S + self._grace_s():
                whole = self._majority(key)
                if whole:
                    text = cluster.describe()
                    check(False, "L10", key, whole, "are whole, and nothing was acknowledged for", quiet_s, "s:", text)
            if lasts and self._ill():
                cluster.counters["lasting fault, acknowledged"] += bool(self._majority(key))
        cluster.clock.after(_EVERY_NS, self._look)

    def _asked_ns(self, key: PartitionKey) -> int:
        """Return since when a publisher with ack ALL has waited and retried."""
        asked = [each.request_ns for each in self._cluster.publishers if each.key == key and each.request_ns is not None]
        return min(asked, default=self._cluster.clock.now_ns)

    def _grace_s(self) -> float:
        """Return the grace time of a leader that only publishes cannot reach."""
        network = self._cluster.network
        waits_s = INGEST_GRACE_NS / S if any(link == INGEST for _, link in network.links_down) else 0.0
        if any(link == INGEST for _, link, _ in network.half_open):
            waits_s = (INGEST_GRACE_NS + SILENT_NS) / S
        return waits_s

    def _seen(self) -> object:
        """Everything that a fault changes."""
        cluster = self._cluster
        network, group = cluster.network, cluster.group
        nodes = [
            (node.process and (node.process.incarnation, node.process.paused), node.disk.flush_ns, node.disk.doubtful)
            for node in cluster.nodes.values()
        ]
        cut = [frozenset(held) for held in (network.down, network.cuts, network.links_down, network.half_open, network.slow)]
        cut += [frozenset(held) for held in (group.cut, group.late_ns)]
        return nodes, cut, group.available, cluster.candidates_fail, cluster.counters["fault transfer"], self._ill()

    def _ill(self) -> frozenset[str]:
        return frozenset(node_id for node_id in self._cluster.nodes if not self._is_healthy(node_id))

    def _is_healthy(self, node_id: str) -> bool:
        cluster = self._cluster
        node = cluster.nodes[node_id]
        if node.process is None or node.process.paused or node.disk.flush_ns != cluster.plan.flush_ns:
            return False
        network = cluster.network
        group = cluster.group
        cut = node_id in network.down or node_id in network.slow
        cut = cut or node_id in group.cut or node_id in group.late_ns
        cut = cut or any(node == node_id for node, *_ in (*network.links_down, *network.half_open))
        return not cut and not node.lost_data and not any(r.failed for r in node.process.replicas.values())

    def _electable_replicas(self, key: PartitionKey) -> frozenset[str]:
        stream = self._cluster.group.image.streams[key.stream]
        return frozenset(stream.electable_replicas(stream.partitions[key.partition]))

    def _majority(self, key: PartitionKey) -> tuple[str, ...]:
        """Return a smallest set of replicas that could commit, () if there is none."""
        cluster = self._cluster
        if not cluster.group.available or cluster.candidates_fail:
            return ()
        stream = cluster.group.image.streams[key.stream]
        partition = stream.partitions[key.partition]
        able = {node_id for node_id in self._watched[key].electable_replicas if cluster.checkers.holds_committed(key, node_id)}
        majority = len(partition.replicas) // 2 + 1
        needed = majority if stream.commits_by_quorum else 1
        healthy = [node_id for node_id in partition.replicas if self._is_healthy(node_id)]
        for members in combinations(healthy, max(majority, cluster.min_isr)):
            linked = not any(pair in cluster.network.cuts for one in members for pair in ((one, m) for m in members))
            if linked and len(able.intersection(members)) >= needed:
                return members
        return ()
