"""The NATS connections of a node. Each has its own limits and reconnects by itself [A11].

    metadata      traffic of the metadata group, heartbeats, requests
    replication   fetches and their answers, notices, presence and status, services
    ingest        publishes of applications, and their acks
    reads         read requests and answers
    standby       publishes for standby followers, if a stream has them

A leader without its replication connection, or without publishes for longer, transfers its leadership
(``liftpy/core/replication/lease.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

from liftpy.config import NS_PER_S
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import INGEST, REPLICATION, DataPath
from liftpy.errors import ConfigError
from liftpy.nats.cancellation import end_tasks
from sidecar.runtime import clock
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import spawn
from sidecar.transport.connection import BusConnection, Listener, open_bus
from sidecar.transport.credentials import Keys
from sidecar.transport.ingest_connection import IngestConnection
from sidecar.transport.parser import Sink

logger = logging.getLogger("liftpy.nats")

_STANDBY_PARTS = 4
"""Divisor of the size of a standby buffer. The result limits its unread messages."""
_READS_BYTES = 32 * 1024 * 1024
"""Maximum size of unsent answers to readers, in bytes. Above it, requests are not read."""
_SETTLES_S = 1.0
_AGAIN_S = 1.0
"""Time in seconds until a retry if credentials could not be read."""


class NodeConnections:
    """The NATS connections of a node. The standby connection opens when it is needed."""

    def __init__(
        self, replication: BusConnection, ingest: IngestConnection, reads: BusConnection, standby: StandbyLink
    ) -> None:
        self.replication = replication
        self.ingest = ingest
        self.reads = reads
        self.standby = standby
        self._path = DataPath()
        self._on_data_path: Callable[[bool], None] = lambda is_up: None
        self._timer: asyncio.TimerHandle | None = None
        """Timer for the end of the time that a lost connection may be down. None: no connection is lost."""

    def all(self) -> tuple[BusConnection, ...]:
        standby = () if self.standby.link is None else (self.standby.link,)
        return self.ingest, self.reads, self.replication, *standby

    async def wait_until_processed(self, timeout_s: float) -> None:
        """Wait until all publishes that a NATS server has sent to this node have arrived.

        ``timeout_s``: time limit. Raises the errors of ``BusConnection.wait_until_processed``.
        """
        await self.ingest.wait_until_processed(timeout_s)
        await self.standby.wait_until_processed(timeout_s)

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Call ``changed`` when the data path, the connections that a leader needs, goes up (True) or down (False)."""
        self._on_data_path = changed
        self.replication.on_change(partial(self._connection_changed, REPLICATION))
        self.ingest.on_change(partial(self._connection_changed, INGEST))

    def _connection_changed(self, name: str, is_up: bool) -> None:
        self._report_data_path(self._path.link_changed(name, is_up, clock.now_ns()))

    def _check_timeout(self) -> None:
        self._report_data_path(self._path.check_timeout(clock.now_ns()))

    def _report_data_path(self, is_up: bool | None) -> None:
        """Report that the data path is up or down now. None: it has not changed. Set the timer for the next check."""
        self._cancel_timer()
        now_ns = clock.now_ns()
        next_ns = self._path.next_ns(now_ns)
        if next_ns is not None:
            self._timer = asyncio.get_running_loop().call_later((next_ns - now_ns) / NS_PER_S, self._check_timeout)
        if is_up is not None:
            self._on_data_path(is_up)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch_publishes(self, lost: Callable[[], None]) -> None:
        self.ingest.on_change(lambda is_up: None if is_up else lost())

    @property
    def are_up(self) -> bool:
        """True if both connections that a leader needs are up: for replication and for publishes."""
        return self.replication.is_connected and self.ingest.is_connected

    async def close(self) -> None:
        await self.standby.stop()
        for link in (self.ingest, self.reads, self.replication):
            await link.stop()
        self._cancel_timer()


async def open_links(settings: NodeSettings, inflight: NodeInflight, room: MemoryBudget, keys: Keys) -> NodeConnections:
    """Open the connections of a node. The first connect is retried until the caller is canceled.

    ``inflight``: totals of uncommitted and delayed publishes. ``room``: limits the publishes in memory. ``keys``: credentials.
    """
    config = settings.replication
    async with AsyncExitStack() as opened:  # if the caller is canceled, the connections that are open already are closed
        replication = await open_bus(settings, lambda: BusConnection("replication"), keys)
        opened.push_async_callback(replication.stop)
        reads = await open_bus(settings, lambda: BusConnection("reads", _READS_BYTES), keys)
        opened.push_async_callback(reads.stop)
        ingest = await open_bus(
            settings, lambda: IngestConnection(inflight, config.ingest_buffer_bytes, stats_connection=reads, room=room), keys
        )
        opened.pop_all()
    buffer_bytes = config.node_standby_bytes // _STANDBY_PARTS
    standby = StandbyLink(lambda: open_bus(settings, lambda: IngestConnection(inflight, buffer_bytes, name="standby"), keys))
    return NodeConnections(replication, ingest, reads, standby)


# ---- standby ---------------------------------------------------------------------------------------------------------


