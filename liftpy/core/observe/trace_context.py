"""Trace contexts of messages (W3C ``traceparent``), spans, and the limit for spans. Pure.

An invalid ``traceparent`` is ignored: the message is stored and forwarded unchanged, and no span is made for it. The sender
of a message adds its context to the headers. A header that exists is never changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from liftpy.core.base.rate_limits import TokenBucket
from liftpy.core.wire.batch_columns import BytesColumn, ColumnSet, HeadersColumn
from liftpy.core.wire.headers import Pairs

TRACEPARENT = "traceparent"
"""Name of the header. Only this spelling counts, as OpenTelemetry's propagators write it."""
TRACEPARENT_BYTES = 55
"""Length of a version 00 header, and minimum length of later versions, in bytes."""
MAX_TRACEPARENT_BYTES = 512
SAMPLED = 0x01
_FIELDS = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
TRACESTATE = "tracestate"
MAX_STATE_BYTES = 512
"""Maximum length of a ``tracestate`` header, in bytes. A longer one is not added to a message."""
Attributes = dict[str, str | int]
SPANS_PER_S = 100.0
"""Maximum number of spans per second of a node, or of a client in each direction."""


class TraceContext(NamedTuple):
    """A trace context. ``trace_id``: 16 bytes, ``span_id``: 8 bytes, neither is 0. ``flags``: 8 bits."""

    trace_id: int
    span_id: int
    flags: int

    @property
    def sampled(self) -> bool:
        return bool(self.flags & SAMPLED)


def parse_traceparent(value: bytes) -> TraceContext | None:
    """Return the trace context in ``value``, None if it is invalid."""
    size, fields = len(value), _FIELDS.match(value)
    if fields is None or size > MAX_TRACEPARENT_BYTES:
        return None
    version, trace_id, span_id, flags = [int(digits, 16) for digits in fields.groups()]
    if version == 0xFF or not trace_id or not span_id:
        return None
    if size > TRACEPARENT_BYTES and (version == 0 or value[TRACEPARENT_BYTES] != 0x2D):
        return None
    return TraceContext(trace_id, span_id, flags)


def traceparent(context: TraceContext) -> bytes:
    """Return the value of the header ``traceparent`` for ``context``, in version 00."""
    return b"00-%032x-%016x-%02x" % context


def has_traceparent(pairs: Pairs) -> bool:
    """Return whether the headers have a ``traceparent``, in upper or lower case."""
    return any(name.lower() == TRACEPARENT for name, _ in pairs)


def sampled_context_in(pairs: Pairs) -> TraceContext | None:
    """Return the first trace context in the headers whose sender records the trace. None: there is none."""
    for name, value in pairs:
        if name == TRACEPARENT and (context := parse_traceparent(value)) is not None and context.sampled:
            return context
    return None


def with_context(pairs: Pairs, context: TraceContext, state: str = "") -> Pairs:
    """Return the headers ``pairs`` with a ``traceparent`` for ``context`` and the ``tracestate`` ``state``.

    If they have a ``traceparent`` already, return them unchanged.
    """
    if has_traceparent(pairs):
        return pairs
    marked = (*pairs, (TRACEPARENT, traceparent(context)))
    if state and len(state) <= MAX_STATE_BYTES and not any(name.lower() == TRACESTATE for name, _ in pairs):
        marked += ((TRACESTATE, state.encode()),)
    return marked


def first_marked(columns: ColumnSet, pairs: Pairs) -> ColumnSet:
    """Return ``columns`` with the trace headers ``pairs`` added to the first record. Unchanged if it has a trace context."""
    had = columns.headers
    added = np.uint32(len(pairs))
    names, values = [name.encode() for name, _ in pairs], [value for _, value in pairs]
    if had is None:
        ends = np.full(len(columns.values.ends), added, dtype=np.uint32)
        return replace(columns, headers=HeadersColumn(ends, _prepend(names), _prepend(values)))
    own = int(had.ends[0])
    if own and TRACEPARENT.encode() in bytes(had.names.data[: int(had.names.ends[own - 1])]).lower():
        return columns
    return replace(columns, headers=HeadersColumn(had.ends + added, _prepend(names, had.names), _prepend(values, had.values)))


def _prepend(entries: list[bytes], column: BytesColumn | None = None) -> BytesColumn:
    """Return a column with ``entries`` followed by those of ``column``, which has no nulls."""
    ends = np.cumsum([len(entry) for entry in entries], dtype=np.uint32)
    if column is None:
        return BytesColumn(ends, memoryview(b"".join(entries)), None)
    return BytesColumn(np.concatenate((ends, column.ends + ends[-1])), memoryview(b"".join((*entries, column.data))), None)


# ---- spans -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Span:
    """One span of a trace. Times are in ns of the wall clock. ``error``: reason of a failure, '' for success."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    error: str = ""


class SpanTree(NamedTuple):
    """A finished root span with its child spans, ready for export.

    ``parent``: parent of the root, in another process. None: the root begins a trace. ``links``: other traces to which the root
    is linked.
    """

    root: Span
    children: tuple[Span, ...] = ()
    parent: TraceContext | None = None
    links: tuple[TraceContext, ...] = ()

    @property
    def size(self) -> int:
        return 1 + len(self.children)


class SpanBudget:
    """Limits how many spans a node or a client exports per second, as a token bucket. A span costs one token.

    Spans above the limit are counted and not created. ``per_s``: number of new tokens per second, and maximum number of tokens.
    """

    def __init__(self, per_s: float = SPANS_PER_S) -> None:
        self._bucket = TokenBucket(per_s, per_s)
        self.dropped = 0
        """Number of spans above the limit since the process began. They were not created, or not exported."""

    def takes(self, spans: int, now_ns: int) -> bool:
        """Take tokens for ``spans`` spans at ``now_ns`` (monotonic). Return False if there are too few.

        In this case no token is taken, and the spans count as dropped.
        """
        if self._bucket.take(spans, now_ns):
            return True
        self.dropped += spans
        return False

    def has(self, spans: int, now_ns: int) -> bool:
        """Return whether there are tokens for ``spans`` spans at ``now_ns`` (monotonic). Take none."""
        return self._bucket.has(spans, now_ns)

    def gives_back(self, spans: int) -> None:
        self._bucket.give_back(spans)
