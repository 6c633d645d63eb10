"""Record batches into Arrow batches of the declared columns, by numpy and buffer slices: no Python per record.

A column of many record batches is joined once: its bytes are concatenated (not even that for a single batch, whose bytes are
handed on in place), its ends shifted. Arrow batches have at most MAX_ROWS rows and about MAX_BYTES: larger ones are slower in
the JVM, much smaller ones cost a fixed price each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from liftpy.client.slices import BatchSlice
from liftpy.spark.schema import COLUMNS, arrow_schema
from liftpy.wire.batch_columns import BytesColumn

MAX_ROWS = 16_384
MAX_BYTES = 16 * 1024 * 1024
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Makes Arrow batches of ``columns`` from slices of one partition of ``stream``."""

    stream: str
    partition: int
    columns: tuple[str, ...]

    def batches(self, pieces: Iterable[BatchSlice]) -> Iterator[pa.RecordBatch]:
        """Arrow batches of all records of ``pieces``, in order."""
        group: list[BatchSlice] = []
        rows = size_bytes = 0
        for piece in _bounded(pieces):
            more_rows, more_bytes = piece.record_count, _size_bytes(piece)
            if group and (rows + more_rows > MAX_ROWS or size_bytes + more_bytes > MAX_BYTES):
                yield self._batch(group)
                group, rows, size_bytes = [], 0, 0
            group.append(piece)
            rows += more_rows
            size_bytes += more_bytes
        if group:
            yield self._batch(group)

    def _batch(self, group: list[BatchSlice]) -> pa.RecordBatch:
        arrays = [_BUILD[name](group, self) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self.columns))


def _size_bytes(piece: BatchSlice) -> int:
    """About how many bytes its records take, before compression."""
    return piece.batch.header.body_size_bytes * piece.record_count // piece.batch.record_count


