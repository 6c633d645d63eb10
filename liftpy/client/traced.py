"""Publishers, producers and reads with OpenTelemetry spans. They change only the trace header.

The spans are ``send``, ``receive`` and ``process``. The tracer provider of the application chooses the exporter.

The client makes a span only if it is recorded: within a sampled span of the application, or if the sampler says so. It makes
at most 100 spans per second in each direction and counts the others. A message without a span of its own carries the trace
context of the application, if there is one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, TracerProvider
from opentelemetry.util.types import AttributeValue

from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import PartitionReader
from liftpy.client.in_flight import PublishAck
from liftpy.client.partition_queue import BatchResult, PartitionQueue
from liftpy.client.partition_sender import ANONYMOUS, BatchFuture
from liftpy.client.producer import Producer
from liftpy.client.publisher import Publisher
from liftpy.client.stream_directory import ClientFactories
from liftpy.core.observe.trace_context import SpanBudget, TraceContext, has_traceparent, sampled_context_in, with_context
from liftpy.core.observe.tracing import MOST_READ_LINKS, has_trace_context, sampled_in
from liftpy.core.wire.batch import Record
from liftpy.core.wire.batch_columns import Columns, HeadersColumn
from liftpy.core.wire.headers import HeadersLike, Pairs, pairs_of
from liftpy.errors import CorruptionError, LiftError

DROPPED = "spans dropped"
"""Name of the counter of spans that the client did not make because of its limit."""


def end_span(span: Span, error: BaseException | None = None, **attributes: AttributeValue) -> None:
    """End the span of a message or batch, when its ack has arrived, or with the ``error`` because of which it was not stored.

    ``attributes``: attributes of the span, by name without the prefix ``liftpy.``.
    """
    for name, value in attributes.items():
        span.set_attribute(f"liftpy.{name}", value)
    if error is not None:
        span.set_attribute("error.type", error.code if isinstance(error, LiftError) else type(error).__name__)
        span.set_status(trace.StatusCode.ERROR, str(error))
    span.end()


class ClientSpans:
    """Creates the spans of one client.

    ``provider``: OpenTelemetry tracer provider. None: the global one. ``counters``: counters of the client, for dropped spans.
    """

    def __init__(self, provider: trace.TracerProvider | None, counters: Counter[str]) -> None:
        self._tracer = (provider or trace.get_tracer_provider()).get_tracer("liftpy")
        self._counters = counters
        self._sent, self._read = SpanBudget(), SpanBudget()

    def can_send(self) -> bool:
        """Return whether the client may create a span for a message that it sends now.

        If not, the span is counted as dropped, and the message is sent without a span.
        """
        if self._sent.has(1, time.monotonic_ns()) or trace.get_current_span().get_span_context().is_valid:
            return True
        self._counters[DROPPED] += 1
        return False

    def sending(self, stream: str, partition: int, pairs: Pairs) -> tuple[Pairs, Span | None]:
        """Start a span for a message to a partition. Return (headers to send, span). The span is None if the message is not traced.

        ``pairs``: headers of the message.
        """
        bears = has_traceparent(pairs)
        own = sampled_context_in(pairs) if bears else None
        around = trace.get_current_span().get_span_context()
        if (bears and own is None) or (around.is_valid and not around.trace_flags.sampled):
            return pairs, None
        attributes, links = _span_attributes("send", stream, partition), () if own is None else (own,)
        span = self._span(self._sent, f"send {stream}", trace.SpanKind.PRODUCER, attributes, links)
        context = around if span is None else span.get_span_context()
        if context.is_valid and context.trace_flags.sampled:
            pairs = with_context(
                pairs,
                TraceContext(context.trace_id, context.span_id, int(context.trace_flags)),
                context.trace_state.to_header(),
            )
        return pairs, span

    def record_delivery(self, stream: str, partition: int, piece: BatchSlice) -> None:
        """Record a span ``receive`` for a delivered slice, if it has a traced record.

        The client has a limit of spans per second. Beyond the limit, the span is counted as dropped.
        """
        if not self._read.has(1, time.monotonic_ns()):
            headers = _headers_of(piece)
            self._counters[DROPPED] += headers is not None and has_trace_context(headers)
            return
        if created := contexts_of(piece):
            attributes = {
                **_span_attributes("receive", stream, partition),
                "messaging.batch.message_count": piece.record_count,
                "liftpy.offset": piece.first_offset,
            }
            arrived_ns = piece.batch.arrived_ns or None
            span = self._span(self._read, f"receive {stream}", trace.SpanKind.CONSUMER, attributes, created, arrived_ns)
            if span is not None:
                span.end()

    @contextmanager
    def process(
        self, stream: str, partition: int, created: Sequence[TraceContext], offset: int, count: int | None
    ) -> Iterator[trace.Span | None]:
        """Create a span around the block, in which the application processes records.

        ``created``: trace contexts that the records carry. ``offset``: first offset. ``count``: number of records, None for one record.
        Messages that the application publishes inside the block belong to the trace of the span.
        """
        if not created:
            yield None
            return
        attributes = {**_span_attributes("process", stream, partition), "liftpy.offset": offset}
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        span = self._span(self._read, f"process {stream}", trace.SpanKind.CONSUMER, attributes, created)
        if span is not None:
            with trace.use_span(span, end_on_exit=True):
                yield span
            return
        before = contexts.attach(self._below(created))
        try:
            yield None
        finally:
            contexts.detach(before)

    def _span(
        self, budget: SpanBudget, name: str, kind: trace.SpanKind, values: dict[str, AttributeValue], links: Sequence[TraceContext],
        start_ns: int | None = None,
    ) -> trace.Span | None:  # fmt: skip
        """Start a span and return it. None: the client has reached its limit of spans, or the span is not sampled."""
        if not budget.takes(1, time.monotonic_ns()):
            self._counters[DROPPED] += 1
            return None
        linked = [trace.Link(_remote(link)) for link in links]
        span = self._tracer.start_span(
            name, self._below(links), kind, values, linked, start_ns, record_exception=False, set_status_on_exception=False
        )
        if span.is_recording():
            return span
        budget.gives_back(1)
        return None

    def _below(self, created: Sequence[TraceContext]) -> contexts.Context:
        """Return the parent context for a span: that of the application's current span, otherwise the first one in ``created``."""
        now = contexts.get_current()
        if not created or trace.get_current_span(now).get_span_context().is_valid:
            return now
        return trace.set_span_in_context(trace.NonRecordingSpan(_remote(created[0])), now)


