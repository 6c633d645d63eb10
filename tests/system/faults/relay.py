"""A TCP relay between one node and its NATS server, so that this node alone can be cut off.

Cut ``silent``: nothing passes and nothing is closed, as when packets are lost; what was on its way is delivered when
the relay heals, however late, as TCP does. Cut ``closed``: connections are reset and new ones refused.
"""

from __future__ import annotations

import asyncio
import contextlib

_CHUNK_BYTES = 64 * 1024
_HOST = "127.0.0.1"


class Relay:
    """Listens on a loopback port of its own and passes bytes to and from ``target_port``."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._port = 0
        self._server: asyncio.Server | None = None
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where the node connects to."""
        return f"nats://{_HOST}:{self._port}"

    async def start(self) -> None:
        """Listen; on the same port again after a cut."""
        self._server = await asyncio.start_server(self._accepted, _HOST, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self, *, silent: bool) -> None:
        """Let nothing pass until ``heal``. ``silent``: the connections stay open."""
        if silent:
            self._passes.clear()
            return
        assert self._server is not None
        self._server.close()
        self._server = None
        self._reset()

    async def heal(self) -> None:
        """Let everything pass again."""
        self._passes.set()
        if self._server is None:
            await self.start()

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        self._reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._passes.wait()
            there, back = await asyncio.open_connection(_HOST, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(back)
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            for end in (writer, back):
                self._writers.discard(end)
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
            await self._passes.wait()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
