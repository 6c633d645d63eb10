"""Test the connections of a node: reconnects, losses, bursts, and servers that close during the handshake [A6, A11]."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.errors import Error

from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import GRACES_NS, INGEST
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import UnavailableError
from liftpy.nats.blocking_connection import open_blocking_connection
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.connection import StrictConnection
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import open_connection
from sidecar.dev.nats_server import NatsServer
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata.group_role import MetadataConnection
from sidecar.runtime.settings import NodeSettings
from sidecar.transport.connection import BusConnection, open_bus
from sidecar.transport.connections import NodeConnections, StandbyLink, open_links
from sidecar.transport.credentials import Keys
from sidecar.transport.ingest_connection import IngestConnection
from tests.integration.test_expired_certificate import Authority
from tests.unit.client.test_client_parser import publish_raw
from tests.unit.transport.fake_server import FakeServer
from tests.until import until

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


def settings(server: NatsServer, data: Path = Path("unused")) -> NodeSettings:
    return NodeSettings("n1", data, nats=(server.url,), controllers=("n1",))


@contextlib.asynccontextmanager
async def opened(kind: str, server: NatsServer, data: Path) -> AsyncIterator[StrictConnection]:
    """A connection of each kind that a node has."""
    if kind == "metadata":
        link = MetadataConnection(
            settings(server, data), DataDirectory(data), Subjects("liftpy"), InboxRule(("_INBOX.",)), Counter()
        )
        await link.open(pytest.fail)
        yield link._connection
        await link.close()
        return
    bus = await open_bus(
        settings(server), lambda: IngestConnection(NodeInflight(), MIB) if kind == "ingest" else BusConnection(kind)
    )
    yield bus
    await bus.stop()


KINDS = ("metadata", "replication", "ingest", "reads")


@pytest.mark.parametrize("kind", KINDS)
async def test_pong_after_its_timeout_is_counted(kind: str, server: NatsServer, tmp_path: Path) -> None:
    async with opened(kind, server, tmp_path) as connection:
        for _ in range(2):
            given_up: asyncio.Future[bool] = asyncio.Future()
            await connection._send_ping(given_up)
            given_up.cancel()
        await connection.flush()
        await connection.flush()
        assert connection.errors["late_pong"] == 2
        assert connection.is_connected
        assert connection.stats["reconnects"] == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_message_whose_subject_is_not_utf_8_is_counted_and_skipped(kind: str, server: NatsServer, tmp_path: Path) -> None:
    async with opened(kind, server, tmp_path) as connection:
        heard: list[bytes] = []

        async def take(message: object) -> None:
            heard.append(message.data)  # type: ignore[attr-defined]

        await connection.subscribe("shop.>", cb=take)
        await connection.flush()
        await connection.flush()
        hostile = b"PUB shop.\xff 1\r\nx\r\nPUB shop.a _INBOX.\xff 1\r\nx\r\nPUB liftpy.raft.n1.\xff 1\r\nx\r\n"
        await publish_raw(server.url, hostile + b"PUB liftpy.control.\xff.x 1\r\nx\r\nPUB shop.last 4\r\nlast\r\n")
        await until(lambda: bool(heard), "the honest message")
        assert heard == [b"last"]
        assert connection.errors["undecodable"] >= 2
        assert connection.stats["reconnects"] == 0


@pytest.fixture
async def fake() -> AsyncIterator[tuple[FakeServer, str]]:
    server = FakeServer()
    yield server, await server.start()
    server.close()


async def inflow(url: str, node: NodeInflight | None = None, buffer_bytes: int = MIB) -> IngestConnection:
    return await open_bus(
        NodeSettings("n1", Path("unused"), nats=(url,)), lambda: IngestConnection(node or NodeInflight(), buffer_bytes)
    )


def message(payload: bytes) -> bytes:
    return b"MSG ev 1 %d\r\n%b\r\n" % (len(payload), payload)


async def test_connection_closed_by_the_server_reconnects_and_logs_the_reconnect(
    fake: tuple[FakeServer, str], caplog: pytest.LogCaptureFixture
) -> None:
    server, url = fake
    caplog.set_level(logging.INFO, "liftpy.nats")
    bus = await inflow(url)
    got: list[bytes] = []
    bus.listen("ev", lambda s, r, payload, h: got.append(payload))
    server.says(message(b"1") + b"-ERR 'Slow Consumer'\r\n")
    await until(lambda: bus.stats["reconnects"] == 1, "it is back")
    assert bus.errors["server: slow consumer"] == 1
    assert re.search("NATS connection lost connection=ingest reason=.*slow consumer", caplog.text, re.IGNORECASE)
    await until(lambda: "NATS connection restored connection=ingest" in caplog.text, "it says so")
    server.says(message(b"2"))
    await until(lambda: len(got) == 2, "what the new connection brings")
    assert got == [b"1", b"2"]
    await bus.stop()


async def test_blocking_connection_answers_a_ping_of_the_server(fake: tuple[FakeServer, str]) -> None:
    server, url = fake
    connection = await open_blocking_connection(url)
    assert connection is not None
    server.says(b"PING\r\n")
    await until(lambda: b"PONG\r\n" in server.lines)
    connection.close()


async def test_connection_closed_during_a_reconnect_leaves_no_task_and_stays_closed(fake: tuple[FakeServer, str]) -> None:
    """The close begins at each turn of the event loop of the second handshake, and when its last answer arrives."""
    server, url = fake
    before = asyncio.all_tasks()
    for turns in range(24):
        connection = StrictConnection()
        await connection.connect(url, reconnect_time_wait=0, max_reconnect_attempts=-1)
        await connection.subscribe("ev", cb=_ignore)
        accepted = len(server.accepted_s)
        server.disconnect()
        await until(lambda accepted=accepted: len(server.accepted_s) > accepted, "it connects again")
        for _ in range(turns):
            await asyncio.sleep(0)
        with contextlib.suppress(OSError, Error):
            await connection.close()
        assert connection.is_closed, turns
        await until(lambda: server.open == 0, "the server has no connection")
        left = {task for task in asyncio.all_tasks() - before if "_serve" not in repr(task)}
        assert not left, turns


async def _ignore(_: object) -> None:
    pass


async def test_ingest_connection_parses_bytes_read_before_its_loss(fake: tuple[FakeServer, str]) -> None:
    """Parsing waits for room; the server closes meanwhile. Neither the half message at the end nor old commands disturb the new one."""
    server, url = fake
    node = NodeInflight(full_count=1)
    bus = await inflow(url, node)
    got: list[bytes] = []
    bus.listen("ev", lambda s, r, payload, h: got.append(payload))
    server.says(message(b"1") + b"-ERR 'Old Word'\r\n" + message(b"2") + b"MSG ev 1 100\r\nhal")
    await until(lambda: bus.waiting_bytes > 0, "it lies in the buffer")
    server.writers[-1].close()
    await until(lambda: bus.stats["reconnects"] == 1, "it is back")
    server.says(message(b"3"))
    await until(lambda: bus.stats["reconnects"] == 1 and bus.waiting_bytes > 60, "more lies there")
    assert got == []
    node.full_count = 0
    await until(lambda: len(got) == 3, "everything is taken")
    assert got == [b"1", b"2", b"3"]
    assert bus.stats["reconnects"] == 1
    assert "server: old word" not in bus.errors
    await bus.stop()


async def test_ingest_connection_with_a_full_buffer_leaves_messages_in_the_server(
    fake: tuple[FakeServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftpy.core.publish.backpressure._BLIND_NS", 1 << 60)
    monkeypatch.setattr("sidecar.transport.ingest_connection._BURST_NS", 1 << 60)  # on a slow machine, a thread would read
    server, url = fake
    node = NodeInflight(full_count=1)
    bus = await inflow(url, node, buffer_bytes=100_000)
    got: list[bytes] = []
    bus.listen("ev", lambda s, r, payload, h: got.append(payload))
    server.says(message(b"x" * 1000) * 20_000)
    await until(lambda: bus.errors["ingest_buffer_full"] == 1, "it is full")
    assert bus.most_waiting_bytes < 100_000 + 4 * MIB
    assert got == []
    node.full_count = 0
    await until(lambda: len(got) == 20_000, "all of it")
    assert bus.waiting_bytes == 0
    assert bus.stats["reconnects"] == 0
    await bus.stop()


async def test_ingest_connection_parses_a_burst_in_small_steps(fake: tuple[FakeServer, str]) -> None:
    """Others on the loop have their turn within some milliseconds, however much has arrived."""
    server, url = fake
    bus = await inflow(url, buffer_bytes=64 * MIB)
    taken = [0]
    most = longest = 0

    def take(*_: bytes) -> None:
        taken[0] += 1

    bus.listen("ev", take)
    server.says(message(b"x") * 300_000)
    while taken[0] < 300_000:
        before = taken[0]
        await asyncio.sleep(0)
        most = max(most, taken[0] - before)
        longest += 1
    assert most < 20_000
    assert longest > 10
    await bus.stop()


async def test_canceled_open_of_the_node_connections_leaves_no_connection_and_no_task(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal during the start cancels it. NATS accepts the first two connections, and does not answer the third one."""
    links: list[BusConnection] = []
    connect = BusConnection.connect

    async def connects(link: BusConnection, *args: Any, **options: Any) -> None:
        links.append(link)
        await connect(link, *args, **options)
        if len(links) == 3:
            await asyncio.Event().wait()

    monkeypatch.setattr(BusConnection, "connect", connects)
    opening = asyncio.create_task(open_links(settings(server), NodeInflight(), MemoryBudget(), Keys(Credentials())))
    await until(lambda: len(links) == 3 and links[2].is_connected)
    await end_tasks([opening])
    assert [link.is_closed for link in links] == [True] * 3
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_ingest_connection_stop_ends_the_request_for_lost_messages(server: NatsServer) -> None:
    """The server does not know the lost connection, so it does not answer."""
    reads = await open_bus(settings(server), lambda: BusConnection("reads"))
    ingest = await open_bus(settings(server), lambda: IngestConnection(NodeInflight(), MIB, stats_connection=reads))
    before = asyncio.all_tasks()
    ingest.disconnect_loss.connection_lost("another server", 7)
    ingest.disconnect_loss.messages_processed(0)
    (counting,) = asyncio.all_tasks() - before
    await ingest.stop()
    assert counting.done()
    await reads.stop()


