"""Queue of messages that the metadata group publishes. One task sends them in order, so that a tick never waits for NATS.

The queue is limited. A message is dropped and counted if the queue is full or the connection is lost. It is never
buffered over a
reconnect. Lost frames of the group end their session, and lost entries of the feed show as a gap. Both start again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from typing import Any

import nats.errors
from nats.aio.client import Client

from liftpy.nats.cancellation import end_tasks
from sidecar.runtime.tasks import spawn

MAX_WAITING_BYTES = 64 << 20


async def unsubscribe(subscriptions: list[Any]) -> None:
    """End the subscriptions. A subscription of a lost connection has already ended."""
    for subscription in subscriptions:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()
    subscriptions.clear()


class Outgoing:
    """Queue of messages to publish, with one sending task. ``counters``: numbers of unsent messages, by reason."""

    def __init__(self, connection: Client) -> None:
        self.counters: Counter[str] = Counter()
        self._connection = connection
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None

    def put(self, subject: str, payload: bytes) -> None:
        """Queue ``payload`` for ``subject``."""
        if self._waiting_bytes + len(payload) > MAX_WAITING_BYTES:
            self.counters["not sent: too much is waiting"] += 1
            return
        self._waiting.append((subject, payload))
        self._waiting_bytes += len(payload)
        if self._task is None or self._task.done():
            self._task = spawn(self._send(), "sending for the metadata group")

    async def _send(self) -> None:
        while self._waiting:
            subject, payload = self._waiting.popleft()
            self._waiting_bytes -= len(payload)
            if not self._connection.is_connected:
                self.counters["not sent: not connected"] += 1
                continue
            try:
                await self._connection.publish(subject, payload)
            except Exception as error:  # whatever the bus says, the member goes on: the other side sees the loss
                self.counters[f"not sent: {type(error).__name__}"] += 1

    async def close(self) -> None:
        """Stop sending."""
        self._waiting.clear()
        self._waiting_bytes = 0
        await end_tasks([self._task])
