"""Test the answers to requests for events, in pages that fit, and the publishing of new events."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

from liftpy.core.metadata.controller.cluster_events import ClusterEvent
from liftpy.core.wire.decode_errors import REPLY
from liftpy.core.wire.subjects import Subjects
from sidecar.metadata.cluster_events import BEYOND, MOST_ANSWERED, MOST_AT_ONCE, EventsHandler


class Bus:
    def __init__(self) -> None:
        self.max_payload = 1 << 20
        self.sent: list[tuple[str, Any]] = []
        self.listening: dict[str, Any] = {}
        self.leads = True
        outgoing = SimpleNamespace(put=lambda subject, payload: self.sent.append((subject, json.loads(payload))))
        self.handler = EventsHandler(
            "n1",
            self,
            Subjects("ns"),
            outgoing,
            lambda reply: reply.startswith(b"_INBOX."),
            lambda: self.leads,  # type: ignore[arg-type]
        )

    async def subscribe(self, subject: str, cb: Any) -> Any:
        self.listening[subject] = cb

        async def unsubscribe() -> None:
            del self.listening[subject]

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def publish(self, subject: str, payload: bytes) -> None:
        assert len(payload) <= self.max_payload
        self.sent.append((subject, json.loads(payload)))

    async def ask(self, question: bytes, reply: str = "_INBOX.a") -> Any:
        self.sent.clear()
        await self.listening["ns.control.events.n1"](SimpleNamespace(reply=reply, data=question))
        return self.sent[0][1] if self.sent else None


def some(index: int, count: int, time_ns: int | None = None) -> Any:
    time_ns = time.time_ns() if time_ns is None else time_ns
    return (
        ClusterEvent(index=index, number=n, time_ns=time_ns, kind="election", stream="s", partition=n) for n in range(count)
    )


async def test_cluster_events_endpoint_returns_pages_of_events_after_a_position() -> None:
    bus = Bus()
    await bus.handler.open()
    bus.handler.trail.note_entry(4, some(4, MOST_ANSWERED + 1, 10))
    for _ in range(2):
        bus.handler.publish_new()
    said = await bus.ask(b"")
    assert (len(said["events"]), said["more"], said["index"], said["begins"]) == (MOST_ANSWERED, True, 4, 0)
    said = await bus.ask(b'{"after": [4, 498]}')
    assert ([event["number"] for event in said["events"]], said["more"]) == ([499, 500], False)
    assert (await bus.ask(b'{"since_ns": 11}'))["events"] == []
    assert len((await bus.ask(b'{"count": 2}'))["events"]) == 2
    bus.max_payload = 1000
    said = await bus.ask(b"")
    assert 0 < len(said["events"]) < 10
    assert said["more"]
    await bus.handler.close()
    assert not bus.listening


async def test_cluster_events_endpoint_rejects_invalid_requests_and_ignores_invalid_reply_subjects() -> None:
    bus = Bus()
    await bus.handler.open()
    for question in (
        b"x",
        b"[]",
        b'{"after": 3}',
        b'{"after": [1]}',
        b'{"after": [-1, 0]}',
        b'{"count": 0}',
        b'{"count": 501}',
        b'{"since_ns": "a"}',
    ):
        assert "error" in await bus.ask(question), question
    assert await bus.ask(b"", "shop.orders") is None
    assert bus.handler.counters[REPLY] == 1


def test_cluster_events_endpoint_of_the_metadata_leader_publishes_only_recent_events_in_batches() -> None:
    bus = Bus()
    bus.leads = False
    bus.handler.trail.note_entry(1, some(1, 1))
    bus.handler.publish_new()
    assert not bus.sent
    bus.leads = True
    bus.handler.publish_new()
    assert not bus.sent, "it was another's to tell"
    bus.handler.trail.note_entry(2, some(2, 1, time.time_ns() - 10**12))
    bus.handler.trail.note_entry(3, some(3, MOST_AT_ONCE + 1))
    for _ in range(3):
        bus.handler.publish_new()
    assert len(bus.sent) == MOST_AT_ONCE + 1
    assert {subject for subject, _ in bus.sent} == {"ns.events.election"}
    assert (bus.sent[0][1]["index"], bus.sent[-1][1]["number"]) == (3, MOST_AT_ONCE)


def test_cluster_events_endpoint_counts_events_dropped_by_its_full_buffer() -> None:
    bus = Bus()
    bus.handler.publish_new()
    assert not bus.handler.counters
    for index in range(5000):
        bus.handler.trail.note_entry(index, some(index, 0))
    bus.handler.publish_new()
    assert bus.handler.counters == {BEYOND: 5000 - 4096}
