"""The columns of the source: names and the exact Arrow types that Spark requires. Pure.

Spark compares the first RecordBatch with the declared schema for equality (order, names, types, nullability), so both are
made from the one table here. Every column is nullable, timestamps are microseconds in UTC.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import pyarrow as pa

from liftpy.core.base.ids import quote
from liftpy.core.wire.batch_columns import Columns
from liftpy.core.wire.filters import LEAVABLE
from liftpy.errors import ConfigError

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", _HEADER)),
    "subject": pa.string(),
    "stream": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "leader_epoch": pa.int64(),
}
"""Column -> Arrow type, in the order of the schema. Spark's types follow from them."""


_CLOSE = 0.7
"""Minimum similarity of two names, from 0 to 1, for a suggestion."""
_LONGEST_NAME = 100
_BITS = {"key": Columns.KEYS, "headers": Columns.HEADERS, "subject": Columns.SUBJECTS}


def default_columns(*, include_headers: bool, topic: bool) -> tuple[str, ...]:
    """Return the names of the columns that a query has by default.

    ``include_headers``: True to include ``headers``. ``topic``: True to include ``topic``.
    """
    omitted_parts = {*(() if include_headers else ("headers",)), *(() if topic else ("topic",))}
    return tuple(name for name in COLUMNS if name not in omitted_parts)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error text that suggests the name in ``known`` that is most similar to ``name``.

    '': no known name is similar. Case does not matter.
    """
    spelling = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower()[:_LONGEST_NAME], spelling, n=1, cutoff=_CLOSE)
    return f"; did you mean {spelling[near[0]]!r}?" if near else ""


def check_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return ``names`` in order if all are known and unique. Otherwise raise ConfigError with the nearest name."""
    checked = tuple(names)
    for name in checked:
        if name not in COLUMNS:
            near = did_you_mean(name, COLUMNS)
            raise ConfigError(
                f"Unknown column {quote(name)} in the option columns{near or '.'} Known columns: {', '.join(COLUMNS)}."
            )
    if not checked or len(set(checked)) != len(checked):
        raise ConfigError(f"Invalid option columns. Name each column once, from: {', '.join(COLUMNS)}.")
    return checked


def omitted_parts(columns: Iterable[str]) -> int:
    """Return, as bits, the parts of records that nodes need not send for a query of ``columns`` (``liftpy.core.wire.filters``)."""
    wanted = set(columns)
    if "value" in wanted:
        return 0
    return LEAVABLE & ~sum(bit.value for name, bit in _BITS.items() if name in wanted)


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """Return the Arrow schema of ``columns``. Spark compares the first batch of a task with it."""
    return pa.schema([pa.field(name, COLUMNS[name]) for name in columns])
