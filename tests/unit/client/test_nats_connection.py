"""Test the parser of the client on damaged lines, TLS before secrets, and failed subscriptions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client as NatsConnection

from liftpy.errors import ClientClosedError, NotAllowedError, ProtocolError, UnavailableError
from liftpy.nats.connection import StrictConnection
from liftpy.nats.parser import StrictParser, UnreadableDataError
from liftpy.nats.transport import Transport, open_connection
from sidecar.dev.nats_server import NatsServer
from tests.each import each
from tests.until import until


# ---- what is read --------------------------------------------------------------------------------------------------------------
class Connection:
    """The part of a nats-py connection that the parser uses. The parser calls ``on_ping`` for a PING."""

    def __init__(self, *subjects: str) -> None:
        self._subs: dict[int, Any] = {n: SimpleNamespace(subject=s) for n, s in enumerate(subjects, 1)}
        self.heard: list[Any] = []
        self.on_ping: Any = lambda: None

    async def _process_msg(self, *message: Any) -> None:
        self.heard.append(message)

    async def _process_ping(self) -> None:
        self.heard.append("PING")
        self.on_ping()


def parser(*subjects: str) -> tuple[StrictParser, Connection]:
    connection = Connection(*subjects)
    return StrictParser(connection), connection


async def test_nats_parser_drops_buffered_messages_of_a_closed_connection() -> None:
    made, connection = parser("a.b")
    connection.on_ping = made.reset
    await made.parse(b"PING\r\nMSG a.b 1 2\r\nhi\r\nMSG a.b 1 2\r\n")
    assert connection.heard == ["PING"]
    await made.parse(b"MSG a.b 1 2\r\nyo\r\n")
    assert connection.heard == ["PING", (1, b"a.b", b"", b"yo", b"")]


@pytest.mark.parametrize("line", [b"HELLO x", b"MSG a.b 1 x", b"HMSG a.b 1 -1", b"MSG", b"H" + b"x" * 200])
async def test_nats_parser_error_contains_the_start_of_an_unknown_line(line: bytes) -> None:
    made, connection = parser("a.b")
    with pytest.raises(nats.errors.ProtocolError) as caught:
        await made.parse(b"PING\r\n" + line + b"\r\nPING\r\n")
    assert str(caught.value).startswith(f"The NATS server sent an unknown protocol line: {line[:80]!r}. Check")
    assert connection.heard == ["PING"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("gone"), OSError),
        (nats.errors.StaleConnectionError(), nats.errors.StaleConnectionError),
        (ValueError("odd"), UnreadableDataError),
    ],
)
async def test_nats_parser_raises_an_error_of_a_callback_as_a_connection_error(error: Exception, kind: type[Exception]) -> None:
    made, connection = parser()

    def fail() -> None:
        raise error

    connection.on_ping = fail
    with pytest.raises(kind) as caught:
        await made.parse(b"PING\r\n")
    assert type(caught.value) is kind
    if isinstance(error, ValueError):
        assert "ValueError('odd'). Check" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [b"MSG a.b 1x 2", b"MSG a.b 2", b"MSG a.b  2", b"MSG a.b 1 r x 2", b"HMSG a.b 1 3 2", b"HMSG a.b 1 2"],
)
async def test_nats_parser_skips_a_message_with_a_malformed_line(line: bytes) -> None:
    made, connection = parser("a.b")
    await made.parse(line + b"\r\nhi\r\nPING\r\n")
    assert (connection.heard, made.errors) == (["PING"], {"malformed": 1})


# ---- a connection of our own ---------------------------------------------------------------------------------------------------
def strict(monkeypatch: pytest.MonkeyPatch, *, connected: bool = True) -> tuple[Any, list[Any]]:
    """Return a connection without a server, and the list of calls to the nats-py part."""
    made: Any = StrictConnection()
    told: list[Any] = []

    async def info(self: Any, given: dict[str, Any], initial_connection: bool = False) -> None:
        told.append(("info", dict(given), initial_connection))

    async def err(self: Any, text: str) -> None:
        told.append(("err", text))

    async def connect(self: Any, **given: Any) -> None:
        told.append(("connect", given))

    async def op_err(error: Exception) -> None:
        told.append(("reconnects", error))

    for name, function in (("_process_info", info), ("_process_err", err), ("connect", connect)):
        monkeypatch.setattr(NatsConnection, name, function)
    made._process_op_err = op_err
    made._status = NatsConnection.CONNECTED if connected else NatsConnection.CONNECTING
    return made, told


@each("scheme", ["nats", "tls", "wss", ""])
@each("handshake_first", [True, False])
@each("initial", [True, False])
@each("wanted", [True, False])
@each("said", [{}, {"tls_available": True}, {"tls_required": True}])
async def test_nats_connection_that_requires_tls_sends_secrets_only_over_tls(
    scheme: str, handshake_first: bool, initial: bool, wanted: bool, said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told = strict(monkeypatch)
    made._wants_tls = wanted
    made.options = {"tls_handshake_first": handshake_first}
    made._current_server = SimpleNamespace(uri=SimpleNamespace(scheme=scheme)) if scheme else None
    in_the_clear = initial and wanted and not handshake_first and scheme != "wss" and "tls_required" not in said
    if in_the_clear and not said:
        with pytest.raises(nats.errors.Error, match="The NATS server does not"):
            await made._process_info(dict(said), initial_connection=initial)
        assert told == []
    else:
        await made._process_info(dict(said), initial_connection=initial)
        assert told == [("info", said | ({"tls_required": True} if in_the_clear else {}), initial)]


# ---- answers and rights --------------------------------------------------------------------------------------------------------
class Nats:
    """A replacement of the nats-py client below a Transport."""

    def __init__(self) -> None:
        self.max_payload = 1 << 20
        self.pending_data_size = 0
        self.is_connected = self.is_closed = False
        self.calls: list[Any] = []
        self.fails: BaseException | None = None
        self.on_subscribe: Any = lambda: None

    def new_inbox(self) -> str:
        return f"_INBOX.{len(self.calls)}"

    async def subscribe(self, subject: str, cb: Any) -> Any:
        self.calls.append(("subscribe", subject))
        self.on_subscribe()
        if self.fails is not None:
            raise self.fails

        async def unsubscribe() -> None:
            self.calls.append(("unsubscribe", subject))

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def publish(self, subject: str, payload: bytes, reply: str = "", headers: Any = None) -> None:
        self.calls.append(("publish", subject, payload, reply, headers))
        if self.fails is not None:
            raise self.fails

    async def flush(self, timeout: float) -> None:
        self.calls.append(("flush", timeout))
        if self.fails is not None:
            raise self.fails


def over(connection: Nats) -> Any:
    made: Any = connection
    return Transport(made)


async def never(*_: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def test_nats_request_without_an_inbox_subscription_raises_unavailable_and_sends_nothing() -> None:
    connection = Nats()
    connection.subscribe = lambda subject, cb: never()  # type: ignore[method-assign, assignment, misc, return-value]
    transport = over(connection)
    text = r"inbox on NATS within 0\.01 s\. Nothing was sent\."
    with pytest.raises(UnavailableError, match=text):
        await transport.exchange("s", b"q", 0.01)
    with pytest.raises(UnavailableError, match=text):
        async with transport.expect_answer("s", 0.01):
            raise AssertionError("not without an inbox")
    assert (connection.calls, transport.waiting_count) == ([], 0)
    await transport.leave()


@pytest.mark.parametrize("error", [OSError("cut"), nats.errors.ConnectionClosedError()])
async def test_nats_subscription_that_fails_raises_unavailable(error: Exception) -> None:
    connection = Nats()
    connection.fails = error
    transport = over(connection)
    with pytest.raises(UnavailableError) as caught:
        await transport.listen("in.*", never, 60)
    assert str(caught.value) == f"NATS connection error on in.*: {error}. Check the NATS server, then retry."
    connection.on_subscribe = transport.end
    with pytest.raises(ClientClosedError):
        await transport.listen("in.*", never, 60)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (nats.errors.MaxPayloadError(), ProtocolError, "The message has 10 bytes, more than the NATS server accepts"),
        (nats.errors.ConnectionClosedError(), UnavailableError, "NATS connection error on s: nats: connection closed"),
        (OSError(), UnavailableError, "NATS connection error on s: OSError"),
        (ValueError("odd"), UnavailableError, "NATS connection error on s: odd"),
    ],
    ids=["too large", "closed by nats-py", "socket", "unexpected"],
)
async def test_nats_write_that_fails_raises_the_matching_liftpy_error(
    error: Exception, kind: type[Exception], text: str
) -> None:
    connection = Nats()
    connection.is_connected, connection.fails = True, error
    transport = over(connection)
    give_up_at = asyncio.get_running_loop().time() + 30
    with pytest.raises(kind, match=text):
        await transport.write("s", bytes(10), "r", {"a": "b"}, give_up_at)
    assert connection.calls == [("publish", "s", bytes(10), "r", {"a": "b"})]
    transport.end()
    with pytest.raises(ClientClosedError if kind is UnavailableError else kind):
        await transport.write("s", bytes(10), "r", None, give_up_at)


async def test_transport_closed_with_unsent_data_of_a_lost_connection_leaves_no_task() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(b'INFO {"server_id":"s","version":"2.10.20","proto":1,"headers":true,"max_payload":1048576}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")

    async def ignore(_: Any) -> None:
        pass

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = await open_connection(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    transport = Transport(connection)
    await transport.listen("a.b", ignore, 5.0)
    server.close()
    for writer in writers:
        writer.close()
    await until(lambda: connection.is_reconnecting)
    await connection.publish("a.b", b"unsent")
    await transport.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await until(lambda: all(task.done() for task in others))


async def test_transport_raises_an_error_for_a_subscription_beyond_the_limit_of_the_server() -> None:
    with NatsServer(config="max_subscriptions: 2\n") as server:
        connection = await open_connection(server.url)
        transport = Transport(connection)
        got: list[bytes] = []

        async def arrived(message: Any) -> None:
            got.append(message.data)

        first = await transport.listen("a", arrived, 5)
        await transport.listen("b", arrived, 5)
        for _ in range(2):
            with pytest.raises(NotAllowedError, match=r"subscription to c.*maximum number of subscriptions"):
                await transport.listen("c", arrived, 5)
        with pytest.raises(NotAllowedError, match="maximum number of subscriptions"):
            await transport.exchange("b", b"", 5)
        await first.unsubscribe()
        await transport.listen("c", arrived, 5)
        for subject in "abc":
            await connection.publish(subject, subject.encode())
        await until(lambda: got == [b"b", b"c"], "the other subscriptions still work")
        assert connection.stats["reconnects"] == 0
        await connection.close()


async def test_transport_that_may_have_lost_an_older_subscription_by_a_limit_reconnects() -> None:
    """The server names no subscription. Requests would time out silently if it was the inbox."""
    with NatsServer(config="max_subscriptions: 2\n") as server:
        connection = await open_connection(server.url)
        for subject in "abc":
            await connection.subscribe(subject)
        await until(lambda: connection.stats["reconnects"] > 0, "it reconnects")
        await connection.close()


async def test_transport_closed_while_it_starts_to_reconnect_ends_without_a_cancellation() -> None:
    with NatsServer(config="max_subscriptions: 2\n") as server:
        for turns in range(6):
            connection = await open_connection(server.url)
            for subject in "abc":
                await connection.subscribe(subject)
            while not connection.is_reconnecting:
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            await connection.close()
            assert connection.is_closed
