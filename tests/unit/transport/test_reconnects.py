"""Test reconnects of a connection, and their pauses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, cast

import nkeys
import pytest
from nats.aio.transport import TcpTransport

from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import NotAllowedError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.connection import StrictConnection
from liftpy.nats.credentials import Credentials
from liftpy.nats.parser import StrictParser
from liftpy.nats.reconnect_backoff import FREE_CLOSES, MAX_PAUSE_S, SHORT_S, ReconnectBackoff
from liftpy.nats.transport import Transport, open_connection
from sidecar.metadata.group_role import MetadataConnection
from sidecar.runtime import clock
from sidecar.runtime.settings import NodeSettings
from sidecar.transport.connection import BusConnection, open_bus
from sidecar.transport.credentials import Keys
from sidecar.transport.ingest_connection import IngestConnection
from tests.unit.transport.fake_server import FakeServer
from tests.until import until


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


@pytest.mark.parametrize("inflow", [False, True])
async def test_connection_with_a_late_pong_during_a_reconnect_opens_no_second_connection(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, inflow: bool
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
async def test_connection_continues_to_reconnect_after_an_invalid_server_info(server: FakeServer, words: bytes) -> None:
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(await server.start(),)), lambda: BusConnection("test"))
    changes: list[bool] = []
    bus.on_change(changes.append)
    well, server.info = server.info, words
    server.writers[0].close()
    await until(lambda: len(server.writers) >= 3, "it tries again")
    server.info = well
    await until(lambda: changes == [False, True], "it is back")
    await bus.stop()


async def test_connection_that_fails_after_the_handshake_is_closed(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_reconnect_callbacks_all_run_if_one_fails(server: FakeServer) -> None:
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


async def test_connection_sends_the_acks_that_it_wrote_shortly_before_a_loss_once_more(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that fails may have lost them."""
    now_ns = [0]
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns[0])
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(await server.start(),)), lambda: BusConnection("test"))
    for at_ns, names in ((0, ("old",)), (2_000_000_000, ("a", "b"))):
        now_ns[0] = at_ns
        bus.send_lines([b"PUB _INBOX.%b  0\r\n\r\n" % name.encode() for name in names])
    await bus.wait_until_processed(5)
    for reconnects in (1, 2):
        server.disconnect()
        await until(lambda reconnects=reconnects: bus.errors["disconnected"] == reconnects)  # type: ignore[misc]
        now_ns[0] += 7_000_000_000
        bus.send_lines([b"PUB _INBOX.kept%d  0\r\n\r\n" % reconnects])
        await until(lambda reconnects=reconnects: bus.is_connected and bus.stats["reconnects"] == reconnects)  # type: ignore[misc]
        await bus.wait_until_processed(5)
    sent = Counter(line.split()[1] for line in server.lines if line.startswith(b"PUB _INBOX"))
    assert sent == {b"_INBOX.old": 1, b"_INBOX.a": 2, b"_INBOX.b": 2, b"_INBOX.kept1": 1, b"_INBOX.kept2": 1}
    await bus.stop()


async def test_transport_publish_during_a_reconnect_is_sent_after_it(server: FakeServer) -> None:
    transport = Transport(await open_connection(await server.start()))
    server.mute = True
    server.disconnect()
    await until(lambda: server.owed == 1)
    await transport.publish("a.b", b"kept")
    server.mute = False
    server.says(b"PONG\r\n")
    await until(lambda: b"kept\r\n" in server.lines)
    await transport.close()


async def test_connection_after_a_reconnect_calls_its_own_and_the_given_callback(server: FakeServer) -> None:
    called: list[str] = []

    async def reconnected() -> None:
        called.append("given")

    connection = await open_connection(await server.start(), reconnected_cb=reconnected)
    connection.on_reconnected.append(lambda: called.append("own"))
    server.disconnect()
    await until(lambda: called == ["own", "given"])
    await connection.close()


