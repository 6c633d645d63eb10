"""Tracing of a node. If it is off, OpenTelemetry is not imported and partitions are not wrapped."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sized
from dataclasses import replace
from typing import TYPE_CHECKING

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.trace_context import SPANS_PER_S, Attributes, SpanBudget, SpanTree
from liftpy.core.observe.tracing import NodeTraces, PartitionTraces
from liftpy.errors import ConfigError
from sidecar.runtime import clock
from sidecar.runtime.settings import NodeSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from sidecar.tracing.exporting import SpanThread

CHECK_EVERY_S = 1.0
DROPPED = "spans dropped"
"""Name of the counter of spans above the limits, or not delivered."""


def check_exporter(setting: str, endpoint: str) -> None:
    """Raise ConfigError if spans cannot be exported to ``endpoint``: packages are missing, or an ``OTEL_`` variable is invalid.

    ``setting``: setting or option that switches tracing on, for the text of the error.
    """
    try:
        from sidecar.tracing.exporting import check_environment
    except ImportError as error:
        raise ConfigError(f"{setting} needs OpenTelemetry: {error}. Install it with `pip install 'liftpy[otlp]'`.") from None
    try:
        check_environment(endpoint)
    except Exception as error:  # OpenTelemetry and its plugins have no common class
        raise ConfigError(f"Cannot apply {setting}: {error}. Check the environment variables OTEL_*.") from None


class Tracing:
    """Tracing of a node, as its settings say. No span is made before ``start``.

    ``exporter``: makes another exporter than OTLP, for tests.
    """

    def __init__(
        self, settings: NodeSettings, counters: Counter[str], exporter: Callable[[], SpanExporter] | None = None
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._make_exporter = exporter
        self._thread: SpanThread | None = None
        """Thread that exports the spans. None: tracing is off."""
        self._check_timer: asyncio.TimerHandle | None = None
        self.leads_group = False
        """True if this node leads the metadata group. Only this controller makes spans for failovers."""
        budget = SpanBudget(SPANS_PER_S / settings.workers)
        self.traces = NodeTraces(settings.node_id, self._add, clock.now_ns, time.time_ns, budget)

    def _add(self, tree: SpanTree) -> None:
        if self._thread is not None:
            self._thread.add(tree)

    def check(self, settings: NodeSettings) -> None:
        """Raise ConfigError if ``settings`` switch tracing on and spans cannot be exported."""
        if settings.trace != "off":
            check_exporter(f"trace = {settings.trace!r}", settings.trace_endpoint)

    def start(self) -> None:
        """Load the SDK and start the thread if the settings switch tracing on. Raises ConfigError if spans cannot be exported."""
        self.check(self._settings)
        if self._settings.trace != "off" and self._thread is None:
            self._begin()

    def _begin(self) -> None:
        from sidecar.tracing.exporting import SpanThread, otlp_exporter

        settings = self._settings
        exporter = self._make_exporter() if self._make_exporter is not None else otlp_exporter(settings.trace_endpoint)
        self._thread = SpanThread(exporter, settings.node_id, settings.namespace, self.traces.budget)
        self._schedule_export()

    def apply_settings(self, settings: NodeSettings, partitions: Callable[[], None]) -> None:
        """Apply changed settings of tracing at once.

        ``partitions``: function that makes each partition call ``of`` again. Raises ConfigError if spans cannot be exported.
        """
        before, self._settings = self._settings, settings
        if (before.trace, before.trace_endpoint) == (settings.trace, settings.trace_endpoint):
            return
        if (ending := self._thread) is not None:
            self._settings = replace(settings, trace="off")
            partitions()  # they export the spans of open batches
            self._thread, self._settings = None, settings
            self._stop_checks()
            ending.end()
            asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._count, ending)
        if settings.trace != "off":
            self.start()
            partitions()

    def _schedule_export(self) -> None:
        self._check_timer = asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._export_due)

    def _stop_checks(self) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _export_due(self) -> None:
        if self.traces.open:
            self.traces.export_due()
        self._count(self._thread)
        self._schedule_export()

    def _count(self, thread: SpanThread | None) -> None:
        if thread is not None:
            thread.settle()
        self._counters[DROPPED] = self.traces.budget.dropped

    def traces_of(self, key: PartitionKey) -> PartitionTraces | None:
        """Return the object that records the spans of one partition. None: tracing is off."""
        return None if self._settings.trace == "off" else PartitionTraces(self.traces, key.stream, key.partition)

    def trace_recovery(self, took_s: float, logs: Sized, damaged: Sized) -> None:
        """Record a span for the recovery of the logs at the start, which has just ended.

        ``took_s``: its duration in seconds. ``logs``: all logs. ``damaged``: logs with damage. Only their numbers are recorded.
        """
        if self._thread is not None:
            attributes: Attributes = {"liftpy.logs": len(logs), "liftpy.damaged_logs": len(damaged)}
            self.traces.whole("recovery", clock.now_ns() - round(took_s * NS_PER_S), attributes)

    def failed_over(self, key: PartitionKey, kind: str, since_ns: int) -> None:
        """Record a span for a failover: a partition has a leader again. Only the metadata leader records it.

        ``kind``: kind of the election. ``since_ns``: monotonic time since which the partition had no leader, in nanoseconds.
        """
        if self._thread is not None and self.leads_group:
            attributes: Attributes = {
                "messaging.destination.name": key.stream,
                "messaging.destination.partition.id": str(key.partition),
                "liftpy.election": kind,
            }
            self.traces.whole(f"fail-over {key.stream}/{key.partition}", since_ns, attributes)

    def close(self) -> None:
        """Stop tracing, and export the queued spans within a second."""
        self._stop_checks()
        if self._thread is not None:
            self._thread.close()
            self._count(self._thread)
