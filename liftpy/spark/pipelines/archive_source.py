"""Data source of the streaming query of an archive. A task writes its range to a file, and yields one row that describes
the file.

The query is planned and limited like a query of the format ``liftpy``. Records do not go through the JVM. This module
imports pyspark at the top, so ``archive`` imports it only when a query starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from liftpy.spark.failures import with_error_code
from liftpy.spark.options import SourceOptions
from liftpy.spark.pipelines.archive_writer import WriterSettings, write_range
from liftpy.spark.pipelines.tables import MANIFEST, ArchivedRange
from liftpy.spark.planning import PlannedRange
from liftpy.spark.range_reader import read_planned
from liftpy.spark.schema import arrow_schema
from liftpy.spark.source import LiftStreamReader

FORMAT = "liftpy_archive"
ROOT, COMPRESSION = "archiveroot", "archivecompression"
"""Options of this source in addition to those of ``liftpy``, as Spark passes them."""


class ManifestDataSource(DataSource):
    """Spark data source ``liftpy_archive``. Only the pipeline ``archive`` uses it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the rows. One row describes one written range."""
        return from_arrow_schema(MANIFEST)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with with_error_code():
            return ManifestStreamReader(*split_options(dict(self.options.items())))


def split_options(settings: Mapping[str, str]) -> tuple[SourceOptions, WriterSettings]:
    """Return (options of the source, settings of the files to write) from Spark's option map. Raises ConfigError."""
    own = {name.lower(): value for name, value in settings.items() if name.lower() in (ROOT, COMPRESSION)}
    options = SourceOptions.parse({name: value for name, value in settings.items() if name.lower() not in own})
    options.check_streaming()
    return options, WriterSettings(own[ROOT], own.get(COMPRESSION, "zstd"))


class ManifestStreamReader(LiftStreamReader):
    """Reader that writes each range to a file.

    Args:
        options: Options of the source.
        writing: Settings of the files.
    """

    def __init__(self, options: SourceOptions, writing: WriterSettings) -> None:
        super().__init__(options)
        self.writing = writing

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the range to a file, and yield the row that describes it."""
        planned: PlannedRange | None = partition.value
        if planned is None:
            return
        with with_error_code():
            deletes_ends: list[int] = []
            batches = read_planned(planned, self.options, deletes_ends.append)
            written = write_range(planned, batches, arrow_schema(self.options.columns), self.writing, deletes_ends)
        yield row_of(written)


def row_of(written: ArchivedRange) -> pa.RecordBatch:
    """Return an Arrow batch with one row that describes the written range."""
    fields = asdict(written)
    return pa.RecordBatch.from_pydict({name: [fields[name]] for name in MANIFEST.names}, schema=MANIFEST)
