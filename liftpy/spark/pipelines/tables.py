"""Tables of archives in the formats Delta and Iceberg: their state, their commits, and the names of their files and marks.

A table is a directory that the driver and all executors see under one path. A commit adds files and sets marks in one
transaction. A mark is a name with an integer. There are marks for the last micro-batch of each query, the first offset and
the end of each partition, and the uid of each stream. The table rejects a transaction if another process has committed since
the newest ``state``. That fences concurrent archives. Both formats need no jars and no server.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import itertools
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from liftpy.core.base.ids import check_name, is_internal, quote
from liftpy.errors import ConfigError, DataLossError, FencedError, LiftError, NoSpaceError, NotFoundError, StorageError
from liftpy.spark.offsets import EARLIEST, OTHERS, StreamOffsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        ("deletes_end_low", pa.int64()),
        ("deletes_end_high", pa.int64()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("end_epoch", pa.int64()),
    ]
)
"""Schema with one row per range: the fields of ArchivedRange."""
DATA = "data"
"""Directory of the files, inside the directory of the table. It has a directory for each stream and partition."""
CATALOG = "_catalog.sqlite"
"""Name of the catalog of an Iceberg table, in the directory of the table."""
NAME = ("liftpy", "archive")
"""Namespace and name of an Iceberg table in its catalog."""
KEPT_S = 7 * 24 * 3600.0
"""Time for which replaced content of an Iceberg table can still be read, in seconds, as in Delta tables."""
_FILE = re.compile(r"([A-Za-z0-9_-]{1,64})-(\d{1,10})-(\d{20})-(\d{20})-([0-9a-f]{12})\.parquet")
_LATEST = re.compile(r"latest-[0-9a-f]{32}\.parquet")
_TEMPORARY = re.compile(r"\.(.+\.parquet)\.[0-9a-f]{32}\.tmp")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_SECRETS_OF_URLS = re.compile(r"(?<=:/)/?[^/]*(?=@)|[?#].*", re.DOTALL)
"""User and password of a URL, its query and its fragment. Each of them may be a secret."""
_TAG_DIGITS = 12
_MARK = "liftpy.mark."
_START, _EPOCH = "/start", "/epoch"
"""Ends of the names of marks. Only an archive has the first, and only the output of a compaction has the second."""
_NO_RETRY = {"commit.retry.num-retries": "0"}
"""Property that ends pyiceberg's own retry. It would use a newer snapshot, with marks that may be wrong."""
_MAPPING, _PHYSICAL_NAME = "delta.columnMapping.mode", "delta.columnMapping.physicalName"
_DELETES = "deletionVectors"
_DISK_FULL = f"os error {errno.ENOSPC}"
"""Part of the text of delta-rs if the disk is full."""
_COLOR, _BACKTRACE = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"\d+: ")
_NOT_IN_PATHS = frozenset("%?*{}[]\\") | {chr(code) for code in (*range(32), 127)}
"""Control characters, and those that the table formats take for a part of a URL, or Spark for a part of a pattern of file names."""
_ADDING = ("WRITE", "CREATE TABLE")
_US_PER_MS = 1000


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
        self._own: Any = None
        """Version after the newest commit of this object, as the format identifies it. None: there was none."""

    @abstractmethod
    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        """Return the current version of the table with the values of ``marks`` (names). None: the table does not exist."""

    @abstractmethod
    def commit(self, commit: TableCommit, schema: pa.Schema, *, replace: bool = False) -> int:
        """Commit the files and marks of ``commit``, and return the new version of the table.

        ``replace``: True to remove all other files from the table. Raises FencedError if another writer has committed since the newest
        ``state``, so that the marks may have changed. Raises StorageError if this machine does not see a file of the commit.
        """

    @property
    @abstractmethod
    def is_changed(self) -> bool:
        """True if the newest ``state`` is not that after the newest commit of this object."""

    @abstractmethod
    def forget_old_files(self) -> None:
        """Delete the files of ``compact`` that no readable version of the table uses."""

    @abstractmethod
    def only_added_to(self) -> bool:
        """Return whether no commit has removed or merged files. If so, a file that is not in the table now was never in it."""

    @abstractmethod
    def check_deleted_rows(self) -> None:
        """Raise ConfigError if the files of the newest ``state`` have rows that another program has deleted from the table.

        Deletion vectors of Delta and delete files of Iceberg mark such rows. A reader of the files alone would return them.
        """

    @abstractmethod
    def check_rollback(self, state: TableState) -> None:
        """Raise DataLossError if another program has set the table back to a version before commits of this package.

        The table then lacks the records of these commits, but keeps their marks. ``state``: newest state of the table, with the
        marks to check.
        """


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
        deletes_end_low: Lowest offset (exclusive) below which a replica that sent the records could lack tombstones.
        deletes_end_high: Highest such offset.
        first_offset: Offset of the first record. -1: not known, or the range has no records.
        last_offset: Offset of the last record. -1: not known, or the range has no records.
        end_epoch: LeaderEpoch of the record before ``end_offset``. 0: not known.
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
    deletes_end_low: int = 0
    deletes_end_high: int = 0
    first_offset: int = -1
    last_offset: int = -1
    end_epoch: int = 0

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


