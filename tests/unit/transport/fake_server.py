"""A NATS server that sends what a test lets it send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time


class FakeServer:
    """Accepts every client, and answers each PING.

    Args:
        error: Sent after the answer to the first PING of a connection, which then ends. b"": none.
        in_handshake: True to send ``error`` instead of this answer.

    Attributes:
        info: INFO line for the next connections.
        late: True to answer only the first PING of a connection.
        mute: True to answer no PING.
        owed: Number of PINGs without an answer.
        lines: All lines of all clients.
        writers: All connections, in the order of their arrival.
        accepted_s: Monotonic time of each arrival, in seconds.
        open: Number of connections that are open now.
    """

    def __init__(self, error: bytes = b"", *, in_handshake: bool = False) -> None:
        self.error, self.in_handshake = error, in_handshake
        self.info = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true}\r\n'
        self.late = self.mute = False
        self.owed = self.open = 0
        self.lines: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.accepted_s: list[float] = []

    async def start(self, port: int = 0) -> str:
        """Listen on ``port``, 0 for any free one. Return the URL."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return f"nats://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.info)
        self.accepted_s.append(time.monotonic())
        self.writers.append(writer)
        self.open += 1
        pings = 0
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            while line := await reader.readline():
                self.lines.append(line)
                if line != b"PING\r\n":
                    continue
                pings += 1
                if self.mute or (self.late and pings > 1):
                    self.owed += 1
                elif not (self.error and self.in_handshake):
                    writer.write(b"PONG\r\n")
                if self.error:
                    writer.write(self.error)
                    break
        self.open -= 1
        writer.close()

    @property
    def users(self) -> list[str | None]:
        """User in the CONNECT line of each connection."""
        return [json.loads(line[8:]).get("user") for line in self.lines if line.startswith(b"CONNECT ")]

    def says(self, data: bytes) -> None:
        """Send ``data`` to the newest connection."""
        self.writers[-1].write(data)

    def disconnect(self) -> None:
        """Close all connections. Clients may connect again."""
        for writer in self.writers:
            writer.close()

    def close(self) -> None:
        """Close all connections, and stop listening."""
        self._server.close()
        self.disconnect()
