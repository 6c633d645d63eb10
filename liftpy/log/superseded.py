"""Which records go when a log is cleaned: by key, by count of a subject, by purges. Pure; one pass to learn, a second one to judge.

Goal: one mask for each batch, whatever the rules. Rules: with ``compaction`` a record goes that a later one of its key follows, and a
tombstone after ``delete_retention_s``; with ``max_per_subject`` one that so many of its subject follow; one that fits a purge and lies
below its end. Records without a key, or a subject, are none of the first two's. Whatever may have a message id stays for the dedup
window: who opens the log learns the ids from it [A3].

A purge is told that something stayed for that, and until when: it is not done before. Its window ends by the clock too: a stream
that nobody publishes to any more would keep it for ever.

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
    """Log time: what is younger and has headers stays, for it may have a message id."""
    purges: Sequence[Purge] = ()
    held_until_ns: dict[int, int] = field(default_factory=dict)
    """By number: until when, by the wall clock, a purge's records stay that may have a message id."""
    _latest: dict[bytes | None, int] = field(default_factory=dict)
    """Key -> offset of its last record."""
    _counts: dict[bytes, int] = field(default_factory=dict)
    """Subject -> how many there are."""
    _seen: dict[bytes, int] = field(default_factory=dict)
    """Subject -> how many of them were judged."""
    _filters: list[tuple[Purge, Filter]] = field(init=False)

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
        if self.config.compaction and batch.columns.keys is not None:
            keep &= self._by_key(batch)
        if self.config.max_per_subject and batch.columns.subjects is not None:
            keep &= self._by_subject(batch.columns.subjects)
        stays = self._may_have_ids(batch, self.ids_from_ns)
        if stays is not None:
            keep |= stays
        return self._without_purged(batch, keep)

    def _by_key(self, batch: RecordBatch) -> Mask:
        keys, values = batch.columns.keys, batch.columns.values
        assert keys is not None
        entries = keys.to_list()
        newest = np.fromiter((self._latest.get(key, -1) for key in entries), dtype=np.int64, count=batch.record_count)
        keep: Mask = (newest <= batch.offsets()) | ~keys.valid()
        if values.validity is not None:
            old = batch.timestamps_ns() < self.now_wall_ns - int(self.config.delete_retention_s * NS_PER_S)
            keep &= values.valid() | ~keys.valid() | ~old
        return keep

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

    def _may_have_ids(self, batch: RecordBatch, from_ns: int) -> Mask | None:
        """Which may have a message id, if the batch is younger than ``from_ns``; None: none does."""
        headers = batch.columns.headers
        if headers is None or batch.header.timestamp_ns <= from_ns:
            return None
        return np.diff(headers.ends.astype(np.int64), prepend=0) > 0

    def _without_purged(self, batch: RecordBatch, keep: Mask) -> Mask:
        window_ns = round(self.config.dedup_window_s * NS_PER_S)
        for purge, wanted in self._filters:
            if batch.base_offset >= purge.end_offset:
                continue
            goes = wanted.mask(batch) & (batch.offsets() < purge.end_offset)
            stays = self._may_have_ids(batch, max(self.ids_from_ns, self.now_wall_ns - window_ns)) if window_ns else None
            if stays is not None and bool((goes & stays).any()):
                until_ns = batch.header.timestamp_ns + window_ns
                self.held_until_ns[purge.number] = max(self.held_until_ns.get(purge.number, 0), until_ns)
                goes &= ~stays
            keep &= ~goes
        return keep


def _counted(subjects: DictionaryColumn) -> tuple[list[bytes], list[int]]:
    """Its entries, and how many records each has."""
    names = [name or b"" for name in subjects.entries.to_list()]
    return names, np.bincount(subjects.index, minlength=len(names)).tolist()
