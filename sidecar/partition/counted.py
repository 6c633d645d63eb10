"""What partitions count, summed over a node, so that no sum ever falls: who is not here any more has left its counts behind.

By stream where somebody wants that: streams that a pattern names have their own label, up to ``MOST_LABELS``, all others are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
LEAVES = (*dict.fromkeys(leaf for leaf, _ in _COUNTED.values()), "standby")
"""Parts of a partition that count; they are the same ones as long as it is here."""
_COLUMNS = tuple((leaf, attrgetter(name)) for leaf, name in _COUNTED.values())
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
        self._add(label, _counts(worker), [worker.ingest.counters], [worker.standby])

    def add_part(self, label: str, leaves: Mapping[str, Sequence[Any]]) -> None:
        """Add what several have: each of LEAVES -> those of all of them."""
        counts = [sum(map(count, leaves[leaf])) for leaf, count in _COLUMNS]
        self._add(label, counts, leaves["ingest.counters"], leaves["standby"])

    def _add(self, label: str, counts: Iterable[int], ingests: Iterable[Any], standbys: Iterable[Any]) -> None:
        sums = self.by_stream.get(label)
        if sums is None:
            sums = self.by_stream[label] = [0] * len(SUMS)
        sums[:] = map(add, sums, counts)
        for ingest in ingests:
            if ingest.refused:
                self.refused.update(ingest.refused)
            if ingest.dropped:
                self.dropped.update(ingest.dropped)
            if ingest.throttled:
                self.throttled.update(ingest.throttled)
        for standby in standbys:
            if standby.has_counted:
                told = standby.report()
                del told["held_bytes"]
                self.standby.update(told)

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


class NodeCounts:
    """Of one node: ``ended`` has what the partitions counted that are not here any more."""

    def __init__(self, labels: StreamLabels | None = None) -> None:
        self.labels = labels or StreamLabels()
        self.ended = Counts()
        self.ending: list[Any] = []
        """Partitions that are being stopped, which may still count."""
        self.ends_here: Callable[[], None] = lambda: None
        """Who keeps something of partitions lets it go."""

    def begins_to_end(self, worker: Any) -> None:
        """It is not among the node's partitions any more."""
        self.ends_here()
        self.ending.append(worker)

    def has_ended(self, worker: Any) -> None:
        """It counts no more."""
        self.ending.remove(worker)
        self.ended.add(self.labels.of(worker.key.stream), worker)


class Uncounted(NodeCounts):
    """Where nobody asks for sums: what ends leaves nothing behind."""

    def begins_to_end(self, worker: Any) -> None:
        """Nothing is done."""

    def has_ended(self, worker: Any) -> None:
        """Nothing is done."""
