"""Test what nats-py leaves unfinished at a reconnect, and how a connection completes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.nats.parser import StrictConnection
from sidecar.runtime.settings import NodeSettings
from sidecar.transport.connection import BusConnection, open_bus
from sidecar.transport.ingest_connection import IngestConnection
from tests.until import until


class LateServer:
    """Lets everybody in and counts who is there. While ``late`` it answers the PING of a handshake and none that follows."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.open = 0
        self.late = False
        self.owed = 0
        """PINGs without an answer."""
        self.info = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true}\r\n'

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.info)
        self.writers.append(writer)
        self.open += 1
        pings = 0
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            while line := await reader.readline():
                pings += line == b"PING\r\n"
                if line == b"PING\r\n" and pings > 1 and self.late:
                    self.owed += 1
                elif line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
        self.open -= 1
        writer.close()

    def says(self, data: bytes) -> None:
        self.writers[-1].write(data)

    def close(self) -> None:
        self._server.close()
        for writer in self.writers:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[LateServer]:
    made = LateServer()
    yield made
    made.close()


@pytest.mark.parametrize("inflow", [False, True])
async def test_connection_with_a_late_pong_during_a_reconnect_opens_no_second_connection(
    server: LateServer, monkeypatch: pytest.MonkeyPatch, inflow: bool
) -> None:
    """In a flood the PONG is behind many messages. Two connections would deliver every publish twice."""
    settings = NodeSettings("n1", Path("unused"), nats=(await server.start(),))
    bus = await open_bus(settings, lambda: IngestConnection(NodeInflight(), 1 << 20) if inflow else BusConnection("test"))
    got: list[bytes] = []
    bus.listen("ev", lambda subject, reply, payload, headers: got.append(payload))
    back: list[int] = []
    bus.on_change(lambda is_up: back.append(1) if is_up else None)
    monkeypatch.setattr(StrictConnection.flush, "__defaults__", (0.02,))
    server.late = True
    server.writers[0].close()
    await until(lambda: server.owed > 0, "it is asked behind the handshake")
    for number in range(20):
        server.says(b"MSG ev 1 2\r\n%02d\r\n" % number)
        await asyncio.sleep(0.01)
    server.says(b"MSG ev 1 9\r\nhal")
    await until(lambda: len(got) == 20, "what came before the PONG is taken")
    assert server.owed > 1
    server.late = False
    server.says(b"f a wo\r\n" + b"PONG\r\n" * server.owed)
    await until(lambda: back == [1], "the PONG came at last")
    assert got == [b"%02d" % number for number in range(20)] + [b"half a wo"]
    assert (len(server.writers), server.open) == (2, 1)
    await bus.stop()


@pytest.mark.parametrize(
    "words",
    [b"INFO\r\n", b"INFO []\r\n", b"INFO " + b"x" * 70_000 + b"\r\n", b'INFO {"connect_urls":["[::1"]}\r\n'],
    ids=["none", "a list", "long", "URLs"],
)
async def test_connection_continues_to_reconnect_after_an_invalid_server_info(server: LateServer, words: bytes) -> None:
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(await server.start(),)), lambda: BusConnection("test"))
    changes: list[bool] = []
    bus.on_change(changes.append)
    well, server.info = server.info, words
    server.writers[0].close()
    await until(lambda: len(server.writers) >= 3, "it tries again")
    server.info = well
    await until(lambda: changes == [False, True], "it is back")
    await bus.stop()


async def test_connection_that_fails_after_the_handshake_is_closed(server: LateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next connection must not continue half a message."""
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(await server.start(),)), lambda: BusConnection("test"))
    got: list[bytes] = []
    bus.listen("ev", lambda subject, reply, payload, headers: got.append(payload))
    back: list[int] = []
    bus.on_change(lambda is_up: back.append(1) if is_up else None)
    flush = bus._flush_pending

    left: list[object] = []  # else the garbage collector closes it, at times

    async def fails_once(*given: bool) -> asyncio.Future[None]:
        if len(server.writers) < 2:
            return await flush(*given)  # type: ignore[no-any-return]
        monkeypatch.undo()
        server.says(b"MSG ev 1 5\r\nfirst\r\nMSG ev 1 100\r\nhal")
        await until(lambda: got == [b"first"], "the first has come")
        left.append(bus._transport._io_writer)  # type: ignore[union-attr]
        raise OSError(": an earlier write failed")

    monkeypatch.setattr(bus, "_flush_pending", fails_once)
    server.writers[0].close()
    await until(lambda: back == [1], "it is back")
    assert len(server.writers) == 3
    server.writers[1].write(b"MSG ev 1 5\r\nstale\r\n")
    server.says(b"MSG ev 1 6\r\nsecond\r\n")
    await until(lambda: b"second" in got, "what the next one brings")
    assert got == [b"first", b"second"]
    await until(lambda: server.open == 1, "the others are closed")
    await bus.stop()


async def test_reconnect_callbacks_all_run_if_one_fails(server: LateServer) -> None:
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(await server.start(),)), lambda: BusConnection("test"))
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["message"]))
    changes: list[bool] = []

    def fails(is_up: bool) -> None:
        if is_up:
            raise KeyError("a bug")

    bus.on_change(fails)
    bus.on_change(changes.append)
    server.writers[0].close()
    await until(lambda: changes == [False, True], "the others hear of it")
    assert said == ["what follows the NATS connection for test has ended"]
    assert len(server.writers) == 2
    await bus.stop()
