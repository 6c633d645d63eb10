"""An example of routes: each reading of a sensor is confirmed; of one that is too high a further stream hears, by sensor.

Run it beside node n1::

    liftpy service tests.examples.alarms:Alarms --stream readings --output-stream confirmed --route high=warnings \\
        --node n1 --data /var/lib/alarms
"""

from __future__ import annotations

from liftpy.core.wire.batch import Record
from liftpy.service import Service

LIMIT = 100


class Alarms(Service):
    """Its state is how many readings were too high."""

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the count of the snapshot."""
        self.high = int(snapshot or 0)

    def take_snapshot(self) -> bytes:
        """The count."""
        return b"%d" % self.high

    def on_record(self, record: Record) -> None:
        """A reading: a number; its key is the sensor."""
        reading = int(record.value or b"0")
        if reading > LIMIT:
            self.high += 1
            self.emit(b"%d: %d is too high" % (self.high, reading), key=record.key, to="high")
        self.emit(b"%d" % reading, key=record.key)