# ---- several servers -------------------------------------------------------------------------------------------------
async def test_connection_to_a_discovered_server_uses_the_user_of_the_url(server: FakeServer) -> None:
    """nats-py alone would connect without a user, and the server would reject it for as long as the first one is down."""
    other = FakeServer()
    address = (await other.start()).removeprefix("nats://")
    server.info = other.info = other.info.replace(b"}", b',"auth_required":true,"connect_urls":["%s"]}' % address.encode())
    own = (await server.start()).removeprefix("nats://")
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(f"nats://app:secret@{own}",)), lambda: BusConnection("test"))
    for _ in range(3):
        server.says(server.info)
    await bus.wait_until_processed(5)
    assert len(bus.servers) == 2
    server.close()
    await until(lambda: bool(other.users) and bus.is_connected, "the other one is found")
    assert (server.users, other.users) == (["app"], ["app"])
    await bus.stop()
    other.close()


async def test_connection_forgets_servers_that_are_no_longer_advertised(server: FakeServer) -> None:
    """The addresses of servers change with each restart in Kubernetes. A reconnect must not try all earlier ones."""
    url = await server.start()
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(url,)), lambda: BusConnection("test"))
    info = server.info.removesuffix(b"}\r\n")
    for number in range(5):
        addresses = ",".join(f'"127.0.0.1:{number + last}"' for last in (1, 2))
        server.says(info + b',"connect_urls":[%s]}\r\n' % addresses.encode())
        await bus.wait_until_processed(5)
        assert {found.port for found in bus.servers} == {int(url.rpartition(":")[2]), number + 1, number + 2}
    server.says(info + b',"connect_urls":[]}\r\n')
    await bus.wait_until_processed(5)
    assert len(bus.servers) == 3, "a server that advertises none says nothing about the others"
    await bus.stop()


class NamesOfServers(TcpTransport):
    """TCP that notes which host the certificate of each server must have. It begins no TLS."""

    hosts: ClassVar[list[str]] = []

    async def connect_tls(self, uri: Any, *_: Any) -> None:
        self.hosts.append(uri)

    def __bool__(self) -> bool:
        return True  # nats-py replaces a transport without a connection


