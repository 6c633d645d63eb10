"""``LogOffsets``: the offsets of the replica's own log. The surrounding code (the shell) has the bytes.

The core runs ahead of the disk: ``log_end_offset`` rises when an append is requested, ``flushed_end_offset`` when
``LogFlushed`` arrives. Other nodes and clients only see flushed positions. ``check_offset`` checks whether the last record of
a reader was truncated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from liftpy.core.base.invariants import check
from liftpy.core.log.compaction_point import NEVER, Horizon
from liftpy.core.log.leader_epochs import EpochCache
from liftpy.core.replication.events import BatchSpan


@dataclass(slots=True)
class LogOffsets:
    """Offsets and epochs of the log of one replica."""

    log_start_offset: int = 0
    """Offset of the oldest record, inclusive. It equals ``log_end_offset`` if the log is empty [D26]."""
    log_end_offset: int = 0
    """Offset that the next record gets, exclusive end of the log."""
    flushed_end_offset: int = 0
    """End of the flushed part, exclusive. It is at most ``log_end_offset``."""
    high_watermark: int = -1
    """Newest committed offset that this replica knows, inclusive. -1: none. It is never above the log [D7]."""
    epochs: EpochCache = field(default_factory=EpochCache)
    horizon: Horizon = NEVER
    """Compaction horizon. The log may lack a record below it if a later record below it replaced it."""

    @property
    def newest_offset(self) -> int:
        """Offset of the last record, inclusive. ``log_start_offset - 1``: the log is empty."""
        return self.log_end_offset - 1

    @property
    def flushed_newest_offset(self) -> int:
        """Newest flushed offset, inclusive. A follower acknowledges it to its leader."""
        return self.flushed_end_offset - 1

    @property
    def is_empty(self) -> bool:
        return self.log_end_offset <= self.log_start_offset

    @property
    def is_flushed(self) -> bool:
        return self.flushed_end_offset == self.log_end_offset

    def set_recovered(
        self, start: int, end: int, high_watermark: int, epochs: tuple[tuple[int, int], ...], epoch_before_start: int = 0
    ) -> None:
        """Set the offsets that recovery found on disk.

        Args:
            start: Log start, inclusive.
            end: Log end, exclusive.
            high_watermark: Stored HW, inclusive. It is limited to the offsets of the log [D7].
            epochs: Pairs of (LeaderEpoch, its first offset).
            epoch_before_start: LeaderEpoch of the last record before the log start. 0: not known.
        """
        self.log_start_offset, self.log_end_offset, self.flushed_end_offset = start, end, end
        self.high_watermark = max(min(high_watermark, end - 1), start - 1)
        self.epochs = EpochCache(epochs, epoch_before_start)

    def compacted(self, horizon: Horizon) -> None:
        """Set the compaction horizon. It comes from a compaction of this log, or of the log from which records were fetched."""
        self.horizon = horizon

    def append(self, record_count: int, leader_epoch: int) -> int:
        """Add a batch of ``record_count`` records that this leader appends in ``leader_epoch``. Return its base offset (inclusive)."""
        base_offset = self.log_end_offset
        self.epochs.assign(leader_epoch, base_offset)
        self.log_end_offset += record_count
        return base_offset

    def append_spans(self, spans: tuple[BatchSpan, ...]) -> None:
        """Add the batches that a follower has fetched. The caller has checked that they follow each other without a gap [D15]."""
        for span in spans:
            check(span.base_offset == self.log_end_offset, "D15", span, "at", self.log_end_offset)
            self.epochs.assign(span.leader_epoch, span.base_offset)
            self.log_end_offset = span.last_offset + 1

    def flushed(self, end_offset: int) -> None:
        """Record that all records below ``end_offset`` (exclusive) are flushed.

        The flushed end never falls, and never passes the log end.
        """
        self.flushed_end_offset = max(self.flushed_end_offset, min(end_offset, self.log_end_offset))

    def was_truncated(self, end_offset: int) -> None:
        """Record that a truncation ended at ``end_offset`` (exclusive).

        The log may be shorter than requested, because a batch is truncated as a whole [D23].
        """
        check(end_offset <= self.log_end_offset, "D12", "asked for a cut to", self.log_end_offset, "got", end_offset)
        if end_offset < self.log_end_offset:
            self.truncate(end_offset)

    def truncate(self, end_offset: int) -> None:
        """Record that the log is truncated to ``end_offset`` (exclusive).

        The HW falls with the log end. That happens only after an unclean election [D7, D9, C11].
        """
        self.log_end_offset = end_offset
        self.flushed_end_offset = min(self.flushed_end_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset - 1)
        self.epochs.truncate(end_offset)
        if self.is_empty:
            self.horizon = NEVER

    def reset(self, start_offset: int, deletes_end: int = 0) -> None:
        """Record that the log was discarded, and that an empty one begins at ``start_offset``.

        All earlier records are committed, and deleted on the leader too [D26]. ``deletes_end``: offset (exclusive) below which
        the leader's log may lack tombstones.
        """
        self.log_start_offset = self.log_end_offset = self.flushed_end_offset = start_offset
        self.high_watermark = start_offset - 1
        self.epochs, self.horizon = EpochCache(), NEVER._replace(deletes_end=deletes_end)

    def start_moved(self, log_start_offset: int) -> None:
        """Record the new log start (inclusive) after retention. A lower one is older, and ignored. It never passes HW + 1 [D26]."""
        if log_start_offset <= self.log_start_offset:
            return
        check(log_start_offset <= self.high_watermark + 1, "D26", log_start_offset, "above HW", self.high_watermark)
        self.log_start_offset = log_start_offset
        self.epochs.drop_prefix(log_start_offset, self.log_end_offset)

    def raise_high_watermark(self, offset: int) -> bool:
        if offset <= self.high_watermark:
            return False
        check(offset <= self.newest_offset, "D7", "HW", offset, "above newest", self.newest_offset)
        self.high_watermark = offset
        return True


class OffsetCheck(Enum):
    """Result of the check whether the last record that a reader has read is in this log."""

    SAME = "same"
    """The record is in this log, or retention has removed the record that would prove it."""
    BEHIND = "behind"
    """This replica cannot decide yet. The reader retries, or asks another replica."""
    CUT = "cut"
    """The record is not in this log. Records that the reader has read were truncated."""


@dataclass(frozen=True, slots=True)
class OffsetCheckResult:
    """Outcome of ``check_offset``, and where the logs differ.

    ``end_offset``: for CUT, offset (exclusive) up to which the reader's records may be in this log. Otherwise 0.
    """

    outcome: OffsetCheck
    end_offset: int = 0


def check_offset(log: LogOffsets, *, last_offset: int, last_epoch: int, is_latest: bool) -> OffsetCheckResult:
    """Return whether the last record that a reader has read is in this log.

    The check is that of Kafka's KIP-320 [R6]. Only an unclean election, which an operator must command, loses committed
    records. A reader sends (offset, LeaderEpoch) of its last record. If this pair is on the log, everything before it is too
    [D5]. If it is not, only a leader with a lease whose high watermark has reached the start of its epoch may answer
    "truncated". Other replicas cannot know: a later leader may have committed the record.

    Args:
        log: Offsets of this log.
        last_offset: Offset of the reader's last record, inclusive.
        last_epoch: LeaderEpoch of the reader's last record.
        is_latest: True if this replica leads with a lease and the HW has reached the start of its epoch. Only then is a
            missing record certainly lost.
    """
    within = last_offset < log.log_end_offset
    if last_offset < log.log_start_offset or (within and log.epochs.epoch_at(last_offset) == last_epoch):
        return OffsetCheckResult(OffsetCheck.SAME)
    if not is_latest:
        return OffsetCheckResult(OffsetCheck.BEHIND)
    _, end_offset = log.epochs.end_offset_for(last_epoch, log.log_end_offset)
    return OffsetCheckResult(OffsetCheck.CUT, min(end_offset, last_offset))
