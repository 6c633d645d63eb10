"""Test a connection without a server: acks that are sent again, and the check of nats-py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import ConfigError
from sidecar.transport import connection as module
from sidecar.transport.connection import BusConnection, check_nats_py


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


# ---- life --------------------------------------------------------------------------------------------------------------------
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


def test_nats_py_version_without_a_needed_attribute_raises_with_the_attribute_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_nats_py()
    monkeypatch.setattr(module, "Client", type("Client", (), dict.fromkeys((*module._PRIVATE[1:], "_read_loop"))))
    with pytest.raises(ConfigError) as raised:
        check_nats_py()
    assert "lacks _pending, _process_err, _process_op_err, _remove_sub" in str(raised.value)
