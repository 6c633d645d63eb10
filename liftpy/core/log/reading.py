"""Reads whole batches from segments by offset or timestamp, with the sparse indexes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from liftpy.core.base.invariants import check
from liftpy.core.log.segment import INDEX_INTERVAL_BYTES, Segment, log_name
from liftpy.core.wire.batch import BatchHeader, RecordBatch, build_filler, parse_header
from liftpy.errors import CorruptionError


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Result of a read. ``chunks``: whole batches in ascending order. ``size_bytes``: their size.

    ``next_offset``: offset at which the next read continues.
    """

    chunks: tuple[memoryview, ...]
    size_bytes: int
    next_offset: int


def segment_at(segments: Sequence[Segment], offset: int) -> int:
    """Return the index in ``segments`` of the segment that contains ``offset`` or would contain it."""
    return max(bisect_right(segments, offset, key=lambda s: s.base_offset) - 1, 0)


def offset_at(segment: Segment, position: int) -> int:
    """Return the base offset of the batch at ``position`` of the segment's file.

    Raises CorruptionError if there is no batch, because an earlier header is damaged.
    """
    for _, header in segment.batches(position, position + 1):
        return header.base_offset
    raise CorruptionError(
        f"{log_name(segment.base_offset)}: no batch at position {position}. The segment is damaged: run `liftpy log verify`."
    )


def read_forwards(segments: Sequence[Segment], from_offset: int, max_bytes: int, limit: int) -> ReadResult:
    """Read batches from the one that contains ``from_offset``, up to ``max_bytes``. At least one batch is returned if there is one.

    ``limit``: offset (exclusive) past which no returned batch reaches.
    """
    chunks: list[memoryview] = []
    size_bytes, next_offset = 0, from_offset
    for segment in segments[segment_at(segments, from_offset) :]:
        if next_offset >= limit or size_bytes >= max_bytes:
            break
        if segment.next_offset <= next_offset:
            continue
        try:
            chunk, end = _forwards_in(segment, next_offset, max_bytes - size_bytes, limit, first=not chunks)
        except CorruptionError:
            segment.damaged = True
            raise
        if not chunk:
            break
        chunks.append(chunk)
        size_bytes += len(chunk)
        next_offset = end
        if end < segment.next_offset:
            break  # the rest of this segment did not fit, so the next segment does not continue the result
    return ReadResult(tuple(chunks), size_bytes, next_offset)


def without_earlier_offsets(result: ReadResult, from_offset: int) -> ReadResult:
    """Return ``result`` with a filler at its start shortened, so that it begins at ``from_offset``.

    A filler covers offsets whose records compaction has removed. Other batches are returned unchanged.
    """
    if not result.chunks:
        return result
    header = parse_header(result.chunks[0])
    if header.record_count or header.base_offset >= from_offset:
        return result
    filler = build_filler(from_offset, header.next_offset, header.leader_epoch, header.timestamp_ns)
    rest = tuple(chunk for chunk in (result.chunks[0][len(filler) :], *result.chunks[1:]) if chunk)
    return ReadResult((memoryview(filler), *rest), result.size_bytes, result.next_offset)


def _forwards_in(segment: Segment, offset: int, max_bytes: int, limit: int, *, first: bool) -> tuple[memoryview, int]:
    """Read batches of one segment from ``offset`` on. Return (bytes of the batches, offset after them).

    ``first``: True if no batch was read before. The batch may then be larger than ``max_bytes``. ``limit``: offset (exclusive)
    past which no batch reaches.
    """
    hint = segment.entry_at(offset)
    segment.check(hint, hint + 2 * INDEX_INTERVAL_BYTES)
    start = segment.locate(offset)
    segment.check(start, start + max_bytes)
    end = segment.end_of_whole_batches(start, start + max_bytes, limit)
    if end == start and first:
        header = next((h for _, h in segment.batches(start, start + 1)), None)
        if header is not None and header.next_offset <= limit:
            end = start + header.size_bytes
    if end == start:
        return memoryview(b""), offset
    next_offset = segment.next_offset if end == segment.size_bytes else offset_at(segment, end)
    return segment.file.read(start, end - start), next_offset


