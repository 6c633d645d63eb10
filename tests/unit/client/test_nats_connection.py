"""Test the NATS connection, parser and transport of the client without a server."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client as NatsConnection

from liftpy.errors import ClientClosedError, NotAllowedError, UnavailableError
from liftpy.nats import transport as transport_module
from liftpy.nats.parser import (
    _REMEMBERED_BYTES,
    _REMEMBERED_SUBJECTS,
    READ_BYTES,
    Pattern,
    StrictConnection,
    StrictParser,
    cut_off,
    make_strict,
    watch_denials,
)
from liftpy.nats.transport import Answers, NoRespondersError, Transport


# ---- what is read --------------------------------------------------------------------------------------------------------------
def test_nats_subject_pattern_cache_does_not_change_the_matches() -> None:
    exact = Pattern("a.b")
    assert (exact.matches(b"a.b"), exact.matches(b"a.c"), exact.matches(b"a.b.c")) == (True, False, False)
    one = Pattern("a.*")
    assert (one.matches(b"a.b"), one.matches(b"a.b.c"), one.matches(b"a.")) == (True, False, False)
    assert one.known == {b"a.b"}
    long = b"a." + b"x" * (_REMEMBERED_BYTES - 2)
    assert one.matches(long)
    assert one.matches(long + b"x")
    assert one.known == {b"a.b", long}
    for number in range(_REMEMBERED_SUBJECTS - 2):
        assert one.matches(b"a.%d" % number)
    assert len(one.known) == _REMEMBERED_SUBJECTS
    assert one.matches(b"a.last")
    assert one.known == {b"a.last"}


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
    assert caught.value.args[0].startswith(f"The NATS server sent an unknown protocol line: {line[:80]!r}. Check")
    assert connection.heard == ["PING"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("gone"), OSError),
        (nats.errors.StaleConnectionError(), nats.errors.StaleConnectionError),
        (ValueError("odd"), nats.errors.ProtocolError),
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
        assert "ValueError('odd'). Check" in caught.value.args[0]


@pytest.mark.parametrize("line", [b"MSG a.b 1x 2", b"HMSG a.b 1 3 2", b"MSG a.b  2", b"MSG a.b 1 r x 2"])
async def test_nats_parser_skips_a_message_with_a_malformed_line(line: bytes) -> None:
    made, connection = parser("a.b")
    await made.parse(line + b"\r\nhi\r\nPING\r\n")
    assert (connection.heard, made.errors) == (["PING"], {"malformed": 1})


async def test_nats_parser_drops_cached_patterns_of_removed_subscriptions() -> None:
    made, connection = parser("a.b", "c.*", "d")
    await made.parse(b"MSG a.b 1 2\r\nhi\r\nMSG c.d 2 2\r\nhi\r\n")
    assert sorted(made._patterns) == [b"1", b"2"]
    del connection._subs[1]
    await made.parse(b"MSG d 3 2\r\nhi\r\nMSG a.b 1 2\r\nno\r\n")
    assert sorted(made._patterns) == [b"2", b"3"]
    assert [message[1] for message in connection.heard] == [b"a.b", b"c.d", b"d"]


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


@pytest.mark.parametrize(
    ("servers", "options", "wanted"),
    [
        ("tls://a", {}, True),
        (["nats://a", "wss://b"], {}, True),
        ("nats://a", {"tls": object()}, True),
        ("nats://a", {}, False),
    ],
)
async def test_nats_connection_with_a_tls_url_or_tls_option_requires_tls(
    servers: Any, options: Any, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told = strict(monkeypatch)
    await made.connect(servers=servers, **options)
    assert made._wants_tls is wanted
    assert told == [("connect", {"servers": servers, **options})]


@pytest.mark.parametrize("scheme", ["nats", "tls", "wss", ""])
@pytest.mark.parametrize("handshake_first", [True, False])
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("said", [{}, {"tls_available": True}, {"tls_required": True}])
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


async def test_nats_connection_reports_a_permission_error_and_reconnects_on_other_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, told = strict(monkeypatch)
    heard: list[str] = []

    async def note(error: Exception) -> None:
        heard.append(str(error))

    made._error_cb = note
    await made._process_err("'Permissions Violation for Publish to \"a\"'")
    assert (heard, told) == (['NATS server error: Permissions Violation for Publish to "a'], [])
    made._error_cb = None
    await made._process_err("'Permissions Violation for Publish to \"b\"'")
    await made._process_err("'Slow Consumer'")
    assert made.errors == {"server: Permissions Violation": 2, "server: Slow Consumer": 1}
    assert [(what, str(error)) for what, error in told] == [("reconnects", "NATS server error: Slow Consumer")]
    assert len(heard) == 1
    early, told = strict(monkeypatch, connected=False)
    await early._process_err("'Slow Consumer'")
    assert (told, early.errors) == ([("err", "'Slow Consumer'")], {})


@pytest.mark.parametrize("error", [OSError("cut"), nats.errors.UnexpectedEOF(), ValueError("odd"), None])
async def test_nats_read_loop_ends_on_a_socket_error_and_starts_a_reconnect(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, heard = strict(monkeypatch)
    sizes: list[int] = []

    class Socket:
        async def read(self, size: int) -> bytes:
            sizes.append(size)
            if len(sizes) == 1:
                made._pings_outstanding = 2
                return b"PING"
            assert made._pings_outstanding == 0, "whoever sends is there"
            raise error or asyncio.CancelledError

        def at_eof(self) -> bool:
            return False

    made._transport = Socket()
    await made._read_loop()
    assert sizes == [READ_BYTES] * 2
    assert made._ps._chunks == [b"PING"]
    assert len(heard) == (error is not None)
    if error is not None:
        assert heard == [("reconnects", error)]
    made._transport = SimpleNamespace(at_eof=lambda: True)
    heard.clear()
    await made._read_loop()
    assert [(what, type(why)) for what, why in heard] == [("reconnects", nats.errors.UnexpectedEOF)]


async def test_nats_connection_joins_several_buffers_into_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = StrictConnection()
    written: list[bytes] = []

    async def init(self: Any) -> None:
        self._transport.writelines([b"a", b"b"])
        self._status = NatsConnection.CONNECTED

    monkeypatch.setattr(NatsConnection, "_process_connect_init", init)
    made._transport = SimpleNamespace(write=written.append, writelines=None)
    await made._process_connect_init()
    assert written == [b"ab"]


async def test_nats_permission_denial_callback_is_called_until_removed() -> None:
    made: Any = StrictConnection()
    told: list[Any] = []
    unwatch = watch_denials(made, lambda *what: told.append(what))
    assert len(made._ps.denials) == 1
    unwatch()
    assert made._ps.denials == []
    foreign: Any = SimpleNamespace()
    watch_denials(foreign, lambda *what: None)()
    assert make_strict(made) is made.errors, "it has our parser already"


def test_nats_cut_off_function_aborts_the_socket_of_the_connection() -> None:
    cut: list[str] = []
    transport = SimpleNamespace(abort=lambda: cut.append("cut"))
    open_: Any = SimpleNamespace(_transport=SimpleNamespace(_io_writer=SimpleNamespace(transport=transport)))
    cut_off(open_)
    assert cut == ["cut"]
    for other in (SimpleNamespace(), SimpleNamespace(_transport=None), SimpleNamespace(_transport=SimpleNamespace())):
        cut_off(other)  # type: ignore[arg-type]


# ---- answers and rights --------------------------------------------------------------------------------------------------------
async def test_nats_permission_denial_fails_waiting_requests_of_the_denied_subject() -> None:
    answers = Answers()
    answers.begin("_INBOX.a", None)

    def asked() -> tuple[asyncio.Future[Any], asyncio.Future[Any], str]:
        _, _, one = answers.expect("s.one")
        _, reply, two = answers.expect("s.two")
        return one, two, reply

    one, two, reply = asked()
    answers.note_denial(False, "s.one")
    assert (one.done(), two.done(), answers.is_open) == (False, False, True), "we do not listen there"
    answers.note_denial(True, "s.one")
    assert (
        str(one.exception())
        == "The NATS permissions of this user do not allow it to publish on s.one. Change the permissions: `liftpy permissions` prints them."  # noqa: E501
    )
    answers.note_denial(True, reply)
    assert (
        str(two.exception())
        == f"The NATS permissions of this user do not allow it to be answered on {reply}. Change the permissions: `liftpy permissions` prints them."  # noqa: E501
    )
    one, two, _ = asked()
    answers.note_denial(True, "_INBOX.a.*")
    assert answers.is_open, "it was no subscription"
    for future in (one, two):
        assert (
            str(future.exception())
            == "The NATS permissions of this user do not allow it to be answered on _INBOX.a.*. Change the permissions: `liftpy permissions` prints them."  # noqa: E501
        )
    one, two, _ = asked()
    answers.note_denial(False, "_INBOX.a.*")
    assert not answers.is_open
    assert isinstance(one.exception(), NotAllowedError)
    answers.end(ClientClosedError("closed"))
    assert isinstance(two.exception(), NotAllowedError), "the first error counts"


class Nats:
    """A replacement of the nats-py client below a Transport."""

    def __init__(self) -> None:
        self.max_payload = 1 << 20
        self.pending_data_size = 0
        self.is_connected = False
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


async def test_nats_transport_close_cancels_an_inbox_subscription_in_progress() -> None:
    connection = Nats()
    connection.subscribe = lambda subject, cb: never()  # type: ignore[method-assign, assignment, misc, return-value]
    transport = over(connection)
    asking = asyncio.create_task(transport.exchange("s", b"q", 60))
    while transport._opening is None:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await transport.leave()
    assert transport._opening.cancelled()
    with pytest.raises(ClientClosedError):  # nobody has cancelled who asked
        await asking


async def test_nats_requests_share_one_inbox_and_are_removed_when_complete() -> None:
    connection = Nats()
    transport = over(connection)
    async with transport.expect_answer("s.one", 60) as (first, one), transport.expect_answer("s.two", 60) as (second, two):
        assert connection.calls == [("subscribe", "_INBOX.0.*")], "once for all"
        assert (first, second, transport.waiting_count) == ("_INBOX.0.0", "_INBOX.0.1", 2)
        sent = SimpleNamespace(subject=second, data=b"x", headers=None)
        await transport._answers.process_message(sent)
        assert (one.done(), two.result()) == (False, sent)
        transport._publish_or_subscribe_denied(True, "s.one")
        assert isinstance(one.exception(), NotAllowedError)
    assert transport.waiting_count == 0
    with pytest.raises(RuntimeError):
        async with transport.expect_answer("s", 60):
            raise RuntimeError
    assert transport.waiting_count == 0
    transport.end()
    with pytest.raises(ClientClosedError):
        async with transport.expect_answer("s", 60):
            raise AssertionError("it is closed")


async def test_nats_request_without_responders_raises_no_responders_and_is_removed() -> None:
    connection = Nats()
    transport = over(connection)

    async def publish(subject: str, payload: bytes, reply: str = "", headers: Any = None) -> None:
        assert (subject, payload, headers) == ("s", b"q", {"h": "1"})
        await transport._answers.process_message(SimpleNamespace(subject=reply, data=b"", headers={"Status": "503"}))

    connection.publish = publish  # type: ignore[method-assign]
    with pytest.raises(NoRespondersError, match="No responders on s"):
        await transport.exchange("s", b"q", 60, {"h": "1"})
    assert transport.waiting_count == 0


@pytest.mark.parametrize("error", [OSError("cut"), nats.errors.ConnectionClosedError()])
async def test_nats_subscription_that_fails_raises_unavailable(error: Exception) -> None:
    connection = Nats()
    connection.fails = error
    transport = over(connection)
    with pytest.raises(UnavailableError) as caught:
        await transport.listen("in.*", never, 60)
    assert str(caught.value) == f"NATS connection error on in.*: {error}. Check the NATS server, then retry."
    assert transport._on_denial == set()
    connection.on_subscribe = transport.end
    with pytest.raises(ClientClosedError):
        await transport.listen("in.*", never, 60)


async def test_nats_subscription_that_is_denied_or_times_out_is_removed() -> None:
    connection = Nats()
    transport = over(connection)
    both = [("subscribe", "in.*"), ("unsubscribe", "in.*")]
    connection.on_subscribe = lambda: transport._publish_or_subscribe_denied(True, "in.*")
    assert await transport.listen("in.*", never, 60) is not None, "another's publish was denied"
    connection.calls.clear()
    connection.on_subscribe = lambda: transport._publish_or_subscribe_denied(False, "in.*")
    with pytest.raises(NotAllowedError, match=r"not allow it to subscribe to in\.\*, where answers arrive\."):
        await transport.listen("in.*", never, 60)
    assert connection.calls == both
    assert transport._on_denial == set()
    connection.calls.clear()
    connection.is_connected = True
    connection.on_subscribe = lambda: None

    async def flush(timeout: float) -> None:
        raise asyncio.CancelledError

    connection.flush = flush  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await transport.listen("in.*", never, 60)
    assert connection.calls == both
    connection.calls.clear()
    connection.is_connected = False
    connection.on_subscribe = transport.end
    with pytest.raises(ClientClosedError):
        await transport.listen("in.*", never, 60)
    assert connection.calls == both


async def test_nats_transport_reconnect_completes_the_reconnected_future_and_creates_a_new_one() -> None:
    transport = over(Nats())
    first = transport.reconnected
    transport._connection_renewed()
    assert first.done()
    assert transport.reconnected is not first
    assert not transport.reconnected.done()
    ours: Any = StrictConnection()
    transport = Transport(ours)
    assert ours.on_reconnected == [transport._connection_renewed]
    transport.end()
    transport.end()
    assert ours.on_reconnected == []


async def test_nats_publish_with_a_full_write_buffer_waits_for_space_or_raises_unavailable() -> None:
    connection = Nats()
    transport = over(connection)
    connection.is_connected = True
    connection.pending_data_size = transport_module.ROOM_BYTES
    assert transport.has_room
    connection.pending_data_size += 1
    assert not transport.has_room
    with pytest.raises(UnavailableError, match="The NATS connection is blocked"):
        await transport.publish("s", b"x", give_up_at=asyncio.get_running_loop().time() + 0.01)
    assert connection.calls == []
    waiting = asyncio.create_task(transport.publish("s", b"x", "r", {"h": "1"}))
    await asyncio.sleep(0)
    assert connection.calls == []
    connection.is_connected = False
    assert transport.has_room, "it is kept for the next connection"
    await waiting
    assert connection.calls == [("publish", "s", b"x", "r", {"h": "1"})]
    connection.is_connected = True
    late = asyncio.create_task(transport.room(asyncio.get_running_loop().time() + 60))
    await asyncio.sleep(0)
    transport.end()
    with pytest.raises(ClientClosedError):
        await late


async def test_nats_transport_close_that_hangs_aborts_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "_CLOSE_S", 0.01)
    cut: list[Any] = []
    monkeypatch.setattr(transport_module, "cut_off", cut.append)
    ended = asyncio.Event()

    async def close() -> None:
        try:
            await never()
        finally:
            ended.set()

    hangs: Any = SimpleNamespace(close=close)
    await transport_module._close(hangs)
    assert cut == [hangs]
    assert ended.is_set()
    assert transport_module._closings == set()

    async def at_once() -> None:
        return None

    await transport_module._close(SimpleNamespace(close=at_once))  # type: ignore[arg-type]
    assert cut == [hangs]


def test_nats_transport_over_an_unmodified_nats_py_connection_reports_no_parse_errors() -> None:
    async def counts() -> Any:
        return [
            over(connection).parse_errors  # type: ignore[arg-type]
            for connection in (
                SimpleNamespace(),
                SimpleNamespace(_ps=SimpleNamespace(errors=3)),
                SimpleNamespace(_ps=SimpleNamespace(errors=Counter(a=1))),
            )
        ]

    assert asyncio.run(counts()) == [Counter(), Counter(), Counter(a=1)]


async def test_nats_request_after_a_closed_inbox_subscribes_a_new_inbox() -> None:
    connection = Nats()
    transport = over(connection)
    async with transport.expect_answer("s", 60):
        pass
    transport._answers.is_open = False
    async with transport.expect_answer("s", 60) as (reply, _):
        assert reply.startswith("_INBOX.2.")
    assert connection.calls == [("subscribe", "_INBOX.0.*"), ("unsubscribe", "_INBOX.0.*"), ("subscribe", "_INBOX.2.*")]
