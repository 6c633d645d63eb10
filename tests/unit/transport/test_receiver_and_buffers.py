"""Test what moves bytes between a socket and a connection: the receiver, the write buffer, and the thread of an ingest socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from nats.errors import UnexpectedEOF

from liftpy.nats.connection import Receiver, receive
from sidecar.transport import ingest_connection
from sidecar.transport.connection import TOGETHER_BYTES, WriteCoalescer
from sidecar.transport.ingest_connection import SocketThread
from tests.until import block_until

BOUND_BYTES = 100


class FakeTransport:
    """Transport with the methods that a Receiver calls."""

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


@pytest.fixture(autouse=True)
def _one_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "by_default" not in request.node.name:
        monkeypatch.setattr("sidecar.transport.connection.AT_ONCE", 1)


class Transport(asyncio.WriteTransport):
    """Notes each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closing


def outlet() -> tuple[WriteCoalescer, Transport]:
    transport = Transport()
    return WriteCoalescer(transport, asyncio.get_running_loop()), transport


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_write_buffer_sends_the_first_message_of_a_loop_turn_at_once_and_the_rest_at_the_turn_end() -> None:
    out, transport = outlet()
    for number in range(100):
        out.write((b"%d" % number, b" "), 3)
    assert transport.writes == [b"0 "]
    await turn()
    assert transport.writes == [b"0 ", b"".join(b"%d " % number for number in range(1, 100))]
    assert out.waiting_bytes == 0
    out.write((b"next turn",), 9)
    assert transport.writes[2:] == [b"next turn"]


async def test_write_buffer_above_its_bound_or_with_a_large_message_writes_at_once() -> None:
    out, transport = outlet()
    out.write((b"first",), 5)
    piece = b"x" * (TOGETHER_BYTES // 4)
    for _ in range(8):
        out.write((piece,), len(piece))
        assert out.waiting_bytes < TOGETHER_BYTES
    assert [len(write) for write in transport.writes] == [5, TOGETHER_BYTES, TOGETHER_BYTES]
    out.write((b"small",), 5)
    out.write((b"y" * TOGETHER_BYTES,), TOGETHER_BYTES)
    assert transport.writes[3:] == [b"small", b"y" * TOGETHER_BYTES]


async def test_write_buffer_copies_the_given_bytes() -> None:
    out, transport = outlet()
    buffer = bytearray(b"first")
    out.write((buffer,), 5)
    buffer[:] = b"later"
    out.write((memoryview(buffer),), 5)
    buffer[:] = b"spoil"
    await turn()
    assert transport.writes == [b"first", b"later"]


async def test_write_buffer_on_hold_sends_messages_in_one_write_on_release_or_at_turn_end() -> None:
    out, transport = outlet()
    for words in ((b"a", b"b"), (b"c",)):
        out.hold()
        for word in words:
            out.write((word, b" "), 2)
        if words == (b"a", b"b"):
            assert transport.writes == []
            out.release()
            assert transport.writes == [b"a b "]
            await turn()
    await turn()
    assert (transport.writes, out.waiting_bytes) == ([b"a b ", b"c "], 0)
    out.write((b"d",), 1)
    assert transport.writes[2:] == [b"d"], "the hold is over with its turn"


async def test_write_buffer_on_hold_sends_a_large_message_after_the_held_messages() -> None:
    out, transport = outlet()
    out.write((b"first",), 5)
    out.hold()
    out.write((b"a",), 1)
    out.release()
    assert transport.writes == [b"first"], "the turn has had its writes"
    await turn()
    out.hold()
    out.write((b"b",), 1)
    out.write((b"x" * TOGETHER_BYTES,), TOGETHER_BYTES)
    assert [write[:2] for write in transport.writes] == [b"fi", b"a", b"b", b"xx"]
    out.release()
    out.release()
    await turn()
    assert len(transport.writes) == 4


LIMIT_S = 30.0


class Reader:
    """The thread on one end of a pair of sockets."""

    def __init__(self, room: bool, **options: int) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.taken = bytearray()
        self.room, self.looked = room, 0
        self.ended: list[str] = []
        self.sizes: list[int] = []
        self.thread = SocketThread(self.ours.fileno(), self._take, self._has_room, self._has_ended, **options)

    def _take(self, data: bytes) -> None:
        self.sizes.append(len(data))
        self.taken.extend(data)

    @property
    def is_running(self) -> bool:
        return any(thread.name == "liftpy-ingest-socket" for thread in threading.enumerate())

    def _has_room(self) -> bool:
        self.looked += 1
        return self.room

    def _has_ended(self) -> None:
        self.ended.append(threading.current_thread().name)

    def close(self) -> None:
        self.thread.stop()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(ingest_connection, "_SOCKET_RECHECK_S", 0.002)
    made = Reader(room=False)
    yield made
    made.close()


def test_socket_thread_reads_at_most_its_limit_at_once() -> None:
    reader = Reader(room=False, read_bytes=1000)
    reader.theirs.sendall(b"x" * 10_500)
    reader.room = True
    reader.thread.resume()
    block_until(lambda: len(reader.taken) == 10_500)
    assert max(reader.sizes) == 1000
    reader.close()


def test_socket_thread_reads_in_order_and_pauses_while_the_buffer_is_full(reader: Reader) -> None:
    reader.theirs.sendall(b"one ")
    seen = reader.looked
    block_until(lambda: reader.looked > seen + 5)
    assert reader.taken == b""
    reader.room = True
    reader.thread.resume()
    block_until(lambda: reader.taken == b"one ")
    reader.theirs.sendall(b"two")
    block_until(lambda: reader.taken == b"one two")
    assert not reader.ended


def test_socket_thread_with_a_full_buffer_resumes_when_free_space_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_connection, "_SOCKET_RECHECK_S", 10 * LIMIT_S)
    reader = Reader(room=False)
    block_until(lambda: reader.looked == 1)
    reader.theirs.sendall(b"x")
    reader.room = True
    reader.thread.resume()
    block_until(lambda: reader.taken == b"x")
    reader.close()


def test_socket_thread_reports_eof_once(reader: Reader) -> None:
    reader.room = True
    reader.thread.resume()
    reader.theirs.sendall(b"last")
    reader.theirs.close()
    block_until(lambda: bool(reader.ended))
    assert (reader.taken, reader.ended) == (b"last", ["liftpy-ingest-socket"])


def test_socket_thread_after_stop_reads_nothing_and_reports_no_eof(reader: Reader) -> None:
    reader.room = True
    reader.thread.resume()
    reader.theirs.sendall(b"before")
    block_until(lambda: reader.taken == b"before")
    reader.thread.stop()
    reader.thread.stop()
    reader.theirs.sendall(b"after")
    block_until(lambda: not reader.is_running)
    assert reader.ours.recv(100) == b"after", "the socket is still its owner's"
    assert (reader.taken, reader.ended) == (b"before", [])


def test_socket_thread_with_a_full_buffer_ends_on_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_connection, "_SOCKET_RECHECK_S", 10 * LIMIT_S)
    reader = Reader(room=False)
    block_until(lambda: reader.looked == 1)
    reader.close()
    block_until(lambda: not reader.is_running)
