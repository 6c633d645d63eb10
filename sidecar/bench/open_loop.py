"""A publisher with a fixed rate: ``python -m sidecar.bench.open_loop PORT SUBJECT SECONDS SIZE RATE``.

Each millisecond it sends the messages that are due, whether answers arrive or not. The latency of a message starts when it
was due. So if a system pauses, the latency of all messages in the pause counts. The first message of each millisecond
contains that time (``STAMP`` and digits, for readers) and has an ack of its own. The acks of the others are only counted.

It prints one line of JSON: ``acked``, ``took_s``, ``cpu_s``, ``ack_p50_ms``, ``ack_p99_ms``, ``ack_p999_ms`` and
``asked_per_s``. If the system does not keep up, ``acked`` / ``took_s`` is below ``asked_per_s``.
"""

from __future__ import annotations

import json
import re
import sys
import time

from sidecar.bench.dialects import open_nats

STAMP = b"T"
STAMP_DIGITS = 19
"""Number of digits of the time: nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share."""
SMALLEST_BYTES = len(STAMP) + STAMP_DIGITS
_INBOX = b"_INBOX.open"
_STAMPED = re.compile(rb"_INBOX\.open\.(\d{19}) ")
_TICK_S = 0.001
_LEFT_S = 10.0
"""Time to wait for the remaining answers, in seconds."""


def quantiles(times_ns: list[int], name: str) -> dict[str, float]:
    """Return three quantiles of the latencies ``times_ns``: ``{name}p50_ms``, ``{name}p99_ms`` and ``{name}p999_ms``.

    The result is empty if there are no latencies.
    """
    if not times_ns:
        return {}
    ordered = sorted(times_ns)
    return {
        f"{name}p{text}_ms": ordered[int(len(ordered) * part)] / 1e6
        for text, part in (("50", 0.5), ("99", 0.99), ("999", 0.999))
    }


class Acks:
    """Counts the acks in a stream of bytes, and measures the latency of stamped messages."""

    def __init__(self) -> None:
        self.count = 0
        self.times_ns: list[int] = []
        self._tail = b""

    def add(self, received: bytes, now_ns: int) -> None:
        """Count the acks in the complete lines of ``received``, and store the latencies up to the time ``now_ns``.

        Raises SystemExit if the system has rejected a message.
        """
        data = self._tail + received
        end = data.rfind(b"\r\n") + 2 if b"\r\n" in data else 0
        data, self._tail = data[:end], data[end:]
        if b'"error"' in data:
            raise SystemExit(f"The system rejected a message: {data[:300]!r}")
        self.count += data.count(b'"seq"')
        self.times_ns += [now_ns - int(stamp) for stamp in _STAMPED.findall(data)]


def publish(port: int, subject: str, seconds: float, size_bytes: int, rate: float) -> dict[str, float]:
    """Publish ``rate`` messages per second for ``seconds``, wait for the acks, and return the measured values."""
    name, size_bytes = subject.encode(), max(size_bytes, SMALLEST_BYTES)
    plain = b"PUB %s %s.x %d\r\n%s\r\n" % (name, _INBOX, size_bytes, b"x" * size_bytes)
    padding, acks, sent = b"x" * (size_bytes - SMALLEST_BYTES), Acks(), 0
    with open_nats(port, _INBOX + b".*", _LEFT_S) as connection:
        began = time.monotonic()
        end, total = began + seconds, int(rate * seconds)
        while acks.count < total and (now := time.monotonic()) < end + _LEFT_S:
            due = min(int((now - began) * rate), total) - sent
            if due > 0:
                due_ns = int((began + (sent + 1) / rate) * 1e9)
                stamped = b"PUB %s %s.%019d %d\r\nT%019d%s\r\n" % (name, _INBOX, due_ns, size_bytes, due_ns, padding)
                connection.settimeout(_LEFT_S)
                connection.sendall(stamped + plain * (due - 1))
                sent += due
            connection.settimeout(max(min(began + (sent + 1) / rate, now + _TICK_S) - time.monotonic(), _TICK_S / 10))
            try:
                received = connection.recv(1 << 20)
            except TimeoutError:
                continue
            if not received:
                raise SystemExit("The NATS server closed the connection. Run the benchmark again.")
            acks.add(received, time.monotonic_ns())
        took_s = time.monotonic() - began
    return {
        "acked": acks.count,
        "took_s": took_s,
        "cpu_s": time.process_time(),
        "asked_per_s": rate,
        **quantiles(acks.times_ns, "ack_"),
    }


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(publish(int(given[0]), given[1], float(given[2]), int(given[3]), float(given[4]))))
