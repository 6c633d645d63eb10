"""Memory for publishes in progress and for readers in this process: the sums and their limits."""

from __future__ import annotations

from liftpy.core.publish.memory_budget import (
    READERS_SHARE,
    STANDBY_SHARE,
    WAITING_PUBLISHER_BYTES,
    HeldByNode,
    MemoryBudget,
    limit_of,
)
from liftpy.core.publish.standby import NodeHeard
from liftpy.core.replication.inflight_limits import NodeIntake
from liftpy.core.replication.reads import MAX_WAITING_BYTES, ReadBudget
from sidecar.runtime import clock
from sidecar.runtime.memory import memory_bytes
from sidecar.runtime.settings import NodeSettings
from sidecar.transport.ingest_connection import Inflow


class PublishMemory:
    """Memory limits of this process. ``settings``: its settings. ``processes``: number of processes of the node."""

    def __init__(self, settings: NodeSettings, processes: int) -> None:
        limit_bytes = limit_of(settings.memory_limit_bytes, memory_bytes() // processes)
        self.intake = NodeIntake()
        self.room = MemoryBudget(limit_bytes, settings.replication.max_queue_delay_s)
        self.reads = ReadBudget(min(MAX_WAITING_BYTES, round(limit_bytes * READERS_SHARE)))
        self.heard = NodeHeard(min(settings.replication.node_standby_bytes, round(limit_bytes * STANDBY_SHARE)))

    def look(self, ingest: Inflow | None, waiting: int) -> None:
        """Update the memory in use, ten times a second. ``waiting``: publishers that wait for an answer."""
        if ingest is not None:
            self.room.look_at_age(*ingest.passed_bytes, clock.now_ns())
        self.room.look(
            HeldByNode(
                unread=ingest.waiting_bytes if ingest is not None else 0,
                held_back=self.intake.held_bytes,
                uncommitted=self.intake.unreplicated_bytes,
                publishers=waiting * WAITING_PUBLISHER_BYTES,
                standby=self.heard.size_bytes,
                readers=self.reads.used_bytes,
            )
        )
