"""Test tracing on a node: spans, exporter limits, and no work while disabled."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.trace_context import SPANS_PER_S, Span, SpanBudget, SpanTree, TraceContext, traceparent
from liftpy.core.observe.tracing import PartitionTraces
from liftpy.errors import ConfigError
from sidecar.runtime.settings import NodeSettings
from sidecar.tracing import exporting, node_tracing
from sidecar.tracing.exporting import MOST_QUEUED_SPANS, SpanThread
from sidecar.tracing.node_tracing import DROPPED, Tracing
from tests.batches import build_batch
from tests.until import until

SENDER, OTHER = TraceContext(7, 8, 1), TraceContext(9, 10, 3)
KEY = PartitionKey("orders", "u1", 3)
WAIT_S = 10.0


def settings(**other: Any) -> NodeSettings:
    return NodeSettings("n1", Path("/nowhere"), **other)


def thread(exporter: Any, budget: SpanBudget | None = None) -> SpanThread:
    return SpanThread(exporter, "n1", "liftpy", budget or SpanBudget())


def test_tracing_of_a_record_batch_creates_spans_of_one_trace() -> None:
    exporter = InMemorySpanExporter()
    spans = thread(exporter)
    children = (Span("flush", 1100, 1200), Span("commit", 1100, 1400, {"a": 1}))
    spans.add(SpanTree(Span("append orders/3", 1000, 1500, {"liftpy.offset": 5}), children, SENDER, (SENDER, OTHER)))
    spans.add(SpanTree(Span("recovery", 1, 2, {}, "why")))
    spans.close()
    found = {span.name: span for span in exporter.get_finished_spans()}
    root, flush, commit = found["append orders/3"], found["flush"], found["commit"]
    assert root.context is not None
    assert root.parent is not None
    assert (root.context.trace_id, root.parent.span_id, root.kind) == (7, 8, SpanKind.INTERNAL)
    assert [(link.context.trace_id, link.context.span_id) for link in root.links] == [(7, 8), (9, 10)]
    assert (root.start_time, root.end_time, dict(root.attributes or {})) == (1000, 1500, {"liftpy.offset": 5})
    assert [(s.parent and s.parent.span_id, s.start_time, s.end_time) for s in (flush, commit)] == [
        (root.context.span_id, 1100, 1200), (root.context.span_id, 1100, 1400),
    ]  # fmt: skip
    assert root.resource.attributes["service.instance.id"] == "n1"
    alone = found["recovery"]
    assert (alone.parent, alone.status.status_code, alone.status.description) == (None, StatusCode.ERROR, "why")


class Stuck:
    """Provide an exporter that is slow, fails or raises."""

    def __init__(self, result: Any = SpanExportResult.SUCCESS) -> None:
        self.result = result
        self.go = threading.Event()
        self.asked = threading.Event()
        self.count = 0
        self.ended = False

    def export(self, spans: Sequence[ReadableSpan], /) -> Any:
        self.asked.set()
        self.go.wait(WAIT_S)
        self.count += len(spans)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def shutdown(self) -> None:
        self.ended = True


async def test_tracing_with_a_hanging_collector_queues_a_bounded_number_of_spans() -> None:
    stuck, budget = Stuck(), SpanBudget()
    spans = thread(stuck, budget)
    one = SpanTree(Span("x", 1, 2), (Span("y", 1, 2),))
    spans.add(one)
    assert stuck.asked.wait(WAIT_S)
    for _ in range(MOST_QUEUED_SPANS // 2 + 3):
        spans.add(one)
    assert budget.dropped == 3 * 2
    stuck.go.set()
    await until(lambda: stuck.count == 2 + MOST_QUEUED_SPANS)
    spans.close()
    assert stuck.ended
    assert budget.dropped == 6


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, OSError("refused")])
async def test_tracing_spans_rejected_by_the_collector_are_counted(result: Any) -> None:
    refuses, budget = Stuck(result), SpanBudget()
    refuses.go.set()
    spans = thread(refuses, budget)
    spans.add(SpanTree(Span("x", 1, 2), (Span("y", 1, 2),)))
    await until(lambda: refuses.count == 2)
    spans.add(SpanTree(Span("z", 1, 2)))
    spans.close()
    assert budget.dropped == 3, "and the thread goes on"


async def test_tracing_lost_spans_are_counted_and_logged_once_per_outage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporting, "EXPORT_EVERY_S", 0.005)
    stuck, budget = Stuck(SpanExportResult.FAILURE), SpanBudget()
    stuck.go.set()
    spans = thread(stuck, budget)

    async def lost(count: int) -> None:
        spans.add(SpanTree(Span("x", 1, 2)))
        await until(lambda: stuck.count == count and spans._queued == 0)

    await lost(1)
    await lost(2)
    await until(lambda: spans._failed == 2)
    for _ in range(3):
        spans.settle()
    assert budget.dropped == 2
    stuck.result = SpanExportResult.SUCCESS
    await lost(3)
    await until(lambda: not spans._refused)
    stuck.result = SpanExportResult.FAILURE
    await lost(4)
    spans.close()
    assert (budget.dropped, caplog.text.count("trace collector accepts no spans")) == (3, 2)


async def test_tracing_span_limit_is_divided_between_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_tracing, "CHECK_EVERY_S", 0.001)
    counters: Counter[str] = Counter()
    tracing = Tracing(settings(trace="otlp", workers=4), counters, InMemorySpanExporter)
    tracing.start()
    for count in (3, 7):
        tracing.traces.budget.dropped = count
        await until(lambda wanted=count: counters[DROPPED] == wanted)
    tracing.close()
    share = tracing.traces.budget
    assert (share.has(round(SPANS_PER_S / 4), 0), share.has(round(SPANS_PER_S / 4) + 1, 0)) == (True, False)


async def test_tracing_close_does_not_wait_for_a_hanging_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_LAST_EXPORT_S", 0.02)
    stuck = Stuck()
    spans = thread(stuck)
    spans.add(SpanTree(Span("x", 1, 2)))
    assert stuck.asked.wait(WAIT_S)
    spans.close()
    assert not stuck.ended
    stuck.go.set()
    await until(lambda: stuck.ended)


def test_tracing_that_is_disabled_creates_no_spans() -> None:
    tracing = Tracing(settings(), Counter())
    assert tracing.traces_of(KEY) is None
    tracing.start()
    tracing.trace_recovery(1.0, [], [])
    tracing.leads_group = True
    tracing.failed_over(KEY, "clean", 1)
    tracing.close()
    assert tracing.traces.budget.takes(round(SPANS_PER_S), 0), "not even a span that is dropped"


async def test_tracing_enabled_or_disabled_on_a_running_node_applies_without_a_restart() -> None:
    """Spans in progress are exported at their end, dropped spans stay counted, and nothing waits for the collector."""
    exporters: list[Stuck] = []
    counters = Counter[str]()
    looks: list[bool] = []
    one: PartitionTraces | None = None

    def made() -> Stuck:
        exporters.append(Stuck())
        return exporters[-1]

    def partitions() -> None:
        nonlocal one
        if one is not None:
            one.end_all("switched")
        one = tracing.traces_of(KEY)
        looks.append(one is not None)

    tracing = Tracing(settings(rack="a"), counters, made)
    tracing.start()
    tracing.apply_settings(settings(rack="b"), partitions)
    assert (looks, exporters) == ([], []), "nothing of it has changed"
    tracing.apply_settings(settings(trace="otlp"), partitions)
    tracing.apply_settings(settings(trace="otlp", rack="c"), partitions)
    assert (looks, len(exporters)) == ([True], 1), "nothing of it has changed"
    assert one is not None
    batch = build_batch([b"v"], headers=[[("traceparent", traceparent(SENDER))]])
    one.appended(batch, 5, 1, 1, arrived_wall_ns=1, flushed=False, awaited=False, followers=frozenset())
    tracing.traces.budget.dropped += 5
    began = time.monotonic()
    tracing.apply_settings(settings(trace="otlp", trace_endpoint="http://there:1"), partitions)
    tracing.apply_settings(settings(), partitions)
    assert time.monotonic() - began < exporting._LAST_EXPORT_S, "the collector still has not answered"
    assert looks == [True, False, True, False]
    tracing.trace_recovery(1.0, [], [])
    for exporter in exporters:
        exporter.go.set()
    await until(lambda: all(exporter.ended for exporter in exporters) and counters[DROPPED] == 5)
    assert [exporter.count for exporter in exporters] == [1, 0], "the batch; and nothing while they are off"
    tracing.close()


def test_tracing_settings_check_with_missing_packages_raises_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing = Tracing(settings(), Counter())
    tracing.check(settings(trace="otlp"))
    monkeypatch.setitem(sys.modules, "sidecar.tracing.exporting", None)
    tracing.check(settings())
    with pytest.raises(ConfigError, match=r"liftpy\[otlp\]"):
        tracing.check(settings(trace="otlp"))
    with pytest.raises(ConfigError, match=r"liftpy\[otlp\]"):
        Tracing(settings(trace="otlp"), Counter()).start()


def test_tracing_settings_check_with_an_invalid_otel_variable_raises_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_EVENT_COUNT_LIMIT", "many")
    tracing = Tracing(settings(), Counter())
    tracing.check(settings())
    with pytest.raises(ConfigError, match=r"OTEL_SPAN_EVENT_COUNT_LIMIT must be .* Check the environment variables OTEL_"):
        tracing.check(settings(trace="otlp"))


def test_tracing_packages_are_not_imported_by_node_and_client_without_tracing() -> None:
    program = "import sidecar.node, liftpy.client.client, sys; print('opentelemetry' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "False\n"


@pytest.mark.parametrize("wrong", [{"trace": "on"}, {"trace": "otlp", "trace_endpoint": "collector:4318"}])
def test_tracing_settings_with_invalid_values_are_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="trace"):
        settings(**wrong)
