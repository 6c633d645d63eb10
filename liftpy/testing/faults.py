"""Faults: a schedule drawn from the seed before the run, so that it can be printed, replayed and made shorter.

Swarm testing: every seed draws which kinds of fault it has at all, how often, and how bad its network, disks and time-outs are. The
fault atlas: a disk is only emptied while another member of the ISR still holds everything, so that a loss is always a bug.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from liftpy.config import CommitPolicy, ReplicationConfig, StreamConfig
from liftpy.replica.events import NoticeReceived
from liftpy.replica.phases import RoleName
from liftpy.testing.clock import MS, S
from liftpy.testing.network import Noise
from liftpy.wire._pb import cluster_pb2 as pb

if TYPE_CHECKING:
    from liftpy.testing.cluster import Cluster
    from liftpy.testing.sim_replica import SimReplica

KINDS = (
    "kill", "power", "empty", "pause", "cut", "cut-metadata", "cut-link", "slow-consumer", "reconnect", "metadata-down",
    "slow-disk", "flush-error", "full-disk", "hang-promotion", "retention", "wall-clock", "power-all", "transfer",
    "flip",
)  # fmt: skip
PUT_BACK, FORGE, DRAG = "put-back", "forged-notice", "dragging-disk"
"""Drawn apart from the other kinds, so that older seeds keep their plans."""


@dataclass(frozen=True, slots=True)
class Fault:
    """At ``at_ns`` after the start, ``kind`` happens to ``node`` (and ``other``), and ends ``for_ns`` later."""

    at_ns: int
    kind: str
    node: str
    other: str
    for_ns: int
    draw: float

    def __str__(self) -> str:
        return f"{self.at_ns / S:8.3f}s {self.kind:14} {self.node:3} {self.other:3} for {self.for_ns / S:.3f}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run is made of, but the seed of its noise."""

    seed: int
    node_count: int
    replication_factor: int
    min_isr: int
    policy: CommitPolicy
    config: ReplicationConfig
    stream_config: StreamConfig
    noise: Noise
    metadata_loss: float
    metadata_slow_ns: int
    flush_ns: int
    publish_interval_ns: int
    publisher_count: int
    faults: tuple[Fault, ...]
    max_payload_bytes: int = 1 << 20
    """Of the NATS server: in some plans so small that batches travel in pieces."""

    def calm(self) -> Plan:
        """Without noise on the network."""
        return replace(self, noise=Noise(), metadata_loss=0.0)


PROFILES: dict[str, tuple[str, ...]] = {
    "": KINDS,
    "elections": ("kill", "pause", "cut", "cut-link", "transfer", "hang-promotion", "cut-metadata", "slow-disk"),
    "disks": ("kill", "power", "empty", "flip", "slow-disk", "flush-error", "full-disk", "power-all", "retention", "cut"),
    "metadata": ("kill", "cut-metadata", "metadata-down", "pause", "transfer", "empty", "cut"),
    "lasting": ("kill", "cut", "cut", "cut-link", "cut-link", "cut-metadata", "pause", "slow-consumer", "empty"),
}
"""Which kinds of fault a plan draws from: some bugs need many of one sort. ``lasting`` is drawn by name only: few faults, on a
network that loses nothing, each for longer than a cluster may need to commit again while it lasts [L10]."""
_DRAG_SHARE, _DRAG_GAP_S = 0.25, 6.0
_YEAR_NS = 365 * 86_400 * S
_LASTING_GAP_S = 8.0
_LASTING_S = (15.0, 60.0)
_SHRINKS_S = 7.0


def _bounds(rng: random.Random) -> dict[str, Any]:
    """Of what leaders have uncommitted and hold back, in bytes: so small that they are met, or those that come."""
    if rng.random() < 0.5:
        return {}
    return {
        "unreplicated_bytes": rng.choice((4096, 16_384)),
        "node_unreplicated_bytes": rng.choice((8192, 65_536)),
        "ingest_queue_bytes": rng.choice((4096, 32_768)),
        "ingest_buffer_bytes": 65_536,
    }


def _drags(seed: int) -> random.Random | None:
    """Of a plan in which disks may be far slower than others for a while, and replicas make way for it; None: it is none."""
    rng = random.Random(f"{seed}/{DRAG}")
    return rng if rng.random() < _DRAG_SHARE else None


