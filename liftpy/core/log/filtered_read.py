"""Reads with a filter, with fewer columns, or backwards, over the log of one partition.

An answer examines about LOOK_BYTES of the log at most, and about LOOK_SUBJECTS distinct subjects if it filters by
subject. It says how far it got. So a filter that matches nothing costs no more than a normal read [A21]. A batch whose
records all match is returned as it is. Otherwise the matching records are returned at their offsets in a new batch,
after a check of the CRC-32C.

Backwards, ``offset`` is exclusive: the answer has the batches below it, in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterator

from liftpy.core.log.log import Log
from liftpy.core.log.message_chunks import Portion, portion_of
from liftpy.core.log.reading import offset_some_bytes_before
from liftpy.core.wire.batch import RecordBatch, split_batches
from liftpy.core.wire.chunking import NOTHING, Held, Piece
from liftpy.core.wire.filters import Filter, kept, narrow
from liftpy.errors import CorruptionError

LOOK_BYTES = 1 << 20
LOOK_SUBJECTS = 10_000
"""Distinct subjects of batches, each counted once per batch: some 20 ms."""


def read_selected(
    log: Log,
    wanted: Filter,
    offset: int,
    max_bytes: int,
    room_bytes: int,
    *,
    end_offset: int,
    backwards: bool = False,
    held: Held = NOTHING,
) -> Portion:
    """Read the records that match ``wanted``, from ``offset`` on (inclusive), or ``backwards`` below it (exclusive).

    ``end_offset``: exclusive; no batch that reaches past it is given. Raises as ``Log.read``.
    """
    most_bytes = min(max_bytes, room_bytes)
    found: list[memoryview] = []
    size_bytes, position, looked_subjects = 0, offset, 0
    for batch in _below(log, offset, end_offset) if backwards else _from(log, offset, end_offset):
        data = _kept(batch, wanted)
        if data is not None:
            if found and size_bytes + len(data) > most_bytes:
                break
            if len(data) > room_bytes:
                return _piece(data, room_bytes, offset, held)
            found.append(data)
            size_bytes += len(data)
        position = max(batch.base_offset, log.log_start_offset) if backwards else batch.next_offset
        looked_subjects += _count_subjects(batch) if wanted.subjects else 0
        if looked_subjects >= LOOK_SUBJECTS:
            break
    if backwards:
        found.reverse()
    return Portion(tuple(found), size_bytes, position)


def read_narrow(
    log: Log, left_out: int, offset: int, max_bytes: int, room_bytes: int, *, end_offset: int, held: Held = NOTHING
) -> Portion:
    """Read like ``read_portion``, without the columns ``left_out`` (see ``liftpy.core.wire.filters``)."""
    most_bytes = min(max_bytes, room_bytes)
    found: list[memoryview] = []
    size_bytes = looked_bytes = 0
    position = offset
    for batch in _from(log, offset, end_offset):
        data = narrow(batch, left_out)
        if found and size_bytes + len(data) > most_bytes:
            break
        if len(data) > room_bytes:
            return _piece(data, room_bytes, offset, held)
        found.append(data)
        size_bytes, looked_bytes, position = size_bytes + len(data), looked_bytes + len(batch.view), batch.next_offset
    return Portion(tuple(found), size_bytes, position, looked_bytes=looked_bytes)


def _count_subjects(batch: RecordBatch) -> int:
    try:
        subjects = batch.columns.subjects
    except CorruptionError:
        return 0
    return 0 if subjects is None else len(subjects.entries.ends)


def _kept(batch: RecordBatch, wanted: Filter) -> memoryview | None:
    """Return the matching part of a batch, None if nothing matches.

    Without a filter everything matches, fillers too. A batch with invalid columns is returned as it is, so that the reader
    reports the damage.
    """
    if not wanted:
        return batch.view
    try:
        mask = wanted.mask(batch)
    except CorruptionError:
        return batch.view
    if not mask.any():
        return None
    return batch.view if mask.all() else memoryview(kept(batch, mask))


def _piece(data: memoryview, room_bytes: int, offset: int, held: Held) -> Portion:
    """Return a piece of one batch that is larger than a message."""
    crc = int.from_bytes(data[:4], "little")
    position = held.position if held.crc == crc and held.position < len(data) else 0
    return portion_of(Piece(crc, len(data), position, data[position : position + room_bytes]), offset)


def _from(log: Log, offset: int, end_offset: int) -> Iterator[RecordBatch]:
    """Iterate over about LOOK_BYTES of checked batches, from the one that contains ``offset``."""
    read = log.read(offset, LOOK_BYTES, end_offset=end_offset)
    for chunk in read.chunks:
        yield from _checked(log, chunk)


def _below(log: Log, offset: int, end_offset: int) -> Iterator[RecordBatch]:
    """The batches of about LOOK_BYTES below ``offset``, the last one first, checked."""
    batches: list[RecordBatch] = []
    if offset > log.log_start_offset:
        at = max(offset_some_bytes_before(log.segments, offset, LOOK_BYTES), log.log_start_offset)
        while at < offset:
            read = log.read(at, LOOK_BYTES, end_offset=end_offset)
            if not read.chunks:
                break
            for chunk in read.chunks:
                batches += [batch for batch in _checked(log, chunk) if batch.base_offset < offset]
            at = read.next_offset
    while batches:
        yield batches.pop()


def _checked(log: Log, chunk: memoryview) -> list[RecordBatch]:
    try:
        return split_batches(chunk)
    except CorruptionError as error:
        log.met_damage(error)
        raise
