"""What partitions count, summed over a node, so that no sum ever falls: who is not here any more has left its counts behind.

By stream where somebody wants that: streams that a pattern names have their own label, up to ``MOST_LABELS``, all others are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from operator import add, attrgetter
from typing import Any

OTHERS = "(other)"
"""No stream can be called so."""
MOST_LABELS = 50
BY_STREAM = ("ingest_records", "ingest_bytes", "read_records", "read_bytes")
_COUNTED = {
    "ingest_records": ("ingest.counters", "records"),
    "ingest_bytes": ("ingest.counters", "size_bytes"),
    "read_records": ("reads", "record_count"),
    "read_bytes": ("reads", "size_bytes"),
    "duplicates": ("ingest.counters", "duplicates"),
    "message_ids_forgotten": ("derived.ids", "forgotten"),
    "producers_forgotten": ("derived.producers", "forgotten"),
    "replayed_bytes": ("derived", "replayed_bytes"),
    "derived_states_written": ("states.writer", "written"),
    "derived_states_failed": ("states.writer", "failed"),
    "poison_envelopes": ("ingest.reader", "poison_envelopes"),
    "refused_replies": ("ingest.reader", "refused_replies"),
    "truncated_records": ("log", "truncated_records"),
}
"""What a partition counts: name -> which part of it, and there."""
SUMS = tuple(_COUNTED)
_counts = attrgetter(*(f"{leaf}.{name}" for leaf, name in _COUNTED.values()))
"""In the order of SUMS."""


class StreamLabels:
    """``patterns``: names of streams, or such as ``shop-*``. A stream keeps the label that it was given first."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self._given: dict[str, str] = {}

    def of(self, stream: str) -> str:
        """Its label; '': nobody wants any."""
        if not self.patterns:
            return ""
        label = self._given.get(stream)
        if label is None:
            wanted = len(self._given) < MOST_LABELS and any(fnmatchcase(stream, pattern) for pattern in self.patterns)
            if not wanted:
                return OTHERS
            label = self._given[stream] = stream
        return label


class Counts:
    """Sums over partitions."""

    def __init__(self) -> None:
        self.by_stream: dict[str, list[int]] = {}
        """Label -> in the order of SUMS."""
        self.refused: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.throttled: Counter[str] = Counter()
        self.standby: Counter[str] = Counter()

    def add(self, label: str, worker: Any) -> None:
        """Add what a partition has counted until now."""
        self.add_sums(label, _counts(worker))
        ingest = worker.ingest.counters
        self.refused.update(ingest.refused)
        self.dropped.update(ingest.dropped)
        self.throttled.update(ingest.throttled)
        if worker.standby.has_counted:
            told = worker.standby.report()
            del told["held_bytes"]
            self.standby.update(told)

    def add_sums(self, label: str, counts: Iterable[int]) -> None:
        """Add these, in the order of SUMS."""
        sums = self.by_stream.get(label)
        if sums is None:
            sums = self.by_stream[label] = [0] * len(SUMS)
        sums[:] = map(add, sums, counts)

    def copy(self) -> Counts:
        """Another one with the same sums."""
        made = Counts()
        made.by_stream = {label: list(sums) for label, sums in self.by_stream.items()}
        made.refused, made.dropped, made.standby = self.refused.copy(), self.dropped.copy(), self.standby.copy()
        made.throttled = self.throttled.copy()
        return made

    def total(self, name: str) -> int:
        """Of all streams."""
        index = SUMS.index(name)
        return sum(sums[index] for sums in self.by_stream.values())
