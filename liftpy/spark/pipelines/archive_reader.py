"""Read an archive, alone or together with its live stream, as one DataFrame.

The table is read at one version, and the stream continues where that version ends. So there is no gap and no overlap,
even if the archive grows meanwhile. If retention deleted records that are not archived, the read fails with
``DATA_LOSS``.
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
    """Return the records in the table as a DataFrame, at its current version.

    Args:
        spark: The Spark session.
        table: Directory of the table.
        stream: Only records of this stream. Default '': all.

    Example:
        from liftpy.spark import archived

        archived(spark, "/data/orders").count()
    """
    state = state_of(table_at(table))
    return _rows(spark, state.files, stream)


def whole(spark: SparkSession, table: str, stream: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Return all records of a stream: those in the table and the newer ones in the stream.

    The DataFrame ends at the records that are committed at its first action. It has the columns of the table.

    Args:
        spark: The Spark session.
        table: Directory of the table.
        stream: Name of the stream.
        options: Options of the format ``liftpy``, such as ``nats``. Default None.

    Raises:
        NotFoundError: The table has no records of this stream, or the stream was deleted and created again.
        DataLossError: Retention deleted records that are not in the table.

    Example:
        from liftpy.spark import whole

        whole(spark, "/data/orders", "orders").count()
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
