"""``replay``: writes a range of a stream or an archive to another stream, each record once.

One task writes one partition of the source (``ReplayShare``), in the order of offsets. The task is one round of a
producer (``liftpy.client.write_epoch``). A task that runs again under the same name reads its records again from the
first one. The producer compares their digest with that of the stored records, and skips the stored records. So tasks
and the driver may fail at any time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.partition_sender import ProducerOptions
from liftpy.client.producer import Producer
from liftpy.client.stream_directory import StreamDirectory
from liftpy.client.write_epoch import PlanChangedError, Round
from liftpy.core.base.ids import check_published
from liftpy.errors import ConfigError, LiftError, NotFoundError, PublishRejectedError, StorageError
from liftpy.spark.catalog import Catalog
from liftpy.spark.failures import SourceError, with_error_code
from liftpy.spark.offsets import OffsetSpec, check_spec_uids, known_positions
from liftpy.spark.options import SourceOptions
from liftpy.spark.pipelines.parallel import spread, watch_in_thread
from liftpy.spark.pipelines.tables import FileName, check_archived, parse_file, state_of, table_at, uid_mark
from liftpy.spark.planning import (
    PartitionView,
    PlannedRange,
    Views,
    plan_ranges,
    resolve_ends,
    resolve_starts,
    with_moving_ends,
)
from liftpy.spark.process_connection import ProcessConnection, link_to
from liftpy.spark.range_reader import read_planned
from liftpy.spark.sink_rows import as_binary, check_rows, places_of, shares_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ReplayShare:
    """Records of one source partition that one task replays.

    Attributes:
        planned: Range of the records.
        files: Paths of archive files with the records, in order. (): the task reads the stream.
    """

    planned: PlannedRange
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A data file of an archive, with the offset range that its name contains."""

    name: FileName
    path: str


def files_of(paths: Iterable[str], stream: str) -> dict[tuple[str, int], list[ArchiveFile]]:
    """Return the archive files of each partition of ``stream``, in order of offsets, by (stream, partition).

    Raises ConfigError if a path does not have the name of an archive file, and NotFoundError if the stream has no files.
    """
    files: dict[tuple[str, int], list[ArchiveFile]] = {}
    for path in paths:
        name = parse_file(path.rpartition("/")[2])
        if name is None:
            raise ConfigError(
                f"{path} is not a file of a liftpy archive: another program optimized or changed the table, so the "
                "order of records is lost. Replay the stream itself, or write the sorted DataFrame with a writeId."
            )
        if name.stream == stream:
            files.setdefault((stream, name.partition), []).append(ArchiveFile(name, path))
    if not files:
        raise NotFoundError(f"The table has no records of stream {stream}. Check --table and the stream name.")
    return {key: sorted(own, key=lambda one: one.name.start_offset) for key, own in sorted(files.items())}


def views_of(files: Mapping[tuple[str, int], list[ArchiveFile]]) -> dict[tuple[str, int], PartitionView]:
    """Return the offset range of each archived partition as a PartitionView, the form that planning needs."""
    return {
        key: PartitionView(
            stream=key[0],
            uid="",
            partition=key[1],
            replicas=(),
            leader="",
            leader_epoch=0,
            log_start_offset=own[0].name.start_offset,
            end_offset=own[-1].name.end_offset,
        )
        for key, own in files.items()
    }


def shares_of_files(planned: Iterable[PlannedRange], files: Mapping[tuple[str, int], list[ArchiveFile]]) -> list[ReplayShare]:
    """Return the parts of a replay: each planned range with the files that contain its records."""
    return [
        ReplayShare(
            one,
            tuple(
                file.path
                for file in files[one.stream, one.partition]
                if file.name.start_offset < one.end_offset and file.name.end_offset > one.start_offset
            ),
        )
        for one in planned
    ]


def gaps_in(share: ReplayShare) -> Iterator[str]:
    """Yield a text about each part of the range of ``share`` for which the archive has no file.

    The archive may have accepted that records were lost. Or the stream is compacted, and had no records there.
    """
    planned = share.planned
    names = filter(None, (parse_file(file.rpartition("/")[2]) for file in share.files))
    position = planned.start_offset
    for start, end in [*((name.start_offset, name.end_offset) for name in names), (planned.end_offset, planned.end_offset)]:
        if start > position:
            yield (
                f"{planned}: the archive has no records of offsets [{position}, {start}). They were lost before it read them, or "
                "compaction had removed them"
            )
        position = max(position, end)