def _span_attributes(operation: str, stream: str, partition: int) -> dict[str, Any]:
    return {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": stream,
        "messaging.destination.partition.id": str(partition),
    }


def _remote(context: TraceContext) -> trace.SpanContext:
    return trace.SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=trace.TraceFlags(context.flags))


class TracedPublisher(Publisher):
    """Publisher that creates a span for each ``send`` and ``post``."""

    def __init__(self, spans: ClientSpans, *arguments: Any, **named: Any) -> None:
        self._spans = spans
        super().__init__(*arguments, **named)

    async def send(
        self, value: bytes | None, *, headers: HeadersLike | None = None, **arguments: Any
    ) -> asyncio.Future[PublishAck]:
        span = None
        if self._spans.can_send():
            headers, span = self._spans.sending(self._stream, self._partition, pairs_of(headers))
        sending = super().send(value, headers=headers, **arguments)
        if span is None:
            return await sending
        try:
            coming = await sending
        except BaseException as error:
            end_span(span, error)
            raise
        coming.add_done_callback(partial(_end_with_ack, span))
        return coming

    async def post(self, value: bytes | None, *, headers: HeadersLike | None = None, **arguments: Any) -> None:
        pairs, span = self._spans.sending(self._stream, self._partition, pairs_of(headers))
        try:
            await super().post(value, headers=pairs, **arguments)
        except BaseException as error:
            if span is not None:
                end_span(span, error)
            raise
        if span is not None:
            end_span(span)


def _end_with_ack(span: Span, coming: asyncio.Future[PublishAck]) -> None:
    if coming.cancelled():
        end_span(span, asyncio.CancelledError("the application canceled the wait for the ack"))
        return
    error = getattr(coming, "_exception", None)  # `exception()` would count as reading the error
    if error is not None:
        end_span(span, error)
    else:
        ack = coming.result()
        end_span(span, offset=ack.offset, leader_epoch=ack.leader_epoch)


class TracedProducer(Producer):
    """Producer that creates a span for each batch.

    The first record of a batch carries the trace context. A producer with an id sends no trace contexts, because
    another process must be able to send identical records.
    """

    def __init__(self, spans: ClientSpans, *arguments: Any, **named: Any) -> None:
        self._spans = spans
        super().__init__(*arguments, **named)

    def _new_queue(self, partition: int, producer_id: int) -> PartitionQueue:
        queue = super()._new_queue(partition, producer_id)
        queue.on_begin = partial(self._begin_span, partition, self.name.startswith(ANONYMOUS))
        return queue

    def _begin_span(self, partition: int, may_mark: bool, ticket: BatchFuture, pairs: Pairs) -> Pairs:
        marked, span = self._spans.sending(self._stream, partition, pairs)
        if span is not None:
            ticket.future.add_done_callback(partial(_end_with_batch, span, ticket))
        return marked if may_mark else pairs


def _end_with_batch(span: Span, ticket: BatchFuture, coming: asyncio.Future[BatchResult]) -> None:
    if ticket.record_count:
        span.set_attribute("messaging.batch.message_count", ticket.record_count)
    if coming.cancelled():
        end_span(span, asyncio.CancelledError("the application canceled the wait for the ack"))
    elif (error := coming.exception()) is not None:
        end_span(span, error)
    else:
        placed = coming.result()
        end_span(span, offset=placed.offset, leader_epoch=placed.leader_epoch)


def contexts_of(what: Record | BatchSlice) -> tuple[TraceContext, ...]:
    """Return the sampled trace contexts of a record, or of the first 64 records of a slice that have one."""
    if isinstance(what, Record):
        own = sampled_context_in(what.headers)
        return () if own is None else (own,)
    headers = _headers_of(what)
    return () if headers is None else sampled_in(headers, what.first_index, what.end_index, MOST_READ_LINKS)


def _headers_of(piece: BatchSlice) -> HeadersColumn | None:
    if Columns.HEADERS not in Columns(piece.batch.header.column_bits):
        return None
    try:
        return piece.batch.columns.headers
    except CorruptionError:  # reading its records raises the error
        return None


class TracedFactories(ClientFactories):
    """Creates publishers and producers with traces, and records delivered slices.

    ``provider``: tracer provider. None: the global one.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        super().__init__()
        self._spans = spans = ClientSpans(provider, self.counters)
        self.publisher = partial(TracedPublisher, spans)
        self.producer = partial(TracedProducer, spans)

    def trace_reads(self, reader: PartitionReader) -> None:
        reader.on_delivery = partial(self._spans.record_delivery, reader.stream, reader.partition)

    def around(self, stream: str, what: Record | BatchSlice, partition: int) -> AbstractContextManager[Span | None]:
        offset, count = (what.offset, 1) if isinstance(what, Record) else (what.first_offset, what.record_count)
        return self._spans.process(stream, partition, contexts_of(what), offset, count)
