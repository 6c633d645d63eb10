"""A parser of the NATS client protocol that takes a whole read at once and calls sinks synchronously.

nats-py's own parser and dispatch cost 6-10 us a message: three regular expressions, a Msg, a queue and a task switch. Here a
message costs a search, a split and a slice. Everything that is not a message for a sink (PING, INFO, -ERR, subscriptions made
by nats-py itself) goes to nats-py's own code unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nats.protocol.parser import Parser

Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""(subject, reply or b"", payload, raw NATS header block or b""); called on the loop, must not raise and not block."""

_LONGEST_LINE_BYTES = 64 * 1024


class SinkParser:
    """Takes the place of ``nats.protocol.parser.Parser`` in a connection; ``sinks`` maps the subscription's id to its sink."""

    def __init__(self, connection: Any, sinks: dict[bytes, Sink]) -> None:
        self._connection = connection
        self._sinks = sinks
        self._rest = Parser(connection)
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0
        """Of an incomplete message, so that its pieces are joined once and not at every read; 0 when it isn't known."""

    def reset(self) -> None:
        """Forget what was half received; a new connection starts."""
        self._chunks = []
        self._held_bytes = self._needed_bytes = 0
        self._rest.reset()

    async def parse(self, data: bytes = b"") -> None:
        """Dispatch every complete message and command in what has come so far."""
        self._chunks.append(data)
        self._held_bytes += len(data)
        if self._held_bytes < self._needed_bytes:
            return
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        self._held_bytes = self._needed_bytes = 0
        position = 0
        while position < len(buffer):
            position = self._messages(buffer, position)
            end = await self._other(buffer, position)
            if end == position:
                break
            position = end
        self._keep(buffer[position:] if position else buffer)

    def _keep(self, rest: bytes) -> None:
        """Put an incomplete message back; a reset in between (a reconnect) has already thrown it away."""
        if rest:
            self._chunks = [rest]
            self._held_bytes = len(rest)

    def _messages(self, buffer: bytes, position: int) -> int:
        """Feed the sinks from ``position`` on; return the position of the first thing that is not a message for a sink."""
        size, sinks, stats = len(buffer), self._sinks, self._connection.stats
        count = size_bytes = 0
        while position < size:
            first = buffer[position]
            with_headers = first == 0x48  # H of HMSG
            if not with_headers and first != 0x4D:
                break
            eol = buffer.find(b"\r\n", position)
            if eol < 0:
                break
            line = buffer[position:eol].split()
            sink = sinks.get(line[2]) if len(line) > 3 else None
            if sink is None:
                break
            start, total = eol + 2, int(line[-1])
            end = start + total
            if end + 2 > size:
                self._needed_bytes = end + 2 - position
                break
            try:
                if with_headers:
                    body = start + int(line[-2])
                    sink(line[1], line[3] if len(line) == 6 else b"", buffer[body:end], buffer[start:body])
                else:
                    sink(line[1], line[3] if len(line) == 5 else b"", buffer[start:end], b"")
            except Exception as error:  # a bug, but of one message: what comes after it is read all the same [A6]
                self._connection.sink_failed(line[1], error)
            count += 1
            size_bytes += total
            position = end + 2
        stats["in_msgs"] += count
        stats["in_bytes"] += size_bytes
        return position

    async def _other(self, buffer: bytes, position: int) -> int:
        """Hand one complete command, or message of nats-py's own subscriptions, to nats-py; return where it ends."""
        if self._needed_bytes or position >= len(buffer):
            return position
        eol = buffer.find(b"\r\n", position)
        if eol < 0:
            if len(buffer) - position > _LONGEST_LINE_BYTES:
                await self._rest.parse(buffer[position:])  # raises nats-py's ProtocolError, which reconnects
            return position
        end = eol + 2
        size = buffer[position:eol].split()[-1:]
        if buffer[position] in b"HM" and size and size[0].isdigit():
            end += int(size[0]) + 2
            if end > len(buffer):
                self._needed_bytes = end - position
                return position
        await self._rest.parse(buffer[position:end])
        return end
