"""The headers of a small batch, read without making columns, which would be most of what taking it costs. Pure."""

from __future__ import annotations

import struct
from itertools import pairwise

from liftpy.core.wire.batch_columns import Columns
from liftpy.errors import CorruptionError

FEW = 16
"""Up to so many records it is faster than columns."""


def few_headers(body: memoryview, count: int, present: Columns) -> list[tuple[int, bytes, bytes]]:
    """(index of the record, name, value), in their order, of a body that has headers and ``count`` records, at least one;
    CorruptionError where they do not fit in it."""
    position = 0
    try:
        for nulls, is_there in ((Columns.VALUE_NULLS, True), (Columns.KEY_NULLS, Columns.KEYS in present)):
            if is_there:
                if nulls in present:
                    position += _padded((count + 7) // 8)
                (size_bytes,) = struct.unpack_from("<I", body, position + 4 * (count - 1))
                position += _padded(4 * count) + _padded(size_bytes)
        ends = struct.unpack_from(f"<{count}I", body, position)
        position += _padded(4 * count)
        names, position = _texts(body, position, ends[-1])
        values, _ = _texts(body, position, ends[-1])
    except struct.error as error:
        raise CorruptionError(
            f"Damaged batch: its headers end beyond the batch: {error}. Read it from another replica."
        ) from None
    found, first = [], 0
    for record, end in enumerate(ends):
        if not first <= end <= ends[-1]:
            raise CorruptionError(
                "Damaged batch: the end positions of a column are not ascending. Read it from another replica."
            )
        found += [(record, names[pair], values[pair]) for pair in range(first, end)]
        first = end
    return found


def _texts(body: memoryview, position: int, count: int) -> tuple[list[bytes], int]:
    if position + 4 * count > len(body):
        raise CorruptionError(f"Damaged batch: it is too small for {count} headers. Read it from another replica.")
    ends = struct.unpack_from(f"<{count}I", body, position)
    position += _padded(4 * count)
    size_bytes = ends[-1] if count else 0
    if position + size_bytes > len(body) or any(end < before for before, end in pairwise(ends)):
        raise CorruptionError("Damaged batch: its headers do not fit. Read it from another replica.")
    data = bytes(body[position : position + size_bytes])
    return [data[start:end] for start, end in pairwise((0, *ends))], position + _padded(size_bytes)


def _padded(size_bytes: int) -> int:
    return size_bytes + -size_bytes % 8
