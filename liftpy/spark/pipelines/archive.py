"""The pipeline ``archive``: writes streams to a table of Parquet files, each record once, continuously or up to now.

It is a streaming query. Its tasks write the files (``archive_source.py``). Its driver commits each micro-batch to the table in
one transaction, together with the id of the query and the number of the micro-batch (``tables.py``). If a process dies, the
query runs again from its checkpoint. Without a checkpoint it continues at the end of the table.

``archived`` and ``whole`` read an archive, alone or together with its live stream. ``find_orphans`` finds files of failed
attempts.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liftpy.client.arguments import check_count, check_number
from liftpy.errors import ConfigError, DataLossError, FencedError, LiftError, NotFoundError, StorageError
from liftpy.spark.catalog import Catalog
from liftpy.spark.failures import WorkerStartError, unwrap_spark_errors, with_error_code
from liftpy.spark.offsets import EARLIEST, OffsetSpec
from liftpy.spark.options import SourceOptions, check_stream_names, replace_start
from liftpy.spark.pipelines.tables import (
    DATA,
    ArchivedRange,
    Table,
    TableCommit,
    TableState,
    absolute_folder,
    check_archived,
    check_has_all_records,
    check_marks,
    check_streams,
    check_table_columns,
    commit_of,
    end_epoch_mark,
    end_mark,
    epoch_mark,
    is_temporary,
    marks_of,
    parse_file,
    read_files,
    read_position,
    starts_after,
    state_of,
    stream_mark,
    table_at,
    uid_mark,
)
from liftpy.spark.planning import Views, cut_text, resolve_starts
from liftpy.spark.process_connection import link_to
from liftpy.spark.schema import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEFAULT_AGE_S = 3600.0
_LONGEST_S = 365 * 86_400.0
COMPRESSIONS = ("zstd", "snappy", "lz4", "none")
DEFAULT_BATCH_RECORDS = 5_000_000
_QUERY_ID = "sql.streaming.queryId"
_POLL_S = 1
_COMMITS = 10
"""Maximum number of attempts to commit a micro-batch while other programs commit, too."""
STARTS = 5
"""Maximum number of consecutive starts of a query for which Spark did not start in time."""
_NOT_FOR_USERS = ("stream", "subscribe", "subscribePattern", "assign", "path", "columns", "includeHeaders")
NEEDED = ("stream", "partition", "offset")
"""Columns that an archive must have to continue into its stream."""


def archived(spark: SparkSession, table: str, stream: str = "") -> DataFrame:
    """Return the records in the table as a DataFrame, at its current version.

    Args:
        spark: The Spark session.
        table: Directory of the table.
        stream: Only records of this stream. Default '': all.

    Example:
        from liftpy.spark import archived

        archived(spark, "/data/orders").count()
    """
    return _rows(spark, state_of(table_at(table)), stream)


def whole(spark: SparkSession, table: str, stream: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Return all records of a stream: those in the table and the newer ones in the stream.

    The DataFrame ends at the records that are committed at its first action. It has the columns of the table.

    The table is read at one version, and the stream continues where that version ends. So there is no gap and no overlap, even
    if the archive grows during the read.

    Args:
        spark: The Spark session.
        table: Directory of the table.
        stream: Name of the stream.
        options: Options of the format ``liftpy``, such as ``nats``. Default None.

    Raises:
        NotFoundError: The table has no records of this stream, or the stream was deleted and created again.
        DataLossError: Retention deleted records that are not in the table, or the table was set back to an earlier version.

    Example:
        from liftpy.spark import whole

        whole(spark, "/data/orders", "orders").count()
    """
    settings = {**(options or {}), "stream": check_archived(stream)}
    source = SourceOptions.parse(settings)
    views = Catalog(link_to(source.access), source).views()
    marks = {end_mark(*key) for key in views} | {uid_mark(stream, view.uid) for view in views.values()}
    if source.fail_on_data_loss:
        marks |= {end_epoch_mark(*key) for key in views}
    directory = table_at(table)
    state = state_of(directory, marks)
    if source.fail_on_data_loss:
        directory.check_rollback(state)
    starts = starts_after(_uids(views), state.marks, EARLIEST)
    if starts is None:
        raise NotFoundError(f"Table {table} has no records of stream {stream}. Check the table path and the stream name.")
    columns = state.schema.names
    live_options = replace_start({**settings, "columns": ",".join(columns)}, json.dumps(starts))
    live = spark.read.format("liftpy").options(**live_options).load()
    return _rows(spark, state, stream).select(*columns).unionByName(live)


