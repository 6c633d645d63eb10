"""Fixtures with a real nats-server on a free port and a scripted responder. They test the client without a sidecar."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from liftpy.nats.transport import Transport, open_connection
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
