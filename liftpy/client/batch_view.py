"""Records and batches as an application gets them. ``BatchSlice`` shares the memory of its batch.

A node always sends complete batches. So the first batch of an answer may begin before the requested offset, and the
last one may end after the requested range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from liftpy.core.base.ids import PartitionKey
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


class ConsumedRecord(NamedTuple):
    """One record with its stream and partition. It also unpacks into (stream, partition, record).

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        record: The record as ``client.consume`` returns it.

    Example:
        async for record in group:
            print(record.stream, record.partition, record.offset, record.value)
    """

    stream: str
    partition: int
    record: Record

    @property
    def offset(self) -> int:
        """Offset in the partition."""
        return self.record.offset

    @property
    def timestamp_ns(self) -> int:
        """Time at which the leader appended the record, in nanoseconds since 1970."""
        return self.record.timestamp_ns

    @property
    def key(self) -> bytes | None:
        """Key. None: the record has no key."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """Payload. None: the record is a tombstone."""
        return self.record.value

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Pairs of name and value, in order. Names may repeat."""
        return self.record.headers

    @property
    def subject(self) -> str:
        """NATS subject on which the record was published. '': not known."""
        return self.record.subject

    @property
    def reply(self) -> str | None:
        """Reply subject of the publisher. None: there was none."""
        return self.record.reply

    @property
    def leader_epoch(self) -> int:
        """LeaderEpoch of the leader that appended the record."""
        return self.record.leader_epoch

    def header(self, name: str, default: bytes | None = None) -> bytes | None:
        """Return the value of the first header with a name.

        Args:
            name: Name of the header. Upper and lower case differ.
            default: Value if there is no such header. Default None.
        """
        return self.record.header(name, default)


def _reject_old_name(record: ConsumedRecord, name: str) -> Any:
    if name in ("slice", "generation"):
        raise AttributeError(f"A record has no {name!r}. To process batches, iterate over group.batches().")
    raise AttributeError(f"'ConsumedRecord' object has no attribute {name!r}")


_Made = type("_Made", (tuple,), {"__slots__": (), "__new__": tuple.__new__})
_CONSUMED_OF: Callable[[tuple[object, ...]], ConsumedRecord] = type(
    "ConsumedRecord",
    (_Made, ConsumedRecord),
    {
        "__slots__": (),
        "__module__": ConsumedRecord.__module__,
        "__doc__": ConsumedRecord.__doc__,
        "__getattr__": _reject_old_name,
        "__reduce__": lambda record: (ConsumedRecord, tuple(record)),
    },
)
"""Fast constructor of ConsumedRecord from one tuple. A copied or unpickled record is a plain ConsumedRecord."""


def records_of(stream: str, partition: int, piece: BatchSlice) -> Iterator[ConsumedRecord]:
    """Yield each record of the slice ``piece`` as a ConsumedRecord, which also has the stream and the partition."""
    return map(_CONSUMED_OF, zip(repeat(stream), repeat(partition), piece.records()))


@dataclass(frozen=True, slots=True)
class ConsumedBatch:
    """Records of one partition, as ``ManyConsumer.batches`` returns them.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        slice: The records.
    """

    stream: str
    partition: int
    slice: BatchSlice


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Records of one partition, as ``Group.batches`` and ``Group.take`` return them.

    Attributes:
        key: The partition: stream, uid and number.
        generation: Generation of this member's ownership. A later owner has a higher one.
        slice: The records.
    """

    key: PartitionKey
    generation: int
    slice: BatchSlice