def check_files(root: Path, files: Iterable[TableFile]) -> None:
    """Raise StorageError if this machine does not see one of ``files`` in the table directory ``root``, or sees it with another size.

    A task on another machine has written the file into its own directory. The table would lack the records.
    """
    for file in files:
        try:
            problem = "" if (root / file.path).stat().st_size == file.size_bytes else "has another size"
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        if problem:
            raise StorageError(
                f"File {root / file.path} was written by a task, but {problem} on the driver. The driver and all executors must "
                "share the directory of the table under one path. Use a shared file system, or --master local[*]."
            )


def marks_of(ranges: Iterable[ArchivedRange], query_id: str) -> set[str]:
    """Return the names of the marks that ``commit_of`` needs to commit ``ranges``."""
    wanted = {batch_mark(query_id)}
    for one in ranges:
        wanted |= {mark(*one.key) for mark in (end_mark, end_epoch_mark, deletes_mark, missed_mark)}
        wanted |= {uid_mark(one.stream, one.uid), stream_mark(one.stream)}
    return wanted


def commit_of(
    ranges: Sequence[ArchivedRange], query_id: str, batch_id: int, marks: Mapping[str, int], *, fail_on_data_loss: bool = True
) -> TableCommit | None:
    """Return the commit of a micro-batch. None: the table already has the micro-batch.

    The table has each record once, even if processes die or are late. A micro-batch that the table has already is skipped. A
    micro-batch that does not start at the end of the table is rejected. The micro-batches of a query follow each other without a
    gap, so a gap in their numbers shows that the checkpoint and the table do not belong together.

    Worked example: the table has orders/0 up to 500. Micro-batch 7 of a query has [500, 700) and [700, 900). The mark of the
    query becomes 7, and the mark of orders/0 becomes 900. If micro-batch 7 is repeated, it is skipped. If another query has
    [500, 600), its commit is rejected. If the table is restored from a copy of the time before micro-batch 6, the commit is
    rejected, too.

    Args:
        ranges: Ranges of the micro-batch with their files.
        query_id: Id of the query.
        batch_id: Number of the micro-batch.
        marks: Values of the marks in the table.
        fail_on_data_loss: True to raise an error for missing records.

    Raises:
        FencedError: Another archive has changed the table, or the checkpoint of the query is an older copy.
        DataLossError: Records are missing before or between the ranges, or the table lacks an earlier micro-batch, and
            ``fail_on_data_loss`` is True.
        NotFoundError: The table has records of a stream that was deleted and created again.
    """
    newest = marks.get(batch_mark(query_id), -1)
    if newest >= batch_id:
        for one in ranges:
            _check_archived_before(one, batch_id, newest, marks)
        return None
    if newest < batch_id - 1 and fail_on_data_loss:
        raise DataLossError(
            f"Cannot archive micro-batch {batch_id}: the table does not have micro-batch {batch_id - 1} of this checkpoint. The "
            "checkpoint belongs to another table, or the table is an older copy. With a new checkpoint, the archive continues "
            "at the end of the table. To accept the gap, set failOnDataLoss=false."
        )
    ordered = sorted(ranges, key=lambda one: (one.stream, one.partition, one.start_offset))
    new_marks = {batch_mark(query_id): batch_id}
    for key, own in itertools.groupby(ordered, key=lambda one: one.key):
        end = marks.get(end_mark(*key))
        for one in own:
            if end is not None:
                check_uid(one.stream, one.uid, marks)
                _check_follows(one, end, fail_on_data_loss=fail_on_data_loss)
            else:
                new_marks[start_mark(*key)] = one.start_offset
            new_marks |= _tombstone_marks(one, marks, is_first=end is None)
            end = one.end_offset
            if one.end_epoch or end_epoch_mark(*key) in marks:
                new_marks[end_epoch_mark(*key)] = one.end_epoch
            new_marks |= {end_mark(*key): end, uid_mark(one.stream, one.uid): 1, stream_mark(one.stream): 1}
            marks = {**marks, **new_marks}
    return TableCommit(
        tuple(TableFile(one.path, one.size_bytes, one.record_count, one) for one in ordered if one.path), new_marks
    )


def _tombstone_marks(one: ArchivedRange, marks: Mapping[str, int], *, is_first: bool) -> dict[str, int]:
    """Return new marks about tombstones that compaction may have removed before the range ``one`` was read.

    The records before a tombstone may be in the table. A replica sends them if it has not compacted its log up to the tombstone.
    The table then lacks the deletion of their keys if the range came from a replica that had removed the tombstone.

    Worked example: the table has offsets up to 100, from replicas with a ``deletes_end`` of 40 or more. The range [100, 200) comes
    from a replica with a ``deletes_end`` of 150. So tombstones below 150 may be missing.

    ``marks``: values of the marks in the table. ``is_first``: True if the table has no earlier range of the partition.
    """
    low = one.deletes_end_low if is_first else min(one.deletes_end_low, marks.get(deletes_mark(*one.key), 0))
    missed = min(one.end_offset, one.deletes_end_high)
    new_marks = {deletes_mark(*one.key): low} if low or deletes_mark(*one.key) in marks else {}
    if missed > max(one.start_offset, low):
        new_marks[missed_mark(*one.key)] = missed
    return new_marks


