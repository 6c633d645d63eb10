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

from sidecar.dev.nats_server import NatsServer
from sidecar.runtime.settings import NodeSettings
from sidecar.transport import connection as connection_module
from sidecar.transport.connection import AT_ONCE, TOGETHER_BYTES, BusConnection, open_bus
from tests.unit.transport.fake_server import FakeServer
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
    listener.close()
    bus.send("c.x", [b"after"])
    await bus.flush()
    await bus.flush()
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


async def test_queue_group_delivers_each_message_to_one_listener(bus: BusConnection) -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    bus.listen("q.x", lambda s, r, payload, h: first.append(payload), queue="q.x")
    bus.listen("q.x", lambda s, r, payload, h: second.append(payload), queue="q.x")
    for number in range(50):
        bus.send("q.x", [b"%d" % number])
    await until(lambda: len(first) + len(second) == 50, "all messages, each once")


async def test_request_without_responders_gets_a_503_status(bus: BusConnection) -> None:
    got: list[Message] = []
    bus.listen(f"{bus.inbox}.*", lambda *message: got.append(message))
    bus.send("nobody.listens.here", [b"x"], f"{bus.inbox}.1")
    await until(lambda: bool(got), "the server's word")
    assert got[0][3].startswith(b"NATS/1.0 503")


async def test_connection_after_a_server_restart_resubscribes_and_sends_buffered_acks(server: NatsServer) -> None:
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=(server.url,)), lambda: BusConnection("test"))
    got: list[bytes] = []
    back: list[bool] = []
    bus.listen("r.x", lambda s, r, payload, h: got.append(payload))
    bus.on_reconnect(lambda: back.append(True))
    server.kill()
    await until(lambda: not bus.is_connected, "the loss is noticed")
    assert not bus.send("r.x", [b"replication is dropped"])
    bus.listen("r.late", lambda s, r, payload, h: got.append(payload))
    assert bus.send("r.x", [b"acks are kept"], keep=True)
    server.resume()
    await until(lambda: bool(back), "the reconnect")
    await until(lambda: b"acks are kept" in got, "what was kept")
    bus.send("r.late", [b"after"])
    await until(lambda: b"after" in got, "a subscription made while disconnected")
    assert got == [b"acks are kept", b"after"]
    assert bus.errors["disconnected"] == 1
    assert bus.errors["dropped_disconnected"] == 1
    await bus.close()


async def test_connection_send_returns_false_above_max_payload_and_with_a_full_buffer(
    bus: BusConnection, server: NatsServer
) -> None:
    assert not bus.send("b.x", [b"x" * (bus.max_payload + 1)])
    assert bus.errors["too_large"] == 1
    bus._send_buffer_bytes = 2_000_000
    os.kill(server.pid, signal.SIGSTOP)  # it reads no more: what the kernel does not take waits here
    try:
        sent = sum(bus.send("b.x", [b"x" * 500_000]) for _ in range(100))
        assert sent < 50
        assert bus.errors["send_buffer_full"] == 100 - sent
        assert bus.unsent_bytes <= 2_000_000
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await bus.flush()
    assert bus.send("b.x", [b"x" * 1000])