def _rows(spark: SparkSession, state: TableState, stream: str) -> DataFrame:
    if not state.files:
        from pyspark.sql.pandas.types import from_arrow_schema

        return spark.createDataFrame([], from_arrow_schema(arrow_schema(state.schema.names)))
    frame = read_files(spark, state.files)
    return frame.where(frame["stream"] == stream) if stream else frame


# ---- files of failed attempts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataFile:
    """File in the data directory of a table.

    Attributes:
        path: Absolute path.
        age_s: Time since its last write, in seconds.
        size_bytes: Size in bytes.
    """

    path: str
    age_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OrphanFiles:
    """Files that failed attempts have left in the data directory of a table.

    Attributes:
        files: Paths of files that may be removed.
        size_bytes: Total size of these files, in bytes.
        left: Number of complete files outside the table that must stay.
    """

    files: tuple[str, ...] = ()
    size_bytes: int = 0
    left: int = 0


def orphans_among(
    files: Iterable[DataFile], in_table: frozenset[str], marks: Mapping[str, int], age_s: float, *, only_added_to: bool
) -> OrphanFiles:
    """Return which of the files in ``files`` belong to failed attempts and may be deleted.

    Readers of the table do not see these files. There are two kinds:

    - A temporary file that is older than the age. Its writer has ended. If the writer still runs, its task fails and runs
      again.
    - A complete file that is not in the table, although the table has its range. It was written with other range borders.

    A complete file beyond the end of the table stays: the micro-batch that wrote it runs again and uses it. If files were
    removed from a table (by optimize or delete), old versions still name them. Then complete files are left to the table's own
    vacuum.

    Args:
        files: Files in the data directory.
        in_table: Paths of the files in the table.
        marks: End offset of each archived partition.
        age_s: Minimum age of a file to delete, in seconds.
        only_added_to: True if no commit has removed files from the table.
    """
    orphans: list[DataFile] = []
    left = 0
    used_names = {path.rpartition("/")[2] for path in in_table}  # the directory of the table may have several paths
    for one in files:
        name = one.path.rpartition("/")[2]
        if is_temporary(name):
            orphans += [one] if one.age_s >= age_s else []
            continue
        file = parse_file(name)
        if file is None or name in used_names:
            continue
        passed = file.end_offset <= marks.get(end_mark(file.stream, file.partition), 0)
        if passed and only_added_to and one.age_s >= age_s:
            orphans.append(one)
        else:
            left += 1
    return OrphanFiles(tuple(one.path for one in orphans), sum(one.size_bytes for one in orphans), left)


def find_orphans(table: Table, age_s: float = DEFAULT_AGE_S) -> OrphanFiles:
    """Return the files of failed attempts that may be deleted. ``age_s``: their minimum age, in seconds.

    It lists the files before it reads the table, so that a file of a new commit is not deleted.

    The age of a file is the difference to the newest file of the table, so a wrong clock of this machine removes nothing.
    """
    files = list(_list_files(table.root / DATA))
    marks = {end_mark(file.stream, file.partition) for one in files if (file := parse_file(Path(one.path).name))}
    state = table.state(marks)
    if state is None:
        return orphans_among(files, frozenset(), {}, age_s, only_added_to=False)
    return orphans_among(files, frozenset(state.files), state.marks, age_s, only_added_to=table.only_added_to())


