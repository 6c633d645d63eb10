"""Answers queries of a service's state, on ``<ns>.service.<name>.query``.

``PendingQueries`` has the rules. Every process whose state has caught up subscribes in one queue group, so that each query goes
to one of them. A process that falls behind leaves the group until it has caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from typing import Any

from liftpy.client import Client, ReadOptions
from liftpy.client.services import QueryRejectedError
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.queries import (
    AT_LEAST_HEADER,
    ERROR_HEADER,
    NODE_HEADER,
    PARTITIONS_HEADER,
    POSITION_HEADER,
    PendingQueries,
    Query,
    QueryFailedError,
    position_in,
)
from liftpy.core.services.service import ServiceFailedError
from liftpy.core.wire.subjects import InboxRule, Subjects, data_subject, publish_answer, reply_to
from liftpy.errors import LiftError, UnavailableError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from liftpy.nats.transport import Transport, unsubscribe
from liftpy.service.instance import ServiceInstance
from liftpy.service.settings import ServiceSettings

logger = logging.getLogger("liftpy.service")

_GROUP = "queries"
_BEHIND = "the state here is behind the log"
_PAST_THE_END = (
    f"The state has all committed records, but not those that the query needs. Check the header {AT_LEAST_HEADER}, or retry"
)
_CHECK_INTERVAL_S = 0.005
_JOIN_CHECK_S = 0.1
_COUNT_AGAIN_S = 10.0
"""Maximum age in seconds of the known number of partitions. Partitions may be added."""
_COUNT_WAIT_S = 0.5
"""Time in seconds from the request for the number of partitions for which queries wait for it. They are answered without it then."""
_IDLE_CHECK_S = 30.0
"""Interval of checks in seconds when no event wakes the server."""
_READ_OPTIONS = ReadOptions(patience_s=1.0, answer_timeout_s=0.5)
_HEADERS_BYTES = 1024
"""Number of bytes of a message that are reserved for the headers of an answer."""


class QueryServer:
    """Answers queries of a service's state that arrive over NATS."""

    def __init__(
        self,
        client: Client,
        transport: Transport,
        subjects: Subjects,
        settings: ServiceSettings,
        instance: ServiceInstance,
    ) -> None:
        self._client = client
        self._transport = transport
        self._subject = data_subject(subjects.service_query(settings.service), settings.partition)
        self._settings = settings
        self._instance = instance
        self._pending = PendingQueries()
        self.answered_count = 0
        self.refused_count = 0
        """Number of rejected queries, including those on which ``on_query`` raised an error."""
        self._arrival = asyncio.Event()
        self._partitions = 0
        """Number of partitions of the service's stream. 0: not known."""
        self._counted_s = -math.inf
        """Monotonic time of the last answer with this number, in seconds."""
        self._counting: asyncio.Task[None] | None = None
        """Running request for this number. A metadata group that is down may let it wait for a long time."""
        self._count_by_s = 0.0
        """Monotonic time up to which queries wait for this request, in seconds."""
        self._inboxes = InboxRule(settings.reply_prefixes)
        self.counters: Counter[str] = Counter()
        """Reason -> number of queries without an answer."""
        self._guard = RequestGuard("query", self.counters, self._reject)

    async def _count_partitions(self) -> None:
        """Request the number of partitions if the known one is old. Wait for it until ``_COUNT_WAIT_S`` after the request."""
        now_s = time.monotonic()
        if self._counting is None and now_s - self._counted_s >= _COUNT_AGAIN_S:
            self._count_by_s = now_s + _COUNT_WAIT_S
            self._counting = asyncio.create_task(self._request_partitions(), name=f"partitions of {self._settings.stream}")
        if self._counting is not None and now_s < self._count_by_s:
            await asyncio.wait({self._counting}, timeout=self._count_by_s - now_s)

    async def _request_partitions(self) -> None:
        try:
            self._partitions = len((await self._client.stream(self._settings.stream)).partitions)
            self._counted_s = time.monotonic()
        except LiftError:
            pass  # the next query tries it again
        finally:
            self._counting = None

    @property
    def waiting_count(self) -> int:
        return len(self._pending)

    def wake(self) -> None:
        """Check now which queries can be answered, and whether the state has still caught up."""
        self._arrival.set()

    async def run(self) -> None:
        """Receive and answer queries whenever the state has caught up. This never ends."""
        try:
            while True:
                await self._count_partitions()
                while not (self._instance.is_fed and self._instance.has_caught_up):
                    await asyncio.sleep(_JOIN_CHECK_S)
                await self._serve_until_behind()
        finally:
            await end_tasks([self._counting])

    async def _serve_until_behind(self) -> None:
        """Receive and answer queries until the state falls behind. The waiting queries are then rejected."""
        subscription = await self._transport.connection.subscribe(
            self._subject, queue=_GROUP, cb=self._guard.callback(self._message_arrived)
        )
        try:
            why = await self._serve()
        finally:
            await unsubscribe(subscription)
        for query in self._pending.pop_expired(math.inf):
            await self._refuse(query.reply, QueryRejectedError(why))

    async def _message_arrived(self, message: Any) -> None:
        if reply_to(message.reply, (self._inboxes,), self.counters) is None:
            return
        try:
            at_least = position_in((message.headers or {}).get(AT_LEAST_HEADER))
        except QueryFailedError as error:
            await self._refuse(message.reply, error)
            return
        if not self._pending.try_add(Query(message.data, message.reply, time.monotonic(), at_least)):
            await self._refuse(
                message.reply, QueryRejectedError("Too many queries wait on this node. Retry later, or query fewer at a time.")
            )
            return
        self._arrival.set()

    async def _serve(self) -> str:
        """Answer queries until the state falls behind. Return the reason, with which the caller rejects the waiting queries."""
        placing: asyncio.Task[None] | None = None
        try:
            while True:
                if placing is None or placing.done():
                    queries = self._pending.without_position()
                    placing = asyncio.create_task(self._place(queries)) if queries else None
                await self._answer_ready()
                expired = self._pending.pop_expired(time.monotonic())
                is_behind = not self._instance.has_caught_up
                for query in expired:
                    await self._refuse(query.reply, QueryRejectedError(_BEHIND if is_behind else _PAST_THE_END))
                if expired and is_behind:
                    return _BEHIND
                if not self._instance.is_fed:
                    return f"nothing is heard from node {self._settings.node}, which feeds the state here"
                if not len(self._pending):
                    self._arrival.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_IDLE_CHECK_S):
                            await self._arrival.wait()
                elif placing is not None:
                    await asyncio.wait((placing,), timeout=_CHECK_INTERVAL_S)
                else:
                    await asyncio.sleep(_CHECK_INTERVAL_S)
        finally:
            if placing is not None:
                placing.cancel()

    async def _place(self, queries: list[Query]) -> None:
        """Ask the partition's leader how far the log is committed, and set this offset as the position of all ``queries``."""
        await self._count_partitions()
        try:
            bounds = await self._client.bounds(self._settings.stream, self._settings.partition, options=_READ_OPTIONS)
            self._pending.set_position(queries, bounds.end_offset)
        except LiftError as error:
            for query in self._pending.drop(queries):
                await self._refuse(
                    query.reply,
                    QueryRejectedError(
                        f"Cannot determine the committed offset: {error.code}: {error}. Retry later, or accept an older state "
                        "(--at-least 0)."
                    ),
                )

    async def _answer_ready(self) -> None:
        """Answer the queries whose records the state has. Other tasks of the process run every ``step_s`` seconds."""
        began_s = time.monotonic()
        while (machine := self._instance.machine) is not None and not machine.failed:  # otherwise queries wait for a restore
            if (query := self._pending.pop_ready(machine.position)) is None:
                return
            await self._guard.run(self._query(machine, query), query.reply.encode())
            if time.monotonic() - began_s >= self._settings.step_s:
                await asyncio.sleep(0)
                began_s = time.monotonic()

    async def _query(self, machine: ServiceMachine, query: Query) -> None:
        try:
            answer = machine.query(query.body)
        except ServiceFailedError as error:
            await self._refuse(query.reply, QueryFailedError(str(error)))
            return
        if len(answer) + _HEADERS_BYTES > self._transport.connection.max_payload:
            await self._refuse(
                query.reply,
                QueryFailedError(f"The answer has {len(answer)} bytes and does not fit into a NATS message. Ask for less."),
            )
            return
        self.answered_count += 1
        headers = {POSITION_HEADER: str(machine.position), **self._answer_headers()}
        with contextlib.suppress(UnavailableError):  # the client asks again
            await self._publish(query.reply, answer, headers)

    def _answer_headers(self) -> dict[str, str]:
        partitions = {PARTITIONS_HEADER: str(self._partitions)} if self._partitions else {}
        return {NODE_HEADER: self._settings.node, **partitions}

    async def _publish(self, reply: str | bytes, answer: bytes, headers: dict[str, str]) -> None:
        await publish_answer(self._transport.publish, (self._inboxes,), self.counters, reply, answer, headers)

    async def _reject(self, reply: bytes, error: Exception) -> None:
        await self._refuse(
            reply, QueryFailedError(f"The service failed on this query: {type(error).__name__}. See the log of the service.")
        )

    async def _refuse(self, reply: str | bytes, error: LiftError) -> None:
        self.refused_count += 1
        headers = {ERROR_HEADER: error.code, **self._answer_headers()}
        with contextlib.suppress(UnavailableError):
            await self._publish(reply, str(error).encode("utf-8", "replace")[:_HEADERS_BYTES], headers)
