"""Profiles: which cluster, faults and features a history has. A seed of the profile ``swarm`` draws its own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Profile:
    """One kind of history. ``faults``: names in ``faults.py``. ``busy_s``: virtual seconds with faults.

    ``pause_s``: longest time between two faults, in virtual seconds.
    """

    name: str
    nodes: int = 3
    controllers: int = 3
    servers: int = 0
    """NATS servers; 0: drawn."""
    users: bool | None = None
    """Whether NATS has users with permissions; None: drawn."""
    busy_s: float = 20.0
    pause_s: float = 2.5
    faults: tuple[str, ...] = ()
    replication: Mapping[str, Any] = field(default_factory=dict)
    groups: bool = False
    workers: tuple[int, ...] = (1,)
    """Numbers of processes of a node, of which one is drawn for each node."""
    operations: bool = False
    """True if the cluster has more kinds of streams, and operators change them."""
    lazy_flush: bool = False
    """True if a stream of the operations acknowledges records before they are flushed."""
    actions: tuple[str, ...] = ()
    """Names of the operator's actions on these streams (``operations.py``). (): all."""
    backups: bool = False
    services: bool = False
    """True if a replicated service runs next to each node."""
    service_features: tuple[str, ...] = ()
    """Features that the service uses (``load/ledgers.py``). (): it only counts records."""
    strangers: bool = True
    """True if strangers send garbage, and requests whose reply subject is no inbox."""
    rejections: bool = True
    """True if clients publish what a leader must reject."""
    small_limits: bool = False
    """True if limits of memory, snapshots and checkpoints may be so small that a history reaches them."""
    changes_controllers: bool = False
    """True if the operator adds and removes controllers."""
    loses_node: bool = False
    """True if a node is lost for ever, and an operator replaces it."""
    floods: bool = True
    """True if many requests arrive at once in the quiet cluster (``attacks.py``)."""
    drills: bool = True
    """True if nodes stop, a flush is slow and a connection is lost after the faults, in the quiet cluster (``drills.py``)."""


ACTIONS = (
    "move", "transfer", "ask_page", "add_partition", "truncate", "purge", "alter", "set_node", "ask_events", "reload", "find",
    "read_as_jetstream", "limits", "remove_data", "change_log_level",
)  # fmt: skip
"""Names of the operator's actions (``load/operations.py``)."""

SERVICE_FEATURES = (
    "effects", "timers", "ticks", "routes", "bad_records", "versions", "service_limits", "purges", "lost_files", "replies",
)  # fmt: skip
"""Names of the features of a service."""

_NETWORK = ("cut", "partition", "one-way", "slow-network", "lose", "nats-restart", "route", "slow-consumer", "garbled")
_PROCESS = ("kill", "kill", "terminate", "pause", "power-cut", "reload")
_WORKERS = ("kill-one", "pause-one", "terminate")
_DISK = ("disk-error", "disk-slow", "disk-full", "disk-short", "power-cut")
_CLOCK = ("clock-drift", "clock-jump", "suspend")
ALL_FAULTS = tuple(dict.fromkeys((*_NETWORK, *_PROCESS, *_WORKERS, *_DISK, *_CLOCK, "bit-flip", "empty")))
"""Names of all faults, once each."""

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("one", nodes=1, controllers=1, servers=1, busy_s=5.0),
        Profile("calm"),
        Profile("kills", faults=_PROCESS),
        Profile("network", faults=_NETWORK),
        Profile("workers", workers=(2,), faults=(*_WORKERS, "kill", "power-cut", "cut", "reload")),
        Profile(
            "operations",
            nodes=4,
            operations=True,
            backups=True,
            small_limits=True,
            faults=("kill", "cut", "pause", "terminate"),
        ),
        Profile("disk", faults=(*_DISK, "kill")),
        Profile("clocks", faults=(*_CLOCK, "kill")),
        Profile("groups", faults=("kill", "cut", "pause"), groups=True),
        Profile("services", faults=("kill", "cut", "pause"), services=True),
        Profile("ledger", faults=("kill", "cut", "pause", "power-cut"), services=True, service_features=SERVICE_FEATURES),
        Profile("losses", nodes=4, faults=("kill", "cut", "pause", "power-cut"), groups=True, services=True, loses_node=True),
        Profile("controllers", nodes=5, faults=("kill", "cut", "pause", "power-cut"), changes_controllers=True),
        Profile(
            "all",
            nodes=4,
            workers=(1, 1, 2),
            faults=(*_NETWORK, *_PROCESS, *_WORKERS, *_DISK, *_CLOCK, "bit-flip", "empty"),
            groups=True,
            operations=True,
            backups=True,
            services=True,
            small_limits=True,
            changes_controllers=True,
        ),
    )
}


