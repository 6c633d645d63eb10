"""The service of ``tests.system.groups.trimmed``: it replies to each command and has an effect for it. Also with older versions."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from liftpy.service import Effect, Record, Service

HOLD = "LIFTPY_TEST_HOLD"
"""Environment: a file. While it exists, effects wait, so that snapshots hold them."""
PATIENCE_S = 300.0
"""For which an effect waits."""


class Charging(Service):
    """The state counts commands, and knows which of them were charged."""

    emits = False

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the counts of the snapshot."""
        self.state: dict[str, int] = json.loads(snapshot) if snapshot else {}

    def on_record(self, record: Record) -> None:
        """Count the command, answer with the count, and have it charged."""
        name = (record.value or b"").decode()
        self.state[name] = 0
        self.reply(record, b"%d" % len(self.state))
        self.effect("charge", name.encode())

    def on_effect(self, effect: Effect) -> bytes:
        """Charge it."""
        give_up = time.monotonic() + PATIENCE_S
        while Path(os.environ[HOLD]).exists():
            if time.monotonic() > give_up:
                raise TimeoutError(f"{HOLD} is still there after {PATIENCE_S:g} s")
            time.sleep(0.02)
        return b"done"

    def on_effect_result(self, effect: Effect, result: bytes) -> None:
        """Count how often its result came."""
        self.state[effect.payload.decode()] += 1

    def on_query(self, query: bytes) -> bytes:
        """The state."""
        return self.take_snapshot()

    def take_snapshot(self) -> bytes:
        """Name of each command -> how often its result came."""
        return json.dumps(self.state, sort_keys=True).encode()
