"""On one cluster of real nodes, whose leaders die: records past HW, seen by who asks for them, and missed by their reader when their
leader dies with them [R6]; and traces, from a publisher through a leader and its followers to the reader."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from liftpy.client import Client, Consumer, EventKind, ReadEvent, ReadOptions, connect
from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.observe.trace_context import TraceContext, sampled_context_in, traceparent
from liftpy.core.wire.batch import Record
from liftpy.errors import LiftError, LogTruncatedError
from sidecar.dev.cluster import DevCluster
from tests.integration.collector import Collector, Seen
from tests.integration.conftest import QUICK, Bench, show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

NODES = ("n1", "n2", "n3")
WAIT_S = 60.0


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def fragile_cluster(collector: Collector) -> Iterator[DevCluster]:
    settings = {**QUICK, "LIFTPY_TRACE": "otlp", "LIFTPY_TRACE_ENDPOINT": collector.url}
    with DevCluster(3, settings=settings, on_line=show) as running:
        yield running


async def whole(bench: Any, name: str) -> str:
    """Wait until all are in sync; return who leads."""

    async def ready() -> bool:
        return await bench.isr(name) == set(NODES) and await bench.ready(name)

    await bench.until(ready, "all nodes are in sync")
    return str(await bench.leader(name))


def signalled(bench: Any, leader: str, number: signal.Signals) -> None:
    """All nodes but the leader."""
    for node in NODES:
        if node != leader:
            bench.cluster.nodes[node].send(number)


async def read_past_hw(bench: Any, name: str, value: bytes, options: ReadOptions) -> tuple[Consumer, Record, str] | None:
    """(a reader that has just read ``value``, its record, its leader), which no follower has, because they are stopped; None: the
    leader had to step aside before it was read, on a busy machine, and they go on."""
    leader = await whole(bench, name)
    reading = bench.client.consume(name, start="new", options=options)
    await reading.begin()
    signalled(bench, leader, signal.SIGSTOP)
    try:
        async with asyncio.timeout(5), await bench.client.publisher(name) as publisher:
            for number in (0, 1, 2):  # the first ones answer fetches that were under way: they come where nobody looks yet
                await (await publisher.send(value if number == 2 else b"before", ack=AckPolicy.LEADER))
                await asyncio.sleep(0.05)
            while (record := await reading.getone()).value != value:
                pass
        return reading, record, leader
    except (TimeoutError, LiftError):
        signalled(bench, leader, signal.SIGCONT)
        return None


async def test_consumer_of_uncommitted_records_lost_with_the_leader_raises_an_error(fragile: Any, stream_name: str) -> None:
    await fragile.create(stream_name, config=StreamConfig(min_isr=2))
    await whole(fragile, stream_name)
    await fragile.publish_acked(f"data.{stream_name}", [b"kept"])
    told: list[ReadEvent] = []
    options = ReadOptions(isolation="uncommitted", on_event=told.append, patience_s=WAIT_S)
    found, tries = None, 0
    while found is None:
        tries += 1
        found = await read_past_hw(fragile, stream_name, b"lost %d" % tries, options)
    reading, lost, leader = found
    await asyncio.to_thread(fragile.cluster.nodes[leader].kill)
    signalled(fragile, leader, signal.SIGCONT)
    with pytest.raises(LogTruncatedError) as error:
        await reading.getone(WAIT_S)
    assert 0 < error.value.end_offset <= lost.offset
    await reading.seek(error.value.end_offset)
    await fragile.publish_acked(f"data.{stream_name}", [b"instead"])
    while (instead := await reading.getone(WAIT_S)) is not None and instead.value == b"before":
        pass
    assert instead is not None
    assert (instead.value, instead.leader_epoch > lost.leader_epoch) == (b"instead", True)
    assert {EventKind.ANSWERED, EventKind.FAILED, EventKind.MOVED} <= {event.kind for event in told}
    committed = [record.value async for record in fragile.client.consume(stream_name, until="end")]
    assert lost.value not in committed
    assert b"instead" in committed


async def traced(bench: Bench, name: str, sender: TraceContext, seen: Collector, followers: set[str]) -> dict[str, Seen]:
    """Publish with nats-py on behalf of ``sender``; the spans of its trace, once they are there."""
    headers = {"traceparent": traceparent(sender).decode(), "tracestate": "a=b"}

    async def acked() -> bool:
        answer = await bench.nc.request(f"data.{name}", b"traced", timeout=2, headers=headers)
        return b'"seq"' in answer.data and b"error" not in answer.data

    await bench.until(acked, "acked")
    wanted = {f"append {name}/0", "flush", "commit", "ack", *(f"replicate {node}" for node in followers)}

    async def there() -> dict[str, Seen] | None:
        found = seen.of(sender.trace_id)
        return found if wanted <= found.keys() else None

    found: dict[str, Seen] = await bench.until(there, f"{wanted} are there")
    check(found, name, sender)
    return found


def check(found: dict[str, Seen], name: str, sender: TraceContext) -> None:
    """An append below its sender, and all that follows below the append."""
    root = found[f"append {name}/0"]
    assert root.parent == sender.span_id
    assert root.links == ((sender.trace_id, sender.span_id),)
    assert {span.parent for span in found.values() if span is not root} == {root.span}
    assert not any(span.error for span in found.values())
    assert all(root.start_ns <= span.start_ns <= span.end_ns <= root.end_ns for span in found.values())


class Application:
    """A client that is traced, and the spans of its process."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def of(self, trace_id: int) -> dict[str, ReadableSpan]:
        """The finished spans of a trace, by the first word of their names."""
        spans = self._exporter.get_finished_spans()
        return {span.name.split()[0]: span for span in spans if span.context and span.context.trace_id == trace_id}

    async def read(self, client: Client, name: str, sender: TraceContext) -> Record:
        """Read a message of ``sender`` and process it; both are told in its trace."""
        async for record in client.consume(name, until="end"):
            created = sampled_context_in(record.headers)
            if created is not None and created[:2] == sender[:2]:
                with client.processing(name, record):
                    break
        found = self.of(sender.trace_id)
        for span in (found["receive"], found["process"]):
            assert span.parent is not None
            assert span.parent.span_id == sender.span_id
            assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [sender[:2]]
            assert (span.attributes or {})["messaging.destination.name"] == name
        return record


