"""The pipeline ``archive``: writes streams to a table of Parquet files, each record once, continuously or up to now.

It is a streaming query. Its tasks write the files (``manifest_source.py``). Its driver commits each micro-batch to the table
in one transaction, together with the id of the query and the number of the micro-batch (``table_commit.py``). If a process
dies, the query runs again from its checkpoint. Without a checkpoint it continues at the end of the table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liftpy.errors import ConfigError
from liftpy.spark.catalog import Catalog
from liftpy.spark.failures import coded
from liftpy.spark.offsets import EARLIEST
from liftpy.spark.options import SourceOptions
from liftpy.spark.pipelines.job_errors import WorkerStartError, plainly
from liftpy.spark.pipelines.naming import check_archived, end_mark, uid_mark
from liftpy.spark.pipelines.orphan_files import DEFAULT_AGE_S, Orphans, find_orphans, remove_orphans
from liftpy.spark.pipelines.table_commit import ArchivedRange, check_table_columns, commit_of, marks_of, starts_after
from liftpy.spark.pipelines.table_kind import table_at
from liftpy.spark.pipelines.tables import Table, TableState
from liftpy.spark.planning import Views
from liftpy.spark.process_connection import link_to
from liftpy.spark.schema import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COMPRESSIONS = ("zstd", "snappy", "lz4", "none")
DEFAULT_BATCH_RECORDS = 5_000_000
_QUERY_ID = "sql.streaming.queryId"
_POLL_S = 1
STARTS = 5
"""Maximum number of starts of a query that Spark could not start in time, without a micro-batch in between."""
_NOT_FOR_USERS = ("stream", "subscribe", "subscribePattern", "assign", "path", "columns", "includeHeaders")
NEEDED = ("stream", "partition", "offset")
"""Columns that an archive must have to continue into its stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """What ``archive`` writes, and where to.

    Args:
        streams: Names of the streams.
        table: Directory of the table. The driver and all executors must see it under the same path.
        kind: Format of the table: ``delta`` or ``iceberg``. Default '': the format of the existing table, or delta.
        checkpoint: Directory of the query's checkpoint. Default '': ``_checkpoint`` in the table's directory.
        columns: Columns, comma separated. Default '': all, with headers.
        compression: ``zstd`` (default), ``snappy``, ``lz4`` or ``none``.
        every_s: Interval of micro-batches, in seconds. Default 10.
        batch_records: Maximum number of records in a micro-batch. Default 5,000,000.
        tasks: Minimum number of tasks per micro-batch. Default 0: as many as Spark runs at once.
        orphan_age_s: Age at which files of failed attempts are deleted, in seconds. Default 3600.
        source: More options of the format ``liftpy``, such as ``nats``. Default: none.

    Raises:
        ConfigError: A value is not allowed.

    Example:
        from liftpy.spark import ArchivePlan, archive

        plan = ArchivePlan(streams=("orders",), table="/data/orders")
        print(archive(spark, plan), "records")
    """

    streams: tuple[str, ...]
    table: str
    kind: str = ""
    checkpoint: str = ""
    columns: str = ""
    compression: str = "zstd"
    every_s: float = 10.0
    batch_records: int = DEFAULT_BATCH_RECORDS
    tasks: int = 0
    orphan_age_s: float = DEFAULT_AGE_S
    source: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.streams or len(set(self.streams)) != len(self.streams):
            raise ConfigError("Name at least one stream to archive, each stream once.")
        for stream in self.streams:
            check_archived(stream)
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"Invalid compression {self.compression!r}. Use {', '.join(COMPRESSIONS)}.")
        if self.every_s < 0 or self.batch_records < 1 or self.tasks < 0 or self.orphan_age_s < 0:
            raise ConfigError(
                "every_s, tasks and orphan_age_s must not be negative, and batch_records must be at least 1. Correct "
                "the values."
            )
        lacking = [] if not self.columns else [name for name in NEEDED if name not in _names(self.columns)]
        if lacking:
            raise ConfigError(f"The option columns lacks {', '.join(lacking)}. An archive needs these columns: add them.")
        for name in self.source:
            if name.lower() in map(str.lower, _NOT_FOR_USERS):
                raise ConfigError(f"The option {name} is not allowed for an archive, because the archive sets it. Remove it.")

    @property
    def checkpoint_folder(self) -> Path:
        """Directory of the query's checkpoint."""
        return Path(self.checkpoint or Path(self.table) / "_checkpoint").expanduser().absolute()

    @property
    def resumed(self) -> bool:
        """Whether the query started before. It then continues from its checkpoint."""
        offsets = self.checkpoint_folder / "offsets"
        return offsets.is_dir() and any(path.name.isdigit() for path in offsets.iterdir())

    def options(self) -> dict[str, str]:
        """Return the options of the source."""
        chosen = {"startingOffsets": "earliest", "includeHeaders": "true", "maxOffsetsPerTrigger": str(self.batch_records)}
        if self.columns:
            chosen |= {"columns": self.columns, "includeHeaders": "false"}
        return {**chosen, "subscribe": ",".join(self.streams), **self.source}


