"""Rows that a task writes to a stream: their columns, order and partitions. Pure.

The functions work on Arrow columns. Only rows with equal keys and values and with headers are compared in Python.

The rows are ordered by content, key first. So equal rows have one order, whatever order a shuffle gave them. The column
``partition`` chooses the partition of a row, or else Kafka's hash of its key. Rows without both go to the partitions in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from liftpy.core.base.ids import check_published, quote
from liftpy.core.wire.batch import ByteArray, HeaderArray, RecordColumns
from liftpy.core.wire.partitioner import partitions_of_column
from liftpy.errors import ConfigError
from liftpy.spark.options import NO_TABLES
from liftpy.spark.schema import did_you_mean

_BYTES = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
_TEXT = (pa.string(), pa.large_string())
_LARGE_HEADERS = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
_LARGE = {"key": pa.large_binary(), "value": pa.large_binary(), "headers": _LARGE_HEADERS, "stream": pa.large_string()}
"""Column -> type with 64-bit offsets. The rows of a task may have more than 2 GiB in one column."""
WRITTEN: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "key": ("binary or string", lambda kind: kind in _BYTES),
    "value": ("binary or string", lambda kind: kind in _BYTES),
    "headers": ("array<struct<key string, value binary>>", lambda kind: _is_headers(kind)),
    "stream": ("string", lambda kind: kind in _TEXT),
    "topic": ("string", lambda kind: kind in _TEXT),
    "partition": ("int", lambda kind: kind == pa.int32()),
}
"""Column -> name of its type for errors, and a function that checks an Arrow type."""


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
        return False
    pair = kind.value_type
    if not pa.types.is_struct(pair) or [field.name for field in pair] != ["key", "value"]:
        return False
    return pair.field("key").type in _TEXT and pair.field("value").type in _BYTES


def check_schema(schema: pa.Schema, *, stream: str) -> None:
    """Raise ConfigError unless rows of ``schema`` can be written. ``stream``: target stream. '': a column has it."""
    for field in schema:
        if field.name not in WRITTEN:
            near = did_you_mean(field.name, WRITTEN)
            text = f"Unknown column {quote(field.name)}{near or '.'} Select only columns that a stream has:"
            raise ConfigError(f"{text} {', '.join(WRITTEN)}")
        words, fits = WRITTEN[field.name]
        if not fits(field.type):
            raise ConfigError(f"Column {field.name} must be {words}, but it is {field.type}. Cast it.")
    names = schema.names
    if "value" not in names:
        raise ConfigError("The column value is missing. Add it, for example with select(to_json(struct(*)) as value).")
    if len(set(names)) != len(names):
        raise ConfigError(f"Some columns occur twice: {', '.join(names)}. Rename or drop them.")
    if "stream" in names and "topic" in names:
        raise ConfigError("The columns stream and topic have the same meaning. Drop one of them.")
    if not stream and "stream" not in names and "topic" not in names:
        raise ConfigError(
            f"The target stream is missing. Use save(NAME) or start(NAME), the option stream, or a column stream. {NO_TABLES}"
        )


def as_binary(batch: pa.RecordBatch) -> pa.Table:
    """Return the rows of ``batch`` in a standard form.

    Keys and values are bytes, the columns have a fixed order, and ``topic`` is renamed to ``stream``. Columns of variable size
    have 64-bit offsets.
    """
    columns = {("stream" if name == "topic" else name): batch.column(name) for name in sorted(batch.schema.names)}
    return pa.table({name: column.cast(_LARGE[name]) if name in _LARGE else column for name, column in columns.items()})


def check_rows(rows: pa.Table, *, stream: str, tombstones: bool) -> None:
    """Raise ConfigError if a column has a null that it must not have.

    Args:
        rows: Rows of a task.
        stream: Name of the stream. '': the column ``stream`` names it.
        tombstones: True if a null value is a tombstone.
    """
    nulls = rows["value"].null_count
    if nulls and not tombstones:
        text = "A null value is a tombstone: it deletes its key in a compacted stream. To write tombstones, set nullValues = tombstone."
        raise ConfigError(f"{nulls} rows have a null value. {text}")
    if not stream and rows["stream"].null_count:
        raise ConfigError(
            f"{rows['stream'].null_count} rows have null in the column stream, and the option stream is not set. "
            "Filter these rows, or set the option."
        )
    if "headers" in rows.column_names:
        pairs = pc.list_flatten(rows["headers"])
        if pairs.null_count or pc.struct_field(pairs, "key").null_count or pc.struct_field(pairs, "value").null_count:
            raise ConfigError("Some headers are null, or have a null key or value. Filter or replace them.")


def by_stream(rows: pa.Table, stream: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield (name, rows) of each stream, sorted by name. ``stream``: name of the only stream. '': the column ``stream`` has the name.

    Raises InvalidNameError.
    """
    if stream:
        yield stream, rows
        return
    for name in sorted(pc.unique(rows["stream"]).to_pylist()):
        check_published(name)
        yield name, rows.filter(pc.equal(rows["stream"], name))


