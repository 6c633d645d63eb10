"""Queue of messages that the metadata group publishes. So a tick never waits for NATS.

A message is dropped and counted if the connection is lost or its buffer is full. It is never buffered over a reconnect.
If frames of the group are lost, their session restarts. If entries of the feed are lost, followers detect the gap and
request them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import nats.errors

from sidecar.transport.connection import BusConnection


async def unsubscribe(subscriptions: list[Any]) -> None:
    """End the NATS subscriptions. A subscription of a lost connection has already ended and is skipped."""
    for subscription in subscriptions:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()
    subscriptions.clear()


class PublishQueue:
    """Publishes messages of the metadata group in order, without waiting. ``counters``: numbers of unsent messages, by reason."""

    def __init__(self, connection: BusConnection) -> None:
        self.counters: Counter[str] = Counter()
        self._connection = connection

    def put(self, subject: str, payload: bytes) -> None:
        """Send ``payload`` to ``subject``, or drop and count it. The size of unsent messages is limited (``SEND_BUFFER_BYTES``)."""
        if not self._connection.is_connected:
            self.counters["not_sent_disconnected"] += 1
        elif not self._connection.send(subject, (payload,)):
            self.counters["not_sent_queue_full"] += 1
