"""A span around what a driver does with a micro-batch, in the trace of who published its records (``pip install liftpy[trace]``).

Spark's tasks make no spans: they run in Python workers that have no provider of tracers, and what they read goes to Arrow without a
record's header being met. The driver has one, and ``foreachBatch`` runs there:

    def bill(batch, batch_id):
        with processing(batch, "orders"):
            batch.write.mode("append").parquet("billed")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from liftpy.core.observe.trace_context import TRACEPARENT, TraceContext, created_in
from liftpy.core.observe.tracing import MOST_READ_LINKS
from liftpy.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider
    from pyspark.sql import DataFrame

_HEADERS = "headers"


@contextmanager
def processing(batch: DataFrame, stream: str, *, trace: TracerProvider | None = None) -> Iterator[Span | None]:
    """A span ``process STREAM`` around what is done with ``batch``, linked to the first 64 contexts of its records that are recorded;
    in the application's own span, or else in the trace of the first of them. None: no record is traced, and there is none.

    ``batch`` has the column ``headers`` (``includeHeaders``). It is read for them once more: with few or no traced records as a whole,
    so ``batch.persist()`` first where reading is dear. ``trace``: None: OpenTelemetry's global provider of tracers. Raises ConfigError
    where the column or the package is missing.
    """
    try:
        from liftpy.client.traced import ClientSpans
    except ImportError as error:
        raise ConfigError(f"Spans need OpenTelemetry. Install it with `pip install 'liftpy[trace]'`. ({error})") from None
    if _HEADERS not in batch.columns:
        raise ConfigError("The batch has no column headers. Read the stream with the option includeHeaders=true.")
    created, (partition, offset) = _created_in(batch)
    with ClientSpans(trace, Counter()).process(stream, partition, created, offset, None) as span:
        yield span


def _created_in(batch: DataFrame) -> tuple[tuple[TraceContext, ...], tuple[int, int]]:
    """Contexts, each once, and (partition, offset) of the first record that bears one."""
    from pyspark.sql import functions

    marked = functions.exists(_HEADERS, lambda header: header["key"] == TRACEPARENT)
    found: dict[TraceContext, tuple[int, int]] = {}
    for row in batch.where(marked).select("partition", "offset", _HEADERS).limit(MOST_READ_LINKS).collect():
        context = created_in(tuple((header["key"], bytes(header["value"])) for header in row[_HEADERS]))
        if context is not None:
            found.setdefault(context, (row["partition"], row["offset"]))
    return tuple(found), next(iter(found.values()), (0, 0))