class RateLimit:
    """Says how long a task waits between the parts that it sends, so that it stays below a rate.

    Time in which the task sent nothing new is not made up for. This is the time of a target without leader, or of records
    that the target had before.

    Args:
        rate: Maximum number of records per second. 0: no limit.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._next_s = -math.inf

    def pause_s(self, records: int, began_s: float, now_s: float) -> float:
        """Return the time to wait after a part, in seconds. 0: do not wait.

        ``records``: number of new records in the part. ``began_s``, ``now_s``: monotonic times of its start and its end, in seconds.
        """
        if not self._rate:
            return 0.0
        self._next_s = max(self._next_s, began_s) + records / self._rate
        return max(0.0, self._next_s - now_s)


_logger = logging.getLogger(__name__)
COLUMNS = ("key", "value", "headers", "offset")
_PATIENCE_S = 120.0
_SLOWEST_BYTES_S = 100_000
_CHECK_EVERY_S = 2.0
_BATCH_ROWS = 16_384
_KEEP, _BY_KEY = 1, 2
"""Numbers of the plans of a round: the partitions of its records are kept, or follow from the keys."""
MAX_RECORDS = 1 << 32
"""Maximum number of records of a task, because producers number records with 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """Plan of ``replay``: the source, the target stream and the options.

    Args:
        stream: Name of the stream whose records are written.
        target: Name of the stream that receives them.
        name: Name of this replay, 1 to 100 bytes. A second run under the same name writes nothing twice.
        table: Directory of an archive to read. Default '': read the stream itself.
        keep_partitions: If True (default), a record keeps its partition. False: by its key.
        rate: Records per second over all tasks. Default 0: no limit.
        source: More options of the format ``liftpy``, such as ``nats`` and ``startingOffsets``. Default: none.

    Raises:
        ConfigError: A value is not allowed.

    Example:
        from liftpy.spark import ReplayPlan, replay

        replay(spark, ReplayPlan(stream="orders", target="orders-again", name="june", table="/data/orders"))
    """

    stream: str
    target: str
    name: str
    table: str = ""
    keep_partitions: bool = True
    rate: float = 0.0
    source: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_archived(self.stream)
        check_published(self.target)
        if not 0 < len(self.name.encode()) <= 100:
            raise ConfigError("Invalid name of the replay. Use 1 to 100 bytes (--name).")
        if not 0 <= self.rate < math.inf:  # also not NaN
            raise ConfigError("Invalid rate. Use a positive number of records per second, or 0 for no limit (--records-per-s).")
        if self.stream == self.target and not self.table:
            raise ConfigError(
                f"Stream {self.stream} cannot be replayed into itself, because it would never end. Choose another target."
            )

    def options(self) -> SourceOptions:
        """Return the checked options of the source."""
        options = SourceOptions.parse({**self.source, "stream": self.stream, "includeHeaders": "true"})
        options.check_batch()
        timed = any(spec is not None and (spec.timed or spec.back_ns) for spec in (options.starting, options.ending))
        if self.table and timed:
            raise ConfigError("A range of an archive needs offsets, not times. Use offsets (--from, --until).")
        return replace(options, columns=COLUMNS)


@dataclass(frozen=True, slots=True)
class ShareDone:
    """The result of one part of a replay.

    Attributes:
        stream: Name of the source stream.
        partition: Number of the source partition.
        start_offset: First offset, inclusive.
        end_offset: End offset, exclusive.
        records: Number of records.
        known: Number of records that were stored before under the same name.
    """

    stream: str
    partition: int
    start_offset: int
    end_offset: int
    records: int
    known: int


