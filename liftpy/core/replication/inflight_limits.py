"""Limits of a leader: which publishes it appends, which it delays, and which it rejects [A11, D20, L7].

Load alone must not cost a leadership or a place in the ISR, memory is bounded, and the order of arrival does not
change. The limits are per partition and per node:

- Appended but uncommitted bytes. Beyond the limit, or with too few replicas in sync, publishes wait in order and are
  appended later.
- Bytes of waiting publishes. Beyond the limit, a publish is rejected, or dropped if it has no reply subject.

A partition without uncommitted records may always append, so no partition waits for another one. ``Gate`` slows the
reading down while a queue is almost full. ``LoadShedding`` decides which publishes to drop when more arrive than the
node can ever process.

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
_NS_PER_S = 1_000_000_000
_PATIENCE_NS = _NS_PER_S // 2
_STUCK_NS = 2 * _NS_PER_S
_CALM_NS = 10 * _NS_PER_S
LEAST_RATE_BYTES = 16 * 1024 * 1024
_MOST_RATE_BYTES = 1024 * 1024 * 1024
_MIB = 1024 * 1024
LIMIT_BYTES = 52 * _MIB
"""Bytes pending in nats-server from which the node must read, three quarters of its default ``max_pending`` of 64 MiB."""
_LIMIT_PARTS = (13, 16)
_GATE_PARTS = (12, 13)
_LEAST_LIMIT_BYTES = 256 * 1024
_MEASURED_NS = _NS_PER_S // 10
"""Minimum time over which the rate of publishes is measured, in nanoseconds."""
_MOST_INFLOW_BYTES = 512 * _MIB
FRESH_NS = _NS_PER_S // 10
"""Age of a server answer up to which the node may rely on it and stop reading, in nanoseconds."""
_BLIND_NS = _NS_PER_S // 4
"""Age of the last server answer from which the pending bytes count as unknown, in nanoseconds."""
BLIND_RATE_BYTES = 64 * _MIB
_MOST_BLIND_RATE_BYTES = 1024 * _MIB
_LEAST_RATE_BYTES = 16 * _MIB
"""Minimum read rate, in bytes per second. 64 MiB then pass before nats-server's ``write_deadline`` of 10 s."""
_WINDOW_NS = 4 * _NS_PER_S
_SHED_PATIENCE_NS = _NS_PER_S


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


class Gate:
    """Decides whether a node processes more publishes while the queue of a partition is almost full.

    If the node stops reading, nats-server slows fast publishers down. But the server buffers at most 64 MiB and then
    closes the connection, which loses all buffered messages. So after ``_PATIENCE_NS`` at least ``least_rate_bytes``
    per second are processed, and publishes without room are rejected or dropped. If the server closed the connection,
    the rate doubles. If no room is freed for ``_STUCK_NS``, the node processes everything, so that the other partitions
    can continue.
    """

    def __init__(self, node: NodeInflight) -> None:
        self._node = node
        self.least_rate_bytes = LEAST_RATE_BYTES
        self._since_ns = 0  # of the window that the rate is measured in; 0: there is room
        self._taken_bytes = 0  # at its begin
        self._released_bytes = 0
        self._released_ns = 0  # when something was released last
        self._full_ns = 0  # when it was full last
        self._stuck = False

    def may_take(self, total_bytes: int, blocked: bool, now_ns: int) -> bool:
        """Return whether the node may process the next messages from its NATS connection.

        ``total_bytes``: bytes of all messages processed so far. ``blocked``: True if the node does not read from NATS, because
        its buffer is full.
        """
        node = self._node
        if not node.full_count:
            self._stuck = False
            if self._full_ns and now_ns - self._full_ns >= _CALM_NS:
                self._full_ns, self._since_ns, self.least_rate_bytes = 0, 0, LEAST_RATE_BYTES
            return True
        self._full_ns = now_ns
        if not self._since_ns:
            self._released_ns = now_ns
        if not self._since_ns or not blocked:
            self._since_ns, self._taken_bytes = now_ns + _PATIENCE_NS, total_bytes
        if node.released_bytes != self._released_bytes:
            self._released_bytes, self._released_ns, self._stuck = node.released_bytes, now_ns, False
        self._stuck = self._stuck or now_ns - self._released_ns >= _STUCK_NS
        if now_ns - self._since_ns >= _NS_PER_S:
            self._since_ns, self._taken_bytes = now_ns, total_bytes
        due_bytes = self.least_rate_bytes * (now_ns - self._since_ns) // _NS_PER_S
        return self._stuck or total_bytes - self._taken_bytes < due_bytes

    def connection_lost(self) -> None:
        """Note that the NATS server closed the connection while the node did not read. The node then processes messages faster."""
        if self._since_ns:
            self.least_rate_bytes = min(2 * self.least_rate_bytes, _MOST_RATE_BYTES)


