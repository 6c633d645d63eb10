"""Twins: a second process with the same node id on another machine, with a copy of the data directory.

The copy is of a directory in use, with everything that distinguishes the processes, or of one that the node has left
since: then the group
can tell. Shipped code ends one of the two, or makes it harmless: the request for the predecessor over NATS, the
metadata leader's rejection,
the nonces, the incarnation. The simulator acts as the operator: it starts the twin and ends it. If the twin has become
the node, its
directory replaces the node's own, or is lost with it.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from liftpy.core.metadata.node_identity import EarlierProcessCheck, EarlierProcessSign, EarlierProcessStep
from liftpy.core.metadata.sessions import REGISTRATION_HOLD_S
from tests.simulation.replica.clock import MS, S
from tests.simulation.replica.network import NO_RESPONDERS
from tests.simulation.replica.process import SimNode

if TYPE_CHECKING:
    from tests.simulation.replica.cluster import Cluster
    from tests.simulation.replica.plan import Fault
    from tests.simulation.replica.process import SimProcess

_ANSWER_TIMEOUT_NS = S // 2
_ASK_EVERY_NS = 100 * MS
_ASKS_FIRST = 0.5
"""Share of twins that ask for their predecessor. The others are of an older version, and a later check must stop them."""
_OF_A_DISK = ("flips at rest", "flips while it runs", "failed flush", "full", "short write")
_LONGER_NS, _LONGER_FROM = round((REGISTRATION_HOLD_S + 1.0) * S), 0.5
"""From this draw on, the original is away until another process may replace it, and the twin stays."""
_MEANWHILE = ("goes on", "is killed", "restarts", "stands still", "sleeps", "is cut off", "loses its session")


class Twins:
    """Twins of one cluster, at most one per node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.of: dict[str, SimNode] = {}
        """Node id -> the other machine."""

    def strike(self, fault: Fault) -> bool:
        """Copy a node's directory, disturb its process, and start a process on the copy."""
        cluster, node_id = self._cluster, fault.node
        node, rng = cluster.nodes[node_id], random.Random(fault.draw)
        if node_id in self.of or not node.up or not node.disk.incarnation or not cluster.checkers.others_hold_all(node_id):
            return False
        twin = SimNode(cluster, node_id, f"{node_id}'")
        twin.disk.put_back(node.disk.copy())
        twin.disk.flush_ns = cluster.plan.flush_ns
        twin.asks_first, node.asks_first = rng.random() < _ASKS_FIRST, True
        twin.lost_data = True
        self.of[node_id] = twin
        cluster.group.twins.add(twin.host)
        for ghost in cluster.checkers.ghosts.values():
            if node_id in ghost.shadows:
                ghost.shadows[twin.host] = deepcopy(ghost.shadows[node_id])
        what, starts_ns = rng.choice(_MEANWHILE), int(rng.choice((0.001, 0.1, 0.5)) * fault.for_ns)
        cluster.counters[f"twin: its original {what}"] += 1
        longer_ns = _LONGER_NS if fault.draw > _LONGER_FROM else 0
        self._befalls(node, what, fault, fault.for_ns // 2 + longer_ns)
        cluster.clock.after(starts_ns, twin.start)
        cluster.clock.after(starts_ns + fault.for_ns + longer_ns, lambda: self._end(twin, keep=rng.random() < 0.5))
        return True

    def strike_disk(self, fault: Fault) -> bool:
        """Damage the disk of a twin: flipped bits, failed flushes, full, or a power cut."""
        found = [twin for _, twin in sorted(self.of.items()) if twin.process is not None and twin.process.serves_all]
        cluster, twin = self._cluster, found[int(fault.draw * 1000) % len(found)] if found else None
        if twin is None or not cluster.checkers.others_hold_all(twin.node_id):
            return False
        what, disk = _OF_A_DISK[int(fault.draw * len(_OF_A_DISK))], twin.disk
        if what in ("flips at rest", "short write"):
            twin.crash(power=what == "short write")
            cluster.clock.after(fault.for_ns, twin.start)
        if what.startswith("flips"):
            flipped = [name for name in sorted(disk.folders) if disk.flip_bit(name)]
            twin.lost_data = twin.lost_data or bool(flipped)
            twin.flipped = twin.flipped or (bool(flipped) and what == "flips while it runs")
            cluster.checkers.disk_lost()
        elif what == "failed flush":
            disk.fail_syncs = 1
        elif what == "full":
            disk.set_capacity(int(fault.draw * 300))
        cluster.counters[f"twin's disk: {what}"] += 1
        cluster.clock.after(fault.for_ns, lambda: self._disk_is_well(twin))
        return True

    def _disk_is_well(self, twin: SimNode) -> None:
        twin.disk.set_capacity(None)
        process = twin.process
        if process is not None and any(replica.failed for replica in process.replicas.values()):
            twin.crash(power=False)
            twin.start()

    def _befalls(self, node: SimNode, what: str, fault: Fault, away_ns: int) -> None:
        cluster, process = self._cluster, node.process
        assert process is not None
        if what in ("is killed", "restarts"):
            node.crash(power=False)
            cluster.clock.after(fault.for_ns // (1 if what == "is killed" else 50), node.start)
        elif what in ("stands still", "sleeps") and not process.paused:
            process.pause(suspended=what == "sleeps")
            cluster.clock.after(away_ns, lambda: process.resume(timers_first=fault.draw < 0.5))
        elif what in ("is cut off", "loses its session"):
            held = cluster.network.down if what == "is cut off" else cluster.group.cut
            held.add(node.host)
            cluster.clock.after(away_ns, lambda: held.discard(node.host))

    def end_all(self) -> None:
        """An operator has found them."""
        for twin in list(self.of.values()):
            self._end(twin, keep=True)

    def _end(self, twin: SimNode, *, keep: bool) -> None:
        """End a twin.

        If it became the node, its directory replaces the node's. ``keep``: always, else only if another node has all records.
        The node keeps its own directory if no other disk has all records of some partition. If each of the two directories
        is the last one of a partition, one partition is lost.
        """
        cluster, node_id = self._cluster, twin.node_id
        if self.of.get(node_id) is not twin:
            return
        node, checkers = cluster.nodes[node_id], cluster.checkers
        is_the_node = cluster.acting(node_id) is twin
        keep = is_the_node and (keep or not checkers.others_hold_all(node_id))
        if keep and checkers.held_only_on(node.host) and not checkers.held_only_on(twin.host):
            keep = False
            cluster.counters["twin: only its original has everything"] += 1
        for ghost in checkers.held_only_on(node.host if keep else twin.host):
            ghost.may_be_gone = True
        twin.crash(power=False)
        twin.is_gone = True
        if is_the_node:
            cluster.counters["twin: it was the node"] += 1
            node.crash(power=False)
            node.lost_data, node.went_back = (twin.lost_data, twin.went_back) if keep else (True, False)
        if keep:
            node.disk.put_back(twin.disk.copy())
            node.nonces, node.flipped = node.nonces | twin.nonces, twin.flipped
        elif is_the_node:
            checkers.disk_lost()
        del self.of[node_id]
        cluster.group.twins.discard(twin.host)
        for ghost in checkers.ghosts.values():
            shadow = ghost.shadows.pop(twin.host, None)
            if keep and shadow is not None:
                ghost.shadows[node_id] = shadow
        if is_the_node:
            cluster.clock.after(MS, node.start)


class AskingFirst:
    """Process that probes for its predecessor before it begins."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._inquiry = EarlierProcessCheck(process.now_ns())
        self._asked = 0
        self._ask()

    def _ask(self) -> None:
        process = self._process
        network, number = process.cluster.network, self._asked
        if process.host in network.down:
            self._heard(number, EarlierProcessSign.UNASKED)
            return
        network.request(process.host, f"status.{process.node_id}", "present?", lambda said: self._answered(number, said))
        process.later(_ANSWER_TIMEOUT_NS, lambda: self._heard(number, EarlierProcessSign.SILENT))

    def _answered(self, number: int, said: Any) -> None:
        self._heard(number, EarlierProcessSign.ABSENT if said is NO_RESPONDERS else EarlierProcessSign.PRESENT)

    def _heard(self, number: int, sign: EarlierProcessSign) -> None:
        process = self._process
        if number != self._asked or process.dead:
            return
        self._asked += 1
        verdict = self._inquiry.record_sign(sign, process.now_ns())
        process.cluster.counters[f"predecessor: {sign.value}"] += 1
        if verdict is EarlierProcessStep.GO_ON:
            process.begin()
        elif verdict is EarlierProcessStep.GIVE_UP:
            process.node.restart()
        elif sign is EarlierProcessSign.SILENT:
            self._ask()
        else:
            process.later(_ASK_EVERY_NS, self._ask)
