"""Which messages of a batch are traced: one search in the names of all its headers, before anything else is looked at. Pure.

Where it finds nothing, and that is nearly always, no record has been met. Else numpy finds the values, and Python sees the first few
that are sampled.
"""

from __future__ import annotations

import numpy as np

from liftpy.errors import CorruptionError
from liftpy.trace.context import SAMPLED, TRACEPARENT, TRACEPARENT_BYTES, TraceContext, parse_traceparent
from liftpy.wire.batch import parse_batch
from liftpy.wire.batch_columns import BytesColumn, Columns, HeadersColumn

MOST_LINKS = 32
"""Contexts of one batch; those of further messages are not looked for."""
_NAME = TRACEPARENT.encode()
_LAST_FLAG = 54
"""Where the lower of the two digits of the flags stands."""
_NINE = ord("9")
_MOST_PARSED = 4 * MOST_LINKS
"""Values of one batch that look sampled and may turn out malformed."""


def traced_in(batch: bytes) -> tuple[TraceContext, ...]:
    """Sampled contexts of the first messages of ``batch`` that bear one, at most ``MOST_LINKS``, in their order, each once."""
    parsed = parse_batch(batch, verify=False)  # it was sealed a moment ago
    if Columns.HEADERS not in Columns(parsed.header.column_bits):
        return ()
    try:
        headers = parsed.columns.headers
    except CorruptionError:  # of what its publisher has compressed; readers are told
        return ()
    return () if headers is None else sampled_in(headers)


def sampled_in(headers: HeadersColumn) -> tuple[TraceContext, ...]:
    """The same of a column."""
    names = bytes(headers.names.data)
    if names.find(_NAME) < 0:
        return ()
    found: dict[TraceContext, None] = {}
    for value in _sampled_values(headers, names)[:_MOST_PARSED]:
        context = parse_traceparent(value)
        if context is not None and context.sampled:
            found[context] = None
            if len(found) == MOST_LINKS:
                break
    return tuple(found)


def _sampled_values(headers: HeadersColumn, names: bytes) -> list[bytes]:
    """Of the headers with that name, whose flags look sampled."""
    name_starts, name_sizes = _places(headers.names)
    value_starts, value_sizes = _places(headers.values)
    pairs = np.flatnonzero((name_sizes == len(_NAME)) & (value_sizes >= TRACEPARENT_BYTES))
    letters, values = np.frombuffer(names, dtype=np.uint8), np.frombuffer(headers.values.data, dtype=np.uint8)
    written = letters[name_starts[pairs, None] + np.arange(len(_NAME))]
    pairs = pairs[(written == np.frombuffer(_NAME, dtype=np.uint8)).all(axis=1)]
    digit = values[value_starts[pairs] + _LAST_FLAG]
    bit = (digit ^ (digit > _NINE)) & SAMPLED  # in ASCII '0' is even, and 'a', which stands for ten, is odd
    pairs = pairs[bit == SAMPLED][:_MOST_PARSED]
    data, starts, sizes = bytes(headers.values.data), value_starts[pairs].tolist(), value_sizes[pairs].tolist()
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _places(
    column: BytesColumn,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """(starts, sizes), int64 each."""
    ends = column.ends.astype(np.int64)
    starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    return starts, ends - starts
