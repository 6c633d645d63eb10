"""Ledger: a service that keeps a chain of digests over its commands, in any number of versions, with a timer. It rejects some records.

A test can make one process of it wrong. The environment variable ``LEDGER_PLANT`` (``outputs`` or ``state``) names what is wrong, and
``LEDGER_PLANT_BELOW`` is the offset below which it is wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from liftpy.service import Record, Service

POISON = b"poison"
TIMED = b"timed"
TIMER = "later"
TIMER_NS = 1_000_000
VERSION = "LEDGER_VERSION"
PLANT = "LEDGER_PLANT"
PLANT_BELOW = "LEDGER_PLANT_BELOW"


class Ledger(Service):
    """State: how many commands and timers, and the digest over all of them. Even versions say everything twice."""

    version = int(os.environ.get(VERSION, "1"))
    on_error = "skip"

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the state of the snapshot."""
        self.state: dict[str, Any] = json.loads(snapshot) if snapshot else {"count": 0, "digest": "", "noise": 0}

    def take_snapshot(self) -> bytes:
        """JSON, its keys sorted."""
        return json.dumps(self.state, sort_keys=True).encode()

    def on_record(self, record: Record) -> None:
        """One link more. Poison raises when half of it is done."""
        value = record.value or b""
        self._add(b"%d " % record.offset + value, record.key, record.offset)
        if value.startswith(TIMED):
            self.set_timer(TIMER, self.now_ns + TIMER_NS)
        if value.startswith(POISON):
            raise ValueError("poison")

    def on_timer(self, name: str) -> None:
        """A link too."""
        self._add(name.encode(), None, self.position)

    def on_version(self, version: int) -> None:
        """A link too."""
        self._add(b"version %d" % version, None, self.position)

    def on_query(self, query: bytes) -> bytes:
        """The state, whatever is asked."""
        return self.take_snapshot()

    def _add(self, what: bytes, key: bytes | None, offset: int) -> None:
        link = f"{self.state['digest']} {self.active_version} ".encode() + what
        self.state["digest"] = hashlib.blake2b(link, digest_size=12).hexdigest()
        self.state["count"] += 1
        said = f"{self.state['count']} {self.state['digest']}".encode()
        planted = os.environ.get(PLANT, "") if offset < int(os.environ.get(PLANT_BELOW, "0")) else ""
        if planted == "state":
            self.state["noise"] += 1
        self.emit(b"planted " + said if planted == "outputs" else said, key=key)
        if self.active_version % 2 == 0:
            self.emit(b"again " + said)