def shares_to_replay(plan: ReplayPlan) -> list[ReplayShare]:
    """Return the parts that ``replay`` would write now. Write nothing. Log the records of the range that the source lacks.

    Args:
        plan: Source, target and options.

    Raises:
        NotFoundError: No such stream, or an offset belongs to a deleted stream of this name.
        OffsetOutOfRangeError: The range is not available.
        DataLossError: Retention or an unclean election has deleted a part of the range.
        ConfigError: The target has too few partitions, or a range is too large.
    """
    options, now_ns = plan.options(), time.time_ns()
    starting = (options.starting or OffsetSpec("earliest")).as_of(now_ns)
    ending = (options.ending or OffsetSpec("latest")).as_of(now_ns)
    link = link_to(options.access)
    target = Catalog(link, replace(options, wanted=SourceOptions.parse({**plan.source, "stream": plan.target}).wanted)).views()
    files: dict[tuple[str, int], list[ArchiveFile]] = {}
    if plan.table:
        named = [(stream, uid) for spec in (starting, ending) for stream, uid in spec.uids]
        state = state_of(table_at(plan.table), {uid_mark(*one) for one in named})
        for stream, uid in named:
            if uid_mark(stream, uid) not in state.marks:
                raise NotFoundError(
                    f"Table {plan.table} has no records of stream {stream} with uid {uid}, to which the requested offsets belong. "
                    "The stream was deleted and created again. Use offsets of the archived stream (--from, --until)."
                )
        if "value" not in state.schema.names:
            raise ConfigError(
                f"Table {plan.table} has no column value, so its records cannot be replayed. Replay the stream itself."
            )
        files = files_of(state.files, plan.stream)
    if plan.table:
        views: Views = views_of(files)
    else:
        known = known_positions((starting, ending))
        views = Catalog(link, options).views(starting=starting, ending=ending, known=known)
        check_spec_uids((starting, ending), {view.stream: view.uid for view in views.values()})
    starts, ends = resolve_starts(starting, views), resolve_ends(ending, views)
    ranges, losses = plan_ranges(views, starts, ends, fail_on_data_loss=options.fail_on_data_loss)
    ranges = with_moving_ends(ranges, ending, views)
    if lacking := [one.partition for one in ranges if plan.keep_partitions and (plan.target, one.partition) not in target]:
        raise ConfigError(
            f"Target {plan.target} has {len(target)} partitions, but the source has records in "
            f"{plan.stream}/{lacking[0]}. Add partitions to the target, or use --partitioner key."
        )
    if large := [one for one in ranges if one.record_count >= MAX_RECORDS]:
        raise ConfigError(
            f"{large[0]} has more than {MAX_RECORDS} records. Replay it in parts (--from, --until), each with its own --name."
        )
    shares = shares_of_files(ranges, files) if plan.table else [ReplayShare(one) for one in ranges]
    gaps = map(gaps_in, shares) if plan.table else ()
    for text in itertools.chain(losses, *gaps):
        _logger.warning("%s; replaying the rest", text)
    return [share for share in shares if share.files or not plan.table]


def replay(spark: SparkSession, plan: ReplayPlan, tell: Callable[[int], None] = lambda grown: None) -> list[ShareDone]:
    """Write the records of an archive or a stream into another stream, each exactly once.

    Args:
        spark: The Spark session.
        plan: Source, target and options.
        tell: Function that is called now and then with the growth of the target, in records.

    Returns:
        The result of each part.

    Raises:
        NotFoundError: The target was deleted and created again during the replay.
        LiftError: The error of a task.

    Example:
        from liftpy.spark import ReplayPlan, replay

        replay(spark, ReplayPlan(stream="orders", target="orders-again", name="june", table="/data/orders"))
    """
    shares, uid = shares_to_replay(plan), _target_uid(plan)
    with watch_in_thread(partial(_watch, plan, tell), "liftpy-replay"):
        done = spread(partial(replay_share, plan, len(shares)), shares, spark=spark)
    if _target_uid(plan) != uid:
        raise NotFoundError(
            f"Target {plan.target} was deleted and created again during the replay. It lacks records. Create the target "
            "again, and run the replay again."
        )
    return done


def _target_uid(plan: ReplayPlan) -> str:
    options = SourceOptions.parse({**plan.source, "stream": plan.target})
    return next(iter(Catalog(link_to(options.access), options).views().values())).uid


def _watch(plan: ReplayPlan, tell: Callable[[int], None], over: threading.Event) -> None:
    options = SourceOptions.parse(
        {**plan.source, "stream": plan.target, "startingOffsets": "earliest", "endingOffsets": "latest"}
    )
    catalog, before = Catalog(link_to(options.access), options), -1
    while not over.wait(_CHECK_EVERY_S):
        try:
            end = sum(view.end_offset for view in catalog.views().values())
        except LiftError:  # the tasks raise the error if it lasts
            continue
        before = end if before < 0 else before
        tell(end - before)


def replay_share(plan: ReplayPlan, tasks: int, share: ReplayShare) -> ShareDone:
    """Write the records of one part of a replay to the target stream, and return the result. A Spark task calls it.

    ``tasks``: number of tasks that share the rate limit of the plan.
    """
    options, planned = plan.options(), share.planned
    round = Round(f"replay:{plan.name}", planned.partition, 0, _KEEP if plan.keep_partitions else _BY_KEY)
    with _explain_errors(plan, planned.partition):
        link = link_to(options.access)
        producer = link.call(_open(link, plan.target, round), 4 * _PATIENCE_S)
        try:
            records = _send(link, producer, plan, share, options, plan.rate / tasks)
            link.call(producer.end_round(), 4 * _PATIENCE_S)
            known = producer.left_out
        finally:
            link.call(producer.close(), 4 * _PATIENCE_S)
    return ShareDone(planned.stream, planned.partition, planned.start_offset, planned.end_offset, records, known)


