"""Test that messages of the group leave in order, within a limit, and are not kept over a reconnect."""

from __future__ import annotations

import asyncio

import nats.errors
import pytest

from sidecar.metadata import publish_queue
from sidecar.metadata.publish_queue import Outgoing


class Bus:
    """Takes a message when ``open`` is set; ``error`` is raised instead."""

    def __init__(self) -> None:
        self.is_connected = True
        self.error: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.sent: list[tuple[str, bytes]] = []

    async def publish(self, subject: str, payload: bytes) -> None:
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.sent.append((subject, payload))


async def drained(made: Outgoing) -> None:
    assert made._task is not None
    await made._task


async def test_outgoing_sends_messages_in_order() -> None:
    bus = Bus()
    made = Outgoing(bus)  # type: ignore[arg-type]
    for number in range(3):
        made.put("s", bytes([number]))
    await drained(made)
    made.put("t", b"later")
    await drained(made)
    assert bus.sent == [("s", b"\0"), ("s", b"\1"), ("s", b"\2"), ("t", b"later")]
    assert not made.counters


async def test_outgoing_blocked_connection_fills_the_bound_and_drops_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_queue, "MAX_WAITING_BYTES", 100)
    bus = Bus()
    bus.open.clear()
    made = Outgoing(bus)  # type: ignore[arg-type]
    for _ in range(4):
        made.put("s", bytes(40))
    assert made.counters == {"not sent: too much is waiting": 2}
    bus.open.set()
    await drained(made)
    assert len(bus.sent) == 2
    made.put("s", bytes(100))  # what has left does not count any more
    await drained(made)
    assert len(bus.sent) == 3


async def test_outgoing_disconnected_drops_messages() -> None:
    bus = Bus()
    bus.is_connected = False
    made = Outgoing(bus)  # type: ignore[arg-type]
    made.put("s", b"before")
    await drained(made)
    bus.is_connected = True
    made.put("s", b"after")
    await drained(made)
    assert bus.sent == [("s", b"after")]
    assert made.counters == {"not sent: not connected": 1}


async def test_outgoing_send_error_is_counted_and_the_next_message_sent() -> None:
    bus = Bus()
    bus.error = nats.errors.OutboundBufferLimitError()
    made = Outgoing(bus)  # type: ignore[arg-type]
    made.put("s", b"lost")
    await drained(made)
    bus.error = None
    made.put("s", b"next")
    await drained(made)
    assert bus.sent == [("s", b"next")]
    assert made.counters == {"not sent: OutboundBufferLimitError": 1}


async def test_outgoing_close_drops_waiting_messages() -> None:
    bus = Bus()
    bus.open.clear()
    made = Outgoing(bus)  # type: ignore[arg-type]
    made.put("s", b"1")
    made.put("s", b"2")
    await made.close()
    bus.open.set()
    assert bus.sent == []
