"""``LogState``: the state that a replica derives from its log: message ids, producers, subjects [protocol: Promotion].

Each part is computed only from the log. One ``end_offset`` applies to all parts. Only the part ``subjects`` may lack
older records. It reads them backwards in the background.

Every appended batch is added, also on followers, so that the state is ready when the replica becomes leader. After a
restart, ``replay`` reads the needed part of the log in slices. A leader accepts publishes when the replay has reached
the log end. The replay begins at the first batch within the longest window, counted back from the high watermark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from liftpy.config import NS_PER_S, ReplicationConfig, StreamConfig
from liftpy.core.base.invariants import check
from liftpy.core.log.log import Log
from liftpy.core.log.reading import offset_about_bytes_before, offset_before
from liftpy.core.publish.dedup_window import ID_NAME, RecentIds, ids_of, is_id
from liftpy.core.publish.jetstream_headers import OF_SUBJECT
from liftpy.core.publish.last_per_subject import IndexWait, LastPerSubject, last_of_each
from liftpy.core.publish.log_state_part import NewBatch, NodeStateMemory, ProducerSequences, StatePart
from liftpy.core.publish.producer_state import Producers, max_producers
from liftpy.core.publish.state_file import State, StateCapture, epoch_before
from liftpy.core.wire.batch import FEW, RecordBatch, few_headers, parse_header, split_batches
from liftpy.core.wire.batch_columns import Columns
from liftpy.core.wire.producer_note import ProducerNote
from liftpy.core.wire.subjects import has_wildcards, literal_prefix, matcher
from liftpy.errors import CorruptionError, LiftError

_OF_SUBJECT_NAME = OF_SUBJECT.encode()
_LOSSES_NAME = "losses"
_LOSSES = struct.Struct("<qqqqI")
"""Content of a state file about what was dropped for lack of memory: log time of the last message id (-1: none) and its age,
log time of the last producer (-1: none) and its age, and number of producers. Times are in nanoseconds.
"""
REPLAY_BYTES = 64 * 1024
"""Maximum size in bytes of a slice of the log to replay. A larger batch is read as a whole. A slice takes less than 1 ms."""


class LogState:
    """The state of one replica that derives from its log: message ids, producers and subjects.

    The code around it reports every append, commit and truncation of ``log`` to it.
    """

    def __init__(
        self,
        log: Log,
        window_ns: int,
        max_bytes: int,
        now_ns: Callable[[], int],
        producers: Producers | None = None,
        *,
        subject: str = "",
        partition_subject_index_bytes: int = 1 << 20,
        node: NodeStateMemory | None = None,
    ) -> None:
        self._log = log
        self._subject = subject
        self._literal = not has_wildcards(subject)
        self._now_ns = now_ns
        self.on_lacking: Callable[[], None] = lambda: None
        """Called when older records must be read. The caller then calls ``read_missing_records`` until nothing is missing."""
        self._is_behind = False  # fetched batches are processed when a replay has reached them
        self.first_read_bytes = REPLAY_BYTES
        """Number of bytes of the log that the first condition on a subject reads at once. 0: none."""
        self.ids = RecentIds(window_ns, max_bytes, now_ns, node)
        self.producers = Producers(0, max_producers(max_bytes), 0, node) if producers is None else producers
        self.subjects = LastPerSubject(self._literal, partition_subject_index_bytes, log, self._read_on, node)
        self.index_wait = IndexWait(now_ns, node)
        """Publishes that wait until ``subjects`` knows the subject of their condition."""
        self.parts: tuple[StatePart, ...] = (self.ids, self.producers, self.subjects)
        self.taken_bytes = 0
        """Total size of all processed batches in bytes, including the replayed ones."""
        self.covered = -1
        """Offset (exclusive) up to which the newest stored state covers the log. -1: no state is stored."""
        self.awaited: State | None = None
        """State of the leader for a copied log that began later. It is used when the log has grown to its end.

        None: there is none.
        """
        self.fresh_starts = 0
        """Number of times that all records of the log were deleted and it began at another offset."""
        self.states_left_out = 0
        """Number of states in ``awaited`` that did not fit when the log reached their end."""
        self.replayed_bytes = 0
        """Number of bytes of the log that replays have read."""
        self._begin(log.log_end_offset if log.log_end_offset == log.log_start_offset else None)

    def _read_on(self) -> None:
        self.on_lacking()

    def join(self, node: NodeStateMemory) -> None:
        for share in (self.ids.pending, self.index_wait.share, *(part.share for part in self.parts)):
            share.join(node)

    def _begin(self, offset: int | None) -> None:
        self.end_offset = offset
        """Exclusive end of the processed records. None: no record was processed."""
        self._high_watermark = -1
        for part in self.parts:
            part.begin(offset)
        self.committed(self._log.high_watermark)

    @property
    def is_complete(self) -> bool:
        return self.end_offset == self._log.log_end_offset

    def appended(self, batch: NewBatch, size_bytes: int) -> None:
        """Add a batch that this leader has appended. ``size_bytes``: its size in the log."""
        self.taken_bytes += size_bytes
        self._add_batch(batch)

    def fetched(self, batches: Iterable[RecordBatch]) -> None:
        """Add batches that this follower has fetched and appended. If earlier batches are missing, a replay adds all of them later."""
        if self.producers.can_be_whole and not self._log.log_start_offset:
            self._begin(None)  # there is memory again for producers that were dropped: the log has them
        for batch in batches:
            if batch.base_offset != self.end_offset:
                self._is_behind = True
                self.on_lacking()
                return
            self.taken_bytes += batch.header.size_bytes
            self._add_batch(_new_batch_of(batch))

    def _add_batch(self, batch: NewBatch) -> None:
        check(self.end_offset == batch.base_offset, "A3", "derived: a batch at", batch.base_offset, "after", self.end_offset)
        self.end_offset = batch.last_offset + 1
        for part in self.parts:
            part.add_batch(batch)
        if self.awaited is not None and self.end_offset >= self.awaited.end_offset:
            self._use_awaited(batch)

    def _use_awaited(self, batch: NewBatch) -> None:
        """Use the state that the leader sent (``awaited``), because ``batch`` has brought the copied log to its end.

        Drop the state if it does not match the log.
        """
        state, self.awaited = self.awaited, None
        assert state is not None
        end_offset, fits = batch.last_offset + 1, self._log.epochs.epoch_at(state.end_offset - 1) == state.leader_epoch
        if fits and (end_offset == state.end_offset or not batch.record_count) and self.restore(state):
            self.end_offset = end_offset  # only a filler may follow
        else:
            self.states_left_out += 1

    def drop_awaited(self) -> None:
        """Drop the state of an earlier leader (``awaited``), because this replica leads and its log ends before that state."""
        if self.awaited is not None:
            self.awaited, self.covered = None, -1

    @property
    def is_whole(self) -> bool:
        """True if no message id and no producer was dropped for lack of memory."""
        return self.ids.is_whole and self.producers.is_whole

    @property
    def is_blank(self) -> bool:
        """True if there are no message ids and no producers. A restart that reads no earlier record then loses nothing."""
        has_none = not len(self.ids) and not len(self.producers) and self.is_whole
        return self.end_offset is not None and has_none and self.awaited is None

    def catch_up(self) -> None:
        """Start to read the records that the state does not cover yet, in the background."""
        if not self.is_complete and not self._is_behind:
            self._is_behind = True
            self.on_lacking()

    def committed(self, high_watermark: int) -> None:
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            for part in self.parts:
                part.committed(high_watermark)

    def log_was_reset(self) -> None:
        """Drop the whole state, because all records of the log were deleted. The leader has the state of the deleted records."""
        self.awaited, self.covered = None, -1
        self.fresh_starts += 1
        self._begin(self._log.log_end_offset)

    def log_was_truncated(self) -> None:
        """Adapt the state to a truncated log. If the log ends below the high watermark, drop the whole state."""
        log = self._log
        end_offset = log.log_end_offset
        if end_offset < self.covered:
            self.covered = -1
        if end_offset == log.log_start_offset and end_offset <= self._high_watermark:
            self._begin(end_offset)
        elif self.end_offset is None or end_offset >= self.end_offset:
            self.committed(log.high_watermark)
        elif end_offset <= self._high_watermark:
            self._begin(None)
        else:
            self.end_offset = end_offset
            for part in self.parts:
                part.truncate(end_offset)

    def has_lost(self, offset: int, leader_epoch: int) -> bool:
        """Return whether the log lacks a record that a publisher has an ack for. A record below the log start does not count as lost.

        ``leader_epoch``: LeaderEpoch of the leader that acknowledged the record at ``offset``.
        """
        log = self._log
        if offset < log.log_start_offset:
            return False
        return offset >= log.log_end_offset or log.epochs.epoch_at(offset) > leader_epoch

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    def snapshot(self, owner: str, *, with_losses: bool = False) -> StateCapture | None:
        """Return the state up to the high watermark, for a state file. Write it after the high watermark is stored.

        None: there is nothing to write, the state is not complete, or the records are not flushed yet.

        Args:
            owner: Name of the partition in the file.
            with_losses: True to return a state that lacks message ids or producers for lack of memory, too. It says so, and
                a replica that starts from it rejects unknown ones as this one does. False: a replay of the log may find more.
        """
        log, end_offset = self._log, self._high_watermark + 1
        if self.end_offset is None or not log.log_start_offset <= end_offset <= min(self.end_offset, log.durable_end_offset):
            return None
        if not end_offset or self.awaited is not None:
            return None
        parts = {part.name: (part.version, part.snapshot()) for part in self.parts}
        if not self.is_whole:
            if not with_losses:
                return None
            losses = _LOSSES.pack(*self.ids.losses, *self.producers.losses)
            parts[_LOSSES_NAME] = 1, lambda: [losses]
        return StateCapture(owner, end_offset, epoch_before(log, end_offset), parts)

    def use_stored_state(self, state: State) -> bool:
        """Use a stored state now, or when the log that is being copied reaches its end. Return False if it cannot be used."""
        can_be_used = True
        if state.end_offset > self._log.log_end_offset:
            self.awaited = state
        else:
            can_be_used = self.restore(state)
        self.covered = state.end_offset if can_be_used else -1
        return can_be_used

    def restore(self, state: State) -> bool:
        """Start from the content of a state file that fits this log (``load_state``). Return False if it cannot be used.

        A replay then continues after the end of the file.
        """
        self._begin(state.end_offset)
        self.ids.takes_shorter_window = self._log.log_start_offset > 0  # the records that would tell more are deleted
        try:
            for part in self.parts:
                version, data = state.parts.get(part.name, (part.version, None))
                part.restore(data if version == part.version else None, state.end_offset)
            if _LOSSES_NAME in state.parts:
                of_ids, of_producers = _decode_losses(state.parts[_LOSSES_NAME][1])
                self.ids.add_losses(*of_ids)
                self.producers.add_losses(*of_producers)
        except CorruptionError:
            self._begin(None)
            return False
        self._high_watermark = state.end_offset - 1
        self.committed(self._log.high_watermark)
        return True

    def replay(self, max_bytes: int = REPLAY_BYTES) -> bool:
        """Read the next part of the log, at most about ``max_bytes``, into the state. Return whether the log end is reached.

        Raises the errors of ``Log.read``.
        """
        log = self._log
        if self.is_complete:
            return True
        if self.end_offset is None:
            self._begin(max(self._first_needed(), log.log_start_offset))
        assert self.end_offset is not None
        self.end_offset = max(self.end_offset, log.log_start_offset)  # retention has deleted the next records
        if self.is_complete:
            return True
        result = log.read(self.end_offset, max_bytes, end_offset=log.log_end_offset)
        self.replayed_bytes += result.size_bytes
        for chunk in result.chunks:
            for batch in split_batches(chunk, verify=False):
                self.taken_bytes += batch.header.size_bytes
                self._add_batch(_new_batch_of(batch))
        if not result.chunks:
            raise CorruptionError(
                f"Cannot read offset {self.end_offset} of a log that ends at {log.log_end_offset}. The log is "
                "damaged: run `liftpy log verify`."
            )
        return self.is_complete

    @property
    def lacks(self) -> bool:
        """True if a part of the log must still be read in the background."""
        return self._is_behind or self.subjects.lacks

    def read_missing_records(self, max_bytes: int = REPLAY_BYTES) -> bool:
        """Read about ``max_bytes`` of the missing part of the log. A follower first reads forwards to the log end.

        Return whether nothing is missing now. Raises the errors of ``Log.read``.
        """
        is_read = False
        try:
            if self._is_behind:
                self._is_behind = not self.replay(max_bytes)
            else:
                self.index_backwards(max_bytes)
            is_read = True
        finally:
            self.index_wait.release(self.subjects, everything=not is_read or not self.lacks)
        return not self.lacks

    def last_of(self, subject: str) -> int | None:
        """Return the offset of the last record of ``subject``. -1: it has no record.

        None: the answer is not known yet, or ``subjects.is_full``. The first call reads a part of the log.
        """
        log, subjects = self._log, self.subjects
        if self._literal:
            return log.newest_offset if subject == self._subject and log.log_end_offset > log.log_start_offset else -1
        if subjects.is_full or not subjects.wanted:
            subjects.want(self.end_offset)
            until = self.replayed_bytes + self.first_read_bytes
            with suppress(LiftError):  # the next background read reports the damage
                while subjects.lacks and self.replayed_bytes < until:
                    self.index_backwards(self.first_read_bytes)
        return subjects.find(subject)

    def last_of_matching(self, subject_filter: str) -> int | None:
        """Return the offset of the newest record whose subject matches ``subject_filter``. Special values are those of ``last_of``."""
        if self._literal:
            return self.last_of(self._subject) if matcher(subject_filter)(self._subject) else -1
        self.last_of("")
        return self.subjects.find_matching(subject_filter)

    def may_check(self, subject_filter: str, more: int = 0) -> bool:
        """Return whether the node has time to compare the subjects of the index, and ``more`` others, with ``subject_filter``.

        If so, the time counts as used [A21].
        """
        checks = 1 if self._literal else self.subjects.count_checks(subject_filter)
        if literal_prefix(subject_filter.split(".")):
            more //= 4  # most of them differ from the filter in their first tokens
        return self.subjects.share.may_check(checks + more, self._now_ns())

    def index_backwards(self, max_bytes: int = REPLAY_BYTES) -> bool:
        """Read about ``max_bytes`` of the log backwards into the subject index. Return whether no part is missing now.

        Raises the errors of ``Log.read``.
        """
        log, subjects = self._log, self.subjects
        if not subjects.lacks:
            return True
        low = subjects.low
        assert low is not None
        at = begin = max(offset_about_bytes_before(log.segments, low, max_bytes), log.log_start_offset)
        newest: dict[str, int] = {}
        while at < low:
            result = log.read(at, max_bytes, end_offset=low)
            if not result.chunks:
                break  # compaction has merged the batches here with batches above
            self.replayed_bytes += result.size_bytes
            for chunk in result.chunks:
                for batch in split_batches(chunk, verify=False):
                    newest.update(last_of_each(batch))
            at = result.next_offset
        subjects.read_below(begin, newest)
        return not subjects.lacks

    def _first_needed(self) -> int:
        log = self._log
        if log.high_watermark < log.log_start_offset:
            return log.log_start_offset
        chunks = log.read(log.high_watermark, 1, end_offset=log.log_end_offset).chunks
        newest, reach_ns = parse_header(chunks[0]), max(part.reach_ns for part in self.parts)
        return min(max(offset_before(log.segments, newest.timestamp_ns - reach_ns), log.log_start_offset), newest.base_offset)


def _decode_losses(data: bytes) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Return the losses of message ids and of producers, for ``add_losses``. Raises CorruptionError."""
    if len(data) != _LOSSES.size:
        raise CorruptionError("the saved losses cannot be decoded. The node reads the log instead.")
    ids_ns, ids_age_ns, producers_ns, producers_age_ns, count = _LOSSES.unpack(data)
    return (ids_ns, ids_age_ns), (producers_ns, producers_age_ns, count)


