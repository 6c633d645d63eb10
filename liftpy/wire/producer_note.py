"""What a batch says of its producer besides numbers: its name, and the position of what it was made from. Pure.

A column of one entry, behind all others, which the leader writes: it is stored, replicated, and outlives compaction with the batch.
Little endian::

    u16 size of the name, u16 size of the uid, u8 1 where there is a position, 3 zeros, u32 partition, i64 offset, u64 generation,
    the name, the uid (UTF-8)
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

from liftpy.errors import CorruptionError
from liftpy.wire._pb import client_pb2

MAX_NAME_BYTES = 255
MAX_UID_BYTES = 128
PLAN_SHIFT = 54
MAX_PLAN = 511
_FORMAT = struct.Struct("<HHB3xIqQ")


class SourcePosition(NamedTuple):
    """The last record of another stream that something was made from. ``offset``: inclusive. ``generation``: of the group whose member
    reads it; 0: there is none."""

    stream_uid: str
    partition: int
    offset: int
    generation: int = 0

    @property
    def source(self) -> tuple[str, int]:
        """(stream uid, partition): within it positions can be compared."""
        return self.stream_uid, self.partition

    @property
    def plan(self) -> int:
        """In a round of a producer (``liftpy.client.rounds``): the number of the plan by which its records are shared out among
        producers, up to MAX_PLAN; 0: not said. No stream is so long that an offset of it has these bits."""
        return self.offset >> PLAN_SHIFT

    def message(self) -> client_pb2.SourcePosition:
        """As it travels beside a batch."""
        return client_pb2.SourcePosition(
            streamUid=self.stream_uid, partition=self.partition, offset=self.offset, generation=self.generation
        )


class ProducerNote(NamedTuple):
    """``name``: '': it is not said, as in most batches. ``position``: None where the producer only numbers its records."""

    name: str = ""
    position: SourcePosition | None = None

    def encode(self) -> bytes:
        """The entry."""
        name, position = self.name.encode(), self.position or SourcePosition("", 0, 0)
        uid = position.stream_uid.encode()
        head = _FORMAT.pack(
            len(name), len(uid), self.position is not None, position.partition, position.offset, position.generation
        )
        return head + name + uid

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """The reverse; raises CorruptionError."""
        data = bytes(data)
        try:
            name_size, uid_size, has_position, partition, offset, generation = _FORMAT.unpack_from(data)
            at = _FORMAT.size
            name, uid = data[at : at + name_size].decode(), data[at + name_size :].decode()
        except (struct.error, UnicodeDecodeError) as error:
            raise CorruptionError(f"a producer's note: {error}") from None
        if len(data) != at + name_size + uid_size or has_position > 1 or offset < 0:
            raise CorruptionError(f"{len(data)} bytes are not a producer's note")
        return cls(name, SourcePosition(uid, partition, offset, generation) if has_position else None)