def _check_archived_before(one: ArchivedRange, batch_id: int, newest: int, marks: Mapping[str, int]) -> None:
    """Raise FencedError unless the table has the range ``one`` of the repeated micro-batch ``batch_id``.

    The range is missing if the checkpoint is an older copy. Its query then plans other ranges under the numbers of micro-batches
    that the table has. ``newest``: number of the newest micro-batch of this query in the table.
    """
    end = marks.get(end_mark(*one.key), 0)
    if one.end_offset > end:
        raise FencedError(
            f"Cannot archive {one.stream}/{one.partition} [{one.start_offset}, {one.end_offset}): the table has micro-batch "
            f"{newest} of this checkpoint, but the checkpoint continues with micro-batch {batch_id}. The table has this partition "
            f"up to offset {end} (exclusive). The checkpoint is an older copy. With a new checkpoint, the archive continues at "
            "the end of the table."
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


def check_streams(state: TableState, uids: Mapping[str, str]) -> None:
    """Raise NotFoundError if the table has records of an earlier stream with the name of one in ``uids`` [R9].

    The earlier stream may have had other partitions, so that the table has no end of any partition of the new one.

    ``state``: state of the table, with the marks of the streams and of their uids. ``uids``: uid of each stream, by name.
    """
    for stream, uid in uids.items():
        if uid_mark(stream, uid) in state.marks:
            continue
        names = (parse_file(file.rpartition("/")[2]) for file in state.files)  # tables of old archives lack the mark
        if stream_mark(stream) in state.marks or any(name is not None and name.stream == stream for name in names):
            check_uid(stream, uid, state.marks)


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
) -> dict[str, dict[str, Any]] | None:
    """Return startingOffsets for an archive that continues at the end of a table. None: the table has no records of its streams.

    ``partitions``: uid of the stream of each partition. ``marks``: values of the marks in the table. ``otherwise``: start of partitions
    that the table does not have. Partitions that are added later begin at their first record. If the marks have LeaderEpochs, the query
    fails if an unclean election has lost archived records [R6].
    """
    known = {key for key in partitions if end_mark(*key) in marks}
    if not known:
        return None
    starts: dict[str, dict[str, Any]] = {}
    for key, uid in sorted(partitions.items()):
        if key in known:
            check_uid(key[0], uid, marks)
        of_stream = starts.setdefault(key[0], {"uid": uid, OTHERS: EARLIEST})
        of_stream[str(key[1])] = marks.get(end_mark(*key), otherwise)
        if key in known and (epoch := marks.get(end_epoch_mark(*key), 0)):
            of_stream.setdefault("epochs", {})[str(key[1])] = epoch
    return starts


def check_table_columns(there: pa.Schema, wanted: pa.Schema, table: str) -> None:
    """Raise ConfigError if the columns ``there`` of the table differ from the columns ``wanted`` of the archive."""
    if there.names != wanted.names:
        text = f"Table {table} has the columns {', '.join(there.names)}, but the archive has {', '.join(wanted.names)}"
        raise ConfigError(f"{text}. Archive the same columns, or use another table.")


def check_marks(state: TableState, keys: Iterable[tuple[str, int]], table: str) -> None:
    """Raise DataLossError if the ``table`` has records of a partition in ``keys`` past the end that its marks say.

    An archive would start at an offset that the table has, and store records twice. ``state``: state with the marks of the ends.
    """
    asked = set(keys)
    for file in state.files:
        name = parse_file(file.rpartition("/")[2])
        if name is None or (name.stream, name.partition) not in asked:
            continue
        if name.end_offset > (end := state.marks.get(end_mark(name.stream, name.partition), 0)):
            raise DataLossError(
                f"Table {table} has {name.stream}/{name.partition} up to offset {name.end_offset} (exclusive), but it stores the end "
                f"{end}. Another program has removed the end, for example because it copied the table. An archive would store records "
                "twice. Use the original table, or archive into another one."
            )


def check_is_no_archive(state: TableState, table: str) -> None:
    """Raise ConfigError if the output ``table`` of a compaction is an archive. The run would replace its records.

    ``state``: state of the table, with the marks of the first offsets.
    """
    is_named = any(parse_file(file.rpartition("/")[2]) for file in state.files)
    if is_named or any(mark.endswith(_START) for mark in state.marks):
        raise ConfigError(
            f"Table {table} is an archive. A compaction would replace its records by the latest one of each key. Choose another "
            "directory (--output), and read the archive with --table."
        )


def check_has_all_records(state: TableState, table: str) -> None:
    """Raise ConfigError if the ``table`` of an archive is the output of a compaction, which lacks records.

    ``state``: state of the table, with the marks of the epochs.
    """
    is_named = any(is_latest(f"{DATA}/{file.rpartition('/')[2]}") for file in state.files)
    if is_named or any(mark.endswith(_EPOCH) for mark in state.marks):
        raise ConfigError(
            f"Table {table} is the output of liftpy spark compact, so it does not have all records. Archive into another directory."
        )


# ---- names -----------------------------------------------------------------------------------------------------------


