"""What a reader hands on: a batch, cut to the records that were asked for. Pure; nothing is copied by cutting.

Batches travel whole, so the first one of an answer may begin before the wanted offset and the last one end after it.
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
    """``pieces`` in order, each let go when the next is wanted; the list is empty afterwards. Once looked into, a slice holds what its
    batch decompresses to, and a list of them all of that."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Records ``first_index`` (inclusive) to ``end_index`` (exclusive) of ``batch``; at least one."""

    batch: RecordBatch
    first_index: int
    end_index: int

    @classmethod
    def between(cls, batch: RecordBatch, start_offset: int, end_offset: int | None) -> BatchSlice | None:
        """The records of ``batch`` from ``start_offset`` on, before ``end_offset`` (None: to its end); None if there are none.

        A control batch holds records of the protocol, none of an application: it always gives None.
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
        """(records before the first one stamped at or after ``timestamp_ns``, that one's offset); without one (all of it, None)."""
        late = np.flatnonzero(self.timestamps_ns() >= timestamp_ns)
        if not late.size:
            return self, None
        first = int(late[0])
        kept = BatchSlice(self.batch, self.first_index, self.first_index + first) if first else None
        return kept, int(self.offsets()[first])

    @property
    def whole(self) -> bool:
        """Whether nothing was cut away."""
        return self.first_index == 0 and self.end_index == self.batch.record_count

    @property
    def record_count(self) -> int:
        """How many records it holds."""
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
        """int64[record_count]: the offset of every record."""
        return self.batch.offsets()[self.first_index : self.end_index]

    def timestamps_ns(self) -> NDArray[np.int64]:
        """int64[record_count]: when the leader stamped every record, ns since 1970."""
        return self.batch.timestamps_ns()[self.first_index : self.end_index]

    def values(self) -> list[bytes | None]:
        """The values; None is a tombstone."""
        values = self.batch.values()
        return values if self.whole else values[self.first_index : self.end_index]

    def keys(self) -> list[bytes | None]:
        """The keys, None where there is none."""
        keys = self.batch.keys()
        return keys if self.whole else keys[self.first_index : self.end_index]

    def subjects(self) -> list[str]:
        """The subjects, '' where a record has none."""
        column = self.batch.columns.subjects
        if column is None:
            return [""] * self.record_count
        subjects = column.to_list()
        return subjects if self.whole else subjects[self.first_index : self.end_index]

    def headers(self) -> list[tuple[tuple[str, bytes], ...]]:
        """The headers, (name, value) in their order, () where a record has none."""
        column = self.batch.columns.headers
        if column is None:
            return [()] * self.record_count
        headers = column.to_list()
        return headers if self.whole else headers[self.first_index : self.end_index]

    def to_arrow(self) -> Any:
        """A ``pyarrow.RecordBatch`` of the records: offset, timestamp, key, value, headers, subject, leader_epoch. Values of a batch
        that is not compressed are not copied. Bytes of subjects and header names that are not UTF-8 become ``\\xe9``."""
        from liftpy.core.log.arrow import Rows, rows_to_arrow

        return rows_to_arrow([Rows(self.batch, self.first_index, self.end_index)])

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` of them (needs pandas)."""
        return self.to_arrow().to_pandas()

    def records(self) -> Iterator[Record]:
        """The records one by one, for code that works by record; columns are much faster."""
        records = self.batch.records()
        return records if self.whole else islice(records, self.first_index, self.end_index)
