"""A service in two versions: the first adds amounts up, the second counts them as well, from the record on that says so."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from liftpy.service import Record, Service


class Sums(Service):
    """State: the sum, and in version 2 how many."""

    version: ClassVar[int] = 1

    def on_start(self, snapshot: bytes | None) -> None:
        self.state: dict[str, int] = json.loads(snapshot) if snapshot else {"sum": 0}

    def on_record(self, record: Record) -> None:
        self.state["sum"] += len(record.value or b"")
        self.emit(json.dumps(self.state).encode())

    def take_snapshot(self) -> bytes:
        return json.dumps(self.state).encode()


class QuietSums(Sums):
    """Emits no outputs."""

    def emit(self, value: bytes | None, **more: Any) -> None: ...


class CountedSums(Sums):
    """Version 2."""

    version = 2

    def on_version(self, version: int) -> None:
        self.state["count"] = 0

    def on_record(self, record: Record) -> None:
        if self.active_version == 2:
            self.state["count"] += 1
        super().on_record(record)


class WrongSums(CountedSums):
    """A mistake: it emits something else than version 2."""

    def emit(self, value: bytes | None, **more: Any) -> None:
        super().emit(b"wrong", **more)