async def test_connection_to_servers_discovered_one_after_another_checks_their_certificates_for_the_host_of_the_url(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates need not have addresses. Addresses of servers change with each restart in Kubernetes."""
    monkeypatch.setattr(NamesOfServers, "hosts", [])

    def connection() -> BusConnection:
        made = BusConnection("test")
        made.use_carrier(NamesOfServers())
        return made

    others = [FakeServer(), FakeServer()]
    addresses = [(await other.start()).removeprefix("nats://") for other in others]
    for one, advertised in zip((server, *others), (addresses[:1], addresses, addresses), strict=True):
        named = ",".join(f'"{address}"' for address in advertised)
        one.info = one.info.replace(b"}", b',"tls_required":true,"connect_urls":[%s]}' % named.encode())
    url = (await server.start()).replace("127.0.0.1", "localhost")
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(url,)), connection)
    for one, after in zip((server, *others), others, strict=False):
        one.close()
        await until(lambda after=after: bool(after.open) and bus.is_connected, "the next one is found")  # type: ignore[misc]
    assert NamesOfServers.hosts == ["localhost"] * 3
    await bus.stop()
    others[1].close()


@pytest.mark.parametrize("clustered", ["before", "after", "never"])
async def test_reconnect_to_another_server_of_a_cluster_is_no_restart_of_the_only_server(
    server: FakeServer, clustered: str
) -> None:
    """One URL may lead to each server of a cluster, and ``no_advertise`` hides the others. They had the publishes."""
    in_cluster = server.info.replace(b"}", b',"cluster":"c"}')
    alone, server.info = server.info, in_cluster if clustered == "before" else server.info
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(await server.start(),)), lambda: BusConnection("test"))
    back: list[bool] = []
    bus.on_change(back.append)
    server.info = (in_cluster if clustered == "after" else alone).replace(b'"x"', b'"y"')
    server.writers[0].close()
    await until(lambda: back == [False, True], "it is back")
    assert bus.missed_by_all_nodes is (clustered == "never")
    await bus.stop()


async def test_credentials_that_change_during_a_reconnect_are_used(server: FakeServer) -> None:
    server.info = server.info.replace(b"}", b',"auth_required":true}')
    first, second = (Credentials(user=name, password="secret") for name in ("first", "second"))
    settings = NodeSettings("n1", Path("unused"), nats=(await server.start(),), credentials=first)
    keys = Keys(first)
    bus = await open_bus(settings, lambda: BusConnection("test"), keys)
    server.mute = True
    server.writers[0].close()
    await until(lambda: server.owed == 1, "the server has the old credentials, and has not answered")
    keys.change(second)
    await until(lambda: bus.options["user"] == "second")
    server.mute = False
    server.says(b"PONG\r\n")
    await until(lambda: server.users == ["first", "first", "second"] and bus.is_connected)
    await until(lambda: server.open == 1, "the connection with the old ones is closed")
    assert bus.reconnect_backoff.closes == 0
    await bus.stop()


def write_seed(path: Path, number: int) -> Credentials:
    path.write_bytes(nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER))
    return Credentials(nkey_seed_file=str(path))


def nkeys_used(server: FakeServer) -> list[str]:
    return [json.loads(line[8:])["nkey"] for line in server.lines if line.startswith(b"CONNECT ")]


@pytest.fixture
def nkey_server(server: FakeServer) -> FakeServer:
    server.info = server.info.replace(b"}", b',"auth_required":true,"nonce":"n"}')
    return server


async def test_connection_with_renewed_credentials_does_not_read_the_files_of_the_old_ones(
    nkey_server: FakeServer, tmp_path: Path
) -> None:
    first, second = (write_seed(tmp_path / f"seed{number}", number) for number in (1, 2))
    connection = await open_connection(await nkey_server.start(), credentials=first)
    await connection.renew(second.nats_options())
    await until(lambda: connection.is_connected and connection.stats["reconnects"] == 1)
    used = nkeys_used(nkey_server)
    assert len(used) == len(set(used)) == 2
    await connection.close()


async def test_connection_to_a_server_that_is_down_keeps_the_new_content_of_its_files(
    nkey_server: FakeServer, tmp_path: Path
) -> None:
    """Only a failed handshake says that the content may be wrong."""
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)

    def refused() -> int:
        return sum(isinstance(error, ConnectionRefusedError) for error in errors)

    file = tmp_path / "seed"
    connection = await open_connection(await nkey_server.start(), credentials=write_seed(file, 1), error_cb=note)
    nkey_server.mute = True
    nkey_server.disconnect()
    await until(lambda: nkey_server.owed == 1)
    write_seed(file, 2)
    nkey_server.close()
    await until(lambda: refused() > 0)
    file.unlink()
    count = refused() + 3
    await until(lambda: refused() >= count)
    nkey_server.mute = False
    await nkey_server.start(nkey_server.port)
    await until(lambda: connection.is_connected)
    first, again, last = nkeys_used(nkey_server)
    assert first == again != last
    await connection.close()


# ---- errors of the server --------------------------------------------------------------------------------------------
async def test_flood_of_permission_errors_is_counted_and_logged_in_few_lines(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(await server.start(),)), lambda: BusConnection("test"))
    denied: list[str] = []
    bus.on_denial(lambda is_publish, subject: denied.append(subject))
    server.says(b"-ERR 'Permissions Violation for Publish to \"_INBOX.x\"'\r\n" * 2000)
    await bus.wait_until_processed(5)
    assert bus.stats["reconnects"] == 0
    assert len(denied) == bus.errors["server: permissions violation"] == 2000
    assert 0 < len(caplog.messages) < 20
    await bus.stop()


async def test_denied_request_raises_the_error_and_does_not_log_it(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    transport = Transport(await open_connection(await server.start()))
    asking = asyncio.create_task(transport.request("liftpy.orders.0.read", b"x", 10))
    await until(lambda: any(line.startswith(b"PUB liftpy.orders.0.read") for line in server.lines))
    server.says(b"-ERR 'Permissions Violation for Publish to \"liftpy.orders.0.read\"'\r\n")
    with pytest.raises(NotAllowedError, match=r"publish on liftpy\.orders\.0\.read"):
        await asking
    assert transport.connection.errors["server: permissions violation"] == 1
    server.says(b"-ERR 'Permissions Violation for Publish to \"other\"'\r\n")
    await until(lambda: any("other" in line for line in caplog.messages))
    assert not any("orders" in line for line in caplog.messages)
    await transport.close()


async def test_transport_after_a_denied_inbox_replaces_its_subscription(server: FakeServer) -> None:
    transport = Transport(await open_connection(await server.start()))

    def sids(command: bytes) -> list[bytes]:
        return [line.split()[1 if command == b"UNSUB" else -1] for line in server.lines if line.split()[0] == command]

    async with transport.expect_answer("orders", 5) as (reply, coming):
        inbox = reply.rpartition(".")[0]
        server.says(b"-ERR 'Permissions Violation for Subscription to \"%b.*\"'\r\n" % inbox.encode())
        with pytest.raises(NotAllowedError, match="be answered"):
            await coming
    async with transport.expect_answer("orders", 5):
        pass
    await until(lambda: sids(b"UNSUB") == sids(b"SUB")[:1] and len(sids(b"SUB")) == 2)
    await transport.close()


async def test_transport_that_expects_an_answer_ignores_other_messages_to_its_reply_subject(server: FakeServer) -> None:
    transport = Transport(await open_connection(await server.start()))
    async with transport.expect_answer("orders", 5, lambda message: message.data == b"right") as (reply, coming):
        sid = next(line.split()[-1] for line in server.lines if line.startswith(b"SUB "))
        for word in (b"wrong", b"right"):
            server.says(b"MSG %b %b 5\r\n%b\r\n" % (reply.encode(), sid, word))
        assert (await coming).data == b"right"
    await transport.close()


async def test_denial_of_a_request_on_a_closed_connection_leaves_later_errors_in_the_log(server: FakeServer) -> None:
    connection = await open_connection(await server.start())
    await connection.close()
    parser = StrictParser(connection, connection.errors)
    parser.denials.append(lambda is_publish, subject: setattr(connection, "denial_is_raised", True))
    await parser.parse(b"-ERR 'Permissions Violation for Publish to \"liftpy.orders.0.read\"'\r\n")
    assert not connection.denial_is_raised


async def test_opening_a_connection_ends_after_a_cancellation_that_its_close_suppresses() -> None:
    closing = asyncio.Event()

    class Refused(BusConnection):
        async def connect(self, *_: Any, **options: Any) -> None:
            raise ConnectionRefusedError

        async def stop(self) -> None:
            closing.set()
            with contextlib.suppress(asyncio.CancelledError):  # as nats-py does
                await asyncio.sleep(3600)

    settings = NodeSettings("n1", Path("unused"), nats=("nats://127.0.0.1:1",))
    opening = asyncio.create_task(open_bus(settings, lambda: Refused("test")))
    await closing.wait()
    opening.cancel()
    await until(opening.done, "the task has ended", 10.0)
    assert opening.cancelled()


async def test_failed_attempts_to_open_the_ingest_connection_leave_no_subscriptions(server: FakeServer) -> None:
    good = NodeSettings("n1", Path("unused"), nats=(await server.start(),))
    reads = await open_bus(good, lambda: BusConnection("reads"))
    full = FakeServer()
    bad = NodeSettings("n1", Path("unused"), nats=(await full.start(),))
    full.info = b"-ERR 'maximum connections exceeded'\r\n"
    opening = asyncio.create_task(open_bus(bad, lambda: IngestConnection(NodeInflight(), 1 << 20, stats_connection=reads)))
    await until(lambda: len(full.writers) > 4, "it tries again")
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await opening
    await reads.wait_until_processed(5)
    subscribed = [line.split()[-1] for line in server.lines if line.startswith(b"SUB ")]
    ended = [line.split()[1] for line in server.lines if line.startswith(b"UNSUB ")]
    assert len(subscribed) > 1
    assert subscribed == ended
    await reads.stop()
    full.close()


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
