"""A service over any bytes: a chain of digests, so that one record that was missed, changed or applied twice shows for ever."""

from __future__ import annotations

import hashlib

from liftpy.core.wire.batch import Record
from liftpy.service import Service

EMIT_EVERY = 100
_DIGEST_SIZE_BYTES = 16


class Chain(Service):
    """Its state: how many records, and the digest over all of them. Every ``EMIT_EVERY``th brings the digest out."""

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the state of the snapshot."""
        self.count = int.from_bytes(snapshot[:8], "big") if snapshot else 0
        self.digest = snapshot[8:] if snapshot else b""

    def take_snapshot(self) -> bytes:
        """8 bytes count, then the digest."""
        return self.count.to_bytes(8, "big") + self.digest

    def on_record(self, record: Record) -> None:
        """One link more."""
        head = b"%d %d " % (record.offset, record.timestamp_ns)
        self.digest = hashlib.blake2b(self.digest + head + (record.value or b""), digest_size=_DIGEST_SIZE_BYTES).digest()
        self.count += 1
        if self.count % EMIT_EVERY == 0:
            self.emit(self.digest.hex().encode())
