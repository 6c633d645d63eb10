"""Prometheus metrics of one node as text. ``metric_names.py`` has the table of all metrics.

``/metrics`` has sums over partitions, because a node may have thousands. ``/metrics/partitions?stream=S`` has the
partitions of one stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from liftpy.core.base.instruments import Histogram
from sidecar.status.figures import Figures
from sidecar.status.metric_names import COUNTER, HISTOGRAM, MOST_PARTITIONS, OF_A_PARTITION, TABLE, Row


class _FamiliesCollector(Collector):
    """Passes the given metric families to prometheus_client."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


_OF_ALL = {"process_start_time_seconds": min, "process_max_fds": min}
"""Metric -> function that combines its values of several processes. Other metrics are summed."""


class _ProcessCollector(Collector):
    """Passes the Prometheus process metrics of all processes of this node to prometheus_client, summed over the processes.

    ``pids``: ids of the processes.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._each = [ProcessCollector(registry=None, pid=partial(int, pid)) for pid in pids]

    def collect(self) -> Iterator[Metric]:
        """Yield the process metrics, each as the sum over the processes. A process that has just ended is left out."""
        merged_families: dict[str, Metric] = {}
        for collector in self._each:
            for family in collector.collect():
                known_family = merged_families.setdefault(family.name, family)
                if known_family is not family:
                    join = _OF_ALL.get(family.name, sum)
                    known_family.samples = [
                        one._replace(value=join((one.value, other.value)))
                        for one, other in zip(known_family.samples, family.samples, strict=True)
                    ]
        yield from merged_families.values()


def text_of(families: list[Metric], pids: Sequence[int] = ()) -> bytes:
    """Return the metrics ``families`` as text for Prometheus. ``pids``: processes whose process metrics are added."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FamiliesCollector(families))
    if pids:
        registry.register(_ProcessCollector(pids))
    return generate_latest(registry)


def families(figures: Figures) -> list[Metric]:
    """Return the values in ``figures`` as Prometheus metrics, one for each row of the table.

    Raises KeyError for a row without values.
    """
    return [
        _histograms(name, row, figures) if row.kind == HISTOGRAM else _numbers(name, row, figures)
        for name, row in TABLE.items()
    ]


def _numbers(name: str, row: Row, figures_all: Figures) -> Metric:
    figures = figures_all.numbers[name]
    by_stream = any(len(labels) > len(row.labels) for labels in figures)
    labels = [*row.labels, "stream"] if by_stream else list(row.labels)
    metric: Metric = _family(row.kind, f"liftpy_{name}", row.text, labels)
    for values, figure in figures.items():
        metric.add_metric(list(values), figure)  # type: ignore[attr-defined]
    return metric


def _family(kind: str, name: str, text: str, labels: list[str]) -> Any:
    if kind == COUNTER:
        return CounterMetricFamily(name.removesuffix("_total"), text, labels=labels)
    return GaugeMetricFamily(name, text, labels=labels)


def _histograms(name: str, row: Row, figures: Figures) -> Metric:
    metric = HistogramMetricFamily(f"liftpy_{name}", row.text, labels=list(row.labels))
    for values, histogram in figures.histograms[name].items():
        metric.add_metric(list(values), _buckets(histogram), histogram.total)
    return metric


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    names = [*map(repr, histogram.bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(histogram.counts)), strict=True))


def exposition(figures: Figures) -> bytes:
    """Return the text of ``/metrics`` with the values in ``figures``."""
    return text_of(families(figures), figures.pids)


def by_partition(partitions: list[dict[str, Any]]) -> bytes:
    """Return the text of ``/metrics/partitions``: one series per partition, up to ``MOST_SERIES_OF_A_STREAM``."""
    shown = partitions[:MOST_PARTITIONS]
    metrics = []
    for name, (kind, field, text) in OF_A_PARTITION.items():
        family = _family(kind, f"liftpy_{name}", text, ["stream", "partition"])
        for row in shown:
            value = int(row["role"] == "LEADER") if field == "role" else row[field]
            family.add_metric([row["stream"], str(row["partition"])], value)
        metrics.append(family)
    return text_of(metrics)