async def test_ingest_connection_loss_within_the_grace_time_does_not_report_the_data_path_down(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRACES_NS, INGEST, 50_000_000)
    replication, reads = [await open_bus(settings(server), lambda: BusConnection("test")) for _ in "12"]
    standby = StandbyLink(lambda: inflow(server.url))
    links = NodeConnections(replication, await inflow(server.url), reads, standby)
    standby.subscribe("data.x", lambda *_: None, lambda count: None)
    await until(lambda: len(links.all()) == 4)
    seen: list[bool] = []
    links.watch(seen.append)
    lost: list[str] = []
    links.watch_publishes(lambda: lost.append("publishes"))
    assert links.are_up
    tell(links.ingest, False)
    tell(links.ingest, True)
    tell(links.reads, False)
    assert (seen, lost) == ([], ["publishes"])
    tell(links.replication, False)
    assert seen == [False]
    tell(links.ingest, False)
    tell(links.replication, True)
    assert seen == [False, True]
    await until(lambda: seen == [False, True, False], "the ingest connection stays away")
    tell(links.ingest, True)
    assert seen == [False, True, False, True]
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda *given: timers.append(call_later(*given)) or timers[-1])
    tell(links.ingest, False)
    (timer,) = timers
    await links.close()
    assert not links.are_up
    assert timer.cancelled()
    assert [link.is_closed for link in links.all()] == [True] * 4


