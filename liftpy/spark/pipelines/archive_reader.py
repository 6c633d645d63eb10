"""An archive and its live stream as one DataFrame: the table up to where it ends, the stream from there on.

The table is read at one version, so that its files and the ends of its partitions belong together: there is no gap and no overlap,
however far the archive gets meanwhile. Where retention has taken what is not archived yet, that is DATA_LOSS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from liftpy.errors import NotFoundError
from liftpy.spark.catalog import Catalog
from liftpy.spark.offsets import EARLIEST
from liftpy.spark.options import SourceOptions
from liftpy.spark.pipelines.naming import check_archived, end_mark, uid_mark
from liftpy.spark.pipelines.table_commit import starts_after
from liftpy.spark.pipelines.table_kind import state_of, table_at
from liftpy.spark.process_connection import link_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def archived(spark: SparkSession, table: str, stream: str = "") -> DataFrame:
    """What the table has, of one stream or of all; as it is now, whatever is added later."""
    state = state_of(table_at(table))
    return _rows(spark, state.files, stream)


def whole(spark: SparkSession, table: str, stream: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """All records of ``stream``: those in the table, and those behind them that are committed at the DataFrame's first action.

    ``options``: of the format ``liftpy`` (``nats``...). The columns are the table's. Raises NotFoundError where the table does not have
    this stream, or has one of that name that was deleted since.
    """
    given = {**(options or {}), "stream": check_archived(stream)}
    source = SourceOptions.parse(given)
    views = Catalog(link_to(source.access), source).views()
    marks = {end_mark(*key) for key in views} | {uid_mark(stream, view.uid) for view in views.values()}
    state = state_of(table_at(table), marks)
    starts = starts_after({key: view.uid for key, view in views.items()}, state.marks, EARLIEST)
    if starts is None:
        raise NotFoundError(f"Table {table} has no records of stream {stream}. Check the table path and the stream name.")
    columns = state.schema.names
    live = (
        spark.read.format("liftpy")
        .options(**{**given, "columns": ",".join(columns), "startingOffsets": json.dumps(starts)})
        .load()
    )
    return _rows(spark, state.files, stream).select(*columns).unionByName(live)


def _rows(spark: SparkSession, files: tuple[str, ...], stream: str) -> DataFrame:
    frame = spark.read.parquet(*files)
    return frame.where(frame["stream"] == stream) if stream else frame
