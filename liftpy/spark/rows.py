"""Record batches into Arrow batches of the declared columns, built by ``liftpy.log.arrow``: no Python per record.

Arrow batches have at most MAX_ROWS rows and about MAX_BYTES: larger ones are slower in the JVM, much smaller ones cost a fixed
price each. So record batches are joined, of however many answers, until there are ENOUGH_ROWS of ENOUGH_BYTES, or MANY_BYTES, and a
large one is cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from liftpy.client.slices import BatchSlice
from liftpy.dataclass import dataclass
from liftpy.log.arrow import ARRAYS, Rows, fixed, timestamps_ns
from liftpy.spark.schema import COLUMNS, arrow_schema

MAX_ROWS = 16_384
MAX_BYTES = 16 * 1024 * 1024
ENOUGH_ROWS = 4096
ENOUGH_BYTES = 1024 * 1024
MANY_BYTES = 8 * 1024 * 1024
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Makes Arrow batches of ``columns`` from slices of one partition of ``stream``."""

    stream: str
    partition: int
    columns: tuple[str, ...]

    def batches(self, pieces: Iterable[BatchSlice]) -> Iterator[pa.RecordBatch]:
        """Arrow batches of all records of ``pieces``, in order."""
        group: list[Rows] = []
        rows = size_bytes = 0
        for piece in _bounded(pieces):
            more_rows, more_bytes = piece.record_count, _size_bytes(piece)
            if group and (rows + more_rows > MAX_ROWS or size_bytes + more_bytes > MAX_BYTES):
                yield self._batch(group)
                group, rows, size_bytes = [], 0, 0
            group.append(Rows(piece.batch, piece.first_index, piece.end_index))
            rows += more_rows
            size_bytes += more_bytes
            if size_bytes >= MANY_BYTES or (rows >= ENOUGH_ROWS and size_bytes >= ENOUGH_BYTES):
                yield self._batch(group)
                group, rows, size_bytes = [], 0, 0
        if group:
            yield self._batch(group)

    def _batch(self, group: list[Rows]) -> pa.RecordBatch:
        arrays = [_OWN[name](group, self) if name in _OWN else ARRAYS[name](group) for name in self.columns]
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


def _headers(group: Sequence[Rows], _: RowBuilder) -> pa.Array:
    return ARRAYS["headers"](group).cast(COLUMNS["headers"])  # only the name of the list's field differs


def _timestamps(group: Sequence[Rows], _: RowBuilder) -> pa.Array:
    return fixed(timestamps_ns(group) // _NS_PER_US, COLUMNS["timestamp"])


def _streams(group: Sequence[Rows], builder: RowBuilder) -> pa.Array:
    return pa.repeat(pa.scalar(builder.stream), sum(rows.record_count for rows in group))


def _partitions(group: Sequence[Rows], builder: RowBuilder) -> pa.Array:
    return pa.array(np.full(sum(rows.record_count for rows in group), builder.partition, dtype=np.int32))


_OWN: dict[str, Callable[[Sequence[Rows], RowBuilder], pa.Array]] = {
    "headers": _headers,
    "stream": _streams,
    "topic": _streams,
    "partition": _partitions,
    "timestamp": _timestamps,
}
"""Columns that Spark has and the log has not, or not in this form; the others are the log's."""
