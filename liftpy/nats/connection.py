"""``Receiver``: passes the bytes of a socket to the parser at once, in the callback of the event loop.

nats-py reads with asyncio streams. They store the bytes, wake a task and give it a copy. That costs a turn of the event
loop and two copies for each wake-up, a third of the cost of a reader with large answers. A Receiver replaces the stream
protocol under the same transport, after the handshake. It passes the bytes to ``take``. It keeps the bytes that ``take``
leaves (a command that needs an await), and those that arrive while the reading task is busy: at most ``bound_bytes``, plus
one read of the socket. Above this limit, it stops reading until the task has caught up.

All other events (the end of the connection, the limit for writing) go to the stream protocol, which nats-py uses for writing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from nats.errors import UnexpectedEOF

from liftpy.nats.parser import READ_BYTES, StrictConnection

_MAX_UNREAD_BYTES = 2 * READ_BYTES
"""Maximum number of bytes to receive while the reading task is busy. Above it, the socket is not read."""
Take = Callable[[bytes], bytes | None]
"""Called with received bytes. It returns the bytes for the reading task. None: no work. b"": no bytes, but the task must run.
"""


class Receiver(asyncio.Protocol):
    """Receives the data of a connection and passes it to ``take``. ``receive`` makes it. Call ``stop`` at the end."""

    def __init__(self, transport: asyncio.Transport, take: Take, bound_bytes: int) -> None:
        self.transport = transport
        self._stream = cast(asyncio.Protocol, transport.get_protocol())
        self._take = take
        self._bound_bytes = bound_bytes
        self._unread: deque[bytes] = deque()
        """Bytes for the reading task, in order."""
        self._unread_bytes = 0
        self._paused = False
        self._reader: asyncio.Future[None] | None = None
        """Future that the reading task waits for. None: the task is busy, and new data must wait."""
        self._ended: Exception | None = None
        """Error that ended the data. None: more data may arrive."""
        self._stopped = False
        transport.set_protocol(self)

    @property
    def is_idle(self) -> bool:
        """True if the connection is open and no data waits for the reading task."""
        return not self._unread and self._ended is None and not self._stopped

    def data_received(self, data: bytes) -> None:
        if self._stopped or self._ended is not None:
            return
        left: bytes | None = data
        if self._reader is not None:
            try:
                left = self._take(data)
            except Exception as error:  # the reading task raises the error and reconnects
                self._end(error)
                return
        if left is not None:
            self._append_unread(left)

    def _append_unread(self, left: bytes) -> None:
        self._unread.append(left)
        self._unread_bytes += len(left)
        if self._unread_bytes > self._bound_bytes and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _end(self, error: Exception) -> None:
        if self._ended is None:
            self._ended = error
            self._wake()

    def eof_received(self) -> bool | None:
        self._end(UnexpectedEOF())
        stays_open = self._stream.eof_received()
        return (
            stays_open if self.transport.get_extra_info("ssl_object") is None else None
        )  # for TLS, asyncio closes both directions, otherwise it logs a warning

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or UnexpectedEOF())
        self._stream.connection_lost(error)

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()

    async def read(self) -> bytes:
        """Wait until ``take`` leaves data for the reading task, and return this data.

        Data that arrives later waits until the next call. After the last byte, the method raises the error that ended the data.
        """
        while not self._unread:
            if self._ended is not None:
                raise self._ended
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()
        return data

    def stop(self) -> None:
        """Stop reading. Data that still arrives is dropped."""
        self._stopped = True
        self._unread.clear()


async def receive(connection: Any, take: Take, bound_bytes: int) -> Receiver | None:
    """Replace the stream protocol of nats-py's ``connection`` by a Receiver, and return it. None: for a WebSocket.

    The Receiver also takes the data that the stream has not read yet. ``take``: called with received bytes.
    ``bound_bytes``: maximum size of data that waits for the reading task.
    """
    streams = connection._transport
    writer, reader = getattr(streams, "_io_writer", None), getattr(streams, "_io_reader", None)
    if writer is None or reader is None:
        return None
    receiver = Receiver(writer.transport, take, bound_bytes)
    if reader.at_eof():
        receiver._end(UnexpectedEOF())
    elif reader.exception() is not None:
        receiver._end(reader.exception())
    else:
        reader.feed_eof()  # so that the next protocol line does not wait
        if early := await reader.read():
            receiver._append_unread(early)
    return receiver


class ClientConnection(StrictConnection):
    """Connection that passes messages to subscriptions when data arrives, without the reading task of nats-py."""

    _max_unread_bytes = _MAX_UNREAD_BYTES
    _receiver: Receiver | None = None
    """Receiver of the current connection. None: before the handshake, or if nats-py itself reads."""

    async def _read_loop(self) -> None:
        """Process the data that ``_process_arrived`` leaves for the reading task."""
        receiver = await receive(self, self._process_arrived, self._max_unread_bytes)
        self._use_receiver(receiver)
        try:
            await super()._read_loop()
        finally:
            if receiver is not None:
                receiver.stop()
            if self._receiver is receiver:
                self._use_receiver(None)

    def _use_receiver(self, receiver: Receiver | None) -> None:
        self._receiver = receiver

    async def _read(self) -> bytes:
        return await (self._receiver.read() if self._receiver is not None else super()._read())

    def _process_arrived(self, data: bytes) -> bytes | None:
        """Process arrived data. Return None, or b"" if the reading task must process data that needs an await."""
        if self.is_closed or self.is_reconnecting:
            return None  # the data belongs to a closed connection
        self._pings_outstanding = 0
        parser: Any = self._ps
        return None if parser.feed(data) else b""


async def taken_over(connection: Any) -> socket.socket | None:
    """Take the socket from a new, idle connection of nats-py, and return it in blocking mode. nats-py then no longer uses it.

    Return None if this is not possible (TLS, a WebSocket, or unread data).
    """
    writer = getattr(connection._transport, "_io_writer", None)
    if writer is None or writer.get_extra_info("ssl_object") is not None or connection._ps._held_bytes:
        return None
    sock = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
    writer.transport.abort()  # it closes only nats-py's own descriptor
    sock.setblocking(True)
    return sock
