"""Test the limits of a client: timeouts on a blocked connection, memory, permissions and the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from itertools import count
from typing import Any

import pytest

from liftpy.client import Client, PublishOptions, connect
from liftpy.client.encode_publish import Address, plain
from liftpy.client.in_flight import Window
from liftpy.client.publisher import Publisher
from liftpy.config import AckPolicy
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.headers import pairs_of
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    NotAllowedError,
    UnavailableError,
)
from liftpy.nats import transport as transport_module
from liftpy.nats.transport import ROOM_BYTES, RequestTimeoutError, Transport, open_connection
from sidecar.dev.nats_server import NatsServer
from tests.each import each


class Blocked:
    """A NATS server that completes the handshake and then reads no more bytes."""

    async def __aenter__(self) -> Blocked:
        self.writers: list[asyncio.StreamWriter] = []
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=1024)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        info = {"server_id": "x", "version": "2.11.0", "proto": 1, "max_payload": 8 << 20, "headers": True}
        writer.write(b"INFO %b\r\n" % json.dumps(info).encode())
        while not (await reader.readline()).startswith(b"PING"):
            pass
        writer.write(b"PONG\r\n")

    async def __aexit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.server.close()


@pytest.fixture
async def unread(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Transport]:
    """Return a transport with an inbox, on a connection whose server reads nothing."""
    monkeypatch.setattr(transport_module, "_CLOSE_S", 0.2)
    async with Blocked() as server, asyncio.timeout(30):
        transport = Transport(await open_connection(f"nats://127.0.0.1:{server.port}", ping_interval=60))
        transport._answers.begin("_INBOX.stuck", None)
        yield transport
        began = asyncio.get_running_loop().time()
        await transport.close()
        assert asyncio.get_running_loop().time() - began < 5  # nats-py alone would take minutes


@pytest.fixture
async def stuck(unread: Transport) -> Transport:
    """Return a transport that can send nothing more."""
    while unread.connection.pending_data_size <= ROOM_BYTES:  # until nothing more is taken
        await unread.write("x", bytes(200_000), "", None, 0.0)
        await asyncio.sleep(0)
    return unread


@pytest.mark.parametrize("size_bytes", [10, 4 << 20])
async def test_request_on_a_blocked_nats_connection_raises_unavailable_after_its_timeout(
    stuck: Transport, size_bytes: int
) -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(UnavailableError, match="Nothing was sent"):
        await stuck.request("anybody", bytes(size_bytes), 0.3)
    assert 0.25 < asyncio.get_running_loop().time() - began < 30


async def test_large_request_on_a_blocked_nats_connection_raises_timeout_or_unavailable(unread: Transport) -> None:
    began = asyncio.get_running_loop().time()
    for _ in range(3):  # the first ones fill what the kernel takes
        with pytest.raises((RequestTimeoutError, UnavailableError)):
            await unread.request("anybody", bytes(8 << 20), 0.3)
    assert asyncio.get_running_loop().time() - began < 4
    writing = asyncio.create_task(unread.write("x", bytes(4 << 20), "", None, began + 60))
    for _ in range(10):  # turns of the loop, until it waits for the socket
        await asyncio.sleep(0)
    assert not writing.done()
    writing.cancel()  # which nats-py would swallow
    with pytest.raises(asyncio.CancelledError):
        await writing


async def test_nats_transport_flush_cancelled_during_its_pong_raises_cancelled_error(transport: Transport) -> None:
    """``asyncio.wait_for`` returns its result if the result and the cancellation arrive in one turn."""
    connection, met = transport.connection, 0
    pongs = connection._pongs

    async def settling() -> None:
        await transport.settle()

    for _ in range(20):
        task = asyncio.create_task(settling())
        while not pongs:
            await asyncio.sleep(0)
        pongs[0].add_done_callback(lambda _, task=task: task.cancel())
        with pytest.raises(asyncio.CancelledError):
            await task
        met += 1
        await connection.flush()
    assert met == 20


async def test_publisher_bytes_in_flight_stay_within_the_window(transport: Transport, server_side: Transport) -> None:
    kept: list[Any] = []
    await server_side.connection.subscribe("data.bytes", cb=keeper(kept))
    await server_side.settle()
    p = Publisher(transport, "s", 0, Address("data.bytes"), PublishOptions(window_bytes=3_000_000))
    futures: list[asyncio.Future[Any]] = []

    async def fill() -> None:
        for _ in range(10):
            futures.append(await p.send(bytes(900_000)))

    filling = asyncio.create_task(fill())
    async with asyncio.timeout(20):
        answered = 0
        while answered < 10:
            while len(kept) <= answered:
                await asyncio.sleep(0.005)
                assert p.in_flight_bytes <= 3_000_000
                assert p.in_flight <= 3
            await kept[answered].respond(frames.encode(client_pb2.Ack(stream="s", offset=answered)))
            answered += 1
        await filling
        await p.flush()
    assert (p.in_flight, p.in_flight_bytes) == (0, 0)
    await p.close()


def keeper(kept: list[Any]) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def keep(message: Any) -> None:
        kept.append(message)

    return keep


async def test_publish_window_admits_waiting_messages_in_order_as_space_is_freed() -> None:
    window, entered = Window(3, 100), list[int]()

    async def enter(number: int, size_bytes: int) -> None:
        await window.enter(size_bytes)
        entered.append(number)

    await enter(0, 500)  # one alone may be larger
    tasks = [asyncio.create_task(enter(number, 40)) for number in range(1, 7)]
    await asyncio.sleep(0)
    assert entered == [0]
    tasks[1].cancel()
    await asyncio.sleep(0)
    window.leave(500)
    tasks[0].cancel()  # the room was given to it already
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (entered, window.count, window.size_bytes) == ([0, 3, 4], 2, 80)
    assert not window.try_enter(1)  # others wait
    window.leave(40)
    await asyncio.sleep(0)
    assert entered == [0, 3, 4, 5]
    window.leave(40)
    window.leave(40)
    await asyncio.gather(*tasks, return_exceptions=True)
    window.leave(40)
    assert (entered[-1], window.count, window.size_bytes) == (6, 0, 0)
    await window.enter(100)
    last = asyncio.create_task(window.enter(100))
    await asyncio.sleep(0)
    last.cancel()
    window.leave(100)  # in the same turn: it is passed over before it knows
    with pytest.raises(asyncio.CancelledError):
        await last
    assert (window.count, window.size_bytes) == (0, 0)


# ---- what plain NATS can't carry ---------------------------------------------------------------------------------------------
@each(
    ("value", "headers"),
    [
        (envelope.MAGIC + b"anything", None),
        (b"v", {"a": b"x\r\ny"}),
        (b"v", {"a": "x\ny"}),
        (b"v", {"a": b" x"}),
        (b"v", {"a": "x\u00a0"}),
        (b"v", {"a": b"\xff"}),
        (b"v", {"a b": b"x"}),
        (b"v", {"a:b": b"x"}),
        (b"v", {"a\r\nLift-Key": b"x"}),
        (b"v", {"\u00fc": b"x"}),
        (b"v", {"": b"x"}),
        (b"v", {"Lift-Key": b"x"}),
        (b"v", [("lift-tombstone", "1")]),
        ("text", None),
    ],
)
def test_publish_without_ack_with_headers_or_value_that_nats_would_change_raises_config_error(value: Any, headers: Any) -> None:
    with pytest.raises(ConfigError):
        plain(value, headers)


@each("headers", [{"Lift-Key": b"x"}, {"": b"x"}, {"a": 1}, {1: b"x"}, [("a",)], "abc", 5, [("a", None)]])
def test_publish_with_reserved_header_names_or_wrong_types_raises_config_error(headers: Any) -> None:
    with pytest.raises(ConfigError):
        pairs_of(headers)


# ---- rights ------------------------------------------------------------------------------------------------------------------
RIGHTS = """
authorization: { users: [
  {user: all, password: all}
  {user: mute, password: mute, permissions: {publish: ["liftpy.control.>", "liftpy.info"], subscribe: ["_INBOX.>"]}}
  {user: deaf, password: deaf, permissions: {publish: [">"], subscribe: ["nothing"]}}
] }
"""


@pytest.fixture(scope="module")
def strict_nats() -> Iterator[NatsServer]:
    with NatsServer(config=RIGHTS) as server:
        yield server


@pytest.fixture
async def as_user(strict_nats: NatsServer) -> AsyncIterator[Callable[[str], Coroutine[Any, Any, Client]]]:
    clients: list[Client] = []

    async def opened(user: str) -> Client:
        clients.append(await connect(strict_nats.url, user=user, password=user))
        return clients[-1]

    async with asyncio.timeout(20):
        yield opened
        for client in clients:
            await client.close()


async def test_client_without_publish_permission_raises_not_allowed(as_user: Any) -> None:
    client = await as_user("mute")
    with pytest.raises(NotAllowedError, match=r"Data\.Here"):
        await (await client.publisher("s", subject="Data.Here")).publish(b"x")
    with pytest.raises(NotAllowedError, match="read"):
        await client.bounds("s")
    with pytest.raises(NotAllowedError):
        await anext(aiter(client.consume("s")))
    with pytest.raises(NotAllowedError):
        await client.admin.node_status("n1")
    posting = await client.publisher("s", subject="Data.Here")
    await posting.post(b"x")
    with pytest.raises(NotAllowedError):
        await posting.flush()
    await posting.flush()
    with pytest.raises(NotAllowedError):  # or with one of the next
        await _post_on(posting)
    await posting.close()


async def _post_on(posting: Publisher) -> None:
    while True:
        await posting.post(b"x")
        await asyncio.sleep(0)


async def test_client_without_inbox_permission_raises_before_a_request(as_user: Any) -> None:
    client, other = await as_user("deaf"), await as_user("all")
    heard: list[Any] = []
    await other.transport.connection.subscribe(">", cb=keeper(heard))
    await other.transport.settle()
    publisher = await client.publisher("s", subject="data.here")
    for _ in range(2):
        with pytest.raises(NotAllowedError, match="it to"):
            await publisher.publish(b"x")
        with pytest.raises(NotAllowedError, match=r"it to subscribe to _INBOX\..*, where answers arrive"):
            await client.create_stream("s", "data.s")
    await client.transport.settle()
    await other.transport.settle()
    assert heard == []
    await publisher.close()


# ---- one loop, one thread ----------------------------------------------------------------------------------------------------
_subjects = count()


async def test_client_method_called_on_another_event_loop_raises_config_error(transport: Transport) -> None:
    client = Client(transport, Subjects(f"home{next(_subjects)}"), owns_connection=False)
    publisher = await client.publisher("s", subject="data.home")
    consumer = client.consume("s")
    ways: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: client.publish("s", b"x"),
        lambda: client.publish("s", b"x", ack=AckPolicy.NONE),
        lambda: client.publisher("s"),
        lambda: client.bounds("s"),
        lambda: client.stream("s"),
        lambda: client.admin.node_status("n1"),
        client.close,
        lambda: publisher.send(b"x"),
        lambda: publisher.post(b"x"),
        publisher.flush,
        publisher.close,
        consumer.begin,
        lambda: _first(consumer),
        lambda: _first(client.read_range("s", 0, 0, 5)),
    ]
    for way in ways:
        with pytest.raises(ConfigError, match="event loop that created it"):
            await asyncio.to_thread(lambda way=way: asyncio.run(asyncio.wait_for(way(), 5)))
    assert not transport.closed
    await publisher.close()
    await client.close()
    for way in ways:
        if way in (client.close, publisher.close, publisher.flush):
            await way()
            continue
        with pytest.raises(ClientClosedError):
            await way()


async def _first(items: Any) -> Any:
    return await anext(aiter(items))


async def test_client_close_fails_a_request_in_flight_with_client_closed(transport: Transport, server_side: Transport) -> None:
    await server_side.connection.subscribe("data.slow", cb=keeper([]))
    await server_side.settle()
    asking = asyncio.create_task(transport.request("data.slow", b"", 30))
    while not transport.waiting_count:
        await asyncio.sleep(0)
    await transport.connection.flush()
    transport.end()
    with pytest.raises(ClientClosedError):
        await asyncio.wait_for(asking, 2)
    assert transport.waiting_count == 0