async def test_trace_of_a_publish_contains_spans_of_publisher_followers_and_reader(
    fragile: Bench, collector: Collector, stream_name: str
) -> None:
    app = Application()
    async with connect(fragile.cluster.nats_url, fragile.cluster.namespace, trace=app.provider) as client:
        await fragile.create(stream_name)
        await whole(fragile, stream_name)
        leader = await fragile.leader(stream_name)
        others = set(NODES) - {leader}
        await fragile.publish_acked(f"data.{stream_name}", [b"nobody traces this"])
        unsampled = TraceContext(0xABD, 1, 0)
        await fragile.nc.request(
            f"data.{stream_name}", b"x", timeout=5, headers={"traceparent": traceparent(unsampled).decode()}
        )
        sender = TraceContext(0xABC, 0xD, 1)
        found = await traced(fragile, stream_name, sender, collector, others)
        record = await app.read(client, stream_name, sender)
        assert dict(record.headers)["tracestate"] == b"a=b"
        root = found[f"append {stream_name}/0"]
        assert root.node == leader
        said = {
            key: root.attributes[key]
            for key in ("messaging.destination.name", "messaging.batch.message_count", "liftpy.offset")
        }
        assert said == {"messaging.destination.name": stream_name, "messaging.batch.message_count": 1, "liftpy.offset": 2}
        assert not collector.of(unsampled.trace_id)
        assert not app.of(unsampled.trace_id)
