"""Test the HTTP server with a client that does not read: the connection is closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator

import pytest

from sidecar.status import http as serving
from sidecar.status.http import HTML, EventStreamResponse, HttpServer, http

LARGE = b"x" * 20_000_000
"""More than the buffers of a socket's two ends."""


async def live() -> EventStreamResponse:
    async def events() -> AsyncGenerator[bytes, None]:
        while True:
            yield LARGE

    return EventStreamResponse(events())


@pytest.mark.parametrize("watches", [False, True])
async def test_http_server_closes_the_connection_of_a_client_that_does_not_read(
    watches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REQUEST_TIMEOUT_S", 0.05)
    made = HttpServer(lambda request: live() if watches else http("200 OK", HTML, LARGE))
    port = await made.open("127.0.0.1", 0)
    with socket.socket() as visitor:
        visitor.setblocking(False)
        await asyncio.get_running_loop().sock_connect(visitor, ("127.0.0.1", port))
        visitor.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(10):
            while not made.connections:
                await asyncio.sleep(0.001)
            (writer,) = made._writers
            while made.connections:
                await asyncio.sleep(0.005)
        assert writer.transport.get_write_buffer_size() == 0, "nothing waits for him"
        assert (made.live_count, len(made._writers)) == (0, 0)
    await made.close()
