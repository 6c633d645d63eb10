"""A publisher that requests acks: ``python -m sidecar.bench.publisher PORT SUBJECT SECONDS SIZE WINDOW [EACH [DIALECT]]``.

It uses the NATS protocol over one socket. liftpy and JetStream get the same bytes and answer alike (``{"stream":...,
"seq":...}``, or an ``error``, which ends the run). DIALECT: ``plain`` for these two (default), or ``liftbridge``. At most
WINDOW messages have no answer. After SECONDS it waits for the remaining answers. With EACH, only each EACH-th message
requests an ack, which shows that all earlier ones are stored.

It prints one line of JSON: ``acked``, ``took_s``, ``cpu_s`` of this process, and with a WINDOW of one ``p50_ms`` and
``p99_ms``.
"""

from __future__ import annotations

import json
import os
import sys
import time

from sidecar.bench.dialects import DIALECTS, PLAIN, Dialect, open_nats

INBOX = b"_INBOX.peer%d" % os.getpid()
"""Inbox of this process. It differs for each process, because several publishers may run at once."""
_BLOCK = 250
_SILENCE_S = 20.0
_REFUSAL_BYTES = 7
"""Length of the longest text that shows a rejection: ``"error"``."""


class CountedAnswers:
    """Counts the acks in a stream of bytes that arrives in arbitrary pieces. ``refused``: True after a rejection."""

    def __init__(self, dialect: Dialect = PLAIN) -> None:
        self.acked, self.refused = 0, False
        self._dialect, self._tail = dialect, b""
        self._kept_bytes = max(len(dialect.ack), _REFUSAL_BYTES) - 1

    def add(self, received: bytes) -> None:
        data, ack = self._tail + received, self._dialect.ack
        self.refused = self.refused or bool(self._dialect.refused(data))
        self.acked += data.count(ack) - self._tail.count(ack)
        self._tail = data[-self._kept_bytes :]


def publish(
    port: int, subject: str, seconds: float, size_bytes: int, window: int, each: int = 1, dialect: Dialect = PLAIN
) -> dict[str, float]:
    """Publish for ``seconds``, wait for all acks, and return the measured values.

    ``window``: maximum number of messages without an ack. ``each``: only every ``each``-th message requests an ack.
    """
    plain, asking = (dialect.publish(subject.encode(), b"x" * size_bytes, inbox) for inbox in (b"", INBOX))
    step = each if each > 1 else min(_BLOCK, window)
    block = plain * (each - 1) + asking if each > 1 else asking * step
    answers, sent, times = CountedAnswers(dialect), 0, []
    with open_nats(port, INBOX, _SILENCE_S) as connection:
        began = time.perf_counter()
        end = began + seconds
        while (send_time_s := time.perf_counter()) < end or answers.acked * each < sent:
            while send_time_s < end and sent + step - answers.acked * each <= window:
                connection.sendall(block)
                sent += step
            received = connection.recv(1 << 20)
            if not received:
                raise SystemExit("The NATS server closed the connection. Run the benchmark again.")
            answers.add(received)
            if answers.refused:
                raise SystemExit(f"The system rejected a message: {received[:300]!r}")
            times.append(time.perf_counter() - send_time_s)
        took_s = time.perf_counter() - began
    times.sort()
    latency = {f"p{p}_ms": times[len(times) * p // 100] * 1000 for p in (50, 99)} if window == 1 else {}
    return {"acked": sent, "took_s": took_s, "cpu_s": time.process_time(), **latency}


if __name__ == "__main__":
    port, subject, seconds, size_bytes, window, *more = sys.argv[1:]
    each, dialect = (*more, *("1", "plain")[len(more) :])
    print(json.dumps(publish(int(port), subject, float(seconds), int(size_bytes), int(window), int(each), DIALECTS[dialect])))
