"""Interface of tables: their state, their commits, and the names of their files and marks.

A table is a directory that the driver and all executors see under one path. A commit adds files and sets marks in one
transaction. A mark is a name with an integer. There are marks for the last micro-batch of each query, the end of each
partition, and the uid of each stream.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from liftpy.core.base.ids import check_name, is_internal
from liftpy.errors import ConfigError, DataLossError, FencedError, NotFoundError

FORMATS = {"delta": "deltalake", "iceberg": "pyiceberg"}
"""Format of a table -> package that writes it."""
EXTRAS = {"delta": "lake", "iceberg": "iceberg"}
"""Format of a table -> extra of liftpy that installs the package."""
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
"""Schema with one row per range: the fields of ArchivedRange."""
DATA = "data"
"""Directory of the files, inside the directory of the table. It has a directory for each stream and partition."""
_FILE = re.compile(r"([A-Za-z0-9_-]{1,64})-(\d{1,10})-(\d{20})-(\d{20})-([0-9a-f]{12})\.parquet")
_TEMPORARY = re.compile(r"\.(.+\.parquet)\.[0-9a-f]{32}\.tmp")
_TAG_DIGITS = 12


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of a table.

    ``files``: absolute paths of its files. ``record_count``: number of records in them. ``marks``: values of the requested marks that
    exist, by name.
    """

    version: int
    schema: pa.Schema
    files: tuple[str, ...]
    record_count: int
    marks: dict[str, int]


class Table(ABC):
    """A table in a directory. A commit is based on the version that the newest ``state`` returned."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._seen: Any = None

    @abstractmethod
    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        """Return the current version of the table with the values of ``marks`` (names). None: the table does not exist."""

    @abstractmethod
    def commit(self, commit: TableCommit, schema: pa.Schema, *, replace: bool = False) -> int:
        """Commit the files and marks of ``commit``, and return the new version of the table.

        ``replace``: True to remove all other files from the table. Raises FencedError if another writer has committed since the newest
        ``state``, so that the marks may have changed.
        """

    @abstractmethod
    def forget_old_files(self) -> None:
        """Delete the files that no readable version of the table uses."""

    @abstractmethod
    def only_added_to(self) -> bool:
        """Return whether no commit has removed or merged files. If so, a file that is not in the table now was never in it."""


# ---- commits ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRange:
    """Range of a partition, and the file that has its records.

    Attributes:
        start_offset: First offset, inclusive.
        end_offset: End offset, exclusive.
        path: Path of the file below the directory of the table. '': the range has no records.
        record_count: Number of records. It is less than the number of offsets if the stream is compacted or records were lost.
        size_bytes: Size of the file, in bytes.
        oldest_us: Smallest timestamp, in microseconds since 1970. 0: the column is not archived.
        newest_us: Largest timestamp, in microseconds since 1970. 0: the column is not archived.
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
        return self.stream, self.partition


@dataclass(frozen=True, slots=True)
class TableFile:
    """File of a table.

    Attributes:
        path: Path below the directory of the table.
        size_bytes: Size in bytes.
        record_count: Number of records.
        range: Range of its records. None: the file is not from an archive.
    """

    path: str
    size_bytes: int
    record_count: int
    range: ArchivedRange | None = None


@dataclass(frozen=True, slots=True)
class TableCommit:
    """Transaction on a table that adds ``files`` and sets ``marks`` (value by name)."""

    files: tuple[TableFile, ...]
    marks: dict[str, int]


def marks_of(ranges: Iterable[ArchivedRange], query_id: str) -> set[str]:
    """Return the names of the marks that ``commit_of`` needs to commit ``ranges``."""
    wanted = {batch_mark(query_id)}
    for one in ranges:
        wanted |= {end_mark(one.stream, one.partition), uid_mark(one.stream, one.uid)}
    return wanted


