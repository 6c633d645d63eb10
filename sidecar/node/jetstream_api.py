"""Answers the stateless read requests of the JetStream API on ``$JS.<domain>.API.>``. The nodes share the requests.

``sidecar.node.jetstream_reads`` makes the answers. It uses a normal client with its own connection, so it works on any node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from contextlib import aclosing

import nats.errors

from liftpy.client import Client, connect
from liftpy.core.wire.subjects import JETSTREAM_INBOX, InboxRule, jetstream_api, reply_to
from liftpy.errors import LiftError
from liftpy.nats.connection import StrictConnection
from liftpy.nats.request_guard import RequestGuard
from sidecar.node.jetstream_protocol import JsAnswer, JsRejection, kind_of, rejection_answer, status
from sidecar.node.jetstream_reads import StatelessReads
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import TaskSet
from sidecar.transport.connection import BusConnection, Listener, send_answer
from sidecar.transport.credentials import Keys

logger = logging.getLogger("liftpy.jetstream")

AT_ONCE = 64
"""Maximum number of requests in progress. Further requests are rejected."""
_AGAIN_S = 1.0
_ANSWER_S = 0.25
"""Time limit for the requests that have arrived before the stop, and for each round trip to the NATS server before, in seconds."""
_BUSY = JsRejection(429, 10167, "too many requests")
_TOO_LARGE = JsRejection(400, 10054, "message size exceeds maximum allowed")


class JetStreamHandler:
    """Serves the JetStream read API on one node. ``bus``: NATS connection for requests and answers."""

    def __init__(
        self, bus: BusConnection, settings: NodeSettings, inboxes: InboxRule, counters: Counter[str], keys: Keys
    ) -> None:
        self._keys = keys
        self._bus = bus
        self._settings = settings
        self._inboxes = inboxes
        self._counters = counters
        self._guard = RequestGuard("JetStream", counters, self._reject)
        self._before = jetstream_api(settings.jetstream_api, "")
        self._reads: StatelessReads | None = None
        self._listener: Listener | None = None
        self._tasks = TaskSet()

    def open(self) -> None:
        """Start a background task that connects a client and then subscribes to the requests."""
        self._tasks.start(self._open(), "connecting for the JetStream API")

    async def _open(self) -> None:
        settings = self._settings
        while True:
            try:
                client: Client = await connect(
                    list(settings.nats),
                    settings.namespace,
                    credentials=(credentials := self._keys.credentials),
                    name=f"liftpy {settings.node_id} jetstream",
                    inbox_prefix=JETSTREAM_INBOX.encode(),
                )
            except LiftError as error:
                logger.warning("JetStream read API cannot connect to NATS error=%s: retrying", error)
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        connection = client.transport.connection
        assert isinstance(connection, StrictConnection)
        self._keys.add(connection, credentials)
        self._reads = StatelessReads(client, settings.jetstream_api)
        subject = jetstream_api(settings.jetstream_api, ">")
        handler = self._guard.handler(self._request_arrived)
        self._listener = self._bus.listen(subject, handler, queue=f"{settings.namespace}-jetstream")
        logger.info("JetStream read API started subject=%s", subject)

    def _request_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if reply_to(reply, (self._inboxes,), self._counters) is None:
            return
        rest = subject.decode("utf-8", "replace").removeprefix(self._before)
        if len(self._tasks) >= AT_ONCE:
            self._counters["jetstream_rejected"] += 1
            self._send(reply, rejection_answer(kind_of(rest)[0], _BUSY))
            return
        self._counters["jetstream_requests"] += 1
        answering = self._guard.run(self._answer(reply, rest, bytes(payload)), reply)
        self._tasks.start(answering, "a request of JetStream's read API")

    async def _answer(self, reply: bytes, rest: str, body: bytes) -> None:
        assert self._reads is not None
        async with aclosing(self._reads.answer(rest, body)) as parts:
            async for part in parts:
                if len(part.headers) + len(part.payload) > self._bus.max_payload:
                    part = rejection_answer(kind_of(rest)[0], _TOO_LARGE)
                if not self._send(reply, part):
                    self._counters["jetstream_answers_dropped"] += 1
                    return

    def _send(self, reply: bytes, answer: JsAnswer) -> bool:
        return send_answer(self._bus, (self._inboxes,), self._counters, reply, (answer.payload,), headers=answer.headers)

    def _reject(self, reply: bytes, error: Exception) -> None:
        """Answer a request that caused an unexpected error with status 500, an error for every JetStream client."""
        self._send(reply, status(500, "Internal Server Error"))

    async def close(self) -> None:
        """Accept no more requests, answer those that have arrived within ``_ANSWER_S``, and close the client."""
        if self._listener is not None:
            self._listener.leave()
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await self._bus.wait_until_processed(_ANSWER_S)
            await self._tasks.wait(_ANSWER_S)
            self._listener.close()
        await self._tasks.end()
        if self._reads is not None:
            await self._reads.client.close()
