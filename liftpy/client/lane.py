"""Lane: what a producer has on its way to one partition, in which order it goes out, and what an answer means. Pure.

Goal: every record once and in order, whatever is lost or refused on the way. Constraint: several batches are on their way at once, and
whoever leads next may know some of them.

Algorithm: go back N. Records are gathered into batches, which are numbered when they are closed and never change again: what is sent a
second time is what was sent the first time, so that the leader recognises it. When a batch is refused, or its answer does not come,
everything from the first unanswered batch on goes out again, after a pause that grows; what the log holds already is answered as a
duplicate. A batch that is answered while an earlier one is not is in the log with it, for nothing is stored out of order; but its
publisher is told in order.

Worked example: batches at 0, 100, 200 are on their way when the leader dies. The next one has 0 and 100 in its log, their answers are
lost. All three go out again: it answers 0 and 100 as duplicates once they are committed, and appends 200.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, islice
from typing import Any, NamedTuple

from liftpy.ingest.digest import RollingDigest
from liftpy.ingest.producers import distance
from liftpy.wire.batch import build_batch, parse_batch
from liftpy.wire.headers import Pairs

_ROUND = 1 << 32
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


class Share(NamedTuple):
    """What one caller has in a batch. ``token``: whom to tell."""

    token: Any
    first: int
    """Index of its first record in the batch."""
    record_count: int


@dataclass(slots=True, eq=False)
class Parcel:
    """One closed batch."""

    sequence: int
    record_count: int
    batch: bytes
    digest: RollingDigest
    """Of all the producer's records before it."""
    shares: list[Share]
    size_bytes: int
    """That its records take in the buffer."""
    attempt: int = 0
    answer_by: float = 0.0
    """Loop time in s: then it is sent again."""
    stored: Stored | None = None


class Stored(NamedTuple):
    """The answer to a batch. ``offset``: of its first record, -1: not known. ``duplicate``: all of it was there before."""

    offset: int
    leader_epoch: int
    duplicate: bool


class Refusal(Enum):
    """What a negative answer means to a lane."""

    AGAIN = "again"
    """Nobody took it, or there was no room: it goes out again."""
    OUT_OF_ORDER = "out of order"
    """An earlier one is missing there."""
    FINAL = "final"
    """It will never be stored."""


@dataclass(slots=True)
class _Open:
    """The batch that records are gathered into."""

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[Pairs] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    size_bytes: int = 0
    has_keys: bool = False
    has_headers: bool = False


