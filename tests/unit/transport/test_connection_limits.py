"""Test the size limits of a connection, what it logs, and how it is opened."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import nats.errors
import pytest

from liftpy.config import NS_PER_S
from liftpy.errors import ConfigError, NotAllowedError
from sidecar.runtime.settings import NodeSettings
from sidecar.transport import connection as module
from sidecar.transport import credentials, ingest_connection
from sidecar.transport.connection import BusConnection, check_nats_py, open_bus
from sidecar.transport.credentials import _MAX_REPORTED_DENIALS, PermissionWatch
from sidecar.transport.ingest_connection import Drops
from tests.unit.transport.fake_server import FakeServer
from tests.until import until


@contextlib.asynccontextmanager
async def connected(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[FakeServer, BusConnection]]:
    """Open a connection with ``max_payload`` 1000, which buffers 5000 bytes, or 300 bytes of acks while disconnected."""
    monkeypatch.setattr(module, "_ACK_BUFFER_BYTES", 300)
    server = FakeServer()
    server.info = server.info.replace(b"1048576", b"1000")
    settings = NodeSettings("n1", Path("unused"), nats=(await server.start(),))
    bus = await open_bus(settings, lambda: BusConnection("acks", 5000))
    await bus.wait_until_processed(5)
    yield server, bus
    await bus.stop()
    server.close()


async def test_connection_send_above_the_buffer_or_max_payload_returns_false_and_counts_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected(monkeypatch) as (_, bus):
        assert not bus.send("s", [b"x" * 600, b"y" * 401])
        assert bus.errors == {"too_large": 1}
        bus.hold()
        bus.send_lines([b"x" * (4000 - bus.unsent_bytes)])
        assert bus.has_room, "for a message of max_payload"
        bus.send_lines([b"x"])
        assert not bus.has_room
        assert not bus.send("s", [b"x" * 1000])
        assert bus.send("s", [b"x" * 999])
        assert bus.errors == {"too_large": 1, "send_buffer_full": 1}


async def test_connection_buffers_acks_up_to_a_bound_and_counts_the_dropped_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch) as (server, bus):
        bus.hold()
        bus.send_lines([b"x" * (4999 - bus.unsent_bytes)])
        bus.send_lines([b"y", b"z"])
        assert bus.errors == {"acks_dropped": 2}
        bus.send_lines([b"y"])
        server.close()
        await until(lambda: not bus.is_connected)
        bus.send_lines([b"x" * (290 - bus.unsent_bytes), b"y" * 10])
        bus.send_lines([b"z"])
        assert not bus.send("s", [b""])
        assert (bus.errors["acks_dropped"], bus.errors["dropped_disconnected"]) == (3, 1)
        assert not bus.has_room
        assert bus.stats["out_msgs"] == 4


# ---- rights ----------------------------------------------------------------------------------------------------------------
@pytest.fixture
def watch() -> Any:
    made: Any = PermissionWatch("ns", lambda error: made.ended.append(error), Counter())
    made.ended = []
    return made


def test_permission_denial_for_a_subject_in_the_own_namespace_stops_a_starting_node(
    watch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watch.record_denial(True, "shop.orders")
    watch.record_denial(False, "nsx.raft.n1")
    assert watch.ended == []
    watch.record_denial(False, "ns.raft.n1")
    watch.record_denial(True, "ns.raft.n2")
    (error,) = watch.ended
    assert isinstance(error, NotAllowedError)
    assert "does not let this node subscribe on ns.raft.n1" in str(error)
    assert "--role node --namespace ns" in str(error)
    assert [text.partition(".  ")[0].partition(". Give")[0] for text in caplog.messages] == [
        "NATS permission denied error=NATS does not let this node publish on shop.orders",
        "NATS permission denied error=NATS does not let this node subscribe on nsx.raft.n1",
        "NATS permission denied error=NATS does not let this node publish on ns.raft.n2",
    ]
    assert watch._counters == {"permission_denied": 4}


def test_permission_denial_after_the_start_is_logged_once_per_subject_and_interval(
    watch: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    monkeypatch.setattr(credentials, "clock", SimpleNamespace(now_ns=lambda: now_ns))
    watch.start_completed()
    for logged in (2, 4):
        for _ in range(2):
            watch.record_denial(True, "ns.a")
            watch.record_denial(False, "ns.a")
        assert (watch.ended, len(caplog.messages)) == ([], logged)
        now_ns += round(credentials.REPORT_AGAIN_S * NS_PER_S)
    for number in range(2 * _MAX_REPORTED_DENIALS):
        watch.record_denial(True, f"s.{number}")
    assert len(caplog.messages) == 4 + _MAX_REPORTED_DENIALS
    assert watch._counters == {"permission_denied": 8 + 2 * _MAX_REPORTED_DENIALS}


# ---- what was dropped ------------------------------------------------------------------------------------------------------
async def test_dropped_publishes_are_logged_once_per_interval(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_connection, "_LOG_PERIOD_S", 0.05)
    drops = Drops()

    def logged() -> list[str]:
        return [text.rpartition("counts=")[2] for text in caplog.messages]

    drops.count("s/0", "overloaded", 3)
    for number in range(10):
        drops.count(f"s/{number}", "overloaded", number + 1)
    assert logged() == ["3 of s/0: overloaded"]
    await until(lambda: len(logged()) == 2)
    largest = ", ".join(f"{number + 1} of s/{number}: overloaded" for number in range(9, 1, -1))
    assert logged()[1] == f"{largest}, and 2 more"
    await until(lambda: drops._timer is None)
    assert len(logged()) == 2, "there is nothing to say"
    drops.count("s/1", "below_min_isr", 1)
    assert len(logged()) == 3, "at once again"
    drops.count("s/1", "below_min_isr", 2)
    drops.close()
    assert logged()[2:] == ["1 of s/1: below_min_isr", "2 of s/1: below_min_isr"]


SETTINGS = NodeSettings("n1", Path("unused"), nats=("nats://h:1",), namespace="space")


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry a connection at once."""
    monkeypatch.setattr(module, "_RECONNECT_WAIT_S", 0.0)


