"""Splits a record batch that is larger than one NATS message into pieces.

The reader requests each piece. Pure, for nodes and clients.

A request says how many bytes of the batch the asker holds, and the CRC-32C that the batch's header bears. The answer is a piece from
there on, if the answering log has that very batch at the wanted offset, else one from its beginning: the asker starts over. So it
does not matter which replica answers, in which epoch, late or twice: a piece is taken only where it continues what is held (same
CRC, same size, next position), the rest is left out. And what is put together goes the way of every batch that comes from
elsewhere: its CRC-32C is checked over all of it, and offset, epoch and order after that.

Bound: one batch per Assembly, MAX_BATCH_BYTES at most, allocated as it comes in.

How large a record batch is: for who only moves pieces of one, and needs nothing of what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.errors import ProtocolError

HEADER_SIZE_BYTES = 64
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Bound of a batch and of its body before compression; anything larger is refused unread."""


PIECE_BYTES = 1024 * 1024
"""Bytes of a piece at most, whatever the NATS server would take: other traffic must not wait for longer than that."""
SMALLEST_PIECE_BYTES = HEADER_SIZE_BYTES


@dataclass(frozen=True, slots=True)
class Held:
    """Part of a batch that a reader already has: the first ``position`` bytes (0: nothing) of the batch with CRC-32C ``crc``."""

    position: int = 0
    crc: int = 0


NOTHING = Held()


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece of a batch: ``data`` are its bytes from ``position`` on. The batch has ``total_bytes`` and CRC-32C ``crc``."""

    crc: int
    total_bytes: int
    position: int
    data: memoryview

    def __post_init__(self) -> None:
        end = self.position + len(self.data)
        if not (self.data and self.position < end <= self.total_bytes <= MAX_BATCH_BYTES and 0 <= self.crc < 1 << 32):
            raise ProtocolError(f"Invalid part of a batch: bytes {self.position} to {end} of {self.total_bytes}.")


def room_bytes(max_payload: int, overhead_bytes: int, max_bytes: int) -> int:
    """Return how many bytes of batches fit into one message.

    It is at most ``max_bytes``, but at least PIECE_BYTES if the server accepts that, so that a small limit does not split
    batches that fit a message.
    """
    return max(min(max_payload - overhead_bytes, max(max_bytes, PIECE_BYTES)), SMALLEST_PIECE_BYTES)


class Assembly:
    """Puts the pieces of one batch together."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._crc = self._total_bytes = 0

    @property
    def held(self) -> Held:
        """Part of the batch that the next request has to name."""
        return Held(len(self._held), self._crc)

    def take(self, piece: Piece) -> memoryview | None:
        """Add a piece.

        Return the complete batch if this was the last missing piece, else None. A piece that does not continue the collected
        part is ignored, but a first piece starts again.
        """
        if piece.position == 0:
            self._held, self._crc, self._total_bytes = bytearray(), piece.crc, piece.total_bytes
        if (piece.crc, piece.total_bytes, piece.position) != (self._crc, self._total_bytes, len(self._held)):
            return None
        self._held += piece.data
        if len(self._held) < self._total_bytes:
            return None
        whole = memoryview(self._held)
        self.forget()
        return whole

    def forget(self) -> None:
        """Drop the collected pieces."""
        self._held = bytearray()
        self._crc = self._total_bytes = 0
