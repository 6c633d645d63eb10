"""Writes and reads the stream of cluster events with a client of liftpy.

Only a controller that leads the metadata group imports this module, because the client library needs memory.
"""

from __future__ import annotations

import asyncio
import contextlib

from nats.aio.client import Client as NatsConnection

from liftpy.client.client import Client
from liftpy.client.encode_publish import Address
from liftpy.client.in_flight import PublishAck, PublishOptions
from liftpy.client.publisher import Publisher
from liftpy.core.metadata.controller.cluster_events import NOTHING, EventStreamEnd, last_place_of
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.subjects import EVENTS_STREAM, Subjects
from liftpy.nats.transport import Transport

_END_READ = 64
"""Number of offsets at the end of the stream that are read to find the last event. Some offsets may have no event."""
_READ_GROWTH_FACTOR = 8
"""Factor by which the next read is larger after a read without events."""


class EventStream:
    """Client of the stream of cluster events. It owns its ``connection``.

    Args:
        connection: NATS connection.
        subjects: Subjects of the namespace.
        window: Maximum number of unacknowledged events.
        patience_s: Maximum time of a publish, in seconds.
    """

    def __init__(self, connection: NatsConnection, subjects: Subjects, window: int, patience_s: float) -> None:
        self._client = Client(Transport(connection), subjects, owns_connection=True)
        self._options = PublishOptions(window=window, patience_s=patience_s)
        self._publisher: Publisher | None = None
        self._uid = ""
        """Uid of the stream that ``_publisher`` writes to."""

    @property
    def is_closed(self) -> bool:
        return self._client.transport.connection.is_closed

    async def open(self, stream: StreamImage) -> bool:
        """Write to ``stream`` from now on. Return True if it is another stream than before."""
        if self._publisher is not None and self._uid == stream.uid:
            return False
        if self._publisher is not None:
            await self._publisher.close()
        address = Address(stream.subject, stream.uid)
        self._publisher, self._uid = Publisher(self._client.transport, EVENTS_STREAM, 0, address, self._options), stream.uid
        return True

    async def publish(self, event: bytes, expected_last: int) -> asyncio.Future[PublishAck]:
        """Publish ``event`` if ``expected_last`` is the last offset of the stream. Return a future of the ack."""
        assert self._publisher is not None
        return await self._publisher.send(event, expected_last=expected_last)

    async def end(self) -> EventStreamEnd:
        """Return the end of the stream of events: its last offset, and the place of its last event.

        Uncommitted records are not visible. If there are some, the first publish is rejected and the end is read again.
        """
        bounds = await self._client.bounds(EVENTS_STREAM)
        start, end = bounds.log_start_offset, bounds.high_watermark + 1
        place, search_end, first = None, end, end - _END_READ
        while place is None and search_end > start:
            first = max(first, start)
            async for part in self._client.read_range(EVENTS_STREAM, 0, first, search_end, uid=self._uid, exact=True):
                place = last_place_of(part.values()) or place
            search_end, first = first, first - _READ_GROWTH_FACTOR * (end - first)
        return EventStreamEnd(end - 1, place or NOTHING)

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await self._client.close()