def _slow_flushes(rng: random.Random | None) -> dict[str, Any]:
    """The rule about slow disks, so quick that it is met; off in other plans, so that older seeds keep their histories."""
    if rng is None:
        return {"slow_flush_factor": 0.0}
    return {
        "slow_flush_s": rng.choice((0.03, 0.1)), "slow_flush_factor": rng.choice((2.0, 8.0)), "slow_flush_time_s": 0.6,
        "slow_flush_out_s": rng.choice((0.3, 1.0)), "leader_rest_s": rng.choice((0.5, 5.0)),
    }  # fmt: skip


def draw_plan(seed: int, profile: str | None = None, horizon_s: float = 600.0) -> Plan:
    """The plan of a seed; ``profile`` None: drawn too."""
    rng = random.Random(f"plan/{seed}")
    drawn = rng.choice(("", "", "elections", "disks", "metadata"))
    profile = drawn if profile is None else profile
    node_count = rng.choice((3, 3, 3, 4, 5))
    factor = rng.choice((3, 3, 3, min(node_count, 5), 2, 1)) if rng.random() < 0.6 else 3
    min_isr = rng.choice((1, 2, 2, 2, 3)) if factor >= 3 else rng.choice((1, min(2, factor)))
    nodes = [f"n{i}" for i in range(1, node_count + 1)]
    heartbeat_s, lease_s, session_s = rng.choice(((0.25, 1.5, 2.0), (0.1, 0.5, 0.7), (0.05, 0.2, 0.3)))
    config = ReplicationConfig(
        heartbeat_s=heartbeat_s,
        lease_s=lease_s,
        session_s=session_s,
        max_lag_time_s=rng.choice((0.6, 1.5, 5.0)),
        max_idle_wait_s=rng.choice((0.1, 0.2, 0.4)),
        max_leader_timeout_s=rng.choice((0.5, 2.0)),
        fetch_timeout_s=rng.choice((0.3, 1.0)),
        replication_max_bytes=rng.choice((4096, 16_384, 1 << 20)),
        candidate_timeout_s=rng.choice((0.3, 2.0)),
        hw_checkpoint_s=rng.choice((0.2, 1.0)),
        max_lag_records=rng.choice((0, 0, 0, 50)),
        probe_after=random.Random(f"{seed}/probe").choice((0.0, 0.02, 0.1, 0.3)),  # of its own: older seeds keep their plans
        quiet_rounds=random.Random(f"{seed}/quiet").choice((1, 1, 2, 10)),
        **_bounds(random.Random(f"{seed}/intake")),
        **_slow_flushes(_drags(seed)),
    )
    bad = rng.choice((0.0, 0.3, 1.0))
    noise = Noise(
        delay_ns=rng.choice((MS // 10, MS // 2, 3 * MS)), jitter_ns=rng.choice((MS // 10, MS, 10 * MS)),
        loss=bad * rng.choice((0.0, 0.01, 0.05)), duplicate=bad * rng.choice((0.0, 0.01, 0.1)),
        spike=bad * rng.choice((0.0, 0.01, 0.05)), spike_ns=rng.choice((50 * MS, 500 * MS, 3 * S)),
    )  # fmt: skip
    if profile == "lasting":
        bad, noise = 0.0, replace(noise, loss=0.0, duplicate=0.0, spike=0.0)
        config = replace(config, heartbeat_s=0.25, lease_s=1.5, session_s=2.0, max_idle_wait_s=0.4)  # few events a second
    return Plan(
        seed=seed,
        node_count=node_count,
        replication_factor=factor,
        min_isr=min_isr,
        policy=CommitPolicy.QUORUM if factor >= 3 and rng.random() < 0.25 else CommitPolicy.ISR,
        config=config,
        stream_config=StreamConfig(segment_bytes=rng.choice((4096, 16_384, 1 << 20))),
        noise=noise,
        metadata_loss=bad * rng.choice((0.0, 0.02, 0.2)),
        metadata_slow_ns=min(rng.choice((2 * MS, 20 * MS, 300 * MS)), round(session_s * S / 8)),
        flush_ns=rng.choice((MS // 5, 2 * MS, 20 * MS)),
        publish_interval_ns=500 * MS if profile == "lasting" else rng.choice((15 * MS, 60 * MS, 200 * MS)),
        publisher_count=1 if profile == "lasting" else rng.choice((1, 2)),
        max_payload_bytes=random.Random(f"{seed}/max_payload").choice((1 << 20,) * 5 + (148,)),
        faults=_draw_lasting(rng, nodes, horizon_s)
        if profile == "lasting"
        else tuple(
            sorted(
                (*_draw_faults(rng, nodes, profile, horizon_s), *_draw_apart(seed, nodes, profile, horizon_s)),
                key=lambda fault: fault.at_ns,
            )
        ),
    )


def _draw_faults(rng: random.Random, nodes: list[str], profile: str, horizon_s: float) -> tuple[Fault, ...]:
    kinds = [kind for kind in PROFILES[profile] if rng.random() < (0.6 if profile else 0.4)] or ["kill"]
    weights = [0.3 if kind in ("power-all", "metadata-down", "flush-error") else 1.0 for kind in kinds]
    mean_gap_s = rng.choice((0.15, 0.4, 1.0, 3.0))
    faults, at_s = [], 1.0
    while at_s < horizon_s:
        at_s += rng.expovariate(1 / mean_gap_s)
        node = rng.choice(nodes)
        other = rng.choice([n for n in nodes if n != node])
        for_s = rng.choice((0.03, 0.1, 0.4, 1.0, 2.5, 6.0)) * (0.5 + rng.random())
        kind = rng.choices(kinds, weights)[0]
        faults.append(Fault(int(at_s * S), kind, node, other, int(for_s * S), rng.random()))
    return tuple(faults)


def _draw_apart(seed: int, nodes: list[str], profile: str, horizon_s: float) -> list[Fault]:
    """A copy of a node's disk, then its return, and so on, in some of the plans that have faults of disks; forged notices; disks that
    are far slower than others for long."""
    drawn = []
    for kind, profiles, share in ((PUT_BACK, ("", "disks"), 0.4), (FORGE, tuple(PROFILES), 0.2)):
        rng = random.Random(f"{seed}/{kind}")
        if profile not in profiles or rng.random() >= share:
            continue
        mean_gap_s, at_s = rng.choice((1.0, 3.0)), 1.0
        while (at_s := at_s + rng.expovariate(1 / mean_gap_s)) < horizon_s:
            node, for_s = rng.choice(nodes), rng.choice((0.03, 0.4, 2.5))
            drawn.append(Fault(int(at_s * S), kind, node, node, int(for_s * S), rng.random()))
    drags = _drags(seed)
    at_s = 1.0 if drags is not None else horizon_s
    while drags is not None and (at_s := at_s + drags.expovariate(1 / _DRAG_GAP_S)) < horizon_s:
        node, for_s = drags.choice(nodes), drags.choice((1.0, 4.0, 12.0))
        drawn.append(Fault(int(at_s * S), DRAG, node, node, int(for_s * S), drags.random()))
    return drawn


def _draw_lasting(rng: random.Random, nodes: list[str], horizon_s: float) -> tuple[Fault, ...]:
    faults, at_s = [], 1.0
    while at_s < horizon_s:
        at_s += rng.expovariate(1 / _LASTING_GAP_S) + rng.choice((0.0, 0.0, 12.0))
        node = rng.choice(nodes)
        other = rng.choice([n for n in nodes if n != node])
        kind, for_s = rng.choice(PROFILES["lasting"]), rng.uniform(*_LASTING_S)
        if rng.random() < 0.5:  # one leaves the ISR first, and is there again when the next fault strikes
            faults.append(Fault(int(at_s * S), "cut", other, node, int(_SHRINKS_S * S), rng.random()))
            at_s += _SHRINKS_S + rng.choice((0.0, 0.01, 0.5))
        faults.append(Fault(int(at_s * S), kind, node, other, int(for_s * S), rng.random()))
    return tuple(faults)


class Nemesis:
    """Carries a schedule out on a cluster."""

    def __init__(self, cluster: Cluster, faults: tuple[Fault, ...]) -> None:
        self.cluster = cluster
        self.stopped = False
        self._next = 0
        self._faults = faults
        self._start_ns = cluster.clock.now_ns
        self._arm()

    def _arm(self) -> None:
        if self._next < len(self._faults):
            fault = self._faults[self._next]
            self._next += 1
            self.cluster.clock.at(self._start_ns + fault.at_ns, lambda: self._strike(fault))

    def _strike(self, fault: Fault) -> None:
        if not self.stopped:
            strike(self.cluster, fault)
            self._arm()


def strike(cluster: Cluster, fault: Fault) -> None:
    """One fault, and its end."""
    done = _STRIKES[fault.kind](cluster, fault)
    cluster.counters[f"fault {fault.kind}" if done else f"fault {fault.kind} (skipped)"] += 1
    if cluster.trace is not None and done:
        cluster.trace.note(f"*** {fault}")


def _down(cluster: Cluster, fault: Fault, power: bool, empty: bool = False) -> bool:
    node = cluster.nodes[fault.node]
    if not node.up or (empty and not _others_hold_all(cluster, fault.node)):
        return False
    cluster.crash(fault.node, power=power)
    if empty:
        node.disk.empty()
        cluster.checkers.disk_lost()
        node.lost_data = True
    cluster.clock.after(fault.for_ns, node.start)
    return True


def _others_hold_all(cluster: Cluster, node_id: str) -> bool:
    """Whether everything committed is on a disk that counts, without ``node_id``'s."""
    for stream in cluster.group.image.streams.values():
        for partition in stream.partitions:
            ghost = cluster.checkers.ghost(stream.key(partition.partition))
            good = [
                member
                for member in partition.isr
                if member != node_id
                and member not in partition.incomplete
                and not cluster.nodes[member].lost_data
                and member in ghost.shadows
                and ghost.holds_committed(ghost.shadows[member], ghost.shadows[member].durable_end_offset)
            ]
            if node_id in partition.replicas and not good:
                return False
    return True


def _kill(cluster: Cluster, fault: Fault) -> bool:
    return _down(cluster, fault, power=False)


def _power(cluster: Cluster, fault: Fault) -> bool:
    return _down(cluster, fault, power=True)


def _empty(cluster: Cluster, fault: Fault) -> bool:
    return _down(cluster, fault, power=True, empty=True)


def _put_back(cluster: Cluster, fault: Fault) -> bool:
    """The process ends, and either its disk is copied meanwhile, or what was copied before takes the disk's place."""
    node = cluster.nodes[fault.node]
    if not node.up or (node.copy is not None and not _others_hold_all(cluster, fault.node)):
        return False
    cluster.crash(fault.node, power=False)
    if node.copy is None:
        node.disk.clean_stop = fault.draw < 0.5
        node.copy = node.disk.copy()
    else:
        node.disk.put_back(node.copy)
        node.copy, node.lost_data = None, True
        cluster.checkers.disk_lost()
    cluster.clock.after(fault.for_ns, node.start)
    return True


def _flip(cluster: Cluster, fault: Fault) -> bool:
    """A crash, and one bit of what the node has on disk changes meanwhile."""
    node = cluster.nodes[fault.node]
    if not node.up or not _others_hold_all(cluster, fault.node):
        return False
    cluster.crash(fault.node, power=fault.draw < 0.5)
    flipped = [name for name in sorted(node.disk.folders) if node.disk.flip_bit(name)]
    node.lost_data = node.lost_data or bool(flipped)
    cluster.checkers.disk_lost()
    cluster.clock.after(fault.for_ns, node.start)
    return bool(flipped)


def _power_all(cluster: Cluster, fault: Fault) -> bool:
    for node_id in sorted(cluster.nodes):
        _down(cluster, replace(fault, node=node_id, for_ns=fault.for_ns // 3), power=True)
    return True


def _pause(cluster: Cluster, fault: Fault) -> bool:
    process = cluster.nodes[fault.node].process
    if process is None or process.paused:
        return False
    process.paused = True
    cluster.clock.after(fault.for_ns, lambda: process.resume(timers_first=fault.draw < 0.5))
    return True


def _toggle(cluster: Cluster, held: set[str] | set[tuple[str, str]], what: object, for_ns: int) -> bool:
    if what in held:
        return False
    held.add(what)  # type: ignore[arg-type]
    cluster.clock.after(for_ns, lambda: held.discard(what))
    return True


def _cut(cluster: Cluster, fault: Fault) -> bool:
    return _toggle(cluster, cluster.network.down, fault.node, fault.for_ns)


def _cut_metadata(cluster: Cluster, fault: Fault) -> bool:
    return _toggle(cluster, cluster.group.cut, fault.node, fault.for_ns)


def _cut_link(cluster: Cluster, fault: Fault) -> bool:
    if fault.draw < 0.5:
        _toggle(cluster, cluster.network.cuts, (fault.other, fault.node), fault.for_ns)
    return _toggle(cluster, cluster.network.cuts, (fault.node, fault.other), fault.for_ns)


def _slow_consumer(cluster: Cluster, fault: Fault) -> bool:
    return _toggle(cluster, cluster.network.slow, fault.node, fault.for_ns)


def _reconnect(cluster: Cluster, fault: Fault) -> bool:
    cluster.network.drop_in_flight(fault.node)
    return True


def _metadata_down(cluster: Cluster, fault: Fault) -> bool:
    cluster.group.set_available(False)
    cluster.clock.after(fault.for_ns, lambda: cluster.group.set_available(True))
    return True


def _slow_disk(cluster: Cluster, fault: Fault) -> bool:
    disk, usual = cluster.nodes[fault.node].disk, cluster.plan.flush_ns
    disk.flush_ns = int(usual * 50 + 100 * MS)
    cluster.clock.after(fault.for_ns, lambda: setattr(disk, "flush_ns", usual))
    return True


def _dragging_disk(cluster: Cluster, fault: Fault) -> bool:
    """Of one node, or, on a day that is slow for all, of all of them."""
    chosen = cluster.nodes.values() if fault.draw < 0.1 else (cluster.nodes[fault.node],)
    for disk in (node.disk for node in chosen):
        disk.flush_ns = int((0.2 + fault.draw) * S)
        cluster.clock.after(fault.for_ns, partial(setattr, disk, "flush_ns", cluster.plan.flush_ns))
    return True


def _flush_error(cluster: Cluster, fault: Fault) -> bool:
    node = cluster.nodes[fault.node]
    if not node.up:
        return False
    node.disk.fail_syncs = 1
    cluster.clock.after(fault.for_ns, lambda: cluster.restart_if_failed(fault.node))
    return True


def _full_disk(cluster: Cluster, fault: Fault) -> bool:
    disk = cluster.nodes[fault.node].disk
    disk.set_capacity(int(fault.draw * 300))

    def freed() -> None:
        disk.set_capacity(None)
        cluster.restart_if_failed(fault.node)

    cluster.clock.after(fault.for_ns, freed)
    return True


def _hang_promotion(cluster: Cluster, fault: Fault) -> bool:
    cluster.candidates_fail = True
    cluster.clock.after(fault.for_ns, lambda: setattr(cluster, "candidates_fail", False))
    return True


def _retention(cluster: Cluster, fault: Fault) -> bool:
    """A leader drops what has expired; so do the others, each by itself, but for one that is late."""
    process = cluster.nodes[fault.node].process
    if process is None or process.paused:
        return False
    done = False
    for replica in process.replicas.values():
        log = replica.log
        offset = log.log_start_offset + int((log.high_watermark + 1 - log.log_start_offset) * fault.draw)
        if replica.replica.role is RoleName.LEADER and offset > log.log_start_offset:
            replica.drop_prefix(offset)
            _expired(cluster, replica, offset, fault)
            done = True
    return done


def _expired(cluster: Cluster, leader: SimReplica, offset: int, fault: Fault) -> None:
    for node_id in sorted(set(cluster.nodes) - {fault.node, fault.other}):
        process = cluster.nodes[node_id].process
        replica = process.replicas.get(leader.key) if process is not None and not process.paused else None
        if replica is not None and replica.log.log_start_offset < min(offset, replica.log.high_watermark + 1):
            replica.drop_prefix(offset)


def _forged_notice(cluster: Cluster, fault: Fault) -> bool:
    """Somebody who may publish tells a node, in its leader's name, of records that nobody has, or of an expired log."""
    process = cluster.nodes[fault.node].process
    if process is None:
        return False
    for key, replica in sorted(process.replicas.items()):
        truth, log = cluster.group.partition(key.stream, key.partition), replica.log
        start, high = log.high_watermark + 1, log.log_end_offset + int(fault.draw * 100)
        notice = NoticeReceived(truth.leader, truth.leader_epoch, truth.epoch, 0, high, start)
        cluster.network.publish("anybody", f"notify.{fault.node}.{replica.subject}", notice)
    return bool(process.replicas)


def _wall_clock(cluster: Cluster, fault: Fault) -> bool:
    cluster.nodes[fault.node].wall_offset_ns = int((fault.draw - 0.5) * 7200 * S)
    years = fault.draw < 0.2  # the metadata leader's is one of them
    cluster.group.wall_offset_ns = 10 * _YEAR_NS if years else int((fault.draw - 0.5) * 7200 * S)
    return True


def _transfer(cluster: Cluster, fault: Fault) -> bool:
    if not cluster.group.available:
        return False
    for stream in cluster.group.image.streams.values():
        request = pb.ElectLeader(stream=stream.name, uid=stream.uid, partition=0, node=fault.node)
        cluster.group.apply(pb.ControlRequest(electLeader=request))
    return True


_STRIKES = {
    "kill": _kill, "power": _power, "empty": _empty, "pause": _pause, "cut": _cut, "cut-metadata": _cut_metadata,
    "cut-link": _cut_link, "slow-consumer": _slow_consumer, "reconnect": _reconnect, "metadata-down": _metadata_down,
    "slow-disk": _slow_disk, "flush-error": _flush_error, "full-disk": _full_disk, "hang-promotion": _hang_promotion,
    "retention": _retention, "wall-clock": _wall_clock, "power-all": _power_all, "transfer": _transfer, "flip": _flip,
    PUT_BACK: _put_back, FORGE: _forged_notice, DRAG: _dragging_disk,
}  # fmt: skip
