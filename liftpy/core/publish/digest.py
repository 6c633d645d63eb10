"""``RollingDigest``: a digest of a producer's records in sequence order, independent of their batches. 36 bytes. Pure.

A producer that repeats its records must repeat the same ones. The digest detects differences before anything is stored.
It consists of nine CRC-32C values, one for each kind of column: sizes and bytes of values and keys, header counts, and
sizes and bytes of header names and values.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

import crc32c
import numpy as np
from numpy.typing import NDArray

from liftpy.core.wire.batch_columns import BytesColumn, ColumnSet
from liftpy.errors import ProtocolError

_FORMAT = struct.Struct("<9I")
_NULL = 0xFFFF_FFFF
DIGEST_BYTES = _FORMAT.size


class RollingDigest(NamedTuple):
    """Digest of a producer's records in sequence order: one CRC-32C for each kind of column."""

    value_sizes: int = 0
    values: int = 0
    key_sizes: int = 0
    keys: int = 0
    header_counts: int = 0
    name_sizes: int = 0
    names: int = 0
    header_value_sizes: int = 0
    header_values: int = 0

    def over(self, columns: ColumnSet, start: int, end: int) -> RollingDigest:
        """Return this digest extended by the records of a batch with indexes ``start`` (inclusive) to ``end`` (exclusive)."""
        value_sizes, values = _over(columns.values, start, end, self.value_sizes, self.values)
        key_sizes, keys = _over(columns.keys, start, end, self.key_sizes, self.keys)
        headers = columns.headers
        if headers is None:
            counts, first, last = bytes(4 * (end - start)), 0, 0
        else:
            counts = _lengths(headers.ends, start, end).tobytes()
            first, last = _bounds(headers.ends, start, end)
        name_sizes, names = self.name_sizes, self.names
        header_value_sizes, header_values = self.header_value_sizes, self.header_values
        if headers is not None:
            name_sizes, names = _over(headers.names, first, last, name_sizes, names)
            header_value_sizes, header_values = _over(headers.values, first, last, header_value_sizes, header_values)
        header_counts = crc32c.crc32c(counts, self.header_counts)
        return RollingDigest(
            value_sizes, values, key_sizes, keys, header_counts, name_sizes, names, header_value_sizes, header_values
        )

    def encode(self) -> bytes:
        return _FORMAT.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the digest that ``encode`` has encoded as ``data``. Raises ProtocolError for another length."""
        if len(data) != DIGEST_BYTES:
            raise ProtocolError(f"a digest has {DIGEST_BYTES} bytes, not {len(data)}")
        return cls(*_FORMAT.unpack(data))


def _over(column: BytesColumn | None, start: int, end: int, sizes_crc: int, data_crc: int) -> tuple[int, int]:
    if column is None:
        return crc32c.crc32c(b"\xff" * (4 * (end - start)), sizes_crc), data_crc
    sizes = _lengths(column.ends, start, end)
    if column.validity is not None:
        sizes[~column.valid()[start:end]] = _NULL
    first, last = _bounds(column.ends, start, end)
    return crc32c.crc32c(sizes.tobytes(), sizes_crc), crc32c.crc32c(column.data[first:last], data_crc)


def _lengths(ends: NDArray[np.uint32], start: int, end: int) -> NDArray[np.uint32]:
    lengths = ends[start:end].astype("<u4")
    if end > start:
        lengths[1:] -= ends[start : end - 1]
        lengths[0] -= ends[start - 1] if start else np.uint32(0)
    return lengths


def _bounds(ends: NDArray[np.uint32], start: int, end: int) -> tuple[int, int]:
    return int(ends[start - 1]) if start else 0, int(ends[end - 1]) if end else 0
