"""Test that opening a connection retries until a server accepts it, and the check of the installed nats-py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import nats.errors
import pytest

from liftpy.errors import ConfigError
from sidecar.runtime.settings import NodeSettings
from sidecar.transport import connection as module
from sidecar.transport.connection import check_nats_py, open_bus

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
    attempts = [Attempt(OSError("the certificate has expired")), Attempt()]
    assert await opened(attempts, RenewedKeys(True, False, False, True)) is attempts[1]
    with pytest.raises(ConfigError):
        await opened(attempts, RenewedKeys(False))


class KeysRenewedByATask(RenewedKeys):
    """Credentials whose files another task replaces after the first failed attempt."""

    def nats_options(self) -> dict[str, Any]:
        if not self.waiting[0]:
            asyncio.get_running_loop().call_soon(self.waiting.insert, 0, True)
        return super().nats_options()


async def test_open_bus_lets_other_tasks_run_while_the_credentials_cannot_be_read() -> None:
    await opened([Attempt(OSError("the certificate has expired")), Attempt()], KeysRenewedByATask(True, *[False] * 1000))


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