async def _open(link: ProcessConnection, target: str, round: Round) -> Producer:
    transport = await link.transport(_PATIENCE_S)
    requests = MetadataRequests(transport, link.subjects, _PATIENCE_S)
    chosen = ProducerOptions(patience_s=_PATIENCE_S)
    return await StreamDirectory(requests).open_producer(
        target, id=f"spark/{round.run}/{round.part}", source=round, options=chosen
    )


def _send(
    link: ProcessConnection, producer: Producer, plan: ReplayPlan, share: ReplayShare, options: SourceOptions, rate: float
) -> int:
    """Send all records of the share, and return their number. ``rate``: maximum number of new records per second, 0: no limit."""
    sent, partitions, limit = 0, producer.round_partitions, RateLimit(rate)
    batches = _from_files(share) if share.files else read_planned(share.planned, options)
    for batch in batches:
        step = max(1, int(rate) if rate else batch.num_rows)  # a batch of a file may have no row of the range
        for first in range(0, batch.num_rows, step):
            rows = with_partition_column(
                batch.slice(first, step), share.planned.partition if plan.keep_partitions else -1, partitions
            )
            began_s, known = time.monotonic(), producer.left_out
            link.call(_send_rows(producer, rows), 4 * _PATIENCE_S + rows.nbytes / _SLOWEST_BYTES_S)
            sent += rows.num_rows
            new = rows.num_rows - (producer.left_out - known)
            time.sleep(limit.pause_s(new, began_s, time.monotonic()))
    return sent


def with_partition_column(batch: pa.RecordBatch, partition: int, partitions: int) -> pa.Table:
    """Return the rows with a column ``partition``.

    Args:
        batch: The rows.
        partition: Partition for all rows. -1: null for rows with a key, otherwise offset modulo ``partitions``.
        partitions: Number of partitions of the target.
    """
    offsets = batch.column("offset")
    rows = as_binary(batch.drop_columns(["offset"]))
    check_rows(rows, stream="known", tombstones=True)
    if partition >= 0:
        return rows.append_column("partition", pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows))
    in_turn = pa.array(offsets.to_numpy() % partitions, pa.int32())
    if "key" not in rows.column_names:
        return rows.append_column("partition", in_turn)
    keyless = pc.is_null(rows["key"]).combine_chunks()
    return rows.append_column("partition", pc.if_else(keyless, in_turn, pa.scalar(None, pa.int32())))


async def _send_rows(producer: Producer, rows: pa.Table) -> None:
    for partition, records in shares_of(rows, places_of(rows, producer.round_partitions)):
        await producer.send_columns(records, partition=partition)


@contextlib.contextmanager
def _explain_errors(plan: ReplayPlan, partition: int) -> Iterator[None]:
    """Convert errors that occur while a share is replayed into SourceErrors whose text begins with the error code."""
    try:
        with with_error_code():
            yield
    except SourceError as error:
        behind = error.__cause__
        if not isinstance(behind, PublishRejectedError):
            raise
        text = str(behind)
        if isinstance(behind, PlanChangedError):
            text = (
                f"The replay {plan.name!r} wrote records to {plan.target} with another --partitioner before. This task stored nothing. "
                "Use the first --partitioner, or another name."
            )
        elif behind.reason == "DIVERGED_PRODUCER":
            text = f"The replay {plan.name!r} wrote other records of {plan.stream}/{partition} to {plan.target} before: the source or "
            text += f"the start differs, or retention deleted the first ones ({behind}). Use the same range, or another name."
        elif behind.reason == "PRODUCER_FENCED":
            text = f"{text.rstrip('.')}. Another replay under the name {plan.name!r} runs."
        raise SourceError(f"[{behind.reason}] {text}", behind.reason) from behind


def _from_files(share: ReplayShare) -> Iterator[pa.RecordBatch]:
    """Yield the share's records, in order. Raises StorageError for a file that cannot be read."""
    planned = share.planned
    with with_error_code():
        for path in share.files:
            try:
                with pq.ParquetFile(path) as file:
                    columns = [name for name in COLUMNS if name in file.schema_arrow.names]
                    for group in range(file.num_row_groups):  # a batch of several groups may be larger than the memory
                        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns):
                            offsets = batch.column("offset")
                            wanted = pc.and_(
                                pc.greater_equal(offsets, planned.start_offset), pc.less(offsets, planned.end_offset)
                            )
                            yield batch.filter(wanted)
            except (OSError, pa.ArrowException) as error:
                raise StorageError(f"Cannot read archive file {path}: {error}. Check the path and its permissions.") from error
