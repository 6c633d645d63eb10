"""``Log``: the segmented log of one partition. Synchronous: the storage does the I/O, the caller runs the flushes.

    append -> (begin_flush -> Flush.run in any thread -> complete_flush) -> flushed_end_offset -> positions for other nodes

Batches that are appended during a flush share the next one. A flush error is final: the log closes and nothing is acked any
more [S4]. Data that ``read`` returned stays valid after truncation, retention and close.

Retention deletes whole segments by age, size and number of records (``retained_start``). ``RecheckLimiter`` limits how often
reports of damage make a replica check its file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum

from liftpy.config import NS_PER_S, FlushMode, StreamConfig
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionState
from liftpy.core.log.compaction import CompactedFile, Compaction, CompactionSchedule
from liftpy.core.log.compaction_point import HORIZON_NAME, NEVER, CompactionHorizon, Horizon, deletes_end_after
from liftpy.core.log.flush import Flush, SealJob
from liftpy.core.log.leader_epochs import EpochCache
from liftpy.core.log.reading import (
    ReadResult,
    checked_to_follow,
    first_offset_at,
    offset_at,
    read_forwards,
    read_part,
    segment_at,
    without_earlier_offsets,
)
from liftpy.core.log.recovery import OpenReport, RecoveryResult, mark_failed_flush, recover
from liftpy.core.log.segment import Segment, index_name, log_name
from liftpy.core.log.small_files import EPOCHS_NAME, STATE_PREFIX, Checkpoint, Checkpoints, encode_index
from liftpy.core.log.storage import Bytes, Storage
from liftpy.core.wire.batch import BatchHeader, RecordBatch, parse_batch
from liftpy.errors import CorruptionError, LogClosedError, NoSpaceError, OffsetOutOfRangeError, StorageError

AT_ONCE = 32
"""Maximum number of segments that one step of retention deletes. Each takes a flush of the directory."""
EVERY_NS = 1_000_000_000
MAX_ASKERS = 64
"""Maximum number of followers whose last check is remembered. The oldest is forgotten first."""
READERS = ""
"""Id that all readers share. It differs from every node id, because a node id is never empty."""


def is_too_old(segment: Segment, config: StreamConfig, high_watermark: int, now_wall_ns: int) -> bool:
    """Return whether the whole segment is committed and older than ``retention_age_s``. ``high_watermark``: inclusive."""
    oldest_ns = now_wall_ns - int(config.retention_age_s * NS_PER_S)
    committed = segment.next_offset <= high_watermark + 1
    return bool(config.retention_age_s and segment.size_bytes and committed and segment.max_timestamp_ns < oldest_ns)


def is_below(segment: Segment, requested_start: int, high_watermark: int) -> bool:
    """Return whether the whole segment is committed and below the requested log start. ``high_watermark``: inclusive."""
    return bool(segment.size_bytes) and segment.next_offset <= min(requested_start, high_watermark + 1)


def asked_start(segments: Sequence[Segment], wanted: int) -> int:
    """Return the next log start (inclusive) on the way to ``wanted``, the log start that an operator requested.

    Each step removes at most ``AT_ONCE`` segments.
    """
    return min(wanted, segments[AT_ONCE].base_offset) if len(segments) > AT_ONCE else wanted


def retained_start(segments: Sequence[Segment], config: StreamConfig, high_watermark: int, now_wall_ns: int) -> int:
    """Return the log start after retention: the base offset of the first segment that stays.

    Retention deletes no active segment, and no record above the high watermark [D26]. The result is the largest segment base
    below which everything is too old, or exceeds the size or number, counted from the newest record.

    Example: segments of 10 records at 0, 10, 20 and an empty active one, high watermark 25, ``retention_records`` 15. Deleting
    the first segment leaves 20 records. Deleting the second would leave 10. So the log start becomes 10.

    Args:
        segments: Ascending, the active one last.
        config: Settings of the stream.
        high_watermark: Inclusive. Records above it stay.
        now_wall_ns: Wall clock, in nanoseconds since 1970.
    """
    size_bytes = sum(s.size_bytes for s in segments)
    records = sum(s.record_count for s in segments)
    for segment in segments[:-1]:
        too_old = is_too_old(segment, config, high_watermark, now_wall_ns)
        too_large = config.retention_bytes and size_bytes - segment.size_bytes >= config.retention_bytes
        too_many = config.retention_records and records - segment.record_count >= config.retention_records
        if not (too_old or too_large or too_many) or segment.next_offset > high_watermark + 1:
            return segment.base_offset
        size_bytes -= segment.size_bytes
        records -= segment.record_count
    return segments[-1].base_offset


def limit_retention_start(segments: Sequence[Segment], wanted: int, retain_from: int | None, most_bytes: int) -> int:
    """Return the log start after retention, if a service still needs the record at ``retain_from``. None: no service needs a record.

    At most ``most_bytes`` below ``wanted``, the log start by the settings, stay for the service. Beyond this limit, retention
    wins.

    Example: segments of 10 records and 1 MB begin at 0, 10, 20 and 30. ``wanted`` is 30 and ``retain_from`` is 12. The log start
    becomes 10 if ``most_bytes`` is 2 MB, and 20 if it is 1 MB.
    """
    start, size_bytes = wanted, 0
    if retain_from is None:
        return wanted
    for segment in reversed([s for s in segments if s.base_offset < wanted and s.next_offset > retain_from]):
        size_bytes += segment.size_bytes
        if size_bytes > most_bytes:
            break
        start = segment.base_offset
    return start


class Log:
    """The log of one partition. Offsets: ``*_end_offset`` exclusive, all others inclusive."""

    def __init__(self, config: StreamConfig, recovered: RecoveryResult) -> None:
        storage, segments, checkpoint = recovered.storage, recovered.segments, recovered.checkpoint
        self.storage = storage
        self.config = config
        self.segments = segments
        """Segments, ascending, never empty. The last one receives appends."""
        self.epochs = EpochCache()
        self.on_advance: Callable[[], None] | None = None
        """Called after each append, truncation and rise of the high watermark. Tailing readers then check for new records."""
        self.on_damage: Callable[[CorruptionError], None] | None = None
        """Called when a read finds other bytes than were written."""
        # number of records, since the log was opened, that were truncated because the leader does not have them
        self.truncated_records = 0
        self.log_start_offset = max(recovered.log_start_offset, segments[0].base_offset)
        """Inclusive. Equal to ``log_end_offset`` when the log is empty. It only grows [D26]."""
        self.asked_start = 0  # newest known ``PartitionState.asked_start``
        for segment in segments:
            for epoch, start in segment.epochs:
                self.epochs.assign(epoch, start)
        self._checkpoints = Checkpoints(storage, checkpoint, recovered.small_files.get(EPOCHS_NAME))
        self.epochs.before_start = self._checkpoints.epoch_below(self.log_start_offset)
        self.epochs.drop_prefix(self.log_start_offset, self.log_end_offset)
        self.high_watermark = max(min(checkpoint.high_watermark, self.newest_offset), self.log_start_offset - 1)
        """Inclusive, -1 when nothing is committed. Never above the log [D7]."""
        self.persisted_epoch = checkpoint.persisted_epoch
        """Highest LeaderEpoch that is durably promised, in the journal of promises or in a checkpoint. 0: none."""
        self._durable_end_offset = self.log_end_offset
        self._horizon = CompactionHorizon(storage, segments, recovered.small_files.get(HORIZON_NAME))
        self._rechecks = RecheckLimiter()
        self.on_compacted: Callable[[Horizon], None] | None = None
        """Called when the horizon rises."""
        self.producer_expiry_ns = 0  # expiry of producers in log time, for compaction [A4]. 0: producers never expire
        self.cleaning = CompactionSchedule()
        self._unsynced: list[SealJob] = []
        self._flush: Flush | None = None
        self._has_failed_flush = False
        self._new_names = False
        self.closed: str = ""
        """Reason why the log is closed. '': it is open."""
        self.is_full = False
        """True if the log is closed because the disk is full. Retention and checkpoints then still work, so that space gets free."""

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: StreamConfig,
        *,
        now_wall_ns: int = 0,
        clean: bool = False,
        recovered: RecoveryResult | None = None,
        promised_epoch: int = 0,
    ) -> tuple[Log, OpenReport]:
        """Recover the directory and open its log.

        Args:
            storage: Directory of the partition.
            config: Settings of the stream.
            now_wall_ns: Wall clock, in nanoseconds.
            clean: True if the marker of the node says that this log was closed cleanly.
            recovered: Result of ``recover`` for this directory, if nothing has changed since. None: recover it now.
            promised_epoch: Highest LeaderEpoch in the journal of promises. 0: none.

        Returns:
            The log, and the report of the recovery.

        Raises:
            StorageError: The disk failed.
            UnknownFormatError: Data has the format of another version.
        """
        recovered = recovered or recover(storage, clean=clean)
        segments, start = recovered.segments, recovered.log_start_offset
        if not segments or segments[-1].sealed:
            base = segments[-1].next_offset if segments else start
            segments.append(Segment(base, storage.create(log_name(base)), base, checked=True))
            if start > recovered.checkpoint.log_start_offset:
                storage.sync_folder()  # no other file proves the log start
        log = cls(config, recovered)
        log.note_promise(promised_epoch)
        log.segments[-1].created_wall_ns = now_wall_ns
        # the first flush of records makes the file name durable, because a node may create thousands of logs at once
        log._new_names = log.segments[-1].size_bytes == 0
        if recovered.report.lost_committed:
            with suppress(NoSpaceError):  # the log can be read. It accepts no records before the checkpoint is stored
                log._store_checkpoint()
        return log, recovered.report

    # ---- bounds ------------------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        return max(self.segments[-1].next_offset, self.log_start_offset)

    @property
    def newest_offset(self) -> int:
        """Offset of the last record, inclusive. ``log_start_offset - 1``: the log is empty."""
        return self.log_end_offset - 1

    @property
    def flushed_end_offset(self) -> int:
        """Offset (exclusive) below which all records are on disk, or count as such under the stream's flush policy."""
        return self._durable_end_offset if self.config.flush.mode is FlushMode.ALWAYS else self.log_end_offset

    @property
    def horizon(self) -> Horizon:
        """Compaction horizon: offset below which records may be missing, because this log or its source was compacted."""
        return self._horizon.value

    @property
    def durable_end_offset(self) -> int:
        """Offset (exclusive) below which all records have been flushed to disk, independent of the flush policy of the stream."""
        return self._durable_end_offset

    @property
    def unflushed_bytes(self) -> int:
        """Approximate number of bytes appended to the active segment since its last flush began."""
        return max(self.segments[-1].size_bytes - self.segments[-1].flushing_bytes, 0)

    @property
    def size_bytes(self) -> int:
        return sum(s.size_bytes for s in self.segments)

    # ---- appending ---------------------------------------------------------------------------------------------------

    def append(self, batch: Bytes, now_wall_ns: int = 0) -> None:
        """Append one batch whose header and CRC are complete. Its base offset must be ``log_end_offset``. ``now_wall_ns``: wall clock.

        Raises NoSpaceError, StorageError, LogClosedError.
        """
        parsed = parse_batch(batch, verify=False)
        self.append_batches(memoryview(batch), (parsed,), now_wall_ns)

    def append_batches(
        self, buffer: memoryview, batches: Sequence[RecordBatch], now_wall_ns: int = 0, *, compacted: Horizon = NEVER
    ) -> None:
        """Append received batches unchanged, with one write.

        Args:
            buffer: Bytes that begin with the batches. The caller has checked the CRCs. Bytes after the last batch are not
                written.
            batches: Headers of the batches. They must follow each other and the log [D14, D15].
            now_wall_ns: Wall clock, in nanoseconds.
            compacted: Horizon of the source log: how far its compaction can have reached.

        Raises:
            InvariantError: The batches do not follow the log. Nothing was written.
            NoSpaceError, StorageError: The write failed.
            LogClosedError: The log is closed.
        """
        self._must_be_open()
        size_bytes = checked_to_follow(batches, self.log_end_offset, self.epochs.latest_epoch)
        if compacted.end_offset > self.horizon.end_offset and any(b.header.is_compacted for b in batches):
            self._store_horizon(compacted)
        check(size_bytes <= len(buffer), "D23", size_bytes, "bytes of batches in a buffer of", len(buffer))
        if self._checkpoints.high_watermark > self.high_watermark:
            raise NoSpaceError(  # the next opening would count records that are appended here as durable
                "The disk was full when the log was opened, so its lower high watermark is not stored. Free space on the disk."
            )
        self._roll_if_due(size_bytes, now_wall_ns)
        active = self.segments[-1]
        try:
            active.file.append((buffer[:size_bytes],))
        except StorageError as error:
            self._close_after(error, str(error))
            raise
        position, epoch = active.size_bytes, self.epochs.latest_epoch
        for batch in batches:
            header = batch.header
            active.note(header, position)
            if header.leader_epoch != epoch:
                epoch = header.leader_epoch
                self.epochs.assign(epoch, header.base_offset)
            position += header.size_bytes
        self._notify_advance()

    def _roll_if_due(self, size_bytes: int, now_wall_ns: int) -> None:
        active = self.segments[-1]
        full = active.size_bytes + size_bytes > self.config.segment_bytes
        age_ns = int(self.config.segment_age_s * 1e9)
        old = age_ns > 0 and now_wall_ns - active.created_wall_ns >= age_ns
        if active.size_bytes > 0 and (full or old):
            self.roll(now_wall_ns)
        elif active.size_bytes == 0:
            active.created_wall_ns = now_wall_ns

    def roll(self, now_wall_ns: int = 0) -> None:
        """Seal the active segment and begin another one.

        The next flush also flushes the sealed segment and writes its index. An empty active segment is not sealed, because
        two segments never begin at one offset.
        """
        active, base = self.segments[-1], self.log_end_offset
        if active.base_offset == base:
            return
        file = self.storage.create(log_name(base))
        active.sealed = active.awaits_scrub = True
        self._unsynced.append(SealJob(active.file, index_name(active.base_offset), active.summary()))
        self.segments.append(Segment(base, file, base, checked=True, created_wall_ns=now_wall_ns))
        self._new_names = True

    # ---- flushing ----------------------------------------------------------------------------------------------------

    @property
    def needs_flush(self) -> bool:
        return self._durable_end_offset != self.log_end_offset or bool(self._unsynced)

    def begin_flush(self) -> Flush | None:
        if self._flush is not None or self.closed or not self.needs_flush:
            return None
        seals, self._unsynced = tuple(self._unsynced), []
        active = self.segments[-1]
        size_bytes = self.unflushed_bytes
        active.flushing_bytes = active.size_bytes
        self._flush = Flush(self.storage, active.file, seals, self._new_names, self.log_end_offset, size_bytes)
        self._new_names = False
        return self._flush

    def complete_flush(self, flush: Flush, error: Exception | None = None) -> int:
        """Record that ``flush`` has run, and return the new ``flushed_end_offset``. ``error``: closes the log permanently [S4].
        None: success.
        """
        check(flush is self._flush, "S4", "a flush completes that was not begun")
        self._flush = None
        if error is not None:
            self._has_failed_flush = True
            self._close_after(error, f"flush failed: {error}")
            kind = NoSpaceError if isinstance(error, NoSpaceError) else StorageError
            raise kind(self.closed) from error
        self._durable_end_offset = max(self._durable_end_offset, min(flush.end_offset, self.log_end_offset))
        for segment in self.segments[:-1]:
            if segment.sealed and any(job.file is segment.file for job in flush.seals):
                segment.file.seal()
        return self.flushed_end_offset

    def flush(self) -> int:
        """Flush now and return ``flushed_end_offset``.

        Tools, tests and ``close`` use it. A running node uses ``begin_flush``, which does not block.
        """
        if (flush := self.begin_flush()) is not None:
            try:
                flush.run()
            except StorageError as error:
                return self.complete_flush(flush, error)
            self.complete_flush(flush)
        return self.flushed_end_offset

    # ---- commitment --------------------------------------------------------------------------------------------------

    def raise_high_watermark(self, high_watermark: int) -> None:
        """Note that records up to ``high_watermark`` (inclusive) are committed.

        It never falls and is never above the log end [D7, D8].
        """
        check(high_watermark <= self.newest_offset, "D7", "HW", high_watermark, "newest", self.newest_offset)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self._notify_advance()

    def note_promise(self, leader_epoch: int) -> None:
        """Note that the journal of promises has ``leader_epoch`` durably. The next checkpoint stores it too.

        The replica ignores metadata with lower LeaderEpochs after a restart.
        """
        self.persisted_epoch = max(self.persisted_epoch, leader_epoch)

    def checkpoint(self) -> None:
        """Store HW, log start and epochs durably, if they changed. The stored HW is never ahead of the flushed records.

        This method may run in another thread during appends and a flush. It must not run during a truncation, retention or
        another checkpoint. It also works in a log that a full disk has closed at an append.
        """
        if not self.is_full or self._has_failed_flush:
            self._must_be_open()
        self._store_checkpoint()
        self._checkpoints.store_epochs(self.epochs, self.log_start_offset)

    def _store_checkpoint(self) -> None:
        self._checkpoints.store(self._checkpoint_at(self.log_start_offset))

    def _checkpoint_at(self, log_start_offset: int) -> Checkpoint:
        durable = min(self.high_watermark, self._durable_end_offset - 1)
        return Checkpoint(durable, log_start_offset, self.persisted_epoch)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def read(self, from_offset: int, max_bytes: int, *, end_offset: int | None = None) -> ReadResult:
        """Return whole batches from the one that contains ``from_offset``, up to ``end_offset`` (exclusive, default HW + 1).

        The size is at most ``max_bytes``, but at least one batch is returned if there is one. A batch that reaches past
        ``end_offset`` is not returned. A filler (a batch without records) that begins before ``from_offset`` is shortened to
        begin there, because a follower appends only batches that begin at its log end.

        Raises OffsetOutOfRangeError below the log start and above the log end, CorruptionError, LogClosedError.
        """
        self._must_be_readable(from_offset)
        limit = self._end_limit(end_offset)
        try:
            result = read_forwards(self.segments, from_offset, max_bytes, limit)
            # a damaged header can hide a batch, so an empty result would be wrong
            if not result.chunks and from_offset < limit:
                self._segment_at(from_offset).recheck(from_offset)
            return without_earlier_offsets(result, from_offset) if self.may_have_gaps else result
        except CorruptionError as error:
            self.handle_damage(error)
            raise

    def read_part(
        self, from_offset: int, position: int, size_bytes: int, *, end_offset: int | None = None
    ) -> tuple[BatchHeader, memoryview] | None:
        """Return a part of the batch that contains ``from_offset``: its header, and up to ``size_bytes`` from ``position`` of the
        batch.

        Return None if the batch has no more bytes or ends past ``end_offset``. Raises the errors of ``read``.
        """
        self._must_be_readable(from_offset)
        try:
            return read_part(self.segments, from_offset, position, size_bytes, self._end_limit(end_offset))
        except CorruptionError as error:
            self.handle_damage(error)
            raise

    def offset_for_timestamp(self, timestamp_ns: int) -> int:
        """Return the base offset of the first batch with a timestamp at or past ``timestamp_ns``, ``log_end_offset`` if there
        is none.
        """
        self._must_be_open()
        try:
            offset = first_offset_at(self.segments, timestamp_ns)
        except CorruptionError as error:
            self.handle_damage(error)
            raise
        return self.log_end_offset if offset is None else max(offset, self.log_start_offset)

    def handle_damage(self, error: CorruptionError) -> None:
        """Handle damage that a read has found: remove the index of the segment, and report the damage to the replica (``on_damage``).

        Without the index, the next recovery reads the segment, finds the damage and quarantines the segment [S3]. Until then
        this replica must not stay in the ISR.
        """
        with suppress(StorageError):  # then the next read finds the damage again
            for segment in self.segments:
                if segment.damaged:
                    self.storage.remove(index_name(segment.base_offset))
            self.storage.sync_folder()
        if self.on_damage is not None:
            self.on_damage(error)

    def complaint(self, offset: int, asker: str, now_ns: int) -> RecheckResult:
        """Check the batch at ``offset`` on disk, because the node or reader ``asker`` reported it as damaged. Return the result.

        ``RecheckLimiter`` limits the number of checks. A confirmed damage is handled as in ``handle_damage``. ``now_ns``: monotonic
        time.
        """
        if self.closed or not self.log_start_offset <= offset < self.log_end_offset:
            return RecheckResult.NOT_HERE
        if not self._rechecks.is_due(asker, now_ns):
            return RecheckResult.TOO_SOON
        return RecheckResult.SOUND if self.is_sound(offset) else RecheckResult.DAMAGED

    def is_sound(self, offset: int) -> bool:
        """Read the block that contains ``offset`` from the file again. Return True if its batches are valid.

        If they are damaged, handle this as in ``handle_damage``.
        """
        try:
            self._segment_at(offset).recheck(offset)
        except CorruptionError as error:
            self.handle_damage(error)
            return False
        except StorageError:
            return True  # no readable byte is wrong. The next reader sees an error of the device
        return True

    def _segment_at(self, offset: int) -> Segment:
        return self.segments[segment_at(self.segments, offset)]

    def _end_limit(self, end_offset: int | None) -> int:
        return min(self.high_watermark + 1 if end_offset is None else end_offset, self.log_end_offset)

    def _must_be_readable(self, offset: int) -> None:
        self._must_be_open()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"Offset {offset} is outside {self.log_start_offset}..{self.log_end_offset} of this log. Choose an "
                "offset in this range."
            )

    # ---- truncation --------------------------------------------------------------------------------------------------

    def truncate_to(self, end_offset: int) -> int:
        """Truncate the log so that it ends at ``end_offset``, or before the batch that contains it. A batch is atomic [D23].

        The method removes the newest files first. Each removal is durable before the next, so that a crash leaves no gap.
        Return the new ``log_end_offset``.
        """
        self._must_be_open()
        self._join_flush()
        self.truncated_records += max(self.log_end_offset - max(end_offset, self.log_start_offset), 0)
        while len(self.segments) > 1 and self.segments[-1].base_offset >= end_offset:
            self._remove(self.segments.pop())
        active = self.segments[-1]
        position = active.locate(end_offset) if active.next_offset > end_offset else active.size_bytes
        if position < active.size_bytes or active.sealed:
            self.storage.remove(index_name(active.base_offset))
            self.storage.sync_folder()
            self._truncate_segment(active, position)
        self._forget_flushes(self.log_end_offset)
        self.epochs.truncate(self.log_end_offset)
        if self.log_end_offset <= self.log_start_offset:
            self._horizon.forget()
        self.cleaning.truncate(self.log_end_offset)
        self._durable_end_offset = min(self._durable_end_offset, self.log_end_offset)
        if self.high_watermark > self.newest_offset:
            self.high_watermark = self.newest_offset
            self._store_checkpoint()
        self._notify_advance()
        return self.log_end_offset

    def _truncate_segment(self, segment: Segment, position: int) -> None:
        segment.file.truncate(position)
        prefix = Segment(segment.base_offset, segment.file, segment.base_offset, checked=segment.checked)
        prefix.size_bytes = position  # the scan of the remaining batches ends there
        for at, header in list(prefix.batches(0, position)):
            prefix.note(header, at)
        prefix.created_wall_ns = segment.created_wall_ns
        self.segments[-1] = prefix

    def reset(self, start_offset: int, deletes_end: int = 0) -> None:
        """Delete all records and begin an empty log at ``start_offset`` (inclusive).

        A follower does this when its log ends below the leader's log start [D26], or below tombstones that the leader has
        removed [D30]. ``deletes_end``: offset (exclusive) below which the leader's log may lack tombstones.
        """
        self._must_be_open()
        self._join_flush()
        for name in self.storage.names():
            if name.startswith(STATE_PREFIX):
                self.storage.remove(name)  # the checkpoint describes the log that is deleted
        self.truncated_records += self.log_end_offset - self.log_start_offset
        self.log_start_offset = start_offset
        self.high_watermark = start_offset - 1
        self._durable_end_offset = start_offset
        self.epochs = EpochCache()
        self._checkpoints.store_epochs(self.epochs, start_offset)  # the epochs below the new start are not known
        self._store_checkpoint()
        for segment in reversed(self.segments):
            self._remove(segment)
        self.segments = [Segment(start_offset, self.storage.create(log_name(start_offset)), start_offset, checked=True)]
        self.storage.sync_folder()
        self._forget_flushes(start_offset)
        self._new_names = False
        self._horizon.forget(deletes_end)
        self.cleaning.truncate(0)
        self._notify_advance()

    def drop_prefix(self, log_start_offset: int) -> None:
        """Stop serving records below ``log_start_offset``, and delete whole segments below it.

        The log start is never above HW + 1 [D26] and only grows. If the offset is inside a batch, the log starts at the
        first offset of this batch.

        A full disk may have no room for the new checkpoint. Then the log deletes its oldest segments without one, until there is
        room. Raises NoSpaceError if there is no room and no segment that can be deleted in this way.
        """
        self._must_allow_deletion()
        wanted = min(log_start_offset, self.high_watermark + 1)
        if wanted < self.log_end_offset:
            index = max(bisect_right(self.segments, wanted, key=lambda s: s.base_offset) - 1, 0)
            wanted = self._batch_start(self.segments[index], wanted)
        before = self.log_start_offset
        try:
            self._raise_log_start(wanted)
            if self.log_start_offset > before:
                self._join_flush()
                while len(self.segments) > 1 and self.segments[0].next_offset <= self.log_start_offset:
                    self._remove(self.segments.pop(0))
        finally:
            if self.log_start_offset > before:
                self._forget_flushes(self.log_end_offset)
                self._notify_advance()

    def _raise_log_start(self, wanted: int) -> None:
        """Raise the log start to ``wanted`` durably, or on a full disk as far as whole segments can be deleted."""
        before = self.log_start_offset
        while wanted > self.log_start_offset:
            try:
                self._store_log_start(wanted)  # first the log start becomes durable, then the files are removed
            except NoSpaceError:
                if self._drop_oldest_segment(wanted):
                    continue
                if self.log_start_offset == before:
                    raise
                break

    def _store_log_start(self, log_start_offset: int) -> None:
        """Store the new log start durably, then move it. If that fails, the log start stays where it is [D26]."""
        epochs = EpochCache(self.epochs.entries, self.epochs.before_start)
        epochs.drop_prefix(log_start_offset, self.log_end_offset)
        if not epochs.entries:
            self._checkpoints.store_epochs(epochs, log_start_offset)  # nothing else stores the epoch of the last record
        self._checkpoints.store(self._checkpoint_at(log_start_offset))
        self.epochs, self.log_start_offset = epochs, log_start_offset

    def _drop_oldest_segment(self, wanted: int) -> bool:
        """Delete the oldest segment without a checkpoint, and move the log start behind it. Return False if it must stay.

        A log begins at its first segment, even if its checkpoint names an earlier log start. So the removal itself stores the
        log start, and it is durable before the log start moves [D26]. The segment stays if it has records at ``wanted`` or
        above. It also stays if no later record is flushed, and the file ``leader-epochs`` does not have the epoch of its last
        record: after a crash, an empty log would not know this epoch.
        """
        if len(self.segments) == 1 or self.segments[0].next_offset > wanted:
            return False
        start = self.segments[1].base_offset
        epoch = self.epochs.epoch_at(start - 1) or self.epochs.before_start
        if start >= self._durable_end_offset and self._checkpoints.epoch_below(start) != epoch:
            return False
        self._join_flush()
        self.storage.sync_folder()  # the removal must not become durable before the names of the segments that stay
        self._remove(self.segments[0])
        del self.segments[0]
        self.epochs.drop_prefix(start, self.log_end_offset)
        self.log_start_offset = max(start, self.log_start_offset)
        return True

    def _batch_start(self, segment: Segment, offset: int) -> int:
        try:
            segment.check(segment.entry_at(offset), segment.entry_at(offset) + 1)
            return offset_at(segment, segment.locate(offset)) if segment.size_bytes else segment.base_offset
        except CorruptionError as error:
            segment.damaged = True
            self.handle_damage(error)
            raise

    def apply_retention(
        self,
        now_wall_ns: int,
        retain_from: int | None = None,
        hold_bytes: int = 0,
        may_drop: Callable[[int], bool] = lambda log_start_offset: True,
    ) -> bool:
        """Delete the whole segments that the retention settings or an operator's request allow to delete, at most ``AT_ONCE``.

        Call it again while it returns True: there may be more.

        Args:
            now_wall_ns: Wall clock, in nanoseconds since 1970.
            retain_from: First offset that a service still needs. None: no service needs a record.
            hold_bytes: Maximum size of the expired records that stay for services, in bytes.
            may_drop: Called with the new log start. Returns whether the log may start there now. If not, the caller retries
                later.

        Returns:
            True if the log start moved.

        Raises:
            NoSpaceError: The disk is full, and no segment can be deleted without a checkpoint.
            LogClosedError: The log is closed, but not because of a full disk.
        """
        self._must_allow_deletion()
        before, active, high = self.log_start_offset, self.segments[-1], self.high_watermark
        is_expired = is_too_old(active, self.config, high, now_wall_ns) or is_below(active, self.asked_start, high)
        if not self.closed and (is_expired or self.cleaning.wants_seal(active, high + 1)):
            with suppress(NoSpaceError):  # the segments before it can be deleted all the same
                self.roll(now_wall_ns)  # the active segment of an idle stream also exceeds its age
        wanted = retained_start(self.segments, self.config, high, now_wall_ns)
        requested_start = asked_start(self.segments, self.asked_start)
        start = min(max(limit_retention_start(self.segments, wanted, retain_from, hold_bytes), requested_start), high + 1)
        start = asked_start(self.segments, start)
        if start > before and may_drop(start):
            self.drop_prefix(start)
        self.cleaning.note_bounds(self.log_start_offset, high + 1)
        return self.log_start_offset > before

    @property
    def may_give_up(self) -> bool:
        """True if a call of ``apply_retention`` may delete or seal something: there is retention, a requested log start or a purge."""
        return self.config.has_retention or self.log_start_offset < self.asked_start or bool(self.cleaning.purges)

    @property
    def may_be_cleaned(self) -> bool:
        """True if a compaction of this log may remove records, because of the stream's settings or a purge."""
        return self.config.is_cleaned or bool(self.cleaning.purges)

    @property
    def may_have_gaps(self) -> bool:
        """True if compaction may have removed records, in this log or in a log from which its records were fetched."""
        return self.config.is_cleaned or self.horizon.end_offset > 0

    def apply_metadata(self, state: PartitionState) -> bool:
        """Take over the requested log start and the purges from the metadata. Return True if one of them is new."""
        is_new = self.asked_start != state.asked_start
        self.asked_start = state.asked_start
        return self.cleaning.apply_metadata(state) or is_new

    def begin_compaction(self, now_wall_ns: int, *, min_dirty_ratio: float = 0.0) -> Compaction | None:
        """Return a compaction of the sealed, flushed and committed segments. The caller runs it in any thread.

        Afterwards the caller passes it to ``complete_compaction`` on the thread of the log. None: there are no such segments,
        or the share of new bytes is below ``min_dirty_ratio`` (0 to 1). Bytes are new if they were appended after the last
        compaction of this process.
        """
        self._must_be_open()
        pending = {id(job.file) for job in (*self._unsynced, *(self._flush.seals if self._flush else ()))}
        inputs = []
        for segment in self.segments[:-1]:
            if id(segment.file) in pending or segment.next_offset > min(self.high_watermark + 1, self._durable_end_offset):
                break
            inputs.append(segment)
        newest_ns = max(segment.max_timestamp_ns for segment in self.segments)
        run = self.cleaning.plan_compaction(self.storage, self.config, inputs, newest_ns, now_wall_ns, min_dirty_ratio)
        if run is not None:
            run.producer_expiry_ns = self.producer_expiry_ns
        return run

    def complete_compaction(self, compaction: Compaction) -> int:
        """Replace the input segments of a compaction by its output files. Return the number of removed records.

        The method changes nothing if the log was truncated during the run. If retention has removed the first segments, it uses the
        output files of the others. It raises NoSpaceError and changes nothing if the disk
        has no room for the horizon. A later error closes the log. The next start repairs the directory.
        """
        if self.is_full:
            with suppress(StorageError):  # the next start removes the files
                compaction.abandon()  # they use space
        self._must_be_open()
        if not compaction.keep_usable_outputs(self.segments, self.log_start_offset):
            compaction.abandon()
            return 0
        end_offset = compaction.inputs[-1].next_offset
        try:
            if compaction.outputs:
                deletes_end = deletes_end_after(self.horizon, compaction.rules.deletes_start, compaction.rules.deletes_end)
                self._store_horizon(Horizon(end_offset, self.epochs.epoch_at(end_offset - 1), deletes_end))
        except NoSpaceError:
            compaction.abandon()  # its files use space
            raise
        except StorageError as error:
            self.closed = f"compaction failed: {error}"
            raise
        try:
            for output in compaction.outputs:
                self._swap_in(output)
        except StorageError as error:
            self.closed = f"compaction failed: {error}"
            raise
        self.cleaning.ran(compaction)
        return sum(output.dropped_records for output in compaction.outputs)

    def _store_horizon(self, horizon: Horizon) -> None:
        if self._horizon.rise(horizon) and self.on_compacted is not None:
            self.on_compacted(self.horizon)

    def _swap_in(self, output: CompactedFile) -> None:
        """Replace the input segments of a compaction by the file ``output``. Recovery completes this after a crash."""
        old = [s for s in self.segments if s.base_offset in output.replaced]
        self.storage.remove(index_name(old[0].base_offset))
        self.storage.rename(output.temporary, log_name(output.segment.base_offset))
        self.storage.sync_folder()
        file = self.storage.open(log_name(output.segment.base_offset))
        file.seal()
        output.segment.file.close()
        output.segment.file = file
        with suppress(NoSpaceError):  # the next start builds the index from the segment
            self.storage.replace(index_name(output.segment.base_offset), encode_index(output.segment.summary()))
        for segment in old[1:]:
            self._remove(segment)
        old[0].file.close()
        index = self.segments.index(old[0])
        self.segments[index : index + len(old)] = [output.segment]

    def _forget_flushes(self, end_offset: int) -> None:
        """Cancel the flushes of deleted files, because the log now ends at ``end_offset`` (exclusive).

        A running flush then counts only the records below ``end_offset`` as flushed.
        """
        self._unsynced = [job for job in self._unsynced if any(job.file is s.file for s in self.segments[:-1])]
        if self._flush is not None:
            self._flush.end_offset = min(self._flush.end_offset, end_offset)

    def _remove(self, segment: Segment) -> None:
        segment.is_removed = True
        self.storage.remove(index_name(segment.base_offset))
        self.storage.remove(log_name(segment.base_offset))
        self.storage.sync_folder()
        segment.file.close()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Flush, write a checkpoint if ``clean``, and close the files. A second call has no effect."""
        if not self.closed and clean:
            self._join_flush()
            self.flush()
            self.checkpoint()
        for segment in self.segments:
            segment.file.close()
        self.closed, self.is_full = self.closed or "closed", False

    def flush_before_close(self) -> bool:
        """Flush all records of a log without a checkpoint, because the disk is full. Return True if all of them are on the disk.

        Call it when nothing more is appended. The log stays closed. False: a flush failed, now or before. Then the kernel may have
        dropped data, and a later flush does not show it [S4].
        """
        if self._has_failed_flush or (self.closed and not self.is_full) or self._flush is not None:
            return False
        try:
            for job in self._unsynced:
                job.file.sync()
            self.segments[-1].file.sync()
            self.storage.sync_folder()
        except StorageError as error:
            mark_failed_flush(self.storage, error)
            return False
        self._durable_end_offset = self.log_end_offset
        return True

    def _close_after(self, error: Exception, reason: str) -> None:
        """Close the log because of ``error``. ``reason``: text for ``closed``."""
        self.closed, self.is_full = reason, isinstance(error, NoSpaceError)

    def _must_allow_deletion(self) -> None:
        """Raise LogClosedError if the log is closed. A log that a full disk has closed may delete old segments."""
        if not self.is_full:
            self._must_be_open()

    def _must_be_open(self) -> None:
        if self.closed:
            reason = self.closed.removesuffix(".")
            raise LogClosedError(f"The log is closed: {reason}. The node opens it again, or reports the storage error.")

    def _join_flush(self) -> None:
        """Wait for the flush that runs in another thread, and ignore its result. A truncation calls the method first."""
        if self._flush is not None:
            self._flush.wait()

    def _notify_advance(self) -> None:
        if self.on_advance is not None:
            self.on_advance()


class RecheckResult(Enum):
    """Result of the check of a batch that another node or a reader reported as damaged. The values are names of counters."""

    DAMAGED = "complaints: damage found"
    SOUND = "complaints: own copy is right"
    TOO_SOON = "complaints: too many"
    NOT_HERE = "complaints: about offsets that are not here"


class RecheckLimiter:
    """Limits how often reports of damage make a replica read its log from disk again [S14].

    After a report of a reader or follower, the replica reads the reported block from the file again. If it is damaged, it is
    repaired as any other damage (``Log.handle_damage``). If not, the report is only counted. Checks are limited to one each
    ``EVERY_NS`` per follower, and one for all readers together.
    """

    __slots__ = ("_last_ns",)

    def __init__(self) -> None:
        self._last_ns: OrderedDict[str, int] = OrderedDict()

    def is_due(self, asker: str, now_ns: int) -> bool:
        """Return whether a report of ``asker`` should be checked now, or comes too soon after its last one.

        ``asker``: node id, or READERS for all readers together. ``now_ns``: monotonic time.
        """
        last_ns = self._last_ns.get(asker)
        if last_ns is not None and now_ns - last_ns < EVERY_NS:
            return False
        self._last_ns[asker] = now_ns
        self._last_ns.move_to_end(asker)
        if len(self._last_ns) > MAX_ASKERS:
            self._last_ns.popitem(last=False)
        return True
