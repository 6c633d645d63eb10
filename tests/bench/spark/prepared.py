"""A Spark source that sends one prepared Arrow batch again and again: the most that any source written in Python can give."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from liftpy.spark.schema import arrow_schema, default_columns

KEYS = 1000
"""Distinct keys of every system's records."""
_ROWS = {100: 8192}
_LARGE_ROWS = 4096


def prepared(size_bytes: int) -> pa.RecordBatch:
    """A batch of the source's columns, as many rows as suit the size."""
    rows = _ROWS.get(size_bytes, _LARGE_ROWS)
    schema = arrow_schema(default_columns(include_headers=False, topic=False))
    key = [b"%08d" % (i % KEYS) for i in range(rows)]
    noise = np.random.default_rng(1).bytes(rows * size_bytes)
    value = [noise[i * size_bytes : (i + 1) * size_bytes] for i in range(rows)]
    columns = {
        "key": key,
        "value": value,
        "subject": ["bench"] * rows,
        "stream": ["bench"] * rows,
        "partition": np.zeros(rows, dtype=np.int32),
        "offset": np.arange(rows),
        "timestamp": np.arange(rows),
        "leader_epoch": np.ones(rows, dtype=np.int64),
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


class PreparedSource(DataSource):
    """Options ``records``, ``bytes``, ``tasks``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "prepared"

    def schema(self) -> StructType:
        """The source's."""
        return from_arrow_schema(arrow_schema(default_columns(include_headers=False, topic=False)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The one reader."""
        return PreparedReader(int(self.options["records"]), int(self.options["bytes"]), int(self.options["tasks"]))


class PreparedReader(DataSourceReader):
    """``records`` of ``size_bytes`` in ``tasks``."""

    def __init__(self, records: int, size_bytes: int, tasks: int) -> None:
        self._records, self._size_bytes, self._tasks = records, size_bytes, tasks

    def partitions(self) -> list[InputPartition]:
        """One a task."""
        return [InputPartition(self._records // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The same batch until there are enough rows."""
        batch = _kept.setdefault(self._size_bytes, None) or prepared(self._size_bytes)
        _kept[self._size_bytes] = batch
        left = partition.value
        while left > 0:
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= batch.num_rows


_kept: dict[int, pa.RecordBatch | None] = {}
"""By size; of this worker."""
