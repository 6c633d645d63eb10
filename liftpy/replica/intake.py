"""The intake: what a leader appends at once, what it holds back, and what is too much [A11, D20, L7].

Goal: load alone costs nobody the leadership or the place in the ISR, memory stays bounded, and no publish that nobody can be told
"no" for is lost while there is room for it. Constraint: the order of arrival stays [A4].
Algorithm: what is appended and not committed is bounded, in bytes, for each partition and for the node: a leader that is faster than
its followers waits for them. Beyond it, and while the ISR is too short to commit, publishes are held, as they came, and appended in
order when there is room again. What is held is bounded too, for each partition and for the node; beyond that a publish is refused,
or dropped where nobody waits. A partition with nothing uncommitted may always append: its next commit goes on with what it holds,
so that no partition waits for another's.

Worked example: ``unreplicated_bytes`` 16 MiB, 12 MiB uncommitted. A batch of 6 MiB is appended (18 MiB), the next is held. HW passes
4 MiB of it: 14 MiB, the held one is appended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from liftpy.config import ReplicationConfig
from liftpy.replica.events import PublishesReceived

RECORD_OVERHEAD_BYTES = 64
"""What a record costs in memory besides its bytes, about."""
_NODE_PARTS = 2
"""One of so many parts of a node's ingest buffer may be held back; the rest is for what has just come."""
_ROOM_AGAIN = 0.75
"""Of the bound: a partition that was full has room again below it."""
_PATIENCE_NS = 2_000_000_000
_LEAST_RATE_BYTES = 8 * 1024 * 1024


def size_in_memory(event: PublishesReceived) -> int:
    """What publishes cost while they wait, in bytes."""
    return event.size_bytes + RECORD_OVERHEAD_BYTES * event.record_count


@dataclass(slots=True)
class NodeIntake:
    """Sums over all partitions that a node leads, in bytes."""

    unreplicated_bytes: int = 0
    """Appended and not committed."""
    held_bytes: int = 0
    """Held back."""
    released_bytes: int = 0
    """What was held and is not any more, ever."""
    full_count: int = 0
    """Partitions that can hold no more."""


class Intake:
    """Of one partition, as long as one leadership lasts."""

    def __init__(self, node: NodeIntake, config: ReplicationConfig) -> None:
        self._node = node
        self._config = config
        self._uncommitted: deque[tuple[int, int]] = deque()
        """(last offset, inclusive; bytes) of each batch above HW that this leader has appended."""
        self._held: deque[PublishesReceived] = deque()
        self.uncommitted_bytes = 0
        self.held_bytes = 0
        self._full = False

    @property
    def holds(self) -> bool:
        """Whether something is held: what comes later waits behind it."""
        return bool(self._held)

    def may_append(self) -> bool:
        """Whether there is room for one more batch above HW."""
        if not self.uncommitted_bytes:
            return True
        bounds = self._config
        return self.uncommitted_bytes < bounds.unreplicated_bytes and (
            self._node.unreplicated_bytes < bounds.node_unreplicated_bytes
        )

    def appended(self, last_offset: int, size_bytes: int) -> None:
        """A batch was appended."""
        self._uncommitted.append((last_offset, size_bytes))
        self.uncommitted_bytes += size_bytes
        self._node.unreplicated_bytes += size_bytes

    def committed(self, high_watermark: int) -> None:
        """HW has risen to ``high_watermark``, inclusive."""
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            _, size_bytes = self._uncommitted.popleft()
            self.uncommitted_bytes -= size_bytes
            self._node.unreplicated_bytes -= size_bytes

    def hold(self, event: PublishesReceived) -> bool:
        """Keep it for later, behind what is held already; False: there is no room."""
        size_bytes, node = size_in_memory(event), self._node
        room = min(
            self._config.ingest_queue_bytes - self.held_bytes, self._config.ingest_buffer_bytes // _NODE_PARTS - node.held_bytes
        )
        self._fill(size_bytes > room)
        if size_bytes > room:
            return False
        self._held.append(event)
        self.held_bytes += size_bytes
        node.held_bytes += size_bytes
        return True

    def next(self) -> PublishesReceived:
        """Take out what was held first."""
        event = self._held.popleft()
        size_bytes = size_in_memory(event)
        self.held_bytes -= size_bytes
        self._node.held_bytes -= size_bytes
        self._node.released_bytes += size_bytes
        if self.held_bytes < self._config.ingest_queue_bytes * _ROOM_AGAIN:
            self._fill(False)
        return event

    def close(self) -> Iterator[PublishesReceived]:
        """The leadership ends: all that was held, in order; nothing is left behind."""
        self.committed(1 << 63)
        while self._held:
            yield self.next()
        self._fill(False)

    def _fill(self, full: bool) -> None:
        self._node.full_count += full - self._full
        self._full = full


class Gate:
    """Whether a node takes more from what has arrived, while a partition can hold no more.

    It waits as long as room is made, at ``_LEAST_RATE_BYTES`` a second: then publishers are held back by the bus, and nothing is lost.
    Where nothing moves for ``_PATIENCE_NS`` it takes again, and what there is no room for is refused or dropped, and counted: a server
    cuts off who does not read, and the other partitions have waited long enough.
    """

    def __init__(self, node: NodeIntake) -> None:
        self._node = node
        self._since_ns: int | None = None
        self._released_bytes = 0
        self._gave_up = False

    def may_take(self, now_ns: int) -> bool:
        """Whether the next messages may be looked at."""
        if not self._node.full_count:
            self._since_ns, self._gave_up = None, False
            return True
        if self._gave_up:
            return True
        since_ns = self._since_ns
        needed = _LEAST_RATE_BYTES * _PATIENCE_NS // 1_000_000_000
        if since_ns is None or self._node.released_bytes - self._released_bytes >= needed:
            self._since_ns, self._released_bytes = now_ns, self._node.released_bytes
        elif now_ns - since_ns >= _PATIENCE_NS:
            self._gave_up = True
        return self._gave_up
