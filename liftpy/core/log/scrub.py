"""Scrub: reads the logs on disk again, piece by piece, to find flipped bits early [S14].

Each segment is checked once when it is sealed, and repeatedly at a low rate. A ``Scan`` reads one file in any thread,
while the log may change. So a fault is only a suspicion. ``is_confirmed_damage`` checks the block again on the log's thread, and
only that counts as damage.

A pass checks CRC, order and size of each batch, as the operating system returned it. Pages in memory and the cache of
the device may hide a fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.core.log.log import Log
from liftpy.core.log.segment import Segment, log_name
from liftpy.core.log.storage import LogFile
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, MAX_BATCH_BYTES, claimed_size_bytes, parse_batch
from liftpy.errors import CorruptionError


@dataclass(slots=True)
class Scan:
    """Check of one segment file from ``position`` to ``end`` (exclusive), in steps. Both are batch boundaries, in bytes.

    ``next_offset`` is the offset of the batch at ``position``.
    """

    base_offset: int
    end: int
    position: int = 0
    next_offset: int = 0
    """The first offset that was not checked. If ``step`` raises, the fault is there."""
    leader_epoch: int = 0
    read_bytes: int = 0
    """Number of bytes of the file that were read. A batch that is larger than a step is read once more."""

    @property
    def name(self) -> str:
        return log_name(self.base_offset)

    @property
    def done(self) -> bool:
        return self.position >= self.end

    def step(self, file: LogFile, max_bytes: int) -> int:
        """Check the next batches of ``file``: about ``max_bytes``, at least one batch.

        Return the number of checked bytes. ``read_bytes`` grows by the number of bytes read. Raises CorruptionError,
        StorageError.
        """
        block = file.reread(self.position, min(max(max_bytes, HEADER_SIZE_BYTES), self.end - self.position))
        self.read_bytes += len(block)
        done = self._check(block)
        if not done and not self.done:  # the batch is larger than the step, or its size is wrong
            wanted = max(claimed_size_bytes(block), HEADER_SIZE_BYTES)
            whole = file.reread(self.position, min(wanted, MAX_BATCH_BYTES, self.end - self.position))
            self.read_bytes += len(whole)
            done = self._check(whole, whole=True)
            if not done:
                raise CorruptionError(
                    f"The log file {self.name} is damaged: its batches end at position {self.position} "
                    f"instead of {self.end}. The node repairs it from another replica."
                )
        return done

    def _check(self, block: memoryview, *, whole: bool = False) -> int:
        at = 0
        while at < len(block):
            try:
                batch = parse_batch(block, at)
            except CorruptionError:
                if whole or (at == 0 and len(block) >= self.end - self.position):
                    raise
                # the block ends inside this batch, or the batch is damaged. The next step starts at this batch
                # and decides it
                break
            if batch.base_offset != self.next_offset or batch.leader_epoch < self.leader_epoch:
                raise CorruptionError(
                    f"The log file {self.name} is damaged: found offset {batch.base_offset} instead of "
                    f"{self.next_offset}. The node repairs it from another replica."
                )
            size_bytes = batch.header.size_bytes
            self.next_offset, self.leader_epoch = batch.next_offset, batch.leader_epoch
            self.position += size_bytes
            at += size_bytes
            if whole:
                break
        return at


def scan_of(log: Log, segment: Segment, position: int = 0) -> Scan | None:
    """Return a check of the flushed part of ``segment``. It begins at the last indexed batch at or before ``position``.

    Return None if there is nothing to check.
    """
    flushed = [entry for entry in segment.entries if entry.base_offset <= log.durable_end_offset]
    if not flushed:
        return None
    whole = segment.next_offset <= log.durable_end_offset
    first = max((entry for entry in flushed if entry.position <= position), default=flushed[0])
    scan = Scan(segment.base_offset, segment.size_bytes if whole else flushed[-1].position, first.position, first.base_offset)
    return None if scan.done else scan


def is_confirmed_damage(log: Log, segment: Segment, scan: Scan) -> bool:
    """Check again, on the thread of the log, the batch at which ``scan`` found a fault. Return True if it is damaged.

    The result is False if ``segment`` is no longer part of the log. A confirmed damage is also reported to the log.
    """
    return any(segment is log_segment for log_segment in log.segments) and not log.is_sound(scan.next_offset)


def freshly_sealed(log: Log) -> Segment | None:
    """Return a segment that this process sealed and flushed, and that was not read from disk since. None: there is none."""
    segments = log.segments
    for segment in segments[:-1] if len(segments) > 1 else ():
        if segment.awaits_scrub and segment.next_offset <= log.durable_end_offset:
            return segment
    return None


def next_segment(log: Log, after_base_offset: int) -> Segment | None:
    """Return the first non-empty segment with a base offset above ``after_base_offset`` (-1: any). None: there is none."""
    return next((s for s in log.segments if s.base_offset > after_base_offset and s.size_bytes), None)
