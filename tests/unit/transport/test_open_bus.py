"""Test that opening a connection retries, and when a connection requests server statistics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import nats.errors
import pytest

from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.errors import ConfigError
from liftpy.nats.credentials import Credentials
from sidecar.runtime.settings import NodeSettings
from sidecar.transport import connection as module
from sidecar.transport.connection import open_bus
from sidecar.transport.ingest_connection import IngestConnection


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry a connection at once."""
    monkeypatch.setattr(module, "_RECONNECT_WAIT_S", 0.0)


class Attempt:
    """A connection that fails as the test says."""

    name, last_problem = "reads", ""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.options = error, {"max_reconnect_attempts": 1}
        self.given: dict[str, Any] = {}
        self.stopped = 0
        self._count_error, self._disconnected, self._reconnected = "counts", "is lost", "is back"

    async def connect(self, **given: Any) -> None:
        self.given = given
        if self.error is not None:
            raise self.error

    async def stop(self) -> None:
        self.stopped += 1
        raise OSError("it was never there")


class RenewedKeys:
    """Credentials whose files are invalid at some attempts."""

    def __init__(self, *is_valid: bool) -> None:
        self.waiting = list(is_valid)

    @property
    def credentials(self) -> RenewedKeys:
        return self

    def nats_options(self) -> dict[str, Any]:
        if not self.waiting.pop(0):
            raise ConfigError("Cannot use TLS")
        return {}

    def add(self, connection: object, credentials: object) -> None:
        pass


async def test_open_bus_retries_while_the_files_of_the_credentials_are_renewed() -> None:
    settings = NodeSettings("n1", Path("unused"), nats=("nats://h:1",))
    attempts: list[Any] = [Attempt(OSError("the certificate has expired")), Attempt(None)]
    waiting = list(attempts)
    keys: Any = RenewedKeys(True, False, False, True)
    assert await open_bus(settings, lambda: waiting.pop(0), keys) is attempts[1]
    with pytest.raises(ConfigError):
        await open_bus(settings, lambda: attempts[1], cast(Any, RenewedKeys(False)))


class KeysRenewedByATask(RenewedKeys):
    """Credentials whose files another task replaces after the first failed attempt."""

    def nats_options(self) -> dict[str, Any]:
        if not self.waiting[0]:
            asyncio.get_running_loop().call_soon(self.waiting.insert, 0, True)
        return super().nats_options()


async def test_open_bus_lets_other_tasks_run_while_the_credentials_cannot_be_read() -> None:
    keys = KeysRenewedByATask(True, *[False] * 1000)
    waiting: list[Any] = [Attempt(OSError("the certificate has expired")), Attempt(None)]
    await open_bus(NodeSettings("n1", Path("unused")), lambda: waiting.pop(0), cast(Any, keys))


@pytest.mark.parametrize("error", [OSError("refused"), TimeoutError(), nats.errors.NoServersError(), nats.errors.Error("no")])
async def test_open_bus_retries_until_a_server_accepts_the_node(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    attempts = [Attempt(error), Attempt(error), Attempt(None)]
    waiting = list(attempts)
    settings = NodeSettings(
        "n1",
        Path("unused"),
        nats=("nats://h:1", "nats://h:2"),
        namespace="space",
        credentials=Credentials(user="me", password="secret"),
    )
    opened: Any = await open_bus(settings, lambda: waiting.pop(0))  # type: ignore[arg-type,return-value]
    assert opened is attempts[2]
    assert [attempt.stopped for attempt in attempts] == [1, 1, 0]
    assert opened.options["max_reconnect_attempts"] == -1, "from now on for ever"
    assert opened.given == {
        "servers": ["nats://h:1", "nats://h:2"],
        "name": "liftpy-n1-reads",
        "error_cb": "counts",
        "disconnected_cb": "is lost",
        "reconnected_cb": "is back",
        "connect_timeout": 5,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.0,
        "ping_interval": 2,
        "max_outstanding_pings": 2,
        "inbox_prefix": b"space.inbox.n1",
        **Credentials(user="me", password="secret").nats_options(),
    }
    inboxes = [attempt.inbox for attempt in attempts]  # type: ignore[attr-defined]
    assert all(inbox.startswith("space.inbox.n1.") for inbox in inboxes)
    assert len(set(inboxes)) == 3, "nobody is answered in another's place"
    assert len(caplog.messages) == 1, "it is said once"
    assert caplog.messages[0].endswith(f"reason={str(error) or type(error).__name__}: retrying")


async def test_open_bus_logs_the_error_that_the_server_reported(caplog: pytest.LogCaptureFixture) -> None:
    waiting = [Attempt(nats.errors.NoServersError()), Attempt(None)]
    waiting[0].last_problem = "NATS server error: 'Authorization Violation'"
    await open_bus(NodeSettings("n1", Path("unused")), lambda: waiting.pop(0))  # type: ignore[arg-type,return-value]
    assert "Authorization Violation" in caplog.messages[0]


async def test_open_bus_does_not_retry_an_unexpected_error() -> None:
    settings = NodeSettings("n1", Path("unused"))
    with pytest.raises(ZeroDivisionError):
        await open_bus(settings, lambda: Attempt(ZeroDivisionError()))  # type: ignore[arg-type,return-value]


async def test_ingest_connection_requests_server_statistics_only_with_a_large_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeInflight()
    inflow = IngestConnection(node, 4096)
    asked: list[Any] = []
    roomy: list[int] = []
    inflow._backlog = type("Backlog", (), {"ask": lambda self, *given: asked.append(given)})()  # type: ignore[assignment]
    monkeypatch.setattr(inflow.overflow, "roomy", lambda: roomy.append(1))
    monkeypatch.setattr(type(inflow), "is_connected", True)
    for held, question in ((1023, 0), (1024, 1), (1500, 2)):
        node.held_bytes = held
        await inflow._make_room()
        assert (len(asked), inflow.dropped_unread) == (question, 0)
    assert len(roomy) == 3
    monkeypatch.setattr(type(inflow), "is_connected", False)
    await inflow._make_room()
    assert len(asked) == 2
    inflow._pump_task.cancel()
