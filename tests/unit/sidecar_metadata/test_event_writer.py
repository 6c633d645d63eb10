"""Test the writer of cluster events, and the endpoint that answers requests for them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from liftpy.core.metadata.controller.cluster_events import ClusterEvent, EventLog
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import REPLY
from liftpy.core.wire.subjects import EVENTS_STREAM, InboxRule, Subjects
from liftpy.errors import UnavailableError
from sidecar.metadata import cluster_events as module
from sidecar.metadata import event_stream
from sidecar.metadata.cluster_events import BEYOND, FAILED, MOST_ANSWERED, MOST_AT_ONCE, WRITTEN, EventsHandler, EventWriter
from tests.unit.metadata.event_trails import Stream, a_trail, events


class World:
    """Provide the events stream and its connection. ``said`` contains the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
        self.stream = Stream()
        self.image = SimpleNamespace(nodes={"n1": None}, streams={})
        self.there("u1")
        self.leads = True
        self.said: list[str] = []
        self.asked: list[pb.ControlRequest] = []
        self.read: list[tuple[int, int]] = []
        self.fails: list[Exception] = []
        """What the next reads of the stream's end meet."""
        self.connection = SimpleNamespace(is_closed=False)
        self.trail = a_trail(*counts)
        self.log = EventLog(self.trail)
        monkeypatch.setattr(module, "CHECK_PERIOD_S", 0.001)
        monkeypatch.setattr(module, "_AGAIN_S", 0.002)
        monkeypatch.setattr(event_stream, "Transport", lambda connection: SimpleNamespace(connection=connection))
        monkeypatch.setattr(event_stream, "Client", lambda transport, subjects, owns_connection: FakeClient(self, transport))
        monkeypatch.setattr(
            event_stream, "Publisher", lambda transport, stream, partition, at, options: FakePublisher(self, at.uid)
        )
        self.controllers = SimpleNamespace(voters=("n1", "n2", "n3", "n4", "n5"))
        group: Any = self
        self.writer = EventWriter(self.log, Subjects(), self.connect, group, group)

    @property
    def is_active(self) -> bool:
        return self.leads

    def there(self, uid: str) -> None:
        self.image.streams[EVENTS_STREAM] = SimpleNamespace(uid=uid, subject="x", waiting="")

    async def connect(self) -> Any:
        self.said.append("connected")
        self.connection = SimpleNamespace(is_closed=False)
        return self.connection

    async def propose(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        self.asked.append(request)
        self.there("u1")
        return pb.ControlResponse()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():
                await asyncio.sleep(0.001)


class FakeClient:
    def __init__(self, world: World, transport: Any) -> None:
        self.world, self.transport = world, transport

    async def bounds(self, stream: str) -> Any:
        if self.world.fails:
            raise self.world.fails.pop(0)
        return SimpleNamespace(log_start_offset=0, high_watermark=len(self.world.stream.records) - 1)

    async def read_range(
        self, stream: str, partition: int, first: int, end: int, *, uid: str, exact: bool = False
    ) -> AsyncIterator[Any]:
        assert uid == self.world.image.streams[EVENTS_STREAM].uid
        self.world.read.append((first, end))
        given = [
            record for record in self.world.stream.records[first:end] if record
        ]  # readers are not given the protocol's own
        for at in range(0, len(given), 2):
            yield SimpleNamespace(values=lambda at=at: given[at : at + 2])

    async def close(self) -> None:
        self.world.said.append("client closed")


class FakePublisher:
    def __init__(self, world: World, uid: str) -> None:
        self.world, self.uid = world, uid

    async def send(self, record: bytes, *, expected_last: int) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        offset = (
            -1 if self.uid != self.world.image.streams[EVENTS_STREAM].uid else self.world.stream.publish(record, expected_last)
        )
        if offset < 0:
            answer.set_exception(UnavailableError("refused"))
        else:
            answer.set_result(SimpleNamespace(offset=offset))
        return answer

    async def close(self) -> None:
        self.world.said.append(f"publisher of {self.uid} closed")


async def test_cluster_event_writer_writes_each_event_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2, 0, 1)
    del world.image.streams[EVENTS_STREAM]
    world.writer.start()
    await world.until(lambda: not world.log.has_events_to_write)
    assert world.stream.places == [(1, 0), (1, 1), (3, 0)]
    (made,) = world.asked
    assert (made.internal, made.createStream.name, made.createStream.replicationFactor) == (True, EVENTS_STREAM, 3)
    world.trail.note_entry(4, events(4, 1))
    world.trail.derive_events(10)
    await world.until(lambda: len(world.stream.records) == 4)
    await world.until(lambda: world.writer.counters[WRITTEN] == 4)
    await world.writer.close()
    assert world.writer.counters == {WRITTEN: 4}
    assert world.said == ["connected", "client closed"], "one connection for all, and none is left"


async def test_cluster_event_writer_after_a_conflict_with_another_writer_repeats_no_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 1, 1, 1)
    write = world.writer._write
    await write()
    for record in (b"", *[b'{"index": %d, "number": 0}' % at for at in (4, 5)], *[b""] * 70):  # the last are no events
        world.stream.records.append(record)
    for index in (4, 5, 6):
        world.trail.note_entry(index, events(index, 1))
    world.trail.derive_events(10)
    with pytest.raises(UnavailableError):
        await write()
    assert len(world.stream.records) == 76
    world.fails = [UnavailableError("nobody leads")]
    world.writer.start()
    await world.until(lambda: len(world.stream.records) == 77)
    await world.until(lambda: not world.log.has_events_to_write)
    assert [one for one in world.stream.records[75:] if one] == [world.stream.records[-1]]
    assert b'"index": 6' in world.stream.records[-1]
    assert world.writer.counters[FAILED] >= 1, "tried again, and counted"
    await world.writer.close()


