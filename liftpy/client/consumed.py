"""Records and batches that know their stream and partition. Readers of several partitions return them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

from liftpy.client.batch_view import BatchSlice
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import Record


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
