"""Test the spans and trace headers of a traced client."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

import liftpy
from liftpy.client import Client, ProducerOptions
from liftpy.client.client import factories_for
from liftpy.client.encode_publish import MESSAGE_ID
from liftpy.client.partition_sender import BATCH_BYTES, RECORD_BYTES
from liftpy.client.producer import Producer
from liftpy.client.publisher import Publisher
from liftpy.client.traced import DROPPED
from liftpy.config import AckPolicy
from liftpy.core.observe.trace_context import (
    SPANS_PER_S,
    SpanBudget,
    TraceContext,
    parse_traceparent,
    sampled_context_in,
    traceparent,
)
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import Pairs
from liftpy.errors import ConfigError, PublishRejectedError
from liftpy.testing.memory import MemoryCluster, memory_cluster

WAIT_S = 10.0
OTHER = TraceContext(0xABC, 0xD, 1)
BEARS = [("traceparent", traceparent(OTHER))]
_numbers = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[MemoryCluster]:
    with memory_cluster(1) as running:
        yield running


class Traced:
    """A traced client, its exported spans, and its own stream."""

    def __init__(self, client: Client, provider: TracerProvider, exporter: InMemorySpanExporter, stream: str) -> None:
        self.client, self.provider, self._exporter, self.stream = client, provider, exporter, stream
        self.tracer = provider.get_tracer("the application's")

    def spans(self, operation: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == f"{operation} {self.stream}"]

    async def records(self) -> list[Record]:
        return [record async for record in self.client.consume(self.stream, until="end")]

    async def headers(self) -> list[Pairs]:
        """Of each record, but for the message id."""
        return [tuple(pair for pair in record.headers if pair[0] != MESSAGE_ID) for record in await self.records()]


def provider_of(exporter: InMemorySpanExporter, sampler: Any = ALWAYS_ON) -> TracerProvider:
    provider = TracerProvider(sampler=ParentBased(sampler), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
async def traced(cluster: MemoryCluster) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    provider, stream = provider_of(exporter), f"orders{next(_numbers)}"
    async with cluster.client(trace=provider) as client:
        await client.create_stream(stream, f"shop.{stream}")
        yield Traced(client, provider, exporter, stream)


def context_of(span: ReadableSpan) -> TraceContext:
    assert span.context is not None
    return TraceContext(span.context.trace_id, span.context.span_id, int(span.context.trace_flags))


def links_of(span: ReadableSpan) -> list[TraceContext]:
    return [TraceContext(link.context.trace_id, link.context.span_id, int(link.context.trace_flags)) for link in span.links]


def parent_of(span: ReadableSpan) -> int:
    return span.parent.span_id if span.parent is not None else 0


def said(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


async def test_traced_message_creates_send_receive_and_process_spans_in_one_trace(traced: Traced) -> None:
    ack = await traced.client.publish(traced.stream, b"one", key=b"k", headers={"a": "b"})
    assert ack is not None
    (record,) = await traced.records()
    (send,) = traced.spans("send")
    assert await traced.headers() == [(("a", b"b"), ("traceparent", traceparent(context_of(send))))]
    assert (record.key, record.value) == (b"k", b"one")
    assert (send.kind, parent_of(send), send.links, send.status.status_code) == (SpanKind.PRODUCER, 0, (), StatusCode.UNSET)
    assert said(send) == {
        "system": "nats", "operation.name": "send", "operation.type": "send", "destination.name": traced.stream,
        "destination.partition.id": "0", "liftpy.offset": 0, "liftpy.leader_epoch": ack.leader_epoch,
    }  # fmt: skip
    with traced.client.processing(traced.stream, record) as process:
        assert process is trace.get_current_span()
        await traced.client.publish(traced.stream, b"what follows from it")
    (received, _), (processed,), (_, follows) = traced.spans("receive"), traced.spans("process"), traced.spans("send")
    for span in (received, processed):
        assert (span.kind, parent_of(span), links_of(span)) == (SpanKind.CONSUMER, context_of(send).span_id, [context_of(send)])
        assert said(span)["batch.message_count"] == 1
        assert said(span)["liftpy.offset"] == 0
        assert said(span)["operation.name"] == span.name.split()[0]
    assert parent_of(follows) == context_of(processed).span_id
    assert {context_of(span).trace_id for span in (send, received, processed, follows)} == {context_of(send).trace_id}
    assert received.start_time is not None
    assert send.start_time is not None
    assert send.start_time < received.start_time <= (received.end_time or 0)


async def test_client_spans_are_children_of_the_application_span(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("work") as work:
        await traced.client.publish(traced.stream, b"x")
        (record,) = await traced.records()
        with traced.client.processing(traced.stream, record):
            pass
    own = work.get_span_context()
    spans = [span for operation in ("send", "receive", "process") for span in traced.spans(operation)]
    assert [(parent_of(span), context_of(span).trace_id) for span in spans] == [(own.span_id, own.trace_id)] * 3
    assert [links_of(span) for span in spans[1:]] == [[context_of(spans[0])]] * 2


@pytest.mark.parametrize(
    ("headers", "link"),
    [
        (BEARS, OTHER),
        ([("Traceparent", b"anything")], None),
        ([("traceparent", b"00-zz")], None),
        ([("traceparent", traceparent(OTHER._replace(flags=0)))], None),
        ([("traceparent", b""), *BEARS], OTHER),
    ],
)
async def test_traced_publish_keeps_existing_trace_headers(
    traced: Traced, headers: list[Any], link: TraceContext | None
) -> None:
    given = [("tracestate", b"x=y"), *headers, ("baggage", b"z")]
    with traced.tracer.start_as_current_span("work"):
        await traced.client.publish(traced.stream, b"x", headers=iter(given))
        await traced.client.publish(traced.stream, b"x", headers=given, ack=AckPolicy.NONE)
        async with traced.client.producer(traced.stream) as producer:
            await producer.send(b"x", headers=given)
    sent = traced.spans("send")
    assert [links_of(span) for span in sent] == ([] if link is None else [[link]] * 3)
    assert await traced.headers() == [tuple(given)] * 3


async def test_client_outside_the_trace_sample_sends_no_trace_headers(cluster: MemoryCluster, traced: Traced) -> None:
    exporter = InMemorySpanExporter()
    for provider in (provider_of(exporter, ALWAYS_OFF), trace.NoOpTracerProvider()):
        async with cluster.client(trace=provider) as client:
            await client.publish(traced.stream, b"x")
            await client.publish(traced.stream, b"x", ack=AckPolicy.NONE)
            async with client.producer(traced.stream) as producer:
                await producer.send_many([b"y", b"z"])
            for _ in range(2 * round(SPANS_PER_S)):
                await client.publish(traced.stream, b"", ack=AckPolicy.NONE)
            assert DROPPED not in client.counters, "what nobody records costs no budget"
    unsampled = NonRecordingSpan(SpanContext(5, 6, is_remote=False, trace_flags=TraceFlags(0)))
    with trace.use_span(unsampled):
        await traced.client.publish(traced.stream, b"x")
        always = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        always.add_span_processor(SimpleSpanProcessor(exporter))
        async with cluster.client(trace=always) as client:
            await client.publish(traced.stream, b"x")
    assert set(await traced.headers()) == {()}
    assert exporter.get_finished_spans() == ()
    assert traced.spans("send") == traced.spans("receive") == []


async def test_traced_publish_without_the_opentelemetry_sdk_sends_trace_headers(cluster: MemoryCluster, traced: Traced) -> None:
    """Only the API package of OpenTelemetry is used. ``tracestate`` is sent, too."""
    state = TraceState([("vendor", "1")])
    around = NonRecordingSpan(SpanContext(5, 6, is_remote=True, trace_flags=TraceFlags(1), trace_state=state))
    async with cluster.client(trace=trace.NoOpTracerProvider()) as client:
        with trace.use_span(around):
            await client.publish(traced.stream, b"x")
            await client.publish(traced.stream, b"x", headers={"tracestate": "own=2"})
    assert await traced.headers() == [
        (("traceparent", traceparent(TraceContext(5, 6, 1))), ("tracestate", b"vendor=1")),
        (("tracestate", b"own=2"), ("traceparent", traceparent(TraceContext(5, 6, 1)))),
    ]


async def test_traced_producer_creates_one_span_per_batch(traced: Traced) -> None:
    async with traced.client.producer(traced.stream, options=ProducerOptions(linger_s=30.0, batch_records=3)) as producer:
        await producer.send(b"0", headers={"a": "b"})
        await producer.send_many([b"1", b"2"])
        await producer.flush()
        await producer.send_many([b"3", b"4", b"5"], keys=[b"k"] * 3)
    sent, records = traced.spans("send"), await traced.records()
    assert [record.value for record in records] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    marks = [(("traceparent", traceparent(context_of(span))),) for span in sent]
    assert [record.headers for record in records] == [(("a", b"b"), *marks[0]), (), (), marks[1], (), ()]
    assert [(said(span)["batch.message_count"], said(span)["liftpy.offset"]) for span in sent] == [(3, 0), (3, 3)]
    assert [links_of(span) for span in traced.spans("receive")] == [[context_of(span)] for span in sent]


async def test_traced_producer_with_a_resumable_id_sends_no_trace_headers(traced: Traced) -> None:
    for begin in ("resume", "repeat"):
        async with traced.client.producer(traced.stream, id="till", options=ProducerOptions(begin=begin)) as producer:
            await producer.send_many([b"0", b"1"])
    assert await traced.headers() == [()] * 2
    assert len(traced.spans("send")) == 2


async def test_traced_receive_span_links_at_most_64_records(traced: Traced) -> None:
    """The limit also applies to compressed batches and to ``read_range``."""
    contexts = [TraceContext(1000 + number, 7, 1) for number in range(100)]
    async with traced.client.producer(traced.stream, options=ProducerOptions(linger_s=30.0)) as producer:
        for context in contexts:
            await producer.send(b"x", headers=[("traceparent", traceparent(context))])
    pieces = [piece async for piece in traced.client.read_range(traced.stream, 0, 10, 30)]
    (span,) = traced.spans("receive")
    assert (len(pieces), links_of(span), context_of(span).trace_id) == (1, contexts[10:30], contexts[10].trace_id)
    assert (said(span)["batch.message_count"], said(span)["liftpy.offset"]) == (20, 10)
    async for _ in traced.client.consume(traced.stream, start=1, until="end").batches():
        pass
    assert links_of(traced.spans("receive")[1]) == contexts[1:65]
    assert span.start_time == pieces[0].batch.arrived_ns
    with traced.client.processing(traced.stream, pieces[0], partition=3):
        pass
    (processed,) = traced.spans("process")
    assert (links_of(processed), said(processed)["destination.partition.id"]) == (contexts[10:30], "3")


async def test_traced_producer_batch_of_maximum_size_has_trace_headers(traced: Traced) -> None:
    """The trace state has its maximum length."""
    most = traced.client.transport.max_payload_bytes - BATCH_BYTES - RECORD_BYTES
    state = TraceState([("vendor", "x" * 250), ("other", "x" * 240)])
    around = NonRecordingSpan(SpanContext(5, 6, is_remote=True, trace_flags=TraceFlags(1), trace_state=state))
    with trace.use_span(around):
        async with traced.client.producer(traced.stream, options=ProducerOptions(batch_bytes=1 << 20)) as producer:
            half = bytes(most // 2)
            await producer.send_many([half, half[RECORD_BYTES:]])
            await producer.send(bytes(most))
            await producer.send_many([half, half])
    headers = await traced.headers()
    assert [len(pairs) for pairs in headers] == [2, 0, 2, 2, 2]


async def test_traced_operation_that_fails_raises_and_marks_its_span_as_failed(traced: Traced) -> None:
    async with traced.client.publisher(traced.stream) as publisher:
        coming = await publisher.send(b"x", expected_last=17)
        while not coming.done():
            await asyncio.sleep(0.005)
        await publisher.send(b"y")
        with pytest.raises(PublishRejectedError):
            await publisher.flush()  # nobody has looked at it: that it was told does not count
        with pytest.raises(ConfigError):
            await publisher.send("no bytes")  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            await publisher.post(b"x", headers={"a": "\n"})
    spans = traced.spans("send")
    errors = [(span.status.status_code is StatusCode.ERROR, (span.attributes or {}).get("error.type")) for span in spans]
    assert sorted(errors, key=str) == [(False, None), (True, "CONFIG"), (True, "CONFIG"), (True, "PUBLISH_REJECTED")]
    with pytest.raises(ValueError), traced.client.processing(traced.stream, (await traced.records())[0]):
        raise ValueError
    assert traced.spans("process")[0].status.status_code is StatusCode.ERROR


async def test_client_spans_above_the_rate_limit_are_dropped_and_counted(traced: Traced) -> None:
    most = round(SPANS_PER_S)
    async with asyncio.timeout(WAIT_S), await traced.client.publisher(traced.stream) as publisher:
        began = time.monotonic()
        for _ in range(3 * most):
            await publisher.send(b"x")
        took_s = time.monotonic() - began
        await publisher.flush()
        made = len([pairs for pairs in await traced.headers() if pairs])
        dropped = traced.client.counters[DROPPED]
        assert most <= made <= most * (1 + took_s) + 1
        assert made + dropped == 3 * most
        with traced.tracer.start_as_current_span("work") as work:
            for _ in range(3 * most):
                await publisher.send(b"y")
        await publisher.flush()
    assert traced.client.counters[DROPPED] > dropped
    own = work.get_span_context()
    records = [record for record in await traced.records() if record.value == b"y"]
    found = [sampled_context_in(record.headers) for record in records]
    assert {context.trace_id for context in found if context is not None} == {own.trace_id}, (
        "all of the trace, with a span or without"
    )
    assert None not in found
    assert own.span_id in {context.span_id for context in found if context is not None}


async def test_traced_receive_spans_above_the_rate_limit_are_dropped_and_counted(traced: Traced) -> None:
    async with traced.client.producer(traced.stream, options=ProducerOptions(batch_records=1)) as producer:
        for number in range(200):
            await producer.send(b"x", headers=BEARS if number % 2 else [("a", b"b")])
    traced.client._factories._spans._read = SpanBudget(1.0)  # type: ignore[attr-defined]
    before = traced.client.counters.get(DROPPED, 0)
    read = [piece async for piece in traced.client.consume(traced.stream, until="end").batches()]
    bearing = sum(any(name == "traceparent" for name, _ in pairs) for piece in read for pairs in piece.headers())
    told = len(traced.spans("receive")) + traced.client.counters.get(DROPPED, 0) - before
    assert told == bearing
    assert traced.client.counters[DROPPED] > before


async def test_processing_above_the_span_rate_limit_keeps_the_trace_id_of_the_record(traced: Traced) -> None:
    await traced.client.publish(traced.stream, b"x", headers=BEARS)
    (record,) = await traced.records()
    ended: Any = object()
    while ended is not None:
        with traced.client.processing(traced.stream, record) as ended:
            assert trace.get_current_span().get_span_context().trace_id == OTHER.trace_id
    assert not trace.get_current_span().get_span_context().is_valid
    untraced = record._replace(headers=())
    with traced.client.processing(traced.stream, untraced) as nothing:
        assert nothing is None


def test_sync_client_send_span_is_a_child_of_the_application_span(cluster: MemoryCluster) -> None:
    exporter = InMemorySpanExporter()
    provider, stream = provider_of(exporter), f"orders{next(_numbers)}"
    with cluster.sync_client(trace=provider) as client:
        client.create_stream(stream, f"shop.{stream}")
        with provider.get_tracer("app").start_as_current_span("work") as work:
            client.publish(stream, b"x")
        (record,) = client.consume(stream, until="end")
        with client.processing(stream, record):
            pass
    found = {span.name.split()[0]: span for span in exporter.get_finished_spans()}
    assert parent_of(found["send"]) == work.get_span_context().span_id
    assert parse_traceparent(dict(record.headers)["traceparent"]) == context_of(found["send"])
    assert parent_of(found["process"]) == context_of(found["send"]).span_id


async def test_client_without_tracing_creates_no_spans(cluster: MemoryCluster, traced: Traced) -> None:
    async with cluster.client() as client:
        async with client.publisher(traced.stream) as publisher, client.producer(traced.stream) as producer:
            assert (type(publisher), type(producer)) == (Publisher, Producer)
            await publisher.send(b"x", headers=BEARS)
        (record,) = [record async for record in client.consume(traced.stream, until="end")]
        with client.processing(traced.stream, record) as span:
            assert span is None
        assert DROPPED not in client.counters
    assert traced.spans("send") == traced.spans("receive") == []


async def test_connect_with_tracing_but_without_opentelemetry_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "liftpy.client.traced", None)
    with pytest.raises(ConfigError, match=r"liftpy\[trace\]"):
        await liftpy.connect("nats://127.0.0.1:1", trace=True)
    with pytest.raises(ConfigError, match="TracerProvider"):
        factories_for("otlp")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["send", "post"])
async def test_traced_publish_that_is_cancelled_ends_its_span_as_failed(
    traced: Traced, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = asyncio.Event()

    async def never(*arguments: Any, **named: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    async with traced.client.publisher(traced.stream) as publisher:
        monkeypatch.setattr(Publisher, method, never)  # there is no room for it, and never will be
        publishing = asyncio.create_task(getattr(publisher, method)(b"v"))
        await entered.wait()
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        monkeypatch.undo()
    (span,) = traced.spans("send")
    assert span.status.status_code is StatusCode.ERROR


async def test_traced_publish_with_a_cancelled_receipt_ends_its_span_as_failed(traced: Traced) -> None:
    async with traced.client.publisher(traced.stream) as publisher:
        coming = await publisher.send(b"v")
        coming.cancel()
        await asyncio.wait([coming])
    (span,) = traced.spans("send")
    assert span.status.status_code is StatusCode.ERROR