def remove_orphans(orphans: OrphanFiles) -> None:
    """Delete the files of failed attempts that ``orphans`` names. A file that does not exist is no error."""
    for path in orphans.files:
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"Cannot remove file {path} of a failed attempt: {error}. Check its permissions, or remove it yourself."
            ) from error


def _list_files(folder: Path) -> Iterable[DataFile]:
    paths = []
    for path in folder.glob("*/*/*"):
        try:
            paths.append((str(path), path.stat()))
        except FileNotFoundError:
            continue
    by_s = min(time.time(), max((stat.st_mtime for _, stat in paths), default=0.0))
    return [DataFile(path, by_s - stat.st_mtime, stat.st_size) for path, stat in paths]


# ---- the pipeline ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """Plan of ``archive``: the streams, the table and the options.

    Args:
        streams: Names of the streams.
        table: Directory of the table. The driver and all executors must see it under the same path.
        kind: Format of the table: ``delta`` or ``iceberg``. Default '': the format of the existing table, or delta.
        checkpoint: Directory of the query's checkpoint. Default '': ``_checkpoint`` in the table's directory.
        columns: Columns, comma separated. Default '': all, with headers.
        compression: ``zstd`` (default), ``snappy``, ``lz4`` or ``none``.
        every_s: Interval of micro-batches, in seconds (0 to 31,536,000). Default 10.
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
        check_stream_names(self.streams)
        check_count("batch_records", self.batch_records, 1)
        check_count("tasks", self.tasks)
        check_number("every_s", self.every_s, 0, _LONGEST_S)
        check_number("orphan_age_s", self.orphan_age_s)
        if not self.streams or len(set(self.streams)) != len(self.streams):
            raise ConfigError("Name at least one stream to archive, each stream once.")
        for stream in self.streams:
            check_archived(stream)
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"Invalid compression {self.compression!r}. Use {', '.join(COMPRESSIONS)}.")
        if self.checkpoint:
            absolute_folder(self.checkpoint, "checkpoint directory")
        lacking = [] if not self.columns else [name for name in NEEDED if name not in _names(self.columns)]
        if lacking:
            raise ConfigError(f"The option columns lacks {', '.join(lacking)}. An archive needs these columns: add them.")
        for name in self.source:
            if name.lower() in map(str.lower, _NOT_FOR_USERS):
                raise ConfigError(f"The option {name} is not allowed for an archive, because the archive sets it. Remove it.")

    @property
    def checkpoint_folder(self) -> Path:
        """Directory of the query's checkpoint."""
        return absolute_folder(self.checkpoint or Path(self.table) / "_checkpoint", "checkpoint directory")

    @property
    def resumed(self) -> bool:
        """True if the query started before. It then continues from its checkpoint."""
        offsets = self.checkpoint_folder / "offsets"
        return offsets.is_dir() and any(path.name.isdigit() for path in offsets.iterdir())

    def options(self) -> dict[str, str]:
        """Return the options of Spark's format ``liftpy`` for the query of the archive."""
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
        ends: Offset (exclusive) up to which the table has each partition, by (stream, partition).
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
        """True if the micro-batch was in the table already."""
        return self.version < 0


@dataclass(frozen=True, slots=True)
class ArchiveEstimate:
    """The work that ``archive`` would do.

    Attributes:
        starts: Offset to continue at, by (stream, partition).
        waiting: Number of committed records from there on.
        orphans: Files that it would delete.
        resumed: True if the query continues from its checkpoint.
    """

    starts: dict[tuple[str, int], int]
    waiting: int
    orphans: OrphanFiles
    resumed: bool


