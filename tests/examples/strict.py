"""An example of a service that passes over what it can't apply: adds up whole numbers, raises on anything else.

Which record is passed over stands in the stream itself, so all nodes do the same; the record goes to the dead-letter stream::

    liftpy service tests.examples.strict:Strict --stream numbers --output-stream sums --dead-letter-stream refused \\
        --node n1 --data /var/lib/strict
"""

from __future__ import annotations

from liftpy.core.wire.batch import Record
from liftpy.service import Service


class Strict(Service):
    """The sum of all records."""

    on_error = "skip"

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the sum of the snapshot."""
        self.total = int(snapshot or 0)

    def on_record(self, record: Record) -> None:
        """Says the new sum; raises ValueError for what is no number."""
        self.emit(b"next")
        self.total += int(record.value or b"")
        self.emit(b"%d" % self.total)

    def take_snapshot(self) -> bytes:
        """The sum."""
        return b"%d" % self.total