class StandbySubscription:
    """Subscription of a standby follower to one data subject. It becomes active when the standby connection is open.

    ``liftpy.core.publish.ports.StandbySubscription`` describes its methods. ``when_settled`` waits at most ``_SETTLES_S`` seconds.
    """

    def __init__(self, standby: StandbyLink, subject: str, sink: Sink, on_dropped: Callable[[int], None]) -> None:
        self._standby = standby
        self._sink, self._on_dropped = sink, on_dropped
        self.subject = subject
        self._listener: Listener | None = None
        self.lost: Callable[[], None] | None = None
        """Called on a leader if the connection is lost or not open, or NATS denies the subscription."""
        self.is_denied = False

    def subscribe(self, link: IngestConnection) -> None:
        self._listener = link.listen(self.subject, self._sink, on_dropped=self._on_dropped)

    def feed_to(self, sink: Sink, on_dropped: Callable[[int], None], lost: Callable[[], None]) -> None:
        self._sink, self._on_dropped, self.lost = sink, on_dropped, lost
        if self._listener is not None:
            self._listener.feed_to(sink, on_dropped)
        link = self._standby.link
        if self.is_denied or link is None or not link.is_connected:
            self._report_loss()

    def subscription_denied(self) -> None:
        """Note that NATS permissions deny this subscription.

        A leader is informed through ``lost``. A standby follower then buffers nothing.
        """
        self.is_denied = True
        self._report_loss()

    def _report_loss(self) -> None:
        if self.lost is not None:
            asyncio.get_running_loop().call_soon(self.lost)

    def call_after_read(self, callback: Callable[[], None]) -> None:
        if self._standby.link is None:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._standby.link.call_after_read(callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def when_settled(self, callback: Callable[[], None]) -> None:
        link, loop = self._standby.link, asyncio.get_running_loop()
        waiting: list[Callable[[], None]] = [callback]

        def settled() -> None:
            timer.cancel()
            self._standby.timers.discard(timer)
            while waiting:
                waiting.pop()()

        timer = loop.call_later(_SETTLES_S, settled)
        self._standby.timers.add(timer)
        if link is None:
            loop.call_soon(settled)
        else:
            link.when_subscribed(settled)

    def leave(self) -> None:
        if self._listener is not None:
            self._listener.leave()
        else:
            self._standby.subscription_closed(self)

    def close(self) -> None:
        self._standby.subscription_closed(self)
        if self._listener is not None:
            self._listener.close()


class StandbyLink:
    """The standby connection of a node. It opens when a partition of this node first becomes a standby.

    It has its own limits, so that standby messages never delay publishes to leaders on this node [A11]. A promoted partition
    keeps using it, without a gap or overlap. After a reconnect its leader uses the ingest connection.

    ``connect``: opens the connection. A failed attempt is repeated.
    """

    def __init__(self, connect: Callable[[], Awaitable[IngestConnection]]) -> None:
        self._connect = connect
        self.on_denial: Callable[[bool, str], None] = lambda is_publish, subject: None
        """Called with (True for a publish, subject) if NATS permissions deny an operation of this connection."""
        self.link: IngestConnection | None = None
        """Standby connection. None: there is no standby yet, or no server answers."""
        self._connecting: asyncio.Task[None] | None = None
        self._subscribed: dict[StandbySubscription, None] = {}
        self.timers: set[asyncio.TimerHandle] = set()
        """Time limits of leaders that wait for earlier publishes (``when_settled``)."""

    def subscribe(self, subject: str, sink: Sink, on_dropped: Callable[[int], None]) -> StandbySubscription:
        subscribed = StandbySubscription(self, subject, sink, on_dropped)
        self._subscribed[subscribed] = None
        if self.link is not None:
            subscribed.subscribe(self.link)
        elif self._connecting is None:
            self._connecting = spawn(self._open(), "connecting for standbys")
        return subscribed

    async def _connected(self) -> IngestConnection:
        """Return the open connection. Failed attempts are repeated.

        A missing credentials file does not stop the node, because it may be replaced at this moment.
        """
        last_error_text = ""
        while True:
            try:
                return await self._connect()
            except ConfigError as error:
                if str(error) != last_error_text:
                    last_error_text = str(error)
                    logger.error("standby connection cannot connect to NATS error=%s: retrying", last_error_text)
            await asyncio.sleep(_AGAIN_S)

    async def _open(self) -> None:
        link = await self._connected()
        link.on_change(self._state_changed)
        link.on_denial(self._subscription_denied)
        self.link = link
        for subscribed in list(self._subscribed):
            subscribed.subscribe(link)

    def _state_changed(self, is_up: bool) -> None:
        for subscribed in [] if is_up else list(self._subscribed):
            subscribed.is_denied = False  # the subscription is sent again
            if subscribed.lost is not None:
                subscribed.lost()

    def _subscription_denied(self, is_publish: bool, subject: str) -> None:
        self.on_denial(is_publish, subject)
        for subscribed in [] if is_publish else list(self._subscribed):
            if subscribed.subject == subject:
                subscribed.subscription_denied()

    def subscription_closed(self, subscribed: StandbySubscription) -> None:
        """Forget a closed subscription. It is not renewed after a reconnect."""
        self._subscribed.pop(subscribed, None)

    async def wait_until_processed(self, timeout_s: float) -> None:
        """Wait until all messages sent before have arrived. Without a connection, return at once. ``timeout_s``: time limit."""
        if self.link is not None:
            await self.link.wait_until_processed(timeout_s)

    async def stop(self) -> None:
        if self._connecting is not None:
            await end_tasks([self._connecting])
        if self.link is not None:
            await self.link.stop()
        for timer in self.timers:
            timer.cancel()
