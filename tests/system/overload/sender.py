"""The publisher: ``python -m tests.system.overload.sender PORT SUBJECT PER_SECOND SIZE SECONDS [NICE [ids]]``.

It prints what became as JSON. Each message has a reply of its own, and every answer is counted, once. PER_SECOND 0: as fast as answers
come, ``WINDOW`` on their way. A tick that comes late sends what it has missed, but no more than the server takes: what would wait in
here is not sent, since that time is the sender's own. NICE: how far it stands back behind the nodes, where they share processors.
``ids``: each message has an id.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

WINDOW = 2048
TICK_S = 0.004
GRACE_S = 10.0
"""For answers that are out, at the end."""
_ANSWER = re.compile(rb"MSG \S+\.(\d+) 1 \d+\r\n(\{[^\r]*\})\r\n")
_MOST_OUT_BYTES = 1 << 19


def share(values: np.ndarray, part: float) -> float:
    """The value below which ``part`` of them are, in ms."""
    return round(float(np.quantile(values, part)) * 1000, 2) if len(values) else 0.0


class Sender:
    """One connection."""

    def __init__(self, port: int, subject: str, size_bytes: int, has_ids: bool = False) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.recv(4096)
        self.inbox = f"_INBOX.s{time.time_ns():x}"
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB %b.* 1\r\nPING\r\n' % self.inbox.encode())
        names, payload = (subject.encode(), self.inbox.encode()), b"x" * size_bytes
        self._form = b"PUB %b %b.%%d %d\r\n%b\r\n" % (*names, size_bytes, payload)
        """Of a message, by its number."""
        self._numbers = 1
        """How often that stands in it."""
        if has_ids:
            block = b"NATS/1.0\r\nNats-Msg-Id: %b-%%012d\r\n\r\n" % names[1]
            block_bytes = len(block % 0)
            self._form = b"HPUB %b %b.%%d %d %d\r\n%b%b\r\n" % (*names, block_bytes, block_bytes + size_bytes, block, payload)
            self._numbers = 2
        self._buffer = b""
        self._out = b""
        self._sent_at, self._is_answered = np.zeros(1 << 16), np.zeros(1 << 16, np.bool_)
        """Of each message, by number."""
        self.sent = self._answered = 0
        self.took: dict[str, list[np.ndarray]] = {"ok": [], "refused": []}
        self._kinds: dict[bytes, str] = {}
        """Refusal -> its kind."""
        self.answers: Counter[str] = Counter()
        self.accepted_in: Counter[int] = Counter()
        """Second since the start -> accepted."""
        while b"PONG\r\n" not in self._buffer:
            self._buffer += self.socket.recv(4096)
        self._buffer = b""
        self.socket.setblocking(False)
        self.began = time.monotonic()

    @property
    def unanswered(self) -> int:
        return self.sent - self._answered

    def send(self, count: int) -> None:
        first, end = self.sent, self.sent + count
        self._out += b"".join([self._form % ((number,) * self._numbers) for number in range(first, end)])
        while end > len(self._sent_at):
            self._sent_at = np.concatenate((self._sent_at, np.zeros_like(self._sent_at)))
            self._is_answered = np.concatenate((self._is_answered, np.zeros_like(self._is_answered)))
        self._sent_at[first:end] = time.monotonic()
        self.sent = end

    def turn(self, until: float) -> None:
        """Read and write until then."""
        while True:
            left = until - time.monotonic()
            readable, writable, _ = select.select([self.socket], [self.socket] if self._out else [], [], max(left, 0.0))
            if writable:
                self._out = self._out[self.socket.send(self._out[: 1 << 18]) :]
            if readable:
                self._read()
            if left <= 0:
                return

    @property
    def room(self) -> int:
        """So many messages more may wait for the server to take them."""
        return (_MOST_OUT_BYTES - len(self._out)) // len(self._form)

    def _read(self) -> None:
        got = self.socket.recv(1 << 20)
        if not got:
            raise SystemExit("the server closed the connection")
        data, now = self._buffer + got, time.monotonic()
        end = data.rfind(b"}\r\n") + 3
        if found := _ANSWER.findall(data, 0, max(end, 0)):
            numbers, bodies = zip(*found, strict=True)
            places = np.array(numbers, "S12").astype(np.int64)
            refused = np.array([b'"error"' in body for body in bodies])
            places, once = np.unique(places, return_index=True)
            refused, again = refused[once], self._is_answered[places]
            self.answers["twice"] += len(found) - len(places) + int(again.sum())
            self._answered += len(places) - int(again.sum())
            self._is_answered[places] = True
            took = now - self._sent_at[places]
            self.took["ok"].append(took[~refused])
            self.took["refused"].append(took[refused])
            accepted = len(places) - int(refused.sum())
            self.answers["ok"] += accepted
            self.accepted_in[int(now - self.began)] += accepted
            self.answers.update(self._kind(body) for body in bodies if b'"error"' in body)
        if b"PING\r\n" in data[end:]:
            self._out += b"PONG\r\n"
            data, end = data[end:].replace(b"PING\r\n", b""), 0
        self._buffer = data[end:]

    def _kind(self, body: bytes) -> str:
        kind = self._kinds.get(body)
        if kind is None:
            error = json.loads(body)
            kind = "quota" if "quota" in error["error"]["description"] else str(error["error"]["code"])
            self._kinds[body] = kind = kind if error.get("retry_after_ms") else f"{kind} without a wait"
        return kind

    def said(self, seconds: float) -> dict[str, Any]:
        ok, refused = (np.concatenate([np.zeros(0), *self.took[name]]) for name in ("ok", "refused"))
        return {
            "sent": self.sent,
            "answers": {name: count for name, count in self.answers.items() if count},
            "unanswered": self.unanswered,
            "accepted_per_s": round(self.answers["ok"] / seconds, 1),
            "accepted_in": [self.accepted_in[second] for second in range(max(self.accepted_in, default=-1) + 1)],
            "ok_ms": {"p50": share(ok, 0.5), "p99": share(ok, 0.99), "max": share(ok, 1.0)},
            "refused_ms": {"p50": share(refused, 0.5), "p99": share(refused, 0.99), "max": share(refused, 1.0)},
        }


def run(port: int, subject: str, per_second: int, size_bytes: int, seconds: float, has_ids: bool = False) -> dict[str, Any]:
    """Publish; what became of it."""
    sender = Sender(port, subject, size_bytes, has_ids)
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        if per_second:
            due = int((passed + TICK_S) * per_second) - sender.sent
        else:
            due = WINDOW - sender.unanswered
        if (count := min(due, sender.room)) > 0:
            sender.send(count)
        sender.turn(time.monotonic() + TICK_S if per_second else time.monotonic())
        if not per_second and sender.unanswered >= WINDOW:
            sender.turn(time.monotonic() + 0.001)
    took_s, give_up = time.monotonic() - began, time.monotonic() + GRACE_S
    while sender.unanswered and time.monotonic() < give_up:
        sender.turn(time.monotonic() + 0.02)
    return sender.said(took_s)


if __name__ == "__main__":
    os.nice(int(sys.argv[6]) if len(sys.argv) > 6 else 0)
    given = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), "ids" in sys.argv[7:]
    print(json.dumps(run(*given)))
