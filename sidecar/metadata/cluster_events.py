"""Sends the cluster events of a controller: on request, as NATS messages, and to a stream.

- Any controller answers requests on ``<ns>.control.events.<node>``.
- The metadata leader publishes each event on ``<ns>.events.<kind>``, at most once and within one minute. A new leader
  may publish it again. The index and the number of an event show repetitions.
- The metadata leader writes the events to the stream ``_liftpy-events``.

Published events are for watching. A program that must not miss events requests them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import nats.errors
from nats.aio.client import Client as NatsConnection

from liftpy.config import StreamConfig
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.metadata import codec
from liftpy.core.metadata.controller.cluster_events import EventLog, RecentEvents, is_recent
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import EVENTS_STREAM, InboxRule, Subjects, publish_answer, reply_to
from liftpy.errors import LiftError, UnavailableError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.metadata.controller import MetadataController
from sidecar.metadata.group import MetadataGroup
from sidecar.runtime.tasks import spawn
from sidecar.runtime.timers import until_next_s
from sidecar.transport.connection import PublishQueue, unsubscribe

if TYPE_CHECKING:
    from sidecar.metadata.event_stream import EventStream

logger = logging.getLogger("liftpy.metadata")

MOST_AT_ONCE = 500
"""Maximum number of events that are derived and published after one tick. Further events follow after the next tick."""
MOST_ANSWERED = 500
LOST = "events lost before they were in their stream"
BEYOND = "entries without events, too many at once"
CHECK_PERIOD_S = 1.0
"""Interval at which the metadata leader looks for new events to store, in seconds."""
MOST_WRITTEN_AT_ONCE = 64
"""Maximum number of events that are published to the stream at a time."""
_AGAIN_S, _LONGEST_AGAIN_S = 0.5, 10.0
_PATIENCE_S = 5.0
WRITTEN, FAILED = "events written to their stream", "events not written at the first attempt"
CONFIG = StreamConfig(
    segment_bytes=16 * 1024 * 1024, retention_age_s=30 * 86_400.0, retention_bytes=1 << 30, optimistic_concurrency=True
)
MOST_REPLICAS = 3


class EventsHandler:
    """Answers requests for cluster events, and publishes new events over NATS.

    ``inboxes``: inboxes of applications.
    """

    def __init__(
        self,
        node_id: str,
        connection: NatsConnection,
        subjects: Subjects,
        outgoing: PublishQueue,
        inboxes: InboxRule,
    ) -> None:
        self.trail = RecentEvents()
        self.counters: Counter[str] = Counter()
        self._node_id = node_id
        self._connection = connection
        self._subjects = subjects
        self._outgoing = outgoing
        self._inboxes = inboxes
        self._guard = RequestGuard("events", self.counters, self._reject)
        self._subscriptions: list[Any] = []

    async def open(self) -> None:
        subject = self._subjects.control_events(self._node_id)
        self._subscriptions.append(await self._connection.subscribe(subject, cb=self._guard.callback(self._request_arrived)))

    async def close(self) -> None:
        await unsubscribe(self._subscriptions)

    def publish_new(self, *, leads: bool) -> None:
        """Derive the events of newly applied entries. If this controller ``leads``, publish them. Call it after each tick."""
        fresh = self.trail.derive_events(MOST_AT_ONCE)
        if self.trail.dropped:
            self.counters[BEYOND] = self.trail.dropped
        if self.trail.written is not None and (lost := self.trail.lost + self.trail.dropped):
            self.counters[LOST] = lost
        if not leads:
            return
        now_ns = time.time_ns()
        for event in fresh:
            if is_recent(event, now_ns):
                self._outgoing.put(self._subjects.events(event.kind), json.dumps(event.as_object()).encode())

    async def _request_arrived(self, message: Any) -> None:
        if reply_to(message.reply, (self._inboxes,), self.counters) is not None:
            await self._publish(message.reply, json.dumps(self.answer(message.data)).encode())

    async def _publish(self, reply: str | bytes, answer: bytes) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):  # not connected: the asker asks again
            await publish_answer(self._connection.publish, (self._inboxes,), self.counters, reply, answer)

    async def _reject(self, reply: bytes, error: Exception) -> None:
        await self._publish(reply, b'{"error": "the controller failed at this question, its log says why"}')

    def answer(self, question: bytes) -> dict[str, Any]:
        """Return the answer to ``question``, limited to one message. An invalid question gets an answer with the field ``error``."""
        try:
            place, since_ns, count = decode_events_request(question)
        except ValueError as error:
            return {"error": f'{error}; asked for as {{"after": [index, number], "since_ns": 0, "count": {MOST_ANSWERED}}}'}
        while True:
            events = self.trail.events_after(place, since_ns, count + 1)
            trail = self.trail
            answer = {
                "events": [event.as_object() for event in events[:count]],
                "more": len(events) > count,
                "begins": trail.begins,
                "begins_ns": trail.begins_ns,
                "index": trail.index,
            }
            if len(json.dumps(answer)) <= self._connection.max_payload or count == 1:
                return answer
            count //= 2


def decode_events_request(question: bytes) -> tuple[tuple[int, int], int, int]:
    """Parse a question for cluster events, ``{"after": [index, number], "since_ns": wall clock, "count": 500}``.

    Each field may be missing. Return (after, since_ns, count): the place after which the events begin, the earliest time in
    ns since 1970, and the maximum number of events. Raises ValueError.
    """
    request = load_json(question) if question else {}
    if not isinstance(request, dict) or not isinstance(after := request.get("after", [0, -1]), list) or len(after) != 2:
        raise ValueError('Invalid request for events. It must be {"after": [INDEX, NUMBER]}.')
    place = whole_number(after[0], 0, 1 << 63), whole_number(after[1], -1, 1 << 31)
    since_ns = whole_number(request.get("since_ns", 0), 0, 1 << 63)
    return place, since_ns, whole_number(request.get("count", MOST_ANSWERED), 1, MOST_ANSWERED)


# ---- stream of events ------------------------------------------------------------------------------------------------


class EventWriter:
    """Writes cluster events to the stream ``_liftpy-events``, while this controller is the metadata leader.

    It creates the stream if it does not exist, on its own connection, which opens when it is first needed. Nothing waits for
    the writer. It retries failed writes with a growing pause, while the events wait in the controllers' memory.

    Args:
        connect: Opens a connection.
        group: Metadata group, which creates the stream.
        controller: Controller on this node.
    """

    def __init__(
        self,
        events: EventLog,
        subjects: Subjects,
        connect: Callable[[], Awaitable[NatsConnection]],
        group: MetadataGroup,
        controller: MetadataController,
    ) -> None:
        self._events = events
        self._subjects = subjects
        self._connect = connect
        self._group = group
        self._controller = controller
        self._stream: EventStream | None = None
        """Client of the stream. None: not connected."""
        self._task: asyncio.Task[None] | None = None
        self.counters: Counter[str] = Counter()

    def start(self) -> None:
        self._task = spawn(self._run(), "storing the cluster events", endless=True)

    async def close(self) -> None:
        await end_tasks([self._task])
        await self._disconnect()

    async def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _run(self) -> None:
        again_s = 0.0
        """Pause after a failure, 0 without one."""
        while True:
            await asyncio.sleep(again_s or until_next_s(CHECK_PERIOD_S))
            if not self._controller.is_active:
                self._events.resign()
                again_s = 0.0
                continue
            try:
                while self._controller.is_active and self._events.has_events_to_write and self._group.image.nodes:
                    await self._write()
                again_s = 0.0
            except (LiftError, nats.errors.Error, OSError, TimeoutError, ValueError, ImportError) as error:
                self._events.forget_tail()
                self.counters[FAILED] += 1
                logger.debug("events not written to their stream error=%s: retrying", error)
                again_s = min(max(_AGAIN_S, 2 * again_s), _LONGEST_AGAIN_S)

    async def _write(self) -> None:
        stream = self._group.image.streams.get(EVENTS_STREAM) or await self._event_stream()
        if stream.waiting:
            raise UnavailableError(
                f"The internal stream {EVENTS_STREAM} is not placed, because the cluster has too few nodes. The node retries."
            )
        writer = await self._open(stream)
        if self._events.tail is None:
            self._events.set_tail(await writer.end())
        due = self._events.take_due(MOST_WRITTEN_AT_ONCE)
        if not due:
            return
        assert self._events.tail is not None
        behind = self._events.tail.offset
        answers = [await writer.publish(json.dumps(event).encode(), behind + number) for number, event in enumerate(due)]
        for number, answer in enumerate(await asyncio.gather(*answers, return_exceptions=True)):
            if isinstance(answer, BaseException):
                raise answer
            if answer.offset != behind + number + 1:
                raise UnavailableError(
                    f"An event was stored at offset {answer.offset} instead of {behind + number + 1}, because another "
                    "writer added events. The node reads the stream again, then continues."
                )
            self._events.record_stored(due[: number + 1], answer.offset)
            self.counters[WRITTEN] += 1

    async def _event_stream(self) -> StreamImage:
        """Return the stream of events, and create it if it does not exist. With too few nodes, the new stream waits for nodes."""
        wanted = pb.CreateStream(
            name=EVENTS_STREAM,
            subject=self._subjects.events_stream(),
            partitions=1,
            replicationFactor=min(len(self._controller.controllers.voters), MOST_REPLICAS),
            config=codec.CONFIG.to_pb(CONFIG),
        )
        response = await self._group.propose(pb.ControlRequest(createStream=wanted, internal=True), _PATIENCE_S)
        stream = self._group.image.streams.get(EVENTS_STREAM)
        if stream is None:
            raise UnavailableError(f"Cannot create the internal stream {EVENTS_STREAM}: {response.detail}. The node retries.")
        return stream

    async def _open(self, stream: StreamImage) -> EventStream:
        """Return a client of ``stream``, connected and ready to write."""
        if self._stream is None or self._stream.is_closed:
            await self._disconnect()
            make = await asyncio.to_thread(_load_event_stream)
            self._stream = make(await self._connect(), self._subjects, MOST_WRITTEN_AT_ONCE, _PATIENCE_S)
        if await self._stream.open(stream):
            self._events.forget_tail()
        return self._stream


def _load_event_stream() -> type[EventStream]:
    """Import the client of the stream. Only a metadata leader needs it. It takes 0.1 s, so call it in a thread."""
    from sidecar.metadata.event_stream import EventStream

    return EventStream