class _BatchCommitter:
    """Function for ``foreachBatch`` that commits the files of each micro-batch to the table, on the driver.

    ``tell`` is called with the result of each micro-batch.
    """

    def __init__(self, table: Table, options: SourceOptions, tell: Callable[[Archived], None]) -> None:
        self._table = table
        self._options = options
        self._tell = tell

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        began_s = time.monotonic()
        query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        ranges = [ArchivedRange(**row.asDict()) for row in frame.collect()]  # the tasks run here, and once
        with with_error_code():
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
        """Commit the micro-batch. If another program has committed at the same time, try again on its version of the table.

        If that program is another archive of these partitions, its marks end the archive.
        """
        for attempt in itertools.count(1):
            commit = self._next_commit(ranges, query_id, batch_id)
            if commit is None:
                break
            try:
                return self._table.commit(commit, arrow_schema(self._options.columns))
            except FencedError:
                if attempt == _COMMITS:
                    raise
        return -1

    def _next_commit(self, ranges: list[ArchivedRange], query_id: str, batch_id: int) -> TableCommit | None:
        accepts_loss = not self._options.fail_on_data_loss
        state = self._table.state(marks_of(ranges, query_id) | {epoch_mark(*one.key) for one in ranges})
        if state is not None and self._table.is_changed:
            check_table_columns(state.schema, arrow_schema(self._options.columns), str(self._table.root))
            check_has_all_records(state, str(self._table.root))
            if not accepts_loss:
                self._table.check_rollback(state)
        marks = {} if state is None else state.marks
        commit = commit_of(ranges, query_id, batch_id, marks, fail_on_data_loss=not accepts_loss)
        if state is not None and commit is not None:
            check_streams(state, {one.stream: one.uid for one in ranges})
        return commit


def start_archive(
    spark: SparkSession, plan: ArchivePlan, *, once: bool = False, tell: Callable[[Archived], None] = lambda done: None
) -> StreamingQuery:
    """Start or continue an archive and return its streaming query.

    Args:
        spark: The Spark session.
        plan: Streams, table and options.
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
    settings = plan.options()
    remove_orphans(find_orphans(table, plan.orphan_age_s))
    if (starts := _starts_to_continue(plan, table, SourceOptions.parse(settings))) is not None:
        settings = replace_start(settings, starts)
    tasks = plan.tasks or spark.sparkContext.defaultParallelism
    settings = {"minPartitions": str(tasks), **settings, ROOT: str(table.root), COMPRESSION: plan.compression}
    spark.dataSource.register(ManifestDataSource)
    options = SourceOptions.parse({name: value for name, value in settings.items() if name not in (ROOT, COMPRESSION)})
    options.check_streaming()
    trigger: dict[str, Any] = (
        {"availableNow": True} if once else {"processingTime": f"{round(plan.every_s * 1000)} milliseconds"}
    )
    with unwrap_spark_errors():
        return (
            spark.readStream.format(FORMAT)
            .options(**settings)
            .load()
            .writeStream.foreachBatch(_BatchCommitter(table, options, tell))
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
        plan: Streams, table and options.
        once: If True (default), stop at the records that are committed now. False: run forever.
        tell: Function that is called after each micro-batch.

    Returns:
        Number of records that were added to the table.

    Raises:
        LiftError: The error that ended the query. An error of ``tell`` ends the query, too, and is raised as it is.

    Example:
        from liftpy.spark import ArchivePlan, archive

        archive(spark, ArchivePlan(streams=("orders",), table="/data/orders"))
    """
    records, starts = 0, 0
    failures: list[BaseException] = []

    def count(done: Archived) -> None:
        nonlocal records, starts
        records, starts = records + (0 if done.repeated else done.record_count), 0
        try:
            tell(done)
        except BaseException as error:
            failures.append(error)
            raise

    while True:
        starts += 1
        try:
            _run(start_archive(spark, plan, once=once, tell=count))
            return records
        except WorkerStartError:
            if starts >= STARTS:
                raise
        except LiftError:
            if failures:  # Spark only has its text
                raise failures[0] from None
            raise


