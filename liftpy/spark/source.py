"""The format ``liftpy`` for reading: batch and streaming readers.

Planning runs on the driver, for a streaming query in a process of its own. ``read`` runs in the Python workers of the
executors, on a copy of the reader. So a reader holds only its options, and a task gets everything in its PlannedRange.
There is no ``pushFilters``: in Spark 4.3.0 pushed filters leak into other queries of the same DataFrame. Spark never
calls ``stop``, and calls ``commit`` one micro-batch late, so nothing depends on them.

``CursorWriter`` (option ``cursor``) copies the position of a streaming query to a cursor of the cluster, for other
tools. The query itself continues from its checkpoint. The cursor is one micro-batch behind. If the cluster cannot store
it, the query continues, and a later micro-batch tries again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from liftpy.client.client import Client
from liftpy.client.positions import Position
from liftpy.core.base.ids import PartitionKey
from liftpy.errors import ConfigError, DataLossError, LiftError, NotFoundError, OutcomeUnknownError, UnavailableError
from liftpy.spark.catalog import BOUNDS_AGE_S, Catalog
from liftpy.spark.failures import with_error_code
from liftpy.spark.offsets import (
    Bounds,
    OffsetSpec,
    StreamOffsets,
    check_spec_uids,
    check_uids,
    find_recreated_streams,
    known_positions,
    raise_to_start,
    share_out,
    without,
)
from liftpy.spark.options import SourceOptions
from liftpy.spark.planning import (
    PlannedRange,
    Views,
    about,
    before_cuts,
    cut_text,
    end_within_bytes,
    epochs_before,
    named_views,
    plan_ranges,
    resolve_ends,
    resolve_starts,
    split_at_borders,
    with_epochs,
    with_moving_ends,
)
from liftpy.spark.process_connection import ProcessConnection, link_to
from liftpy.spark.range_reader import read_planned
from liftpy.spark.schema import arrow_schema, check_columns
from liftpy.spark.sink import LiftStreamWriter, LiftWriter, arrow_schema_of, sink_options

T = TypeVar("T")
PATIENCE_S = 5.0
"""Time that a micro-batch waits for the cursor, in seconds."""
RETRY_S = 10.0
"""Pause after a failed write of the cursor, in seconds."""


class CursorWriter:
    """Writes the position of a query to a cursor of the cluster, on the driver.

    Args:
        link: Connections of this process.
        name: Name of the cursor.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, link: ProcessConnection, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._name = name
        self._clock = clock
        self._client: Client | None = None
        self._not_before_s = 0.0

    def write(self, offsets: StreamOffsets) -> bool:
        """Write the position ``offsets`` of the query to the cursor. Return whether the cluster has stored it."""
        if self._clock() < self._not_before_s:
            return False
        positions = {  # the log may have other records by now, so the leaders are not asked for the LeaderEpochs
            PartitionKey(stream, uid := offsets.uids[stream], partition): Position(
                uid, offset, offsets.epochs.get((stream, partition), 0)
            )
            for (stream, partition), offset in offsets.next_offsets.items()
        }
        try:
            self._link.call(self._set(positions), PATIENCE_S)
        except LiftError as error:
            self._not_before_s = self._clock() + RETRY_S
            _logger.warning("cannot set the cursor %s: [%s] %s; a later micro-batch tries again", self._name, error.code, error)
            return False
        return True

    async def _set(self, positions: dict[PartitionKey, Position]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                transport = await self._link.transport(PATIENCE_S)
                if self._client is None or self._client.transport is not transport:
                    self._client = Client(transport, self._link.subjects, owns_connection=False)
                await self._client.cursors.set(self._name, positions)
        except TimeoutError:
            raise UnavailableError(
                f"No node or NATS server answered within {PATIENCE_S:g} s. Check the option nats and `liftpy health`."
            ) from None


_REMEDY = ". Undo the results of the lost records if you can. Then use a new checkpoint, or set failOnDataLoss=false."
_logger = logging.getLogger(__name__)


class LiftDataSource(DataSource):
    """Spark data source ``liftpy`` for reading and writing streams.

    Spark creates it for ``format("liftpy")``. ``liftpy.spark.OPTIONS`` and ``SINK_OPTIONS`` list the options.

    Example:
        frame = spark.read.format("liftpy").option("stream", "orders").load()
        query = frame.sparkSession.readStream.format("liftpy").load("orders").writeStream.format("console").start()
    """

    @classmethod
    def name(cls) -> str:
        return "liftpy"

    def schema(self) -> StructType:
        """Return the schema of a query: the default columns, or those of the option ``columns``."""
        with with_error_code():
            return from_arrow_schema(arrow_schema(self._parse_options().columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        with with_error_code():
            options = _with_schema(self._parse_options(), schema)
            options.check_batch()
            return LiftReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with with_error_code():
            options = _with_schema(self._parse_options(), schema)
            options.check_streaming()
            return LiftStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch write of rows with this ``schema``. ``overwrite`` must be False."""
        with with_error_code():
            return LiftWriter(sink_options(dict(self.options.items()), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query of rows with this ``schema``. ``overwrite`` must be False."""
        with with_error_code():
            options = sink_options(dict(self.options.items()), schema, overwrite)
            options.check_streaming()
            return LiftStreamWriter(options)

    def _parse_options(self) -> SourceOptions:
        return SourceOptions.parse(dict(self.options.items()))


def _with_schema(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Return ``options`` with the columns of ``schema``, which the user may have set.

    Raises ConfigError for unknown columns.
    """
    columns = check_columns(schema.fieldNames())
    if not arrow_schema_of(schema).equals(arrow_schema(columns)):
        raise ConfigError(
            "The schema must have the types of the source, all nullable: "
            f"{from_arrow_schema(arrow_schema(columns)).simpleString()}. Remove .schema(...), or use this schema."
        )
    return replace(options, columns=columns)


def _input_partitions(ranges: list[PlannedRange], losses: list[str]) -> list[InputPartition]:
    for loss in losses:
        _logger.warning("%s; the rest is read", loss)
    return [InputPartition(planned) for planned in ranges]


class LiftReader(DataSourceReader):
    """One batch query.

    Spark plans it once per DataFrame, at the first action. ``latest`` then means the end of the log at that time.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Plan the query: return the ranges between startingOffsets and endingOffsets, one for each task."""
        options, now_ns = self.options, time.time_ns()
        starting = (options.starting or OffsetSpec("earliest")).as_of(now_ns)
        ending = (options.ending or OffsetSpec("latest")).as_of(now_ns)
        with with_error_code():
            catalog = Catalog(link_to(options.access), options)
            views = catalog.views(starting=starting, ending=ending, known=known_positions((starting, ending)))
            check_spec_uids((starting, ending), _uids(views))
            starts, ends = resolve_starts(starting, views), resolve_ends(ending, views)
            if starting.moving or ending.moving:
                ends = raise_to_start(ends, starts)  # nothing was stamped between the two times
            ranges, losses = plan_ranges(views, starts, ends, fail_on_data_loss=options.fail_on_data_loss)
            facts = catalog.measure([about(planned) for planned in ranges])
            keys = [(planned.stream, planned.partition) for planned in ranges]
            before = {key: range_facts.before_epoch for key, range_facts in zip(keys, facts, strict=True)}
            last = {key: range_facts.end_epoch for key, range_facts in zip(keys, facts, strict=True)}
            ranges = with_moving_ends(with_epochs(ranges, before, last), ending, views)
            ranges = _split_at_fixed_ends(ranges, options, catalog)
        return _input_partitions([replace(planned, planned_ns=now_ns) for planned in ranges], losses)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range. For an empty plan, Spark passes one partition without a value."""
        return read_planned(partition.value, self.options)


class LiftStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one streaming query. The driver plans with one object, and tasks read with copies that have only the options.

    Args:
        options: Options of the source.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._catalog: Catalog | None = None
        self._cursor: CursorWriter | None = None
        self._start_offsets: StreamOffsets | None = None
        """Start of a new query. None: Spark has not requested it yet. Micro-batch 0 always starts here."""
        self._unnamed: ConfigError | None = None
        """Error of a new query whose startingOffsets lacks a partition. None: there is none."""
        self._target: StreamOffsets | None = None
        """End that Trigger.AvailableNow fixed. None: another trigger."""
        self._target_views: Views = {}
        """State of the partitions when the target was fixed. Empty: there is no target."""
        self._triggered_s: float | None = None
        """Monotonic time of the last micro-batch, in seconds. None: there was none. The first one is never delayed."""
        self._clock = time.monotonic

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query, from startingOffsets (default latest).

        A restarted query continues from its checkpoint [R10]. If it repeats micro-batch 0, Spark calls this method, too, but the
        checkpoint has the start. So a partition that was added since then is not an error yet, if startingOffsets lacks it.
        """
        with with_error_code():
            if self._start_offsets is None:
                self._start_offsets = self._resolved_start()
            return self._start_offsets.to_json()

    def _resolved_start(self) -> StreamOffsets:
        """Return the position at which a query starts now, from the option startingOffsets."""
        starting = (self.options.starting or OffsetSpec("latest")).as_of(time.time_ns())
        views = self._open_catalog().views(starting=starting, known=known_positions((starting,)))
        check_spec_uids((starting,), _uids(views))
        named = named_views(starting, views)
        if len(named) < len(views):
            try:
                resolve_starts(starting, views)
            except ConfigError as error:
                self._unnamed, views = error, named
        starts = resolve_starts(starting, views)
        ends = _ends(views).next_offsets  # a start that is gone fails here, not with the first rows
        plan_ranges(views, starts, ends, fail_on_data_loss=self.options.fail_on_data_loss)
        starts = before_cuts(starts, views)
        readable_starts = {key: start for key, start in starts.items() if start >= views[key].log_start_offset}
        epochs = epochs_before(readable_starts, _uids(views), self._open_catalog().measure)
        return StreamOffsets(starts, _uids(views), epochs)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit: maxOffsetsPerTrigger, else maxBytesPerTrigger, else no limit."""
        rows, size_bytes = self.options.max_records_per_trigger, self.options.max_bytes_per_trigger
        return ReadMaxRows(rows) if rows else ReadMaxBytes(size_bytes) if size_bytes else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch: committed, within ``limit``, never behind ``start``."""
        with with_error_code():
            start_at = StreamOffsets.from_json(start)
            if self._unnamed is not None and start_at == self._start_offsets:
                raise self._unnamed
            return self._plan_with_new_views(start_at, lambda: self._planned_end(start_at, limit)).to_json()

    def _planned_end(self, start_at: StreamOffsets, limit: ReadLimit) -> StreamOffsets:
        """Return the end of the micro-batch that begins at ``start_at``, within ``limit``."""
        views = self._views_from(start_at)
        end = self._target or _ends(views)
        starts = without(start_at.next_offsets, self._recreated_streams(start_at.uids, end.uids))
        ends = raise_to_start(end.next_offsets, starts)
        added = _first_offsets(views, starts, ends)
        readable = self._readable_starts(views, {**added, **starts}, ends)
        if self._has_too_few_records(readable, ends):
            return start_at
        uids = {**start_at.uids, **end.uids}
        if not isinstance(limit, ReadAllAvailable):  # streams of the target that were deleted since then have no leaders to ask
            present = {key: offset for key, offset in ends.items() if key in views and views[key].uid == uids[key[0]]}
            ends = {**ends, **self._apply_limit(limit, readable, present, uids)}
        end_offsets = self._with_starts(
            StreamOffsets(ends, uids, self._epochs_at(ends, start_at, end)), start_at, starts, added
        )
        if self._target is None or _have_same_leaders(self._target_views, views):
            self._open_catalog().add_confirmation(end_offsets)
        return end_offsets

    def _plan_with_new_views(self, start_at: StreamOffsets, plan: Callable[[], T]) -> T:
        """Return ``plan()``. If a stream was deleted since the newest views, call it again with new views.

        The watch notices the deletion a moment later. Until then, the leader rejects requests for the range of the deleted stream. If
        the new stream has fewer partitions, no node answers the requests for the others. ``start_at``: start of the micro-batch.
        """
        try:
            return plan()
        except NotFoundError:
            self._open_catalog().views(known=(start_at,))
        except (UnavailableError, OutcomeUnknownError):
            now = self._open_catalog().views(known=(start_at,))
            if not find_recreated_streams(start_at.uids, _uids(now)):
                raise
        return plan()

    def _readable_starts(self, views: Views, starts: Bounds, ends: Bounds) -> Bounds:
        """Return ``starts`` for the limits of a micro-batch up to ``ends``: without deleted records, if their loss is no error.

        Otherwise a query would use up its limits for records that retention has deleted, and would never catch up.
        """
        if self.options.fail_on_data_loss:
            return starts
        log_starts = {key: min(views[key].log_start_offset, ends[key]) for key in starts if key in views}
        return {key: max(start, log_starts.get(key, start)) for key, start in starts.items()}

    def _with_starts(self, end: StreamOffsets, start_at: StreamOffsets, starts: Bounds, added: Bounds) -> StreamOffsets:
        """Return ``end``, the end of a micro-batch, with those of its start offsets that no other offset in the checkpoint has.

        For micro-batch 0, these are all start offsets, because Spark does not store the start of a query. ``start_at``: start of the
        micro-batch. ``starts``, ``added``: start offsets of partitions that were read before, and of all others.
        """
        from_zero = self._streams_from_zero(start_at.uids, end.uids)
        if start_at == self._start_offsets:
            return replace(end, began={**{key: 0 if key[0] in from_zero else first for key, first in added.items()}, **starts})
        if end.next_offsets == start_at.next_offsets and end.uids == start_at.uids:
            return replace(end, began=start_at.began, added=start_at.added)
        return replace(end, added=without(added, from_zero))

    def _views_from(self, start_at: StreamOffsets) -> Views:
        """Return the state of the partitions. ``start_at``: position up to which the query has read.

        Raises DataLossError if records that the query has read no longer exist [R6].
        """
        views = self._open_catalog().views(max_age_s=BOUNDS_AGE_S, known=(start_at,))
        lost = [cut_text(view) for view in views.values() if view.cut_at is not None]
        if lost and self.options.fail_on_data_loss:
            raise DataLossError("; ".join(lost) + _REMEDY)
        return views

    def _epochs_at(self, ends: Bounds, start_at: StreamOffsets, end: StreamOffsets) -> Bounds:
        """Return the LeaderEpoch of the record before each end in ``ends``.

        ``start_at``, ``end``: positions at the start and the end of the micro-batch. If an end did not move, its epoch comes from the
        checkpoint. Otherwise Spark would see a change.
        """
        epochs, chosen = {}, {}
        for key, offset in ends.items():
            if (
                start_at.uids.get(key[0]) == end.uids.get(key[0], start_at.uids.get(key[0]))
                and start_at.next_offsets.get(key) == offset
            ):
                epochs[key] = start_at.epochs.get(key, 0)
            elif end.next_offsets.get(key) == offset:
                epochs[key] = end.epochs.get(key, 0)
            elif _between(key, offset, start_at, end):
                epochs[key] = end.epochs[key]
            else:
                chosen[key] = offset
        return {**epochs, **epochs_before(chosen, end.uids, self._open_catalog().measure)}

    def _apply_limit(self, limit: ReadLimit, starts: Bounds, ends: Bounds, uids: Mapping[str, str]) -> Bounds:
        """Return ``ends``, lowered to the limits of a micro-batch that begins at ``starts``.

        ``limit``: the limit that Spark passes, which is only one. If both options are set, it is the number of rows, and this method
        also applies the limit of bytes.
        """
        if isinstance(limit, ReadMaxRows):
            ends = share_out(limit.max_rows, starts, ends)
        most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.max_bytes_per_trigger
        return end_within_bytes(most_bytes, starts, ends, uids, self._open_catalog().measure) if most_bytes else ends

    def _has_too_few_records(self, starts: Bounds, ends: Bounds) -> bool:
        """Return whether the next micro-batch must wait, because it has fewer records than minOffsetsPerTrigger.

        It waits for at most maxTriggerDelay. The trigger AvailableNow never waits.
        """
        least = self.options.min_records_per_trigger
        if not least or self._target is not None:
            return False
        now_s = self._clock()
        waiting = sum(max(0, end - starts.get(key, end)) for key, end in ends.items())
        since_s = math.inf if self._triggered_s is None else now_s - self._triggered_s
        if waiting < least and since_s < self.options.max_trigger_delay_s:
            return True
        self._triggered_s = now_s if waiting else self._triggered_s
        return False

    def _recreated_streams(self, known: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
        if not self.options.accept_recreated:
            check_uids(known, now)
        return find_recreated_streams(known, now)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run, so that it reads only the records that are committed now."""
        with with_error_code():
            self._target_views = self._open_catalog().views()
            self._target = _ends(self._target_views)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the committed offsets. Spark shows them in the query's progress, next to what was read."""
        with with_error_code():
            return _ends(self._open_catalog().views(max_age_s=BOUNDS_AGE_S)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of the micro-batch from ``start`` to ``end``, one for each task.

        Equal positions give equal records, also after a restart.
        """
        with with_error_code():
            start_at, ended = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
            return self._plan_with_new_views(start_at, lambda: self._planned_tasks(start_at, ended))

    def _planned_tasks(self, start_at: StreamOffsets, ended: StreamOffsets) -> list[InputPartition]:
        """Return the ranges of the micro-batch from ``start_at`` to ``ended``, one for each task."""
        if ended.began and not start_at.began:  # micro-batch 0, perhaps again: startingOffsets may mean another offset by now
            start_at = replace(ended, next_offsets=ended.began, epochs=self._epochs_began(start_at, ended), began={})
        views = self._open_catalog().views_reaching(ended, start_at)
        recreated_streams = self._recreated_streams(ended.uids, _uids(views))
        again = self._recreated_streams(start_at.uids, ended.uids) | recreated_streams
        if not self.options.accept_recreated:
            check_uids(start_at.uids, _uids(views))
        from_zero = self._streams_from_zero(start_at.uids, ended.uids)
        firsts = {key: 0 for key in ended.next_offsets if key[0] in from_zero - again}
        starts = {**firsts, **without(ended.added, recreated_streams), **without(start_at.next_offsets, again)}
        ranges, losses = plan_ranges(
            views,
            starts,
            without(ended.next_offsets, recreated_streams),
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        same = {key: epoch for key, epoch in start_at.epochs.items() if key[0] not in again}
        ranges = _split(with_epochs(ranges, same, _epochs_of_ends(ended, ranges)), self.options, self._open_catalog())
        return _input_partitions(ranges, [*losses, *_unread_records(start_at, ended, again)])

    def _streams_from_zero(self, known: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
        """Return the names of the streams whose added partitions the query reads from offset 0 on.

        These are the streams that the query has read before. Partitions that the user adds with the option ``assign`` may be old.
        ``known``, ``now``: uid of each stream before and now.
        """
        return set() if self.options.wanted.partitions else {*known} - find_recreated_streams(known, now)

    @staticmethod
    def _epochs_began(start_at: StreamOffsets, ended: StreamOffsets) -> Bounds:
        """Return the LeaderEpochs of the records before the start of the query, for each partition whose start is in the checkpoint.

        ``start_at``: start of the query now. ``ended``: end of micro-batch 0 in the checkpoint.
        """
        same = {stream for stream, uid in start_at.uids.items() if ended.uids.get(stream) == uid}
        return {
            key: epoch
            for key, epoch in start_at.epochs.items()
            if key[0] in same and ended.began.get(key) == start_at.next_offsets[key]
        }

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the cursor up to ``end``, if the option ``cursor`` is set. Spark calls this when it begins the next micro-batch."""
        if self.options.cursor:
            if self._cursor is None:
                self._cursor = CursorWriter(link_to(self.options.access), self.options.cursor)
            self._cursor.write(StreamOffsets.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_planned(partition.value, self.options)

    def _open_catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(link_to(self.options.access), self.options, watches=True)
        return self._catalog


def _between(key: tuple[str, int], offset: int, start: StreamOffsets, end: StreamOffsets) -> bool:
    """Return whether ``offset`` of partition ``key`` lies between the positions ``start`` and ``end``, and both have one LeaderEpoch.

    All records between these positions then have that LeaderEpoch [D14].
    """
    epoch, same = start.epochs.get(key, 0), start.uids.get(key[0]) == end.uids.get(key[0])
    return bool(epoch) and same and epoch == end.epochs.get(key) and start.next_offsets[key] <= offset <= end.next_offsets[key]


def _epochs_of_ends(ended: StreamOffsets, ranges: list[PlannedRange]) -> Bounds:
    """Return the LeaderEpochs of the position ``ended`` in the checkpoint, for the partitions whose range in ``ranges`` ends there.

    Ranges that end early because records were deleted are left out.
    """
    keys = {(r.stream, r.partition): r.end_offset for r in ranges}
    return {key: epoch for key, epoch in ended.epochs.items() if keys.get(key) == ended.next_offsets.get(key)}


def _split(ranges: list[PlannedRange], options: SourceOptions, catalog: Catalog) -> list[PlannedRange]:
    return split_at_borders(ranges, options.min_partitions, options.max_records_per_partition, catalog.measure)


def _split_at_fixed_ends(ranges: list[PlannedRange], options: SourceOptions, catalog: Catalog) -> list[PlannedRange]:
    """Split the planned ``ranges`` into tasks. A range with a moving end stays one task, because only that task finds the end [R11]."""
    whole, others = [one for one in ranges if one.moves_end], [one for one in ranges if not one.moves_end]
    if whole and (options.min_partitions > len(ranges) or options.max_records_per_partition):
        _logger.info("minPartitions and maxRecordsPerPartition do not divide compacted streams that are read up to latest")
    wanted = replace(options, min_partitions=max(0, options.min_partitions - len(whole)))
    pieces = _split(others, wanted, catalog) if others else []
    return sorted([*whole, *pieces], key=lambda one: (one.stream, one.partition, one.start_offset))


def _unread_records(start_at: StreamOffsets, ended: StreamOffsets, again: set[str]) -> Iterator[str]:
    """Yield texts about unread records of the streams ``again``, which were deleted and created again.

    ``start_at``, ``ended``: positions at the start and the end of the micro-batch.
    """
    for (stream, partition), offset in sorted(start_at.next_offsets.items()):
        if stream in again:
            end = (
                ended.next_offsets.get((stream, partition), offset) if ended.uids.get(stream) == start_at.uids[stream] else None
            )
            what = "all records" if end is None else f"offsets [{offset}, {end})" if end > offset else "no known records"
            whose = f"{stream}/{partition} (uid {start_at.uids[stream]})"
            yield f"{stream} was deleted and created again. The query lost {what} from offset {offset} of {whose} on"


def _have_same_leaders(earlier: Views, now: Views) -> bool:
    """Return whether no partition has had an election between two states. Otherwise records of the first one may be lost."""
    return all(key in now and now[key].leader_epoch == view.leader_epoch for key, view in earlier.items())


def _first_offsets(views: Views, starts: Bounds, ends: Bounds) -> Bounds:
    """Return the log starts of the partitions that ``ends`` has and ``starts`` lacks, because no micro-batch has read them yet."""
    return {key: min(views[key].log_start_offset, ends[key]) for key in ends.keys() - starts.keys() if key in views}


def _uids(views: Views) -> dict[str, str]:
    return {view.stream: view.uid for view in views.values()}


def _ends(views: Views) -> StreamOffsets:
    ends = {key: view.end_offset for key, view in views.items()}
    return StreamOffsets(ends, _uids(views), {key: view.end_epoch for key, view in views.items()})
