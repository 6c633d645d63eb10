"""A server that says what a test wants it to say."""

from __future__ import annotations

import asyncio
import contextlib


class FakeServer:
    """Lets everybody in; ``says`` goes to whoever is connected."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true}\r\n')
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            while await reader.readline():
                writer.write(b"PONG\r\n")
                if writer not in self.writers:
                    self.writers.append(writer)

    def says(self, data: bytes) -> None:
        self.writers[-1].write(data)

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.writers:
            writer.close()
