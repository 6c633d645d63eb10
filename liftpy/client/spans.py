"""A client's spans, made with OpenTelemetry's API: ``send``, ``receive``, ``process``. Which exporter they go to, if any, is the
application's: its provider of tracers.

A span is made for what is recorded: within a sampled span of the application, or where its sampler says so. At most 100 a second each
way; those beyond are counted, and what is sent then bears the application's own context, if there is one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from liftpy.errors import LiftError
from liftpy.trace.budget import SpanBudget
from liftpy.trace.context import TraceContext
from liftpy.trace.messages import bears_one, created_in, with_context
from liftpy.wire.headers import Pairs

DROPPED = "spans dropped"
"""Over the client's budget."""


class Sending:
    """A span ``send`` that goes on until what it is of is answered."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def ended(self, error: BaseException | None = None, **attributes: AttributeValue) -> None:
        """It is stored, or failed. ``attributes``: their names after ``liftpy.``."""
        for name, value in attributes.items():
            self._span.set_attribute(f"liftpy.{name}", value)
        if error is not None:
            self._span.set_attribute("error.type", error.code if isinstance(error, LiftError) else type(error).__name__)
            self._span.set_status(trace.StatusCode.ERROR, str(error))
        self._span.end()

    def counted(self, records: int) -> None:
        """So many records are in its batch."""
        self._span.set_attribute("messaging.batch.message_count", records)


class ClientSpans:
    """Of one client. ``provider``: None: the global one. ``counters``: are told of what is left out."""

    def __init__(self, provider: trace.TracerProvider | None, counters: Counter[str]) -> None:
        self._tracer = (provider or trace.get_tracer_provider()).get_tracer("liftpy")
        self._counters = counters
        self._sent, self._read = SpanBudget(), SpanBudget()

    def can_send(self) -> bool:
        """Whether anything can come of ``sending``; else it counts as left out, and the message goes as it is."""
        if self._sent.has(1, time.monotonic_ns()) or trace.get_current_span().get_span_context().is_valid:
            return True
        self._counters[DROPPED] += 1
        return False

    def can_receive(self) -> bool:
        """Whether anything can come of ``received``."""
        return self._read.has(1, time.monotonic_ns())

    def not_received(self) -> None:
        """A batch that may be traced was handed on, and there was no budget."""
        self._counters[DROPPED] += 1

    def sending(self, stream: str, partition: int, pairs: Pairs) -> tuple[Pairs, Sending | None]:
        """The headers to send with, and the span; None: there is none, and the headers may be as they were."""
        bears = bears_one(pairs)
        own = created_in(pairs) if bears else None
        around = trace.get_current_span().get_span_context()
        if (bears and own is None) or (around.is_valid and not around.trace_flags.sampled):
            return pairs, None
        said, links = _said("send", stream, partition), () if own is None else (own,)
        span = self._span(self._sent, f"send {stream}", trace.SpanKind.PRODUCER, said, links)
        made = around if span is None else span.get_span_context()
        if made.is_valid and made.trace_flags.sampled:
            pairs = with_context(
                pairs, TraceContext(made.trace_id, made.span_id, int(made.trace_flags)), made.trace_state.to_header()
            )
        return pairs, None if span is None else Sending(span)

    def received(
        self, stream: str, partition: int, created: Sequence[TraceContext], arrived_ns: int, offset: int, count: int
    ) -> None:
        """A batch was handed on, whose records bear these contexts; none: nothing is told. ``arrived_ns``: of the wall clock."""
        if created:
            said = {**_said("receive", stream, partition), "messaging.batch.message_count": count, "liftpy.offset": offset}
            span = self._span(self._read, f"receive {stream}", trace.SpanKind.CONSUMER, said, created, arrived_ns or None)
            if span is not None:
                span.end()

    @contextmanager
    def process(
        self, stream: str, partition: int, created: Sequence[TraceContext], offset: int, count: int | None
    ) -> Iterator[trace.Span | None]:
        """Around what is done with records that bear these contexts; what is published within it is of the same trace. ``count``: of
        the records, None: nobody has counted them."""
        if not created:
            yield None
            return
        said = {**_said("process", stream, partition), "liftpy.offset": offset}
        if count is not None:
            said["messaging.batch.message_count"] = count
        span = self._span(self._read, f"process {stream}", trace.SpanKind.CONSUMER, said, created)
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
        self, budget: SpanBudget, name: str, kind: trace.SpanKind, said: dict[str, AttributeValue], links: Sequence[TraceContext],
        start_ns: int | None = None,
    ) -> trace.Span | None:  # fmt: skip
        """Begun; None: there is no budget, or nobody records it."""
        if not budget.takes(1, time.monotonic_ns()):
            self._counters[DROPPED] += 1
            return None
        linked = [trace.Link(_remote(link)) for link in links]
        span = self._tracer.start_span(
            name, self._below(links), kind, said, linked, start_ns, record_exception=False, set_status_on_exception=False
        )
        if span.is_recording():
            return span
        budget.gives_back(1)
        return None

    def _below(self, created: Sequence[TraceContext]) -> contexts.Context:
        """What a span is made in: the application's own, where it is in one; else that of the first message."""
        now = contexts.get_current()
        if not created or trace.get_current_span(now).get_span_context().is_valid:
            return now
        return trace.set_span_in_context(trace.NonRecordingSpan(_remote(created[0])), now)


def _said(operation: str, stream: str, partition: int) -> dict[str, Any]:
    return {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": stream,
        "messaging.destination.partition.id": str(partition),
    }


def _remote(context: TraceContext) -> trace.SpanContext:
    return trace.SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=trace.TraceFlags(context.flags))