async def test_connection_sends_and_receives_synchronously_without_a_reading_task(
    bus: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`send` gives the bytes to the transport at once, and a sink is called where the bytes arrive."""
    by_a_task: list[bytes] = []
    parse = bus._parser.parse

    async def noted(data: bytes = b"") -> None:
        by_a_task.append(data)
        await parse(data)

    monkeypatch.setattr(bus._parser, "parse", noted)
    got: list[bytes] = []
    bus.listen("now.x", lambda s, r, payload, h: got.append(payload))
    for number in range(20):
        bus.send("now.x", [b"%d" % number])
        bus.send_lines([b"PUB now.x  1\r\na\r\n"])
        assert not bus._pending
        await until(lambda: len(got) == 2 * number + 2, "both messages")  # noqa: B023
    assert b"".join(by_a_task) == b"", "but for commands, which it finds in the parser"


async def test_after_read_callbacks_run_once_after_all_messages_of_the_read(bus: BusConnection) -> None:
    """A callback that fails does not affect the others."""
    await until(lambda: bus._receiver is not None, "the handshake is done")
    receiver = bus._receiver
    assert receiver is not None
    told: list[str] = []
    failures: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def sink(subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if not told:
            bus.call_after_read(lambda: told[99])  # type: ignore[arg-type,return-value]
            bus.call_after_read(lambda: told.append("behind"))
        told.append(payload.decode())

    sid = bus.listen("behind.x", sink)._sid
    await until(lambda: receiver._reader is not None, "the reading task is idle")
    receiver.data_received(b"".join(b"MSG behind.x %d 1\r\n%d\r\n" % (sid, n) for n in (1, 2, 3)))
    assert told == ["1", "2", "3", "behind"]
    assert [type(error) for error in failures] == [IndexError]
    told.clear()
    bus.call_after_read(lambda: told.append("later"))
    assert told == [], "where nothing is read, in the next turn"
    await until(lambda: told == ["later"], "the next turn")


async def test_connection_sends_the_answers_to_messages_of_one_socket_read_in_few_writes(
    bus: BusConnection, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.listen("few.asked", lambda s, r, payload, h: bus.send("few.answered", (payload,)) or None)
    answers: list[bytes] = []
    other = await open_bus(NodeSettings("n2", Path("unused"), nats=(server.url,)), lambda: BusConnection("other"))
    other.listen("few.answered", lambda s, r, payload, h: answers.append(payload))
    await other.wait_until_processed(5)
    await bus.wait_until_processed(5)
    assert bus._outlet is not None
    writes, reads = [0], [0]
    monkeypatch.setattr(bus._outlet, "_transport", _Counted(bus._outlet._transport, writes))
    take = bus._process_arrived

    def counted(data: bytes) -> bytes | None:
        reads[0] += 1
        return take(data)

    assert bus._receiver is not None
    monkeypatch.setattr(bus._receiver, "_take", counted)
    asked = [b"%d" % number for number in range(2000)]
    for word in asked:
        other.send("few.asked", (word,))
    await until(lambda: len(answers) == len(asked), "every answer")
    assert answers == asked
    bytes_of_all = sum(len(b"PUB few.answered  4\r\n%b\r\n" % word) for word in asked)
    assert writes[0] <= (AT_ONCE + 1) * reads[0] + bytes_of_all // TOGETHER_BYTES + 1
    await other.close()


class _Counted(asyncio.WriteTransport):
    """Counts what is written to a transport."""

    def __init__(self, transport: asyncio.WriteTransport, writes: list[int]) -> None:
        super().__init__()
        self._to, self._writes = transport, writes

    def write(self, data: Any) -> None:
        self._writes[0] += 1
        self._to.write(data)

    def writelines(self, list_of_data: Any) -> None:
        self._writes[0] += 1
        self._to.writelines(list_of_data)

    def is_closing(self) -> bool:
        return self._to.is_closing()


async def test_connection_sends_its_messages_and_nats_py_publishes_in_call_order(bus: BusConnection) -> None:
    """The flusher of nats-py sends its own commands."""
    got: list[bytes] = []
    bus.listen("order.x", lambda s, r, payload, h: got.append(payload))
    await bus.wait_until_processed(5)
    for number in range(0, 30, 3):
        bus.send("order.x", [b"%d" % number])
        await bus.publish("order.x", b"%d" % (number + 1))
        bus.send("order.x", [b"%d" % (number + 2)])
    await until(lambda: len(got) == 30, "all")
    assert got == [b"%d" % number for number in range(30)]
    got.clear()
    bus._wake_flusher()  # the flusher wakes up in this turn: before what waits for the turn's end
    for word in (b"at once", b"waits"):
        bus.send("order.x", [word])
    await bus.publish("order.x", b"by the flusher")
    bus.send("order.x", [b"behind it"])
    await until(lambda: len(got) == 4, "all four")
    assert got == [b"at once", b"waits", b"by the flusher", b"behind it"]


async def test_connection_that_is_closing_buffers_only_messages_sent_with_the_keep_option(bus: BusConnection) -> None:
    """nats-py does not know of the end yet. Marked messages leave with the next connection."""
    await until(lambda: bus._receiver is not None, "the handshake is done")
    receiver = bus._receiver
    assert receiver is not None
    got: list[bytes] = []
    bus.listen("down.x", lambda s, r, payload, h: got.append(payload))
    receiver.transport.abort()
    assert not bus.send("down.x", [b"lost"])
    assert bus.send("down.x", [b"kept"], keep=True)
    assert bus.errors["dropped_disconnected"] == 1
    await until(lambda: got == [b"kept"], "what was kept")


async def test_connection_after_a_reconnect_discards_a_partial_message_of_the_lost_connection() -> None:
    """Bytes of the old server are ignored while nats-py connects to the next one."""
    first, second = FakeServer(), FakeServer()
    urls = (await first.start(), await second.start())
    bus = await open_bus(NodeSettings("n1", Path("unused"), nats=urls[:1]), lambda: BusConnection("test"))
    got: list[bytes] = []
    bus.listen("ev", lambda s, r, payload, h: got.append(payload))
    bus.listen("other", lambda s, r, payload, h: got.append(payload))
    first.says(b"MSG ev 1 1\r\n1\r\nMSG ev 1 500\r\n")
    await until(lambda: got == [b"1"], "the first one")
    await until(lambda: bus._receiver is not None, "the handshake is done")
    old = bus._receiver
    assert old is not None
    await bus._process_op_err(OSError("gone"))
    old.data_received(b"MSG ev 1 900\r\nhalf")
    await until(lambda: bus._receiver not in (old, None), "another connection")
    assert old._stopped, "from when nobody reads from it, not only when its transport is closed"
    old.data_received(b"MSG ev 1 900\r\nhalf")
    first.says(b"MSG ev 1 1\r\n2\r\n")
    await until(lambda: got == [b"1", b"2"], "what the new connection brings")
    await bus.close()
    first.close()
    second.close()


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
    bus: BusConnection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that can trigger the bug can do so a million times."""
    monkeypatch.setattr(connection_module, "_LOG_PERIOD_S", 3600.0)

    def fails(subject: bytes, *_: bytes) -> None:
        raise KeyError("a bug")

    bus.listen("fails.>", fails)
    for number in range(500):
        bus.send(f"fails.{'x' * 1000}{number}", [b""])
    await until(lambda: bus.errors["not_taken"] == 500, "all are counted")
    assert len(caplog.records) == 1
    assert len(caplog.records[0].getMessage()) < 500, "subjects are shown shortened"
    bus._reset_failing()  # an hour later
    bus.send("fails.again", [b""])
    await until(lambda: bus.errors["not_taken"] == 501, "one more")
    assert len(caplog.records) == 2
