"""Checks whether a node is down. NATS knows at once when the connection of a node has ended.

A connected node subscribes to ``<ns>.status.<node>``. A request has three possible results: the node answers, NATS answers
"no responders", or no answer comes because the node hangs. Only "no responders" proves that the node is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats.errors
from nats.aio.client import Client

from liftpy.core.metadata.node_identity import EarlierProcessSign
from liftpy.core.wire import envelope
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import Subjects
from liftpy.nats.cancellation import end_tasks
from sidecar.runtime.tasks import spawn

QUESTION = envelope.encode(MessageType.STATUS_REQUEST, b"present?")
"""Request that the node answers without a status report. It has an envelope, so that no stream stores it as a publish."""
_ANSWER_TIMEOUT_S = 0.5


async def probe_process(connection: Client, subjects: Subjects, node_id: str) -> EarlierProcessSign:
    """Send a status request to the node ``node_id``. Return the sign of life: an answer, no answer, no responders, or not sent."""
    try:
        await connection.request(subjects.status(node_id), QUESTION, timeout=_ANSWER_TIMEOUT_S)
    except nats.errors.NoRespondersError:
        return EarlierProcessSign.ABSENT
    except (nats.errors.TimeoutError, TimeoutError):
        return EarlierProcessSign.SILENT
    except (nats.errors.Error, OSError):
        return EarlierProcessSign.UNASKED
    return EarlierProcessSign.PRESENT


async def is_absent(connection: Client, subjects: Subjects, node_id: str) -> bool:
    """Return True if NATS has no responders for the node ``node_id``. A missing answer proves nothing, so the result is False."""
    return await probe_process(connection, subjects, node_id) is EarlierProcessSign.ABSENT


class Probes:
    """Checks whether other nodes are connected to NATS. At most one check of each node runs at a time."""

    def __init__(self, connection: Client, subjects: Subjects) -> None:
        self._connection = connection
        self._subjects = subjects
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}

    def ask(self, node_id: str, absent: Callable[[], None]) -> None:
        """Check in the background whether the node ``node_id`` is connected. If NATS has no responders for it, call ``absent``."""
        self._waiting.setdefault(node_id, []).append(absent)
        if node_id not in self._asking:
            self._asking[node_id] = spawn(self._ask(node_id), f"probing {node_id}")

    async def _ask(self, node_id: str) -> None:
        callbacks = self._waiting.pop(node_id)
        try:
            if self._connection.is_connected and await is_absent(self._connection, self._subjects, node_id):
                for absent in callbacks:
                    absent()
        finally:
            del self._asking[node_id]
            self._waiting.pop(node_id, None)  # callers of this time ask again

    async def close(self) -> None:
        """Stop all checks. No ``absent`` callback is called afterwards."""
        await end_tasks(list(self._asking.values()))
