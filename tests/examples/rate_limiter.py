"""An example of a replicated service: a rate limiter. Every request is answered with yes or no, the same over any fail-over.

A request is a record whose key is the client. Each client has a bucket of ``BURST`` tokens, refilled with ``PER_S`` a second of
log time; a request takes one. A bucket that would be full again is forgotten by a timer, so the state holds only who has asked lately.
"""

from __future__ import annotations

import json

from liftpy.core.wire.batch import Record
from liftpy.service import Service

BURST = 5
PER_S = 2
_NS_PER_TOKEN = 1_000_000_000 // PER_S
_FULL_NS = BURST * _NS_PER_TOKEN


class RateLimiter(Service):
    """Client -> log time at which its bucket will be full again (integers only: no rounding that could differ)."""

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the buckets of the snapshot."""
        self.full_at_ns: dict[str, int] = json.loads(snapshot) if snapshot else {}

    def take_snapshot(self) -> bytes:
        """Sorted by client."""
        return json.dumps(self.full_at_ns, sort_keys=True).encode()

    def on_record(self, record: Record) -> None:
        """Answer one request."""
        client = (record.key or b"").decode(errors="replace")
        full_at_ns = max(self.now_ns, self.full_at_ns.get(client, 0)) + _NS_PER_TOKEN
        allowed = full_at_ns - self.now_ns <= _FULL_NS
        if allowed:
            self.full_at_ns[client] = full_at_ns
            self.set_timer(client or "nobody", full_at_ns)
        self.emit(b"yes" if allowed else b"no", key=record.key, headers=[("Request", record.value or b"")])

    def on_timer(self, name: str) -> None:
        """The bucket is full: as if the client had never asked."""
        client = "" if name == "nobody" else name
        if self.full_at_ns.get(client, 0) <= self.now_ns:
            self.full_at_ns.pop(client, None)