def in_order(rows: pa.Table) -> pa.Table:
    """Return the rows sorted by key, value and headers, nulls last."""
    names = [name for name in ("key", "value") if name in rows.column_names]
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])).combine_chunks()
    if "headers" not in rows.column_names or rows.num_rows < 2:
        return rows
    alike = np.ones(rows.num_rows - 1, dtype=np.bool_)
    for name in names:
        one, other = rows[name].slice(1), rows[name].slice(0, rows.num_rows - 1)
        same = pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other)))
        alike &= same.to_numpy(zero_copy_only=False) if isinstance(same, pa.Array) else same.to_numpy()
    tied = np.flatnonzero(np.concatenate((alike, [False])) | np.concatenate(([False], alike)))
    if not len(tied):
        return rows
    group = np.cumsum(np.concatenate(([True], ~alike)))[tied].tolist()
    pairs = [repr(own or []) for own in rows["headers"].take(tied).to_pylist()]
    order = np.arange(rows.num_rows)
    order[tied] = tied[sorted(range(len(tied)), key=lambda i: (group[i], pairs[i]))]
    return rows.take(order)


def places_of(rows: pa.Table, partitions: int, first: int = 0) -> NDArray[np.int64]:
    """Return the number of the target partition of each row, as an int64 array.

    ``partitions``: number of partitions of the stream. ``first``: partition of the first row that has neither a key nor a partition.
    Raises ConfigError for a partition that the stream does not have.
    """
    count = rows.num_rows
    places = np.full(count, -1, dtype=np.int64)
    if "partition" in rows.column_names:
        places = pc.fill_null(rows["partition"].cast(pa.int64()), -1).to_numpy().copy()
        has_partition = pc.is_valid(rows["partition"]).to_numpy()
        wrong = has_partition & ((places < 0) | (places >= partitions))
        if wrong.any():
            text = f"{int(wrong.sum())} rows name partitions that do not exist, such as {int(places[wrong][0])}"
            raise ConfigError(f"{text}. The stream has the partitions 0 to {partitions - 1}.")
    if "key" in rows.column_names:
        keys = bytes_of(rows["key"])
        by_key = places < 0 if keys.valid is None else (places < 0) & keys.valid
        if by_key.any():
            places = np.where(by_key, partitions_of_column(keys, partitions), places)
    in_turn = np.flatnonzero(places < 0)
    places[in_turn] = (np.arange(len(in_turn)) + first) % partitions
    return places


def shares_of(rows: pa.Table, places: NDArray[np.int64]) -> Iterator[tuple[int, RecordColumns]]:
    """Yield (number, records) of each partition that gets rows, by number. ``places``: partition of each row."""
    order = np.argsort(places, kind="stable")
    ends = np.cumsum(np.bincount(places)).tolist()
    start = 0
    for place, end in enumerate(ends):
        if end > start:
            yield place, _records(rows.take(order[start:end]))
        start = end


def _records(rows: pa.Table) -> RecordColumns:
    keys = bytes_of(rows["key"]) if "key" in rows.column_names else None
    headers = _headers(rows["headers"]) if "headers" in rows.column_names else None
    return RecordColumns(bytes_of(rows["value"]), keys, headers)


def bytes_of(column: pa.ChunkedArray | pa.Array) -> ByteArray:
    """Return the Arrow column as a ByteArray, which shares the memory of Arrow's buffers."""
    array = _one(column).cast(pa.large_binary())
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False) if array.null_count else None
    if array.null_count:
        array = pc.fill_null(array, b"")  # the bytes under a null are not sent
    _, offsets, data = array.buffers()
    if offsets is None:
        return ByteArray(np.zeros(len(array) + 1, dtype=np.int64), memoryview(b""), valid)
    offsets_in_array = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    return ByteArray(offsets_in_array, memoryview(b"" if data is None else data).cast("B"), valid)


def _headers(column: pa.ChunkedArray) -> HeaderArray:
    array = _one(column)
    counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = pc.list_flatten(array)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return HeaderArray(offsets, bytes_of(pc.struct_field(pairs, "key")), bytes_of(pc.struct_field(pairs, "value")))


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else (pa.array([], type=column.type))
    )
