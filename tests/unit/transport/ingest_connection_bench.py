"""An ingest connection for tests: without its task and without a socket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.replication.inflight_limits import NodeInflight
from sidecar.transport import ingest_connection as module
from sidecar.transport.ingest_connection import IngestConnection

KIB = 1024
BUFFER_BYTES = 1000 * KIB
MS = 1_000_000


class Thread:
    """In the place of a SocketThread."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.did: list[str] = []

    def stop(self) -> None:
        self.did.append("stop")

    def resume(self) -> None:
        self.did.append("resume")


class Transport:
    def __init__(self, **info: Any) -> None:
        self.info: dict[str, Any] = {"socket": SimpleNamespace(fileno=lambda: 5), "ssl_object": None, **info}
        self.closing = False
        self.did: list[str] = []

    def get_extra_info(self, name: str) -> Any:
        return self.info[name]

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.did.append("pause")

    def resume_reading(self) -> None:
        self.did.append("resume")


class Bench:
    """An IngestConnection without its task and without a socket; the clocks go as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns, self.busy_ns = 5_000 * MS, 0
        monkeypatch.setattr(module, "clock", SimpleNamespace(now_ns=lambda: self.now_ns))
        monkeypatch.setattr(module, "time", SimpleNamespace(thread_time_ns=lambda: self.busy_ns))
        monkeypatch.setattr(module, "SocketThread", Thread)
        self.monkeypatch = monkeypatch
        self.node = NodeInflight()
        self.bus: Any = IngestConnection(self.node, BUFFER_BYTES)
        self.bus._pump_task.cancel()
        self.bus._receiver = SimpleNamespace(is_idle=True, transport=Transport())
        self.got: list[bytes] = []
        self.given_up: list[int] = []
        self.bus.listen("ev", self._sink, given_up=self.given_up.append)
        self.takes = True
        monkeypatch.setattr(self.bus._gate, "may_take", self._may_parse)
        self.asked: list[tuple[int, bool, int]] = []

    def _sink(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        self.got.append(payload)

    def _may_parse(self, parsed_bytes: int, blocked: bool, now_ns: int) -> bool:
        self.asked.append((parsed_bytes, blocked, now_ns))
        return self.takes

    def parsing(self, each_ns: int = 0) -> list[tuple[int, bool]]:
        """From now on pieces are noted, with whether messages are left out, and cost as much."""
        pieces: list[tuple[int, bool]] = []

        async def parse(piece: bytes) -> None:
            pieces.append((len(piece), self.bus._parser.drops_unread))
            self.busy_ns += each_ns

        self.bus._parser.parse = parse
        return pieces