class Attempt:
    """A connection whose ``connect`` raises ``error``."""

    name, last_problem, inbox = "reads", "", ""
    _count_error = _disconnected = _reconnected = None

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.options = error, dict[str, Any]()
        self.stopped = 0

    async def connect(self, **options: Any) -> None:
        if self.error is not None:
            raise self.error

    async def stop(self) -> None:
        self.stopped += 1
        raise OSError("it was never there")


async def opened(attempts: list[Attempt], keys: Any = None) -> Any:
    waiting = list(attempts)
    return await open_bus(SETTINGS, lambda: cast(Any, waiting.pop(0)), keys)


class RenewedKeys:
    """Credentials whose files are invalid at some attempts. Another task replaces them after each of these."""

    def __init__(self, *is_valid: bool) -> None:
        self.waiting = list(is_valid)

    @property
    def credentials(self) -> RenewedKeys:
        return self

    def nats_options(self) -> dict[str, Any]:
        if not self.waiting.pop(0):
            asyncio.get_running_loop().call_soon(self.waiting.insert, 0, True)
            raise ConfigError("Cannot use TLS")
        return {}

    def add(self, connection: object, credentials: object) -> None:
        pass


async def test_open_bus_retries_while_another_task_renews_the_files_of_the_credentials() -> None:
    attempts = [Attempt(OSError("the certificate has expired")), Attempt()]
    assert await opened(attempts, RenewedKeys(True, *[False] * 1000)) is attempts[1]
    with pytest.raises(ConfigError):
        await opened(attempts, RenewedKeys(False))


@pytest.mark.parametrize("error", [OSError("refused"), TimeoutError(), nats.errors.NoServersError(), nats.errors.Error("no")])
async def test_open_bus_retries_until_a_server_accepts_the_node(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    attempts = [Attempt(error), Attempt(error), Attempt()]
    assert await opened(attempts) is attempts[2]
    assert [attempt.stopped for attempt in attempts] == [1, 1, 0]
    inboxes = {attempt.inbox for attempt in attempts}
    assert all(inbox.startswith("space.inbox.n1.") for inbox in inboxes)
    assert len(inboxes) == 3, "no attempt gets an answer to an earlier one"
    assert len(caplog.messages) == 1, "the same reason is logged once"
    assert caplog.messages[0].endswith(f"reason={str(error) or type(error).__name__}: retrying")


async def test_open_bus_logs_the_error_that_the_server_reported(caplog: pytest.LogCaptureFixture) -> None:
    rejected = Attempt(nats.errors.NoServersError())
    rejected.last_problem = "NATS server error: 'Authorization Violation'"
    await opened([rejected, Attempt()])
    assert "Authorization Violation" in caplog.messages[0]


async def test_open_bus_does_not_retry_an_unexpected_error() -> None:
    with pytest.raises(ZeroDivisionError):
        await opened([Attempt(ZeroDivisionError())])


def test_nats_py_version_without_a_needed_attribute_raises_with_the_attribute_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_nats_py()
    monkeypatch.setattr(module, "Client", type("Client", (), dict.fromkeys((*module._PRIVATE[1:], "_read_loop"))))
    with pytest.raises(ConfigError, match="lacks _pending, _process_err, _process_op_err, _remove_sub"):
        check_nats_py()
