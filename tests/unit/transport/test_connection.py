"""Test a connection to a real nats-server: messages, reconnects, requests without responders, and limits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from liftpy.core.base.rate_limits import LogRateLimit
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import open_connection
from sidecar.dev.nats_server import NatsServer
from sidecar.runtime.settings import NodeSettings
from sidecar.transport import connection as connection_module
from sidecar.transport.connection import BusConnection, open_bus
from tests.nats_config import change_config
from tests.until import until

Message = tuple[bytes, bytes, bytes, bytes]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[BusConnection]:
    connection = await open_bus(NodeSettings("n1", Path("unused"), nats=(server.url,)), lambda: BusConnection("test"))
    yield connection
    await connection.close()


async def test_connection_delivers_a_message_with_its_subject_reply_headers_and_payload(
    bus: BusConnection, server: NatsServer
) -> None:
    got: list[Message] = []
    bus.listen("t.>", lambda *message: got.append(message))
    other = await nats.connect(server.url)
    inbox = await other.subscribe("back")
    await bus.flush()
    await other.publish("t.a", b"plain", reply="_INBOX.x")
    await other.publish("t.b", b"with", headers={"A": "b"})
    await other.publish("t.c", b"z" * 900_000)
    await until(lambda: len(got) == 3, "three messages")
    assert got[0] == (b"t.a", b"_INBOX.x", b"plain", b"")
    assert got[1] == (b"t.b", b"", b"with", b"NATS/1.0\r\nA: b\r\n\r\n")
    assert got[2][2] == b"z" * 900_000
    assert bus.send("back", [b"one", memoryview(b"two")], "_INBOX.y")
    message = await inbox.next_msg(timeout=5)
    assert (message.data, message.reply) == (b"onetwo", "_INBOX.y")
    await other.close()


async def test_listener_close_stops_the_delivery_at_once(bus: BusConnection) -> None:
    got: list[bytes] = []
    listener = bus.listen("c.x", lambda s, r, payload, h: got.append(payload))
    bus.send("c.x", [b"before"])
    await until(lambda: bool(got), "the first message")
    listener.close()
    told: list[bytes] = []
    bus.listen(f"{bus.inbox}.*", lambda s, r, payload, headers: told.append(headers))
    bus.send("c.x", [b"after"], f"{bus.inbox}.1")
    await until(lambda: bool(told), "the NATS server reports that there are no responders")
    listener.close()
    assert b"503" in told[0]
    assert got == [b"before"]


async def test_listener_leave_delivers_messages_in_flight_and_no_later_ones(bus: BusConnection) -> None:
    got: list[bytes] = []
    listener = bus.listen("l.x", lambda s, r, payload, h: got.append(payload))
    told: list[bytes] = []
    bus.listen(f"{bus.inbox}.*", lambda s, r, payload, headers: told.append(headers))
    for number in range(100):
        bus.send("l.x", [b"%d" % number])
    listener.leave()
    await bus.wait_until_processed(5)
    assert got == [b"%d" % number for number in range(100)]
    bus.send("l.x", [b"after"], f"{bus.inbox}.1")
    await until(lambda: bool(told), "The NATS server reports an error: that nobody listens. Check the server log.")
    listener.leave()
    listener.close()
    assert len(got) == 100


async def test_listener_retire_closes_the_subscription_after_messages_in_flight(bus: BusConnection) -> None:
    got: list[bytes] = []
    first, second = (bus.listen(subject, lambda s, r, payload, h: got.append(payload)) for subject in ("y.a", "y.b"))
    bus.send("y.a", [b"1"])
    bus.retire([first])
    bus.send("y.b", [b"2"])
    bus.retire([second])
    bus.retire([])
    await until(lambda: len(got) == 2, "what was on its way")
    await until(lambda: not bus._sinks, "both have closed")


async def test_subscription_is_reported_active_only_after_the_server_confirms_it(
    bus: BusConnection, server: NatsServer
) -> None:
    """A publish over another connection after that is received. A late confirmation is requested once more."""
    other, settled, tries = await nats.connect(server.url), bus.wait_until_processed, 0

    async def late_once(timeout_s: float) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TimeoutError
        await settled(timeout_s)

    bus.wait_until_processed = late_once  # type: ignore[method-assign]
    got: list[bytes] = []
    heard: list[int] = []
    for number in range(3):
        bus.listen(f"heard.{number}", lambda subject, *_: got.append(subject))
        bus.when_subscribed(lambda number=number: heard.append(number))
    assert heard == [], "not before the server says so"
    await until(lambda: len(heard) == 3, "all that asked together are told")
    assert (heard, tries) == ([0, 1, 2], 2)
    for number in range(3):
        await other.publish(f"heard.{number}", b"")
    await until(lambda: len(got) == 3, "all are heard")
    await other.close()


async def test_connection_after_a_server_restart_resubscribes_and_sends_buffered_acks(server: NatsServer) -> None:
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(server.url,)), lambda: BusConnection("test"))
    got: list[bytes] = []
    back: list[bool] = []
    bus.listen("r.x", lambda s, r, payload, h: got.append(payload))
    bus.on_change(lambda is_up: back.append(True) if is_up else None)
    assert bus.missed_by_all_nodes is False
    server.kill()
    await until(lambda: not bus.is_connected, "the loss is noticed")
    assert not bus.send("r.x", [b"replication is dropped"])
    bus.listen("r.late", lambda s, r, payload, h: got.append(payload))
    bus.send_lines([b"PUB r.x  13\r\nacks are kept\r\n"])
    server.resume()
    await until(lambda: bool(back), "the reconnect")
    assert bus.missed_by_all_nodes, "the only server has restarted"
    await until(lambda: b"acks are kept" in got, "what was kept")
    bus.send("r.late", [b"after"])
    await until(lambda: b"after" in got, "a subscription made while disconnected")
    assert got == [b"acks are kept", b"after"]
    assert bus.errors["disconnected"] == 1
    assert bus.errors["dropped_disconnected"] == 1
    await bus.close()


async def test_subscription_with_a_permission_granted_again_receives_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "DENIED_RETRY_S", 0.05)

    def user(denied: str) -> str:
        rights = f'permissions: {{ publish: ">", subscribe: {{ deny: ["{denied}"] }} }}'
        return f"authorization: {{ users: [ {{ user: n1, password: secret, {rights} }} ] }}\n"

    got: list[bytes] = []
    denials: list[str] = []
    with NatsServer(config=user("nothing")) as server:
        credentials = Credentials(user="n1", password="secret")
        settings = NodeSettings("n1", Path("unused"), nats=(server.url,), credentials=credentials)
        bus = await open_bus(settings, lambda: BusConnection("test"))
        bus.listen("data.x", lambda subject, reply, payload, headers: got.append(payload), "queue")
        bus.on_denial(lambda is_publish, subject: denials.append(subject))
        await bus.wait_until_processed(5)
        change_config(server, user("data.x"))
        await until(lambda: "data.x" in denials)
        bus.send("data.x", (b"lost",))
        await bus.wait_until_processed(5)
        assert got == []
        change_config(server, user("nothing"))

        def arrives() -> bool:
            bus.send("data.x", (b"again",))
            return bool(got)

        await until(arrives)
        assert bus.stats["reconnects"] == 0
        await bus.stop()


@pytest.mark.parametrize(
    ("config", "user_info"),
    [
        ('users: [ { user: "a b", password: "x/y,z@:%é" } ]', "a%20b:x%2Fy%2Cz%40%3A%25%C3%A9"),
        ('token: "t/,%"', "t%2F%2C%25"),
        ('users: [ { user: "a", password: "100%" } ]', "a:100%"),
    ],
    ids=["user", "token", "not encoded"],
)
async def test_user_and_password_of_a_url_may_be_percent_encoded(config: str, user_info: str) -> None:
    with NatsServer(config=f"authorization: {{ {config} }}\n") as server:
        connection = await open_connection(f"nats://{user_info}@{server.url.removeprefix('nats://')}")
        assert connection.is_connected
        await connection.close()


async def test_connection_with_a_subscription_beyond_the_limit_of_the_server_is_lost() -> None:
    """The error does not name the subscription. A leader must not continue without the data of its partition."""
    changes: list[bool] = []
    with NatsServer(config="max_subscriptions: 2\n") as server:
        bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(server.url,)), lambda: BusConnection("test"))
        bus.on_change(changes.append)
        listeners = [bus.listen(f"data.{one}", lambda *_: None) for one in "abc"]
        await until(lambda: False in changes, "the connection is lost")
        assert "maximum subscriptions exceeded" in bus.last_problem
        listeners[0].close()
        await until(lambda: bus.is_connected and changes[-1], "it reconnects with fewer subscriptions")
        await bus.stop()


async def test_connection_on_hold_writes_its_messages_on_release(bus: BusConnection) -> None:
    got: list[bytes] = []
    bus.listen("r.held", lambda s, r, payload, h: got.append(payload))
    await bus.flush()
    bus.hold()
    for number in range(3):
        bus.send("r.held", [b"%d" % number])
    assert bus.unsent_bytes > 0
    bus.release()
    assert bus.unsent_bytes == 0
    await until(lambda: got == [b"0", b"1", b"2"], "what was held")


async def test_connection_writes_the_answers_to_a_read_before_the_event_loop_does_other_work(bus: BusConnection) -> None:
    unsent_bytes: list[int] = []

    def answer(*_: bytes) -> None:
        asyncio.get_running_loop().call_soon(lambda: unsent_bytes.append(bus.unsent_bytes))
        for _ in range(2 * connection_module.AT_ONCE):
            bus.send("w.answer", [b"x"])

    bus.listen("w.request", answer)
    await bus.flush()
    bus.send("w.request", [b""])
    await until(lambda: bool(unsent_bytes), "the request arrives")
    assert unsent_bytes == [0]


async def test_connection_send_returns_false_if_the_server_does_not_read_and_the_buffer_is_full(server: NatsServer) -> None:
    settings = NodeSettings("n1", Path("unused"), nats=(server.url,))
    bus = await open_bus(settings, lambda: BusConnection("test", 2_000_000))
    os.kill(server.pid, signal.SIGSTOP)  # what the kernel does not take waits here
    try:
        sent = sum(bus.send("b.x", [b"x" * 500_000]) for _ in range(100))
        assert sent < 50
        assert bus.errors["send_buffer_full"] == 100 - sent
        assert bus.unsent_bytes <= 2_000_000
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await bus.flush()
    assert bus.send("b.x", [b"x" * 1000])
    await bus.stop()


async def test_connection_that_is_closing_buffers_only_acks(bus: BusConnection) -> None:
    """nats-py does not know of the end yet. Acks leave with the next connection."""
    await until(lambda: bus._receiver is not None, "the handshake is done")
    receiver = bus._receiver
    assert receiver is not None
    got: list[bytes] = []
    bus.listen("down.x", lambda s, r, payload, h: got.append(payload))
    receiver.transport.abort()
    assert not bus.send("down.x", [b"lost"])
    bus.send_lines([b"PUB down.x  4\r\nkept\r\n"])
    assert bus.errors["dropped_disconnected"] == 1
    await until(lambda: got == [b"kept"], "what was kept")


async def test_hostile_subjects_and_headers_reach_only_the_listener_of_their_subject(
    bus: BusConnection, server: NatsServer
) -> None:
    """A token of nats-server is a token for this parser. Bytes that are no text do not end the reading [A12]."""
    shop: list[Message] = []
    private: list[Message] = []
    owned: list[bytes] = []
    bus.listen("shop.>", lambda *message: shop.append(message))
    victim = bus.listen("private", lambda *message: private.append(message))

    async def own(message: Any) -> None:
        owned.append(message.data)

    await bus.subscribe("own.>", cb=own)
    await bus.flush()
    await bus.flush()
    sid = victim._sid
    forged = [b"shop.a%b%d" % (blank, sid) for blank in (b"\x0b", b"\x0c", b"\r", b"\x1c", b"\x00", b"\xff")]
    lines = [b"PUB %b 2\r\nhi\r\n" % subject for subject in forged]
    lines += [b"PUB shop.b _INBOX.x%b%d 2\r\nhi\r\n" % (blank, sid) for blank in (b"\x0b", b"\x0c")]
    lines += [b"HPUB shop.b\x0b%d 2 4\r\nhihi\r\n" % sid, b"PUB own.\xff 2\r\nhi\r\n", b"HPUB own.a 2 2\r\nhi\r\n"]
    lines += [b"PUB own.last 4\r\nlast\r\n", b"PUB shop.last 4\r\nlast\r\n"]
    _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + b"".join(lines))
    await until(lambda: bool(shop and owned) and shop[-1][2] == owned[-1] == b"last", "the last messages")
    assert private == []
    assert [message[0] for message in shop] == [*forged, b"shop.b", b"shop.b", b"shop.b\x0b%d" % sid, b"shop.last"]
    assert owned == [b"last"]
    assert bus.errors == {"undecodable": 2}
    assert bus.stats["reconnects"] == 0
    writer.close()


async def test_messages_whose_handler_raises_are_counted_and_logged_once_per_interval(
    bus: BusConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """A publisher that can trigger the bug can do so a million times."""
    bus._failures = LogRateLimit(3600.0)

    def fails(subject: bytes, *_: bytes) -> None:
        raise KeyError("a bug")

    bus.listen("fails.>", fails)
    for number in range(500):
        bus.send(f"fails.{'x' * 1000}{number}", [b""])
    await until(lambda: bus.errors["not_taken"] == 500, "all are counted")
    assert len(caplog.records) == 1
    assert len(caplog.records[0].getMessage()) < 500, "subjects are shown shortened"
    bus._failures = LogRateLimit(3600.0)  # an hour later
    bus.send("fails.again", [b""])
    await until(lambda: bus.errors["not_taken"] == 501, "one more")
    assert len(caplog.records) == 2
