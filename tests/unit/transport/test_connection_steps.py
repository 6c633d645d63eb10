"""Test a connection without a server: the order of bytes, subscriptions and reports."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.errors import ConfigError
from sidecar.transport import connection as module
from sidecar.transport.connection import BusConnection, StrictConnection, check_nats_py


class Outlet:
    """Notes what is written, and when what waits is let go."""

    def __init__(self, waiting_bytes: int = 0) -> None:
        self.waiting_bytes = waiting_bytes
        self.did: list[Any] = []

    def write(self, pieces: Any, size_bytes: int) -> None:
        self.did.append((b"".join(pieces), size_bytes))

    def let_go(self) -> None:
        self.did.append("let go")


class Transport:
    closing, waiting_bytes = False, 0

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes


@pytest.fixture
async def bus() -> Any:
    """As one that is connected."""
    made: Any = BusConnection("acks")
    made._status = BusConnection.CONNECTED
    made._receiver = SimpleNamespace(transport=Transport())
    made._outlet = Outlet()
    made._flush_queue = asyncio.Queue()
    return made


# ---- out ---------------------------------------------------------------------------------------------------------------------
async def test_connection_is_up_only_while_connected_with_an_open_transport(bus: Any) -> None:
    assert bus._is_up
    bus._receiver.transport.closing = True
    assert not bus._is_up
    bus._receiver = None
    assert bus._is_up, "where nats-py reads"
    bus._status = BusConnection.RECONNECTING
    assert not bus._is_up


# ---- subscriptions -----------------------------------------------------------------------------------------------------------
async def test_listener_opened_while_disconnected_sends_nothing_until_the_reconnect(bus: Any) -> None:
    bus._status = BusConnection.RECONNECTING
    listener = bus.listen("a", lambda *_: None)
    assert sorted(bus._subs) == [1], "nats-py renews it"
    listener.close()
    assert (bus._subs, bus._outlet.did, bus._pending) == ({}, [], [])


# ---- in ----------------------------------------------------------------------------------------------------------------------
async def test_reading_task_that_ends_does_not_remove_the_receiver_of_a_newer_reading_task(
    bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old: Any = SimpleNamespace(transport=Transport(), stop=lambda: None)
    newer, outlet = object(), object()

    async def receive(*_: Any) -> Any:
        return old

    async def loop(self: Any) -> None:
        self._receiver, self._outlet = newer, outlet

    monkeypatch.setattr(module, "receive", receive)
    monkeypatch.setattr(StrictConnection, "_read_loop", loop)
    await bus._read_loop()
    assert (bus._receiver, bus._outlet) == (newer, outlet)


async def test_connection_read_runs_callbacks_and_then_flushes_the_write_buffer(bus: Any) -> None:
    did = bus._outlet.did

    def feed(data: bytes) -> bool:
        bus.call_after_read(lambda: did.append("behind"))
        if data == b"bad":
            raise nats.errors.ProtocolError
        return True

    bus._parser.feed = feed
    bus._process_arrived(b"good")
    assert did == ["behind", "let go"]
    with pytest.raises(nats.errors.ProtocolError):
        bus._process_arrived(b"bad")
    assert did == ["behind", "let go"] * 2
    assert (bus._is_parsing, bus._after_read) == (False, [])


@pytest.mark.parametrize("state", ["is_closed", "is_reconnecting"])
async def test_connection_read_while_closed_or_reconnecting_is_ignored(
    state: str, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[bytes] = []
    bus.listen("a", lambda *message: got.append(message[2]))
    monkeypatch.setattr(BusConnection, state, True)
    assert bus._process_arrived(b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n") is None
    monkeypatch.setattr(BusConnection, state, False)
    assert bus._process_arrived(b"MSG a 1 1\r\n2\r\n") is None
    assert got == [b"2"]


# ---- leaving, and being heard --------------------------------------------------------------------------------------------------
class Settling:
    """Records the timeouts of ``wait_until_processed``. Each answer is an error or the next step of the test."""

    def __init__(self, bus: Any, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.asked: list[float] = []
        self.slept: list[float] = []
        self.tasks: list[Any] = []
        self.answers = list(answers)
        bus.wait_until_processed = self.wait_until_processed
        monkeypatch.setattr(module, "spawn", self.spawn)

    def spawn(self, work: Any, name: str) -> Any:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    async def wait_until_processed(self, timeout_s: float) -> None:
        self.asked.append(timeout_s)
        answer = self.answers.pop(0) if self.answers else None
        if callable(answer):
            answer()
        elif answer is not None:
            raise answer

    async def end(self) -> None:
        await asyncio.gather(*self.tasks)


class Leaver:
    def __init__(self, name: str, did: list[str]) -> None:
        self.name, self.did = name, did

    def leave(self) -> None:
        self.did.append(f"{self.name} leaves")

    def close(self) -> None:
        self.did.append(f"{self.name} closes")


async def test_listeners_retired_together_wait_for_one_server_flush(bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    late = Leaver("late", did)
    settling = Settling(bus, monkeypatch, lambda: bus.retire([late]), TimeoutError())
    bus.retire([])
    assert settling.tasks == []
    bus.retire([Leaver("a", did)])
    bus.retire([Leaver("b", did)])
    assert (did, len(settling.tasks)) == (["a leaves", "b leaves"], 1)
    await settling.end()
    assert did[2:] == ["late leaves", "a closes", "b closes", "late closes"], "also where the server does not answer"
    assert (settling.asked, len(settling.tasks), bus._retiring_listeners) == ([1.0, 1.0], 1, [])
    bus.retire([Leaver("c", did)])
    await settling.end()
    assert (did[6:], len(settling.tasks)) == (["c leaves", "c closes"], 2)


@pytest.mark.parametrize("error", [nats.errors.ConnectionClosedError(), TimeoutError(), OSError("gone")])
async def test_listener_retire_closes_even_if_the_server_flush_raises(
    error: Exception, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    settling = Settling(bus, monkeypatch, error)
    bus.retire([Leaver("a", did)])
    await settling.end()
    assert did == ["a leaves", "a closes"]


async def test_subscription_confirmation_is_retried_with_longer_timeouts_and_reported_once(
    bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    errors = [nats.errors.ConnectionClosedError(), TimeoutError(), OSError(), OSError(), OSError()]
    settling = Settling(bus, monkeypatch, *errors, lambda: bus.when_subscribed(lambda: told.append("late")))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            bus.when_subscribed(lambda: told.append("third"))

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    bus.when_subscribed(lambda: told.append("first"))
    bus.when_subscribed(lambda: told.append("second"))
    assert len(settling.tasks) == 1
    await settling.end()
    assert told == ["first", "second", "third", "late"]
    assert settling.asked == [1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0]
    assert (slept, len(settling.tasks), bus._subscribe_callbacks) == ([0.1] * 5, 1, [])
    bus.when_subscribed(lambda: told.append("next"))
    await settling.end()
    assert (told[4:], settling.asked[7:]) == (["next"], [1.0])


async def test_subscription_on_a_closed_connection_is_never_confirmed(bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settling = Settling(bus, monkeypatch, TimeoutError())

    async def sleep(seconds: float) -> None:
        monkeypatch.setattr(BusConnection, "is_closed", True)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    bus.when_subscribed(lambda: pytest.fail("it was not heard"))
    await settling.end()
    assert settling.asked == [1.0]


async def test_connection_wait_until_processed_flushes_the_connection_twice(bus: Any) -> None:
    did = bus._outlet.did

    async def flush(timeout_s: float) -> None:
        did.append(timeout_s)

    bus.flush = flush
    await bus.wait_until_processed(3.0)
    assert did == ["let go", 3.0, 3.0]


# ---- life --------------------------------------------------------------------------------------------------------------------
async def test_reconnect_failure_is_logged_once_per_reason(bus: Any, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        said = [record.getMessage() for record in caplog.records if "cannot reconnect to NATS" in record.getMessage()]
        return [line.partition("reason=")[2].removesuffix(": retrying") for line in said]

    await bus._count_error(OSError("at its first connect"))
    bus._problems.last = "EOF"
    await bus._disconnected()
    for why in ("EOF", "refused", "expired", "refused"):
        await bus._count_error(OSError(why))
    assert told() == ["refused", "expired"], "EOF was said when it was lost"
    for number in range(20):
        await bus._count_error(OSError(f"reason {number}"))
    assert len(told()) == 7
    await bus._reconnected()
    await bus._count_error(OSError("something else"))
    await bus._disconnected()
    await bus._count_error(OSError("expired"))
    assert told()[7:] == ["expired"]


async def test_connection_after_a_server_loss_sends_recent_acks_again(bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [0]
    monkeypatch.setattr(module.clock, "now_ns", lambda: now_ns[0])
    written: list[bytes] = []
    monkeypatch.setattr(bus, "_write", lambda pieces, size_bytes: written.append(b"".join(pieces)))
    bus.send_lines([b"long ago"])
    now_ns[0] = 2_000_000_000
    bus.send_lines([b"a", b"b"])
    await bus._disconnected()
    bus._status = BusConnection.RECONNECTING
    bus.send_lines([b"is kept, and sent anyway"])
    now_ns[0] = 9_000_000_000
    bus._status = BusConnection.CONNECTED
    del written[:]
    await bus._reconnected()
    assert written == [b"ab"]
    await bus._reconnected()
    assert written == [b"ab"]


@pytest.mark.parametrize(("after", "known", "all_have"), [("x", 1, False), ("y", 1, True), ("y", 2, False)])
async def test_reconnect_to_a_restarted_only_server_reports_possible_loss_to_all_subscribers(
    after: str, known: int, all_have: bool, bus: Any
) -> None:
    assert bus.all_have_lost_it is False
    bus._server_info = {"server_id": "x"}
    await bus._disconnected()
    bus._server_info, bus._server_pool = {"server_id": after}, [SimpleNamespace(uri=None)] * known
    bus._current_server = None
    await bus._reconnected()
    assert bus.all_have_lost_it is all_have


async def test_connection_close_is_not_reported_as_a_loss(
    bus: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BusConnection, "is_closed", True)
    bus.on_change(lambda is_up: pytest.fail("nobody is told"))
    await bus._disconnected()
    assert (caplog.messages, bus.errors) == ([], {"disconnected": 1})


async def test_connection_reads_its_credentials_only_if_the_server_requires_them(bus: Any) -> None:
    assert bus.requires_credentials is False
    bus._server_info = {"auth_required": True}
    assert bus.requires_credentials is True


async def test_connection_stop_writes_buffered_bytes_before_it_closes(bus: Any) -> None:
    async def close() -> None:
        bus._outlet.did.append("close")

    bus.close = close
    await bus.stop()
    assert bus._outlet.did == ["let go", "close"]


@pytest.mark.parametrize(("error", "text"), [(OSError("cut"), "cut"), (TimeoutError(), "TimeoutError")])
async def test_connection_stores_the_error_of_a_loss_before_it_reconnects(
    error: Exception, text: str, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    async def op_err(self: Any, why: Exception) -> None:
        told.append((why, self.last_problem))

    monkeypatch.setattr(StrictConnection, "_process_op_err", op_err)
    await bus._process_op_err(error)
    assert told == [(error, text)]


def test_nats_py_version_without_a_needed_attribute_raises_with_the_attribute_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_nats_py()
    monkeypatch.setattr(module, "Client", type("Client", (), dict.fromkeys((*module._PRIVATE[1:], "_read_loop"))))
    with pytest.raises(ConfigError) as raised:
        check_nats_py()
    assert "lacks _pending, _process_err, _process_op_err, _remove_sub" in str(raised.value)
