"""``BatchSlice``: a range of records of one batch. It shares the memory of the batch.

A node always sends complete batches. So the first batch of an answer may begin before the requested offset, and the
last one may end after the requested range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftpy.core.wire.batch import Record, RecordBatch


def one_by_one(pieces: list[BatchSlice]) -> Iterator[BatchSlice]:
    """Yield the slices of the list ``pieces``, and empty the list, so that the memory of each slice is freed after its use."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """At least one record of one batch, in offset order.

    Columns (``values``, ``keys``, ``offsets``, ``to_arrow``) are much faster than ``records``.

    Args:
        batch: The whole batch.
        first_index: Index of the first record, inclusive.
        end_index: Index after the last record, exclusive.

    Example:
        async for piece in client.consume("orders", until="end").batches():
            print(piece.offsets(), piece.values())
    """

    batch: RecordBatch
    first_index: int
    end_index: int

    @classmethod
    def between(cls, batch: RecordBatch, start_offset: int, end_offset: int | None) -> BatchSlice | None:
        """Return the records of a batch in an offset range.

        Args:
            batch: The batch.
            start_offset: First offset, inclusive.
            end_offset: End offset, exclusive. None: to the end of the batch.

        Returns:
            The slice. None if it has no records, or if the batch is a control batch.
        """
        if batch.header.control:
            return None
        first, end = 0, batch.record_count
        cut_end = end_offset is not None and end_offset < batch.next_offset
        if start_offset > batch.base_offset or cut_end:
            offsets = batch.offsets()
            first = int(np.searchsorted(offsets, start_offset))
            if end_offset is not None and cut_end:
                end = int(np.searchsorted(offsets, end_offset))
        return cls(batch, first, end) if first < end else None

    def before(self, timestamp_ns: int) -> tuple[BatchSlice | None, int | None]:
        """Split the slice at a time.

        Args:
            timestamp_ns: Time in nanoseconds since 1970.

        Returns:
            The records before the first record at or after the time, and the offset of that record. (The slice, None)
            if all records are older.
        """
        late = np.flatnonzero(self.timestamps_ns() >= timestamp_ns)
        if not late.size:
            return self, None
        first = int(late[0])
        head = BatchSlice(self.batch, self.first_index, self.first_index + first) if first else None
        return head, int(self.offsets()[first])

    @property
    def whole(self) -> bool:
        """True if the slice is the whole batch."""
        return self.first_index == 0 and self.end_index == self.batch.record_count

    @property
    def record_count(self) -> int:
        """Number of records."""
        return self.end_index - self.first_index

    @property
    def leader_epoch(self) -> int:
        """LeaderEpoch in which the records were appended."""
        return self.batch.leader_epoch

    @property
    def first_offset(self) -> int:
        """Offset of the first record, inclusive."""
        return int(self.offsets()[0])

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive."""
        return int(self.offsets()[-1])

    def offsets(self) -> NDArray[np.int64]:
        """Return the offset of each record, as an int64 array."""
        return self.batch.offsets()[self.first_index : self.end_index]

    def timestamps_ns(self) -> NDArray[np.int64]:
        """Return the leader timestamp of each record, in nanoseconds since 1970, as an int64 array."""
        return self.batch.timestamps_ns()[self.first_index : self.end_index]

    def values(self) -> list[bytes | None]:
        """Return the values. None is a tombstone."""
        values = self.batch.values()
        return values if self.whole else values[self.first_index : self.end_index]

    def keys(self) -> list[bytes | None]:
        """Return the keys. None is a record without a key."""
        keys = self.batch.keys()
        return keys if self.whole else keys[self.first_index : self.end_index]

    def subjects(self) -> list[str]:
        """Return the subjects. '' is a record without a subject."""
        column = self.batch.columns.subjects
        if column is None:
            return [""] * self.record_count
        subjects = column.to_list()
        return subjects if self.whole else subjects[self.first_index : self.end_index]

    def headers(self) -> list[tuple[tuple[str, bytes], ...]]:
        """Return the headers of each record as (name, value) pairs, in order."""
        column = self.batch.columns.headers
        if column is None:
            return [()] * self.record_count
        headers = column.to_list()
        return headers if self.whole else headers[self.first_index : self.end_index]

    def to_arrow(self) -> Any:
        r"""Return a ``pyarrow.RecordBatch`` of the records.

        The columns are offset, timestamp, key, value, headers, subject and leader_epoch. Values of an uncompressed
        batch are not copied. Bytes of subjects and header names that are not UTF-8 become escapes such as ``\xe9``.
        """
        from liftpy.core.log.arrow import Rows, rows_to_arrow

        return rows_to_arrow([Rows(self.batch, self.first_index, self.end_index)])

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` of the records. Needs pandas."""
        return self.to_arrow().to_pandas()

    def records(self) -> Iterator[Record]:
        """Iterate record by record. Columns are much faster."""
        records = self.batch.records()
        return records if self.whole else islice(records, self.first_index, self.end_index)
