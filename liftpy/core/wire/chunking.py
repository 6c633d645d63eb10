"""Splits a record batch that is larger than one NATS message into pieces.

The reader requests each piece. Pure, for nodes and clients.

A request says how many bytes of the batch the reader has, and the CRC-32C in the batch's header. If the answering log has this batch at
the requested offset, the answer is the next piece. Otherwise it is the first piece of another batch, and the reader starts again. So it
does not matter which replica answers, in which epoch, late or twice: the reader uses a piece only if it continues its bytes (equal CRC,
equal size, next position). A complete batch is checked like any received batch: its CRC-32C, then offset, epoch and order.

Bound: one batch per Assembly, at most MAX_BATCH_BYTES, allocated as it arrives.

The module also has the size limits of a batch, for code that only moves pieces and does not decode them.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.errors import ProtocolError

HEADER_SIZE_BYTES = 64
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Maximum size of a batch, and of its body before compression. Anything larger is rejected unread."""


PIECE_BYTES = 1024 * 1024
"""Maximum size of a piece, in bytes. A larger message would delay other traffic, even if the NATS server accepts it."""
SMALLEST_PIECE_BYTES = HEADER_SIZE_BYTES
_ANSWER_HEADER_BYTES = 4096
"""Maximum size of an answer without its records, in bytes."""


def requested_bytes(wanted_bytes: int, max_payload_bytes: int) -> int:
    """Return how many bytes of records a reader requests, so that the answer fits one NATS message.

    With small NATS messages, half of a message is for the records.

    Args:
        wanted_bytes: Number of bytes that the reader wants at most.
        max_payload_bytes: Maximum size of a NATS message.
    """
    fitting_bytes = max_payload_bytes - min(_ANSWER_HEADER_BYTES, max_payload_bytes // 2)
    return max(min(wanted_bytes, fitting_bytes), SMALLEST_PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class PartialBatch:
    """Part of a batch that a reader already has: the first ``position`` bytes of the batch with CRC-32C ``crc``.

    0: the reader has nothing.
    """

    position: int = 0
    crc: int = 0


NOTHING = PartialBatch()


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
            raise ProtocolError(
                f"Invalid part of a batch: bytes {self.position} to {end} of {self.total_bytes}. Check the versions of the nodes."
            )


def room_bytes(max_payload: int, overhead_bytes: int, max_bytes: int) -> int:
    """Return how many bytes of batches an answer may have.

    It is at most ``max_bytes``, but at least PIECE_BYTES if the NATS server accepts that. So a small ``max_bytes`` does not
    split batches that fit into a message. ``max_payload``: largest message that the server accepts. ``overhead_bytes``: size of
    the answer without batches.
    """
    return max(min(max_payload - overhead_bytes, max(max_bytes, PIECE_BYTES)), SMALLEST_PIECE_BYTES)


class Assembly:
    """Puts the pieces of one batch together."""

    __slots__ = ("_crc", "_held", "_total_bytes")

    def __init__(self) -> None:
        self._held = bytearray()
        self._crc = self._total_bytes = 0

    @property
    def held(self) -> PartialBatch:
        """Part of the batch that is complete so far. The next request contains it."""
        return PartialBatch(len(self._held), self._crc)

    def add_piece(self, piece: Piece) -> memoryview | None:
        """Add a received piece. Return the complete batch if this was the last missing piece, else None.

        A piece that does not continue the collected part is ignored. The first piece of another batch starts again.
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
        self._held = bytearray()
        self._crc = self._total_bytes = 0
