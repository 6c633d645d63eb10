"""The producers of a partition: the newest sequence and epoch of each in the log [A4], and new epochs. Pure.

Each record of a producer is stored once and in order, even if the process repeats it, fails, restarts, or runs twice.
The batches of a producer follow each other without a gap, in an epoch that only rises. Sequences have 32 bits and
epochs 16, and both wrap around.

A leader accepts a new producer only if there is memory for it. A follower whose memory is full drops the producers that
were idle longest. If it then becomes leader, it rejects unknown producers until the dropped ones would have expired
(``is_full``).

| batch | result |
|---|---|
| lower epoch than in the log | FENCED: a newer process uses the name |
| higher epoch with ``reset``, from sequence 0 | starts again |
| the next sequence | appended |
| sequences that are stored already | skipped. Their digest must match, or the result is DIVERGED |
| a batch of the log's epoch that is all stored | must be one of the last ones, or the result is DIVERGED |
| a gap | OUT_OF_ORDER, with the expected sequence |
| a source position at or below the stored one | skipped, whatever it contains |
| a round that another producer stored under another plan | PLAN_CHANGED |
| another name under the same number, or another source | CONFLICT |
| a lower generation | FENCED |

A *round* is the part of the source that one attempt of a Spark micro-batch writes. A *plan* defines how its records are
divided among producers.

Example: 0..99 are stored in epoch 1. The process fails, returns in epoch 2, and sends 90..119. 90..99 are skipped if
the digest of 0..99 matches, and 100..119 are appended. The old process is fenced from then on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import crc32c

from liftpy.core.publish.digest import DIGEST_BYTES, RollingDigest
from liftpy.core.publish.log_state_part import NewBatch, NodeStateMemory, Share, join_texts
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch_columns import ColumnSet
from liftpy.core.wire.producer_note import BY_KEY, Partitioning, PartitioningMethod, ProducerNote, SourcePosition
from liftpy.core.wire.rejections import Rejection, RejectReason
from liftpy.errors import CorruptionError, ProtocolError

_ROUND = 1 << 32
_EPOCHS = 1 << 16
_REMEMBERED = 5
"""Number of last batches of a producer whose offsets are known."""
_TIME = struct.Struct("<qI")
_STATE = struct.Struct("<QHIq?B")
_BATCH = struct.Struct("<IIq?I")
_NOTE_SIZE = struct.Struct("<H")
STATE_BYTES = 2_000
"""Approximate memory of a producer with its last batches, a long name and a position, in bytes. 1,672 were measured."""
TAIL_BYTES = 1_150
"""Approximate memory of an uncommitted batch with the producer's state before it, in bytes."""
_GRANT_BYTES = 900
"""Approximate memory of a producer with a granted epoch, in bytes. A name takes up to 255 bytes more."""


