"""Test overload: excess messages are dropped and counted, and no server disconnects the node [A11]."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.wire.envelope import MAGIC
from liftpy.core.wire.subjects import SERVER_CONNECTIONS
from sidecar.dev.nats_server import NatsServer
from sidecar.runtime import clock
from sidecar.runtime.settings import NodeSettings
from sidecar.transport import ingest_connection
from sidecar.transport.connection import BusConnection, open_bus
from sidecar.transport.ingest_connection import IngestConnection
from sidecar.transport.parser import IngestParser
from tests.each import each
from tests.unit.transport.fake_client import FakeClient
from tests.unit.transport.fake_server import FakeServer
from tests.until import until

MIB = 1024 * 1024
ROOT = Path(__file__).parents[3]
MAX_PENDING = 4 * MIB


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    account = 'accounts: { APP: { users: [ { user: "app", password: "app" } ] } }\nno_auth_user: "app"'
    with NatsServer(config=f"max_pending: {MAX_PENDING}\n{account}") as running:
        yield running


@pytest.fixture
async def asks(server: NatsServer) -> AsyncIterator[BusConnection]:
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(server.url,)), lambda: BusConnection("reads"))
    yield bus
    await bus.stop()


class IngestRecorder:
    """An ingest connection, what it took, and what it was told to be given up."""

    def __init__(self) -> None:
        self.node = NodeInflight()
        self.taken = self.given_up = 0
        self.bus: IngestConnection

    async def open(self, server: NatsServer, asks: BusConnection, buffer_bytes: int) -> None:
        await self.connect(server.url, asks, buffer_bytes)
        await self.bus.wait_until_processed(5.0)

    async def connect(self, url: str, asks: BusConnection, buffer_bytes: int) -> None:
        given = NodeSettings("n1", Path("unused"), nats=(url,))
        self.bus = await open_bus(given, lambda: IngestConnection(self.node, buffer_bytes, stats_connection=asks))
        self.bus.listen("ev", self._take, on_dropped=self._on_dropped)

    def _take(self, *_: bytes) -> None:
        self.taken += 1

    def _on_dropped(self, count: int) -> None:
        self.given_up += count


def publisher(server: NatsServer, count: int) -> subprocess.Popen[bytes]:
    words = [server.port, "ev", count, 1000, 0]
    return subprocess.Popen([sys.executable, "-m", "tests.unit.transport.flooding_publisher", *map(str, words)], cwd=ROOT)


@pytest.fixture
def patient() -> Iterator[NatsServer]:
    """Holds as much as comes in 0.1 s on a fast machine: a slow one has time to give the thread its turn."""
    with NatsServer(config=f"max_pending: {4 * MAX_PENDING}") as running:
        yield running


async def test_ingest_connection_with_a_blocked_event_loop_loses_no_messages(patient: NatsServer) -> None:
    """The server could not write for as long as it buffers if only the loop read."""
    server = patient
    asks = await open_bus(NodeSettings("n1", Path("unused"), nats=(server.url,)), lambda: BusConnection("reads"))
    taker = IngestRecorder()
    await taker.open(server, asks, 256 * MIB)
    sending = [publisher(server, 25_000) for _ in range(3)]
    await until(lambda: taker.bus._thread is not None, "the burst has begun")
    while any(process.poll() is None for process in sending):
        time.sleep(0.25)  # noqa: ASYNC251  a turn of a busy loop
        await asyncio.sleep(0)
    with contextlib.suppress(AssertionError):
        await until(lambda: taker.taken == 75_000, "everything that was sent")
    assert (taker.taken, taker.given_up, taker.bus.stats["reconnects"]) == (75_000, 0, 0), taker.bus.errors
    await until(lambda: taker.bus._thread is None, "the loop reads again")
    await taker.bus.stop()
    await asks.stop()


async def burst_of(server: FakeServer, taker: IngestRecorder) -> int:
    """Publish until the thread reads; return how many messages that took."""
    sent = 0
    deadline = time.monotonic() + 10
    while taker.bus._thread is None:
        assert time.monotonic() < deadline
        server.says(message(b"x" * 1000) * 2000)
        sent += 2000
        await asyncio.sleep(0.001)
    return sent


def reading() -> int:
    """Threads that read sockets."""
    return sum(thread.name == "liftpy-ingest-socket" for thread in threading.enumerate())


async def test_ingest_connection_lost_during_a_burst_stores_all_received_messages_and_reconnects(asks: BusConnection) -> None:
    fake, taker = FakeServer(), IngestRecorder()
    await taker.connect(await fake.start(), asks, 256 * MIB)
    sent = await burst_of(fake, taker)
    fake.says(message(b"the last") + b"MSG ev 1 100\r\nhal")
    fake.writers[-1].close()
    await until(lambda: taker.bus.stats["reconnects"] == 1, "it is back")
    await until(lambda: taker.taken == sent + 1, "what came before the end")
    assert taker.bus._thread is None
    fake.says(message(b"of the new one"))
    await until(lambda: taker.taken == sent + 2, "the new connection's messages are whole")
    sent = await burst_of(fake, taker)
    await taker.bus.stop()
    await until(lambda: reading() == 0, "no thread is left behind")
    fake.close()


async def test_ingest_connection_in_a_burst_delivers_a_message_to_an_idle_event_loop(
    asks: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.transport.ingest_connection._CALM_NS", 3600 * 10**9)
    fake, taker = FakeServer(), IngestRecorder()
    await taker.connect(await fake.start(), asks, 256 * MIB)
    sent = await burst_of(fake, taker)
    await until(lambda: taker.taken == sent, "the burst")
    fake.says(message(b"one more"))
    await until(lambda: taker.taken == sent + 1, "a message while the loop is idle")
    await taker.bus.stop()
    fake.close()


@pytest.mark.parametrize(
    "line", [b"HELLO there\r\n", b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n"], ids=["not NATS", "a callback fails"]
)
async def test_ingest_connection_with_unparsable_bytes_drops_them_and_reconnects(line: bytes, asks: BusConnection) -> None:
    fake, taker = FakeServer(), IngestRecorder()
    await taker.connect(await fake.start(), asks, MIB)
    taker.bus.on_denial(lambda is_publish, subject: {}[subject])
    taker.node.full_count = 1
    fake.says(message(b"1") + line + message(b"2"))
    await until(lambda: taker.bus.waiting_bytes > 0, "it is buffered")
    taker.node.full_count = 0
    await until(lambda: taker.bus.stats["reconnects"] == 1, "the reconnect")
    assert (taker.taken, taker.bus.errors["unreadable"]) == (1, 1)
    fake.says(message(b"3"))
    await until(lambda: taker.taken == 2, "a message of the new connection")
    await taker.bus.stop()
    fake.close()


async def test_ingest_connection_with_tls_is_read_by_the_event_loop_without_a_thread(asks: BusConnection) -> None:
    fake, taker = FakeServer(), IngestRecorder()
    await taker.connect(await fake.start(), asks, 256 * MIB)
    await until(lambda: taker.bus._receiver is not None, "the handshake is done")
    assert taker.bus._receiver is not None
    transport = taker.bus._receiver.transport
    taker.bus._receiver.transport = Encrypted(transport)  # type: ignore[assignment]
    fake.says(message(b"x" * 1000) * 60_000)
    await until(lambda: taker.taken == 60_000, "everything")
    assert (taker.bus._thread, reading()) == (None, 0)
    taker.bus._receiver.transport = transport
    await taker.bus.stop()
    fake.close()


async def test_ingest_connection_without_a_file_descriptor_for_the_thread_reads_the_burst_in_the_event_loop(
    asks: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries a thread again only after another burst. Time stands still after the first attempt, so there is none."""
    now_ns, attempts = [10**12], list[int]()

    def read_clock() -> int:
        now_ns[0] += 0 if attempts else 40_000_000
        return now_ns[0]

    def start_thread(*_: object) -> None:
        attempts.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(clock, "now_ns", read_clock)
    monkeypatch.setattr(ingest_connection, "SocketThread", start_thread)
    fake, taker = FakeServer(), IngestRecorder()
    await taker.connect(await fake.start(), asks, 256 * MIB)
    fake.says(message(b"x" * 1000) * 20_000)
    await until(lambda: taker.taken == 20_000, "everything")
    assert (taker.bus.errors["no thread to read a burst"], taker.bus.bursts) == (1, 0)
    await taker.bus.stop()
    fake.close()


