"""A node's connections: none waits behind another, each has its own bound and comes back by itself [A11].

    metadata      the group's traffic, heartbeats, requests (``joining.py``)
    replication   fetches and their answers, notices, presence and status, orders to services
    ingest        what applications publish, and the acks (``inflow.py``)
    reads         what readers ask and get

A leader whose replication is cut off, or whose publishers are for longer, makes way; a connection that is back soon deposes nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from liftpy.replica.intake import NodeIntake
from sidecar.bus.connection import BusConnection, open_bus
from sidecar.bus.inflow import Inflow
from sidecar.settings import NodeSettings

_INGEST_GRACE_S = 10.0
"""A connection that was cut as a slow consumer is back before, and may be cut again: that is load, and no reason for an election."""


_READS_BYTES = 32 * 1024 * 1024
"""Answers to readers that wait to be sent; what is asked for beyond is not read."""


@dataclass(frozen=True, slots=True)
class Links:
    """Connected, all three."""

    replication: BusConnection
    ingest: Inflow
    reads: BusConnection

    def all(self) -> tuple[BusConnection, ...]:
        """In the order of their names in status."""
        return self.ingest, self.reads, self.replication

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Call ``changed`` with whether the data path is up, each time when it is lost and when it is back."""
        _DataPath(self, changed)

    async def close(self) -> None:
        """Close them all."""
        for link in self.all():
            await link.stop()


class _DataPath:
    def __init__(self, links: Links, changed: Callable[[bool], None]) -> None:
        self._changed = changed
        self._down: set[str] = set()
        self._graces: dict[str, asyncio.TimerHandle] = {}
        links.replication.on_change(lambda is_up: self._link_changed(links.replication, is_up, 0.0))
        links.ingest.on_change(lambda is_up: self._link_changed(links.ingest, is_up, _INGEST_GRACE_S))

    def _link_changed(self, link: BusConnection, is_up: bool, grace_s: float) -> None:
        grace = self._graces.pop(link.name, None)
        if grace is not None:
            grace.cancel()
        if is_up or not grace_s:
            self._count(link, is_up)
        else:
            self._graces[link.name] = asyncio.get_running_loop().call_later(grace_s, self._count, link, False)

    def _count(self, link: BusConnection, is_up: bool) -> None:
        before = bool(self._down)
        if is_up or link.is_closed:
            self._down.discard(link.name)
        else:
            self._down.add(link.name)
        if bool(self._down) != before:
            self._changed(not self._down)


async def open_links(settings: NodeSettings, intake: NodeIntake) -> Links:
    """Connect all three; keeps trying until cancelled."""
    config = settings.replication
    replication = await open_bus(settings, lambda: BusConnection("replication"))
    reads = await open_bus(settings, lambda: BusConnection("reads", _READS_BYTES))
    ingest = await open_bus(settings, lambda: Inflow(intake, config.ingest_buffer_bytes, asks=reads))
    return Links(replication, ingest, reads)
