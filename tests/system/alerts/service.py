"""The service of the alert rounds and of the drill: it cannot apply one kind of record, and one instance may diverge."""

from __future__ import annotations

import os

from liftpy.service import Record, Service

POISON = b"poison"
SKEW = "LIFTPY_TEST_SKEW"
"""Variable with the number that an instance adds to each record."""


class Sum(Service):
    """Adds numbers. A record that it cannot apply blocks it until the record is in the dead-letter stream."""

    on_error = "skip"
    emits = False

    def on_start(self, snapshot: bytes | None) -> None:
        self.total = int(snapshot or b"0")

    def take_snapshot(self) -> bytes:
        return b"%d" % self.total

    def on_record(self, record: Record) -> None:
        if record.value == POISON:
            raise ValueError("poison is no number")
        self.total += int(record.value or b"0") + int(os.environ.get(SKEW, "0"))
