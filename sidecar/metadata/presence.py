"""Whether nodes whose heartbeats are late are still there (``sidecar/bus/absence.py``); what it is good for is said in
``liftpy.cluster.session``. One request per late node and ``_EVERY_S``, and none while all heartbeats come in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

from nats.aio.client import Client

from liftpy.wire.subjects import Subjects
from sidecar.bus.absence import is_absent
from sidecar.ending import end_tasks
from sidecar.tasks import spawn

_EVERY_S = 0.1
_AT_ONCE = 64
"""Nodes that are asked for at the same time; the others' turn comes later."""


class Presence:
    """``gone(node_id)`` is called, on the loop, when nobody listens for the node."""

    def __init__(self, connection: Client, subjects: Subjects, gone: Callable[[str], None]) -> None:
        self._connection = connection
        self._subjects = subjects
        self._gone = gone
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._next_look = 0.0

    def look(self, overdue: Callable[[], Iterable[str]]) -> None:
        """Ask for the nodes that are late; call it often, it looks every ``_EVERY_S``."""
        now = time.monotonic()
        if now < self._next_look or not self._connection.is_connected:
            return
        self._next_look = now + _EVERY_S
        for node_id in overdue():
            if node_id not in self._asking and len(self._asking) < _AT_ONCE:
                task = spawn(self._ask(node_id), f"looking for {node_id}")
                self._asking[node_id] = task
                task.add_done_callback(partial(self._asked, node_id))

    def _asked(self, node_id: str, _: object) -> None:
        self._asking.pop(node_id, None)

    async def _ask(self, node_id: str) -> None:
        if await is_absent(self._connection, self._subjects, node_id):
            self._gone(node_id)

    async def close(self) -> None:
        """Ask no more."""
        await end_tasks(self._asking.values())
