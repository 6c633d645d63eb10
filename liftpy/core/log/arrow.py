"""Converts record batches into Arrow with NumPy, without a Python loop over records. Only this module imports pyarrow.

A column of several batches is concatenated once. For a single uncompressed batch nothing is copied. ``to_arrow``
returns the columns of the log. ``ARRAYS`` has the builders for other schemas, such as Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liftpy.core.wire.batch import RecordBatch
from liftpy.core.wire.batch_columns import BytesColumn
from liftpy.errors import ConfigError

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    raise ConfigError("Arrow needs pyarrow, which is not installed. Install it with: pip install 'liftpy[arrow]'") from error

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ns", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("leader_epoch", pa.int64(), nullable=False),
    ]
)
r"""Columns of ``to_arrow``, one row per record. Bytes of subjects and header names that are not UTF-8 become ``\xe9``."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Part of one batch: its records with indexes ``first_index`` (inclusive) to ``end_index`` (exclusive)."""

    batch: RecordBatch
    first_index: int
    end_index: int

    @property
    def record_count(self) -> int:
        return self.end_index - self.first_index


def to_arrow(
    batches: Iterable[RecordBatch],
    *,
    columns: Sequence[str] = tuple(SCHEMA.names),
    from_offset: int | None = None,
    end_offset: int | None = None,
) -> pa.RecordBatch:
    """Return one Arrow RecordBatch of the records with ``from_offset`` <= offset < ``end_offset``, without control batches.

    ``columns``: names of the columns to return, from ``SCHEMA``. ``from_offset`` and ``end_offset``: None: no limit.

    Raises CorruptionError for a batch whose columns do not fit its header, ValueError for 2 GiB or more in one column.
    """
    of_applications = (batch for batch in batches if not batch.header.control)
    group = [rows for batch in of_applications if (rows := _rows(batch, from_offset, end_offset)).record_count]
    return rows_to_arrow(group, columns)


def rows_to_arrow(group: Sequence[Rows], columns: Sequence[str] = tuple(SCHEMA.names)) -> pa.RecordBatch:
    """Return one Arrow RecordBatch of all rows of ``group``. ``columns``: names of the columns to return, from ``SCHEMA``.

    Raises the errors of ``to_arrow``.
    """
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([ARRAYS[name](group) for name in columns], schema=schema)


def _rows(batch: RecordBatch, from_offset: int | None, end_offset: int | None) -> Rows:
    """Return those records of ``batch`` with ``from_offset`` <= offset < ``end_offset``. None: no limit.

    The function decodes the offsets only if a limit lies inside the batch.
    """
    first, end = 0, batch.record_count
    if from_offset is not None and batch.base_offset < from_offset:
        first = int(np.searchsorted(batch.offsets(), from_offset))
    if end_offset is not None and batch.next_offset > end_offset:
        end = int(np.searchsorted(batch.offsets(), end_offset))
    return Rows(batch, first, max(first, end))


@dataclass(frozen=True, slots=True)
class _ColumnPart:
    """Part of one column: its entries ``first`` (inclusive) to ``end`` (exclusive). If ``column`` is None, all of them are null."""

    column: BytesColumn | None
    first: int
    end: int


def _column_parts(group: Sequence[Rows], column: Callable[[RecordBatch], BytesColumn | None]) -> list[_ColumnPart]:
    return [_ColumnPart(column(rows.batch), rows.first_index, rows.end_index) for rows in group]


def _bytes_array(parts: Sequence[_ColumnPart], kind: pa.DataType) -> pa.Array:
    count = sum(part.end - part.first for part in parts)
    offsets = np.zeros(count + 1, dtype=np.int32)
    data: list[memoryview] = []
    row = size_bytes = 0
    for part in parts:
        rows = part.end - part.first
        into = offsets[row + 1 : row + rows + 1]
        if part.column is None or not rows:
            into[:] = size_bytes
        else:
            ends = part.column.ends
            start, stop = int(ends[part.first - 1]) if part.first else 0, int(ends[part.end - 1])
            if size_bytes + stop - start >= 1 << 31:
                raise ValueError("A column of an Arrow batch would be larger than 2 GiB. Read fewer records at once.")
            np.add(ends[part.first : part.end], np.int64(size_bytes - start), out=into, casting="unsafe")
            data.append(part.column.data[start:stop])
            size_bytes += stop - start
        row += rows
    array = pa.Array.from_buffers(kind, count, [_validity(parts), pa.py_buffer(offsets), _one_buffer(data)])
    return _to_text_array(array) if pa.types.is_string(kind) else array


