"""Backpressure on a node's NATS connection for publishes [A11]. Pure.

``IngestThrottle`` slows the processing down while the queue of a partition is almost full. ``LoadShedding`` decides how much
the node must read from NATS and drop, when more publishes arrive than the node can ever process.
"""

from __future__ import annotations

from liftpy.config import NS_PER_S
from liftpy.core.replication.inflight_limits import NodeInflight

_PATIENCE_NS = NS_PER_S // 2
_STUCK_NS = 2 * NS_PER_S
_CALM_NS = 10 * NS_PER_S
_MIB = 1024 * 1024
LEAST_RATE_BYTES = 16 * _MIB
_MOST_RATE_BYTES = 1024 * _MIB
LIMIT_BYTES = 52 * _MIB
"""Bytes pending in nats-server from which the node must read, three quarters of its default ``max_pending`` of 64 MiB."""
_LIMIT_PARTS = (13, 16)
_MEASURED_PARTS = (12, 13)
_LEAST_LIMIT_BYTES = 256 * 1024
_MEASURED_NS = NS_PER_S // 10
"""Minimum time over which the rate of publishes is measured, in nanoseconds."""
_MOST_INFLOW_BYTES = 512 * _MIB
FRESH_NS = NS_PER_S // 10
"""Age of a server answer up to which the node may rely on it and stop reading, in nanoseconds."""
_BLIND_NS = NS_PER_S // 4
"""Age of the last server answer from which the pending bytes count as unknown, in nanoseconds."""
BLIND_RATE_BYTES = 64 * _MIB
_MOST_BLIND_RATE_BYTES = 1024 * _MIB
_LEAST_READ_RATE_BYTES = 16 * _MIB
"""Minimum read rate, in bytes per second. 64 MiB then pass before nats-server's ``write_deadline`` of 10 s."""
_WINDOW_NS = 4 * NS_PER_S
_SHED_PATIENCE_NS = NS_PER_S


class IngestThrottle:
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
        if now_ns - self._since_ns >= NS_PER_S:
            self._since_ns, self._taken_bytes = now_ns, total_bytes
        due_bytes = self.least_rate_bytes * (now_ns - self._since_ns) // NS_PER_S
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
        if backlog_bytes < self.limit_bytes * _MEASURED_PARTS[0] // _MEASURED_PARTS[1]:
            self._mark = None
        elif self._mark is None:
            self._mark = ping_ns, read_bytes + backlog_bytes
        elif ping_ns - self._mark[0] >= _MEASURED_NS:
            inflow_bytes = max(0, read_bytes + backlog_bytes - self._mark[1])
            self._inflow_bytes = min(_MOST_INFLOW_BYTES, inflow_bytes * NS_PER_S // (ping_ns - self._mark[0]))
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
        due_bytes = _LEAST_READ_RATE_BYTES * (now_ns - self._since_ns - _SHED_PATIENCE_NS) // NS_PER_S
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
        come_bytes = self._inflow_bytes * (now_ns - self._pong_ns) // NS_PER_S if self._mark is not None else 0
        return self.backlog_bytes + come_bytes - (read_bytes - self._pong_read_bytes)

    def _due_without_counts(self, done_bytes: int, now_ns: int) -> int:
        if not self._blind_ns:
            self._blind_ns, self._blind_bytes = now_ns, done_bytes
        due_bytes = self.blind_rate_bytes * (now_ns - self._blind_ns) // NS_PER_S - (done_bytes - self._blind_bytes)
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
