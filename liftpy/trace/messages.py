"""The context of a message in its headers: read, and put there by who sends it. A header that is there is never changed. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from liftpy.trace.context import TRACEPARENT, TraceContext, parse_traceparent, traceparent
from liftpy.wire.batch_columns import BytesColumn, ColumnSet, HeadersColumn
from liftpy.wire.headers import Pairs

TRACESTATE = "tracestate"
MAX_STATE_BYTES = 512
"""Of a ``tracestate`` that is put into a message; a longer one is left out."""


def bears_one(pairs: Pairs) -> bool:
    """Whether a message names a context, whatever it says, in letters of whatever case."""
    return any(name.lower() == TRACEPARENT for name, _ in pairs)


def created_in(pairs: Pairs) -> TraceContext | None:
    """The first context that a message bears and whose sender records it; None: there is none."""
    for name, value in pairs:
        if name == TRACEPARENT and (context := parse_traceparent(value)) is not None and context.sampled:
            return context
    return None


def with_context(pairs: Pairs, context: TraceContext, state: str = "") -> Pairs:
    """``pairs``, then ``context`` and its ``tracestate``; as they are where they name a context already."""
    if bears_one(pairs):
        return pairs
    marked = (*pairs, (TRACEPARENT, traceparent(context)))
    if state and len(state) <= MAX_STATE_BYTES and not any(name.lower() == TRACESTATE for name, _ in pairs):
        marked += ((TRACESTATE, state.encode()),)
    return marked


def first_marked(columns: ColumnSet, pairs: Pairs) -> ColumnSet:
    """``columns`` whose first record has ``pairs`` before its other headers; as they are where that names a context already."""
    had = columns.headers
    added = np.uint32(len(pairs))
    names, values = [name.encode() for name, _ in pairs], [value for _, value in pairs]
    if had is None:
        ends = np.full(len(columns.values.ends), added, dtype=np.uint32)
        return replace(columns, headers=HeadersColumn(ends, _before(names), _before(values)))
    own = int(had.ends[0])
    if own and TRACEPARENT.encode() in bytes(had.names.data[: int(had.names.ends[own - 1])]).lower():
        return columns
    return replace(columns, headers=HeadersColumn(had.ends + added, _before(names, had.names), _before(values, had.values)))


def _before(entries: list[bytes], column: BytesColumn | None = None) -> BytesColumn:
    """``entries``, then those of ``column``, which has no nulls."""
    ends = np.cumsum([len(entry) for entry in entries], dtype=np.uint32)
    if column is None:
        return BytesColumn(ends, memoryview(b"".join(entries)), None)
    return BytesColumn(np.concatenate((ends, column.ends + ends[-1])), memoryview(b"".join((*entries, column.data))), None)
