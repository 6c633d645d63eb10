"""Test the pause before a reconnect to a server that closes each connection at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from liftpy.core.wire.subjects import Subjects
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.credentials import Credentials
from liftpy.nats.reconnect_backoff import FREE_CLOSES, MAX_PAUSE_S, SHORT_S, ReconnectBackoff
from sidecar.metadata.group_role import MetadataConnection
from sidecar.runtime.settings import NodeSettings
from sidecar.transport.connection import BusConnection, open_bus
from sidecar.transport.credentials import Keys
from tests.unit.transport.fake_server import FakeServer
from tests.until import until

LIMIT = b"-ERR 'maximum subscriptions exceeded'\r\n"
REJECTED = b"-ERR 'Authorization Violation'\r\n"


@contextlib.asynccontextmanager
async def connected(server: FakeServer) -> AsyncIterator[BusConnection]:
    url = await server.start()
    connection = await open_bus(NodeSettings("n1", Path("unused"), nats=(url,)), lambda: BusConnection("test"))
    try:
        yield connection
    finally:
        await connection.stop()
        server.close()


@pytest.mark.parametrize(("error", "in_handshake"), [(LIMIT, False), (REJECTED, False), (REJECTED, True)])
async def test_connection_that_the_server_closes_at_once_reconnects_with_growing_pauses(
    error: bytes, in_handshake: bool
) -> None:
    server = FakeServer(in_handshake=in_handshake)
    async with connected(server) as connection:
        await until(lambda: server.open)
        server.error = error
        server.disconnect()
        await until(lambda: connection.reconnect_backoff.closes >= FREE_CLOSES + 3)
        count = len(server.accepted_s)
        await until(lambda: len(server.accepted_s) >= count + 1)
        gaps = [after - before for before, after in pairwise(server.accepted_s)]
        assert gaps[-1] >= 0.4, gaps
        server.error = b""
        await until(lambda: connection.is_connected and server.open)


async def open_data_connection(settings: NodeSettings, keys: Keys) -> None:
    await (await open_bus(settings, lambda: BusConnection("test"), keys)).stop()


async def open_group_connection(settings: NodeSettings, keys: Keys) -> None:
    connection = MetadataConnection(settings, cast(Any, None), Subjects("liftpy"), cast(Any, None), Counter(), keys=keys)
    await connection.open(lambda error: None)


class WatchedKeys(Keys):
    """Credentials that write each read into ``events``."""

    events: ClassVar[list[str]] = []

    @property
    def credentials(self) -> Credentials:
        self.events.append("read")
        return self.current

    @credentials.setter
    def credentials(self, credentials: Credentials) -> None:
        self.current = credentials


@pytest.mark.parametrize("opens", [open_data_connection, open_group_connection])
async def test_first_connect_that_the_server_rejects_pauses_only_before_it_reads_the_credentials(
    opens: Callable[[NodeSettings, Keys], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(REJECTED, in_handshake=True)
    settings = NodeSettings("n1", Path("unused"), nats=(await server.start(),), controllers=("n1",))
    events: list[str] = []
    monkeypatch.setattr(WatchedKeys, "events", events)

    def pause_s(backoff: ReconnectBackoff) -> float:
        events.append("pause" if backoff.closes > FREE_CLOSES else "no pause")
        return 0.0

    monkeypatch.setattr(ReconnectBackoff, "pause_s", pause_s)
    opening = asyncio.create_task(opens(settings, WatchedKeys(Credentials(user="first", password="secret"))))
    await until(lambda: events.count("pause") >= 3 and events[-1] == "read")
    await end_tasks([opening])
    server.close()
    assert {after for before, after in pairwise(events) if before != "read"} == {"read"}, events


async def test_first_connect_to_a_server_that_rejects_the_client_has_growing_pauses() -> None:
    server = FakeServer(REJECTED, in_handshake=True)
    url = await server.start()
    opening = asyncio.create_task(open_bus(NodeSettings("n1", Path("unused"), nats=(url,)), lambda: BusConnection("test")))
    await until(lambda: len(server.accepted_s) >= FREE_CLOSES + 4)
    assert max(after - before for before, after in pairwise(server.accepted_s)) >= 0.4, server.accepted_s
    server.error = b""
    connection = await opening
    await connection.stop()
    server.close()


@pytest.mark.parametrize("turns", range(4))
async def test_close_at_the_moment_when_new_credentials_end_a_pause_ends_the_reconnect(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, pauses = FakeServer(), []

    def pause_s(backoff: ReconnectBackoff) -> float:
        pauses.append(60.0)
        return 60.0

    monkeypatch.setattr(ReconnectBackoff, "pause_s", pause_s)
    async with connected(server) as connection:
        await until(lambda: server.open)
        server.disconnect()
        await until(lambda: pauses)
        await connection.renew({})
        for _ in range(turns):
            await asyncio.sleep(0)
        await connection.stop()
        assert "_attempt_reconnect" not in [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()]


async def test_reconnect_to_a_server_that_was_down_has_no_pause() -> None:
    server = FakeServer()
    async with connected(server) as connection:
        await until(lambda: server.open)
        connection.reconnect_backoff.reset()  # it is up for a short time only because this test is fast
        server.close()
        await until(lambda: connection.errors["ConnectionRefusedError"] >= FREE_CLOSES + 2)
        assert connection.reconnect_backoff.pause_s() == 0
        await server.start(server.port)
        await until(lambda: connection.is_connected and server.open)


def test_reconnect_backoff_counts_only_consecutive_short_connections() -> None:
    backoff = ReconnectBackoff()
    for number in range(20):
        backoff.note_connected(100.0)
        backoff.note_lost(100.0 + SHORT_S / 2)
        backoff.note_lost(200.0)
        assert backoff.closes == number + 1
        assert (backoff.pause_s() == 0) is (number < FREE_CLOSES)
        assert backoff.pause_s() <= MAX_PAUSE_S
    assert backoff.pause_s() >= MAX_PAUSE_S / 2
    backoff.note_connected(300.0)
    backoff.note_lost(300.0 + SHORT_S)
    assert (backoff.closes, backoff.pause_s()) == (0, 0)
    backoff.note_rejected()
    assert backoff.closes == 1
    backoff.reset()
    assert backoff.closes == 0
