"""Test a Receiver: it takes messages on arrival and buffers the others in order, within a bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.errors import UnexpectedEOF

from liftpy.nats.connection import Receiver, receive

BOUND_BYTES = 100


class FakeTransport:
    """What a Receiver needs of a transport."""

    ssl_object: object = None

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.protocol: asyncio.BaseProtocol = asyncio.StreamReaderProtocol(self.reader)
        self.reading = True

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str) -> object:
        return self.ssl_object if name == "ssl_object" else None

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


class BytesRecorder:
    """Takes everything but what begins with ``!`` (to be awaited), ``?`` (left as it is) or ``x`` (fails)."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def __call__(self, data: bytes) -> bytes | None:
        if data.startswith(b"x"):
            raise ValueError("no")
        if data.startswith(b"?"):
            return data
        self.taken.append(data)
        return b"" if data.startswith(b"!") else None


class Bench:
    """A Receiver, and a task that reads what it leaves as long as ``gate`` is open."""

    def __init__(self) -> None:
        self.transport: Any = FakeTransport()
        self.taker = BytesRecorder()
        self.receiver = Receiver(self.transport, self.taker, BOUND_BYTES)
        self.left: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            self.left.append(await self.receiver.read())
            await self.gate.wait()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def bench() -> Bench:
    made = Bench()
    await made.settle()
    return made


async def test_receiver_delivers_bytes_in_order_while_the_reading_task_is_busy(bench: Bench) -> None:
    bench.gate.clear()
    bench.receiver.data_received(b"!1")
    bench.receiver.data_received(b"2")
    await bench.settle()
    bench.receiver.data_received(b"3")
    assert bench.taker.taken == [b"!1"]
    assert b"".join(bench.left) == b"2"
    bench.gate.set()
    await bench.settle()
    assert b"".join(bench.left) == b"23"
    bench.receiver.data_received(b"4")
    assert bench.taker.taken == [b"!1", b"4"], "it has caught up"
    bench.reading.cancel()


async def test_receiver_pauses_the_transport_when_the_reading_task_is_behind(bench: Bench) -> None:
    bench.gate.clear()
    bench.receiver.data_received(b"?" * BOUND_BYTES)
    await bench.settle()
    assert bench.transport.reading
    bench.receiver.data_received(b"z" * BOUND_BYTES)
    assert bench.transport.reading, "so much may wait"
    bench.receiver.data_received(b"z")
    assert not bench.transport.reading
    bench.gate.set()
    await bench.settle()
    assert bench.transport.reading
    assert len(b"".join(bench.left)) == 2 * BOUND_BYTES + 1
    bench.reading.cancel()


@pytest.mark.parametrize("how", ["eof", "lost", "reset"])
async def test_receiver_reports_the_end_of_the_connection_after_the_last_byte(bench: Bench, how: str) -> None:
    bench.gate.clear()
    bench.receiver.data_received(b"?1")
    await bench.settle()
    bench.receiver.data_received(b"2")
    if how == "eof":
        assert bench.receiver.eof_received() is True
    bench.receiver.connection_lost(ConnectionResetError() if how == "reset" else None)
    bench.receiver.data_received(b"3")
    bench.gate.set()
    with pytest.raises(ConnectionResetError if how == "reset" else UnexpectedEOF):
        await bench.reading
    assert b"".join(bench.left) == b"?12"
    assert bench.transport.reader.at_eof() or bench.transport.reader.exception(), "who waits for the close hears of it too"


async def test_receiver_error_is_raised_in_the_reading_task(bench: Bench) -> None:
    bench.receiver.data_received(b"x")
    bench.receiver.data_received(b"behind it")
    with pytest.raises(ValueError, match="no"):
        await bench.reading
    assert (bench.left, bench.taker.taken, list(bench.receiver._unread)) == ([], [], []), "nothing is read again"


async def test_receiver_after_stop_passes_no_bytes_to_the_parser(bench: Bench) -> None:
    bench.receiver.stop()
    bench.receiver.data_received(b"a")
    bench.receiver.data_received(b"?b")
    await bench.settle()
    assert (bench.taker.taken, bench.left) == ([], [])
    bench.reading.cancel()


class Streams:
    """nats-py's transport."""

    def __init__(self, transport: FakeTransport) -> None:
        self._io_reader = transport.reader
        self._io_writer = type("Writer", (), {"transport": transport})()


@pytest.mark.parametrize("ended", [False, True])
async def test_receiver_first_delivers_the_bytes_that_asyncio_had_already_buffered(ended: bool) -> None:
    transport = FakeTransport()
    transport.reader.feed_data(b"" if ended else b"early")
    if ended:
        transport.reader.feed_eof()
    connection = type("Connection", (), {"_transport": Streams(transport)})()
    receiver = await receive(connection, BytesRecorder(), BOUND_BYTES)
    assert receiver is not None
    assert transport.protocol is receiver
    if ended:
        with pytest.raises(UnexpectedEOF):
            await receiver.read()
        return
    receiver.data_received(b" late")
    assert await receiver.read() == b"early late"
