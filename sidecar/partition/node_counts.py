"""What a node's partitions count and show: of those that are here by change, of those that are being stopped by a look, of those that
are gone what they left behind."""

from __future__ import annotations

from typing import Any

from sidecar.partition.by_change import ByChange
from sidecar.partition.counted import Counts, StreamLabels


class NodeCounts:
    """Of one node, or one of its processes."""

    def __init__(self, labels: StreamLabels | None = None, touched: set[Any] | None = None) -> None:
        self.labels = labels or StreamLabels()
        self.touched: set[Any] = set() if touched is None else touched
        """Where partitions put themselves when something has changed."""
        self.here = ByChange(self.labels, self.touched)
        self.ended = Counts()
        """What the partitions counted that are not here any more."""
        self.ending: list[Any] = []
        """Partitions that are being stopped, which may still count."""

    def begins(self, worker: Any) -> None:
        """It is among the node's partitions."""
        self.here.begins(worker)

    def begins_to_end(self, worker: Any) -> None:
        """It is not any more."""
        self.here.ends(worker)
        self.ending.append(worker)

    def has_ended(self, worker: Any) -> None:
        """It counts no more."""
        self.ending.remove(worker)
        self.touched.discard(worker)
        self.ended.add(self.labels.of(worker.key.stream), worker)

    def all(self) -> Counts:
        """What was ever counted; of those that are here as of the last look."""
        counts = self.ended.copy()
        self.here.add_to(counts)
        for worker in self.ending:
            counts.add(self.labels.of(worker.key.stream), worker)
        return counts


class Uncounted(NodeCounts):
    """Where nobody asks for sums: nothing is kept."""

    def begins(self, worker: Any) -> None:
        """Nothing is done."""

    def begins_to_end(self, worker: Any) -> None:
        """Nothing is done."""

    def has_ended(self, worker: Any) -> None:
        """Nothing is done."""
