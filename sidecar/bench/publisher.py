"""A publisher that asks for acks: ``python -m sidecar.bench.publisher PORT SUBJECT SECONDS SIZE WINDOW [EACH]``.

Plain NATS protocol over one socket, the same bytes to whatever stores the subject: liftpy and JetStream answer alike
(``{"stream":..., "seq":...}``, or an ``error``, which ends it). At most WINDOW messages are unanswered; after SECONDS it waits for
the answers that are left. An ack is asked for with every message, or with each EACHth, which says that all before it are stored too.
Prints one line of JSON: ``acked``, ``took_s``, ``cpu_s`` of this process, and with a window of one ``p50_ms`` and ``p99_ms``.
"""

from __future__ import annotations

import json
import socket
import sys
import time

INBOX = b"_INBOX.peer.1"
_BLOCK = 250
_SILENCE_S = 20.0
_TOKEN_BYTES = 7
"""Of the longer token that is counted: ``"error"``."""


class CountedAnswers:
    """Counts the answers in a stream of bytes, wherever it is cut."""

    def __init__(self) -> None:
        self.acked = self.errors = 0
        self._tail = b""

    def take(self, received: bytes) -> None:
        """Count what ``received`` completes. A token that ended in an earlier piece is not counted again."""
        data = self._tail + received
        tail = len(self._tail)
        self.errors += data.count(b'"error"') - data[:tail].count(b'"error"')
        self.acked += data.count(b'"seq"') - data[:tail].count(b'"seq"')
        self._tail = data[-(_TOKEN_BYTES - 1) :]


def publish(port: int, subject: str, seconds: float, size_bytes: int, window: int, each: int = 1) -> dict[str, float]:
    """Publish for ``seconds`` and wait for all answers."""
    rest = b"%d\r\n%s\r\n" % (size_bytes, b"x" * size_bytes)
    plain, asking = b"PUB %s %s" % (subject.encode(), rest), b"PUB %s %s %s" % (subject.encode(), INBOX, rest)
    step = each if each > 1 else min(_BLOCK, window)
    block = plain * (each - 1) + asking if each > 1 else asking * step
    answers, sent, times = CountedAnswers(), 0, []
    with socket.create_connection(("127.0.0.1", port), timeout=_SILENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.recv(4096)
        connection.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % INBOX)
        while b"PONG" not in connection.recv(4096):
            pass
        began = time.perf_counter()
        end = began + seconds
        while (asked := time.perf_counter()) < end or answers.acked * each < sent:
            while asked < end and sent + step - answers.acked * each <= window:
                connection.sendall(block)
                sent += step
            received = connection.recv(1 << 20)
            if not received:
                raise SystemExit("the nats-server closed the connection")
            answers.take(received)
            if answers.errors:
                raise SystemExit(f"refused: {received[:300]!r}")
            times.append(time.perf_counter() - asked)
        took_s = time.perf_counter() - began
    times.sort()
    latency = {f"p{p}_ms": times[len(times) * p // 100] * 1000 for p in (50, 99)} if window == 1 else {}
    return {"acked": sent, "took_s": took_s, "cpu_s": time.process_time(), **latency}


if __name__ == "__main__":
    port, subject, seconds, size_bytes, window, *each = sys.argv[1:]
    print(json.dumps(publish(int(port), subject, float(seconds), int(size_bytes), int(window), *map(int, each))))