class LoadShedding:
    """Decides how many bytes a node must read from a NATS connection, and drop, while its own buffer is full [A11].

    nats-server buffers at most 64 MiB for a connection that reads too slowly, and then closes it. From 48 MiB on it slows fast
    publishers down. So the node first stops reading when its own buffer is half full, and asks the server how much it holds. Up
    to ``limit_bytes`` the socket is left alone. Beyond, the node reads into the other half of its buffer. When the buffer is
    full, the oldest messages are dropped and counted. If the server does not answer, the node assumes that the server's buffer
    is almost full. The class learns the size of that buffer.

    Example: the server held 53 MiB 0.03 s ago, 1 MiB was read since, and 60 MiB/s arrive. So it holds 53.8 MiB, and 1.8 MiB
    must be read now.
    """

    def __init__(self) -> None:
        self.limit_bytes = LIMIT_BYTES
        self.blind_rate_bytes = BLIND_RATE_BYTES
        self.backlog_bytes = 0
        """Bytes pending in the server, by its last answer."""
        self._pong_ns = 0  # when it was asked; 0: it has not said anything of this connection
        self._pong_read_bytes = 0  # read by then
        self._mark: tuple[int, int] | None = None  # (when, read and held) at the begin of what is measured
        self._inflow_bytes = 0  # a second, while publishers are held back
        self._full_ns = 0  # since when; 0: there is room
        self._since_ns = 0  # of the window in which the least rate is measured; 0: the buffer is not half full
        self._since_bytes = 0  # read at its begin
        self._blind_ns = 0  # of the time in which the server said nothing; 0: it speaks
        self._blind_bytes = 0

    def record_pong(self, backlog_bytes: int, read_bytes: int, ping_ns: int) -> None:
        """Record the server's answer to a PING.

        ``backlog_bytes``: bytes that the server had not sent yet. ``read_bytes``: total that the node had read at that time.
        ``ping_ns``: monotonic time of the PING.
        """
        if ping_ns <= self._pong_ns:
            return
        self.backlog_bytes, self._pong_read_bytes, self._pong_ns = backlog_bytes, read_bytes, ping_ns
        if backlog_bytes < self.limit_bytes * _GATE_PARTS[0] // _GATE_PARTS[1]:
            self._mark = None
        elif self._mark is None:
            self._mark = ping_ns, read_bytes + backlog_bytes
        elif ping_ns - self._mark[0] >= _MEASURED_NS:
            inflow_bytes = max(0, read_bytes + backlog_bytes - self._mark[1])
            self._inflow_bytes = min(_MOST_INFLOW_BYTES, inflow_bytes * _NS_PER_S // (ping_ns - self._mark[0]))
            self._mark = ping_ns, read_bytes + backlog_bytes

    def due_bytes(self, is_full: bool, read_bytes: int, done_bytes: int, now_ns: int) -> int:
        """Return how many bytes the node must read now, so that the server does not close the connection.

        Call it while the node's buffer is at least half full.

        Args:
            is_full: True if the node's buffer is full.
            read_bytes: Total of the bytes read from the connection.
            done_bytes: Total of the bytes processed or dropped.
            now_ns: Monotonic time, in nanoseconds.
        """
        if not self._since_ns or now_ns - self._since_ns >= _WINDOW_NS:
            self._since_ns, self._since_bytes = now_ns, read_bytes
        self._full_ns = (self._full_ns or now_ns) if is_full else 0
        due_bytes = _LEAST_RATE_BYTES * (now_ns - self._since_ns - _SHED_PATIENCE_NS) // _NS_PER_S
        due_bytes -= read_bytes - self._since_bytes
        if not is_full or now_ns - max(self._pong_ns, self._full_ns) <= _BLIND_NS:
            self._blind_ns = 0
            return max(0, due_bytes, self.held_bytes(read_bytes, now_ns) - self.limit_bytes)
        return max(0, due_bytes, self._due_without_counts(done_bytes, now_ns))

    def buffer_has_room(self) -> None:
        """Note that the node's buffer is less than half full, so that the node reads everything from the connection."""
        self._full_ns = self._since_ns = self._blind_ns = 0

    def can_stop_reading(self, read_bytes: int, now_ns: int) -> bool:
        """Return whether the node may stop reading for now, because the server has enough room for the bytes that arrive.

        ``read_bytes``: total of the bytes read from the connection. Any thread may call the method.
        """
        return now_ns - self._pong_ns <= FRESH_NS and self.held_bytes(read_bytes, now_ns) <= self.limit_bytes

    def held_bytes(self, read_bytes: int, now_ns: int) -> int:
        """Return the estimated number of bytes that the server has buffered for this connection.

        ``read_bytes``: total of the bytes read from the connection.
        """
        if not self._pong_ns:
            return 0
        come_bytes = self._inflow_bytes * (now_ns - self._pong_ns) // _NS_PER_S if self._mark is not None else 0
        return self.backlog_bytes + come_bytes - (read_bytes - self._pong_read_bytes)

    def _due_without_counts(self, done_bytes: int, now_ns: int) -> int:
        if not self._blind_ns:
            self._blind_ns, self._blind_bytes = now_ns, done_bytes
        due_bytes = self.blind_rate_bytes * (now_ns - self._blind_ns) // _NS_PER_S - (done_bytes - self._blind_bytes)
        if due_bytes <= 0:  # what was done with in a good second is no credit for a bad one
            self._blind_ns, self._blind_bytes = now_ns, done_bytes
        return due_bytes

    def connection_lost(self) -> None:
        """Note that the connection was lost. If the node's buffer was full, the node reads faster next time."""
        if self._full_ns:
            self.blind_rate_bytes = min(2 * self.blind_rate_bytes, _MOST_BLIND_RATE_BYTES)
        self._pong_ns = self._inflow_bytes = self.backlog_bytes = 0
        self._mark = None

    def server_closed_at(self, backlog_bytes: int) -> None:
        """Note that a server closed a connection for which it had buffered ``backlog_bytes``. Its limit is about that size."""
        learned_bytes = backlog_bytes * _LIMIT_PARTS[0] // _LIMIT_PARTS[1]
        self.limit_bytes = max(_LEAST_LIMIT_BYTES, min(self.limit_bytes, learned_bytes))
