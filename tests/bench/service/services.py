"""The services that are measured."""

from __future__ import annotations

import json
import time

from liftpy.core.wire.batch import Record
from liftpy.service import Service

EVERY = 1000


class Tally(Service):
    """Counts records and their bytes, and emits nothing. It notes when it has seen how many, which is no part of its state."""

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the counts of the snapshot."""
        self.times: list[tuple[int, float]] = []
        self.count, self.size_bytes = map(int, (snapshot or b"0 0").split())

    def take_snapshot(self) -> bytes:
        """The counts."""
        return b"%d %d" % (self.count, self.size_bytes)

    def on_query(self, query: bytes) -> bytes:
        """[records seen, seconds] of the first and of the last time noted."""
        return json.dumps([self.times[0], self.times[-1]]).encode()

    def on_record(self, record: Record) -> None:
        """Count it."""
        self.count += 1
        if not self.count % EVERY:
            self.times.append((self.count, time.perf_counter()))
        self.size_bytes += len(record.value or b"")


class Copy(Tally):
    """Emits every record as it is."""

    def on_record(self, record: Record) -> None:
        """Count it and emit it."""
        super().on_record(record)
        self.emit(record.value or b"", key=record.key)