def _run(query: StreamingQuery) -> None:
    try:
        with unwrap_spark_errors():
            while not query.awaitTermination(_POLL_S):
                pass
    finally:
        if query.isActive:
            query.stop()


def outlook(plan: ArchivePlan) -> ArchiveEstimate:
    """Return what ``archive`` would do. Write nothing. Needs no Spark.

    Args:
        plan: Streams, table and options.

    Raises:
        ConfigError: An option is not allowed, or the table has other columns or is the output of ``compact``.
        NotFoundError: No such stream, or the table has records of a stream that was deleted and created again.
        DataLossError: Another program has set the table back to an earlier version, or has removed its end offsets.
        UnavailableError: The cluster did not answer in time.
    """
    table = table_at(plan.table, plan.kind)
    options = SourceOptions.parse(plan.options())
    starting = (options.starting or OffsetSpec("earliest")).as_of(time.time_ns())
    views = Catalog(link_to(options.access), options).views(starting=starting)
    state = _state(table, options, views)
    if state is not None:
        check_table_columns(state.schema, arrow_schema(options.columns), str(table.root))
    known = {} if state is None else state.marks
    if starts_after(_uids(views), known, EARLIEST) is None:
        starts = resolve_starts(starting, views)
    else:
        starts = {key: known.get(end_mark(*key), view.log_start_offset) for key, view in views.items()}
    waiting = sum(max(0, view.end_offset - starts[key]) for key, view in views.items())
    return ArchiveEstimate(starts, waiting, find_orphans(table, plan.orphan_age_s), plan.resumed)


def _uids(views: Views) -> dict[tuple[str, int], str]:
    return {key: view.uid for key, view in views.items()}


def _state(table: Table, options: SourceOptions, views: Views) -> TableState | None:
    uids = {view.stream: view.uid for view in views.values()}
    marks = {mark(*key) for key in views for mark in (end_mark, epoch_mark, end_epoch_mark)} | {
        stream_mark(stream) for stream in uids
    }
    state = table.state(marks | {uid_mark(*one) for one in uids.items()})
    if state is not None:
        check_has_all_records(state, str(table.root))
        check_marks(state, views, str(table.root))
        check_streams(state, uids)
        if options.fail_on_data_loss:
            table.check_rollback(state)
            _check_last_records(table, state, options, views)
    return state


def _check_last_records(table: Table, state: TableState, options: SourceOptions, views: Views) -> None:
    """Raise DataLossError if an unclean election has lost records that the table has [R6]."""
    known = read_position(state.marks, _uids(views), end_epoch_mark)
    if not known.lasts:
        return
    now = Catalog(link_to(options.access), options).views(known=[known])
    if lost := [cut_text(view) for view in now.values() if view.cut_at is not None]:
        raise DataLossError(
            f"Table {table.root} has records that the stream has lost. {'; '.join(lost)}. Archive into another table. To keep the lost "
            "records, and to continue at the end of the table, set failOnDataLoss=false."
        )


def _starts_to_continue(plan: ArchivePlan, table: Table, options: SourceOptions) -> str | None:
    """Return the value of startingOffsets for a new query that continues at the end of the table. None: the query needs none.

    Raises ConfigError if the table has other columns.
    """
    state = table.state()
    if state is None:
        return None
    check_table_columns(state.schema, arrow_schema(options.columns), str(table.root))
    if plan.resumed:
        return None
    views = Catalog(link_to(options.access), options).views()
    table_state = _state(table, options, views)
    known = table_state.marks if table_state else {}
    if not options.fail_on_data_loss:  # the query would begin before the end of the table
        known = {mark: value for mark, value in known.items() if mark not in {end_epoch_mark(*key) for key in views}}
    starts = starts_after(_uids(views), known, EARLIEST)
    return None if starts is None else json.dumps(starts)