class Encrypted:
    """A transport as asyncio's for TLS says of itself."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def get_extra_info(self, name: str) -> Any:
        return self if name == "ssl_object" else self._transport.get_extra_info(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_ingest_connection_in_overload_drops_and_counts_messages_without_a_disconnect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The buffer is full and nothing is taken: the server is never made to cut. Its bound is so far above what it may hold that this
    process can be without a turn for a while; 77 MB are published."""
    monkeypatch.setattr("liftpy.core.publish.backpressure._PATIENCE_NS", 1 << 60)
    monkeypatch.setattr("liftpy.core.publish.backpressure._STUCK_NS", 1 << 60)
    with NatsServer(config=f"max_pending: {14 * MAX_PENDING}") as server:
        asks = await open_bus(NodeSettings("n1", Path("unused"), nats=(server.url,)), lambda: BusConnection("reads"))
        taker = IngestRecorder()
        await taker.open(server, asks, 2 * MIB)
        taker.node.full_count = 1
        taker.bus.overflow.limit_bytes = 5 * MAX_PENDING
        sending = [publisher(server, 25_000) for _ in range(3)]
        while any(process.poll() is None for process in sending):
            await asyncio.sleep(0.01)
        taker.node.full_count = 0
        await until(lambda: taker.taken + taker.given_up == 75_000, "stored and counted is sent")
        assert taker.given_up > 0
        assert taker.bus.dropped_unread == taker.given_up
        assert taker.bus.stats["reconnects"] == 0
        taken = taker.taken
        asks.send("ev", (b"later",))
        await until(lambda: taker.taken == taken + 1, "a message after the overload")
        await taker.bus.stop()
        await asks.stop()


