"""Limit of open files, and what it allows: one per partition, the ``OpenMaps`` of sealed segments, and a reserve.

A partition too many would end its node, and with it every stream that was well: so the node tells its budget of partitions when
it registers, and the metadata group places no more replicas there.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.disk.files import OpenMaps

RESERVE = 256
"""Number of file descriptors for connections, the metadata group, temporary files, threads and libraries."""
MOST_MAPS = 4096
_UNLIMITED = 1 << 20
_SPARE = 0.8
"""A partition that rolls has two segments open until the first one is flushed: a quarter of them may do so at once."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of file descriptors. ``limit``: descriptors. ``maps``: mapped segments. ``partitions``: replicas that the
    node can hold.
    """

    limit: int
    maps: int
    partitions: int


def budget_of(limit: int) -> Budget:
    """Return the number of partitions and maps for ``limit`` file descriptors."""
    maps = max(16, min(MOST_MAPS, limit // 4))
    return Budget(limit, maps, max(1, int((limit - RESERVE - maps) * _SPARE)))


def raise_limit() -> Budget:
    """Raise the soft limit to the hard one, and return the budget."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # a hard limit that is beyond the system's own: then what there was
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return budget_of(_UNLIMITED if soft == resource.RLIM_INFINITY else soft)


def open_count() -> int:
    """Return the number of open file descriptors, -1 if unknown."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return -1


def used(budget: Budget, maps: OpenMaps) -> dict[str, int]:
    """Return open files and limit for the status."""
    return {
        "limit": budget.limit,
        "open": open_count(),
        "partition_budget": budget.partitions,
        "maps": len(maps),
        "maps_bound": maps.bound,
        "maps_opened": maps.opened,
    }
