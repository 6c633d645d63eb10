"""Records by columns: what a sender has as arrays becomes batches, without a Python statement for each record. Pure.

Arrow's buffers are such arrays already: offsets, bytes, validity. A batch is cut out of them by slices and subtractions of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liftpy.config import Codec
from liftpy.core.wire.batch import Body, sized_body
from liftpy.core.wire.batch_columns import BytesColumn, Columns, ColumnSet, HeadersColumn, laid_out_bytes, laid_out_headers
from liftpy.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class ByteArray:
    """Entries of bytes. ``offsets``: int64[count + 1]: where in ``data`` each begins, and the last one ends. ``valid``: bool[count],
    False where an entry is null, which has no bytes then; None: none is."""

    offsets: NDArray[np.int64]
    data: memoryview
    valid: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, entries: Sequence[bytes | None]) -> ByteArray:
        """Return the column of these Python objects."""
        lengths = np.fromiter((len(entry or b"") for entry in entries), dtype=np.int64, count=len(entries))
        valid = np.fromiter((entry is not None for entry in entries), dtype=np.bool_, count=len(entries))
        data = memoryview(b"".join([entry or b"" for entry in entries]))
        return cls(np.concatenate(([0], np.cumsum(lengths))), data, None if valid.all() else valid)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64[count]: the size in bytes of each."""
        return self.offsets[1:] - self.offsets[:-1]

    def column(self, start: int, end: int) -> BytesColumn:
        """The entries from ``start`` (inclusive) to ``end`` (exclusive), less than 2 GiB."""
        first, last = int(self.offsets[start]), int(self.offsets[end])
        ends = (self.offsets[start + 1 : end + 1] - first).astype(np.uint32)
        validity = None
        if self.valid is not None and not self.valid[start:end].all():
            validity = memoryview(np.packbits(self.valid[start:end], bitorder="little").tobytes())
        return BytesColumn(ends, self.data[first:last], validity)


@dataclass(frozen=True, slots=True, eq=False)
class HeaderArray:
    """Headers of records. ``offsets``: int64[count + 1]: which pairs are those of each record; ``names`` and ``values``: of all pairs,
    in order; neither has nulls."""

    offsets: NDArray[np.int64]
    names: ByteArray
    values: ByteArray

    def column(self, start: int, end: int) -> HeadersColumn:
        """Return the headers of the records from ``start`` (inclusive) to ``end`` (exclusive)."""
        first, last = int(self.offsets[start]), int(self.offsets[end])
        ends = (self.offsets[start + 1 : end + 1] - first).astype(np.uint32)
        return HeadersColumn(ends, self.names.column(first, last), self.values.column(first, last))


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """Values, and keys and headers of as many records; None: no record has any. Raises ConfigError if they are not as many."""

    values: ByteArray
    keys: ByteArray | None = None
    headers: HeaderArray | None = None

    def __post_init__(self) -> None:
        counts = [len(column.offsets) - 1 for column in (self.keys, self.headers) if column is not None]
        if any(count != len(self.values) for count in counts):
            raise ConfigError(
                f"The columns have different lengths: {counts} entries for {len(self.values)} values. Pass one entry per value."
            )

    def __len__(self) -> int:
        return len(self.values)

    def sizes(self, record_bytes: int) -> NDArray[np.int64]:
        """int64[count]: about what each record takes, with ``record_bytes`` for itself and for each of its headers."""
        sizes = self.values.lengths + record_bytes
        if self.keys is not None:
            sizes = sizes + self.keys.lengths
        if self.headers is not None:
            pairs = np.concatenate(([0], np.cumsum(self.headers.names.lengths + self.headers.values.lengths + record_bytes)))
            sizes = sizes + np.diff(pairs[self.headers.offsets])
        return sizes

    def cut(self, start: int, end: int) -> ColumnSet:
        """The columns of a batch of the records from ``start`` (inclusive) to ``end`` (exclusive)."""
        keys = None if self.keys is None else self.keys.column(start, end)
        if keys is not None and self.keys is not None and self.keys.valid is not None and not self.keys.valid[start:end].any():
            keys = None
        headers = None if self.headers is None else self.headers.column(start, end)
        if headers is not None and not len(headers.names.ends):
            headers = None
        return ColumnSet(self.values.column(start, end), keys, headers)


def body_of(columns: ColumnSet) -> Body:
    """The body of a batch of these values, keys and headers; raises BatchTooLargeError."""
    present, pieces = Columns.NONE, laid_out_bytes(columns.values)
    if columns.values.validity is not None:
        present |= Columns.VALUE_NULLS
    if columns.keys is not None:
        present |= Columns.KEYS | (Columns.NONE if columns.keys.validity is None else Columns.KEY_NULLS)
        pieces += laid_out_bytes(columns.keys)
    if columns.headers is not None:
        present |= Columns.HEADERS
        pieces += laid_out_headers(columns.headers)
    return sized_body(pieces, present, len(columns.values.ends), Codec.NONE)