def _names(columns: str) -> list[str]:
    return [name.strip() for name in columns.split(",")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """A micro-batch that is in the table.

    Attributes:
        batch: Number of the micro-batch.
        files: Number of files.
        record_count: Number of records.
        size_bytes: Size of the files, in bytes.
        version: Version of the table. -1: the micro-batch was in the table already.
        took_s: Duration in seconds.
        ends: (stream, partition) -> offset (exclusive) up to which the table has the partition.
    """

    batch: int
    files: int
    record_count: int
    size_bytes: int
    version: int
    took_s: float
    ends: dict[tuple[str, int], int]

    @property
    def repeated(self) -> bool:
        """Whether the micro-batch was in the table already."""
        return self.version < 0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What ``archive`` would do.

    Attributes:
        starts: (stream, partition) -> offset to continue at.
        waiting: Number of committed records from there on.
        orphans: Files that it would delete.
    """

    starts: dict[tuple[str, int], int]
    waiting: int
    orphans: Orphans
    resumed: bool


class _Committing:
    """Takes the rows of each micro-batch to the table, on the driver."""

    def __init__(self, table: Table, options: SourceOptions, tell: Callable[[Archived], None]) -> None:
        self._table = table
        self._options = options
        self._tell = tell

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        began_s = time.monotonic()
        query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        ranges = [ArchivedRange(**row.asDict()) for row in frame.collect()]  # the tasks run here, and once
        with coded():
            if not query_id:
                raise ConfigError(
                    f"Spark does not report the id of this query ({_QUERY_ID}). Use a supported Spark version: pip "
                    "install 'liftpy[spark]'."
                )
            version = self._commit(ranges, query_id, batch_id)
        done = Archived(
            batch=batch_id,
            files=sum(bool(one.path) for one in ranges),
            record_count=sum(one.record_count for one in ranges),
            size_bytes=sum(one.size_bytes for one in ranges),
            version=version,
            took_s=time.monotonic() - began_s,
            ends={one.key: one.end_offset for one in sorted(ranges, key=lambda one: one.end_offset)},
        )
        self._tell(done)

    def _commit(self, ranges: list[ArchivedRange], query_id: str, batch_id: int) -> int:
        state = self._table.state(marks_of(ranges, query_id))
        marks = {} if state is None else state.marks
        commit = commit_of(ranges, query_id, batch_id, marks, fail_on_data_loss=self._options.fail_on_data_loss)
        if commit is None:
            return -1
        return self._table.commit(commit, arrow_schema(self._options.columns))


def start_archive(
    spark: SparkSession, plan: ArchivePlan, *, once: bool = False, tell: Callable[[Archived], None] = lambda done: None
) -> StreamingQuery:
    """Start or continue an archive and return its streaming query.

    Args:
        spark: The Spark session.
        plan: What to archive, and where to.
        once: If True, stop at the records that are committed now. Default False: run forever.
        tell: Function that is called after each micro-batch, on the driver, by another thread.

    Returns:
        The running query.

    Raises:
        ConfigError: An option is not allowed.
        NotFoundError: No such stream.
        UnavailableError: The cluster did not answer in time.
        DataLossError: Retention deleted records that were not archived yet.
    """
    from liftpy.spark.pipelines.archive_source import COMPRESSION, FORMAT, ROOT, ManifestDataSource

    table = table_at(plan.table, plan.kind)
    given = plan.options()
    remove_orphans(find_orphans(table, plan.orphan_age_s))
    given |= _going_on(plan, table, SourceOptions.parse(given))
    tasks = plan.tasks or spark.sparkContext.defaultParallelism
    given = {"minPartitions": str(tasks), **given, ROOT: str(table.root), COMPRESSION: plan.compression}
    spark.dataSource.register(ManifestDataSource)
    options = SourceOptions.parse({name: value for name, value in given.items() if name not in (ROOT, COMPRESSION)})
    options.check_streaming()
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": f"{plan.every_s} seconds"}
    with plainly():
        return (
            spark.readStream.format(FORMAT)
            .options(**given)
            .load()
            .writeStream.foreachBatch(_Committing(table, options, tell))
            .option("checkpointLocation", str(plan.checkpoint_folder))
            .queryName("liftpy archive " + ",".join(plan.streams))
            .trigger(**trigger)
            .start()
        )


def archive(
    spark: SparkSession, plan: ArchivePlan, *, once: bool = True, tell: Callable[[Archived], None] = lambda done: None
) -> int:
    """Archive streams into a Delta or Iceberg table, each record exactly once.

    Args:
        spark: The Spark session.
        plan: What to archive, and where to.
        once: If True (default), stop at the records that are committed now. False: run forever.
        tell: Function that is called after each micro-batch.

    Returns:
        Number of records that were added to the table.

    Raises:
        LiftError: The error that ended the query.

    Example:
        from liftpy.spark import ArchivePlan, archive

        archive(spark, ArchivePlan(streams=("orders",), table="/data/orders"))
    """
    records, starts = 0, 0

    def count(done: Archived) -> None:
        nonlocal records, starts
        records, starts = records + (0 if done.repeated else done.record_count), 0
        tell(done)

    while True:
        starts += 1
        try:
            _run(start_archive(spark, plan, once=once, tell=count))
            return records
        except WorkerStartError:
            if starts >= STARTS:
                raise


def _run(query: StreamingQuery) -> None:
    """Run the query until it ends or the caller is interrupted."""
    try:
        with plainly():
            while not query.awaitTermination(_POLL_S):
                pass
    finally:
        if query.isActive:
            query.stop()


def outlook(plan: ArchivePlan) -> Outlook:
    """Return what ``archive`` would do. Write nothing. Needs no Spark.

    Args:
        plan: What to archive, and where to.
    """
    table = table_at(plan.table, plan.kind)
    options = SourceOptions.parse(plan.options())
    views = Catalog(link_to(options.access), options).views()
    state = _state(table, views)
    if state is not None:
        check_table_columns(state.schema, arrow_schema(options.columns), str(table.root))
    known = {} if state is None else state.marks
    starts = {key: known.get(end_mark(*key), view.log_start_offset) for key, view in views.items()}
    waiting = sum(max(0, view.end_offset - starts[key]) for key, view in views.items())
    return Outlook(starts, waiting, find_orphans(table, plan.orphan_age_s), plan.resumed)


def _state(table: Table, views: Views) -> TableState | None:
    return table.state({end_mark(*key) for key in views} | {uid_mark(view.stream, view.uid) for view in views.values()})


def _going_on(plan: ArchivePlan, table: Table, options: SourceOptions) -> dict[str, str]:
    """Return startingOffsets for a new query on a table with records of its streams. Other starts are rejected."""
    state = table.state()
    if state is None:
        return {}
    check_table_columns(state.schema, arrow_schema(options.columns), str(table.root))
    if plan.resumed:
        return {}
    views = Catalog(link_to(options.access), options).views()
    found = _state(table, views)
    starts = starts_after({key: view.uid for key, view in views.items()}, found.marks if found else {}, EARLIEST)
    return {} if starts is None else {"startingOffsets": json.dumps(starts)}
