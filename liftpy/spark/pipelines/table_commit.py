"""Decides the commit of a micro-batch from the marks in the table. Pure.

A mark is a name with an integer. The table changes marks and files in one transaction. There are marks for the last
micro-batch of each query, the end of each partition, and the uid of each stream. Goal: the table has each record once, even
if processes die or are late. A micro-batch that the table has already is skipped. A micro-batch that does not start at the
end of the table is rejected.

Worked example: the table has orders/0 up to 500. Micro-batch 7 of a query has [500, 700) and [700, 900). The mark of the query
becomes 7, and the mark of orders/0 becomes 900. If micro-batch 7 is repeated, it is skipped. If another query has [500, 600),
its commit is rejected.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from liftpy.errors import ConfigError, DataLossError, FencedError, NotFoundError
from liftpy.spark.pipelines.naming import batch_mark, end_mark, uid_mark

MANIFEST = pa.schema(
    [
        ("stream", pa.string()),
        ("uid", pa.string()),
        ("partition", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("path", pa.string()),
        ("record_count", pa.int64()),
        ("size_bytes", pa.int64()),
        ("oldest_us", pa.int64()),
        ("newest_us", pa.int64()),
    ]
)
"""One row for each range: the fields of ArchivedRange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRange:
    """A range of a partition, ``start_offset`` inclusive, ``end_offset`` exclusive, and the file that holds its records.

    ``path``: below the table's folder, '' where the range has no records. ``record_count``: less than the offsets where the stream is
    compacted or records were lost. ``oldest_us``, ``newest_us``: least and greatest time stamp, microseconds since 1970, 0 where the
    column is not archived.
    """

    stream: str
    uid: str
    partition: int
    start_offset: int
    end_offset: int
    path: str = ""
    record_count: int = 0
    size_bytes: int = 0
    oldest_us: int = 0
    newest_us: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """Stream and partition."""
        return self.stream, self.partition


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table. ``path``: below the table's directory. ``range``: its records, None for other files."""

    path: str
    size_bytes: int
    record_count: int
    range: ArchivedRange | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: adds ``files``, sets ``marks``."""

    files: tuple[TableFile, ...]
    marks: dict[str, int]


def marks_of(ranges: Iterable[ArchivedRange], query_id: str) -> set[str]:
    """The marks on which ``commit_of`` decides."""
    wanted = {batch_mark(query_id)}
    for one in ranges:
        wanted |= {end_mark(one.stream, one.partition), uid_mark(one.stream, one.uid)}
    return wanted


def commit_of(
    ranges: Sequence[ArchivedRange], query_id: str, batch_id: int, marks: Mapping[str, int], *, fail_on_data_loss: bool = True
) -> Commit | None:
    """Return the commit of a micro-batch for the table's ``marks``, None if it is already in the table.

    Raises FencedError where another archive was here, DataLossError where records are missing before or between the ranges (unless
    that is not to fail), NotFoundError where the table holds a stream that was deleted and made again since.
    """
    if marks.get(batch_mark(query_id), -1) >= batch_id:
        return None
    ordered = sorted(ranges, key=lambda one: (one.stream, one.partition, one.start_offset))
    found = {batch_mark(query_id): batch_id}
    for key, own in itertools.groupby(ordered, key=lambda one: one.key):
        end = marks.get(end_mark(*key))
        for one in own:
            if end is not None:
                check_uid(one.stream, one.uid, marks)
                _check_follows(one, end, fail_on_data_loss=fail_on_data_loss)
            end = one.end_offset
            found |= {end_mark(*key): end, uid_mark(one.stream, one.uid): 1}
            marks = {**marks, **found}
    return Commit(tuple(TableFile(one.path, one.size_bytes, one.record_count, one) for one in ordered if one.path), found)


def check_uid(stream: str, uid: str, marks: Mapping[str, int]) -> None:
    """Raise NotFoundError where a table that has records of ``stream`` has them of another uid [R9]."""
    if uid_mark(stream, uid) not in marks:
        raise NotFoundError(
            f"The table has records of a deleted stream {stream}. The current stream of this name has uid {uid}. "
            "Archive it into a new table with a new checkpoint."
        )


def _check_follows(one: ArchivedRange, end: int, *, fail_on_data_loss: bool) -> None:
    what = f"{one.stream}/{one.partition} [{one.start_offset}, {one.end_offset})"
    if one.start_offset < end:
        raise FencedError(
            f"Cannot archive {what}: the table already has this partition up to offset {end} (exclusive). Another "
            "archive writes to the table, or the checkpoint belongs to another table. Stop the other archive. "
            "With a new checkpoint, the archive continues at the end of the table."
        )
    if one.start_offset > end and fail_on_data_loss:
        raise DataLossError(
            f"Cannot archive {what}: the table ends at offset {end}, so records between are missing. They were "
            "archived elsewhere, or the table is an older copy. With a new checkpoint, the archive continues at "
            "the end of the table. To accept the gap, set failOnDataLoss=false."
        )


def starts_after(
    partitions: Mapping[tuple[str, int], str], marks: Mapping[str, int], otherwise: int
) -> dict[str, dict[str, int | str]] | None:
    """Return startingOffsets for an archive with a new checkpoint, None if the table has no records of it."""
    known = {key for key in partitions if end_mark(*key) in marks}
    if not known:
        return None
    starts: dict[str, dict[str, int | str]] = {}
    for key, uid in sorted(partitions.items()):
        if key in known:
            check_uid(key[0], uid, marks)
        starts.setdefault(key[0], {"uid": uid})[str(key[1])] = marks.get(end_mark(*key), otherwise)
    return starts


def check_table_columns(there: pa.Schema, wanted: pa.Schema, table: str) -> None:
    """Raise ConfigError where an archive of ``wanted`` columns would write to a table of others."""
    if there.names != wanted.names:
        text = f"Table {table} has the columns {', '.join(there.names)}, but the archive has {', '.join(wanted.names)}"
        raise ConfigError(f"{text}. Archive the same columns, or use another table.")
