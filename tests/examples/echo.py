"""A service that answers every record many times: more outputs than can leave at once, for the tests of fail-over."""

from __future__ import annotations

from liftpy.core.wire.batch import Record
from liftpy.service import Service

TIMES = 20


class Echo(Service):
    """Its state is how many records it has seen."""

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the count of the snapshot."""
        self.count = int(snapshot or 0)

    def take_snapshot(self) -> bytes:
        """The count."""
        return b"%d" % self.count

    def on_query(self, query: bytes) -> bytes:
        """How many records it has seen."""
        return self.take_snapshot()

    def on_record(self, record: Record) -> None:
        """Answer it."""
        self.count += 1
        for number in range(TIMES):
            self.emit(b"%d of record %d" % (number, record.offset), key=record.key)
