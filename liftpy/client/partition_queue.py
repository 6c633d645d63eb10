"""Send queue of a producer for one partition: builds batches, orders them and evaluates the answers. Pure.

Goal: store every record once and in order, even if messages or answers are lost or rejected. Constraint: several
batches are in flight at once, and a new leader may already have some of them.

Algorithm: go back N.

- The queue collects records into batches. A closed batch has a sequence number and never changes. A repeated batch has
  the same bytes, so the leader recognizes it.
- After a rejection or a timeout, the queue sends every batch again from the first unanswered one. It waits before each
  repetition, longer each time. If the leader has a batch already, it answers that the batch is a duplicate.
- The leader stores nothing out of order. If a batch is answered and an earlier one is not, the log has both. The
  publishers get their acks in order.

Worked example: batches at 0, 100 and 200 are in flight when the leader fails. The next leader has 0 and 100 in its log,
but their answers are lost. The queue sends all three again. The leader answers 0 and 100 as duplicates once they are
committed, and appends 200.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, islice
from typing import Any, NamedTuple

from liftpy.core.observe.trace_context import first_marked
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.publish.producer_state import after, distance
from liftpy.core.wire.batch import body_of, build_batch, parse_batch, seal, with_producer_epoch
from liftpy.core.wire.batch_columns import ColumnSet
from liftpy.core.wire.headers import Pairs

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
_PROBE_S = 0.25
"""Maximum time to wait for the answer to a probe batch after a reconnect, in seconds."""
_PROBING_S = 5.0
"""Time after a reconnect during which batches are sent one at a time, in seconds. It ends early when an answer arrives.

Leaders reconnect to NATS in this time, too.
"""


@dataclass(slots=True, eq=False, kw_only=True)
class ProducerBatch:
    """One batch that is complete and has a sequence number. ``ticket``: object that passes the result to the senders of its records."""

    sequence: int
    record_count: int
    batch: bytes
    digest: RollingDigest | None
    """Digest of all the producer's records before this batch. None: not known."""
    ticket: Any
    size_bytes: int
    """Size of its records in the buffer, in bytes."""
    position: int = -1
    """Offset of the last source record in the batch, inclusive. -1: the batch has no source."""
    names: bool = False
    """True for the first batch of an epoch, which contains the producer's name."""
    reset: bool = False
    """True if the leader must discard its state of this producer."""
    attempt: int = 0
    first_at: float = 0.0
    """Time of the event loop at which the batch was first sent, in seconds."""
    answer_by: float = 0.0
    """Deadline for the answer, as a time of the event loop in seconds. The queue sends the batch again after it."""
    placed: BatchResult | None = None


class BatchResult(NamedTuple):
    """Answer of the leader to a batch that is stored.

    ``offset``: offset of the first new record. If all records are new, or all were stored before, it is the offset of the first
    record. -1: not known. ``known_records``: number of records that were stored before.
    """

    offset: int
    leader_epoch: int
    known_records: int = 0


class BatchRejection(Enum):
    """Reason for which a leader rejects a batch."""

    AGAIN = "again"
    """No leader accepted the batch, or the leader had no room. The batch is sent again."""
    OUT_OF_ORDER = "out of order"
    """The log of the leader lacks an earlier batch. The queue goes back to it."""
    UNKNOWN = "unknown"
    """The leader does not know the producer's epoch. The producer requests a new one."""
    FINAL = "final"
    """The batch will never be stored."""


@dataclass(slots=True, kw_only=True)
class _FillingBatch:
    """The batch that is being filled. ``since``: time of its first record, as a time of the event loop in seconds."""

    ticket: Any
    since: float = 0.0
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[Pairs] = field(default_factory=list)
    size_bytes: int = 0
    position: int = -1
    has_keys: bool = False
    has_headers: bool = False


