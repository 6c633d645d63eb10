"""One command's time with the cluster: an event loop, a connected client, and everything closed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

from liftpy.client import Client, connect
from sidecar.settings import Target

T = TypeVar("T")


def with_client(target: Target, work: Callable[[Client], Awaitable[T]], *, timeout_s: float = 5.0) -> T:
    """Run ``work`` with a Client of the cluster that ``target`` names; raises what it raises, and UnavailableError."""

    async def session() -> T:
        client = await connect(
            target.nats, target.namespace, credentials=target.credentials, name="liftpy-cli", timeout_s=timeout_s
        )
        if target.internal:
            client.allow_internal()
        async with client:
            return await work(client)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(session())
