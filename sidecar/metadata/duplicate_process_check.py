"""A new process asks whether another process uses its node id (``liftpy/core/metadata/duplicate_process_check.py``)."""

from __future__ import annotations

import asyncio
import logging

from nats.aio.client import Client

from liftpy.core.metadata.duplicate_process_check import Predecessor, Sign, Verdict
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import FencedError
from sidecar.runtime import clock
from sidecar.transport.liveness import look_for

logger = logging.getLogger("liftpy.node")

_ASK_EVERY_S = 0.1


async def wait_for_predecessor(connection: Client, subjects: Subjects, node_id: str, inquiry: Predecessor) -> None:
    """Return when no process answers for ``node_id``. Raise FencedError if another process keeps answering."""
    while True:
        was_present = inquiry.is_present
        sign = await look_for(connection, subjects, node_id) if connection.is_connected else Sign.UNASKED
        verdict = inquiry.heard(sign, clock.now_ns())
        if verdict is Verdict.GO_ON:
            return
        if verdict is Verdict.GIVE_UP:
            raise FencedError(
                f"Another process runs as node {node_id!r} (it answers on {subjects.status(node_id)}). Two processes "
                "must not use the same id or a copied data directory. Stop the other process, or start this one with "
                "another --node-id and its own --data."
            )
        if inquiry.is_present and not was_present:
            logger.warning("another process runs as node %s: waiting for it to end", node_id)
        if sign is not Sign.SILENT:
            await asyncio.sleep(_ASK_EVERY_S)