async def test_ingest_connection_while_partitions_are_full_fills_its_buffer_before_it_drops_messages(
    asks: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server holds nothing. But it closes a connection from which nothing is read for 10 s."""
    limits = {"_SHED_PATIENCE_NS": 0, "_LEAST_READ_RATE_BYTES": 4 * MIB, "_PATIENCE_NS": 1 << 60, "_STUCK_NS": 1 << 60}
    for name, value in limits.items():
        monkeypatch.setattr(f"liftpy.core.publish.backpressure.{name}", value)
    monkeypatch.setattr("sidecar.transport.ingest_connection._BURST_NS", 1 << 60)
    fake, taker = FakeServer(), IngestRecorder()
    await taker.connect(await fake.start(), asks, 8 * MIB)
    taker.node.full_count = 1

    def uses_the_second_half() -> bool:
        taker.bus.overflow.record_pong(0, taker.bus.read_and_parsed_bytes[0], clock.now_ns())
        return taker.bus.most_waiting_bytes > 5 * MIB

    fake.says(message(b"x" * 1000) * 16_000)
    await until(uses_the_second_half, "it reads beyond the half of its buffer")
    assert (taker.taken, taker.given_up) == (0, 0)
    await taker.bus.stop()
    fake.close()


async def test_ingest_connection_requests_statistics_of_its_server_when_a_quarter_of_its_buffer_is_full(
    asks: BusConnection,
) -> None:
    fake, taker = FakeServer(), IngestRecorder()
    await taker.connect(await fake.start(), asks, 4096)
    taker.node.full_count = 1
    fake.says(message(b"x" * 900))
    await until(lambda: taker.bus.waiting_bytes > 0)
    assert asks.stats["out_msgs"] == 0
    taker.node.held_bytes = 1024 - taker.bus.waiting_bytes
    await until(lambda: asks.stats["out_msgs"] > 0)
    await taker.bus.stop()
    fake.close()


async def test_ingest_connection_closed_as_slow_consumer_counts_the_lost_messages(
    server: NatsServer, asks: BusConnection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftpy.core.publish.backpressure.LoadShedding.due_bytes", lambda *_: 0)
    monkeypatch.setattr("liftpy.core.publish.backpressure.LoadShedding.can_stop_reading", lambda *_: True)
    monkeypatch.setattr("liftpy.core.publish.backpressure._PATIENCE_NS", 1 << 60)
    monkeypatch.setattr("liftpy.core.publish.backpressure._STUCK_NS", 1 << 60)
    taker = IngestRecorder()
    await taker.open(server, asks, 64 * 1024)
    taker.node.full_count = 1
    _, client_id = taker.bus._identity()
    sent, closed = 0, False
    while not closed:
        for _ in range(10):
            asks.send("ev", (b"x" * 60_000,))
        sent += 10
        answer = await asks.request(SERVER_CONNECTIONS, json.dumps({"cid": client_id, "state": 1}).encode(), timeout=5)
        closed = bool(json.loads(answer.data)["data"]["connections"])
    taker.node.full_count = 0
    cuts = taker.bus.disconnect_loss
    await until(lambda: cuts.lost_messages > 0, "it is counted")
    assert sent - 10 <= taker.taken + cuts.lost_messages <= sent, "all but what nobody heard of after the cut"
    assert f"that the server closed reason=Slow Consumer (Pending Bytes) count={cuts.lost_messages}" in caplog.text
    assert taker.bus.overflow.limit_bytes < MAX_PENDING, "it has learned"
    await taker.bus.stop()


async def test_ingest_connection_to_a_killed_server_logs_an_unknown_number_of_lost_messages(
    asks: BusConnection, caplog: pytest.LogCaptureFixture
) -> None:
    with NatsServer() as gone:
        taker = IngestRecorder()
        await taker.open(gone, asks, MIB)
        gone.stop()
        await until(lambda: taker.bus.disconnect_loss.unknown == 1, "it is said that nobody knows")
    assert "number not known at_least=0" in caplog.text
    await taker.bus.stop()


# ---- what is left out ----------------------------------------------------------------------------------------------------


def message(payload: bytes, reply: bytes = b"", subject: bytes = b"ev", sid: int = 1, headers: bytes = b"") -> bytes:
    words = [b"HMSG" if headers else b"MSG", subject, b"%d" % sid, *([reply] if reply else [])]
    words += [b"%d" % len(headers)] if headers else []
    return b"%b %d\r\n%b%b\r\n" % (b" ".join(words), len(headers) + len(payload), headers, payload)


STREAM = b"".join(
    [
        *(message(b"x" * 100) for _ in range(50)),
        message(b"wanted 1", b"_INBOX.a"),
        *(message(b"\r\nMSG ev 1 5\r\n%d" % number) for number in range(120)),
        b"PING\r\n",
        message(MAGIC + b"wanted 2"),
        message(b"with headers", headers=b"NATS/1.0\r\nA: b\r\n\r\n"),
        message(MAGIC + b"wanted 3"),
        message(b"foreign", subject=b"other"),
        message(b"late", sid=9),
        message(b"of another", subject=b"two", sid=2),
        message(b"wanted 4", b"_INBOX.b", headers=b"NATS/1.0\r\n\r\n"),
    ]
)


@each("chunk_bytes", [1, 2, 3, 7, 61, 250, 4096, len(STREAM)])
async def test_ingest_parser_in_overload_delivers_requests_and_counts_dropped_messages_without_reply_subject(
    chunk_bytes: int,
) -> None:
    client = FakeClient()
    got: list[bytes] = []
    counted = {1: 0, 2: 0}
    sinks: dict[bytes, Any] = {sid: lambda s, r, payload, h: got.append(payload) for sid in (b"1", b"2")}
    parser = IngestParser(client, sinks)
    for sid, subject in ((1, "ev"), (2, "two")):
        parser.expect(sid, subject)
        parser.on_dropped(sid, lambda count, sid=sid: counted.update({sid: counted[sid] + count}))  # type: ignore[misc]
    parser.drops_unread = True
    for start in range(0, len(STREAM), chunk_bytes):
        await parser.parse(STREAM[start : start + chunk_bytes])
    assert got == [b"wanted 1", MAGIC + b"wanted 2", MAGIC + b"wanted 3", b"wanted 4"]
    assert counted == {1: 171, 2: 1}
    assert (parser.dropped_unread, parser.received) == (172, 178)
    assert client.calls == {"ping": 1}
    assert parser.errors == {"foreign_subject": 1}
    parser.drops_unread = False
    await parser.parse(message(b"as before"))
    assert got[-1] == b"as before"


async def test_ingest_parser_counts_dropped_messages_and_bytes() -> None:
    client, taken = FakeClient(), list[bytes]()
    parser = IngestParser(client, {b"1": lambda s, r, payload, h: taken.append(payload)})
    parser.expect(1, "ev")
    parser.drops_unread = True
    await parser.parse(message(b"12345") * 3 + message(b"", headers=b"NATS/1.0\r\n\r\n") + message(b"want", b"_INBOX.a"))
    assert (taken, parser.dropped_unread) == ([b"want"], 4)
    assert client.stats == {"in_msgs": 4, "in_bytes": 3 * 5 + 12}
