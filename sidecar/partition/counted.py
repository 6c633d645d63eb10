"""What partitions count, summed over a node, so that no sum ever falls: who is not here any more has left its counts behind.

By stream where somebody wants that: streams that a pattern names have their own label, up to ``MOST_LABELS``, all others are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from operator import add
from typing import Any

OTHERS = "(other)"
"""No stream can be called so."""
MOST_LABELS = 50
BY_STREAM = ("ingest_records", "ingest_bytes", "read_records", "read_bytes")
SUMS = (
    *BY_STREAM, "duplicates", "message_ids_forgotten", "producers_forgotten", "replayed_bytes", "derived_states_written",
    "derived_states_failed", "poison_envelopes", "refused_replies", "truncated_records",
)  # fmt: skip


def _counts(worker: Any) -> tuple[int, ...]:
    """In the order of SUMS."""
    ingest, derived, writer, reader = worker.ingest.counters, worker.derived, worker.states.writer, worker.ingest.reader
    return (
        ingest.records, ingest.size_bytes, worker.reads.record_count, worker.reads.size_bytes, ingest.duplicates,
        derived.ids.forgotten, derived.producers.forgotten, derived.replayed_bytes, writer.written, writer.failed,
        reader.poison_envelopes, reader.refused_replies, worker.log.truncated_records,
    )  # fmt: skip


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
        sums = self.by_stream.get(label)
        if sums is None:
            sums = self.by_stream[label] = [0] * len(SUMS)
        sums[:] = map(add, sums, _counts(worker))
        ingest = worker.ingest.counters
        if ingest.refused:
            self.refused.update(ingest.refused)
        if ingest.dropped:
            self.dropped.update(ingest.dropped)
        if ingest.throttled:
            self.throttled.update(ingest.throttled)
        if worker.standby.has_counted:
            standby = worker.standby.report()
            del standby["held_bytes"]
            self.standby.update(standby)

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

    def begins_to_end(self, worker: Any) -> None:
        """It is not among the node's partitions any more."""
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
