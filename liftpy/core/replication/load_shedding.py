"""Decides which publishes to drop when more arrive than the node can ever process. Drops are counted [A11].

nats-server buffers at most 64 MiB for a connection that reads too slowly, and then closes it. From 48 MiB on it slows
fast publishers down. So the node first stops reading when its own buffer is half full, and asks the server how much it
holds. Up to ``limit_bytes`` the socket is left alone. Beyond, the node reads into the other half of its buffer. When
the buffer is full, the oldest messages are dropped. If the server does not answer, the node assumes that it is almost
full.

Example: the server held 53 MiB 0.03 s ago, 1 MiB was read since, and 60 MiB/s arrive. So it holds 53.8 MiB, and 1.8 MiB
must be read now.
"""

from __future__ import annotations

_MIB = 1024 * 1024
_NS_PER_S = 1_000_000_000
LIMIT_BYTES = 52 * _MIB
"""Of a nats-server's default ``max_pending`` of 64 MiB; publishers are held back from three quarters of it on."""
_LIMIT_PARTS = (13, 16)
_GATE_PARTS = (12, 13)
_LEAST_LIMIT_BYTES = 256 * 1024
_MEASURED_NS = _NS_PER_S // 10
"""How fast publishes come is measured over so long at least: when exactly a server looks isn't known."""
_MOST_INFLOW_BYTES = 512 * _MIB
FRESH_NS = _NS_PER_S // 10
"""What the server said is a reason to leave the socket alone for so long, from the question on."""
_BLIND_NS = _NS_PER_S // 4
"""So long after the last question that was answered nothing is known."""
BLIND_RATE_BYTES = 64 * _MIB
_MOST_BLIND_RATE_BYTES = 1024 * _MIB
_LEAST_RATE_BYTES = 16 * _MIB
"""64 MiB are through in 6 s, with the patience; a nats-server's ``write_deadline`` is 10 s."""
_WINDOW_NS = 4 * _NS_PER_S
_PATIENCE_NS = _NS_PER_S


class Overflow:
    """Load shedding for one connection. It survives reconnects, because it learns the limits of the server."""

    def __init__(self) -> None:
        self.limit_bytes = LIMIT_BYTES
        self.blind_rate_bytes = BLIND_RATE_BYTES
        self.backlog_bytes = 0
        """What the server held when it said so last."""
        self._heard_ns = 0  # when it was asked; 0: it has not said anything of this connection
        self._heard_bytes = 0  # read by then
        self._mark: tuple[int, int] | None = None  # (when, read and held) at the begin of what is measured
        self._inflow_bytes = 0  # a second, while publishers are held back
        self._full_ns = 0  # since when; 0: there is room
        self._since_ns = 0  # of the window in which the least rate is measured; 0: the buffer is not half full
        self._since_bytes = 0  # read at its begin
        self._blind_ns = 0  # of the time in which the server said nothing; 0: it speaks
        self._blind_bytes = 0

    def heard(self, backlog_bytes: int, read_bytes: int, asked_ns: int) -> None:
        """Note that the server buffered ``backlog_bytes`` for the connection, when ``read_bytes`` had been read."""
        if asked_ns <= self._heard_ns:
            return
        self.backlog_bytes, self._heard_bytes, self._heard_ns = backlog_bytes, read_bytes, asked_ns
        if backlog_bytes < self.limit_bytes * _GATE_PARTS[0] // _GATE_PARTS[1]:
            self._mark = None
        elif self._mark is None:
            self._mark = asked_ns, read_bytes + backlog_bytes
        elif asked_ns - self._mark[0] >= _MEASURED_NS:
            came_bytes = max(0, read_bytes + backlog_bytes - self._mark[1])
            self._inflow_bytes = min(_MOST_INFLOW_BYTES, came_bytes * _NS_PER_S // (asked_ns - self._mark[0]))
            self._mark = asked_ns, read_bytes + backlog_bytes

    def due_bytes(self, is_full: bool, read_bytes: int, done_bytes: int, now_ns: int) -> int:
        """Return how many bytes to read now so that the server does not close the connection, while the buffer is at least half
        full. ``read_bytes``: total read. ``done_bytes``: total processed or dropped."""
        if not self._since_ns or now_ns - self._since_ns >= _WINDOW_NS:
            self._since_ns, self._since_bytes = now_ns, read_bytes
        self._full_ns = (self._full_ns or now_ns) if is_full else 0
        due_bytes = _LEAST_RATE_BYTES * (now_ns - self._since_ns - _PATIENCE_NS) // _NS_PER_S
        due_bytes -= read_bytes - self._since_bytes
        if not is_full or now_ns - max(self._heard_ns, self._full_ns) <= _BLIND_NS:
            self._blind_ns = 0
            return max(0, due_bytes, self.held_bytes(read_bytes, now_ns) - self.limit_bytes)
        return max(0, due_bytes, self._due_blindly(done_bytes, now_ns))

    def roomy(self) -> None:
        """The buffer is less than half full: everything is read."""
        self._full_ns = self._since_ns = self._blind_ns = 0

    def leaves_alone(self, read_bytes: int, now_ns: int) -> bool:
        """Return whether the server is known to buffer the rest for now. It changes nothing, so any thread may call it."""
        return now_ns - self._heard_ns <= FRESH_NS and self.held_bytes(read_bytes, now_ns) <= self.limit_bytes

    def held_bytes(self, read_bytes: int, now_ns: int) -> int:
        """Return the approximate number of bytes that the server buffers."""
        if not self._heard_ns:
            return 0
        come_bytes = self._inflow_bytes * (now_ns - self._heard_ns) // _NS_PER_S if self._mark is not None else 0
        return self.backlog_bytes + come_bytes - (read_bytes - self._heard_bytes)

    def _due_blindly(self, done_bytes: int, now_ns: int) -> int:
        if not self._blind_ns:
            self._blind_ns, self._blind_bytes = now_ns, done_bytes
        due_bytes = self.blind_rate_bytes * (now_ns - self._blind_ns) // _NS_PER_S - (done_bytes - self._blind_bytes)
        if due_bytes <= 0:  # what was done with in a good second is no credit for a bad one
            self._blind_ns, self._blind_bytes = now_ns, done_bytes
        return due_bytes

    def cut_off(self) -> None:
        """Note that the connection was lost. If the buffer was full, reading was too slow."""
        if self._full_ns:
            self.blind_rate_bytes = min(2 * self.blind_rate_bytes, _MOST_BLIND_RATE_BYTES)
        self._heard_ns = self._inflow_bytes = self.backlog_bytes = 0
        self._mark = None

    def cut_at(self, backlog_bytes: int) -> None:
        """Note that a server closed a connection at ``backlog_bytes``: this is about its limit."""
        learned_bytes = backlog_bytes * _LIMIT_PARTS[0] // _LIMIT_PARTS[1]
        self.limit_bytes = max(_LEAST_LIMIT_BYTES, min(self.limit_bytes, learned_bytes))
