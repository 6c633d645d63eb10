"""``compact``: writes a table with the latest record of each key of a stream. A tombstone deletes its key.

Each run reads the records that are new since the last run, or all records. It merges them into the content of the
table. One transaction replaces the content and sets the end offsets that the table now covers. So a failed run changes
nothing, and a repeated run changes nothing twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from liftpy.errors import ConfigError, DataLossError, NotFoundError
from liftpy.spark.catalog import Catalog
from liftpy.spark.failures import unwrap_spark_errors
from liftpy.spark.offsets import LATEST, StreamOffsets
from liftpy.spark.options import SourceOptions, replace_streams
from liftpy.spark.pipelines.archive_writer import write_file
from liftpy.spark.pipelines.tables import (
    Table,
    TableCommit,
    TableFile,
    TableState,
    check_archived,
    check_is_no_archive,
    check_table_columns,
    check_uid,
    end_epoch_mark,
    end_mark,
    epoch_mark,
    latest_path,
    missed_mark,
    parse_file,
    read_files,
    read_position,
    start_mark,
    state_of,
    table_at,
    uid_mark,
)
from liftpy.spark.planning import Views, cut_text
from liftpy.spark.process_connection import link_to
from liftpy.spark.schema import arrow_schema, default_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = default_columns(include_headers=True, topic=False)
_WRITTEN = pa.schema([("path", pa.string()), ("size_bytes", pa.int64()), ("record_count", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPlan:
    """Plan of ``compact``: the stream, the output table and the options.

    Args:
        stream: Name of the stream.
        output: Directory of the table with the latest record of each key.
        kind: Format of a new table: ``delta`` or ``iceberg``. Default '': delta.
        table: Directory of an archive of the stream to read from. Default '': read all from the stream.
        anew: If True, process everything again. Default False: only new records.
        source: More options of the format ``liftpy``, such as ``nats``. Default: none.

    Raises:
        ConfigError: A value is not allowed.

    Example:
        from liftpy.spark import CompactPlan, compact

        compact(spark, CompactPlan(stream="orders", output="/data/latest-orders"))
    """

    stream: str
    output: str
    kind: str = ""
    table: str = ""
    anew: bool = False
    source: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_archived(self.stream)
        if self.table and Path(self.table).resolve() == Path(self.output).resolve():
            raise ConfigError("The output is the same table as the archive. Choose another directory (--output).")

    def options(self) -> SourceOptions:
        """Return the checked options of the source."""
        options = SourceOptions.parse({**self.source, "stream": self.stream})
        if options.starting is not None or options.ending is not None:
            raise ConfigError(
                "Offsets are not allowed: a compaction reads from the end of the last run up to now. Remove them."
            )
        return replace(options, columns=COLUMNS)


@dataclass(frozen=True, slots=True)
class CompactStep:
    """Input of one run of ``compact``.

    The run reads the offsets from ``starts`` to ``cuts`` (exclusive) from the archive, and from ``cuts`` to ``ends`` (exclusive) from
    the stream.

    Attributes:
        starts: First offset, by (stream, partition).
        cuts: First offset that is read from the stream, by (stream, partition).
        ends: End offset, exclusive, by (stream, partition).
        uid: Uid of the stream.
        before: State of the output before the run. None: it is empty.
        archive: State of the archive. None: there is none.
        has_gaps: True if the stream itself is compacted. The run then reads past ``ends``, so that no key is missing.
        read: Offset up to which the tables have read the stream, by (stream, partition).
        epochs: LeaderEpoch of the last record below each end, by (stream, partition). 0: not known.
    """

    starts: dict[tuple[str, int], int]
    cuts: dict[tuple[str, int], int]
    ends: dict[tuple[str, int], int]
    uid: str
    before: TableState | None
    archive: TableState | None
    has_gaps: bool = False
    read: dict[tuple[str, int], int] = field(default_factory=dict)
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def marks(self) -> dict[str, int]:
        """Marks of the output after the run."""
        ends = {end_mark(*key): end for key, end in self.ends.items()}
        epochs = {epoch_mark(*key): epoch for key, epoch in self.epochs.items()}
        return {**ends, **epochs, **{uid_mark(stream, self.uid): 1 for stream, _ in self.ends}}

    @property
    def waiting(self) -> int:
        """Number of offsets that the run will read."""
        return sum(end - self.starts[key] for key, end in self.ends.items())


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a run.

    Attributes:
        read: Number of new offsets.
        keys: Number of keys in the table.
        size_bytes: Size of the table, in bytes.
        version: Version of the table. -1: nothing was new.
    """

    read: int
    keys: int
    size_bytes: int
    version: int


