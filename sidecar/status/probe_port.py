"""Another address for probes and metrics, such as a pod's own: /livez, /readyz and /metrics are answered there, and nothing else.

A kubelet, or a Prometheus on another host, can't reach loopback, where the status page is. What is answered here names no stream, no
partition and nobody who asked for anything, unless ``metrics_streams`` does; who may reach the address is the network's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from liftpy.errors import ConfigError

REQUEST_TIMEOUT_S = 5.0
MOST_CONNECTIONS = 32
"""At a time; a visitor beyond them is hung up on."""
Answer = Callable[[bytes], "bytes | Awaitable[bytes]"]
"""A request's head -> what is sent."""


class ProbePort:
    """``open``, ``close``."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def open(self, host: str, port: int) -> None:
        """Listen; raises ConfigError where that can't be."""
        try:
            self._server = await asyncio.start_server(self._handle, host, port)
        except OSError as error:
            raise ConfigError(f"probe_listen {host}:{port} can't be used: {error}") from None

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= MOST_CONNECTIONS:
                request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_TIMEOUT_S)
                answer = self._answer(request)
                writer.write(answer if isinstance(answer, bytes) else await answer)
                await asyncio.wait_for(writer.drain(), REQUEST_TIMEOUT_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a visitor that goes away or speaks no HTTP
        finally:
            self._connections -= 1
            writer.close()

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None