class PartitionQueue:
    """Send queue of one partition: it builds batches and decides which batch is sent next.

    Sequence numbers have 32 bits and wrap around. Times are times of the event loop, in seconds.
    """

    def __init__(
        self,
        producer_id: int,
        *,
        window: int,
        batch_bytes: int,
        batch_records: int,
        attempt_s: float,
        linger_s: float = 0.0,
        new_ticket: Callable[[], Any] = object,
    ) -> None:
        """Create the queue.

        ``window``: maximum number of batches in flight. ``attempt_s``: time to wait for an answer before a batch is sent again, in
        seconds. ``linger_s``: time that an incomplete batch waits, in seconds. ``new_ticket``: creates the ticket of a batch.
        """
        self.producer_id = producer_id
        self._window = window
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._attempt_s = attempt_s
        self._linger_s = linger_s
        self._new_ticket = new_ticket
        self.begun: Callable[[Any, Pairs], Pairs] | None = None
        """Callback for each new batch, with its ticket and the headers of its first record. Returns the headers to store."""
        self.epoch = 0
        self.next_sequence = 0
        """First sequence number of the next batch to close."""
        self._digest: RollingDigest | None = RollingDigest()
        self.position = -1
        """Offset of the last source record whose results were in the log when the queue was opened, inclusive."""
        self._names = False
        self._reset = False
        self._asks = True
        """True while the producer has no epoch for this partition. The queue sends nothing until then."""
        self._hurries = False
        """True if incomplete batches are sent without waiting for more records."""
        self._open = _FillingBatch(ticket=new_ticket())
        self._parcels: deque[ProducerBatch] = deque()
        self._in_flight_count = 0  # number of the first batches that were sent since the last `_go_back`, or stored
        self._pause_s = FIRST_PAUSE_S
        self.resume_at = 0.0
        """Time before which the queue sends nothing."""
        self._probing_until = 0.0
        """Time until which only one batch is in flight, with a short timeout. 0: no such limit."""
        self._quota_until = 0.0
        """Time until which the leader rejects batches by a quota."""
        self.sent_again = 0
        """Number of batches that were sent again since the queue was created."""

    @property
    def asks(self) -> bool:
        """True if the queue needs a producer epoch from the leader. Call ``begin`` or ``begin_new_epoch`` with one."""
        return self._asks

    def begin(
        self, epoch: int, next_sequence: int, digest: RollingDigest | None, *, reset: bool = False, position: int = -1
    ) -> None:
        """Set the state that the leader has for this producer. Call it before the first record is added.

        ``digest``: digest of the stored records, None: not known. ``reset``: True if the leader must discard its state.
        ``position``: offset of the last source record whose results are stored, -1: none.
        """
        self.position, self._names = position, True
        self.epoch, self.next_sequence, self._digest, self._asks = epoch, next_sequence, digest, False
        self._reset = reset
        if not next_sequence:  # a new epoch that begins at sequence 0 also resets the state in the log
            self._digest = RollingDigest()

    def begin_new_epoch(self, epoch: int) -> None:
        """Continue with a new producer ``epoch``, because the log has no record of the last epoch.

        Unanswered batches are sent again with equal sequence numbers.
        """
        self.epoch, self._asks, self._in_flight_count = epoch, False, 0
        for parcel in self._parcels:
            parcel.batch = with_producer_epoch(parcel.batch, epoch)
            parcel.names = False
        if self._parcels:
            self._parcels[0].names = True
        self._names = not self._parcels

    @property
    def unanswered(self) -> tuple[int, RollingDigest | None]:
        """(sequence number of the first unanswered record, digest of all earlier records). The digest is None if it is not known."""
        first = self.first_unanswered
        return (self.next_sequence, self._digest) if first is None else (first.sequence, first.digest)

    @property
    def is_empty(self) -> bool:
        """True if every added record has its answer."""
        return not self._parcels and not self._open.values

    @property
    def first_unanswered(self) -> ProducerBatch | None:
        return self._parcels[0] if self._parcels else None

    # ---- what comes in -----------------------------------------------------------------------------------------------
    def add(self, value: bytes | None, key: bytes | None, headers: Pairs, size_bytes: int, now: float) -> tuple[Any, int]:
        """Add one record to the open batch. Return the ticket of its batch and the index of the record in the batch."""
        gathered = self._open
        index = len(gathered.values)
        if index and (index >= self._batch_records or gathered.size_bytes + size_bytes > self._batch_bytes):
            self._close()
            gathered, index = self._open, 0
        if not index:
            gathered.since = now
            if self.begun is not None:
                headers = self.begun(gathered.ticket, headers)
        gathered.values.append(value)
        gathered.keys.append(key)
        gathered.headers.append(headers)
        gathered.size_bytes += size_bytes
        if key is not None:
            gathered.has_keys = True
        if headers:
            gathered.has_headers = True
        return gathered.ticket, index

    def add_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        sizes: Sequence[int],
        now: float,
        positions: Sequence[int] | None = None,
    ) -> list[tuple[Any, int, int]]:
        """Add records without headers. ``sizes``: size of each record in bytes. ``positions``: source offset of each record.

        Returns:
            For each batch: its ticket, the index of the first added record in it, and the number of added records.
        """
        ends = list(accumulate(sizes))
        shares, start = [], 0
        while start < len(values):
            gathered = self._batch_with_room(sizes[start])
            first = len(gathered.values)
            gathered.since = gathered.since if first else now
            size_before = ends[start - 1] if start else 0
            room = max(self._batch_bytes - gathered.size_bytes, sizes[start])
            end = min(bisect_right(ends, size_before + room), start + self._batch_records - first)
            if positions is not None:
                end = self._whole_end(positions, start, end)
                if end == start:  # the results of one source record do not fit into the rest of this batch
                    self._close()
                    continue
                gathered.position = positions[end - 1]
            shares.append((gathered.ticket, first, end - start))
            gathered.values += values[start:end]
            gathered.keys += keys[start:end] if keys is not None else [None] * (end - start)
            gathered.headers += [()] * (end - start)
            if not first and self.begun is not None:
                gathered.headers[0] = self.begun(gathered.ticket, ())
                gathered.has_headers = bool(gathered.headers[0])
            gathered.size_bytes += ends[end - 1] - size_before
            gathered.has_keys = gathered.has_keys or keys is not None
            start = end
        return shares

    def add_columns(self, columns: ColumnSet, size_bytes: int, position: int = -1) -> Any:
        """Add records as one complete batch, and return its ticket.

        ``size_bytes``: total size of the records. ``position``: source offset of the last record. -1: there is no source.
        """
        if self._open.values:
            self._close()
        ticket, count = self._new_ticket(), len(columns.values.ends)
        if self.begun is not None and (marks := self.begun(ticket, ())):
            columns = first_marked(columns, marks)
        batch = seal(
            body_of(columns), producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self.next_sequence
        )
        self._enclose(batch, count, ticket, size_bytes, position, columns)
        return ticket

    def _whole_end(self, positions: Sequence[int], start: int, end: int) -> int:
        """Return the index at which a batch should end, so that all results of one source record are in one batch.

        ``end``: largest index that has room. The result is larger if the results of one source record have no room.
        """
        if end == len(positions) or positions[end] != positions[end - 1]:
            return end
        whole = bisect_left(positions, positions[end - 1])
        if whole > start:
            return whole
        return start if self._open.values else bisect_right(positions, positions[start])

    def _batch_with_room(self, size_bytes: int) -> _FillingBatch:
        """Return the open batch. Close it first and open another one if ``size_bytes`` more do not fit."""
        gathered = self._open
        full = len(gathered.values) >= self._batch_records or gathered.size_bytes + size_bytes > self._batch_bytes
        if gathered.values and full:
            self._close()
        return self._open

    @property
    def next_record_begins_batch(self) -> bool:
        """True if the next record that is added begins a new batch."""
        return not self._open.values

    def hurry(self) -> None:
        """Do not wait for more records: send the open batch as soon as fewer batches are in flight than the window allows."""
        self._hurries = True

    def _close(self) -> None:
        gathered, self._open = self._open, _FillingBatch(ticket=self._new_ticket())
        count = len(gathered.values)
        batch = build_batch(
            gathered.values,
            keys=gathered.keys if gathered.has_keys else None,
            headers=gathered.headers if gathered.has_headers else None,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.next_sequence,
        )
        columns = parse_batch(batch, verify=False).columns
        self._enclose(batch, count, gathered.ticket, gathered.size_bytes, gathered.position, columns)

    def _enclose(self, batch: bytes, count: int, ticket: Any, size_bytes: int, position: int, columns: ColumnSet) -> None:
        parcel = ProducerBatch(
            sequence=self.next_sequence,
            record_count=count,
            batch=batch,
            digest=self._digest,
            ticket=ticket,
            size_bytes=size_bytes,
            position=position,
            names=self._names,
            reset=self._reset,
        )
        self._names = False
        self._reset = False
        self._parcels.append(parcel)
        if self._digest is not None:
            self._digest = self._digest.over(columns, 0, count)
        self.next_sequence = after(self.next_sequence, count)

    # ---- what goes out -----------------------------------------------------------------------------------------------
    def next_to_send(self, now: float) -> ProducerBatch | None:
        """Return the next batch to send at the time ``now``. None: there is none. Call it until it returns None.

        While the window is full, records collect in the open batch. So batches become larger under load.
        """
        if now < self.resume_at or self._asks:
            return None
        if now >= self._probing_until:
            self._probing_until = 0.0
        while self._in_flight_count < self._room:
            if self._in_flight_count == len(self._parcels):
                gathered = self._open
                if not gathered.values or not (self._hurries or now >= gathered.since + self._linger_s):
                    return None
                self._hurries = False
                self._close()
            parcel = self._parcels[self._in_flight_count]
            self._in_flight_count += 1
            if parcel.placed is None:
                self.sent_again += bool(parcel.attempt)
                parcel.first_at = parcel.first_at if parcel.attempt else now
                parcel.attempt += 1
                parcel.answer_by = now + (min(_PROBE_S, self._attempt_s) if self._probing_until else self._attempt_s)
                return parcel
        return None

    @property
    def _room(self) -> int:
        """Number of further batches that may be in flight.

        The first batch after a restart is sent alone, so that the leader judges it first.
        """
        return 1 if self._probing_until or (self._parcels and self._parcels[0].reset) else self._window

    def wake_at(self) -> float | None:
        """Return the time at which the queue must be asked again if no answer arrives before.

        None: there is nothing to send or wait for.
        """
        if self._asks:
            return None
        if self._in_flight_count:
            due = self._parcels[0].answer_by
        elif self._parcels:
            return self.resume_at
        else:
            due = math.inf
        if self._open.values and self._in_flight_count < self._room:
            due = min(due, max(self.resume_at, self._open.since + (0.0 if self._hurries else self._linger_s)))
        return None if due == math.inf else due

    def late(self, now: float) -> bool:
        """Return whether the deadline for the answer to the oldest batch is over. The queue then sends all batches again."""
        if not self._parcels or not self._in_flight_count or now < self._parcels[0].answer_by:
            return False
        self._go_back(now)
        return True

    def _go_back(self, now: float, after_s: float = 0.0) -> None:
        self._in_flight_count = 0
        self._quota_until = now + after_s
        self.resume_at = now + (after_s or self._pause_s)
        if not after_s:
            longest_s = _PROBE_S if now < self._probing_until else LONGEST_PAUSE_S
            self._pause_s = min(2 * self._pause_s, longest_s)

    # ---- answers -----------------------------------------------------------------------------------------------------
    def acked(self, sequence: int, answer: BatchResult) -> list[tuple[ProducerBatch, BatchResult]]:
        """Process the ack of the batch that begins at ``sequence``. The ack may belong to any attempt.

        Returns:
            The batches whose results can be reported now, in order, each with its result.
        """
        parcel = next((parcel for parcel in self._parcels if parcel.sequence == sequence), None)
        if parcel is None:
            return []
        parcel.placed, self._pause_s, self._probing_until = parcel.placed or answer, FIRST_PAUSE_S, 0.0
        acked_parcels = []
        while self._parcels and (known := self._parcels[0].placed) is not None:
            acked_parcels.append((self._parcels.popleft(), known))
            self._in_flight_count = max(self._in_flight_count - 1, 0)
        return acked_parcels

    def refused(
        self, sequence: int, attempt: int, refusal: BatchRejection, now: float, due: int = 0, after_s: float = 0.0
    ) -> bool:
        """Process a rejection of a batch. Return False if the producer cannot continue.

        ``due``: with OUT_OF_ORDER, the sequence number that the leader expects. ``after_s``: wait that a quota requires, in seconds.
        """
        out = next((parcel for parcel in islice(self._parcels, self._in_flight_count) if parcel.sequence == sequence), None)
        if out is None or out.placed is not None or attempt != out.attempt:
            return True  # the rejection belongs to an attempt before the last `_go_back`
        if refusal is BatchRejection.FINAL:
            return False
        self._asks = refusal is BatchRejection.UNKNOWN
        if refusal is BatchRejection.OUT_OF_ORDER and distance(due, self._parcels[0].sequence) < 0:
            return False  # the log has lost a record that was acknowledged, so nothing can follow it
        self._go_back(now, after_s)
        return True

    @property
    def tickets(self) -> list[tuple[Any, int]]:
        """(ticket, number of attempts) of each unanswered batch, in order."""
        closed = [(parcel.ticket, parcel.attempt) for parcel in self._parcels]
        return [*closed, (self._open.ticket, 0)] if self._open.values else closed

    def connection_renewed(self, now: float) -> None:
        """Send all unanswered batches again after a reconnect. The first batch is sent alone, and the others after its answer."""
        self._probing_until, self._pause_s = now + _PROBING_S, FIRST_PAUSE_S
        self._in_flight_count, self.resume_at = 0, max(now, self._quota_until)