def commit_of(
    ranges: Sequence[ArchivedRange], query_id: str, batch_id: int, marks: Mapping[str, int], *, fail_on_data_loss: bool = True
) -> TableCommit | None:
    """Return the commit of a micro-batch. None: the table already has the micro-batch.

    The table has each record once, even if processes die or are late. A micro-batch that the table has already is skipped. A
    micro-batch that does not start at the end of the table is rejected.

    Worked example: the table has orders/0 up to 500. Micro-batch 7 of a query has [500, 700) and [700, 900). The mark of the
    query becomes 7, and the mark of orders/0 becomes 900. If micro-batch 7 is repeated, it is skipped. If another query has
    [500, 600), its commit is rejected.

    Args:
        ranges: Ranges of the micro-batch with their files.
        query_id: Id of the query.
        batch_id: Number of the micro-batch.
        marks: Values of the marks in the table.
        fail_on_data_loss: True to raise an error for missing records.

    Raises:
        FencedError: Another archive has changed the table.
        DataLossError: Records are missing before or between the ranges, and ``fail_on_data_loss`` is True.
        NotFoundError: The table has records of a stream that was deleted and created again.
    """
    if marks.get(batch_mark(query_id), -1) >= batch_id:
        return None
    ordered = sorted(ranges, key=lambda one: (one.stream, one.partition, one.start_offset))
    new_marks = {batch_mark(query_id): batch_id}
    for key, own in itertools.groupby(ordered, key=lambda one: one.key):
        end = marks.get(end_mark(*key))
        for one in own:
            if end is not None:
                check_uid(one.stream, one.uid, marks)
                _check_follows(one, end, fail_on_data_loss=fail_on_data_loss)
            end = one.end_offset
            new_marks |= {end_mark(*key): end, uid_mark(one.stream, one.uid): 1}
            marks = {**marks, **new_marks}
    return TableCommit(
        tuple(TableFile(one.path, one.size_bytes, one.record_count, one) for one in ordered if one.path), new_marks
    )


def check_uid(stream: str, uid: str, marks: Mapping[str, int]) -> None:
    """Raise NotFoundError if the table has records of an earlier stream with this name, which had another uid [R9].

    ``marks``: values of the marks in the table.
    """
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
    """Return startingOffsets for an archive that continues at the end of a table. None: the table has no records of its streams.

    ``partitions``: uid of the stream of each partition. ``marks``: values of the marks in the table. ``otherwise``: start of partitions
    that the table does not have.
    """
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
    """Raise ConfigError if the columns ``there`` of the table differ from the columns ``wanted`` of the archive."""
    if there.names != wanted.names:
        text = f"Table {table} has the columns {', '.join(there.names)}, but the archive has {', '.join(wanted.names)}"
        raise ConfigError(f"{text}. Archive the same columns, or use another table.")


# ---- names -----------------------------------------------------------------------------------------------------------


class FileName(NamedTuple):
    """Name of an archived file: stream, partition, first offset, end, and a tag of the uid and the columns.

    A range that is written again has the same name. An existing file with that name is complete.

    Attributes:
        start_offset: First offset, inclusive.
        end_offset: End offset, exclusive.
        tag: Digest of the uid and the columns.
    """

    stream: str
    partition: int
    start_offset: int
    end_offset: int
    tag: str

    @property
    def name(self) -> str:
        return f"{self.stream}-{self.partition}-{self.start_offset:020d}-{self.end_offset:020d}-{self.tag}.parquet"

    @property
    def path(self) -> str:
        return f"{DATA}/{self.stream}/{self.partition}/{self.name}"


def tag_of(uid: str, columns: Iterable[str]) -> str:
    """Return a digest of the stream's uid and the columns. It distinguishes files with equal offsets."""
    return hashlib.sha256("\0".join((uid, *columns)).encode()).hexdigest()[:_TAG_DIGITS]


def parse_file(name: str) -> FileName | None:
    """Return the parts of a file name that ``FileName.name`` made. None: ``name`` has another form."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    start, end = int(match[3]), int(match[4])
    return FileName(match[1], int(match[2]), start, end, match[5]) if start < end else None


def temporary(name: str, attempt: str) -> str:
    """Return the name of the file ``name`` while it is written. ``attempt``: 32 hex digits that are unique to the attempt."""
    return f".{name}.{attempt}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether the file ``name`` is one that is still being written, as ``temporary`` names it."""
    match = _TEMPORARY.fullmatch(name)
    return match is not None and parse_file(match[1]) is not None


def check_archived(stream: str) -> str:
    """Return ``stream`` if it may be archived, else raise InvalidNameError or ConfigError."""
    if is_internal(check_name(stream, "stream")):
        raise ConfigError(f"Stream {stream!r} is an internal stream. Internal streams cannot be archived: choose another one.")
    return stream


def batch_mark(query_id: str) -> str:
    """Return the name of the mark that stores the number of a query's last micro-batch in the table."""
    return query_id


def end_mark(stream: str, partition: int) -> str:
    """Return the name of the mark that stores the end offset (exclusive) of a partition in the table."""
    return f"liftpy/{stream}/{partition}"


def uid_mark(stream: str, uid: str) -> str:
    """Return the name of the mark that says that the records of ``stream`` in the table are from the stream with this ``uid``."""
    return f"liftpy/{stream}/uid/{uid}"