class FileName(NamedTuple):
    """Name of an archived file: stream, partition, first offset, end, and a tag of the uid, the columns and the LeaderEpoch.

    A range that is written again has the same name. An existing file with that name is complete.

    Attributes:
        start_offset: First offset, inclusive.
        end_offset: End offset, exclusive.
        tag: Digest of the uid, the columns and the LeaderEpoch (``tag_of``).
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


def tag_of(uid: str, columns: Iterable[str], epoch: int) -> str:
    """Return a digest of the stream's uid, the columns and ``epoch``, which distinguishes files with equal offsets.

    ``epoch``: LeaderEpoch of the last planned record. After an unclean election, other records have these offsets, and another epoch.
    """
    return hashlib.sha256("\0".join((uid, *columns, str(epoch))).encode()).hexdigest()[:_TAG_DIGITS]


def parse_file(name: str) -> FileName | None:
    """Return the parts of a file name that ``FileName.name`` made. None: ``name`` has another form."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    start, end = int(match[3]), int(match[4])
    return FileName(match[1], int(match[2]), start, end, match[5]) if start < end else None


def latest_path(attempt: str) -> str:
    """Return the path of a file of ``compact`` below the directory of the table. ``attempt``: 32 hex digits, unique to the attempt."""
    return f"{DATA}/latest-{attempt}.parquet"


def is_latest(path: str) -> bool:
    """Return whether ``path``, below the directory of a table, is that of a file of ``compact``, complete or not."""
    folder, _, name = path.rpartition("/")
    match = _TEMPORARY.fullmatch(name)
    return folder == DATA and _LATEST.fullmatch(match[1] if match else name) is not None


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


def start_mark(stream: str, partition: int) -> str:
    """Return the name of the mark that stores the first offset of a partition in the table. Tables of old archives lack it."""
    return f"liftpy/{stream}/{partition}{_START}"


def epoch_mark(stream: str, partition: int) -> str:
    """Return the name of the mark that stores the LeaderEpoch of the last record below the end offset. Value 0: not known."""
    return f"liftpy/{stream}/{partition}{_EPOCH}"


def end_epoch_mark(stream: str, partition: int) -> str:
    """Return the name of the mark that stores the LeaderEpoch of the last record that an archive has read. Value 0: not known.

    Tables of old archives lack it.
    """
    return f"liftpy/{stream}/{partition}/end_epoch"


def read_position(
    marks: Mapping[str, int], uids: Mapping[tuple[str, int], str], epoch_of: Callable[[str, int], str]
) -> StreamOffsets:
    """Return the position up to which the table with these ``marks`` has read the partitions, with the LeaderEpochs.

    ``uids``: uid of the stream of each partition. ``epoch_of``: function that returns the name of the mark of a LeaderEpoch.
    """
    ends = {key: marks[end_mark(*key)] for key in uids if end_mark(*key) in marks}
    return StreamOffsets(ends, {key[0]: uid for key, uid in uids.items()}, {key: marks.get(epoch_of(*key), 0) for key in ends})


def deletes_mark(stream: str, partition: int) -> str:
    """Return the name of the mark that stores the lowest ``deletes_end`` of the replicas that sent the records in the table.

    A tombstone at this offset or later may delete a key that the table has. No mark means 0.
    """
    return f"liftpy/{stream}/{partition}/deletes"


def missed_mark(stream: str, partition: int) -> str:
    """Return the name of the mark that stores the offset (exclusive) below which the table of an archive may lack tombstones."""
    return f"liftpy/{stream}/{partition}/missed"


def stream_mark(stream: str) -> str:
    """Return the name of the mark that says that the table of an archive has records of ``stream``. Tables of old archives lack it."""
    return f"liftpy/{stream}/uid"


def uid_mark(stream: str, uid: str) -> str:
    """Return the name of the mark that says that the records of ``stream`` in the table are from the stream with this ``uid``."""
    return f"liftpy/{stream}/uid/{uid}"


# ---- formats ---------------------------------------------------------------------------------------------------------


def table_at(root: str | Path, kind: str = "") -> Table:
    """Return the table in the directory ``root``.

    Args:
        root: Directory of the table.
        kind: ``delta`` or ``iceberg``. Default '': the format of the existing table, or delta.

    Raises:
        ConfigError: The table has another format, or the package for the format is not installed.
    """
    if not str(root):
        raise ConfigError("The directory of the table is empty. Name a directory, such as /data/archive.")
    folder = absolute_folder(root, "table directory")
    if wrong := sorted(_NOT_IN_PATHS & set(str(folder))):
        raise ConfigError(
            f"The table directory {quote(str(folder))} contains {wrong[0]!r}, which tables do not support. Use another directory."
        )
    there = "delta" if (folder / "_delta_log").is_dir() else "iceberg" if (folder / CATALOG).exists() else ""
    if kind and kind not in FORMATS:
        raise ConfigError(f"Unknown table format {kind!r}. Use {' or '.join(FORMATS)}.")
    if there and kind and there != kind:
        raise ConfigError(
            f"Table {folder} has the format {there}, not {kind}. Use --table-format {there}, or another directory."
        )
    chosen = there or kind or "delta"
    if importlib.util.find_spec(FORMATS[chosen]) is None:
        raise ConfigError(
            f"Tables of the format {chosen} need the package {FORMATS[chosen]}. Install it with pip install "
            f"'liftpy[{EXTRAS[chosen]}]'."
        )
    return KINDS[chosen](folder)


