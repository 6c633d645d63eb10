"""The service of the alert rounds: it cannot apply one kind of record."""

from __future__ import annotations

from liftpy.service import Record, Service

POISON = b"poison"


class Sum(Service):
    """Adds numbers."""

    def on_start(self, snapshot: bytes | None) -> None:
        self.total = int(snapshot or b"0")

    def take_snapshot(self) -> bytes:
        return b"%d" % self.total

    def on_record(self, record: Record) -> None:
        if record.value == POISON:
            raise ValueError("poison is no number")
        self.total += int(record.value or b"0")
        self.emit(b"%d" % self.total)
