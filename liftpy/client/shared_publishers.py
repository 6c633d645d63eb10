"""``SharedPublishers``: one publisher per partition, which all single publishes of a client share."""

from __future__ import annotations

import asyncio
import functools

from liftpy.client.in_flight import PublishOptions
from liftpy.client.publisher import Publisher
from liftpy.client.retrying import look_up
from liftpy.client.stream_directory import StreamDirectory


class SharedPublishers:
    """Publishers of one client, at most one per partition. ``Client.publish`` and the dead letters of queues use them."""

    def __init__(self, streams: StreamDirectory) -> None:
        self._streams = streams
        self._opened: dict[tuple[str, int], Publisher] = {}
        self._opening = asyncio.Lock()
        """Lock for opening publishers: concurrent calls of ``open`` share one publisher per partition."""

    async def open(self, stream: str, partition: int, timeout_s: float | None) -> tuple[Publisher, float | None]:
        """Return the publisher of a partition, and the rest of ``timeout_s`` in seconds. Open the publisher if there is none.

        None: no time limit. Raises the errors of ``Client.publisher``, and UnavailableError after ``timeout_s``.
        """
        publisher = self._opened.get((stream, partition))
        if publisher is not None:
            return publisher, timeout_s
        return await look_up(functools.partial(self._open, stream, partition), stream, timeout_s)

    async def _open(self, stream: str, partition: int) -> Publisher:
        self._streams.requests.transport.must_be_usable()
        async with self._opening:
            publisher = self._opened.get((stream, partition))
            if publisher is None:
                publisher = self._opened[stream, partition] = await self._streams.open_publisher(
                    stream, partition, options=PublishOptions(message_ids=True)
                )
            return publisher

    async def close(self) -> None:
        """Close all publishers. Messages without an ack fail with OutcomeUnknownError."""
        publishers, self._opened = list(self._opened.values()), {}
        await asyncio.gather(*(publisher.close() for publisher in publishers))