def _new_batch_of(batch: RecordBatch) -> NewBatch:
    header = batch.header
    sequences = None
    if header.producer_id:
        columns = None if header.is_compacted else batch.columns
        stored_note = batch.columns.note if header.column_bits & Columns.NOTE.value else None
        note = ProducerNote() if stored_note is None else ProducerNote.decode(stored_note)
        producer_fields = (header.producer_id, header.producer_epoch, header.base_sequence)
        sequences = ProducerSequences(
            *producer_fields, columns, name=note.name, position=note.position, partitioning=note.partitioning
        )
    ids, has_conditions = headers_of(batch)
    record_count = 0 if header.is_remains else header.record_count
    return NewBatch(
        header.base_offset, header.last_offset, header.timestamp_ns, record_count, ids, sequences, batch, has_conditions
    )


def headers_of(batch: RecordBatch) -> tuple[Mapping[int, bytes], bool]:
    """Return (offset -> message id, whether a record has a condition on its subject) for a batch."""
    if not batch.header.column_bits & Columns.HEADERS.value or not batch.header.record_count:
        return {}, False
    if batch.record_count <= FEW and not batch.header.column_bits & Columns.DELTAS.value:
        return _headers_of_few(batch)
    headers = batch.columns.headers
    names = b"" if headers is None else bytes(headers.names.data)
    has_conditions, ids = _OF_SUBJECT_NAME in names, ids_of(headers, names)
    if not ids:
        return {}, has_conditions
    offsets = batch.offsets()
    return {int(offsets[record]): message_id for record, message_id in ids.items()}, has_conditions


