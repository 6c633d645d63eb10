"""Fixtures with a real nats-server on a free port and a scripted responder. They test the client without a sidecar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from liftpy.client import Client, queue
from liftpy.nats.transport import Transport, open_connection
from liftpy.testing.memory import memory_cluster
from sidecar.dev.nats_server import NatsServer


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    with NatsServer() as server:
        yield server.url


@pytest.fixture
async def transport(nats_url: str) -> AsyncIterator[Transport]:
    connection = await open_connection(nats_url)
    transport = Transport(connection)
    yield transport
    await transport.close()


@pytest.fixture
async def server_side(nats_url: str) -> AsyncIterator[Transport]:
    """Return a second NATS connection, for the responder."""
    transport = Transport(await open_connection(nats_url, name="other-side"))
    yield transport
    await transport.close()


@pytest.fixture
async def queue_client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """Return a client of a cluster in memory with the streams ``jobs`` and ``dead``. Its workers ask again soon."""
    monkeypatch.setattr(queue, "_CHECK_NS", 5_000_000)
    monkeypatch.setattr(queue, "_ASK_AGAIN_S", 0.05)
    async with memory_cluster() as cluster, cluster.client() as client:
        await asyncio.to_thread(cluster.serve_groups)
        await client.create_stream("jobs", "jobs")
        await client.create_stream("dead", "dead")
        yield client
