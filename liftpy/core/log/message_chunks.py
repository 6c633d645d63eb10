"""Selects the part of a log that fits into one message: whole batches, or a piece of a large one."""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.core.log.log import Log
from liftpy.core.wire.batch import parse_header
from liftpy.core.wire.chunking import NOTHING, Held, Piece


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a log for one message. ``chunks``: whole batches, or one piece. ``next_offset``: where to continue.

    ``size_bytes``: size of all chunks. ``looked_bytes``: their size in the log, before columns were removed.
    """

    chunks: tuple[memoryview, ...]
    size_bytes: int
    next_offset: int
    piece: Piece | None = None
    looked_bytes: int = 0


def read_portion(
    log: Log, from_offset: int, max_bytes: int, room_bytes: int, *, end_offset: int | None = None, held: Held = NOTHING
) -> Portion:
    """Batches from the one that holds ``from_offset`` on, as ``Log.read``, but never more than ``room_bytes``.

    One that has more comes as a piece: the one after what is ``held``, if that is part of this very batch.
    """
    if held.position:
        found = log.read_part(from_offset, held.position, room_bytes, end_offset=end_offset)
        if found is not None and found[0].crc == held.crc:
            header, data = found
            return portion_of(Piece(header.crc, header.size_bytes, held.position, data), from_offset)
    read = log.read(from_offset, min(max_bytes, room_bytes), end_offset=end_offset)
    if read.size_bytes <= room_bytes:
        return Portion(read.chunks, read.size_bytes, read.next_offset)
    (batch,) = read.chunks  # a read gives more than it may for its first batch alone
    header = parse_header(batch)
    return portion_of(Piece(header.crc, header.size_bytes, 0, batch[:room_bytes]), from_offset)


def portion_of(piece: Piece, from_offset: int) -> Portion:
    """Return a portion that consists of one piece."""
    return Portion((piece.data,), len(piece.data), from_offset, piece)
