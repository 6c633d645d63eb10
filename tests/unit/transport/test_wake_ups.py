"""Test that a wake-up names its stream: a recreated stream ignores those of the deleted one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.partition.replica_manager import NotifyHandler
from sidecar.partition.replication import Notifications

KEY = PartitionKey("orders", "uid-1", 2)


class Bus:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def listen(self, subject: str, sink: Any) -> None:
        self.subject, self.sink = subject, sink

    def send(self, subject: str, pieces: tuple[bytes, ...]) -> None:
        self.sent.append((subject, b"".join(pieces)))


def test_wake_up_with_a_stream_uid_is_delivered_only_to_that_stream() -> None:
    bus: Any = Bus()
    delivered: list[tuple[str, int, str, events.Event]] = []
    partitions: Any = SimpleNamespace(deliver=lambda *given: delivered.append(given))
    node = Notifications(bus, Subjects(), "n1")
    NotifyHandler(bus, Subjects().notify("n1"), InboxRule(("_INBOX*.",)), partitions, pytest.fail, Counter())
    node.wake(KEY, do.NotifyReplica(replica="n2"))
    [(subject, frame)] = bus.sent
    assert subject == "liftpy.notify.n2"
    assert frames.decode(frame, pb.PartitionNotification) == pb.PartitionNotification(
        stream="orders", partition=2, streamUid="uid-1"
    )
    bus.sink(b"", b"", frame, b"")
    bus.sink(b"", b"", frames.seal(pb.PartitionNotification(stream="orders", partition=2)), b"")
    assert delivered == [
        ("orders", 2, "uid-1", events.NotificationReceived()),
        ("orders", 2, "", events.NotificationReceived()),
    ], "'': an older node's"