def absolute_folder(path: str | Path, what: str) -> Path:
    """Return the absolute path of a directory that the user named. ``what``: name of the directory, for the error text.

    Raises ConfigError for a URL. It would be taken for a directory of this machine.
    """
    if _URL.match(str(path)):
        shown = _SECRETS_OF_URLS.sub("…", str(path))
        raise ConfigError(
            f"The {what} {shown} is a URL. Use the path of a directory, which the driver and all executors share."
        )
    return Path(path).expanduser().absolute()


def read_files(spark: SparkSession, files: Iterable[str]) -> DataFrame:
    """Return the rows of the ``files`` of a table. A missing or damaged file is an error, whatever the session is set to.

    Another program may delete old versions of the table during the read. The rows would be missing without an error.
    """
    return spark.read.options(ignoreMissingFiles="false", ignoreCorruptFiles="false").parquet(*files)


def state_of(table: Table, marks: Iterable[str] = ()) -> TableState:
    """Return the state of the table and its ``marks``, to read its files.

    Raises NotFoundError if the table does not exist, and ConfigError if its files have deleted rows.
    """
    state = table.state(marks)
    if state is None:
        raise NotFoundError(f"No table in {table.root}. Check that this is the directory of the archive.")
    table.check_deleted_rows()
    return state


def _storage_error(kind: str, root: Path, error: Exception) -> StorageError:
    """Return the error of a table that cannot be read or written. It is NoSpaceError if the disk is full."""
    is_full = getattr(error, "errno", 0) == errno.ENOSPC or _DISK_FULL in str(error)
    return (NoSpaceError if is_full else StorageError)(
        f"Cannot read or write {kind} table {root}: {_one_line(error)}. Check the path, its permissions and the disk."
    )


def _one_line(error: Exception) -> str:
    """Return the text of an error of a table package in one line, because Spark reports only the first line.

    delta-rs colors its texts, and adds a backtrace.
    """
    lines = (line.strip(" \t\u21b3.") for line in _COLOR.sub("", str(error)).splitlines())
    return ": ".join(line for line in lines if line and not _BACKTRACE.match(line))


def _deleted_rows_error(root: Path, what: str) -> ConfigError:
    return ConfigError(
        f"Another program has deleted rows of table {root}, and marks them with {what}. liftpy would read the deleted rows. Rewrite "
        "the files with the program that deleted the rows (such as REORG TABLE ... APPLY (PURGE) or rewrite_data_files)."
    )


def _rollback_error(root: Path, what: str) -> DataLossError:
    return DataLossError(
        f"Another program has set table {root} back to an earlier version ({what}). The table lacks records that were in it, but still "
        "stores their end offsets. Restore the newer version, or use another table. To continue without these records, set "
        "failOnDataLoss=false. The output of compact needs --rebuild."
    )


