"""Test the publish queue of the metadata group: order, limits, and no messages kept over a reconnect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sidecar.transport.connection import PublishQueue


class Bus:
    """Send messages until the buffer is full."""

    def __init__(self) -> None:
        self.is_connected = True
        self.has_room = True
        self.sent: list[tuple[str, bytes]] = []

    def send(self, subject: str, pieces: Sequence[bytes]) -> bool:
        if self.has_room:
            self.sent.append((subject, b"".join(pieces)))
        return self.has_room


@pytest.fixture
def bus() -> Any:
    return Bus()


def test_publish_queue_of_the_metadata_group_sends_messages_in_order(bus: Any) -> None:
    made = PublishQueue(bus)
    for number in range(3):
        made.put("s", bytes([number]))
    made.put("t", b"later")
    assert bus.sent == [("s", b"\0"), ("s", b"\1"), ("s", b"\2"), ("t", b"later")]
    assert not made.counters


@pytest.mark.parametrize(
    ("missing", "counter"),
    [("is_connected", "not_sent_disconnected"), ("has_room", "not_sent_queue_full")],
)
def test_publish_queue_of_the_metadata_group_drops_and_counts_unsendable_messages(bus: Any, missing: str, counter: str) -> None:
    made = PublishQueue(bus)
    setattr(bus, missing, False)
    made.put("s", b"before")
    setattr(bus, missing, True)
    made.put("s", b"after")
    assert bus.sent == [("s", b"after")]
    assert made.counters == {counter: 1}
