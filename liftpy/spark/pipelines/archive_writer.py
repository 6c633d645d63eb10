"""Writes a planned range to one Parquet file, in the task of an archive. No record goes through the JVM.

A task writes to a temporary name, flushes the file and links it to its final name. So a file with a final name is
complete. No task replaces it: a task that finds the final name uses the existing file. So tasks may write a range
several times, and may fail at any time.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from liftpy.core.base.strict_json import load_json
from liftpy.errors import LiftError, NoSpaceError, StorageError
from liftpy.spark.pipelines.tables import ArchivedRange, FileName, tag_of, temporary
from liftpy.spark.planning import PlannedRange

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Size in memory at which a row group of a file ends, in bytes. The last batch may exceed it."""
_ROW_GROUP_ROWS = 1_000_000
_FEW_VALUES = ["stream", "topic", "subject", "partition"]
"""Columns with few different values, which are written with a dictionary."""
_RANGE_METADATA_KEY = b"liftpy.archived"
_NO_SPACE = errno.ENOSPC
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without hard links. SMB and FUSE file systems have other ones than local file systems."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Settings of written files.

    Attributes:
        root: Directory of the table.
        compression: ``zstd``, ``snappy``, ``lz4`` or ``none``.
    """

    root: str
    compression: str = "zstd"


def write_range(
    planned: PlannedRange,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    writing: WriterSettings,
    deletes_ends: Sequence[int] = (),
) -> ArchivedRange:
    """Write the records of the range ``planned`` to a Parquet file, and return the description of the file.

    If the file exists, its description is returned. Raises StorageError if the disk fails.

    ``deletes_ends``: offsets (exclusive) below which the replicas that sent ``batches`` may lack tombstones. It is complete after the
    last batch.
    """
    tag = tag_of(planned.uid, schema.names, planned.last[1])
    name = FileName(planned.stream, planned.partition, planned.start_offset, planned.end_offset, tag)
    final = Path(writing.root) / name.path
    written = ArchivedRange(
        stream=planned.stream,
        uid=planned.uid,
        partition=planned.partition,
        start_offset=planned.start_offset,
        end_offset=planned.end_offset,
        end_epoch=planned.last[1] if planned.last[0] == planned.end_offset - 1 else 0,
    )
    with _storage_errors(final):
        if not final.exists():
            oldest: int | None = None
            newest = 0
            first_offset = last_offset = -1

            def noted() -> Iterator[pa.RecordBatch]:
                nonlocal oldest, newest, first_offset, last_offset
                for batch in batches:
                    if batch.num_rows:
                        last_offset = batch["offset"][-1].as_py()
                        first_offset = batch["offset"][0].as_py() if first_offset < 0 else first_offset
                    if "timestamp" in schema.names and batch.num_rows:
                        bounds = pc.min_max(batch["timestamp"].cast(pa.int64()))
                        oldest = min(bounds["min"].as_py(), bounds["min"].as_py() if oldest is None else oldest)
                        newest = max(newest, bounds["max"].as_py())
                    yield batch

            def description(rows: int) -> dict[str, str]:
                described = replace(
                    with_deletes(),
                    path=name.path,
                    record_count=rows,
                    oldest_us=oldest or 0,
                    newest_us=newest,
                    first_offset=first_offset,
                    last_offset=last_offset,
                )
                return {_RANGE_METADATA_KEY.decode(): json.dumps(asdict(described))}

            def with_deletes() -> ArchivedRange:
                low, high = min(deletes_ends, default=0), max(deletes_ends, default=0)
                return replace(written, deletes_end_low=low, deletes_end_high=high)

            rows, _ = write_file(final, noted(), schema, writing.compression, description)
            if not rows:
                return with_deletes()
        return replace(_range_in_file(final, planned, name), end_epoch=written.end_epoch)


def write_file(
    final: Path,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    compression: str,
    metadata: Callable[[int], dict[str, str]] = lambda rows: {},
) -> tuple[int, int]:
    """Write all rows to a new Parquet file ``final``, and return (number of rows, size in bytes). Without rows there is no file.

    ``metadata``: returns the metadata of the file, from the number of its rows.
    """
    with _storage_errors(final):
        _make_directory(final.parent)
        temporary_path, rows = final.with_name(temporary(final.name, uuid.uuid4().hex)), 0
        try:
            with pq.ParquetWriter(temporary_path, schema, compression=compression, use_dictionary=_FEW_VALUES) as writer:
                for group in _groups(batches):
                    writer.write_table(group, row_group_size=_ROW_GROUP_ROWS)
                    rows += group.num_rows
                writer.add_key_value_metadata(metadata(rows))
            if rows:
                _flush(temporary_path)
                _publish(temporary_path, final)
        finally:
            temporary_path.unlink(missing_ok=True)
        return rows, final.stat().st_size if rows else 0


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        group.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(group)
            group, size_bytes = [], 0
    if group:
        yield pa.Table.from_batches(group)


def _publish(temporary_path: Path, final: Path) -> None:
    """Link the temporary file ``temporary_path`` to its final name ``final``, unless another attempt has created that file."""
    try:
        with contextlib.suppress(FileExistsError):
            os.link(temporary_path, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not final.exists():  # a rename would replace it, but it has the same records
            temporary_path.rename(final)
    _flush(final.parent)


def _range_in_file(final: Path, planned: PlannedRange, name: FileName) -> ArchivedRange:
    """Return the description of the finished file ``final``. Raise StorageError if its content does not match its ``name``."""
    range_json = (pq.read_metadata(final).metadata or {}).get(_RANGE_METADATA_KEY)
    try:
        written = ArchivedRange(**load_json(range_json or b""))
    except (ValueError, TypeError):
        written = None
    expected = (planned.stream, planned.uid, planned.partition, planned.start_offset, planned.end_offset, name.path)
    if written is None or expected != (
        written.stream,
        written.uid,
        written.partition,
        written.start_offset,
        written.end_offset,
        written.path,
    ):
        raise StorageError(
            f"File {final} has other content than its name says. Another program wrote it. Move it away, then run "
            "the archive again."
        )
    return ArchivedRange(**{**asdict(written), "size_bytes": final.stat().st_size})


def _make_directory(path: Path) -> None:
    """Create the directory ``path`` and those above it, and flush each directory that gets a new one."""
    new = list(itertools.takewhile(lambda one: not one.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for one in new:
        with contextlib.suppress(PermissionError):  # a directory that may be written but not read
            _flush(one.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except LiftError:
        raise
    except OSError as error:
        kind = NoSpaceError if error.errno == _NO_SPACE else StorageError
        raise kind(
            f"Cannot write archive file {path}: {error}. Check the directory, its permissions and its free space."
        ) from error
    except pa.ArrowException as error:
        raise StorageError(f"Cannot write archive file {path}: {error}. Check the directory and its free space.") from error
