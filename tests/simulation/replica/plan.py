"""Plan: everything that a run is made of, drawn from the seed before it, so that it can be printed, replayed and made shorter.

Swarm testing: every seed draws which kinds of fault it has at all, how often, and how bad its network, disks and time-outs are. Each
kind of fault, and each property of the cluster, draws from a generator of its own (the seed and its name): one that is added, or taken
out, leaves all others what they were, in every seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from liftpy.config import CommitPolicy, ReplicationConfig, StreamConfig
from tests.simulation.replica.clock import MS, S
from tests.simulation.replica.network import Noise

KINDS = (
    "kill", "power", "empty", "pause", "cut", "cut-metadata", "cut-link", "slow-consumer", "reconnect", "metadata-down",
    "slow-disk", "flush-error", "full-disk", "hang-promotion", "retention", "wall-clock", "power-all", "transfer",
    "flip", "kill-power", "empty-last", "flip-last", "flip-newest", "flip-running", "suspend",
    "cut-connection",
)  # fmt: skip
PUT_BACK, FORGE, DRAG = "put-back", "forged-notice", "dragging-disk"
OTHER_LOGS, TWIN, LATE, HALF_OPEN = "other-logs", "twin", "late-answers", "half-open"
SESSION_ENDS, HW_STALLS, CUT_PUBLISHES, TWIN_DISK = "session-ends", "hw-stalls", "cut-publishes", "twin-disk"
TRUNCATE, PURGE, PAUSE_STREAM, BEHIND = "truncate", "purge", "pause-stream", "behind"
SLOW_UPDATES = "slow-updates"
"""Drawn at a pace of their own."""
DRAIN, WEIGHT, FACTOR = "drain", "weight", "factor"
TIMES = "times"
"""The cluster's session and lease become others, and a leader meets the end of its session; drawn by the profile ``times`` alone."""
MOVE = "move"
"""Replicas are wanted elsewhere; drawn by the profile ``moves`` alone."""
RARITY = {"power-all": 3.0, "metadata-down": 3.0, "flush-error": 3.0, "empty-last": 8.0, "flip-last": 8.0}
"""Factor by which these faults are rarer than others. More of them would hide all else."""
_KINDS_OF_A_PLAN, _KINDS_OF_A_PROFILE = 8.0, 5.0
"""Approximate number of kinds of faults in a plan, of all kinds or of a profile's. The plan's faults are divided among them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """At ``at_ns`` after the start, ``kind`` happens to ``node`` (and ``other``). It ends ``for_ns`` later."""

    at_ns: int
    kind: str
    node: str
    other: str
    for_ns: int
    draw: float

    def __str__(self) -> str:
        return f"{self.at_ns / S:8.3f}s {self.kind:14} {self.node:3} {self.other:3} for {self.for_ns / S:.3f}s"


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """An additional stream: number of partitions and its own settings."""

    name: str
    partitions: int
    compaction: bool = False
    max_per_subject: int = 0
    deletes: bool = False
    """True if some messages are delete markers. They and message ids are kept for a short time."""
    delete_retention_s: float = 0.0
    dedup_window_s: float = 0.0
    retention_age_s: float = 0.0
    retention_bytes: int = 0


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
    """Maximum payload of the NATS server. In some plans it is so small that batches are sent in pieces."""
    partitions: int = 1
    """Number of partitions of the first stream."""
    streams: tuple[StreamPlan, ...] = ()
    """Plans of the other streams."""
    clock_ppm: tuple[tuple[str, int], ...] = ()
    """(node, by how many millionths its clock runs faster than true time)."""
    repeats: bool = False
    """True if a client repeats each message with its message id until it is acked. No profile draws it."""
    contends: bool = False
    """Several expect the last sequences of the same subjects; drawn by no profile."""
    produces: bool = False
    """A producer for each partition, which is killed and comes back; drawn by no profile."""
    derives: bool = False
    """True if a client makes records from another stream and reads them again. No profile draws it."""
    times: bool = False
    """The metadata group holds session and lease, and the settings of each node say something else."""
    moves: bool = False
    """True if replicas move: learners are named for the targets."""
    housekeeping_ns: int = 0
    """Interval of retention and compaction on each node. 0: never."""

    def has_deletes(self, stream: str) -> bool:
        """Return whether some messages of a stream are delete markers."""
        return any(other.name == stream and other.deletes for other in self.streams)

    def own_config(self, host: str) -> ReplicationConfig:
        """Return the settings of a machine."""
        return own_times(self.config, f"{self.seed}/{host}") if self.times else self.config

    def calm(self) -> Plan:
        """Return the plan without network noise."""
        return replace(self, noise=Noise(), metadata_loss=0.0)


OWN_TIMES = ((0.3, 0.2), (2.0, 0.5), (9.0, 8.0), (60.0, 50.0))
"""(session, lease), in s."""


def own_times(config: ReplicationConfig, name: str) -> ReplicationConfig:
    """Return settings with other times for a node that must not use them."""
    session_s, lease_s = random.Random(f"{name}/own times").choice(OWN_TIMES)
    return replace(
        config, session_s=session_s, lease_s=lease_s, heartbeat_interval_s=min(config.heartbeat_interval_s, lease_s / 2)
    )


PROFILES: dict[str, tuple[str, ...]] = {
    "": KINDS,
    "elections": (
        "kill", "pause", "cut", "cut-link", "transfer", "hang-promotion", "cut-metadata", "slow-disk", "suspend", "cut-connection",
    ),
    "disks": (
        "kill", "power", "empty", "flip", "slow-disk", "flush-error", "full-disk", "power-all", "retention", "cut",
        "kill-power", "empty-last", "flip-last", "flip-newest", "flip-running",
    ),
    "metadata": ("kill", "cut-metadata", "metadata-down", "pause", "transfer", "empty", "cut", "suspend"),
    "folders": ("kill", "power", "pause", "cut", "cut-metadata", "metadata-down", "empty", "transfer", "suspend"),
    "moves": (
        "kill", "power", "empty", "pause", "cut", "cut-link", "cut-metadata", "metadata-down", "transfer", "suspend", "hang-promotion",
        "slow-disk", "retention", "kill-power", "power-all",
    ),
    "drains": (DRAIN, DRAIN, WEIGHT, FACTOR, "kill", "power", "pause", "cut", "cut-metadata", "transfer", "suspend", "metadata-down"),
    "lasting": (
        "kill", "cut", "cut", "cut-link", "cut-link", "cut-metadata", "pause", "slow-consumer", "empty", "suspend",
        "cut-connection", "cut-connection",
    ),
    "lasting-many": (
        "kill", "cut", "cut-link", "cut-metadata", "pause", "slow-consumer", "empty", "suspend", "cut-connection", HALF_OPEN, HALF_OPEN,
        LATE,
    ),
    "lasting-leaders": (
        CUT_PUBLISHES, CUT_PUBLISHES, CUT_PUBLISHES, CUT_PUBLISHES, DRAG, DRAG, DRAG, "kill", "cut-link", "cut-metadata",
        "metadata-down", "pause", "transfer",
    ),
    "edges": ("kill", "cut", "pause", "transfer", "cut-metadata", "wall-clock"),
    "times": ("kill", "pause", "suspend", "cut", "cut-metadata", "metadata-down", "transfer"),
}  # fmt: skip
"""Which kinds of fault a plan draws from: some bugs need many of one sort. ``lasting`` is drawn by name only: few faults, on a
network that loses nothing, each for longer than a cluster may need to commit again while it lasts [L10]. ``lasting-many``: the
same with several streams of several partitions. ``lasting-leaders``: the same, of faults that strike who leads, on whose disk or
connection of publishes nothing but its own judgement tells the others; disks may drag. ``edges``, by name too: clocks never run alike,
streams expire by age and by bytes, and leaders are struck at the end of a session, and while HW stands still. ``moves``
and ``drains``, by name too: replicas move, as an operator names them, or as the planner does for nodes that are drained, or gone for
longer than the grace, or for another factor. ``times``, by name too: session and lease are the image's and change, while each node's
own settings say something else."""
_MANY, _LEADERS, _EDGES = "lasting-many", "lasting-leaders", "edges"
_MOVES, _DRAINS, _TIMES = "moves", "drains", "times"
_MOVE_GAPS_S = (0.3, 1.0, 4.0)
_SOMETIMES: dict[str, dict[str, float]] = {
    OTHER_LOGS: {"": 0.12, "disks": 0.12, "folders": 0.6},
    TWIN: {"": 0.12, "disks": 0.12, "elections": 0.12, "folders": 0.8},
    LATE: {"": 0.12, "elections": 0.25, "metadata": 0.25},
    HALF_OPEN: {"": 0.12, "elections": 0.12},
    TWIN_DISK: {"folders": 0.7},
    SESSION_ENDS: {"": 0.18, _EDGES: 1.0},
    TIMES: {_TIMES: 1.0},
    HW_STALLS: {"": 0.12, _EDGES: 1.0},
    TRUNCATE: {"": 0.12, "disks": 0.25, "moves": 0.25, _EDGES: 0.5},
    PURGE: {"": 0.15, "disks": 0.3, "moves": 0.3, _EDGES: 0.5},
    PAUSE_STREAM: {"": 0.12, "elections": 0.25, "metadata": 0.25, "moves": 0.25, _EDGES: 0.5},
    BEHIND: {"": 0.12, "elections": 0.25, "moves": 0.25, _EDGES: 0.5},
    SLOW_UPDATES: {"": 0.12, "elections": 0.4, "metadata": 0.25, "moves": 0.25},
}
"""Kind -> profile -> share of its plans that have it."""
_DRAG_SHARE, _DRAG_GAP_S = 0.25, 6.0
_LASTING_GAP_S = 8.0
_LASTING_S = (15.0, 60.0)
_SHRINKS_S = 7.0


def _bounds(rng: random.Random) -> dict[str, Any]:
    """Return limits of uncommitted and delayed bytes that are small enough to be reached."""
    if rng.random() < 0.5:
        return {}
    return {
        "unreplicated_bytes": rng.choice((4096, 16_384)),
        "node_unreplicated_bytes": rng.choice((8192, 65_536)),
        "ingest_queue_bytes": rng.choice((4096, 32_768)),
        "ingest_buffer_bytes": 65_536,
    }


def _drags(seed: int) -> random.Random | None:
    """Return random numbers of a plan with slow disks, None for other plans."""
    rng = random.Random(f"{seed}/{DRAG}")
    return rng if rng.random() < _DRAG_SHARE else None


def _slow_flushes(rng: random.Random | None) -> dict[str, Any]:
    """Return the rule about slow disks, so quick that it is met; off in other plans, so that older seeds keep their histories."""
    if rng is None:
        return {"slow_flush_factor": 0.0}
    return {
        "slow_flush_s": rng.choice((0.03, 0.1)), "slow_flush_factor": rng.choice((2.0, 8.0)), "slow_flush_time_s": 0.6,
        "slow_flush_isr_backoff_s": rng.choice((0.3, 1.0)), "min_leadership_s": rng.choice((0.5, 5.0)),
    }  # fmt: skip


def draw_plan(seed: int, profile: str | None = None, horizon_s: float = 600.0) -> Plan:
    """Return the plan of a seed; ``profile`` None: drawn too."""

    def drawn(name: str) -> random.Random:
        return random.Random(f"{seed}/{name}")

    if profile is None:
        profile = drawn("profile").choice(("", "", "elections", "disks", "metadata"))
    rng = drawn("shape")
    node_count = rng.choice((3, 3, 3, 4, 5))
    factor = rng.choice((3, 3, 3, min(node_count, 5), 2, 1)) if rng.random() < 0.6 else 3
    min_isr = rng.choice((1, 2, 2, 2, 3)) if factor >= 3 else rng.choice((1, min(2, factor)))
    by_quorum = factor >= 3 and rng.random() < 0.25
    nodes = [f"n{i}" for i in range(1, node_count + 1)]
    config = _draw_config(seed)
    rng, bad = drawn("noise"), drawn("bad").choice((0.0, 0.3, 1.0))
    noise = Noise(
        delay_ns=rng.choice((MS // 10, MS // 2, 3 * MS)), jitter_ns=rng.choice((MS // 10, MS, 10 * MS)),
        loss=bad * rng.choice((0.0, 0.01, 0.05)), duplicate=bad * rng.choice((0.0, 0.01, 0.1)),
        spike=bad * rng.choice((0.0, 0.01, 0.05)), spike_ns=rng.choice((50 * MS, 500 * MS, 3 * S)),
    )  # fmt: skip
    lasting, many, moving = profile in ("lasting", _MANY, _LEADERS), profile == _MANY, profile == _MOVES
    if lasting:
        bad, noise = 0.0, replace(noise, loss=0.0, duplicate=0.0, spike=0.0)
        config = replace(
            config, heartbeat_interval_s=0.25, lease_s=1.5, session_s=2.0, max_idle_wait_s=0.4
        )  # few events a second
    if profile == _DRAINS:
        rng = drawn("drains")
        node_count, factor, min_isr, by_quorum = rng.choice((4, 5)), rng.choice((2, 3)), rng.choice((1, 2)), False
        nodes = [f"n{i}" for i in range(1, node_count + 1)]
        config = replace(config, replacement_grace_s=rng.choice((1.0, 4.0, 300.0)), max_copies=rng.choice((1, 64)))
    if moving:
        node_count, factor, min_isr, by_quorum = _draw_moving_shape(seed)
        nodes = [f"n{i}" for i in range(1, node_count + 1)]
        config = replace(config, copy_bytes_per_s=drawn("copy").choice((0, 2000, 20_000)))
    if many:  # so that a fault takes the majority of some partitions, and leaves that of others whole, on the same nodes
        node_count, factor, by_quorum, min_isr = 5, 3, False, drawn("many").choice((2, 3))
        nodes, config = [f"n{i}" for i in range(1, 6)], replace(config, **_LITTLE)
    if profile == _LEADERS:
        config = replace(config, **_slow_flushes(drawn("slow flushes")))
    if profile == _EDGES:  # whole segments must fit above HW, and HW stand still for long
        config = replace(config, **_NO_BOUNDS, max_lag_time_s=drawn("lag").choice((1.5, 5.0)))
    rng = drawn("metadata")
    return Plan(
        seed=seed,
        node_count=node_count,
        replication_factor=factor,
        min_isr=min_isr,
        policy=CommitPolicy.QUORUM if by_quorum else CommitPolicy.ISR,
        config=config,
        stream_config=StreamConfig(segment_bytes=drawn("segments").choice((4096, 16_384, 1 << 20))),
        noise=noise,
        metadata_loss=bad * rng.choice((0.0, 0.02, 0.2)),
        metadata_slow_ns=min(rng.choice((2 * MS, 20 * MS, 300 * MS)), round(config.session_s * S / 8)),
        flush_ns=drawn("flush").choice((MS // 5, 2 * MS, 20 * MS)),
        publish_interval_ns=(60 if many else 500) * MS if lasting else drawn("interval").choice((15 * MS, 60 * MS, 200 * MS)),
        publisher_count=1 if lasting else drawn("publishers").choice((1, 2)),
        max_payload_bytes=drawn("max_payload").choice((1 << 20,) * 5 + (148,)),
        partitions=3 if many else 1 if lasting else drawn("partitions").choice((1, 1, 1, 2, 3)),
        streams=_with_deletes(
            seed, _STREAMS_OF[profile] if profile in _STREAMS_OF else () if lasting else _draw_streams(drawn("streams"))
        ),
        clock_ppm=_draw_clocks(drawn("clocks"), nodes, 1.0 if profile == _EDGES else _CLOCKS_SHARE),
        moves=moving,
        times=profile == _TIMES,
        housekeeping_ns=drawn("housekeeping").choice((500 * MS, 2 * S)),
        faults=_draw_lasting(seed, nodes, profile, horizon_s) if lasting else _draw_schedule(seed, nodes, profile, horizon_s),
    )


_LITTLE: dict[str, Any] = {"unreplicated_bytes": 512, "node_unreplicated_bytes": 512, "max_lag_time_s": 5.0}
_NO_BOUNDS: dict[str, Any] = {"unreplicated_bytes": 1 << 24, "node_unreplicated_bytes": 1 << 26}
_CLOCKS_SHARE = 0.3
_DELETES_SHARE = 0.7
_STREAMS_OF = {
    _MANY: (StreamPlan("accounts", 1, compaction=True), StreamPlan("clicks", 1, retention_age_s=4.0)),
    _EDGES: (StreamPlan("clicks", 1, retention_age_s=2.0), StreamPlan("latest", 1, retention_bytes=6000)),
}
"""Streams of the profiles that do not draw them."""


def _draw_moving_shape(seed: int) -> tuple[int, int, int, bool]:
    """Return nodes, factor, ``min_isr`` and commit by quorum, for plans with moves."""
    rng = random.Random(f"{seed}/moving shape")
    node_count = rng.choice((4, 4, 5, 6))
    return node_count, rng.choice((1, 2, 3, 3, 3)), rng.choice((1, 2, 2, 3)), rng.random() < 0.4


def _draw_clocks(rng: random.Random, nodes: list[str], share: float) -> tuple[tuple[str, int], ...]:
    """Right but in ``share`` of the plans; there far worse than those of any machine: a rule that needs equal clocks is seen to."""
    return tuple((node, rng.choice((-50_000, 0, 50_000))) for node in nodes) if rng.random() < share else ()


def _draw_streams(rng: random.Random) -> tuple[StreamPlan, ...]:
    streams = []
    if rng.random() < 0.3:
        streams.append(StreamPlan("accounts", 1, compaction=True))
    if rng.random() < 0.25:
        streams.append(StreamPlan("clicks", rng.choice((1, 2)), retention_age_s=rng.choice((1.0, 4.0))))
    if rng.random() < 0.2:
        streams.append(StreamPlan("states", 1, max_per_subject=rng.choice((1, 5, 40))))
    return tuple(streams)


def _with_deletes(seed: int, streams: tuple[StreamPlan, ...]) -> tuple[StreamPlan, ...]:
    """Return the compacted streams, in most plans with tombstones."""
    rng = random.Random(f"{seed}/deletes")
    if rng.random() >= _DELETES_SHARE:
        return streams
    return tuple(
        replace(
            stream, deletes=True, max_per_subject=rng.choice((0, 0, 25)), delete_retention_s=rng.choice((0.5, 2.0, 8.0)),
            dedup_window_s=rng.choice((0.5, 2.0, 8.0)),
        )
        if stream.compaction
        else stream
        for stream in streams
    )  # fmt: skip


def _draw_config(seed: int) -> ReplicationConfig:
    rng = random.Random(f"{seed}/config")
    heartbeat_interval_s, lease_s, session_s = rng.choice(((0.25, 1.5, 2.0), (0.1, 0.5, 0.7), (0.05, 0.2, 0.3)))
    return ReplicationConfig(
        heartbeat_interval_s=heartbeat_interval_s,
        lease_s=lease_s,
        session_s=session_s,
        max_lag_time_s=rng.choice((0.6, 1.5, 5.0)),
        max_idle_wait_s=rng.choice((0.1, 0.2, 0.4)),
        max_leader_timeout_s=rng.choice((0.5, 2.0)),
        fetch_timeout_s=rng.choice((0.3, 1.0)),
        replication_max_bytes=rng.choice((4096, 16_384, 1 << 20)),
        candidate_timeout_s=rng.choice((0.3, 2.0)),
        hw_checkpoint_interval_s=rng.choice((0.2, 1.0)),
        max_lag_records=rng.choice((0, 0, 0, 50)),
        follower_ping_delay_s=random.Random(f"{seed}/probe").choice((0.0, 0.02, 0.1, 0.3)),
        idle_polls_before_quiet=random.Random(f"{seed}/quiet").choice((1, 1, 2, 10)),
        **_bounds(random.Random(f"{seed}/intake")),
        **_slow_flushes(_drags(seed)),
    )


def _draw_schedule(seed: int, nodes: list[str], profile: str, horizon_s: float) -> tuple[Fault, ...]:
    gap_s = random.Random(f"{seed}/gap").choice((0.15, 0.4, 1.0, 3.0)) * (_KINDS_OF_A_PROFILE if profile else _KINDS_OF_A_PLAN)
    faults = _draw_apart(seed, nodes, profile, horizon_s)
    for kind in dict.fromkeys(PROFILES[profile]):
        rng = random.Random(f"{seed}/fault {kind}")
        if rng.random() < (0.6 if profile else 0.4):
            faults += _draw_kind(rng, kind, nodes, gap_s * RARITY.get(kind, 1.0), horizon_s)
    return tuple(sorted(faults, key=lambda fault: (fault.at_ns, fault.kind)))


def _draw_kind(rng: random.Random, kind: str, nodes: list[str], mean_gap_s: float, horizon_s: float) -> list[Fault]:
    faults, at_s = [], 1.0
    while (at_s := at_s + rng.expovariate(1 / mean_gap_s)) < horizon_s:
        node = rng.choice(nodes)
        other = rng.choice([n for n in nodes if n != node])
        for_s = rng.choice((0.03, 0.1, 0.4, 1.0, 2.5, 6.0)) * (0.5 + rng.random())
        faults.append(Fault(int(at_s * S), kind, node, other, int(for_s * S), rng.random()))
    return faults


def _draw_apart(seed: int, nodes: list[str], profile: str, horizon_s: float) -> list[Fault]:
    """A copy of a node's disk, then its return, and so on, in some of the plans that have faults of disks; forged notices; disks that
    are far slower than others for long."""
    drawn = []
    for kind, profiles, share in ((PUT_BACK, ("", "disks", "folders"), 0.4), (FORGE, tuple(PROFILES), 0.2)):
        rng = random.Random(f"{seed}/{kind}")
        if profile not in profiles or rng.random() >= share:
            continue
        mean_gap_s, at_s = rng.choice((1.0, 3.0)), 1.0
        while (at_s := at_s + rng.expovariate(1 / mean_gap_s)) < horizon_s:
            node, for_s = rng.choice(nodes), rng.choice((0.03, 0.4, 2.5))
            drawn.append(Fault(int(at_s * S), kind, node, node, int(for_s * S), rng.random()))
    for kind, shares in _SOMETIMES.items():
        rng = random.Random(f"{seed}/{kind}")
        if rng.random() < shares.get(profile, 0.0):
            drawn += _draw_kind(rng, kind, nodes, rng.choice((2.0, 6.0)), horizon_s)
    if profile == _MOVES:
        rng = random.Random(f"{seed}/{MOVE}")
        drawn += _draw_kind(rng, MOVE, nodes, rng.choice(_MOVE_GAPS_S), horizon_s)
    drags = _drags(seed)
    at_s = 1.0 if drags is not None else horizon_s
    while drags is not None and (at_s := at_s + drags.expovariate(1 / _DRAG_GAP_S)) < horizon_s:
        node, for_s = drags.choice(nodes), drags.choice((1.0, 4.0, 12.0))
        drawn.append(Fault(int(at_s * S), DRAG, node, node, int(for_s * S), drags.random()))
    return drawn


def _draw_lasting(seed: int, nodes: list[str], profile: str, horizon_s: float) -> tuple[Fault, ...]:
    """Return lasting faults, one after the other, drawn independently for each kind."""
    rng, kinds = random.Random(f"{seed}/lasting"), dict.fromkeys(PROFILES[profile])
    turns = {kind: random.Random(f"{seed}/lasting {kind}") for kind in kinds}
    faults: list[Fault] = []
    at_s = 1.0
    while at_s < horizon_s:
        gap_s = rng.expovariate(1 / _LASTING_GAP_S) + rng.choice((0.0, 0.0, 12.0))
        if profile == _MANY:  # few, so that the world stands still for as long as it is watched
            gap_s = gap_s * 3 if faults else 0.0
        at_s += gap_s
        node = rng.choice(nodes)
        other = rng.choice([n for n in nodes if n != node])
        drawn = {kind: turns[kind].random() ** (1 / PROFILES[profile].count(kind)) for kind in kinds}
        kind, for_s = max(drawn, key=lambda kind: drawn[kind]), rng.uniform(*_LASTING_S)
        if rng.random() < 0.5:  # one leaves the ISR first, and is there again when the next fault strikes
            faults.append(Fault(int(at_s * S), "cut", other, node, int(_SHRINKS_S * S), rng.random()))
            at_s += _SHRINKS_S + rng.choice((0.0, 0.01, 0.5))
        faults.append(Fault(int(at_s * S), kind, node, other, int(for_s * S), rng.random()))
    return tuple(faults)
