"""Which records go when a log is cleaned: by key, by count of a subject, by purges. Pure; one pass to learn, a second one to judge.

Goal: one mask for each batch, whatever the rules. Rules: with ``compaction`` a record goes that a later one of its key follows, and a
tombstone after ``delete_retention_s``; with ``max_per_subject`` one that so many of its subject follow; one that fits a purge and lies
below its end. Records without a key, or a subject, are none of the first two's. Whatever may have a message id stays for the dedup
window: who opens the log learns the ids from it [A3].

A record that stays for its message id alone keeps what superseded it: the newest record of its key, and what a purge would take of its
key or subject. Else the old value would be the newest one, until the window is over [D29]. A run tells until when something stays for
that (``ids_held_until_ns``), and a purge too: it is not done before. The window ends by the clock as well as by log time, because
nothing moves log time on in a stream that nobody publishes to.

``deletes_end`` tells which delete markers, and other newest records of a key, are gone: see ``horizon.py`` [D30].

Worked example: ``max_per_subject`` 2, subjects s s t s at 0..3: s has three, so offset 0 goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from liftpy.config import NS_PER_S, StreamConfig
from liftpy.dataclass import dataclass
from liftpy.partition import Purge
from liftpy.wire.batch import RecordBatch
from liftpy.wire.batch_columns import DictionaryColumn, Mask
from liftpy.wire.filters import Filter

MAX_KEYS = 4_000_000
"""Bound of the keys, and of the subjects, that are learned: what is beyond it waits for the next run."""


@dataclass(slots=True, kw_only=True)
class Superseded:
    """``learn`` all batches in order, then ask for ``kept`` of the same in the same order."""

    config: StreamConfig
    now_wall_ns: int
    ids_from_ns: int
    """What is younger and has headers stays, for it may have a message id."""
    purges: Sequence[Purge] = ()
    keeps_deletes_longer: bool = False
    """A replica is copied or away: delete markers stay twice ``delete_retention_s``, so that it need not start afresh."""
    held_until_ns: dict[int, int] = field(default_factory=dict)
    """By number: until when, by the wall clock, a purge's records stay that may have a message id."""
    ids_held_until_ns: int = 0
    """By the wall clock: until when any record stays for its message id alone; 0: none does."""
    deletes_end: int = 0
    """Exclusive: no record at or past it has gone that was the newest of its key."""
    _latest: dict[bytes | None, int] = field(default_factory=dict)
    """Key -> offset of its last record."""
    _counts: dict[bytes, int] = field(default_factory=dict)
    """Subject -> how many there are."""
    _seen: dict[bytes, int] = field(default_factory=dict)
    """Subject -> how many of them were judged."""
    _filters: list[tuple[Purge, Filter]] = field(init=False)
    _held_keys: set[bytes | None] = field(default_factory=set)
    """Of records that stay for their message ids alone; so are the subjects."""
    _held_subjects: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._filters = [(purge, Filter(purge.subjects, purge.keys)) for purge in self.purges]

    @property
    def is_full(self) -> bool:
        """Whether no more is to be learned."""
        return max(len(self._latest), len(self._counts)) >= MAX_KEYS

    def learn(self, batch: RecordBatch) -> None:
        """Of the first pass."""
        if batch.header.control or not batch.record_count:
            return
        columns = batch.columns
        if self.config.compaction and columns.keys is not None:
            self._latest.update(zip(batch.keys(), batch.offsets().tolist(), strict=True))
        if self.config.max_per_subject and columns.subjects is not None:
            for subject, count in zip(*_counted(columns.subjects), strict=True):
                self._counts[subject] = self._counts.get(subject, 0) + count

    def kept(self, batch: RecordBatch) -> Mask:
        """bool[record_count], of the second pass: which records stay."""
        if batch.header.is_remains:
            return np.zeros(batch.record_count, dtype=np.bool_)
        keep = np.ones(batch.record_count, dtype=np.bool_)
        if batch.header.control or not batch.record_count:
            return keep
        newest: Mask | None = None
        if self.config.compaction and batch.columns.keys is not None:
            newest = self._is_newest(batch)
            keep &= newest & ~self._is_old_delete(batch)
        if self.config.max_per_subject and batch.columns.subjects is not None:
            keep &= self._by_subject(batch.columns.subjects)
        purged = self._purged(batch)
        if keep.all() and not purged.any():
            return keep
        held = self._may_have_ids(batch)
        if held is not None:
            self._hold(batch, held & (~keep | purged))
            keep |= held
            purged &= ~held
        keep &= ~purged
        stays = self._superseders_of_held(batch, newest, purged)
        keep |= stays
        if (stays & purged).any():
            self._hold_purges(batch, stays & purged, self.ids_held_until_ns)
        if newest is not None:
            gone = np.flatnonzero(newest & batch.columns.keys.valid() & ~keep)  # type: ignore[union-attr]
            if gone.size:
                self.deletes_end = max(self.deletes_end, int(batch.offsets()[gone[-1]]) + 1)
        return keep

    def _is_newest(self, batch: RecordBatch) -> Mask:
        """Whether no later record of its key was learned; of records without a key always."""
        keys = batch.columns.keys
        assert keys is not None
        entries = keys.to_list()
        newest = np.fromiter((self._latest.get(key, -1) for key in entries), dtype=np.int64, count=batch.record_count)
        is_newest: Mask = (newest <= batch.offsets()) | ~keys.valid()
        return is_newest

    def _is_old_delete(self, batch: RecordBatch) -> Mask:
        keys, values = batch.columns.keys, batch.columns.values
        if values.validity is None or keys is None:
            return np.zeros(batch.record_count, dtype=np.bool_)
        stays_s = self.config.delete_retention_s * (2 if self.keeps_deletes_longer else 1)
        old: Mask = batch.timestamps_ns() < self.now_wall_ns - int(stays_s * NS_PER_S)
        return ~values.valid() & keys.valid() & old

    def _by_subject(self, subjects: DictionaryColumn) -> Mask:
        """Of each subject the newest ``max_per_subject``."""
        names, counts = _counted(subjects)
        before = np.fromiter((self._seen.get(name, 0) for name in names), dtype=np.int64, count=len(names))
        first = np.fromiter((self._counts.get(name, 0) for name in names), dtype=np.int64, count=len(names))
        first -= self.config.max_per_subject  # the first one of them that stays
        for name, count in zip(names, counts, strict=True):
            self._seen[name] = self._seen.get(name, 0) + count
        order = np.argsort(subjects.index, kind="stable")
        ends = np.cumsum(np.asarray(counts, dtype=np.int64))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - np.repeat(ends - counts, counts)
        nameless = np.fromiter((not name for name in names), dtype=np.bool_, count=len(names))
        keep: Mask = (before[subjects.index] + rank >= first[subjects.index]) | nameless[subjects.index]
        return keep

    def _may_have_ids(self, batch: RecordBatch) -> Mask | None:
        """Which may have a message id that is still in the dedup window; None: none does."""
        headers = batch.columns.headers
        if headers is None or batch.header.timestamp_ns <= self.ids_from_ns:
            return None
        return np.diff(headers.ends.astype(np.int64), prepend=0) > 0

    def _hold(self, batch: RecordBatch, held: Mask) -> None:
        """Records of ``batch`` stay for their message ids alone: note what may not go before them, and until when they stay."""
        places = np.flatnonzero(held).tolist()
        if not places:
            return
        window_ns = round(self.config.dedup_window_s * NS_PER_S)
        self.ids_held_until_ns = max(self.ids_held_until_ns, batch.header.timestamp_ns + window_ns)
        if batch.columns.keys is not None:
            keys = batch.columns.keys.to_list()
            self._held_keys.update(keys[place] for place in places if keys[place] is not None)
        if batch.columns.subjects is not None:
            names, _ = _counted(batch.columns.subjects)
            self._held_subjects.update(names[index] for index in batch.columns.subjects.index[places].tolist() if names[index])
        self._hold_purges(batch, held, batch.header.timestamp_ns + window_ns)

    def _hold_purges(self, batch: RecordBatch, held: Mask, until_ns: int) -> None:
        """Purges that want any of the ``held`` records are not done before ``until_ns``."""
        for purge, wanted in self._filters:
            if bool((wanted.mask(batch) & (batch.offsets() < purge.end_offset) & held).any()):
                self.held_until_ns[purge.number] = max(self.held_until_ns.get(purge.number, 0), until_ns)

    def _superseders_of_held(self, batch: RecordBatch, newest: Mask | None, purged: Mask) -> Mask:
        """Which records supersede one that stays for its message id alone: the newest of its key, and what a purge takes of its key or
        subject."""
        stays = np.zeros(batch.record_count, dtype=np.bool_)
        if self._held_keys and batch.columns.keys is not None:
            held = np.fromiter((key in self._held_keys for key in batch.columns.keys.to_list()), np.bool_, batch.record_count)
            stays |= held & (purged if newest is None else purged | newest)
        if self._held_subjects and batch.columns.subjects is not None and purged.any():
            names, _ = _counted(batch.columns.subjects)
            of_entry = np.fromiter((name in self._held_subjects for name in names), np.bool_, len(names))
            stays |= of_entry[batch.columns.subjects.index] & purged
        return stays

    def _purged(self, batch: RecordBatch) -> Mask:
        """Which records a purge gives up."""
        gone = np.zeros(batch.record_count, dtype=np.bool_)
        for purge, wanted in self._filters:
            if batch.base_offset < purge.end_offset:
                gone |= wanted.mask(batch) & (batch.offsets() < purge.end_offset)
        return gone


def _counted(subjects: DictionaryColumn) -> tuple[list[bytes], list[int]]:
    """Its entries, and how many records each has."""
    names = [name or b"" for name in subjects.entries.to_list()]
    return names, np.bincount(subjects.index, minlength=len(names)).tolist()
