"""``Segment``: one file of batches with a sparse index in memory, and the scan that finds its contents."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from liftpy.core.log.small_files import IndexEntry, SegmentSummary
from liftpy.core.log.storage import LogFile
from liftpy.core.wire.batch import (
    HEADER_SIZE_BYTES,
    MAX_BATCH_BYTES,
    SIGNATURE,
    SIGNATURE_POSITION,
    BatchHeader,
    RecordBatch,
    claimed_size_bytes,
    parse_batch,
    parse_header,
)
from liftpy.errors import CorruptionError, UnknownFormatError

INDEX_INTERVAL_BYTES = 16 * 1024
"""Approximate number of bytes of batches for each index entry."""
_WALK_BYTES = 8 * 1024 * 1024
_RECENT = 32
_SECTOR_BYTES = 512
"""A disk writes this number of bytes completely or not at all."""


_LOG_NAME = re.compile(r"([0-9]{20})\.log")


def log_name(base_offset: int) -> str:
    """Return the file name of the segment with this base offset."""
    return f"{base_offset:020d}.log"


def base_offsets(names: Iterable[str]) -> list[int]:
    """Return the base offsets of the segments among the file ``names``, ascending."""
    return sorted(int(match[1]) for match in map(_LOG_NAME.fullmatch, names) if match is not None)


def index_name(base_offset: int) -> str:
    """Return the file name of the index of the segment."""
    return f"{base_offset:020d}.index"


@dataclass(slots=True)
class Segment:
    """One segment file of a log, with its sparse index in memory. Sizes and positions are in bytes of the file."""

    base_offset: int
    """Inclusive: the log end offset when the file was made."""
    file: LogFile
    next_offset: int
    """Exclusive: the offset after its last record. ``base_offset`` when it is empty."""
    size_bytes: int = 0
    first_timestamp_ns: int = 0
    max_timestamp_ns: int = 0
    record_count: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(LeaderEpoch, offset of its first record in this segment), ascending."""
    entries: list[IndexEntry] = field(default_factory=list)
    sealed: bool = False
    """True if no more records are appended to the segment."""
    recent: list[tuple[int, int, int]] = field(default_factory=list)
    """(base offset, next offset, position) of the newest batches. Most followers and tailing readers read these."""
    checked: bool = False
    """True if this process wrote every batch of the segment or has checked its CRC."""
    checked_blocks: set[int] = field(default_factory=set)
    """Numbers of the index entries whose batches, up to the next entry, have been checked. Used while ``checked`` is False."""
    damaged: bool = False
    """True if a check has failed."""
    is_removed: bool = False
    """True if the file is removed. A compaction in another thread may still have the segment."""
    awaits_scrub: bool = False
    """True if this process sealed the segment and has not read it back yet."""
    flushing_bytes: int = 0
    """Size of the file at the beginning of its last flush, in bytes."""
    created_wall_ns: int = 0
    """Wall clock of the first append by this process, for ``segment_age_s``. In nanoseconds."""

    def note(self, header: BatchHeader, position: int) -> None:
        """Add the batch with this ``header``, which begins at ``position``, to the index. Earlier batches must be known."""
        base_offset, timestamp_ns = header.base_offset, header.timestamp_ns
        if not self.entries or position - self.entries[-1].position >= INDEX_INTERVAL_BYTES:
            self.entries.append(IndexEntry(base_offset, position, self.max_timestamp_ns))
        if not self.epochs or self.epochs[-1][0] != header.leader_epoch:
            self.epochs.append((header.leader_epoch, base_offset))
        if position == 0:
            self.first_timestamp_ns = timestamp_ns
        if timestamp_ns > self.max_timestamp_ns:
            self.max_timestamp_ns = timestamp_ns
        self.record_count += 0 if header.is_remains else header.record_count
        self.next_offset = base_offset + header.last_offset_delta + 1
        self.recent.append((base_offset, self.next_offset, position))
        if len(self.recent) > _RECENT:
            del self.recent[0]
        self.size_bytes = position + header.size_bytes

    def summary(self) -> SegmentSummary:
        return SegmentSummary(
            self.base_offset,
            self.next_offset,
            self.size_bytes,
            self.first_timestamp_ns,
            self.max_timestamp_ns,
            self.record_count,
            tuple(self.epochs),
            tuple(self.entries),
        )

    @classmethod
    def from_summary(cls, file: LogFile, summary: SegmentSummary) -> Segment:
        file.seal()
        return cls(
            summary.base_offset,
            file,
            summary.next_offset,
            summary.size_bytes,
            summary.first_timestamp_ns,
            summary.max_timestamp_ns,
            summary.record_count,
            list(summary.epochs),
            list(summary.entries),
            sealed=True,
        )

    def check(self, start: int, end: int) -> None:
        """Check CRC and order of the batches between the positions ``start`` and ``end``. Ranges checked before are skipped.

        A segment that this process wrote or scanned needs no check. Raises CorruptionError.
        """
        if self.checked or not self.entries:
            return
        first = max(bisect_right(self.entries, start, key=lambda e: e.position) - 1, 0)
        for number in range(first, len(self.entries)):
            if self.entries[number].position >= end:
                break
            if number not in self.checked_blocks:
                try:
                    self._check_block(number)
                except CorruptionError:
                    self.damaged = True
                    raise
                self.checked_blocks.add(number)

    def recheck(self, offset: int) -> None:
        """Read the block that contains ``offset`` from the file and check it again. A block has about INDEX_INTERVAL_BYTES.

        Raises CorruptionError, StorageError.
        """
        if not self.entries:
            return
        try:
            self._check_block(max(bisect_right(self.entries, offset, key=lambda e: e.base_offset) - 1, 0), again=True)
        except CorruptionError:
            self.damaged = True
            raise

    def _check_block(self, number: int, *, again: bool = False) -> None:
        entry = self.entries[number]
        following = self.entries[number + 1] if number + 1 < len(self.entries) else None
        end = following.position if following else self.size_bytes
        read = self.file.reread if again else self.file.read
        block = read(entry.position, end - entry.position)
        position, next_offset = 0, entry.base_offset
        while position < len(block):
            batch = parse_batch(block, position)
            if batch.base_offset < next_offset or (position == 0 and batch.base_offset != entry.base_offset):
                raise CorruptionError(
                    f"{log_name(self.base_offset)}: offset {batch.base_offset} is not at its position in the index. The node "
                    "repairs it from another replica."
                )
            position, next_offset = position + batch.header.size_bytes, batch.next_offset
        if next_offset > (following.base_offset if following else self.next_offset) or position < end - entry.position:
            raise CorruptionError(
                f"{log_name(self.base_offset)}: the batches after offset {entry.base_offset} do not match the index. The "
                "node repairs it from another replica."
            )

    def entry_at(self, offset: int) -> int:
        """Return the position of the last indexed batch that begins at or below ``offset``."""
        index = bisect_right(self.entries, offset, key=lambda e: e.base_offset) - 1
        return self.entries[index].position if index >= 0 else 0

    def batches(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the batches from ``position`` that begin below ``end``. Their CRCs are not checked."""
        block, start = memoryview(b""), position
        while position < min(end, self.size_bytes):
            if position + HEADER_SIZE_BYTES > start + len(block):
                start, block = position, self.file.read(position, INDEX_INTERVAL_BYTES * 2)
            try:
                header = parse_header(block, position - start)
            except UnknownFormatError:
                parse_batch(self.file.read(position, MAX_BATCH_BYTES))  # it distinguishes a flipped bit from another version
                raise
            yield position, header
            position += header.size_bytes

    def locate(self, offset: int) -> int:
        """Return the position of the batch that contains ``offset``, or of the next batch. If there is none, return ``size_bytes``."""
        position_in_file = self.size_bytes
        for base_offset, next_offset, position in reversed(self.recent):
            if next_offset <= offset:
                return position_in_file
            if base_offset <= offset:
                return position
            position_in_file = position
        for position, header in self.batches(self.entry_at(offset), self.size_bytes):
            if header.next_offset > offset:
                return position
        return self.size_bytes

    def end_of_whole_batches(self, start: int, limit: int, end_offset: int) -> int:
        """Return the end position of the last whole batch that can be read from ``start`` on.

        The position is at most ``limit``, and the batch ends at or below ``end_offset``. Return ``start`` if no batch fits.
        The sparse index skips most of the batches.
        """
        if self.size_bytes <= limit and self.next_offset <= end_offset:
            return self.size_bytes
        in_reach = bisect_right(self.entries, limit, key=lambda e: e.position)
        below_end = bisect_right(self.entries, end_offset, key=lambda e: e.base_offset)
        hop = min(in_reach, below_end) - 1
        end = max(start, self.entries[hop].position) if hop >= 0 else start
        for position, header in self.batches(end, limit):
            if position + header.size_bytes > limit or header.next_offset > end_offset:
                break
            end = position + header.size_bytes
        return end


@dataclass(frozen=True, slots=True)
class SegmentContents:
    """Result of reading a segment file completely.

    ``end``: position up to which the file is valid. ``fault``: description of the first fault, '' for none.
    ``changed_in_place``: True if the bytes at the fault have changed after they were written, so the fault is no torn tail
    [S3]. Then a valid batch follows (``valid_behind``), or the faulty batch is complete.
    """

    end: int
    fault: str = ""
    changed_in_place: bool = False
    valid_behind: bool = False


def walk(segment: Segment) -> SegmentContents:
    """Read a segment's file from its start, and check CRC and order of each batch. Add the valid batches to ``segment``.

    Raises UnknownFormatError for a complete, valid batch of another version. The caller then truncates nothing [S11].
    """
    position, start, block = 0, 0, memoryview(b"")
    size = segment.file.size_bytes
    while position < size:
        try:
            needed = _size_at(block, position - start)
            if position + needed > start + len(block) < size:
                start, block = position, segment.file.read(position, max(needed, _WALK_BYTES))
                continue
            batch = parse_batch(block, position - start)
            _check_order(segment, batch)
        except CorruptionError as error:
            tail = bytes(segment.file.read(position, size - position))
            valid_behind = _valid_behind(segment, tail)
            return SegmentContents(position, str(error), valid_behind or _is_complete(tail, position), valid_behind)
        segment.note(batch.header, position)
        position += needed
    segment.checked = True
    return SegmentContents(position)


def _size_at(block: memoryview, position: int) -> int:
    """Return the size of the batch at ``position`` of ``block``, in bytes.

    If the block ends inside the header, return the size of a header.
    """
    if position + HEADER_SIZE_BYTES > len(block):
        return HEADER_SIZE_BYTES
    try:
        return parse_header(block, position).size_bytes
    except UnknownFormatError:
        return HEADER_SIZE_BYTES  # parse_batch distinguishes a flipped bit from another version


def _check_order(segment: Segment, batch: RecordBatch) -> None:
    """Check that offsets grow within a file and that epochs never fall [D14, D15]. Compaction may leave gaps.

    Raises CorruptionError.
    """
    if batch.base_offset < segment.next_offset or (segment.epochs and batch.leader_epoch < segment.epochs[-1][0]):
        raise CorruptionError(
            f"The batch at offset {batch.base_offset}, LeaderEpoch {batch.leader_epoch}, does not follow the "
            f"last record of the segment at offset {segment.next_offset - 1}"
        )


def _is_complete(tail: bytes, at: int) -> bool:
    """Return whether ``tail``, which has a fault, begins with a batch that was written completely [S3]. ``at``: position in the file.

    A torn write is shorter than its batch, or has zeros in place of sectors that the disk has not written.
    """
    try:
        size = claimed_size_bytes(memoryview(tail))
    except CorruptionError:
        return False
    if not HEADER_SIZE_BYTES <= size <= len(tail):
        return False
    ends = range(_SECTOR_BYTES - at % _SECTOR_BYTES, size, _SECTOR_BYTES)
    return all(any(tail[start:end]) for start, end in pairwise((0, *ends, size)))


def _valid_behind(segment: Segment, tail: bytes) -> bool:
    """Return whether a valid batch of this log exists in ``tail``, which begins with a fault."""
    position = tail.find(SIGNATURE, SIGNATURE_POSITION + 1)
    while position >= 0:
        try:
            if parse_batch(tail, position - SIGNATURE_POSITION).base_offset >= segment.next_offset:
                return True
        except (CorruptionError, UnknownFormatError):
            pass
        position = tail.find(SIGNATURE, position + 1)
    return False