class Lane:
    """To one partition. Sequences have 32 bits and go round. Times are loop times in s."""

    def __init__(self, producer_id: int, *, window: int, batch_bytes: int, batch_records: int, attempt_s: float) -> None:
        """``window``: batches on their way at once."""
        self.producer_id = producer_id
        self._window = window
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._attempt_s = attempt_s
        self.epoch = 0
        self.next_sequence = 0
        """That the next batch which is closed begins with."""
        self._digest = RollingDigest()
        self._open = _Open()
        self._parcels: deque[Parcel] = deque()
        self._out_count = 0  # of the first parcels: sent since the lane has gone back last, or stored
        self._pause_s = FIRST_PAUSE_S
        self.resume_at = 0.0
        """Nothing is sent before."""
        self.resends = 0
        """Batches that were sent again, ever."""

    def begin(self, epoch: int, next_sequence: int, digest: RollingDigest) -> None:
        """As the log has it; before anything is added."""
        self.epoch, self.next_sequence, self._digest = epoch, next_sequence, digest

    @property
    def is_empty(self) -> bool:
        """Whether everything that was added has its answer."""
        return not self._parcels and not self._open.values

    @property
    def first_unanswered(self) -> Parcel | None:
        """The parcel that all others wait behind."""
        return self._parcels[0] if self._parcels else None

    # ---- what comes in -----------------------------------------------------------------------------------------------
    def add(self, value: bytes | None, key: bytes | None, headers: Pairs, size_bytes: int, token: Any) -> None:
        """One record; ``token`` is given back with its answer."""
        gathered = self._gathering(size_bytes)
        gathered.shares.append(Share(token, len(gathered.values), 1))
        gathered.values.append(value)
        gathered.keys.append(key)
        gathered.headers.append(headers)
        gathered.size_bytes += size_bytes
        gathered.has_keys = gathered.has_keys or key is not None
        gathered.has_headers = gathered.has_headers or bool(headers)

    def add_many(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, sizes: Sequence[int], token: Any
    ) -> None:
        """Records without headers, and their sizes in bytes; a caller has one share in each batch that holds some of them."""
        ends = list(accumulate(sizes))
        start = 0
        while start < len(values):
            gathered = self._gathering(sizes[start])
            taken = ends[start - 1] if start else 0
            room = max(self._batch_bytes - gathered.size_bytes, sizes[start])
            end = min(bisect_right(ends, taken + room), start + self._batch_records - len(gathered.values))
            gathered.shares.append(Share(token, len(gathered.values), end - start))
            gathered.values += values[start:end]
            gathered.keys += keys[start:end] if keys is not None else [None] * (end - start)
            gathered.headers += [()] * (end - start)
            gathered.size_bytes += ends[end - 1] - taken
            gathered.has_keys = gathered.has_keys or keys is not None
            start = end

    def _gathering(self, size_bytes: int) -> _Open:
        """The batch that takes ``size_bytes`` more."""
        gathered = self._open
        full = len(gathered.values) >= self._batch_records or gathered.size_bytes + size_bytes > self._batch_bytes
        if gathered.values and full:
            self._close()
        return self._open

    def _close(self) -> None:
        gathered, self._open = self._open, _Open()
        count = len(gathered.values)
        batch = build_batch(
            gathered.values,
            keys=gathered.keys if gathered.has_keys else None,
            headers=gathered.headers if gathered.has_headers else None,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.next_sequence,
        )
        self._parcels.append(Parcel(self.next_sequence, count, batch, self._digest, gathered.shares, gathered.size_bytes))
        self._digest = self._digest.over(parse_batch(batch, verify=False).columns, 0, count)
        self.next_sequence = (self.next_sequence + count) % _ROUND

    # ---- what goes out -----------------------------------------------------------------------------------------------
    def next_to_send(self, now: float) -> Parcel | None:
        """What goes out now; call until None. What is gathered goes as soon as there is room: load makes large batches by itself."""
        if now < self.resume_at:
            return None
        while self._out_count < self._window:
            if self._out_count == len(self._parcels):
                if not self._open.values:
                    return None
                self._close()
            parcel = self._parcels[self._out_count]
            self._out_count += 1
            if parcel.stored is None:
                self.resends += bool(parcel.attempt)
                parcel.attempt += 1
                parcel.answer_by = now + self._attempt_s
                return parcel
        return None

    def wake_at(self) -> float | None:
        """When something is to be done, if no answer comes; None: nothing is."""
        if not self._parcels:
            return self.resume_at if self._open.values else None
        return self._parcels[0].answer_by if self._out_count else self.resume_at

    def late(self, now: float) -> bool:
        """Whether the first answer is overdue; then everything goes out again."""
        if not self._parcels or not self._out_count or now < self._parcels[0].answer_by:
            return False
        self._go_back(now)
        return True

    def _go_back(self, now: float) -> None:
        self._out_count = 0
        self.resume_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)

    # ---- answers -----------------------------------------------------------------------------------------------------
    def stored(self, sequence: int, answer: Stored) -> list[tuple[Parcel, Stored]]:
        """A batch is in the log; those whose publishers are to be told now, in order. Which attempt it answers is all the same."""
        parcel = next((parcel for parcel in self._parcels if parcel.sequence == sequence), None)
        if parcel is None:
            return []
        parcel.stored, self._pause_s = parcel.stored or answer, FIRST_PAUSE_S
        told = []
        while self._parcels and (known := self._parcels[0].stored) is not None:
            told.append((self._parcels.popleft(), known))
            self._out_count = max(self._out_count - 1, 0)
        return told

    def refused(self, sequence: int, attempt: int, refusal: Refusal, now: float, due: int = 0) -> bool:
        """A batch was not stored; whether the lane goes on. ``due``: with OUT_OF_ORDER, the sequence that the leader waits for."""
        out = next((parcel for parcel in islice(self._parcels, self._out_count) if parcel.sequence == sequence), None)
        if out is None or out.stored is not None or attempt != out.attempt:
            return True  # that was before it went back
        if refusal is Refusal.FINAL:
            return False
        if refusal is Refusal.OUT_OF_ORDER and distance(due, self._parcels[0].sequence) < 0:
            return False  # what was answered as stored is not there any more: nothing can follow on it
        self._go_back(now)
        return True

    def give_up(self) -> list[Share]:
        """All shares that are not answered, in order; the lane is empty then."""
        left = [share for parcel in self._parcels for share in parcel.shares]
        left += self._open.shares
        self._parcels.clear()
        self._open = _Open()
        self._out_count = 0
        return left
