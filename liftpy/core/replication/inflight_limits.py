"""Limits of a leader: which publishes it appends, which it delays, and which it rejects [A11, D20, L7].

Load alone must not cost a leadership or a place in the ISR, memory is bounded, and the order of arrival does not
change. The limits are per partition and per node:

- Appended but uncommitted bytes. Beyond the limit, or with too few replicas in sync, publishes wait in order and are
  appended later.
- Bytes of waiting publishes. Beyond the limit, a publish is rejected, or dropped if it has no reply subject.

A partition without uncommitted records may always append, so no partition waits for another one. While a queue is
almost full, the node reads fewer publishes from NATS (``liftpy/core/publish/backpressure.py``).

Example: ``unreplicated_bytes`` is 16 MiB and 12 MiB are uncommitted. A batch of 6 MiB is appended (18 MiB). The next
batch waits until 4 MiB are committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from liftpy.config import ReplicationConfig
from liftpy.core.replication.events import PublishesReceived

RECORD_OVERHEAD_BYTES = 32
"""Approximate memory of a record besides its bytes in the batch, in bytes."""
_NODE_PARTS = 2
"""Divisor of a node's ingest buffer that gives the limit for delayed publishes."""
_FULL = 0.75
"""Share of the limit from which the node reads no more publishes, so that delayed publishes still fit."""


def size_in_memory(event: PublishesReceived) -> int:
    """Return the memory that the messages of ``event`` use while they wait to be appended, in bytes."""
    return event.size_bytes + RECORD_OVERHEAD_BYTES * event.record_count


@dataclass(slots=True)
class NodeInflight:
    """Totals of uncommitted and delayed publishes, over all partitions that a node leads."""

    unreplicated_bytes: int = 0
    """Size of appended and uncommitted publishes, in bytes."""
    held_bytes: int = 0
    """Size of delayed publishes, in bytes."""
    released_bytes: int = 0
    """Total size of publishes that were delayed and have left the queue, in bytes."""
    full_count: int = 0
    """Number of partitions whose queue of delayed publishes is almost full."""


class InflightLimits:
    """Decides which publishes of one partition are appended, delayed or rejected, during one leadership."""

    __slots__ = ("_config", "_full", "_held", "_node", "_uncommitted", "held_bytes", "uncommitted_bytes")

    def __init__(self, node: NodeInflight, config: ReplicationConfig) -> None:
        self._node = node
        self._config = config
        self._uncommitted: list[tuple[int, int]] = []
        """(last offset, inclusive; bytes) of each uncommitted batch of this leader."""
        self._held: list[tuple[PublishesReceived, int]] = []
        """Delayed publishes, each with the monotonic time of its arrival."""
        self.uncommitted_bytes = 0
        self.held_bytes = 0
        self._full = False

    @property
    def holds(self) -> bool:
        """True if there are delayed publishes. Publishes that arrive later must wait behind them."""
        return bool(self._held)

    def may_append(self) -> bool:
        """Return whether one more batch may be appended. The limits are those of uncommitted bytes of the partition and of the node."""
        if not self.uncommitted_bytes:
            return True
        bounds = self._config
        return self.uncommitted_bytes < bounds.unreplicated_bytes and (
            self._node.unreplicated_bytes < bounds.node_unreplicated_bytes
        )

    def appended(self, last_offset: int, size_bytes: int) -> None:
        """Count an appended batch as uncommitted. ``last_offset``: inclusive."""
        self._uncommitted.append((last_offset, size_bytes))
        self.uncommitted_bytes += size_bytes
        self._node.unreplicated_bytes += size_bytes

    def committed(self, high_watermark: int) -> None:
        """Stop counting the batches up to the new HW (inclusive), because they are committed."""
        committed_count = 0
        for last_offset, size_bytes in self._uncommitted:
            if last_offset > high_watermark:
                break
            committed_count += 1
            self.uncommitted_bytes -= size_bytes
            self._node.unreplicated_bytes -= size_bytes
        del self._uncommitted[:committed_count]

    def hold(self, event: PublishesReceived, now_ns: int) -> bool:
        """Add the publishes to the end of the queue of delayed publishes. Return False if the queue has no room for them."""
        size_bytes, node = size_in_memory(event), self._node
        if self.held_bytes + size_bytes > self._config.ingest_queue_bytes or node.held_bytes + size_bytes > self._node_bound:
            return False
        self._held.append((event, now_ns))
        self.held_bytes += size_bytes
        node.held_bytes += size_bytes
        self._see_whether_full()
        return True

    def next(self) -> PublishesReceived:
        """Remove and return the oldest delayed publishes."""
        event, _ = self._held.pop(0)
        size_bytes = size_in_memory(event)
        self.held_bytes -= size_bytes
        self._node.held_bytes -= size_bytes
        self._node.released_bytes += size_bytes
        self._see_whether_full()
        return event

    def withdraw_answerable(self) -> list[PublishesReceived]:
        """Remove and return the delayed publishes whose publishers wait for an answer, in order."""
        entries = list(self._held)
        events = [self.next() for _ in entries]
        for event, since_ns in entries:
            if event.is_plain:
                self.hold(event, since_ns)
        return [event for event in events if not event.is_plain]

    def withdraw_older(self, since_ns: int) -> list[PublishesReceived]:
        """Remove and return the publishes that arrived at ``since_ns`` or earlier and are still delayed, in order."""
        old = []
        while self._held and self._held[0][1] <= since_ns:
            old.append(self.next())
        return old

    def close(self) -> Iterator[PublishesReceived]:
        """End the leadership. Remove and return all delayed publishes, in order."""
        self.committed(1 << 63)
        while self._held:
            yield self.next()

    @property
    def _node_bound(self) -> int:
        return self._config.ingest_buffer_bytes // _NODE_PARTS

    def _see_whether_full(self) -> None:
        full = self.held_bytes >= self._config.ingest_queue_bytes * _FULL
        full = full or (self.holds and self._node.held_bytes >= self._node_bound * _FULL)
        self._node.full_count += full - self._full
        self._full = full