def _bounded(pieces: Iterable[BatchSlice]) -> Iterator[BatchSlice]:
    """``pieces``, cut where one alone is more than an Arrow batch should be."""
    for piece in pieces:
        parts = min(max(-(-piece.record_count // MAX_ROWS), -(-_size_bytes(piece) // MAX_BYTES)), piece.record_count)
        if parts <= 1:
            yield piece
            continue
        cuts = [piece.first_index + piece.record_count * i // parts for i in range(parts + 1)]
        for first, end in itertools.pairwise(cuts):
            yield replace(piece, first_index=first, end_index=end)


# ---- columns -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Part:
    """Entries ``first`` (inclusive) to ``end`` (exclusive) of ``column``; None: that many nulls."""

    column: BytesColumn | None
    first: int
    end: int


def _of_records(group: Sequence[BatchSlice], column: Callable[[BatchSlice], BytesColumn | None]) -> list[_Part]:
    return [_Part(column(piece), piece.first_index, piece.end_index) for piece in group]


def _bytes_array(parts: Sequence[_Part], kind: pa.DataType) -> pa.Array:
    """One Arrow array of ``kind`` (binary or string) of all the parts' entries."""
    count = sum(part.end - part.first for part in parts)
    offsets = np.zeros(count + 1, dtype=np.int32)
    data: list[memoryview] = []
    row = size_bytes = 0
    for part in parts:
        rows = part.end - part.first
        into = offsets[row + 1 : row + rows + 1]
        if part.column is None:
            into[:] = size_bytes
        else:
            start = int(part.column.ends[part.first - 1]) if part.first else 0
            stop = int(part.column.ends[part.end - 1]) if part.end else 0
            np.add(part.column.ends[part.first : part.end].astype(np.int64), size_bytes - start, out=into, casting="unsafe")
            data.append(part.column.data[start:stop])
            size_bytes += stop - start
        row += rows
    joined = pa.py_buffer(data[0]) if len(data) == 1 else pa.py_buffer(b"".join(data))
    return pa.Array.from_buffers(kind, count, [_validity(parts), pa.py_buffer(offsets), joined])


def _validity(parts: Sequence[_Part]) -> pa.Buffer | None:
    """Arrow's bitmap of the parts' entries, None where there is no null."""
    if all(part.column is not None and part.column.validity is None for part in parts):
        return None
    valid = [
        np.zeros(part.end - part.first, dtype=np.bool_) if part.column is None else part.column.valid()[part.first : part.end]
        for part in parts
    ]
    return _bitmap(np.concatenate(valid))


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _fixed(numbers: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _keys(group: list[BatchSlice], _: RowBuilder) -> pa.Array:
    return _bytes_array(_of_records(group, lambda piece: piece.batch.columns.keys), COLUMNS["key"])


def _values(group: list[BatchSlice], _: RowBuilder) -> pa.Array:
    return _bytes_array(_of_records(group, lambda piece: piece.batch.columns.values), COLUMNS["value"])


def _headers(group: list[BatchSlice], _: RowBuilder) -> pa.Array:
    """Lists of (name, value); null where a record has none, as Spark's Kafka source has it."""
    names: list[_Part] = []
    values: list[_Part] = []
    counts: list[NDArray[np.int64]] = []
    for piece in group:
        column = piece.batch.columns.headers
        if column is None:
            counts.append(np.zeros(piece.record_count, dtype=np.int64))
            continue
        ends = np.concatenate(([0], column.ends)).astype(np.int64)[piece.first_index : piece.end_index + 1]
        counts.append(np.diff(ends))
        names.append(_Part(column.names, int(ends[0]), int(ends[-1])))
        values.append(_Part(column.values, int(ends[0]), int(ends[-1])))
    per_record = np.concatenate(counts)
    offsets = np.concatenate(([0], np.cumsum(per_record))).astype(np.int32)
    kind = COLUMNS["headers"]
    pairs = pa.StructArray.from_arrays(
        [_bytes_array(names, pa.string()), _bytes_array(values, pa.binary())], fields=list(kind.value_type)
    )
    buffers = [_bitmap(per_record > 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(per_record), buffers, children=[pairs])


def _subjects(group: list[BatchSlice], _: RowBuilder) -> pa.Array:
    """The subject of every record; empty where none was stored."""
    entries: list[_Part] = []
    indices: list[NDArray[np.int64]] = []
    entry_count = 0
    for piece in group:
        column = piece.batch.columns.subjects
        if column is None:
            indices.append(np.full(piece.record_count, -1, dtype=np.int64))
            continue
        entries.append(_Part(column.entries, 0, len(column.entries.ends)))
        indices.append(column.index[piece.first_index : piece.end_index].astype(np.int64) + entry_count)
        entry_count += len(column.entries.ends)
    index = np.concatenate(indices)
    texts = pa.concat_arrays([_bytes_array(entries, pa.string()), pa.array([""])])
    return texts.take(pa.array(np.where(index < 0, entry_count, index)))


def _streams(group: list[BatchSlice], builder: RowBuilder) -> pa.Array:
    return pa.repeat(pa.scalar(builder.stream), _count(group))


def _partitions(group: list[BatchSlice], builder: RowBuilder) -> pa.Array:
    return pa.array(np.full(_count(group), builder.partition, dtype=np.int32))


def _offsets(group: list[BatchSlice], _: RowBuilder) -> pa.Array:
    return _fixed(np.concatenate([piece.offsets() for piece in group]), COLUMNS["offset"])


def _timestamps(group: list[BatchSlice], _: RowBuilder) -> pa.Array:
    return _fixed(np.concatenate([piece.timestamps_ns() for piece in group]) // _NS_PER_US, COLUMNS["timestamp"])


def _leader_epochs(group: list[BatchSlice], _: RowBuilder) -> pa.Array:
    counts = [piece.record_count for piece in group]
    epochs = np.array([piece.leader_epoch for piece in group], dtype=np.int64)
    return _fixed(np.repeat(epochs, counts), COLUMNS["leader_epoch"])


def _count(group: list[BatchSlice]) -> int:
    return sum(piece.record_count for piece in group)


_BUILD: dict[str, Callable[[list[BatchSlice], RowBuilder], pa.Array]] = {
    "key": _keys,
    "value": _values,
    "headers": _headers,
    "subject": _subjects,
    "stream": _streams,
    "partition": _partitions,
    "offset": _offsets,
    "timestamp": _timestamps,
    "leader_epoch": _leader_epochs,
}
