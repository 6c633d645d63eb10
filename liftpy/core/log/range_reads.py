"""Reads of a part of a partition's log: filtered, narrow, backwards or in portions, and the sizes and files of offset
ranges.

A filtered answer examines about SCAN_BYTES of the log at most, DECOMPRESSED_BYTES after decompression, and about
SCAN_SUBJECTS distinct subjects if it filters by subject. It says how far it got. So a filter that matches nothing costs
no more than a normal read [A21]. A batch whose records all match is returned as it is. Otherwise the matching records
are returned at their offsets in a new batch, after a check of the CRC-32C. Backwards, ``offset`` is exclusive: the
answer has the batches below it, in ascending order.

Readers that split a range use batch boundaries, so that no batch is cut in two (``measure``). The boundaries are found
through the sparse index. A reader on the same host may open the segment files itself (``spans_of``).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from liftpy.core.log.log import Log
from liftpy.core.log.reading import offset_about_bytes_before, segment_at
from liftpy.core.log.segment import INDEX_INTERVAL_BYTES, Segment, log_name
from liftpy.core.wire.batch import BatchHeader, RecordBatch, parse_header, split_batches
from liftpy.core.wire.chunking import NOTHING, PartialBatch, Piece
from liftpy.core.wire.filters import Filter, keep_records, narrow
from liftpy.errors import CorruptionError

SCAN_BYTES = 1 << 20
DECOMPRESSED_BYTES = 8 * SCAN_BYTES
"""Maximum size of the decompressed batches that one answer examines. They take about 20 ms."""
SCAN_SUBJECTS = 10_000
"""Maximum number of distinct subjects that one answer examines. Each batch counts its own subjects. They take about 20 ms."""
MAX_BOUNDARIES = 128
"""Maximum number of borders in an answer. Each one costs a lookup in the log."""
MAX_FILES = 256
"""Maximum number of files in an answer. A reader opens them all at once."""


def read_selected(
    log: Log,
    wanted: Filter,
    offset: int,
    max_bytes: int,
    room_bytes: int,
    *,
    end_offset: int,
    backwards: bool = False,
    held: PartialBatch = NOTHING,
) -> Portion:
    """Read the records that match ``wanted``, from ``offset`` on (inclusive), or ``backwards`` below it (exclusive).

    Args:
        log: Log of the partition.
        wanted: Filter of records.
        offset: First offset, or with ``backwards`` the offset after the last one.
        max_bytes: Size of the answer that the reader requests, in bytes.
        room_bytes: Largest size that fits into one message, in bytes.
        end_offset: Exclusive. No returned batch reaches past it.
        backwards: True to read older records.
        held: Part of a large batch that the reader already has.

    Raises:
        OffsetOutOfRangeError, CorruptionError, LogClosedError: As in ``Log.read``.
    """
    most_bytes = min(max_bytes, room_bytes)
    batches: list[memoryview] = []
    size_bytes, position, subject_count, body_bytes = 0, offset, 0, 0
    for batch in _batches_below(log, offset, end_offset) if backwards else _batches_from(log, offset, end_offset):
        data = _matching_part(batch, wanted)
        if data is not None:
            if batches and size_bytes + len(data) > most_bytes:
                break
            if len(data) > room_bytes:
                return _piece_of(data, room_bytes, offset, held)
            batches.append(data)
            size_bytes += len(data)
        position = max(batch.base_offset, log.log_start_offset) if backwards else batch.next_offset
        subject_count += _count_subjects(batch) if wanted.subjects else 0
        body_bytes += batch.header.body_size_bytes
        if subject_count >= SCAN_SUBJECTS or body_bytes >= DECOMPRESSED_BYTES:
            break
    if backwards:
        batches.reverse()
    return Portion(tuple(batches), size_bytes, position)


def read_narrow(
    log: Log, left_out: int, offset: int, max_bytes: int, room_bytes: int, *, end_offset: int, held: PartialBatch = NOTHING
) -> Portion:
    """Read batches from ``offset`` on as ``read_portion`` does, but without some columns.

    ``left_out``: columns to omit, as bits that ``liftpy.core.wire.filters`` defines. ``held``: part of a large batch that the
    reader already has.
    """
    most_bytes = min(max_bytes, room_bytes)
    batches: list[memoryview] = []
    size_bytes = scanned_bytes = body_bytes = 0
    position = offset
    for batch in _batches_from(log, offset, end_offset):
        data = narrow(batch, left_out)
        if batches and size_bytes + len(data) > most_bytes:
            break
        if len(data) > room_bytes:
            return _piece_of(data, room_bytes, offset, held)
        batches.append(data)
        size_bytes, scanned_bytes, position = size_bytes + len(data), scanned_bytes + len(batch.view), batch.next_offset
        body_bytes += batch.header.body_size_bytes
        if body_bytes >= DECOMPRESSED_BYTES:
            break
    return Portion(tuple(batches), size_bytes, position, scanned_bytes=scanned_bytes)


def _count_subjects(batch: RecordBatch) -> int:
    try:
        subjects = batch.columns.subjects
    except CorruptionError:
        return 0
    return 0 if subjects is None else len(subjects.entries.ends)


def _matching_part(batch: RecordBatch, wanted: Filter) -> memoryview | None:
    """Return a batch with only the records that match ``wanted``. None: no record matches.

    Without a filter the batch is returned unchanged, also a filler. A batch with invalid columns is returned unchanged, so that
    the reader reports the damage.
    """
    if not wanted:
        return batch.view
    try:
        mask = wanted.mask(batch)
    except CorruptionError:
        return batch.view
    if not mask.any():
        return None
    return batch.view if mask.all() else memoryview(keep_records(batch, mask))


def _piece_of(data: memoryview, room_bytes: int, offset: int, held: PartialBatch) -> Portion:
    """Return a piece of the batch ``data``, which is larger than a message. It follows ``held``, the part that the reader has.

    ``offset``: offset that the reader requested. ``room_bytes``: maximum size of the piece.
    """
    crc = int.from_bytes(data[:4], "little")
    position = held.position if held.crc == crc and held.position < len(data) else 0
    return portion_of(Piece(crc, len(data), position, data[position : position + room_bytes]), offset)


def _batches_from(log: Log, offset: int, end_offset: int) -> Iterator[RecordBatch]:
    """Yield batches from the one that contains ``offset``, up to ``end_offset`` (exclusive) or about SCAN_BYTES. CRCs are checked."""
    read = log.read(offset, SCAN_BYTES, end_offset=end_offset)
    for chunk in read.chunks:
        yield from _checked_batches(log, chunk)


def _batches_below(log: Log, offset: int, end_offset: int) -> Iterator[RecordBatch]:
    """Yield batches below ``offset``, in descending order, up to about SCAN_BYTES. CRCs are checked.

    ``end_offset``: offset (exclusive) past which no batch reaches.
    """
    batches: list[RecordBatch] = []
    if offset > log.log_start_offset:
        at = max(offset_about_bytes_before(log.segments, offset, SCAN_BYTES), log.log_start_offset)
        while at < offset:
            read = log.read(at, SCAN_BYTES, end_offset=end_offset)
            if not read.chunks:
                break
            for chunk in read.chunks:
                batches += [batch for batch in _checked_batches(log, chunk) if batch.base_offset < offset]
            at = read.next_offset
    while batches:
        yield batches.pop()


def _checked_batches(log: Log, chunk: memoryview) -> list[RecordBatch]:
    try:
        return split_batches(chunk)
    except CorruptionError as error:
        log.handle_damage(error)
        raise


# ---- sizes, borders and files of ranges ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RangeSize:
    """Size of a range of offsets, and borders that divide it.

    ``size_bytes``: stored size of its batches. ``borders``: first offsets of batches inside the range. ``positions``: number of
    bytes of the range before each border.
    """

    size_bytes: int
    borders: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()


def measure(log: Log, start: int, end: int, *, every_bytes: int = 0, every_records: int = 0) -> RangeSize:
    """Return the size of the batches with offsets ``start`` (inclusive) to ``end`` (exclusive), which must be in the log.

    With ``every_bytes`` or ``every_records``, also return borders that divide the range, at most MAX_BOUNDARIES. A border is
    the first offset of a batch.

    With ``every_bytes``, a border is the last batch that begins at or before a multiple of this step, counted from the range's
    first batch. So borders are the same on every replica of a stream that is not compacted. With ``every_records``, a border is
    the last batch that begins at most this number of offsets after the previous border. If there is none, it is the next batch.

    Example: batches of 100 bytes and 10 records at 0, 10, ... 90. The range [5, 87) takes 900 bytes. The borders every 250
    bytes are 20, 50 and 70.

    Raises CorruptionError.
    """
    if end <= start:
        return RangeSize(0)
    first = segment_at(log.segments, start)
    reached = log.segments[first : segment_at(log.segments, end - 1) + 1]
    try:
        measured = _Range(reached, start, end)
        if every_bytes:
            boundaries = measured.by_bytes(every_bytes)
        else:
            boundaries = measured.by_records(every_records) if every_records else []
    except CorruptionError as error:
        log.handle_damage(error)
        raise
    return RangeSize(
        measured.size_bytes, tuple(offset for offset, _ in boundaries), tuple(position for _, position in boundaries)
    )


class _Range:
    """A range of offsets over several segments.

    ``_begins``: position of the first byte of each segment, relative to the first batch of the range.
    """

    def __init__(self, segments: Sequence[Segment], start: int, end: int) -> None:
        self._segments, self._start, self._end = segments, start, end
        hint = segments[0].entry_at(start)
        segments[0].check(hint, hint + 2 * INDEX_INTERVAL_BYTES)
        sizes = (segment.size_bytes for segment in segments[:-1])
        self._begins = list(itertools.accumulate(sizes, initial=-segments[0].locate(start)))
        last, at = last_batch_at(segments[-1], end - 1)
        self.size_bytes = self._begins[-1] + (at + last.size_bytes if last.base_offset < end else 0)

    def by_bytes(self, step: int) -> list[tuple[int, int]]:
        """Return (offset, position) of borders about every ``step`` bytes.

        All multiples of the step within one batch share a border.
        """
        boundaries: list[tuple[int, int]] = []
        position = step
        while position < self.size_bytes and len(boundaries) < MAX_BOUNDARIES:
            number = bisect_right(self._begins, position) - 1
            begin = self._begins[number]
            batch, at = _last_at(self._segments[number], position - begin)
            if batch.base_offset > self._start and begin + at > 0:
                boundaries.append((batch.base_offset, begin + at))
            position = -(-(begin + at + batch.size_bytes) // step) * step
        return boundaries

    def by_records(self, step: int) -> list[tuple[int, int]]:
        boundaries: list[tuple[int, int]] = []
        before = self._start
        while before + step < self._end and len(boundaries) < MAX_BOUNDARIES:
            border = self._last_above(before, before + step)
            if border is None:
                break
            boundaries.append(border)
            before = border[0]
        return boundaries

    def _last_above(self, before: int, most: int) -> tuple[int, int] | None:
        """Return (offset, position) of the last batch that begins above the offset ``before`` and at or below the offset ``most``.

        If there is none, return the first batch that begins above ``most``. None: the range has no such batch.
        """
        number = segment_at(self._segments, most)
        batch, at = last_batch_at(self._segments[number], most)
        if batch.base_offset <= before:
            at += batch.size_bytes
            if at >= self._segments[number].size_bytes:
                number, at = number + 1, 0
            if number == len(self._segments) or batch.next_offset >= self._end:
                return None
            batch = next(header for _, header in self._segments[number].batches(at, at + 1))
        return (batch.base_offset, self._begins[number] + at) if before < batch.base_offset < self._end else None


def last_batch_at(segment: Segment, offset: int) -> tuple[BatchHeader, int]:
    """Return (header, position) of the last batch that begins at or below ``offset``, or of the first batch if there is none."""
    number = max(bisect_right(segment.entries, offset, key=lambda e: e.base_offset) - 1, 0)
    return _last_of_block(segment, number, lambda header, _: header.base_offset <= offset)


def _last_at(segment: Segment, position: int) -> tuple[BatchHeader, int]:
    """Return (header, position) of the last batch that begins at or before ``position`` of the segment's file."""
    number = max(bisect_right(segment.entries, position, key=lambda e: e.position) - 1, 0)
    return _last_of_block(segment, number, lambda _, at: at <= position)


