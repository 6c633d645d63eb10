"""Producer data in a batch besides numbers: the producer id, the source position, and the partitioning method. Pure.

The leader writes it as the last column of a batch, with one entry. It is stored, replicated, and survives compaction
with the batch. Little endian::

    u16 size of the name, u16 size of the uid, u8 1 if there is a position, u8 method, 2 zeros, u32 partition, i64
    offset,
    u64 generation, the name, the uid (UTF-8)

If a producer has no source, the field ``partition`` contains the number of partitions among which it chooses, and
``method`` how it chooses.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple, Self

from liftpy.core.wire._pb import client_pb2
from liftpy.errors import CorruptionError

MAX_NAME_BYTES = 255
MAX_UID_BYTES = 128
PLAN_SHIFT = 54
MAX_PLAN = 511
_FORMAT = struct.Struct("<HHBB2xIqQ")


class PartitioningMethod(IntEnum):
    """Method by which a producer chooses partitions. The numbers are those of ``Partitioning.Method``."""

    UNKNOWN = 0
    """The method is not given, or the producer's processes have used several."""
    RANDOM = 1
    KEY = 2
    """The key decides. A record without key is placed as with ``RANDOM``."""
    NUMBER = 3
    """The number of the record decides."""
    KEY_OR_NUMBER = 4
    """The key decides. A record without key is placed by its number among the records without key."""
    FUNCTION = 5
    """A function of the application decides."""


BY_KEY = {PartitioningMethod.KEY, PartitioningMethod.KEY_OR_NUMBER}
"""Methods that choose the same partition for a record with a key."""


class Partitioning(NamedTuple):
    """Choice of partitions by a producer: the number of ``partitions``, and the ``method``. An unknown method stays a number."""

    partitions: int
    method: int

    def message(self) -> client_pb2.Partitioning:
        message = client_pb2.Partitioning(partitions=self.partitions)
        message.method = self.method  # type: ignore[assignment]  # proto3 enums are open
        return message


UNKNOWN_PARTITIONING = Partitioning(0, PartitioningMethod.UNKNOWN)


class SourcePosition(NamedTuple):
    """Position of a producer in its source stream: the last record that it has processed.

    ``offset``: inclusive. ``generation``: generation of the consumer group that read it, 0 for none.
    """

    stream_uid: str
    partition: int
    offset: int
    generation: int = 0

    @property
    def source(self) -> tuple[str, int]:
        """(uid of the source stream, its partition). Positions can be compared only within one source."""
        return self.stream_uid, self.partition

    @property
    def plan(self) -> int:
        """Number of the plan by which a Spark round divides records among producers (``liftpy.client.write_epoch``).

        0: not given. At most MAX_PLAN. It is stored in high bits of ``offset`` that no offset reaches.
        """
        return self.offset >> PLAN_SHIFT

    def message(self) -> client_pb2.SourcePosition:
        return client_pb2.SourcePosition(
            streamUid=self.stream_uid, partition=self.partition, offset=self.offset, generation=self.generation
        )


class ProducerNote(NamedTuple):
    """Producer data that a batch contains in addition to numbers.

    ``name``: name of the producer, '' in most batches. ``position``: None if the producer only numbers its records.
    ``partitioning``: None if not given, and always with a position.
    """

    name: str = ""
    position: SourcePosition | None = None
    partitioning: Partitioning | None = None

    def encode(self) -> bytes:
        partitions, method = self.partitioning or UNKNOWN_PARTITIONING
        name, position = self.name.encode(), self.position or SourcePosition("", partitions, 0)
        uid = position.stream_uid.encode()
        head = _FORMAT.pack(
            len(name), len(uid), self.position is not None, method, position.partition, position.offset, position.generation
        )
        return head + name + uid

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Return the note in ``data``, the last column of a batch. Raises CorruptionError."""
        data = bytes(data)
        try:
            name_size, uid_size, has_position, method, partition, offset, generation = _FORMAT.unpack_from(data)
            at = _FORMAT.size
            name, uid = data[at : at + name_size].decode(), data[at + name_size :].decode()
        except (struct.error, UnicodeDecodeError) as error:
            raise CorruptionError(f"The producer note is damaged: {error}. The node repairs it from another replica.") from None
        if len(data) != at + name_size + uid_size or has_position > 1 or offset < 0:
            raise CorruptionError(
                f"The producer note is damaged: {len(data)} bytes have an unknown form. The node repairs it from another replica."
            )
        if has_position:
            return cls(name, SourcePosition(uid, partition, offset, generation))
        return cls(name, None, Partitioning(partition, method) if partition else None)
