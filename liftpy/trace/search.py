"""Which messages of a batch are traced: one search in the names of all its headers, before anything else is looked at. Pure.

Where it finds nothing, and that is nearly always, no record has been met. Else numpy finds the values, and Python sees the first few
that are sampled.
"""

from __future__ import annotations

import numpy as np

from liftpy.config import Codec
from liftpy.errors import CorruptionError
from liftpy.trace.context import SAMPLED, TRACEPARENT, TRACEPARENT_BYTES, TraceContext, parse_traceparent
from liftpy.wire.batch import parse_batch
from liftpy.wire.batch_columns import BytesColumn, Columns, HeadersColumn

MOST_LINKS = 32
"""Contexts of one batch; those of further messages are not looked for."""
MOST_READ_LINKS = 64
"""The same of a batch that is read."""
_NAME = TRACEPARENT.encode()
_LAST_FLAG = 54
"""Where the lower of the two digits of the flags stands."""
_NINE = ord("9")
_PARSED_A_LINK = 4
"""So many values that look sampled and may turn out malformed."""


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


def may_bear(batch: bytes) -> bool:
    """Whether a message of ``batch`` may be traced, by one search in its bytes; for whoever can't follow it and counts. Of one that is
    compressed: whether it has headers."""
    header = parse_batch(batch, verify=False).header
    return Columns.HEADERS in Columns(header.column_bits) and (header.codec is not Codec.NONE or batch.find(_NAME) >= 0)


def names_one(headers: HeadersColumn) -> bool:
    """Whether a message may be traced, of a column: by one search in its names."""
    return bytes(headers.names.data).find(_NAME) >= 0


def sampled_in(
    headers: HeadersColumn, first: int = 0, end: int | None = None, most: int = MOST_LINKS
) -> tuple[TraceContext, ...]:
    """The same of a column: of its records ``first`` (inclusive) to ``end`` (exclusive; None: to the last)."""
    names = bytes(headers.names.data)
    if names.find(_NAME) < 0:
        return ()
    begin = int(headers.ends[first - 1]) if first else 0
    behind = int(headers.ends[-1 if end is None else end - 1])
    found: dict[TraceContext, None] = {}
    for value in _sampled_values(headers, names, begin, behind, most * _PARSED_A_LINK):
        context = parse_traceparent(value)
        if context is not None and context.sampled:
            found[context] = None
            if len(found) == most:
                break
    return tuple(found)


def _sampled_values(headers: HeadersColumn, names: bytes, begin: int, end: int, most: int) -> list[bytes]:
    """Of the pairs ``begin`` (inclusive) to ``end`` (exclusive) with that name, whose flags look sampled."""
    name_starts, name_sizes = _places(headers.names)
    value_starts, value_sizes = _places(headers.values)
    fits = (name_sizes[begin:end] == len(_NAME)) & (value_sizes[begin:end] >= TRACEPARENT_BYTES)
    pairs = np.flatnonzero(fits) + begin
    letters, values = np.frombuffer(names, dtype=np.uint8), np.frombuffer(headers.values.data, dtype=np.uint8)
    written = letters[name_starts[pairs, None] + np.arange(len(_NAME))]
    pairs = pairs[(written == np.frombuffer(_NAME, dtype=np.uint8)).all(axis=1)]
    digit = values[value_starts[pairs] + _LAST_FLAG]
    bit = (digit ^ (digit > _NINE)) & SAMPLED  # in ASCII '0' is even, and 'a', which stands for ten, is odd
    pairs = pairs[bit == SAMPLED][:most]
    data, starts, sizes = bytes(headers.values.data), value_starts[pairs].tolist(), value_sizes[pairs].tolist()
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _places(
    column: BytesColumn,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """(starts, sizes), int64 each."""
    ends = column.ends.astype(np.int64)
    starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    return starts, ends - starts
