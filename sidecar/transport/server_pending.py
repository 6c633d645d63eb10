"""Asks nats-server how many bytes it buffers for a connection, and how many messages it sent on a closed one.

Every account may ask about its own connections (``$SYS.REQ.ACCOUNT.PING.CONNZ``). The question uses another connection,
because an answer on the same one would come last. Without an answer it is asked rarely.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.wire.subjects import SERVER_CONNECTIONS
from sidecar.runtime import clock
from sidecar.transport.connection import BusConnection

_OPEN_OR_CLOSED = 2
_OUTSTANDING = 16
_ASK_EVERY_NS = 20_000_000
_SILENT_EVERY_NS = 10_000_000_000
_SILENT_AFTER_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """``backlog_bytes``: held for it; ``delivered``: messages that were, or were to be, sent to it; ``reason``: why it was closed, ""
    while it is open. ``asked_ns``: when. A client id is one of a server: others give the same."""

    asked_ns: int
    server_id: str
    client_id: int
    backlog_bytes: int
    delivered: int
    reason: str


class Backlog:
    """Sends the questions over ``bus``."""

    def __init__(self, bus: BusConnection) -> None:
        self._bus = bus
        self._prefix = f"{bus.inbox}.connz"
        self._bus.listen(f"{self._prefix}.*", self._answered)
        self._outstanding: dict[bytes, tuple[int, str, int, Callable[[ConnectionStats], None]]] = {}
        self._number = 0
        self._about = "", 0
        """The connection that was asked about last."""
        self._silent_ns = 0  # since when; 0: it has answered
        self._next_ns = 0

    def ask(self, server_id: str, client_id: int, heard: Callable[[ConnectionStats], None], *, at_once: bool = False) -> None:
        """Ask the server about one connection. ``heard`` is called with an answer. The rate is limited."""
        now_ns = clock.now_ns()
        if not at_once:
            if self._about != (server_id, client_id):  # what another server leaves unanswered says nothing of this one
                self._about, self._silent_ns, self._next_ns = (server_id, client_id), 0, 0
            if now_ns < self._next_ns:
                return
            self._silent_ns = self._silent_ns or now_ns
            self._next_ns = now_ns + (_ASK_EVERY_NS if now_ns - self._silent_ns < _SILENT_AFTER_NS else _SILENT_EVERY_NS)
        self._number += 1
        while len(self._outstanding) >= _OUTSTANDING:
            self._outstanding.pop(next(iter(self._outstanding)))
        question = json.dumps({"cid": client_id, "state": _OPEN_OR_CLOSED}).encode()
        if self._bus.send(SERVER_CONNECTIONS, (question,), f"{self._prefix}.{self._number}"):
            self._outstanding[b"%d" % self._number] = now_ns, server_id, client_id, heard
        else:
            self._silent_ns, self._next_ns = 0, now_ns + _ASK_EVERY_NS

    def _answered(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        number = subject.rpartition(b".")[2]
        asked_ns, server_id, client_id, heard = self._outstanding.get(number, (0, "", 0, None))
        if heard is None:
            return
        told = _told(payload, asked_ns, server_id, client_id)
        if told is not None:  # else it was another server of the same cluster
            del self._outstanding[number]
            self._silent_ns = self._next_ns = 0
            heard(told)


def _told(payload: bytes, asked_ns: int, server_id: str, client_id: int) -> ConnectionStats | None:
    try:
        data: dict[str, Any] = load_json(payload)["data"]
        if data["server_id"] != server_id:
            return None
        (found,) = (connection for connection in data["connections"] if connection["cid"] == client_id)
        pending, delivered = (whole_number(found[name], 0, 1 << 62) for name in ("pending_bytes", "out_msgs"))
        return ConnectionStats(asked_ns, server_id, client_id, pending, delivered, str(found.get("reason", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
