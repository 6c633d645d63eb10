"""EventWriter: while this controller leads the metadata group it keeps the events in the stream ``_liftpy-events`` (``event_log.py``).

It makes the stream where there is none, on a connection of its own that is opened when it is needed first. Nothing waits for it: what
fails is tried again, later each time, while the events wait in the controllers' memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import nats.errors
from nats.aio.client import Client as NatsConnection

from liftpy.client.client import Client
from liftpy.client.encode_publish import Address
from liftpy.client.in_flight import PublishOptions
from liftpy.client.publisher import Publisher
from liftpy.config import StreamConfig
from liftpy.core.metadata.codec import config_to_pb
from liftpy.core.metadata.controller.cluster_events import NOTHING, EventLog, Tail, newest_place
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import EVENTS_STREAM, Subjects
from liftpy.errors import LiftError, UnavailableError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.transport import Transport
from sidecar.runtime.tasks import spawn

logger = logging.getLogger("liftpy.metadata")

LOOK_S = 0.2
MOST_AT_ONCE = 64
"""Events that are on their way to the stream at a time."""
_AGAIN_S, _LONGEST_AGAIN_S = 0.5, 10.0
_PATIENCE_S = 5.0
_END_READ = 64
"""Offsets at the stream's end that are read for its last event: control records may stand behind it, or what is no event."""
_FURTHER = 8
"""Factor by which the next read is larger after a read without events."""
WRITTEN, FAILED = "events written to their stream", "events not written at the first attempt"
CONFIG = StreamConfig(
    segment_bytes=16 * 1024 * 1024, retention_age_s=30 * 86_400.0, retention_bytes=1 << 30, optimistic_concurrency=True
)
MOST_REPLICAS = 3

Propose = Callable[[pb.ControlRequest, float], Awaitable[pb.ControlResponse]]


class EventWriter:
    """Writes cluster events to their stream.

    ``connect``: opens a connection. ``propose``: decides a request. ``image``: the applied image. ``leads``: whether
    this controller leads. ``controllers``: number of controllers.
    """

    def __init__(
        self,
        events: EventLog,
        subjects: Subjects,
        connect: Callable[[], Awaitable[NatsConnection]],
        propose: Propose,
        image: Callable[[], ClusterImage],
        leads: Callable[[], bool],
        controllers: Callable[[], int],
    ) -> None:
        self._events = events
        self._subjects = subjects
        self._connect = connect
        self._propose = propose
        self._image = image
        self._leads = leads
        self._controllers = controllers
        self._client: Client | None = None
        self._publisher: Publisher | None = None
        self._uid = ""
        """Uid of the stream that the publisher writes to."""
        self._task: asyncio.Task[None] | None = None
        self.counters: Counter[str] = Counter()

    def start(self) -> None:
        """Write from now on."""
        self._task = spawn(self._run(), "keeping the events in their stream", endless=True)

    async def close(self) -> None:
        """Stop writing."""
        await end_tasks([self._task])
        await self._disconnect()

    async def _disconnect(self) -> None:
        client, self._client, self._publisher = self._client, None, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()

    async def _run(self) -> None:
        wait_s = LOOK_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = max(LOOK_S, min(wait_s, _LONGEST_AGAIN_S))
            if not self._leads():
                self._events.resign()
                wait_s = LOOK_S
                continue
            try:
                while self._leads() and self._events.is_behind and self._image().nodes:
                    await self._write()
                wait_s = LOOK_S
            except (LiftError, nats.errors.Error, OSError, TimeoutError, ValueError) as error:
                self._events.lost_track()
                self.counters[FAILED] += 1
                logger.debug("cannot write events to their stream: %s; retrying", error)
                wait_s = min(max(_AGAIN_S, 2 * wait_s), _LONGEST_AGAIN_S)

    async def _write(self) -> None:
        """Write some of the due events."""
        stream = self._image().streams.get(EVENTS_STREAM) or await self._made()
        if stream.waiting:
            raise UnavailableError(
                f"The internal stream {EVENTS_STREAM} is not placed, because the cluster has too few nodes. The node retries."
            )
        publisher = await self._opened(stream)
        if self._events.tail is None:
            self._events.found(await self._tail(stream))
        due = self._events.due(MOST_AT_ONCE)
        if not due:
            return
        assert self._events.tail is not None
        behind = self._events.tail.offset
        answers = [
            await publisher.send(json.dumps(event).encode(), expected_last=behind + number) for number, event in enumerate(due)
        ]
        for number, answer in enumerate(await asyncio.gather(*answers, return_exceptions=True)):
            if isinstance(answer, BaseException):
                raise answer
            if answer.offset != behind + number + 1:
                raise UnavailableError(
                    f"An event is at offset {answer.offset} instead of {behind + number + 1}. The node reads the stream "
                    "again, then continues."
                )
            self._events.stored(due[: number + 1], answer.offset)
            self.counters[WRITTEN] += 1

    async def _made(self) -> StreamImage:
        """The stream, where there was none; with fewer nodes than controllers it waits for them."""
        wanted = pb.CreateStream(
            name=EVENTS_STREAM,
            subject=self._subjects.events_stream(),
            partitions=1,
            replicationFactor=min(self._controllers(), MOST_REPLICAS),
            config=config_to_pb(CONFIG),
        )
        response = await self._propose(pb.ControlRequest(createStream=wanted, internal=True), _PATIENCE_S)
        found = self._image().streams.get(EVENTS_STREAM)
        if found is None:
            raise UnavailableError(f"Cannot create the internal stream {EVENTS_STREAM}: {response.detail}. The node retries.")
        return found

    async def _opened(self, stream: StreamImage) -> Publisher:
        if self._client is None or self._client.transport.connection.is_closed:
            await self._disconnect()
            self._client = Client(Transport(await self._connect()), self._subjects, owns_connection=True)
        if self._publisher is None or self._uid != stream.uid:
            if self._publisher is not None:
                await self._publisher.close()
            options = PublishOptions(window=MOST_AT_ONCE, patience_s=_PATIENCE_S)
            address = Address(stream.subject, stream.uid)
            self._publisher, self._uid = Publisher(self._client.transport, EVENTS_STREAM, 0, address, options), stream.uid
            self._events.lost_track()
        return self._publisher

    async def _tail(self, stream: StreamImage) -> Tail:
        """Return the end of the stream.

        Uncommitted records are not visible: then the first publish is rejected and the end is read again.
        """
        assert self._client is not None
        bounds = await self._client.bounds(EVENTS_STREAM)
        start, end = bounds.log_start_offset, bounds.high_watermark + 1
        place, looked_at, first = None, end, end - _END_READ
        while place is None and looked_at > start:
            first = max(first, start)
            async for part in self._client.read_range(EVENTS_STREAM, 0, first, looked_at, uid=stream.uid, exact=True):
                place = newest_place(part.values()) or place
            looked_at, first = first, first - _FURTHER * (end - first)
        return Tail(end - 1, place or NOTHING)