def _last_of_block(segment: Segment, number: int, wanted: Callable[[BatchHeader, int], bool]) -> tuple[BatchHeader, int]:
    """Return (header, position) of the last batch for which ``wanted`` is true, from index entry ``number`` on.

    The search ends at the first batch for which it is false. If no batch fits, return the first one. ``wanted``: gets header
    and position of a batch.
    """
    begin = segment.entries[number].position
    segment.check(begin, begin + 1)
    newest: tuple[BatchHeader, int] | None = None
    for at, header in segment.batches(begin, segment.size_bytes):
        if newest is not None and not wanted(header, at):
            break
        newest = (header, at)
    if newest is None:
        raise CorruptionError(
            f"{log_name(segment.base_offset)}: no batch at position {begin}. The segment is damaged: run `liftpy log verify`."
        )
    return newest


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Whole batches in one segment file.

    ``begin`` (inclusive) and ``end`` (exclusive) are positions in the file of the segment with ``base_offset``.
    """

    base_offset: int
    begin: int
    end: int


def spans_of(log: Log, start: int, end: int) -> list[FileSpan]:
    """Return the parts of segment files with the batches of the offsets ``start`` (inclusive) to ``end`` (exclusive), in order.

    The range must be in the log. The result is empty if the range is empty or needs more than MAX_FILES files. Raises
    CorruptionError.

    Retention and compaction replace whole files, and an open file stays readable. The reader opens all files at once and checks
    each batch. If something does not fit, it asks a node.
    """
    if end <= start:
        return []
    first, last = segment_at(log.segments, start), segment_at(log.segments, end - 1)
    if last - first >= MAX_FILES:
        return []
    reached = log.segments[first : last + 1]
    try:
        hint = reached[0].entry_at(start)
        reached[0].check(hint, hint + 2 * INDEX_INTERVAL_BYTES)
        begins = [reached[0].locate(start), *(0 for _ in reached[1:])]
        batch, at = last_batch_at(reached[-1], end - 1)
    except CorruptionError as error:
        log.handle_damage(error)
        raise
    ends = [*(segment.size_bytes for segment in reached[:-1]), at + batch.size_bytes]
    spans = [FileSpan(s.base_offset, a, b) for s, a, b in zip(reached, begins, ends, strict=True)]
    return [span for span in spans if span.begin < span.end]


# ---- portions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Portion:
    """Part of a log that fits into one message. ``chunks``: whole batches, or one piece of a large batch.

    ``next_offset``: offset at which the reader continues. ``size_bytes``: size of all chunks. ``scanned_bytes``: size of the
    batches that were examined in the log.
    """

    chunks: tuple[memoryview, ...]
    size_bytes: int
    next_offset: int
    piece: Piece | None = None
    scanned_bytes: int = 0


def read_portion(
    log: Log, from_offset: int, max_bytes: int, room_bytes: int, *, end_offset: int | None = None, held: PartialBatch = NOTHING
) -> Portion:
    """Read batches as ``Log.read`` does, from the one that contains ``from_offset``, but at most ``room_bytes``.

    A larger batch comes in pieces. ``held``: the pieces that the reader already has. The next piece follows them if they
    are part of this batch.
    """
    if held.position:
        part = log.read_part(from_offset, held.position, room_bytes, end_offset=end_offset)
        if part is not None and part[0].crc == held.crc:
            header, data = part
            return portion_of(Piece(header.crc, header.size_bytes, held.position, data), from_offset)
    read = log.read(from_offset, min(max_bytes, room_bytes), end_offset=end_offset)
    if read.size_bytes <= room_bytes:
        return Portion(read.chunks, read.size_bytes, read.next_offset)
    (batch,) = read.chunks  # only the first batch of a read may be larger than allowed
    header = parse_header(batch)
    return portion_of(Piece(header.crc, header.size_bytes, 0, batch[:room_bytes]), from_offset)


def portion_of(piece: Piece, from_offset: int) -> Portion:
    """Return a portion that consists of ``piece``. The reader requests ``from_offset`` again for the next piece."""
    return Portion((piece.data,), len(piece.data), from_offset, piece)
