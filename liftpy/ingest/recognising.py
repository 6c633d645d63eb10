"""Which of the messages that a standby has heard stand in its log, and where. Pure.

A record is recognised by all that it holds: subject, key, headers (a message id among them) and value. Where each lies once, that is
an identity. Equal ones are counted: as many as the log holds are recognised, the first heard first. The log may have shown a record
before it was heard, for the data subject and replication come by different ways: for ``credit_ns`` that counts. Where the log holds
equal ones it does not, for who sends the same thing again and again must not have the next one swallowed: rather a duplicate than a
loss, and each of those is counted as ambiguous.

Worked example, credit 250 ms: "on" is shown at 0 s and heard at 0.1 s: recognised. "on" is shown at 0 s and another one is heard at
2 s: that is a new one. "on" is shown at 0, 0.1 and 0.2 s, and heard at 0.05 s and at 0.25 s: the first is the one of 0.1 s, the second
is taken for a new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

from liftpy.ingest.recent_ids import Stored
from liftpy.wire.batch import RecordBatch
from liftpy.wire.batch_columns import ColumnSet

Key = tuple[object, ...]
"""All that a record, or a whole batch, is recognised by."""
_Place = tuple[int, Stored]
"""(monotonic ns when the log showed it, where it stands)."""


def record_keys(
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None] | None,
    headers: Iterable[Sequence[tuple[str, bytes]] | None] | None,
    subjects: Iterable[str] | None,
) -> list[Key]:
    """Of each record, from its columns."""
    pairs = repeat(()) if headers is None else (tuple(each) if each else () for each in headers)
    rows = zip(
        values, repeat(None) if keys is None else keys, pairs, repeat("") if subjects is None else subjects, strict=False
    )
    return list(rows)


def column_keys(columns: ColumnSet, subjects: Iterable[str] | None) -> list[Key]:
    """Of the records of a batch, from its columns; ``subjects``: of each, in place of its column."""
    if subjects is None and columns.subjects is not None:
        subjects = columns.subjects.each()
    return record_keys(
        columns.values.to_list(),
        None if columns.keys is None else columns.keys.to_list(),
        None if columns.headers is None else columns.headers.to_list(),
        subjects,
    )


class InLog:
    """The end of a log, to be recognised in. ``shown_ns(offset)``: when this node's log came to hold it."""

    def __init__(self, credit_ns: int, shown_ns: Callable[[int], int], *, whole_batches: bool) -> None:
        self._credit_ns = credit_ns
        self._shown_ns = shown_ns
        self._whole_batches = whole_batches
        self._places: dict[Key, deque[_Place]] = {}
        self._equal: set[Key] = set()
        self._unheard: dict[int, tuple[int, int]] = {}
        """By last offset of a batch: (records in it that are not recognised, when the log showed it)."""
        self.ambiguous = 0
        """Recognised by count alone."""

    def add(self, batch: RecordBatch) -> None:
        """The next batch of the log."""
        if not batch.record_count or batch.header.control:
            return
        keys, last_offset = column_keys(batch.columns, None), batch.last_offset
        shown_ns = self._shown_ns(last_offset)
        self._unheard[last_offset] = len(keys), shown_ns
        for key, offset in zip(keys, batch.offsets().tolist(), strict=True):
            self._put(key, (shown_ns, Stored(offset, last_offset)))
        if self._whole_batches:
            self._put((tuple(keys),), (shown_ns, Stored(batch.base_offset, last_offset)))

    def _put(self, key: Key, place: _Place) -> None:
        places = self._places.get(key)
        if places is None:
            self._places[key] = deque((place,))
        else:
            self._equal.add(key)
            places.append(place)

    def take(self, key: Key, heard_ns: int) -> Stored | None:
        """Where the message that was heard next stands; None: nowhere. Each record is recognised once."""
        places = self._places.get(key)
        if places is None:
            return None
        is_one_of_many = key in self._equal
        earliest_ns = heard_ns if is_one_of_many else heard_ns - self._credit_ns
        while places:
            shown_ns, stored = places.popleft()
            if shown_ns >= earliest_ns:
                self.ambiguous += is_one_of_many
                self._heard(stored, len(key) == 1)
                return stored
        return None

    def _heard(self, stored: Stored, whole: bool) -> None:
        count, shown_ns = self._unheard[stored.last_offset]
        self._unheard[stored.last_offset] = 0 if whole else count - 1, shown_ns

    @property
    def latest_unheard_ns(self) -> int:
        """When the log showed the last of the records that no message was recognised as; -1: there is none."""
        return max((shown_ns for count, shown_ns in self._unheard.values() if count > 0), default=-1)
