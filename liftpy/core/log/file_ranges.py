"""Sizes and batch boundaries of offset ranges, and their places in the files.

Readers that split a range use batch boundaries, so that no batch is cut in two. They are found through the sparse
index. Boundaries count bytes from the first batch of the range, so they are the same on every replica of a stream that
is not compacted.

Example: batches of 100 bytes and 10 records at 0, 10, ... 90, and the range [5, 87) takes 900 bytes. Every 250 bytes:
the batches at 20, 50 and 70.

A reader on the same host may open the files itself. Retention and compaction replace whole files, and an open file
stays readable. The reader opens all files at once and checks each batch. If something does not fit, it asks a node.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from liftpy.core.log.log import Log
from liftpy.core.log.reading import segment_at
from liftpy.core.log.segment import INDEX_INTERVAL_BYTES, Segment, log_name
from liftpy.core.wire.batch import BatchHeader
from liftpy.errors import CorruptionError

MAX_BORDERS = 128
"""Of one answer: each costs a look into the log."""


@dataclass(frozen=True, slots=True)
class RangeSize:
    """Size of an offset range. ``size_bytes``: stored size of its batches. ``borders``: first offsets of batches inside
    the range. ``positions``: bytes before each.
    """

    size_bytes: int
    borders: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()


def measure(log: Log, start: int, end: int, *, every_bytes: int = 0, every_records: int = 0) -> RangeSize:
    """Measure the offsets [``start``, ``end``), which must be in the log. With a step, also return boundaries.

    By bytes: the last batch that begins at or before each multiple of the step, counted from the range's first batch. By records: the
    last one that begins at most a step after the border before it, and the next one where a batch has more. At most MAX_BORDERS.
    Raises CorruptionError.
    """
    if end <= start:
        return RangeSize(0)
    first = segment_at(log.segments, start)
    reached = log.segments[first : segment_at(log.segments, end - 1) + 1]
    try:
        measured = _Range(reached, start, end)
        if every_bytes:
            found = measured.by_bytes(every_bytes)
        else:
            found = measured.by_records(every_records) if every_records else []
    except CorruptionError as error:
        log.met_damage(error)
        raise
    return RangeSize(measured.size_bytes, tuple(offset for offset, _ in found), tuple(position for _, position in found))


class _Range:
    """An offset range over segments. ``_begins``: position of the first byte of each segment, relative to the first batch."""

    def __init__(self, segments: Sequence[Segment], start: int, end: int) -> None:
        self._segments, self._start, self._end = segments, start, end
        hint = segments[0].entry_at(start)
        segments[0].check(hint, hint + 2 * INDEX_INTERVAL_BYTES)
        sizes = (segment.size_bytes for segment in segments[:-1])
        self._begins = list(itertools.accumulate(sizes, initial=-segments[0].locate(start)))
        last, at = last_begun(segments[-1], end - 1)
        self.size_bytes = self._begins[-1] + (at + last.size_bytes if last.base_offset < end else 0)

    def by_bytes(self, step: int) -> list[tuple[int, int]]:
        """(offset, position) of the borders. All multiples of the step within one batch have the same one."""
        found: list[tuple[int, int]] = []
        position = step
        while position < self.size_bytes and len(found) < MAX_BORDERS:
            number = bisect_right(self._begins, position) - 1
            begin = self._begins[number]
            batch, at = _last_at(self._segments[number], position - begin)
            if batch.base_offset > self._start and begin + at > 0:
                found.append((batch.base_offset, begin + at))
            position = -(-(begin + at + batch.size_bytes) // step) * step
        return found

    def by_records(self, step: int) -> list[tuple[int, int]]:
        """(offset, position) of the borders."""
        found: list[tuple[int, int]] = []
        before = self._start
        while before + step < self._end and len(found) < MAX_BORDERS:
            border = self._last_above(before, before + step)
            if border is None:
                break
            found.append(border)
            before = border[0]
        return found

    def _last_above(self, before: int, most: int) -> tuple[int, int] | None:
        """The last border above ``before`` and at or below ``most``, else the first one above; None: no other is within the range."""
        number = segment_at(self._segments, most)
        batch, at = last_begun(self._segments[number], most)
        if batch.base_offset <= before:
            at += batch.size_bytes
            if at >= self._segments[number].size_bytes:
                number, at = number + 1, 0
            if number == len(self._segments) or batch.next_offset >= self._end:
                return None
            batch = next(header for _, header in self._segments[number].batches(at, at + 1))
        return (batch.base_offset, self._begins[number] + at) if before < batch.base_offset < self._end else None


def last_begun(segment: Segment, offset: int) -> tuple[BatchHeader, int]:
    """(header, position) of the last batch that begins at or below ``offset``; of the first one where none does."""
    number = max(bisect_right(segment.entries, offset, key=lambda e: e.base_offset) - 1, 0)
    return _last_of_block(segment, number, lambda header, _: header.base_offset <= offset)


def _last_at(segment: Segment, position: int) -> tuple[BatchHeader, int]:
    """(header, position) of the last batch that begins at or before ``position`` of the segment's file."""
    number = max(bisect_right(segment.entries, position, key=lambda e: e.position) - 1, 0)
    return _last_of_block(segment, number, lambda _, at: at <= position)


def _last_of_block(segment: Segment, number: int, wanted: Callable[[BatchHeader, int], bool]) -> tuple[BatchHeader, int]:
    """Return the last ``wanted`` batch from index entry ``number`` on, or the first one there."""
    begin = segment.entries[number].position
    segment.check(begin, begin + 1)
    found: tuple[BatchHeader, int] | None = None
    for at, header in segment.batches(begin, segment.size_bytes):
        if found is not None and not wanted(header, at):
            break
        found = (header, at)
    if found is None:
        raise CorruptionError(
            f"{log_name(segment.base_offset)}: no batch at position {begin}. The segment is damaged: run `liftpy log verify`."
        )
    return found


MAX_FILES = 256
"""Of one answer: a reader has them open all at once."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Whole batches in a segment file: bytes ``begin`` (inclusive) to ``end`` (exclusive) of the file with offset
    ``base_offset``."""

    base_offset: int
    begin: int
    end: int


def spans_of(log: Log, start: int, end: int) -> list[FileSpan]:
    """Return the file ranges of the batches of [``start``, ``end``), in order.

    The range must be in the log. Empty if the range is empty or needs more than MAX_FILES files. Raises CorruptionError.
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
        batch, at = last_begun(reached[-1], end - 1)
    except CorruptionError as error:
        log.met_damage(error)
        raise
    ends = [*(segment.size_bytes for segment in reached[:-1]), at + batch.size_bytes]
    found = [FileSpan(s.base_offset, a, b) for s, a, b in zip(reached, begins, ends, strict=True)]
    return [span for span in found if span.begin < span.end]