def offset_about_bytes_before(segments: Sequence[Segment], offset: int, size_bytes: int) -> int:
    """Return the base offset of a batch that begins about ``size_bytes`` before ``offset``. Only indexes are read.

    The result is below ``offset`` and in the segment of the batch before it.
    """
    segment = segments[segment_at(segments, offset - 1)]
    entries = segment.entries
    last = bisect_right(entries, offset - 1, key=lambda e: e.base_offset) - 1
    first = bisect_right(entries, entries[last].position - size_bytes, key=lambda e: e.position) - 1 if last > 0 else 0
    return entries[first].base_offset if first > 0 else segment.base_offset


def read_part(
    segments: Sequence[Segment], offset: int, position: int, size_bytes: int, limit: int
) -> tuple[BatchHeader, memoryview] | None:
    """Return the header of the batch that contains ``offset``, and up to ``size_bytes`` of it from ``position``.

    Return None if no batch with this offset ends at or below ``limit`` (exclusive), or if the batch has no byte at
    ``position``.
    """
    segment = segments[segment_at(segments, offset)]
    if segment.next_offset <= offset:
        return None
    try:
        hint = segment.entry_at(offset)
        segment.check(hint, hint + 2 * INDEX_INTERVAL_BYTES)
        start = segment.locate(offset)
        segment.check(start, start + 1)
        header = next((header for _, header in segment.batches(start, start + 1)), None)
    except CorruptionError:
        segment.damaged = True
        raise
    if header is None or header.next_offset > limit or position >= header.size_bytes:
        return None
    return header, segment.file.read(start + position, min(size_bytes, header.size_bytes - position))


def first_offset_at(segments: Sequence[Segment], timestamp_ns: int) -> int | None:
    """Return the base offset of the first batch with a timestamp of at least ``timestamp_ns``, None if there is none.

    Only the blocks of the index that may contain the batch are read.
    """
    for segment in segments:
        if segment.size_bytes == 0 or segment.max_timestamp_ns < timestamp_ns:
            continue
        entries = segment.entries
        before = bisect_right(entries, timestamp_ns - 1, key=lambda e: e.max_timestamp_ns) - 1
        for number in range(max(before, 0), len(entries)):
            begin = entries[number].position
            end = entries[number + 1].position if number + 1 < len(entries) else segment.size_bytes
            try:
                segment.check(begin, end)
                for _, header in segment.batches(begin, end):
                    if header.timestamp_ns >= timestamp_ns:
                        return header.base_offset
            except CorruptionError:
                segment.damaged = True
                raise
    return None


def offset_before(segments: Sequence[Segment], timestamp_ns: int) -> int:
    """Return the base offset of a batch before all batches with a timestamp of at least ``timestamp_ns``. Only indexes are read.

    If there is no batch with such a timestamp, return the base offset of the last segment.
    """
    for segment in segments:
        if segment.size_bytes and segment.max_timestamp_ns >= timestamp_ns:
            before = bisect_right(segment.entries, timestamp_ns - 1, key=lambda e: e.max_timestamp_ns) - 1
            return segment.entries[max(before, 0)].base_offset
    return segments[-1].base_offset


def checked_to_follow(batches: Sequence[RecordBatch], end_offset: int, epoch: int) -> int:
    """Check that ``batches`` follow each other without a gap and continue a log. Return their size in bytes.

    The log ends at ``end_offset`` (exclusive), and its last record is of ``epoch``. Raises InvariantError if the batches do not
    continue it [D14, D15].
    """
    size_bytes = 0
    for batch in batches:
        header = batch.header
        if header.base_offset != end_offset or header.leader_epoch < epoch:
            check(header.base_offset == end_offset, "D15", "batch at", header.base_offset, "log end", end_offset)
            check(False, "D14", "epoch", header.leader_epoch, "after", epoch)
        end_offset, epoch = end_offset + header.last_offset_delta + 1, header.leader_epoch
        size_bytes += header.size_bytes
    return size_bytes
