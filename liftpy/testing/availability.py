"""L10: also while faults last, a connected majority of healthy replicas commits again within ``WITHIN_S``.

Looked at every ``_EVERY_NS`` of virtual time. What counts as a lasting fault is a state of the world that has not changed
for ``WITHIN_S``: nobody died, came back, was cut off or mended meanwhile. In such a state a majority of the replica set
that runs, reaches NATS, each other and the metadata group, and has a member that may lead when the fault strikes, must have
had a publish acknowledged ALL; whoever else is cut off, paused or dead, and whatever it says. Only where the network loses
nothing at random: a plan with noise is no promise.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from liftpy.invariants import check
from liftpy.replica.data_path import INGEST, INGEST_GRACE_NS
from liftpy.testing.clock import MS, S

if TYPE_CHECKING:
    from liftpy.testing.cluster import Cluster

WITHIN_S = 10.0
_EVERY_NS = 250 * MS


class Availability:
    """The watch over one cluster, from the start of its chaos until it is healed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world: object = None
        self._heirs: frozenset[str] = frozenset()
        """Who could lead when the world changed last. That a bad decision has led elsewhere since is no excuse."""
        self._changed_ns = self._acked_ns = cluster.clock.now_ns
        self._acked = 0
        self.stopped = False
        noise, plan = cluster.plan.noise, cluster.plan
        if not (noise.loss or noise.spike or plan.metadata_loss):
            self._look()

    def _look(self) -> None:
        if self.stopped:
            return
        cluster = self._cluster
        now_ns, world, acked = cluster.clock.now_ns, self._seen(), cluster.counters["ack ALL"]
        if world != self._world:
            self._world, self._changed_ns = world, now_ns
            self._heirs = self._may_lead()
        if acked != self._acked:
            self._acked, self._acked_ns = acked, now_ns
        quiet_s = (now_ns - max(self._changed_ns, self._acked_ns)) / S
        if quiet_s >= WITHIN_S + self._grace_s():
            majority = self._majority()
            check(
                not majority, "L10", majority, "are whole, and nothing was acknowledged for", quiet_s, "s:", cluster.describe()
            )
        if now_ns - self._changed_ns >= round(WITHIN_S * S):
            cluster.counters["lasting fault, acknowledged"] += bool(self._majority()) and bool(self._ill())
        cluster.clock.after(_EVERY_NS, self._look)

    def _grace_s(self) -> float:
        """A leader whose publishes alone are cut off waits for a while before it makes way."""
        return INGEST_GRACE_NS / S if any(link == INGEST for _, link in self._cluster.network.links_down) else 0.0

    def _seen(self) -> object:
        """Everything that a fault changes."""
        cluster = self._cluster
        network, group = cluster.network, cluster.group
        nodes = [
            (node.process and (node.process.incarnation, node.process.paused), node.disk.flush_ns, node.disk.doubtful)
            for node in cluster.nodes.values()
        ]
        cut = [frozenset(held) for held in (network.down, network.cuts, network.links_down, network.slow, group.cut)]
        return nodes, cut, group.available, cluster.candidates_fail, cluster.counters["fault transfer"], self._ill()

    def _ill(self) -> frozenset[str]:
        return frozenset(node_id for node_id in self._cluster.nodes if not self._is_healthy(node_id))

    def _is_healthy(self, node_id: str) -> bool:
        cluster = self._cluster
        node = cluster.nodes[node_id]
        if node.process is None or node.process.paused or node.disk.flush_ns != cluster.plan.flush_ns:
            return False
        network = cluster.network
        cut = node_id in network.down or node_id in network.slow or node_id in cluster.group.cut
        cut = cut or any(node == node_id for node, _ in network.links_down)
        return not cut and not node.lost_data and not any(r.failed for r in node.process.replicas.values())

    def _may_lead(self) -> frozenset[str]:
        stream = self._cluster.group.image.streams[self._cluster.key.stream]
        return frozenset(stream.may_lead(stream.partitions[0]))

    def _majority(self) -> tuple[str, ...]:
        """A smallest set of replicas that could commit, () if there is none."""
        cluster = self._cluster
        if not cluster.group.available or cluster.candidates_fail:
            return ()
        stream = cluster.group.image.streams[cluster.key.stream]
        partition = stream.partitions[0]
        able = {node_id for node_id in self._heirs if cluster.checkers.holds_committed(stream.key(0), node_id)}
        majority = len(partition.replicas) // 2 + 1
        heirs = majority if stream.commits_by_quorum else 1
        healthy = [node_id for node_id in partition.replicas if self._is_healthy(node_id)]
        for members in combinations(healthy, max(majority, cluster.min_isr)):
            linked = not any(pair in cluster.network.cuts for one in members for pair in ((one, m) for m in members))
            if linked and len(able.intersection(members)) >= heirs:
                return members
        return ()
