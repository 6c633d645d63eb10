"""Profiles: which faults a history has, and how large its cluster is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    actions: tuple[str, ...] = ()
    """Names of the operator's actions on these streams (``operations.py``). (): all."""
    backups: bool = False
    services: bool = False
    """True if a replicated service runs next to each node."""
    strangers: bool = True
    """True if strangers send garbage, and requests whose reply subject is no inbox."""
    rejections: bool = True
    """True if clients publish what a leader must reject."""
    small_limits: bool = False
    """True if limits of memory, snapshots and checkpoints may be so small that a history reaches them."""
    changes_controllers: bool = False
    """True if the operator adds and removes controllers."""
    floods: bool = True
    """True if many requests arrive at once in the quiet cluster (``attacks.py``)."""
    drills: bool = True
    """True if nodes stop, a flush is slow and a connection is lost after the faults, in the quiet cluster (``drills.py``)."""


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
