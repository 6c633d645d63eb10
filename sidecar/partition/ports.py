"""The disk, the clock and the other nodes as the partitions of a node see them.

A node has a data directory (``sidecar/disk``). A node of an in-memory cluster has objects (``liftpy.testing.memory``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.storage import Storage


class PartitionFolders(Protocol):
    """The logs of a data directory. Its methods may run in any thread, and raise StorageError."""

    def partition_path(self, key: PartitionKey) -> Path:
        """Return the directory of the log of ``key``."""

    def partition_storage(self, key: PartitionKey) -> Storage:
        """Return the storage of the log of ``key``. It is created if needed."""

    def set_mark(self, name: str) -> None:
        """Store the mark ``name`` about lost records durably."""

    def mark_log(self, name: str) -> None:
        """Note durably that this node has created the log ``name``, ``<stream>-<uid>/<partition>``."""

    def delete_partition(self, key: PartitionKey) -> None:
        """Delete the log of ``key``."""


class WallClock(Protocol):
    """The wall clock of a node, in nanoseconds since 1970."""

    def start(self) -> None:
        """Start to compare the clock with those of other nodes."""

    def time_of_age_ns(self) -> int:
        """Return the time from which the ages of records are computed. 0: the clock is not trusted."""

    def stamp_ns(self) -> int:
        """Return the timestamp for records that this node stores as leader."""

    async def close(self) -> None:
        """End the comparison."""


class PresenceProbes(Protocol):
    """Checks whether other nodes are connected."""

    def ask(self, node_id: str, absent: Callable[[], None]) -> None:
        """Check in the background whether the node ``node_id`` is connected. If it is certainly not, call ``absent``."""