def archive_starts(archive: TableState | None, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the first offset in the archive of each partition in ``keys``. Partitions whose first offset is unknown are missing.

    The first offset comes from the marks. An archive without these marks has it in the names of its files, unless another program
    has joined them.
    """
    if archive is None:
        return {}
    names = [parse_file(file.rpartition("/")[2]) for file in archive.files]
    starts: dict[tuple[str, int], int] = {}
    if None not in names:
        for name in filter(None, names):
            key = name.stream, name.partition
            starts[key] = min(name.start_offset, starts.get(key, name.start_offset))
    marked = {key: archive.marks[start_mark(*key)] for key in keys if start_mark(*key) in archive.marks}
    return starts | marked


def steps_of(
    views: Views, before: Mapping[str, int], archived: Mapping[str, int], firsts: Mapping[tuple[str, int], int]
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Return (starts, cuts, ends) of a run, as in CompactStep.

    The archive of a partition may begin after the run does, because it was started later. The stream then has all records that the
    archive has, or the records before the archive are lost. So the run reads this partition from the stream, which reports the loss.

    ``views``: state of the partitions. ``before``: marks of the output table. ``archived``: marks of the archive. ``firsts``: first
    offset in the archive, where it is known.
    """
    ends = {key: view.end_offset for key, view in views.items()}
    starts, cuts = {}, {}
    for key, view in views.items():
        in_archive, first = archived.get(end_mark(*key), -1), firsts.get(key, 0)
        oldest = min(view.log_start_offset, view.end_offset)
        oldest = min(oldest, first) if in_archive >= 0 else oldest
        starts[key] = min(before.get(end_mark(*key), oldest), ends[key])
        cuts[key] = min(max(starts[key], in_archive), ends[key]) if first <= starts[key] else starts[key]
    return starts, cuts, ends


def check_deletes(views: Views, read: Mapping[tuple[str, int], int]) -> None:
    """Raise DataLossError if compaction deleted tombstones that no table has read.

    ``read``: offset up to which tables have read each partition.
    """
    for (stream, partition), end in read.items():
        deletes_end = views[stream, partition].deletes_end
        if deletes_end > end:
            raise DataLossError(
                f"{stream}/{partition} was read up to {end}, but tombstones below {deletes_end} no longer exist. The "
                "table may contain deleted keys. Run once with --rebuild and without --table. Then run more often than "
                "delete_retention_s, or increase that setting."
            )


def check_archived_deletes(starts: Mapping[tuple[str, int], int], marks: Mapping[str, int]) -> None:
    """Raise DataLossError if compaction deleted tombstones before the archive read them.

    ``starts``: first offset that the run reads from the archive, for each partition. ``marks``: marks of the archive.
    """
    for (stream, partition), start in starts.items():
        missed = marks.get(missed_mark(stream, partition), 0)
        if missed > start:
            raise DataLossError(
                f"The archive of {stream}/{partition} may lack tombstones below {missed}, because compaction deleted them before the "
                "archive read them. The table would contain deleted keys. Run once with --rebuild and without --table. Then archive "
                "more often than delete_retention_s, or increase that setting."
            )


def next_step(plan: CompactPlan, output: Table) -> CompactStep:
    """Return what ``compact`` would do. Write nothing.

    Args:
        plan: Stream, output table and options.
        output: The output table.

    Raises:
        NotFoundError: No such stream, or the table has records of another stream.
        ConfigError: The table has other columns, or the output is an archive.
        UnavailableError: The cluster did not answer in time.
    """
    views = _views(plan)
    uid = next(iter(views.values())).uid
    marks = {mark(*key) for key in views for mark in (end_mark, epoch_mark, end_epoch_mark, start_mark, missed_mark)}
    marks |= {uid_mark(plan.stream, uid)}
    there = output.state(marks)
    if there is not None:
        check_is_no_archive(there, plan.output)
    before = None if plan.anew else there
    if before is not None:
        output.check_deleted_rows()
        output.check_rollback(before)
    archive = _archive_state(plan, marks) if plan.table else None
    for state, what in ((before, plan.output), (archive, plan.table)):
        if state is not None:
            check_table_columns(state.schema, arrow_schema(COLUMNS), what)
            if state.marks:
                check_uid(plan.stream, uid, state.marks)
            elif state.record_count:
                raise NotFoundError(
                    f"Table {what} has no records of stream {plan.stream}. Check the table path and the stream name."
                )
    for state, epoch_of in ((before, epoch_mark), (archive, end_epoch_mark)):
        if state is not None:
            _check_read_records(plan, read_position(state.marks, dict.fromkeys(views, uid), epoch_of))
    firsts = archive_starts(archive, views)
    starts, cuts, ends = steps_of(views, before.marks if before else {}, archive.marks if archive else {}, firsts)
    known = {key for key in views if (before and end_mark(*key) in before.marks) or cuts[key] > starts[key]}
    read = {key: cuts[key] for key in known}
    check_deletes(views, read)
    if archive is not None:
        check_archived_deletes({key: starts[key] for key in starts if cuts[key] > starts[key]}, archive.marks)
    has_gaps = any(view.compacted for view in views.values())
    epochs = {key: view.end_epoch for key, view in views.items()}
    return CompactStep(starts, cuts, ends, uid, before, archive, has_gaps, read, epochs)


def _archive_state(plan: CompactPlan, marks: Iterable[str]) -> TableState:
    table = table_at(plan.table)
    state = state_of(table, marks)
    if plan.options().fail_on_data_loss:
        table.check_rollback(state)
    return state


def _views(plan: CompactPlan, known: Sequence[StreamOffsets] = ()) -> Views:
    options = plan.options()
    return Catalog(link_to(options.access), options).views(known=known)


def _check_read_records(plan: CompactPlan, read: StreamOffsets) -> None:
    """Raise DataLossError if an unclean election has lost records before the position ``read`` of a table."""
    now = _views(plan, [read])
    if lost := [cut_text(view) for view in now.values() if view.cut_at is not None]:
        raise DataLossError(f"{'; '.join(lost)}. Run once with --rebuild and without --table.")


def compact(spark: SparkSession, plan: CompactPlan, tell: Callable[[CompactStep], None] = lambda step: None) -> Compacted:
    """Update a table with the latest record of each key.

    Args:
        spark: The Spark session.
        plan: Stream, output table and options.
        tell: Function that is called with the planned step before it runs.

    Returns:
        The result of the run.

    Raises:
        NotFoundError: No such stream, or the table has records of another stream.
        FencedError: Another run has changed the table.
        DataLossError: Retention deleted records that were not compacted yet.

    Example:
        from liftpy.spark import CompactPlan, compact

        compact(spark, CompactPlan(stream="orders", output="/data/latest-orders"))
    """
    table = table_at(plan.output, plan.kind)
    step = next_step(plan, table)
    tell(step)
    if not step.waiting and step.before is not None:
        return Compacted(0, step.before.record_count, 0, -1)
    with unwrap_spark_errors():
        rows = _latest_of_each_key(_frame(spark, plan, step))
        file_rows = rows.mapInArrow(
            partial(write_part, str(table.root)), "path string, size_bytes long, record_count long"
        ).collect()
    files = tuple(TableFile(row["path"], row["size_bytes"], row["record_count"]) for row in file_rows)
    if step.has_gaps:
        check_deletes(_views(plan), step.read)
    version = table.commit(TableCommit(files, step.marks), arrow_schema(COLUMNS), replace=True)
    table.forget_old_files()
    return Compacted(step.waiting, sum(one.record_count for one in files), sum(one.size_bytes for one in files), version)


def _frame(spark: SparkSession, plan: CompactPlan, step: CompactStep) -> DataFrame:
    ends = dict.fromkeys(step.ends, LATEST) if step.has_gaps else step.ends
    between = {"startingOffsets": _offsets(step.cuts, step.uid), "endingOffsets": _offsets(ends, step.uid)}
    # partitions that were added after the step was planned belong to the next run
    read_options = {**replace_streams(plan.source, step.ends), "columns": ",".join(COLUMNS), **between}
    if step.has_gaps:
        read_options["readFrom"] = "leader"  # the leader reports which delete markers its own log has removed
    frame = spark.read.format("liftpy").options(**read_options).load()
    if step.archive is not None and step.archive.files:
        rows = read_files(spark, step.archive.files).where(f"stream = '{plan.stream}'")
        wanted = " or ".join(
            f"(partition = {partition} and offset >= {start} and offset < {step.cuts[stream, partition]})"
            for (stream, partition), start in step.starts.items()
        )
        frame = frame.unionByName(rows.where(wanted).select(*COLUMNS))
    if step.before is not None and step.before.files:
        frame = frame.unionByName(read_files(spark, step.before.files).select(*COLUMNS))
    return frame


def _offsets(ends: Mapping[tuple[str, int], int], uid: str) -> str:
    offsets: dict[str, dict[str, int | str]] = {}
    for (stream, partition), offset in ends.items():
        offsets.setdefault(stream, {"uid": uid})[str(partition)] = offset
    return json.dumps(offsets)


def _latest_of_each_key(frame: DataFrame) -> DataFrame:
    """Return the rows of ``frame`` with the latest record of each key.

    Within a partition the highest offset counts, and between partitions the highest timestamp.
    """
    from pyspark.sql import functions as f

    row = f.struct(*[f.col(name) for name in COLUMNS])
    own = frame.where("key is not null").groupBy("partition", "key").agg(f.max_by(row, "offset").alias("row"))
    when = f.struct(f.col("row.timestamp"), f.col("row.partition"))
    latest = own.groupBy("key").agg(f.max_by("row", when).alias("row"))
    return latest.select("row.*").where("value is not null")


def write_part(root: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task to a new file below the directory ``root``, and yield one row that describes the file."""
    schema = arrow_schema(COLUMNS)
    path = latest_path(uuid.uuid4().hex)
    cast: Iterator[Any] = (batch.cast(schema) for batch in batches if batch.num_rows)
    rows, size_bytes = write_file(Path(root) / path, cast, schema, "zstd")
    if rows:
        yield pa.RecordBatch.from_pydict({"path": [path], "size_bytes": [size_bytes], "record_count": [rows]}, schema=_WRITTEN)