def _to_text_array(array: pa.Array) -> pa.Array:
    r"""Return the Arrow array of bytes ``array`` as an array of strings. A byte that is not UTF-8 becomes text such as ``\xe9``."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([_decode_text(entry) for entry in array.cast(pa.binary()).to_pylist()], pa.string())
    return array


def _decode_text(entry: bytes | None) -> str | None:
    return None if entry is None else entry.decode("utf-8", "backslashreplace")


def _one_buffer(pieces: Sequence[memoryview]) -> pa.Buffer:
    if len(pieces) < 2:
        return pa.py_buffer(pieces[0] if pieces else b"")
    return pa.py_buffer(np.concatenate([np.frombuffer(piece, dtype=np.uint8) for piece in pieces]))  # faster than bytes.join


def _validity(parts: Sequence[_ColumnPart]) -> pa.Buffer | None:
    if all(part.column is not None and part.column.validity is None for part in parts):
        return None
    valid = [
        np.zeros(part.end - part.first, dtype=np.bool_) if part.column is None else part.column.valid()[part.first : part.end]
        for part in parts
    ]
    return _bitmap(np.concatenate(valid))


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def arrow_array_of(numbers: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of the 64-bit type ``kind`` that uses the memory of ``numbers``, without a copy."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def timestamps_ns(group: Sequence[Rows]) -> NDArray[np.int64]:
    """Return the timestamps of all records of ``group`` as int64[number of records], in nanoseconds since 1970."""
    return _concat_numbers([rows.batch.timestamps_ns()[rows.first_index : rows.end_index] for rows in group])


def _concat_numbers(pieces: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)


def _offsets(group: Sequence[Rows]) -> pa.Array:
    return arrow_array_of(
        _concat_numbers([rows.batch.offsets()[rows.first_index : rows.end_index] for rows in group]), pa.int64()
    )


def _timestamps(group: Sequence[Rows]) -> pa.Array:
    return arrow_array_of(timestamps_ns(group), SCHEMA.field("timestamp").type)


def _keys(group: Sequence[Rows]) -> pa.Array:
    return _bytes_array(_column_parts(group, lambda batch: batch.columns.keys), pa.binary())


def _values(group: Sequence[Rows]) -> pa.Array:
    return _bytes_array(_column_parts(group, lambda batch: batch.columns.values), pa.binary())


def _headers(group: Sequence[Rows]) -> pa.Array:
    """Return one list of (name, value) per record, in order, with repeated names. Null for a record without headers."""
    if all(rows.batch.columns.headers is None for rows in group):
        return pa.nulls(sum(rows.record_count for rows in group), HEADERS)
    names: list[_ColumnPart] = []
    values: list[_ColumnPart] = []
    counts: list[NDArray[np.int64]] = []
    for rows in group:
        column = rows.batch.columns.headers
        if column is None:
            counts.append(np.zeros(rows.record_count, dtype=np.int64))
            continue
        ends = np.concatenate(([0], column.ends)).astype(np.int64)[rows.first_index : rows.end_index + 1]
        counts.append(np.diff(ends))
        names.append(_ColumnPart(column.names, int(ends[0]), int(ends[-1])))
        values.append(_ColumnPart(column.values, int(ends[0]), int(ends[-1])))
    per_record = _concat_numbers(counts)
    offsets = np.concatenate(([0], np.cumsum(per_record))).astype(np.int32)
    pairs = pa.StructArray.from_arrays(
        [_bytes_array(names, pa.string()), _bytes_array(values, pa.binary())], fields=list(HEADERS.value_type)
    )
    return pa.Array.from_buffers(HEADERS, len(per_record), [_bitmap(per_record > 0), pa.py_buffer(offsets)], children=[pairs])


def _subjects(group: Sequence[Rows]) -> pa.Array:
    """Return the subject of every record, '' if none was stored."""
    if (subject := _only_subject(group)) is not None:
        return pa.repeat(pa.scalar(_decode_text(subject), pa.string()), sum(rows.record_count for rows in group))
    entries: list[_ColumnPart] = []
    indices: list[NDArray[np.int64]] = []
    entry_count = 0
    for rows in group:
        column = rows.batch.columns.subjects
        if column is None:
            indices.append(np.full(rows.record_count, -1, dtype=np.int64))
            continue
        entries.append(_ColumnPart(column.entries, 0, len(column.entries.ends)))
        indices.append(column.index[rows.first_index : rows.end_index].astype(np.int64) + entry_count)
        entry_count += len(column.entries.ends)
    index = _concat_numbers(indices)
    texts = pa.concat_arrays([_bytes_array(entries, pa.string()), pa.array([""])])
    return texts.take(pa.array(np.where(index < 0, entry_count, index)))


def _only_subject(group: Sequence[Rows]) -> bytes | None:
    subjects: set[bytes] = set()
    for rows in group:
        column = rows.batch.columns.subjects
        if column is not None and len(column.entries.ends) > 1:
            return None
        subjects.add(bytes(column.entries.data) if column is not None else b"")
    return subjects.pop() if len(subjects) == 1 else None


def _leader_epochs(group: Sequence[Rows]) -> pa.Array:
    epochs = np.array([rows.batch.leader_epoch for rows in group], dtype=np.int64)
    return arrow_array_of(np.repeat(epochs, [rows.record_count for rows in group]), pa.int64())


ARRAYS: dict[str, Callable[[Sequence[Rows]], pa.Array]] = {
    "offset": _offsets,
    "timestamp": _timestamps,
    "key": _keys,
    "value": _values,
    "headers": _headers,
    "subject": _subjects,
    "leader_epoch": _leader_epochs,
}
"""Column name of ``SCHEMA`` -> the builder of its Arrow array."""
