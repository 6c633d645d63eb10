"""Answers that were written to a connection and may have been lost with it: sent again when the connection is back. Pure.

A NATS server that dies takes along what it had not read. Who leads on has answered then, as far as it and its successors know, and
nobody else would answer. So the newest answers are kept, bounded in bytes and in age (a lease: who had none for longer has answered
nobody), and sent once more, with the same sequences: a client drops the answer to a request that has ended.
"""

from __future__ import annotations

from collections import deque

UNSURE_NS = 1_500_000_000
UNSURE_BYTES = 2 * 1024 * 1024


class Unsure:
    """Of one connection. ``note`` what is written, as it is written; ``again`` when it is back. Times are monotonic ns."""

    def __init__(self, bound_bytes: int = UNSURE_BYTES, age_ns: int = UNSURE_NS) -> None:
        self._bound_bytes = bound_bytes
        self._age_ns = age_ns
        self._written: deque[tuple[int, bytes]] = deque()
        self.size_bytes = 0

    def note(self, lines: bytes, now_ns: int) -> None:
        """Whole lines of the protocol were written."""
        self._written.append((now_ns, lines))
        self.size_bytes += len(lines)
        self._forget(now_ns)

    def again(self, lost_ns: int) -> bytes:
        """What was written shortly before the connection was lost, at ``lost_ns``, and is forgotten then."""
        self._forget(lost_ns)
        joined = b"".join(lines for _, lines in self._written)
        self._written.clear()
        self.size_bytes = 0
        return joined

    def _forget(self, now_ns: int) -> None:
        written = self._written
        while written and (self.size_bytes > self._bound_bytes or written[0][0] < now_ns - self._age_ns):
            self.size_bytes -= len(written.popleft()[1])
