"""``read()`` of both readers: one planned range, fetched and turned into Arrow batches.

Record batches into Arrow batches of the declared columns, built by ``liftpy.core.log.arrow``: no Python per record.

Arrow batches have at most MAX_ROWS rows and about MAX_BYTES: larger ones are slower in the JVM, much smaller ones cost a fixed
price each. So record batches are joined, of however many answers, until there are ENOUGH_ROWS of ENOUGH_BYTES, or MANY_BYTES, and a
large one is cut.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from liftpy.client.batch_view import BatchSlice, one_by_one
from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.core.log.arrow import ARRAYS, Rows, fixed, timestamps_ns
from liftpy.errors import DataLossError, LogTruncatedError, UnavailableError
from liftpy.spark.failures import coded
from liftpy.spark.local_files import read_nearest
from liftpy.spark.options import SourceOptions
from liftpy.spark.planning import PlannedRange
from liftpy.spark.process_connection import Link, link_to
from liftpy.spark.retrying_fetch import FetchRules
from liftpy.spark.schema import COLUMNS, arrow_schema, left_out

MAX_ROWS = 16_384
MAX_BYTES = 16 * 1024 * 1024
ENOUGH_ROWS = 4096
ENOUGH_BYTES = 1024 * 1024
MANY_BYTES = 8 * 1024 * 1024
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Builds Arrow batches of ``columns`` from slices of one partition."""

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
    """Return the approximate uncompressed size of its records."""
    return piece.batch.header.body_size_bytes * piece.record_count // piece.batch.record_count


def _bounded(pieces: Iterable[BatchSlice]) -> Iterator[BatchSlice]:
    """Yield ``pieces``, split if one is too large for an Arrow batch."""
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


OLD_PLAN_S = 300.0
"""A batch query's plan that is older is mentioned with each read."""
_logger = logging.getLogger(__name__)


def read_planned(planned: PlannedRange | None, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of the range in order. Raise a SourceError whose text begins with its code.

    ``planned`` None: what Spark makes of an empty plan.
    """
    if planned is None:
        return
    age_s = (time.time_ns() - planned.planned_ns) / 1e9 if planned.planned_ns else 0.0
    if age_s > OLD_PLAN_S:
        _logger.warning(
            "%s was planned %.0f s ago, when its DataFrame first ran: Spark keeps that plan, so that later records are not seen; "
            "load() again for a newer one",
            planned,
            age_s,
        )
    rules = FetchRules(
        patience_s=options.patience_s,
        leader_first=options.read_from_leader,
        files=not options.read_from_leader,
        expects_files=options.expects_files,
        fail_on_data_loss=options.fail_on_data_loss,
        left_out=left_out(options.columns),
    )
    builder = RowBuilder(planned.stream, planned.partition, options.columns)
    link = link_to(options.access)
    with coded():
        fetched = read_nearest(link, planned, rules)
        try:
            yield from builder.batches(itertools.chain.from_iterable(map(one_by_one, fetched)))
        except UnavailableError:
            _must_be_there(link, planned, options)
            raise
        finally:
            fetched.close()


def _must_be_there(link: Link, planned: PlannedRange, options: SourceOptions) -> None:
    """Raise DataLossError if an unclean election has lost records of the range, by the leader's answer."""
    if not planned.last[1]:
        return

    async def ask() -> None:
        asking = ReadOptions(patience_s=options.patience_s)
        transport = await link.transport(options.patience_s)
        reader = PartitionReader(transport, link.subjects, planned.stream, planned.partition, asking)
        await reader.bounds(planned.uid, last=planned.last)

    with suppress(UnavailableError):
        try:
            link.call(ask(), 2 * options.patience_s)
        except LogTruncatedError as error:
            raise DataLossError(f"{planned}: records were deleted after the query was planned: {error}") from None