def tell(link: BusConnection, is_up: bool) -> None:
    for callback in link._on_change:
        callback(is_up)


class ClosingServer:
    """A NATS server that closes each connection during the handshake.

    ``certificates`` switches TLS on. ``reads_first``: wait for the CONNECT line. ``resets``: close with a TCP reset.
    """

    def __init__(self, certificates: Authority | None, *, reads_first: bool, resets: bool) -> None:
        self.certificates, self.reads_first, self.resets = certificates, reads_first, resets

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = b',"tls_required":true' if self.certificates else b""
        writer.write(b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576%b}\r\n' % tls)
        with contextlib.suppress(OSError):
            await writer.drain()
            if self.certificates:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self.certificates.path("server.pem"), self.certificates.path("server.key"))
                await writer.start_tls(context)
            if self.reads_first:
                await reader.readline()
        if self.resets:
            writer.transport.abort()
        else:
            writer.close()

    def close(self) -> None:
        self._server.close()


@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize(
    "tls", [False, pytest.param(True, marks=pytest.mark.skipif(not shutil.which("openssl"), reason="openssl"))]
)
async def test_connect_to_a_server_that_closes_during_the_handshake_fails_and_names_the_certificate(
    tmp_path: Path, tls: bool, resets: bool, reads_first: bool
) -> None:
    certificates = await asyncio.to_thread(Authority, tmp_path) if tls else None
    server = ClosingServer(certificates, reads_first=reads_first, resets=resets)
    url = await server.start()
    credentials = certificates.credentials() if certificates else None
    with pytest.raises(UnavailableError, match="closed the connection during the handshake") as raised:
        await open_connection(url, credentials=credentials, timeout_s=2)
    assert ("may reject the client certificate" in str(raised.value)) is tls
    server.close()


async def test_node_logs_each_different_reason_why_it_cannot_connect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = ClosingServer(None, reads_first=True, resets=False)
    url = await server.start()
    opening = asyncio.create_task(open_bus(NodeSettings("n1", Path("unused"), nats=(url,)), lambda: BusConnection("test")))
    for reason in ("during the handshake", "Connect call failed"):
        async with asyncio.timeout(20):
            while not any(reason in line for line in caplog.messages):
                assert not opening.done()
                await asyncio.sleep(0.005)
        server.close()
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await opening
    assert len(caplog.messages) == len(set(caplog.messages))