# Swarm testing: each seed draws its cluster, a few kinds of faults, and a part of the features. A history with few of them is short,
# and reaches states that a history with all of them rarely reaches, because one kind of fault hides another. All occur across seeds.

SWARM = "swarm"
_CLUSTERS = ((1, 1), (2, 1), (3, 3), (3, 3), (3, 3), (3, 1), (4, 3), (5, 5))
"""(nodes, controllers)."""
_LOSSES = frozenset(("bit-flip", "empty"))
"""Faults that damage the data of one node. The others must have all of it, also the metadata."""
_NODES_FOR_A_LOSS = 4
"""Smallest number of nodes of which one may be lost: each partition has replicas on three others."""
_LOSS_SHARE = 0.3
_LEDGER_SHARE = 0.7
"""Part of the services that use more features."""


def draw_profile(seed: int) -> Profile:
    """Return the profile of a seed."""
    draw = random.Random(f"{SWARM} {seed}")
    nodes, controllers = draw.choice(_CLUSTERS)
    kinds = [fault for fault in ALL_FAULTS if controllers > 1 or fault not in _LOSSES]

    def has(share: float = 0.5) -> bool:
        return draw.random() < share

    operations = has()
    profile = Profile(
        SWARM,
        nodes=nodes,
        controllers=controllers,
        busy_s=draw.choice((2.0, 4.0, 6.0)),
        pause_s=draw.choice((0.3, 1.0, 2.5)),
        faults=tuple(draw.sample(kinds, draw.choice((1, 2, 3, 5)))),
        groups=has(0.4),
        workers=draw.choice(((1,), (1,), (1, 2), (2,))),
        operations=operations,
        actions=tuple(draw.sample(ACTIONS, draw.choice((1, 3, 6)))) if operations and has(0.7) else (),
        backups=has(0.25),
        services=has(0.25),
        strangers=has(),
        rejections=has(),
        small_limits=has(),
        changes_controllers=nodes > 3 and has(),
        drills=has(0.1),
        floods=has(0.2),
        lazy_flush=has(0.3) and operations,
    )
    return _with_service_features(_with_loss(profile, seed), seed)


def _with_service_features(profile: Profile, seed: int) -> Profile:
    """Return the profile, perhaps with features of its service. The draws of other features do not depend on them."""
    draw = random.Random(f"{SWARM} service {seed}")
    if not profile.services or draw.random() >= _LEDGER_SHARE:
        return profile
    return replace(profile, service_features=tuple(draw.sample(SERVICE_FEATURES, draw.choice((2, 4, 6)))))


def _with_loss(profile: Profile, seed: int) -> Profile:
    """Return the profile, perhaps with the loss of a node. The draws of other features do not depend on it."""
    draw = random.Random(f"{SWARM} loss {seed}")
    if profile.nodes < _NODES_FOR_A_LOSS or profile.lazy_flush or draw.random() >= _LOSS_SHARE:
        return profile
    return replace(profile, loses_node=True, controllers=draw.choice((3, profile.controllers)))


FEATURES = (
    "groups", "operations", "backups", "services", "strangers", "rejections", "small_limits", "changes_controllers", "loses_node",
    "drills", "floods", "lazy_flush", "service_features",
)  # fmt: skip
"""Names of the features that a seed of the profile ``swarm`` may have."""


def features(profile: Profile) -> list[str]:
    """Return what the profile of a seed has, for the report."""
    return [
        f"{profile.nodes} nodes, {profile.controllers} controllers",
        *(name.replace("_", " ") for name in FEATURES if getattr(profile, name)),
        *(f"service: {feature}" for feature in profile.service_features),
        *(f"action: {action}" for action in profile.actions),
        *(["workers"] if 2 in profile.workers else []),
    ]