class DeltaDirectory(Table):
    """A Delta table in a directory, written by the package ``deltalake``.

    Marks are Delta's application transactions. If two commits set the same mark, delta-rs rejects the later one.
    """

    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        from deltalake import DeltaTable

        with _delta_errors(self.root):
            if not DeltaTable.is_deltatable(str(self.root)):
                self._seen = None
                return None
            table = self._seen = DeltaTable(str(self.root))
            _check_layout(table, self.root)
            versions = {mark: table.transaction_version(mark) for mark in marks}
            files = tuple(os.fspath(Path(unquote(uri.removeprefix("file://")))) for uri in table.file_uris())
            return TableState(
                table.version(),
                pa.schema(table.schema().to_arrow()),
                tuple(sorted(files)),
                table.count() if files else 0,
                {mark: value for mark, value in versions.items() if value is not None},
            )

    def commit(self, commit: TableCommit, schema: pa.Schema, *, replace: bool = False) -> int:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import CommitProperties, Transaction, create_table_with_add_actions

        check_files(self.root, commit.files)
        adds = [_add_action(one) for one in commit.files]
        # delta-rs would repeat the commit on a newer version, which may have been set back or filled by another program
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[Transaction(mark, value) for mark, value in sorted(commit.marks.items())],
        )
        delta_schema = Schema.from_arrow(schema)
        with _delta_errors(self.root):
            if self._seen is None:
                try:
                    create_table_with_add_actions(
                        str(self.root), delta_schema, adds, mode="error", commit_properties=properties
                    )
                except DeltaError as error:
                    if not DeltaTable.is_deltatable(str(self.root)):
                        raise
                    raise FencedError(
                        f"Another process created table {self.root} at the same time. Only one archive may write to a table: "
                        "stop the other one."
                    ) from error
            else:
                mode, version = "overwrite" if replace else "append", self._seen.version()
                try:
                    self._seen.create_write_transaction(adds, mode, delta_schema, commit_properties=properties)
                except CommitFailedError as error:
                    if DeltaTable(str(self.root)).version() == version:
                        raise ConfigError(
                            f"Cannot write to table {self.root}: {_one_line(error)}. Another program has given the table a "
                            "feature or a property that liftpy does not support. Remove it from the table, or use another table."
                        ) from error
                    raise FencedError(
                        f"Another archive writes to table {self.root}: {_one_line(error)}. Only one archive may write to a table: stop "
                        "the other one."
                    ) from error
            self._seen = DeltaTable(str(self.root))
            self._own = self._seen.version()
            return int(self._own)

    @property
    def is_changed(self) -> bool:
        return self._seen is not None and bool(self._seen.version() != self._own)

    def forget_old_files(self) -> None:
        """Delete files that no version of the table within its retention time (default one week) uses.

        Delta's own list also has files that never were in the table, for example those of a table in a subdirectory. So it is only
        used for the files of failed attempts.
        """
        from deltalake import DeltaTable

        with _delta_errors(self.root):
            table = DeltaTable(str(self.root))
            table.vacuum(dry_run=False, full=False)
            for path in table.vacuum(dry_run=True, full=True):
                if is_latest(path):
                    (self.root / path).unlink(missing_ok=True)

    def only_added_to(self) -> bool:
        from deltalake import DeltaTable

        with _delta_errors(self.root):
            return all(_adds(one) for one in DeltaTable(str(self.root)).history())

    def check_deleted_rows(self) -> None:
        with _delta_errors(self.root):
            if self._seen is None or _DELETES not in (self._seen.protocol().reader_features or ()):
                return
            if any(batch.num_rows for batch in self._seen.deletion_vectors()):
                raise _deleted_rows_error(self.root, "deletion vectors")

    def check_rollback(self, state: TableState) -> None:
        """Raise DataLossError if a RESTORE has removed records of this package.

        A RESTORE keeps the marks. So the marks at the restored version are lower than those after the RESTORE if records were lost.

        Worked example: version 7 archived up to offset 500, version 8 up to 900. Another program deleted rows in version 9. If
        version 10 restores version 8, all records up to 900 are there. If version 10 restores version 7, the records from 500 on
        are lost.
        """
        with _delta_errors(self.root):
            version = state.version
            for one in self._seen.history():
                if one["version"] > version:  # a later RESTORE has undone this commit
                    continue
                if (one.get("operationParameters") or {}).get("mode") == "Overwrite":
                    return
                if one.get("operation") == "RESTORE":
                    restored = self._restored(one)
                    if restored is None:
                        return
                    after, version = self._at(one["version"]), restored.version()
                    for mark in state.marks:
                        if (restored.transaction_version(mark) or 0) < (after.transaction_version(mark) or 0):
                            raise _rollback_error(self.root, f"version {one['version']} is a RESTORE to version {version}")

    def _restored(self, commit: dict[str, Any]) -> Any:
        """Return the version of the table that the RESTORE ``commit`` restored. None: its log is deleted.

        If the commit has only a time, this is the newest version with the same files.
        """
        from deltalake.exceptions import DeltaError

        named = str((commit.get("operationParameters") or {}).get("version"))
        try:
            if named.isdigit():
                return self._at(int(named))
            files = set(self._at(commit["version"]).file_uris())
            earlier = (self._at(version) for version in range(commit["version"] - 1, -1, -1))
            return next((table for table in earlier if set(table.file_uris()) == files), None)
        except DeltaError:
            return None

    def _at(self, version: int) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self.root), version=version)


def _check_layout(table: Any, root: Path) -> None:
    """Raise ConfigError if files of the Delta ``table`` have other columns than the table."""
    if columns := table.metadata().partition_columns:
        raise ConfigError(
            f"Table {root} is partitioned by {', '.join(columns)}, so its files lack these columns. Use a table without partitions."
        )
    mode = table.metadata().configuration.get(_MAPPING, "none")
    if mode == "none":
        return
    renamed = sorted(name for name, physical in _physical_names(json.loads(table.schema().to_json())) if name != physical)
    if renamed or mode != "name":
        text = f" for {', '.join(renamed)}" if renamed else ""
        raise ConfigError(
            f"Table {root} has column mapping ({_MAPPING} = {mode}), so its files have other names or ids of columns{text}. Use a "
            "table without column mapping."
        )


