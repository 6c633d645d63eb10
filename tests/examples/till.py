"""An example of a replicated service with effects: each record is a payment, taken in the world outside, whose result comes back.

What is outside is a folder here: the handler says in ``begun`` that it runs, and waits while there is a file ``hold``::

    liftpy service tests.examples.till:Till --set folder=/tmp/till --stream payments --output-stream receipts --tick-interval 1 \\
        --node n1 --data d
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from liftpy.service import Effect, Record, Service

NS_PER_S = 1_000_000_000
LATE_S = 0.3
_CHECK_INTERVAL_S = 0.02


class Till(Service):
    """What was paid. A payment that takes longer than ``LATE_S`` is said to be late."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the payments of the snapshot."""
        self.waiting: list[str] = json.loads(snapshot) if snapshot else []

    def on_record(self, record: Record) -> None:
        """Have it taken."""
        payment = (record.value or b"").decode()
        self.waiting.append(payment)
        self.set_timer(payment, self.now_ns + int(LATE_S * NS_PER_S))
        self.effect("charge", payment.encode())

    def on_timer(self, name: str) -> None:
        """It takes long."""
        self.emit(f"{name}: late".encode())

    def on_effect(self, effect: Effect) -> bytes:
        """Take it; another process may have begun to."""
        with (self._folder / "begun").open("a") as begun:
            begun.write(f"{effect.id} {os.getpid()}\n")
        while (self._folder / "hold").exists():
            time.sleep(_CHECK_INTERVAL_S)
        return b"charged by %d" % os.getpid()

    def on_effect_result(self, effect: Effect, result: bytes) -> None:
        """It is taken."""
        payment = effect.payload.decode()
        self.waiting.remove(payment)
        self.cancel_timer(payment)
        self.emit(effect.payload + b": " + result)

    def take_snapshot(self) -> bytes:
        """What waits."""
        return json.dumps(self.waiting).encode()
