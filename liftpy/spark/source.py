"""The format ``liftpy`` as Spark calls it: batch and streaming readers. The only module that imports pyspark at the top.

Who runs where: planning on the driver (for a streaming query in a process of its own that lives as long as the query),
``read()`` in the executors' Python workers on another, unpickled object. So a reader holds nothing but its options, and a task
gets all it needs in its PlannedRange. There is no ``pushFilters``: in Spark 4.3.0 pushed filters leak into other queries on the
same DataFrame. ``stop`` is never called by Spark, and ``commit`` comes one batch late: nothing depends on them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from liftpy.errors import ConfigError
from liftpy.spark.catalog import BOUNDS_AGE_S, Catalog
from liftpy.spark.failures import coded
from liftpy.spark.link import link_to
from liftpy.spark.offsets import Bounds, OffsetSpec, StreamOffsets, check_uids, never_back, share_out
from liftpy.spark.options import SourceOptions
from liftpy.spark.planning import PlannedRange, Views, plan_ranges, resolve_ends, resolve_starts
from liftpy.spark.reading import read_planned
from liftpy.spark.schema import arrow_schema, check_columns

_logger = logging.getLogger(__name__)


class LiftDataSource(DataSource):
    """``spark.read.format("liftpy")`` and ``spark.readStream.format("liftpy")``; options in ``liftpy.spark.options``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "liftpy"

    def schema(self) -> StructType:
        """All columns, or those of the option ``columns``."""
        with coded():
            return from_arrow_schema(arrow_schema(self._parsed().columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader."""
        with coded():
            options = _with_schema(self._parsed(), schema)
            options.check_batch()
            return LiftReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The streaming reader."""
        with coded():
            options = _with_schema(self._parsed(), schema)
            options.check_streaming()
            return LiftStreamReader(options)

    def _parsed(self) -> SourceOptions:
        return SourceOptions.parse(dict(self.options.items()))


def _with_schema(options: SourceOptions, schema: StructType) -> SourceOptions:
    """``options`` with the columns of ``schema``, which a user may have given; ConfigError if it is not made of ours."""
    columns = check_columns(schema.fieldNames())
    if not to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(columns)):
        raise ConfigError(
            f"the schema must have the source's types, all nullable: {from_arrow_schema(arrow_schema(columns)).simpleString()}"
        )
    return replace(options, columns=columns)


def _input_partitions(ranges: list[PlannedRange], losses: list[str]) -> list[InputPartition]:
    for loss in losses:
        _logger.warning("%s; failOnDataLoss is false, the rest is read", loss)
    return [InputPartition(planned) for planned in ranges]


class LiftReader(DataSourceReader):
    """One batch query. Spark plans once per DataFrame, at its first action: ``latest`` is resolved then and stays."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """The ranges between startingOffsets and endingOffsets, as of now."""
        options = self.options
        starting, ending = options.starting or OffsetSpec("earliest"), options.ending or OffsetSpec("latest")
        with coded():
            catalog = Catalog(link_to(options.access), options)
            views = catalog.views(starting_ns=starting.timestamp_ns, ending_ns=ending.timestamp_ns)
            _check_spec_uids((starting, ending), views)
            starts, ends = resolve_starts(starting, views), resolve_ends(ending, views)
            if starting.timestamp_ns is not None or ending.timestamp_ns is not None:
                ends = never_back(ends, starts)  # nothing was stamped between the two times
            planned = plan_ranges(
                views,
                starts,
                ends,
                fail_on_data_loss=options.fail_on_data_loss,
                min_partitions=options.min_partitions,
            )
        return _input_partitions(*planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range. An empty plan comes as one partition without a value."""
        return read_planned(partition.value, self.options)


class LiftStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. ``_catalog``, ``_target``: only on the driver; the object that reads is another one.

    ``_target``: what Trigger.AvailableNow froze, None without it.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._catalog: Catalog | None = None
        self._target: StreamOffsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a NEW query begins: startingOffsets, default latest. One that restarts goes on from its checkpoint."""
        starting = self.options.starting or OffsetSpec("latest")
        with coded():
            views = self._asked().views(starting_ns=starting.timestamp_ns)
            _check_spec_uids((starting,), views)
            starts = resolve_starts(starting, views)
            ends = _ends(views).next_offsets  # a start that is gone fails here, not with the first rows
            plan_ranges(views, starts, ends, fail_on_data_loss=self.options.fail_on_data_loss)
            return StreamOffsets(starts, _uids(views)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, else all there is."""
        limit = self.options.max_records_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch: committed, within ``limit``, never behind ``start``."""
        with coded():
            begun = StreamOffsets.from_json(start)
            end = self._target or _ends(self._asked().views(max_age_s=BOUNDS_AGE_S))
            check_uids(begun.uids, end.uids)
            ends = never_back(end.next_offsets, begun.next_offsets)
            if isinstance(limit, ReadMaxRows):
                ends = share_out(limit.max_rows, self._with_added(begun.next_offsets, ends), ends)
            return StreamOffsets(ends, {**begun.uids, **end.uids}).to_json()

    def _with_added(self, starts: Bounds, ends: Bounds) -> Bounds:
        """``starts``, and where partitions begin that were added since: what is in them counts for the limit, too."""
        if ends.keys() <= starts.keys():
            return starts
        views = self._asked().views(max_age_s=BOUNDS_AGE_S)
        added = {key: min(views[key].log_start_offset, ends[key]) for key in ends.keys() - starts.keys() if key in views}
        return {**added, **starts}

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end: what is committed now is read by this run, nothing later."""
        with coded():
            self._target = _ends(self._asked().views())

    def reportLatestOffset(self) -> dict[str, Any]:
        """What is committed; Spark shows it in the query's progress beside what was read."""
        with coded():
            return _ends(self._asked().views(max_age_s=BOUNDS_AGE_S)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of one micro-batch; for the same two offsets the same records, also after a restart."""
        with coded():
            begun, ended = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
            views = self._asked().views_reaching(ended.next_offsets)
            check_uids({**begun.uids, **ended.uids}, _uids(views))
            planned = plan_ranges(
                views,
                begun.next_offsets,
                ended.next_offsets,
                fail_on_data_loss=self.options.fail_on_data_loss,
                min_partitions=self.options.min_partitions,
            )
        return _input_partitions(*planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        return read_planned(partition.value, self.options)

    def _asked(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(link_to(self.options.access), self.options)
        return self._catalog


def _uids(views: Views) -> dict[str, str]:
    return {view.stream: view.uid for view in views.values()}


def _ends(views: Views) -> StreamOffsets:
    return StreamOffsets({key: view.end_offset for key, view in views.items()}, _uids(views))


def _check_spec_uids(specs: tuple[OffsetSpec, ...], views: Views) -> None:
    known: Mapping[str, str] = {stream: uid for spec in specs for stream, uid in spec.uids}
    check_uids(known, _uids(views))
