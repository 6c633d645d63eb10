"""Test that the receiver of a NATS connection joins bytes to whole messages and wakes its read task for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftpy.nats import connection as receiving
from liftpy.nats.connection import ClientConnection
from liftpy.nats.parser import READ_BYTES

PAYLOAD = bytes(range(250)) * 4000
LINE = b"MSG a.b 1 %d\r\n" % len(PAYLOAD)


class Transport(asyncio.Transport):
    """A socket whose bytes come from the test."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.protocol = True, asyncio.StreamReaderProtocol(asyncio.StreamReader())

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


class Streams:
    """The stream reader of nats-py over the socket."""

    def __init__(self) -> None:
        self.socket = Transport()
        self._io_reader = asyncio.StreamReader()
        self._io_writer = type("Writer", (), {"transport": self.socket})

    def at_eof(self) -> bool:
        return False


class Connection(ClientConnection):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []
        self.wakes = 0
        self._transport: Any = Streams()
        self._subs[1] = type("Sub", (), {"subject": "a.*"})()  # type: ignore[assignment]
        self._status = ClientConnection.CONNECTED
        self.gate = asyncio.Event()
        self.gate.set()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.heard.append(data)
        await self.gate.wait()

    async def _process_data(self, data: bytes) -> None:
        self.wakes += 1
        await super()._process_data(data)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def connection() -> Any:
    made = Connection()
    reading = asyncio.ensure_future(made._read_loop())
    await settle()
    yield made
    reading.cancel()
    await asyncio.wait([reading])
    assert made._receiver is None


async def test_nats_receiver_wakes_the_read_task_when_a_message_is_complete(connection: Connection) -> None:
    feed, whole = connection._transport.socket.protocol.data_received, LINE + PAYLOAD + b"\r\n"
    connection._pings_outstanding = 2
    feed(whole[:100_000])
    await settle()
    assert (connection.wakes, connection._pings_outstanding) == (1, 0)  # it found out how long it is
    for at in range(100_000, len(whole), 100_000):
        feed(whole[at : at + 100_000])
        await settle()
    assert (connection.wakes, connection.heard) == (2, [PAYLOAD])
    feed(whole + whole[:50])
    feed(whole[50:])
    await settle()
    assert connection.heard == [PAYLOAD] * 3


async def test_nats_receiver_with_a_slow_callback_pauses_the_socket(connection: Connection) -> None:
    connection.gate.clear()
    feed = connection._transport.socket.protocol.data_received
    feed(LINE + PAYLOAD + b"\r\n")
    await settle()
    assert connection.heard == [PAYLOAD]
    fed = 0
    while connection._transport.socket.reading:
        feed(LINE + PAYLOAD + b"\r\n")
        fed += 1
    assert fed == receiving._MAX_UNREAD_BYTES // len(PAYLOAD) + 1 == 2 * READ_BYTES // len(PAYLOAD) + 1
    connection.gate.set()
    await settle()
    assert (connection.heard, connection._transport.socket.reading) == ([PAYLOAD] * (fed + 1), True)


async def test_nats_receiver_ignores_bytes_during_a_reconnect(connection: Connection) -> None:
    connection._status = ClientConnection.RECONNECTING
    assert connection._process_arrived(LINE + PAYLOAD + b"\r\n") is None
    await settle()
    assert connection.heard == []
    connection._status = ClientConnection.CONNECTED


async def test_nats_receiver_reports_a_lost_connection_as_unexpected_eof() -> None:
    made, errors = Connection(), []

    async def failed(error: Exception) -> None:
        errors.append(type(error).__name__)

    made._process_op_err = failed  # type: ignore[method-assign]
    reading = asyncio.ensure_future(made._read_loop())
    await settle()
    assert made._receiver is not None
    made._receiver.connection_lost(None)
    await asyncio.wait_for(reading, 30)
    assert errors == ["UnexpectedEOF"]


async def test_nats_connection_over_an_unknown_transport_reads_with_nats_py() -> None:
    made = Connection()
    made._transport._io_writer = made._transport._io_reader = None
    parts = [LINE + PAYLOAD + b"\r\n"]

    async def read(size_bytes: int) -> bytes:
        if not parts:
            raise asyncio.CancelledError
        return parts.pop()

    made._transport.read = read
    await made._read_loop()
    assert made.heard == [PAYLOAD]


async def test_nats_receiver_delivers_bytes_buffered_by_nats_py_first() -> None:
    """The first message may arrive in one packet with the last line of the handshake."""
    streams = Streams()
    streams._io_reader.feed_data(b"first ")
    receiver = await receiving.receive(type("C", (), {"_transport": streams})(), lambda data: data, 10)
    assert receiver is not None
    receiver.data_received(b"second")
    assert await receiver.read() == b"first second"


async def test_nats_receiver_buffer_limit_counts_only_unread_bytes() -> None:
    receiver = receiving.Receiver(Transport(), lambda data: data, 10)
    for _ in range(5):
        receiver.data_received(b"x" * 6)
        assert receiver.transport.reading  # type: ignore[attr-defined]
        assert await receiver.read() == b"x" * 6