def distance(sequence: int, other: int) -> int:
    """Return how far ``sequence`` is after ``other``, modulo 2**32. Negative: before it."""
    return (sequence - other + _ROUND // 2) % _ROUND - _ROUND // 2


def epoch_distance(epoch: int, other: int) -> int:
    """Return how far ``epoch`` is after ``other``, modulo 2**16. Negative: before it."""
    return (epoch - other + _EPOCHS // 2) % _EPOCHS - _EPOCHS // 2


def after(sequence: int, count: int) -> int:
    """Return the sequence that is ``count`` records after ``sequence``, modulo 2**32."""
    return (sequence + count) % _ROUND


class StoredBatch(NamedTuple):
    """Place of one batch of a producer in the log: its first ``sequence`` and first ``offset``.

    ``check``: CRC-32C of the digest after its last record. None: not known.
    """

    sequence: int
    record_count: int
    offset: int
    check: int | None = None


class ProducerState(NamedTuple):
    """State of one producer, as the log shows it.

    ``next_sequence``: the sequence that it must send next. ``digest``: digest of all its records, None: not known. ``batches``:
    its last batches.
    """

    epoch: int
    next_sequence: int
    digest: RollingDigest | None
    batches: tuple[StoredBatch, ...]
    time_ns: int
    """Log time of its last batch."""
    name: str = ""
    """Name of the producer. '': no stored batch has it."""
    position: SourcePosition | None = None
    """Source position of its last batch. None: the producer has no source."""
    partitioning: Partitioning | None = None
    """Partitioning that all its processes have used. None: no batch has it, or they differ."""


class Claim(NamedTuple):
    """Fields that a producer sends with a batch: producer id, epoch, sequence and digest.

    ``digest``: digest of all its records before ``base_sequence``. None: the batch does not have it.
    """

    producer_id: int
    epoch: int
    base_sequence: int
    record_count: int
    reset: bool = False
    digest: RollingDigest | None = None
    instance: int = 0
    """Random number of the process that sends the batch."""
    name: str = ""
    position: SourcePosition | None = None
    """Position of the last source record from which the batch was made."""
    partitioning: Partitioning | None = None
    """Partitioning of the process. None: the batch does not have it."""


class Finding(Enum):
    """Result of the check of a producer's batch."""

    APPEND = "append"
    """Append the whole batch, or the part after its first ``known`` records."""
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    OUT_OF_ORDER = "out of order"
    DIVERGED = "diverged"
    UNKNOWN = "unknown"
    """This leader has not granted the epoch to the process."""
    CONFLICT = "conflict"
    """Another producer name, or another source, uses this producer id."""
    PLAN_CHANGED = "plan changed"
    """The records of its round were divided among producers by another plan."""
    FULL = "full"
    """There is no memory for more producers."""


class BatchCheck(NamedTuple):
    """Result of the check of a producer's batch, with details.

    ``known``: number of its first records that are stored already. ``offset``: offset of the first stored one. -1: not known.
    ``next_sequence``: sequence that the log expects next from this producer.
    """

    finding: Finding
    known: int = 0
    offset: int = -1
    next_sequence: int = 0


def conflict_with(state: ProducerState, name: str, position: SourcePosition | None) -> Finding | None:
    """Return why a process with this ``name`` and source ``position`` must not continue the producer. None: it may continue.

    CONFLICT: the producer has another name or source. FENCED: a newer process uses it. ``name`` '': not given.
    """
    if name and state.name and name != state.name:
        return Finding.CONFLICT
    if (position is None) != (state.position is None):
        return Finding.CONFLICT
    if position is None or state.position is None:
        return None
    if position.source != state.position.source:
        return Finding.CONFLICT
    return Finding.FENCED if position.generation < state.position.generation else None


@dataclass(slots=True, eq=False)
class _PreviousState:
    """State of a producer before an uncommitted batch. A truncation of the batch restores it."""

    last_offset: int
    time_ns: int
    producer_id: int
    before: ProducerState | None


class Producers:
    """State of the producers of one partition on one replica, a ``Part`` of the derived state.

    Offsets are inclusive, except ``end_offset``. *Log time*: largest batch timestamp so far, in nanoseconds since 1970.
    """

    __slots__ = (
        "_committed_ns", "_expiry_ns", "_high_watermark", "_lost_count", "_lost_known_ns", "_lost_ns", "_now_ns", "_plans",
        "_states", "_tail", "_time_ns", "evicted_count", "max_count", "reach_ns", "share",
    )  # fmt: skip

    name = "producers"
    version = 2
    """Version 1 has no names and no positions."""

    def __init__(
        self,
        expiry_ns: int,
        max_count: int,
        reach_ns: int = 0,
        node: NodeStateMemory | None = None,
        now_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create an empty table.

        Args:
            expiry_ns: Log time without a batch after which a producer is forgotten. 0: never.
            max_count: Maximum number of producers.
            reach_ns: Log time that must be replayed when a log is opened.
            node: Memory limit for the derived state of the node. None: no limit.
            now_ns: Returns the node's monotonic clock. Default: it stands still.
        """
        self._expiry_ns = expiry_ns
        self._now_ns = now_ns
        self.reach_ns = reach_ns
        self.max_count = max_count
        self.share = Share(node, self.name)
        self.evicted_count = 0
        """Number of producers that were dropped early for lack of memory, since the start."""
        self.begin(None)

    def begin(self, offset: int | None) -> None:
        self._states: dict[int, ProducerState] = {}  # the producer of the newest batch is at the end
        self._plans: dict[tuple[str, int], dict[int, int]] = {}
        """(run, generation) of a round -> plan -> number of producers whose last batch has this plan."""
        self._tail: list[_PreviousState] = []
        self._high_watermark = -1
        self._time_ns = self._committed_ns = 0
        self._lost_ns = -1
        """Log time of the last batch of the producers that were dropped before their expiry. -1: none was dropped."""
        self._lost_known_ns = 0
        """Monotonic time at which this node last noted such a producer."""
        self._lost_count = 0
        self._count()

    def __len__(self) -> int:
        return len(self._states)

    def _count(self) -> None:
        self.share.hold(STATE_BYTES * len(self._states) + TAIL_BYTES * len(self._tail))

    @property
    def is_full(self) -> bool:
        """True if batches of unknown producers are rejected: there is no memory, or earlier producers were dropped."""
        return len(self._states) >= self.max_count or not self.is_whole or not self.share.has_room(STATE_BYTES)

    @property
    def why_full(self) -> str:
        if len(self._states) >= self.max_count:
            return f"{self.max_count} producers are known here, and no more are kept (partition_producer_bytes)"
        if not self.is_whole:
            return "some producers went for want of room here, and it can't be told from a new one who is one of them"
        return "what is known of producers, message ids and subjects fills what node_dedup_state_bytes allows"

    @property
    def is_whole(self) -> bool:
        """True if all producers that have not expired are known.

        The log time stands still while unknown producers are rejected and the known ones are silent. So a lost producer also
        expires by the node's own clock.
        """
        if self._lost_ns < 0:
            return True
        has_expired = self._lost_ns <= self._committed_ns - self._expiry_ns
        return self._expiry_ns > 0 and (has_expired or self._now_ns() - self._lost_known_ns >= self._expiry_ns)

    @property
    def losses(self) -> tuple[int, int, int]:
        """(Log time of the last batch of the producers that were dropped early, time since the drop, number of these producers).

        The times are in nanoseconds. -1, 0 and 0: none was dropped, or all of them have expired.
        """
        return (-1, 0, 0) if self.is_whole else (self._lost_ns, self._now_ns() - self._lost_known_ns, self._lost_count)

    def add_losses(self, lost_ns: int, age_ns: int, count: int) -> None:
        """Note that a restored state lacks ``count`` producers, with batches up to ``lost_ns`` (log time), dropped ``age_ns`` ago.

        ``lost_ns`` -1: it lacks none.
        """
        if lost_ns >= 0:
            known_ns = self._now_ns() - age_ns
            self._lost_known_ns = known_ns if self._lost_ns < 0 else max(self._lost_known_ns, known_ns)
            self._lost_ns = max(self._lost_ns, lost_ns)
            self._lost_count += count

    @property
    def can_be_whole(self) -> bool:
        """True if producers were dropped for lack of memory, and there is memory for all of them now."""
        if self.is_whole:
            return False
        count = len(self._states) + self._lost_count
        return count < self.max_count and self.share.has_room(2 * STATE_BYTES * self._lost_count)

    @property
    def takes_batches(self) -> bool:
        """True if there is memory for one more uncommitted batch of a producer that is already known."""
        return self.share.fits(TAIL_BYTES)

    @property
    def size_bytes(self) -> int:
        return self.share.size_bytes

    @property
    def producer_ids(self) -> tuple[int, ...]:
        return tuple(self._states)

    @property
    def time_ns(self) -> int:
        return self._committed_ns

    def state_of(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer, including its uncommitted batches. None: the producer is unknown."""
        return self._states.get(producer_id)

    # ---- the log -----------------------------------------------------------------------------------------------------
    def add_batch(self, batch: NewBatch) -> None:
        sequences = batch.sequences
        if sequences is None:
            return
        producer_id, epoch, base_sequence, columns, first, name, position, partitioning = sequences
        before = self._drop(producer_id)
        self._time_ns = max(self._time_ns, batch.timestamp_ns)
        count = batch.last_offset - batch.base_offset + 1
        known: RollingDigest | None  # the state before this batch
        earlier: tuple[StoredBatch, ...] = ()
        newer = before is not None and epoch_distance(epoch, before.epoch) > 0
        if before is not None:
            name = name or before.name
        if before is None or (newer and not base_sequence):
            known = None if base_sequence else RollingDigest()
        else:
            partitioning = _merge_partitioning(before.partitioning, partitioning)
            known = before.digest if base_sequence == before.next_sequence else None
            earlier = before.batches[1 - _REMEMBERED :]
        digest = None if known is None or columns is None else known.over(columns, first, first + count)
        stored = StoredBatch(base_sequence, count, batch.base_offset, _check(digest))
        batches = (*earlier, stored)
        state = ProducerState(epoch, after(base_sequence, count), digest, batches, self._time_ns, name, position, partitioning)
        self._set_state(producer_id, state)
        self._tail.append(_PreviousState(batch.last_offset, self._time_ns, producer_id, before))
        self._merge_committed()
        self._make_room(STATE_BYTES if before is None else 0)

    def _set_state(self, producer_id: int, state: ProducerState) -> None:
        self._states[producer_id] = state
        self._count_plan(state, 1)

    def _drop(self, producer_id: int) -> ProducerState | None:
        state = self._states.pop(producer_id, None)
        if state is not None:
            self._count_plan(state, -1)
        return state

    def _count_plan(self, state: ProducerState, by: int) -> None:
        position = state.position
        if position is None or not position.plan:
            return
        round = position.stream_uid, position.generation
        plans = self._plans.setdefault(round, {})
        plans[position.plan] = plans.get(position.plan, 0) + by
        if not plans[position.plan]:
            del plans[position.plan]
        if not plans:
            del self._plans[round]

    def has_another_plan(self, position: SourcePosition | None) -> bool:
        """Return whether the log has records of the round of ``position`` that were written under another plan, by any producer."""
        if position is None or not position.plan:
            return False
        plans = self._plans.get((position.stream_uid, position.generation), {})
        return len(plans) > (position.plan in plans)

    def committed(self, high_watermark: int) -> None:
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            self._merge_committed()

    def _merge_committed(self) -> None:
        committed_count = 0
        for taken in self._tail:
            if taken.last_offset > self._high_watermark:
                break
            committed_count += 1
            self._committed_ns = taken.time_ns
        del self._tail[:committed_count]
        states = self._states
        until_ns = self._committed_ns - self._expiry_ns
        while self._expiry_ns and states and states[oldest := next(iter(states))].time_ns <= until_ns:
            self._drop(oldest)
        self._count()

    def _make_room(self, grown_bytes: int) -> None:
        """Forget the producers that were idle the longest, until the table fits its memory limit again.

        ``grown_bytes``: memory by which the table has grown.
        """
        states, excess_bytes = self._states, self.share.excess_bytes(grown_bytes)
        while states and (len(states) > self.max_count or excess_bytes > 0):
            dropped_state = self._drop(next(iter(states)))
            assert dropped_state is not None
            self._lost_ns, self._lost_known_ns = max(self._lost_ns, dropped_state.time_ns), self._now_ns()
            self._lost_count += 1
            self.evicted_count += 1
            excess_bytes -= STATE_BYTES
        self._count()

    def truncate(self, end_offset: int) -> None:
        while self._tail and self._tail[-1].last_offset >= end_offset:
            entry = self._tail.pop()
            self._time_ns = self._tail[-1].time_ns if self._tail else self._committed_ns
            self._drop(entry.producer_id)
            if entry.before is not None:
                self._set_state(entry.producer_id, entry.before)
        self._states = _by_last_offset(self._states)
        self._count()

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    def snapshot(self) -> Callable[[], Sequence[bytes]]:
        states = dict(self._states)
        for entry in reversed(self._tail):
            states.pop(entry.producer_id, None)
            if entry.before is not None:
                states[entry.producer_id] = entry.before
        head = _TIME.pack(self._committed_ns, len(states))
        return lambda: [head, *join_texts(_encode(producer_id, state) for producer_id, state in states.items())]

    def restore(self, data: bytes | None, end_offset: int) -> None:
        """Load the producers from ``data``, the content of a state file for the log below ``end_offset``.

        If there is less memory now, forget the producers that were idle the longest.
        """
        try:
            self._committed_ns, count = _TIME.unpack_from(data or b"")
            at, states = _TIME.size, dict[int, ProducerState]()
            for _ in range(count):
                producer_id, state, at = _decode(data or b"", at)
                states[producer_id] = state
        except (struct.error, ProtocolError) as error:
            raise CorruptionError(f"the saved producers cannot be decoded: {error}. The node reads the log instead.") from None
        if at != len(data or b"") or len(states) != count:
            raise CorruptionError("the saved producers do not match their count. The node reads the log instead.")
        self._time_ns, self._high_watermark = self._committed_ns, end_offset - 1
        self._states, self._plans = {}, {}
        for producer_id, state in _by_last_offset(states).items():
            self._set_state(producer_id, state)
        self._merge_committed()
        self._make_room(0)

    # ---- checks of batches --------------------------------------------------------------------------------------------
    def check_batch(self, claim: Claim, columns: ColumnSet) -> BatchCheck:
        state = self._states.get(claim.producer_id)
        if state is None:
            return BatchCheck(Finding.OUT_OF_ORDER if claim.base_sequence else Finding.APPEND)
        due = state.next_sequence
        newer = epoch_distance(claim.epoch, state.epoch)
        if newer < 0:
            return BatchCheck(Finding.FENCED, next_sequence=due)
        if claim.reset and newer > 0:
            return BatchCheck(Finding.OUT_OF_ORDER if claim.base_sequence else Finding.APPEND)
        if (result := self._check_position(state, claim)) is not None:
            return result
        ahead = distance(claim.base_sequence, due)
        if ahead > 0:
            return BatchCheck(Finding.OUT_OF_ORDER, next_sequence=due)
        if ahead == 0 and claim.digest is None:
            return BatchCheck(Finding.APPEND, next_sequence=due)
        known = min(-ahead, claim.record_count)
        if known == -ahead:  # the stored records end with these
            is_equal = claim.digest is None or state.digest is None or claim.digest.over(columns, 0, known) == state.digest
        else:
            is_equal = (
                newer > 0 or claim.digest is None or self._equals_stored(state, claim, claim.digest.over(columns, 0, known))
            )
        if not is_equal:
            return BatchCheck(Finding.DIVERGED, next_sequence=due)
        finding = Finding.APPEND if known < claim.record_count else Finding.DUPLICATE
        return BatchCheck(finding, known, _offset_of(state, claim.base_sequence), due)

    @staticmethod
    def _check_position(state: ProducerState, claim: Claim) -> BatchCheck | None:
        """Check a batch that names its source position: another source, or records that are stored already. None: it is new."""
        due = state.next_sequence
        finding = conflict_with(state, claim.name, claim.position)
        if finding is not None:
            return BatchCheck(finding, next_sequence=due)
        if claim.position is None or state.position is None:
            return None
        # a batch is never stored in part, so an overlapping batch is from another process
        if claim.position.offset > state.position.offset:
            overlaps = distance(claim.base_sequence, due) < 0
            return BatchCheck(Finding.DIVERGED, next_sequence=due) if overlaps else None
        offset = (
            _offset_of(state, claim.base_sequence) if claim.epoch == state.epoch else -1
        )  # the digest of another process may differ
        return BatchCheck(Finding.DUPLICATE, claim.record_count, offset, due)

    @staticmethod
    def _equals_stored(state: ProducerState, claim: Claim, digest: RollingDigest) -> bool:
        """Return whether a batch that is completely stored equals the stored records. It is not the last stored batch.

        ``digest``: digest of the producer's records up to its end.
        """
        end = after(claim.base_sequence, claim.record_count)
        stored = next((batch for batch in state.batches if after(batch.sequence, batch.record_count) == end), None)
        if stored is None:
            return state.digest is None
        return stored.check is None or stored.check == _check(digest)


def _encode(producer_id: int, state: ProducerState) -> bytes:
    digest = b"" if state.digest is None else state.digest.encode()
    note = ProducerNote(state.name, state.position, state.partitioning).encode()
    head = _STATE.pack(
        producer_id, state.epoch, state.next_sequence, state.time_ns, state.digest is not None, len(state.batches)
    )
    batches = [_BATCH.pack(b.sequence, b.record_count, b.offset, b.check is not None, b.check or 0) for b in state.batches]
    return head + digest + b"".join(batches) + _NOTE_SIZE.pack(len(note)) + note


def _decode(data: bytes, at: int) -> tuple[int, ProducerState, int]:
    producer_id, epoch, next_sequence, time_ns, has_digest, batch_count = _STATE.unpack_from(data, at)
    at += _STATE.size
    digest = RollingDigest.decode(data[at : at + DIGEST_BYTES]) if has_digest else None
    at += DIGEST_BYTES if has_digest else 0
    batches = []
    for _ in range(batch_count):
        sequence, record_count, offset, has_check, known = _BATCH.unpack_from(data, at)
        batches.append(StoredBatch(sequence, record_count, offset, known if has_check else None))
        at += _BATCH.size
    (note_size,) = _NOTE_SIZE.unpack_from(data, at)
    at += _NOTE_SIZE.size + note_size
    note = ProducerNote.decode(data[at - note_size : at])
    return producer_id, ProducerState(epoch, next_sequence, digest, tuple(batches), time_ns, *note), at


def _merge_partitioning(before: Partitioning | None, other: Partitioning | None) -> Partitioning | None:
    """Return the partitioning of a producer after a batch with the partitioning ``other``. ``before``: partitioning until then.

    None: it is not known, or they differ.
    """
    if other is None or other == before:
        return before
    if before is None or before.partitions != other.partitions:
        return None
    if {before.method, other.method} == BY_KEY:
        return other._replace(method=PartitioningMethod.KEY)
    return other if other.partitions == 1 else None


def _by_last_offset(states: dict[int, ProducerState]) -> dict[int, ProducerState]:
    return dict(sorted(states.items(), key=lambda item: [batch.offset for batch in item[1].batches[-1:]]))


def max_producers(max_bytes: int) -> int:
    """Return how many producers of a partition fit into ``max_bytes`` of memory."""
    return max(1, max_bytes // STATE_BYTES)


def _check(digest: RollingDigest | None) -> int | None:
    return None if digest is None else crc32c.crc32c(digest.encode())


def _offset_of(state: ProducerState, sequence: int) -> int:
    for batch in state.batches:
        behind = distance(sequence, batch.sequence)
        if 0 <= behind < batch.record_count:
            return batch.offset + behind
    return -1


# ---- epochs of producers ---------------------------------------------------------------------------------------------


_REFUSALS = {
    Finding.FENCED: Rejection(
        RejectReason.PRODUCER_FENCED, "A newer process uses this producer id. Stop this process, or use another producer id."
    ),
    Finding.OUT_OF_ORDER: Rejection(
        RejectReason.OUT_OF_ORDER,
        "Earlier sequences of this producer are missing. Send the records from the first missing sequence.",
    ),
    Finding.DIVERGED: Rejection(
        RejectReason.DIVERGED_PRODUCER, "Other records are stored with the sequences of this batch. Use another producer id."
    ),
    Finding.CONFLICT: Rejection(
        RejectReason.PRODUCER_CONFLICT,
        "Another producer has this producer id, or its batches come from another source. Use another producer id.",
    ),
    Finding.PLAN_CHANGED: Rejection(
        RejectReason.DIVERGED_PRODUCER,
        "Records of this round are stored with another assignment of source partitions to producers. Start a new round.",
    ),
    Finding.UNKNOWN: Rejection(
        RejectReason.UNKNOWN_PRODUCER, "This leader does not know the producer. Request an epoch first."
    ),
}


RECORDS_LOST = Rejection(
    RejectReason.RECORDS_LOST,
    "the log lacks the last acknowledged record of this producer: an unclean election or the loss of "
    "a data directory has lost records. Open the producer again to continue after the stored records, "
    "and send the lost records again",
)
"""Rejection for a producer whose acknowledged records are lost [A20]."""


class ProducerGrant(NamedTuple):
    """Answer to a process that opens a producer. It is sent when the record at ``last_offset`` is committed.

    ``last_offset`` -1: the log has no record of the producer, and ``known`` is False. ``digest``: digest of all records before
    ``next_sequence``. None: not known.
    """

    epoch: int
    next_sequence: int
    digest: RollingDigest | None
    known: bool
    last_offset: int
    position: SourcePosition | None = None
    """Last source position in the log."""
    partitioning: Partitioning | None = None

    @property
    def as_pb(self) -> client_pb2.ProducerState:
        digest = b"" if self.digest is None else self.digest.encode()
        message = client_pb2.ProducerState(epoch=self.epoch, nextSequence=self.next_sequence, digest=digest, known=self.known)
        if self.position is not None:
            message.position.CopyFrom(self.position.message())
        if self.partitioning is not None:
            message.partitioning.CopyFrom(self.partitioning.message())
        return message


class ProducerRequest(NamedTuple):
    """Request of a process to open the producer ``producer_id``, and to continue it if the log has it.

    ``instance``: random number of the process. ``sequence``: next sequence if the leader does not know the producer.
    ``position``: source and generation that the process reads.
    """

    producer_id: int
    instance: int
    sequence: int = 0
    name: str = ""
    position: SourcePosition | None = None
    acked: tuple[int, int] | None = None
    """(offset, LeaderEpoch) of the last ack that the process has received. None: none."""


class ProducerRegistry:
    """Decides which process may continue a producer, during one leadership [A3]. Each leader of a partition has one registry.

    A process asks before it sends and receives an epoch above the one in the log. The epoch belongs to this process, identified
    by a random number (``instance``). Until a batch of the epoch is in the log, only the newest assigned epoch counts, and
    earlier processes are fenced. Afterwards the log decides. A process with another epoch must ask again (UNKNOWN).

    Example: the log holds producer p in epoch 4. A asks, gets 5, and the leader dies. B asks the next leader, also gets 5, and
    sends: stored. Records that A sends in epoch 5 are then fenced.

    With standby, a new leader repeats the questions that it received as a follower. So the newest process may get an epoch
    twice.
    """

    __slots__ = ("_first", "_grants", "_names", "_producers", "_share")

    def __init__(self, producers: Producers) -> None:
        self._producers = producers
        self._share = producers.share.beside()
        self._grants: dict[int, tuple[int, int]] = {}
        """Producer id -> newest (epoch, process number) that this leader assigned.

        The process that asked last is at the end.
        """
        self._names: dict[int, tuple[str, int]] = {}
        """Producer id -> name and generation, as its process sent them."""
        self._first: dict[int, int] = {}
        """Producer id -> next sequence, for producers without records in the log."""

    def begin(self) -> None:
        """Forget all assigned epochs, because a leadership begins or ends."""
        self._grants.clear()
        self._names.clear()
        self._first.clear()
        self._share.hold(0)

    def __len__(self) -> int:
        return len(self._grants)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the assigned epochs, in bytes."""
        return self._share.size_bytes

    def ask(self, request: ProducerRequest) -> ProducerGrant | Finding:
        """Open a producer for a process: return its epoch and next sequence. Return a Finding if the process may not continue it."""
        producer_id, instance, sequence = request[:3]
        state = self._producers.state_of(producer_id)
        refused = self._refusal(state, request)
        if refused is Finding.FULL:
            for known in (self._grants, self._first, self._names):
                known.pop(producer_id, None)
            self._share.hold(_GRANT_BYTES * len(self._grants))
        if refused is not None:
            return refused
        grant = self._grants.pop(producer_id, None)
        epoch = self._epoch_for(state, grant, instance)
        while len(self._grants) >= self._producers.max_count:
            oldest_id = next(iter(self._grants))  # the process asks again
            del self._grants[oldest_id], self._first[oldest_id], self._names[oldest_id]
        self._grants[producer_id], self._first[producer_id] = (epoch, instance), sequence
        self._share.hold(_GRANT_BYTES * len(self._grants))
        self._names[producer_id] = request.name, _generation(request)
        if state is None:
            return ProducerGrant(epoch, sequence, None if sequence else RollingDigest(), False, -1)
        stored_position = (state.position, state.partitioning)
        return ProducerGrant(epoch, state.next_sequence, state.digest, True, last_offset_of(state), *stored_position)

    def _refusal(self, state: ProducerState | None, request: ProducerRequest) -> Finding | None:
        if state is not None and (finding := conflict_with(state, request.name, request.position)) is not None:
            return finding
        if self._producers.has_another_plan(request.position):
            return Finding.PLAN_CHANGED
        name, generation = self._names.get(request.producer_id, ("", 0))
        if name and request.name and name != request.name:
            return Finding.CONFLICT
        if generation > _generation(request):
            return Finding.FENCED
        return Finding.FULL if state is None and self._producers.is_full else None

    @staticmethod
    def _epoch_for(state: ProducerState | None, grant: tuple[int, int] | None, instance: int) -> int:
        if grant is None:
            return 0 if state is None else (state.epoch + 1) % _EPOCHS
        epoch, holder = grant
        is_stored = state is not None and epoch_distance(epoch, state.epoch) <= 0
        if holder == instance and not is_stored:
            return epoch  # the request arrived twice
        newest = state.epoch if state is not None and is_stored else epoch
        return (newest + 1) % _EPOCHS

    def check_batch(self, claim: Claim, columns: ColumnSet) -> BatchCheck:
        """Check a producer's batch against the assigned epochs and the log. ``claim``: fields of the producer. ``columns``: of the
        batch.
        """
        state, grant = self._producers.state_of(claim.producer_id), self._grants.get(claim.producer_id)
        due = 0 if state is None else state.next_sequence
        ahead = 1 if state is None else epoch_distance(claim.epoch, state.epoch)
        if ahead < 0:
            return BatchCheck(Finding.FENCED, next_sequence=due)
        if grant is not None and grant[1] != claim.instance:
            return BatchCheck(Finding.FENCED, next_sequence=due)
        if ahead > 0 and (grant is None or grant[0] != claim.epoch):
            return BatchCheck(Finding.UNKNOWN, next_sequence=due)
        if self._producers.has_another_plan(claim.position):
            return BatchCheck(Finding.PLAN_CHANGED, next_sequence=due)
        if state is None:
            return self._check_first_batch(claim)
        result = self._producers.check_batch(claim, columns)
        if result.finding is Finding.APPEND and not result.known and not self._producers.takes_batches:
            return BatchCheck(Finding.FULL, next_sequence=due)
        return result

    def why_not(self, finding: Finding) -> Rejection:
        if finding is not Finding.FULL:
            return _REFUSALS[finding]
        self._producers.share.count_rejections()
        return Rejection(RejectReason.OVERLOADED, self._producers.why_full)

    def _check_first_batch(self, claim: Claim) -> BatchCheck:
        """Check the first batch of a producer that the log does not know.

        Its sequence must be the one with which the process opened the producer. Otherwise an earlier batch was lost.
        """
        if claim.base_sequence != self._first[claim.producer_id]:
            return BatchCheck(Finding.UNKNOWN)
        return BatchCheck(Finding.FULL if self._producers.is_full else Finding.APPEND)


def _generation(request: ProducerRequest) -> int:
    return 0 if request.position is None else request.position.generation


def last_offset_of(state: ProducerState) -> int:
    """Return the offset of the producer's last record in the log, inclusive."""
    last = state.batches[-1]
    return last.offset + last.record_count - 1