def _headers_of_few(batch: RecordBatch) -> tuple[Mapping[int, bytes], bool]:
    ids, has_conditions, base_offset = dict[int, bytes](), False, batch.base_offset
    for record, name, value in few_headers(batch.body(), batch.record_count, Columns(batch.header.column_bits)):
        if name == ID_NAME:
            if is_id(value):
                ids.setdefault(base_offset + record, value)
        elif _OF_SUBJECT_NAME in name:
            has_conditions = True
    return ids, has_conditions


def create_log_state(
    log: Log,
    subject: str,
    stream: StreamConfig,
    node: ReplicationConfig,
    now_ns: Callable[[], int],
    node_memory: NodeStateMemory | None = None,
) -> LogState:
    """Create the derived state of a partition. It is still empty. Also configure the compaction of ``log`` to keep what the state
    needs.

    Args:
        log: Log of the partition.
        subject: Data subject of the partition.
        stream: Settings of the stream.
        node: Settings of the node.
        now_ns: Returns the monotonic clock.
        node_memory: Memory limit of the node. None: it is set later.
    """
    window_ns = round(stream.dedup_window_s * NS_PER_S)
    # compaction keeps the records that this state needs
    log.producer_expiry_ns = expiry_ns = round(node.producer_expiry_s * NS_PER_S)
    producers = Producers(expiry_ns, max_producers(node.partition_producer_bytes), expiry_ns, node_memory, now_ns)
    return LogState(
        log,
        window_ns,
        node.partition_message_id_bytes,
        now_ns,
        producers,
        subject=subject,
        partition_subject_index_bytes=node.partition_subject_index_bytes,
        node=node_memory,
    )
