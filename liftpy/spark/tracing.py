"""``processing``: a span around the processing of a micro-batch (needs ``liftpy[trace]``).

The span is in the trace of the publishers of the records. Spark tasks create no spans. ``foreachBatch`` runs on the
driver:

    def bill(batch, batch_id):
        with processing(batch, "orders"):
            batch.write.mode("append").parquet("billed")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from liftpy.core.observe.trace_context import TRACEPARENT, TraceContext, sampled_context_in
from liftpy.core.observe.tracing import MOST_READ_LINKS
from liftpy.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider
    from pyspark.sql import DataFrame

_HEADERS = "headers"
_POSITION = ("partition", "offset")


@contextmanager
def processing(batch: DataFrame, stream: str, *, trace: TracerProvider | None = None) -> Iterator[Span | None]:
    """Create a span ``process STREAM`` around the processing of a micro-batch.

    The span links to the first 64 traced records. It is a child of the application's current span, or of the first
    record's trace. The function reads the batch once more for the trace headers: call ``batch.persist()`` first if
    reading is expensive.

    Args:
        batch: DataFrame with the columns ``headers`` (option ``includeHeaders``), ``partition`` and ``offset``.
        stream: Name of the stream.
        trace: OpenTelemetry TracerProvider. Default None: the global one.

    Returns:
        A context manager. It yields the span, or None if no record is traced.

    Raises:
        ConfigError: A column or the package is missing.

    Example:
        from liftpy.spark import processing

        def bill(batch, batch_id):
            with processing(batch, "orders"):
                batch.write.mode("append").parquet("billed")
    """
    try:
        from liftpy.client.traced import ClientSpans
    except ImportError as error:
        raise ConfigError(f"Spans need OpenTelemetry. Install it with `pip install 'liftpy[trace]'`. ({error})") from None
    if _HEADERS not in batch.columns:
        raise ConfigError("The batch has no column headers. Read the stream with the option includeHeaders=true.")
    if lacking := [name for name in _POSITION if name not in batch.columns]:
        raise ConfigError(f"The batch has no column {lacking[0]}, which the span needs. Read it from the stream, and keep it.")
    created, (partition, offset) = _created_in(batch)
    with ClientSpans(trace, Counter()).process(stream, partition, created, offset, None) as span:
        yield span


def _created_in(batch: DataFrame) -> tuple[tuple[TraceContext, ...], tuple[int, int]]:
    from pyspark.sql import functions

    marked = functions.exists(_HEADERS, lambda header: header["key"] == TRACEPARENT)
    contexts: dict[TraceContext, tuple[int, int]] = {}
    for row in batch.where(marked).select(*_POSITION, _HEADERS).limit(MOST_READ_LINKS).collect():
        context = sampled_context_in(tuple((header["key"], bytes(header["value"])) for header in row[_HEADERS]))
        if context is not None:
            contexts.setdefault(context, (row["partition"], row["offset"]))
    return tuple(contexts), next(iter(contexts.values()), (0, 0))
