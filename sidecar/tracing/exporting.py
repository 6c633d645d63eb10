"""Exports spans to OpenTelemetry in a separate thread, never on the event loop.

The queue has a limit. Spans that do not fit, and spans that the exporter cannot deliver, are counted as dropped. If the
collector is down, it costs only the memory of the queue.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from liftpy import __version__
from liftpy.core.observe.trace_context import SpanBudget, SpanTree, TraceContext

logger = logging.getLogger("liftpy.tracing")

MOST_QUEUED_SPANS = 2048
"""Maximum number of finished spans that are not exported yet. They use about half a megabyte."""
EXPORT_EVERY_S = 0.5
EXPORT_TIMEOUT_S = 5.0
_SPANS_AT_ONCE = 512
_LAST_EXPORT_S = 1.0
"""Time that a stopping node waits for the last export, in seconds."""


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Return an exporter for OTLP over HTTP.

    ``endpoint`` '': the value of OTEL_EXPORTER_OTLP_ENDPOINT, otherwise this host.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    logging.getLogger("opentelemetry").setLevel(
        logging.CRITICAL
    )  # the exporter logs each failed attempt. The node counts lost spans instead
    return OTLPSpanExporter(endpoint=endpoint or None, timeout=EXPORT_TIMEOUT_S)


def check_environment(endpoint: str) -> None:
    """Make the objects that export spans to ``endpoint``, and drop them.

    Raises the errors of OpenTelemetry, for example ValueError for an invalid value of an ``OTEL_`` variable.
    """
    otlp_exporter(endpoint).shutdown()
    _make_provider("", "")


def _make_provider(node_id: str, namespace: str) -> TracerProvider:
    facts = {"service.name": "liftpy", "service.version": __version__, "service.instance.id": node_id}
    return TracerProvider(
        sampler=ALWAYS_ON,  # every span is exported, because the node has already decided which batches to trace
        resource=Resource.create({**facts, "liftpy.namespace": namespace}),
        shutdown_on_exit=False,
        span_limits=SpanLimits(max_links=64),
    )


class _SpanCollector(SpanProcessor):
    """Finished spans that were not exported yet. Only the export thread uses it."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        """Do nothing, because only finished spans are exported."""

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class SpanThread:
    """A thread that exports spans. The event loop calls ``add`` at any time, and ``close`` at the end.

    ``budget``: counts the spans that are dropped.
    """

    def __init__(self, exporter: SpanExporter, node_id: str, namespace: str, budget: SpanBudget) -> None:
        self._exporter = exporter
        self._budget = budget
        self._queue: deque[SpanTree] = deque()
        self._queued = 0
        self._failed = 0
        """Number of spans that the exporter did not deliver. Only the thread writes it."""
        self._failed_seen = 0
        self._refused = False
        """True if the collector has rejected the last spans."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._collected = _SpanCollector()
        provider = _make_provider(node_id, namespace)
        provider.add_span_processor(self._collected)
        self._tracer = provider.get_tracer("liftpy", __version__)
        self._thread = threading.Thread(target=self._run, name="liftpy-traces", daemon=True)
        self._thread.start()

    def add(self, tree: SpanTree) -> None:
        """Queue a finished span with its children for export. If the queue is full, count them as dropped."""
        with self._lock:
            if self._queued + tree.size <= MOST_QUEUED_SPANS:
                self._queue.append(tree)
                self._queued += tree.size
                return
        self._budget.dropped += tree.size

    def settle(self) -> None:
        """Add the spans that the exporter did not deliver to the number of dropped spans. Call it on the event loop."""
        failed = self._failed
        self._budget.dropped += failed - self._failed_seen
        self._failed_seen = failed

    def end(self) -> None:
        """Tell the thread to export the queued spans and to stop. The call does not wait for it."""
        self._closing.set()

    def close(self) -> None:
        """Wait at most one second until the queued spans are exported. Spans that are left then are lost."""
        self.end()
        self._thread.join(_LAST_EXPORT_S)
        self.settle()

    # ---- in the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            ends = self._closing.wait(EXPORT_EVERY_S)
            try:
                while self._export_some():
                    pass
            except Exception as error:  # a bug here or in the SDK must not end the thread
                logger.warning("spans not created error=%r: dropping them", error)
            if ends:
                self._exporter.shutdown()
                return

    def _export_some(self) -> bool:
        trees: list[SpanTree] = []
        size = 0
        with self._lock:
            while self._queue and size < _SPANS_AT_ONCE:
                tree = self._queue.popleft()
                trees.append(tree)
                size += tree.size
            self._queued -= size
        if not trees:
            return False
        spans: list[ReadableSpan] = []
        self._collected.spans = spans
        try:
            for tree in trees:
                self._make(tree)
            failed = self._exporter.export(spans) is not SpanExportResult.SUCCESS
        except Exception:  # errors of requests and urllib3, which have several classes
            failed = True
        if failed:
            self._failed += size
        if failed and not self._refused:
            logger.warning("trace collector accepts no spans: dropping and counting them (liftpy_trace_spans_dropped_total)")
        self._refused = failed
        return True

    def _make(self, tree: SpanTree) -> None:
        root = tree.root
        context = trace.set_span_in_context(trace.NonRecordingSpan(_remote(tree.parent))) if tree.parent is not None else None
        links = [trace.Link(_remote(link)) for link in tree.links]
        span = self._tracer.start_span(
            root.name, context, trace.SpanKind.INTERNAL, root.attributes, links, root.start_ns, record_exception=False
        )
        if root.error:
            span.set_status(trace.StatusCode.ERROR, root.error)
        below = trace.set_span_in_context(span)
        for child in tree.children:
            child_span = self._tracer.start_span(child.name, below, attributes=child.attributes, start_time=child.start_ns)
            child_span.end(child.end_ns)
        span.end(root.end_ns)


def _remote(context: TraceContext) -> trace.SpanContext:
    return trace.SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=trace.TraceFlags(context.flags))
