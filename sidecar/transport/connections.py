"""The NATS connections of a node. Each has its own limits and reconnects by itself [A11].

    metadata      traffic of the metadata group, heartbeats, requests
    replication   fetches and their answers, notices, presence and status, services
    ingest        publishes of applications, and their acks
    reads         read requests and answers
    standby       publishes for standby followers; only if there are such streams

A leader without its replication connection, or without publishes for longer, transfers its leadership
(``liftpy/core/replication/lease.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from liftpy.config import NS_PER_S
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.replication.inflight_limits import NodeIntake
from liftpy.core.replication.lease import INGEST, REPLICATION, DataPath
from sidecar.runtime import clock
from sidecar.runtime.settings import NodeSettings
from sidecar.transport.connection import BusConnection, open_bus
from sidecar.transport.credentials import Keys
from sidecar.transport.ingest_connection import Inflow
from sidecar.transport.standby_connection import StandbyLink

_STANDBY_PARTS = 4
"""What standbys have not looked at yet may take one of so many parts of what they keep."""
_READS_BYTES = 32 * 1024 * 1024
"""Answers to readers that wait to be sent; what is asked for beyond is not read."""


@dataclass(frozen=True, slots=True)
class Links:
    """The three connections of a node. The standby connection opens when needed."""

    replication: BusConnection
    ingest: Inflow
    reads: BusConnection
    standby: StandbyLink

    def all(self) -> tuple[BusConnection, ...]:
        """Return them in the order of the status."""
        standby = () if self.standby.link is None else (self.standby.link,)
        return self.ingest, self.reads, self.replication, *standby

    async def taken(self, timeout_s: float) -> None:
        """Wait until earlier publishes have arrived. Raises as ``settled`` of a connection."""
        await self.ingest.settled(timeout_s)
        await self.standby.settled(timeout_s)

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Call ``changed`` with the state of the data path after each loss and reconnect."""
        _DataPath(self, changed)

    def watch_publishes(self, lost: Callable[[], None]) -> None:
        """Call ``lost`` each time the connection for publishes is lost."""
        self.ingest.on_change(lambda is_up: None if is_up else lost())

    @property
    def are_up(self) -> bool:
        """Whether a leader can be reached, by publishers too."""
        return self.replication.is_connected and self.ingest.is_connected

    async def close(self) -> None:
        """Close all connections."""
        await self.standby.stop()
        for link in (self.ingest, self.reads, self.replication):
            await link.stop()


class _DataPath:
    """Reports connection changes and the time to ``DataPath``."""

    def __init__(self, links: Links, changed: Callable[[bool], None]) -> None:
        self._changed = changed
        self._links = links
        self._path = DataPath()
        self._timer: asyncio.TimerHandle | None = None
        links.replication.on_change(lambda is_up: self._link_changed(REPLICATION, is_up or links.replication.is_closed))
        links.ingest.on_change(lambda is_up: self._link_changed(INGEST, is_up or links.ingest.is_closed))

    def _link_changed(self, name: str, is_up: bool) -> None:
        self._tell(self._path.link_changed(name, is_up, clock.now_ns()))

    def _due(self) -> None:
        if self._links.ingest.is_closed:  # the node has stopped meanwhile
            self._link_changed(INGEST, True)
        else:
            self._tell(self._path.due(clock.now_ns()))

    def _tell(self, changed: bool | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = clock.now_ns()
        next_ns = self._path.next_ns(now_ns)
        if next_ns is not None:
            self._timer = asyncio.get_running_loop().call_later((next_ns - now_ns) / NS_PER_S, self._due)
        if changed is not None:
            self._changed(changed)


async def open_links(settings: NodeSettings, intake: NodeIntake, room: MemoryBudget, keys: Keys) -> Links:
    """Open all three connections. Retries until canceled."""
    config = settings.replication
    replication = await open_bus(settings, lambda: BusConnection("replication"), keys)
    reads = await open_bus(settings, lambda: BusConnection("reads", _READS_BYTES), keys)
    ingest = await open_bus(settings, lambda: Inflow(intake, config.ingest_buffer_bytes, asks=reads, room=room), keys)
    buffer_bytes = config.node_standby_bytes // _STANDBY_PARTS
    standby = StandbyLink(lambda: open_bus(settings, lambda: Inflow(intake, buffer_bytes, name="standby"), keys))
    return Links(replication, ingest, reads, standby)