@pytest.mark.parametrize("junk", [b"junk", b"[]", b'{"index": -1, "number": 0}', b'{"kind": "election"}'])
@pytest.mark.parametrize("count", [1, 64, 700])
async def test_cluster_event_writer_skips_records_that_are_no_events(
    monkeypatch: pytest.MonkeyPatch, junk: bytes, count: int
) -> None:
    """Without NATS permissions any client can publish there."""
    world = World(monkeypatch, *[1] * 4)
    await world.writer._write()
    world.stream.records += [junk] * count
    world.trail.note_entry(5, events(5, 1))
    world.trail.derive_events(10)
    world.log.forget_tail()
    world.read.clear()
    await world.writer._write()
    assert world.stream.records[4:] == [*[junk] * count, world.stream.records[-1]]
    assert b'"index": 5' in world.stream.records[-1]
    reads = [end - first for first, end in world.read]
    assert (sum(reads), reads[0]) == (min(sum(reads), 4 + count), min(64, 4 + count)), "each part of it once, the end first"
    assert len(reads) <= 3


async def test_cluster_event_writer_on_a_stream_without_events_starts_with_the_first_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 1)
    world.stream.records += [b"junk"] * 3
    await world.writer._write()
    assert b'"index": 1' in world.stream.records[-1]


async def test_cluster_event_writer_after_a_partial_rejection_does_not_repeat_accepted_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 1, 1, 1)
    publish, left = world.stream.publish, [2]

    def some(record: bytes, expected_last: int) -> int:
        left[0] -= 1
        return publish(record, expected_last) if left[0] >= 0 else -1

    world.stream.publish = some  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        await world.writer._write()
    assert (world.trail.written, world.writer.counters[WRITTEN]) == ((2, 0), 2)
    await world.writer.close()


async def test_cluster_event_writer_that_lost_leadership_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1)
    world.writer.start()
    await world.until(lambda: world.trail.written == (1, 0))
    world.leads = False
    await world.until(lambda: world.trail.written is None)
    assert world.log.tail is None
    world.trail.note_entry(2, events(2, 1))
    world.trail.derive_events(10)
    looks: list[int] = []
    monkeypatch.setattr(world.log, "resign", lambda: looks.append(1))
    await world.until(lambda: len(looks) > 3)
    assert len(world.stream.records) == 1
    world.leads = True
    await world.until(lambda: len(world.stream.records) == 2)
    await world.writer.close()


async def test_cluster_event_writer_that_loses_leadership_stops_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, *[1] * 100)
    publish = world.stream.publish

    def one(record: bytes, expected_last: int) -> int:
        world.leads = False
        return publish(record, expected_last)

    world.stream.publish = one  # type: ignore[method-assign]
    world.writer.start()
    await world.until(lambda: world.trail.written is None and len(world.stream.records) > 0)
    assert len(world.stream.records) == module.MOST_WRITTEN_AT_ONCE, "what was on its way"
    await world.writer.close()


async def test_cluster_event_writer_reopens_a_recreated_stream_and_a_closed_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 1)
    await world.writer._write()
    world.there("u2")
    world.stream.records.clear()
    world.trail.note_entry(2, events(2, 1))
    world.trail.derive_events(10)
    await world.writer._write()
    assert world.stream.places == [(1, 0), (2, 0)], "the end of the new one is looked for, which has none of them"
    assert world.said == ["connected", "publisher of u1 closed"]
    world.connection.is_closed = True
    world.trail.note_entry(3, events(3, 1))
    world.trail.derive_events(10)
    await world.writer._write()
    assert world.stream.places[2:] == [(3, 0)]
    assert world.said[2:] == ["client closed", "connected"]
    await world.writer.close()
    assert world.said[4:] == ["client closed"]


class Bus:
    def __init__(self) -> None:
        self.max_payload = 1 << 20
        self.sent: list[tuple[str, Any]] = []
        self.listening: dict[str, Any] = {}
        self.leads = True
        outgoing = SimpleNamespace(put=lambda subject, payload: self.sent.append((subject, json.loads(payload))))
        connection: Any = self
        self.handler = EventsHandler("n1", connection, Subjects("ns"), cast(Any, outgoing), InboxRule(("_INBOX.",)))

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
        bus.handler.publish_new(leads=bus.leads)
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
    bus.handler.publish_new(leads=bus.leads)
    assert not bus.sent
    bus.leads = True
    bus.handler.publish_new(leads=bus.leads)
    assert not bus.sent, "it was another's to tell"
    bus.handler.trail.note_entry(2, some(2, 1, time.time_ns() - 10**12))
    bus.handler.trail.note_entry(3, some(3, MOST_AT_ONCE + 1))
    for _ in range(3):
        bus.handler.publish_new(leads=bus.leads)
    assert len(bus.sent) == MOST_AT_ONCE + 1
    assert {subject for subject, _ in bus.sent} == {"ns.events.election"}
    assert (bus.sent[0][1]["index"], bus.sent[-1][1]["number"]) == (3, MOST_AT_ONCE)


def test_cluster_events_endpoint_counts_events_dropped_by_its_full_buffer() -> None:
    bus = Bus()
    bus.handler.publish_new(leads=bus.leads)
    assert not bus.handler.counters
    for index in range(5000):
        bus.handler.trail.note_entry(index, some(index, 0))
    bus.handler.publish_new(leads=bus.leads)
    assert bus.handler.counters == {BEYOND: 5000 - 4096}