def _physical_names(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield (name, name in the files) of each field of a Delta ``schema`` in JSON, also of nested ones."""
    if isinstance(schema, list):
        for one in schema:
            yield from _physical_names(one)
    elif isinstance(schema, dict):
        if "name" in schema:
            yield str(schema["name"]), str((schema.get("metadata") or {}).get(_PHYSICAL_NAME, schema["name"]))
        for nested in ("fields", "type", "elementType"):
            yield from _physical_names(schema.get(nested))


@contextmanager
def _delta_errors(root: Path) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise _storage_error("Delta", root, error) from error


def _adds(commit: dict[str, Any]) -> bool:
    replaces = (commit.get("operationParameters") or {}).get("mode") == "Overwrite"
    return commit.get("operation") in _ADDING and not replaces


def _add_action(file: TableFile) -> Any:
    from deltalake.transaction import AddAction

    stats = {"numRecords": file.record_count} if file.range is None else stats_of(file.range)
    return AddAction(file.path, file.size_bytes, {}, int(time.time() * 1000), True, json.dumps(stats))


def stats_of(one: ArchivedRange) -> dict[str, Any]:
    """Return the statistics of a data file for readers of the Delta table.

    The bounds of numbers are exact, because Spark answers MIN and MAX from them. The bounds of the time are rounded to milliseconds.
    They may be wider than the values, but never narrower.
    """
    first, last = (one.first_offset, one.last_offset) if one.first_offset >= 0 else (one.start_offset, one.end_offset - 1)
    least: dict[str, Any] = {"stream": one.stream, "partition": one.partition, "offset": first}
    most: dict[str, Any] = {"stream": one.stream, "partition": one.partition, "offset": last}
    if one.newest_us:
        least["timestamp"] = _text(one.oldest_us // _US_PER_MS)
        most["timestamp"] = _text(-(-one.newest_us // _US_PER_MS))
    return {"numRecords": one.record_count, "minValues": least, "maxValues": most, "nullCount": {}}


def _text(ms: int) -> str:
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


class IcebergDirectory(Table):
    """An Iceberg table in a directory, written by the package ``pyiceberg``.

    The catalog is an SQLite file in the directory. Marks are properties of the table, and the transaction that adds the files
    sets them. The catalog accepts a transaction only on the snapshot that it was based on. A transaction that replaces the
    content adds two snapshots: one without the old files, and one with the new ones. Readers see the second.
    """

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("liftpy", uri=f"sqlite:///{self.root / CATALOG}", warehouse=self._location)

    @property
    def _location(self) -> str:
        """Location of a new table. pyiceberg takes an escaped character of a URL for a part of the path, so there is none."""
        url = self.root.as_uri()
        return url if unquote(url) == url else str(self.root)

    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        from pyiceberg.exceptions import NoSuchTableError

        self._seen = None
        if not (self.root / CATALOG).exists():
            return None
        with _iceberg_errors(self.root):
            try:
                table = self._seen = self._catalog().load_table(NAME)
            except NoSuchTableError:  # the process that created the catalog failed before it created the table
                return None
            files = _files(table)
            known = {mark: table.properties.get(_MARK + mark) for mark in marks}
            return TableState(
                table.metadata.last_sequence_number,
                table.schema().as_arrow(),
                tuple(sorted(files)),
                sum(files.values()),
                {mark: int(value) for mark, value in known.items() if value is not None},
            )

    def commit(self, commit: TableCommit, schema: pa.Schema, *, replace: bool = False) -> int:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.expressions import AlwaysTrue

        check_files(self.root, commit.files)
        marks = {_MARK + mark: str(value) for mark, value in commit.marks.items()}
        with _iceberg_errors(self.root):
            try:
                with self._table(schema) as change:
                    change.set_properties({**marks, **_NO_RETRY})
                    emptied = replace and self._seen is not None and bool(_files(self._seen))
                    if emptied:
                        change.delete(AlwaysTrue())
                    if commit.files:
                        change.add_files([str(self.root / one.path) for one in commit.files], check_duplicate_files=False)
                    elif not emptied:  # the next transaction needs a new snapshot
                        change.update_snapshot().fast_append().commit()
                self._seen = self._catalog().load_table(NAME)
                self._own = self._seen.metadata_location
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise FencedError(
                    f"Another archive writes to table {self.root}: {_one_line(error)}. Only one archive may write to a table: stop "
                    "the other one."
                ) from error
            return int(self._seen.metadata.last_sequence_number)

    @property
    def is_changed(self) -> bool:
        return self._seen is not None and bool(self._seen.metadata_location != self._own)

    def _table(self, schema: pa.Schema) -> Any:
        """Begin a transaction on the version of the table that ``state`` has returned. Create the table if it does not exist."""
        if self._seen is not None:
            return self._seen.transaction()
        self.root.mkdir(parents=True, exist_ok=True)
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(NAME[0])
        return catalog.create_table_transaction(NAME, schema, self._location, properties=_NO_RETRY)

    def forget_old_files(self) -> None:
        """Delete files that no version of the table that was current in the last ``KEPT_S`` seconds uses.

        If another program commits at the same time, a later run deletes the files.
        """
        from pyiceberg.exceptions import CommitFailedException

        before_s = time.time() - KEPT_S
        with _iceberg_errors(self.root):
            table = self._catalog().load_table(NAME)
            expired = _snapshots_before(table.metadata, before_s)
            try:
                if expired:
                    table.maintenance.expire_snapshots().by_ids(expired).commit()
            except CommitFailedException:
                return
            used_names = {name for one in table.metadata.snapshots for name in _names_in(table, one)}
            for file in (self.root / DATA).glob("*"):
                is_own = is_latest(f"{DATA}/{file.name}") and file.name not in used_names
                if is_own and file.stat().st_mtime < before_s:
                    file.unlink()

    def only_added_to(self) -> bool:
        with _iceberg_errors(self.root):
            metadata = self._catalog().load_table(NAME).metadata
            ancestors = _ancestors(metadata)
            if len(ancestors) < len(metadata.snapshots):  # the table was set back, or has a branch
                return False
            appends = [one.summary is not None and one.summary.operation.value == "append" for one in ancestors]
            return all(appends) and (not ancestors or ancestors[-1].parent_snapshot_id is None)

    def check_deleted_rows(self) -> None:
        with _iceberg_errors(self.root):
            if self._seen is not None and any(task.delete_files for task in self._seen.scan().plan_files()):
                raise _deleted_rows_error(self.root, "delete files")

    def check_rollback(self, state: TableState) -> None:
        """Raise DataLossError if the table was set back to a snapshot before commits of this package.

        Commits after that snapshot are no ancestors of the current one. A later run of ``compact`` with ``--rebuild``
        replaces the content.
        """
        with _iceberg_errors(self.root):
            metadata = self._seen.metadata
            known = {one.snapshot_id: one for one in metadata.snapshots}
            ancestors = _ancestors(metadata)
            # expired snapshots have no parents, so that snapshots before them seem to be lost
            oldest = ancestors[-1].sequence_number if ancestors and ancestors[-1].parent_snapshot_id is not None else 0
            was_current = {entry.snapshot_id for entry in metadata.snapshot_log} - {one.snapshot_id for one in ancestors}
            for one in sorted((known[key] for key in was_current if key in known), key=lambda one: one.sequence_number):
                names = self._added_names(one) if one.sequence_number >= oldest else []
                is_replaced = any(is_latest(name) for name in names) and any(
                    later.sequence_number > one.sequence_number and any(map(is_latest, self._added_names(later)))
                    for later in ancestors
                )
                if not is_replaced and any(parse_file(name.rpartition("/")[2]) or is_latest(name) for name in names):
                    raise _rollback_error(self.root, f"a snapshot before {one.snapshot_id}")

    def _added_names(self, snapshot: Any) -> list[str]:
        """Return the paths of the files that ``snapshot`` has added, from their directory on."""
        manifests = snapshot.manifests(self._seen.io)
        entries = (
            entry for one in manifests if one.added_snapshot_id == snapshot.snapshot_id
            for entry in one.fetch_manifest_entry(self._seen.io, discard_deleted=True)
        )  # fmt: skip
        return ["/".join(entry.data_file.file_path.split("/")[-2:]) for entry in entries]


def _ancestors(metadata: Any) -> list[Any]:
    """Return the current snapshot of an Iceberg table and the snapshots that it is based on, newest first."""
    known = {one.snapshot_id: one for one in metadata.snapshots}
    ancestors, snapshot = [], known.get(metadata.current_snapshot_id)
    while snapshot is not None:
        ancestors.append(snapshot)
        snapshot = known.get(snapshot.parent_snapshot_id)
    return ancestors


def _snapshots_before(metadata: Any, before_s: float) -> list[int]:
    """Return the ids of the snapshots of an Iceberg table that were not current at ``before_s`` (s since 1970) or later.

    A snapshot may be old and current until now. Readers that have just started still use its files.
    """
    ends = {one.snapshot_id: one.timestamp_ms for one in metadata.snapshots}  # not in the log: it was never current
    ends |= {one.snapshot_id: after.timestamp_ms for one, after in itertools.pairwise(metadata.snapshot_log)}
    in_use = {one.snapshot_id for one in metadata.refs.values()}
    return [
        key for key, end_ms in ends.items() if end_ms < before_s * 1000 and key not in in_use and metadata.snapshot_by_id(key)
    ]


def _files(table: Any) -> dict[str, int]:
    """Return the files of the current snapshot of an Iceberg table, and the number of records of each.

    Raises ConfigError if the snapshot has equality deletes. pyiceberg cannot read such a snapshot.
    """
    try:
        tasks = [task.file for task in table.scan().plan_files()]
    except (ValueError, NotImplementedError) as error:
        if not _has_equality_deletes(table):
            raise
        raise _deleted_rows_error(Path(unquote(table.location().removeprefix("file://"))), "equality deletes") from error
    return {one.file_path.removeprefix("file://"): one.record_count for one in tasks}


def _has_equality_deletes(table: Any) -> bool:
    from pyiceberg.manifest import DataFileContent

    snapshot = table.current_snapshot()
    return snapshot is not None and any(
        entry.data_file.content == DataFileContent.EQUALITY_DELETES for entry in _entries(table, snapshot)
    )


def _names_in(table: Any, snapshot: Any) -> set[str]:
    """Return the names of the files, also of deletes, that ``snapshot`` of an Iceberg table uses."""
    return {entry.data_file.file_path.rpartition("/")[2] for entry in _entries(table, snapshot)}


def _entries(table: Any, snapshot: Any) -> Iterator[Any]:
    for manifest in snapshot.manifests(table.io):
        yield from manifest.fetch_manifest_entry(table.io, discard_deleted=True)


@contextmanager
def _iceberg_errors(root: Path) -> Iterator[None]:
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

    try:
        yield
    except (CommitFailedException, TableAlreadyExistsError, LiftError):
        raise
    except Exception as error:  # pyiceberg has no common class of errors, and damaged files raise many kinds
        raise _storage_error("Iceberg", root, error) from error


KINDS: dict[str, Callable[[Path], Table]] = {"delta": DeltaDirectory, "iceberg": IcebergDirectory}
