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

from liftpy.client.in_flight import LONGEST_WAIT_S, PROBE_S, PROBING_S
from liftpy.core.observe.trace_context import first_marked
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.publish.producer_state import after, distance
from liftpy.core.wire.batch import Body, add_header, body_of, encode_body, parse_batch, with_producer_epoch
from liftpy.core.wire.batch_columns import ColumnSet
from liftpy.core.wire.headers import Pairs

FIRST_PAUSE_S = 0.02


@dataclass(slots=True, eq=False, kw_only=True)
class ProducerBatch:
    """One batch that is complete and has a sequence number. ``ticket``: object that passes the result to the senders of its records."""

    sequence: int
    record_count: int
    encoded: bytes
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
    result: BatchResult | None = None


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
        self.on_begin: Callable[[Any, Pairs], Pairs] | None = None
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
        self._batches: deque[ProducerBatch] = deque()
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
        for batch in self._batches:
            batch.encoded = with_producer_epoch(batch.encoded, epoch)
            batch.names = False
        if self._batches:
            self._batches[0].names = True
        self._names = not self._batches

    @property
    def unanswered(self) -> tuple[int, RollingDigest | None]:
        """(sequence number of the first unanswered record, digest of all earlier records). The digest is None if it is not known."""
        first = self.first_unanswered
        return (self.next_sequence, self._digest) if first is None else (first.sequence, first.digest)

    @property
    def first_unanswered(self) -> ProducerBatch | None:
        return self._batches[0] if self._batches else None

    # ---- what comes in -----------------------------------------------------------------------------------------------
    def add(self, value: bytes | None, key: bytes | None, headers: Pairs, size_bytes: int, now: float) -> tuple[Any, int]:
        """Add one record to the open batch. Return the ticket of its batch and the index of the record in the batch."""
        filling = self._open
        index = len(filling.values)
        if index and (index >= self._batch_records or filling.size_bytes + size_bytes > self._batch_bytes):
            self._close()
            filling, index = self._open, 0
        if not index:
            filling.since = now
            if self.on_begin is not None:
                headers = self.on_begin(filling.ticket, headers)
        filling.values.append(value)
        filling.keys.append(key)
        filling.headers.append(headers)
        filling.size_bytes += size_bytes
        if key is not None:
            filling.has_keys = True
        if headers:
            filling.has_headers = True
        return filling.ticket, index

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
            filling = self._batch_with_room(sizes[start])
            first = len(filling.values)
            filling.since = filling.since if first else now
            size_before = ends[start - 1] if start else 0
            room = max(self._batch_bytes - filling.size_bytes, sizes[start])
            end = min(bisect_right(ends, size_before + room), start + self._batch_records - first)
            if positions is not None:
                end = self._whole_end(positions, start, end)
                if end == start:  # the results of one source record do not fit into the rest of this batch
                    self._close()
                    continue
                filling.position = positions[end - 1]
            shares.append((filling.ticket, first, end - start))
            filling.values += values[start:end]
            filling.keys += keys[start:end] if keys is not None else [None] * (end - start)
            filling.headers += [()] * (end - start)
            if not first and self.on_begin is not None:
                filling.headers[0] = self.on_begin(filling.ticket, ())
                filling.has_headers = bool(filling.headers[0])
            filling.size_bytes += ends[end - 1] - size_before
            filling.has_keys = filling.has_keys or keys is not None
            start = end
        return shares

    def add_columns(self, columns: ColumnSet, size_bytes: int, position: int = -1) -> Any:
        """Add records as one complete batch, and return its ticket.

        ``size_bytes``: total size of the records. ``position``: source offset of the last record. -1: there is no source.
        """
        if self._open.values:
            self._close()
        ticket, count = self._new_ticket(), len(columns.values.ends)
        if self.on_begin is not None and (marks := self.on_begin(ticket, ())):
            columns = first_marked(columns, marks)
        self._enclose(self._encode(body_of(columns)), count, ticket, size_bytes, position, columns)
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
        filling = self._open
        full = len(filling.values) >= self._batch_records or filling.size_bytes + size_bytes > self._batch_bytes
        if filling.values and full:
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
        filling, self._open = self._open, _FillingBatch(ticket=self._new_ticket())
        count = len(filling.values)
        body = encode_body(
            filling.values,
            keys=filling.keys if filling.has_keys else None,
            headers=filling.headers if filling.has_headers else None,
        )
        encoded = self._encode(body)
        columns = parse_batch(encoded, verify=False).columns
        self._enclose(encoded, count, filling.ticket, filling.size_bytes, filling.position, columns)

    def _encode(self, body: Body) -> bytes:
        return add_header(body, producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self.next_sequence)

    def _enclose(self, encoded: bytes, count: int, ticket: Any, size_bytes: int, position: int, columns: ColumnSet) -> None:
        batch = ProducerBatch(
            sequence=self.next_sequence,
            record_count=count,
            encoded=encoded,
            digest=self._digest,
            ticket=ticket,
            size_bytes=size_bytes,
            position=position,
            names=self._names,
            reset=self._reset,
        )
        self._names = False
        self._reset = False
        self._batches.append(batch)
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
            if self._in_flight_count == len(self._batches):
                filling = self._open
                if not filling.values or not (self._hurries or now >= filling.since + self._linger_s):
                    return None
                self._hurries = False
                self._close()
            batch = self._batches[self._in_flight_count]
            self._in_flight_count += 1
            if batch.result is None:
                self.sent_again += bool(batch.attempt)
                batch.first_at = batch.first_at if batch.attempt else now
                batch.attempt += 1
                batch.answer_by = now + (min(PROBE_S, self._attempt_s) if self._probing_until else self._attempt_s)
                return batch
        return None

    @property
    def _room(self) -> int:
        """Number of further batches that may be in flight.

        The first batch after a restart is sent alone, so that the leader checks it first.
        """
        return 1 if self._probing_until or (self._batches and self._batches[0].reset) else self._window

    def wake_at(self) -> float | None:
        """Return the time at which the queue must be asked again if no answer arrives before.

        None: there is nothing to send or wait for.
        """
        if self._asks:
            return None
        if self._in_flight_count:
            due = self._batches[0].answer_by
        elif self._batches:
            return self.resume_at
        else:
            due = math.inf
        if self._open.values and self._in_flight_count < self._room:
            due = min(due, max(self.resume_at, self._open.since + (0.0 if self._hurries else self._linger_s)))
        return None if due == math.inf else due

    def extend(self, seconds: float) -> None:
        """Move all time limits by ``seconds``, because this process was suspended for that time."""
        for batch in self._batches:
            batch.first_at += seconds
            batch.answer_by += seconds

    def late(self, now: float) -> bool:
        """Return whether the deadline for the answer to the oldest batch is over. The queue then sends all batches again."""
        if not self._batches or not self._in_flight_count or now < self._batches[0].answer_by:
            return False
        self._go_back(now)
        return True

    def _go_back(self, now: float, after_s: float = 0.0) -> None:
        self._in_flight_count = 0
        self._quota_until = now + after_s
        self.resume_at = now + (after_s or self._pause_s)
        if not after_s:
            longest_s = PROBE_S if now < self._probing_until else LONGEST_WAIT_S
            self._pause_s = min(2 * self._pause_s, longest_s)

    # ---- answers -----------------------------------------------------------------------------------------------------
    def acked(self, sequence: int, answer: BatchResult) -> list[tuple[ProducerBatch, BatchResult]]:
        """Process the ack of the batch that begins at ``sequence``. The ack may belong to any attempt.

        Returns:
            The batches whose results can be reported now, in order, each with its result.
        """
        batch = next((batch for batch in self._batches if batch.sequence == sequence), None)
        if batch is None:
            return []
        batch.result, self._pause_s, self._probing_until = batch.result or answer, FIRST_PAUSE_S, 0.0
        acked_batches = []
        while self._batches and (known := self._batches[0].result) is not None:
            acked_batches.append((self._batches.popleft(), known))
            self._in_flight_count = max(self._in_flight_count - 1, 0)
        return acked_batches

    def refused(
        self, sequence: int, attempt: int, refusal: BatchRejection, now: float, due: int = 0, after_s: float = 0.0
    ) -> bool:
        """Process a rejection of a batch. Return False if the producer cannot continue.

        ``due``: with OUT_OF_ORDER, the sequence number that the leader expects. ``after_s``: wait that a quota requires, in seconds.
        """
        out = next((batch for batch in islice(self._batches, self._in_flight_count) if batch.sequence == sequence), None)
        if out is None or out.result is not None or attempt != out.attempt:
            return True  # the rejection belongs to an attempt before the last `_go_back`
        if refusal is BatchRejection.FINAL:
            return False
        self._asks = refusal is BatchRejection.UNKNOWN
        if refusal is BatchRejection.OUT_OF_ORDER and distance(due, self._batches[0].sequence) < 0:
            return False  # the log has lost a record that was acknowledged, so nothing can follow it
        self._go_back(now, after_s)
        return True

    @property
    def tickets(self) -> list[tuple[Any, int]]:
        """(ticket, number of attempts) of each unanswered batch, in order."""
        closed = [(batch.ticket, batch.attempt) for batch in self._batches]
        return [*closed, (self._open.ticket, 0)] if self._open.values else closed

    def connection_renewed(self, now: float) -> None:
        """Send all unanswered batches again after a reconnect. The first batch is sent alone, and the others after its answer."""
        self._probing_until, self._pause_s = now + PROBING_S, FIRST_PAUSE_S
        self._in_flight_count, self.resume_at = 0, max(now, self._quota_until)
