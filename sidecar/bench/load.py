"""Load generators and their counterpart over one NATS socket, without a client library. Each is a process that prints JSON.

    python -m sidecar.bench.load publish PORT SUBJECT SECONDS SIZE WINDOW [EACH [DIALECT]]
    python -m sidecar.bench.load open-loop PORT SUBJECT SECONDS SIZE RATE
    python -m sidecar.bench.load answer PORT SUBJECT

``publish`` requests acks. liftpy and JetStream get the same bytes and answer alike (``{"stream":..., "seq":...}``, or an
``error``, which ends the run). DIALECT: ``plain`` for these two (default), or ``liftbridge``. At most WINDOW messages have no
answer. After SECONDS it waits for the remaining answers. With EACH, only each EACH-th message requests an ack, which shows that
all earlier ones are stored. It prints ``acked``, ``took_s``, ``cpu_s`` of this process, and with a WINDOW of one ``p50_ms`` and
``p99_ms``.

``open-loop`` publishes at a fixed rate. Each millisecond it sends the messages that are due, whether answers arrive or not. The
latency of a message starts when it was due. So if a system pauses, the latency of all messages in the pause counts. The first
message of each millisecond contains that time (``STAMP`` and digits, for readers) and has an ack of its own. The acks of the
others are only counted. It prints ``acked``, ``took_s``, ``cpu_s``, ``ack_p50_ms``, ``ack_p99_ms``, ``ack_p999_ms`` and
``asked_per_s``. If the system does not keep up, ``acked`` / ``took_s`` is below ``asked_per_s``.

``answer`` acknowledges every message of a subject without storing it, to measure the load generator alone: one write with all
answers to one read. It prints ``go`` when it listens, and runs until it is killed.

Messages are built without protobuf, so that the load generator costs as little as possible.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

_ENVELOPE = struct.Struct(">4sBBBB")
_MAGIC, _PUBLISH, _ACK = b"\xb9\x0e\x43\xb4", 0, 1
_REFUSED = re.compile(rb"\x50[\x01-\x7f]\r\n")
"""Beginning of the field ackError, the last one of an ack. It is absent if the value is 0.

No other one-byte field is at the end of an ack.
"""
INBOX = b"_INBOX.peer%d" % os.getpid()
"""Inbox of this process. It differs for each process, because several publishers may run at once."""
STAMP = b"T"
STAMP_DIGITS = 19
"""Number of digits of the time: nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share."""
SMALLEST_BYTES = len(STAMP) + STAMP_DIGITS
_STAMPED_INBOX = b"_INBOX.open"
_STAMPED = re.compile(rb"_INBOX\.open\.(\d{19}) ")
_TICK_S = 0.001
_LEFT_S = 10.0
"""Time to wait for the remaining answers, in seconds."""
_BLOCK = 250
_SILENCE_S = 20.0
_REFUSAL_BYTES = 7
"""Length of the longest text that shows a rejection: ``"error"``."""
_ANSWER = b'{"stream":"bench","seq":1}'
_LONGEST_BYTES = 256
"""Maximum length of the protocol line before a payload, with a margin."""


def open_nats(port: int, subscription: bytes, timeout_s: float | None = None) -> socket.socket:
    """Return a socket to the local nats-server at ``port``, subscribed to ``subscription`` with the id 1."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.recv(4096)
    connection.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % subscription)
    while b"PONG" not in connection.recv(4096):
        pass
    return connection


# ---- message formats -------------------------------------------------------------------------------------------------


class Dialect(NamedTuple):
    """Message format of one system, and how its acks are recognized.

    ``message``: function that encodes a value and the subject for the ack (b'': no ack). ``by_reply``: True if this subject is
    the NATS reply subject. ``ack``: bytes that each ack contains exactly once.
    """

    message: Callable[[bytes, bytes], bytes]
    by_reply: bool
    ack: bytes
    refused: Callable[[bytes], object]

    def publish(self, subject: bytes, value: bytes, inbox: bytes = b"") -> bytes:
        """Return the bytes of a NATS publish: the protocol line and the encoded ``value``.

        ``inbox``: subject for the ack, b'': none.
        """
        payload = self.message(value, inbox)
        reply = b" " + inbox if self.by_reply and inbox else b""
        return b"PUB %s%s %d\r\n%s\r\n" % (subject, reply, len(payload), payload)


def field(number: int, value: bytes) -> bytes:
    """Return an encoded protobuf field. ``number``: number of the field. ``value``: bytes, a text, or an encoded message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def number_field(number: int, value: int) -> bytes:
    """Return an encoded protobuf field. ``number``: number of the field. ``value``: its integer, at least 0."""
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """Return the protobuf varint of a number from 0 on: seven bits per byte."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def envelope_of(kind: int, payload: bytes) -> bytes:
    """Return ``payload`` in a Liftbridge envelope of the message type ``kind``, without a checksum."""
    return _ENVELOPE.pack(_MAGIC, 0, _ENVELOPE.size, 0, kind) + payload


def _of_liftbridge(value: bytes, inbox: bytes) -> bytes:
    """Encode a message for Liftbridge, with ``inbox`` as the ack subject (b'': no ack).

    The ack policy is ALL: all in-sync replicas must have the message, as in liftpy.
    """
    ack_fields = field(10, inbox) + number_field(12, 1) if inbox else number_field(12, 2)
    return envelope_of(_PUBLISH, field(3, value) + ack_fields)


PLAIN = Dialect(lambda value, _: value, True, b'"seq"', lambda data: b'"error"' in data)
"""Format of liftpy and JetStream. Their answer is ``{"stream":..., "seq":...}``, or has an ``error``."""
LIFTBRIDGE = Dialect(_of_liftbridge, False, envelope_of(_ACK, b""), _REFUSED.search)
DIALECTS = {"plain": PLAIN, "liftbridge": LIFTBRIDGE}


# ---- acks ------------------------------------------------------------------------------------------------------------


class AckCounter:
    """Counts the acks in a stream of bytes that arrives in arbitrary pieces."""

    def __init__(self, dialect: Dialect = PLAIN) -> None:
        self.acked = 0
        self._dialect, self._tail = dialect, b""
        self._kept_bytes = max(len(dialect.ack), _REFUSAL_BYTES) - 1

    def receive(self, connection: socket.socket) -> bytes:
        """Wait for bytes from ``connection``, count their acks, and return them.

        Raises TimeoutError of the socket, and SystemExit if the connection ends or the system rejects a message.
        """
        received = connection.recv(1 << 20)
        if not received:
            raise SystemExit("The NATS server closed the connection. Run the benchmark again.")
        self.add(received)
        return received

    def add(self, received: bytes) -> None:
        """Count the acks in ``received``, the next bytes. Raises SystemExit if the system has rejected a message."""
        data, ack = self._tail + received, self._dialect.ack
        if self._dialect.refused(data):
            raise SystemExit(f"The system rejected a message: {received[:300]!r}")
        self.acked += data.count(ack) - self._tail.count(ack)
        self._tail = data[-self._kept_bytes :]


class StampedAcks:
    """Latencies of stamped messages, from the reply subjects of their acks."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []
        self._rest = b""

    def add(self, received: bytes, now_ns: int) -> None:
        """Store the latencies up to the time ``now_ns`` for the acks in the complete lines of ``received``."""
        lines, _, self._rest = (self._rest + received).rpartition(b"\r\n")
        self.times_ns += [now_ns - int(stamp) for stamp in _STAMPED.findall(lines)]


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


# ---- processes -------------------------------------------------------------------------------------------------------


def publish(
    port: int, subject: str, seconds: float, size_bytes: int, window: int, each: int = 1, dialect: Dialect = PLAIN
) -> dict[str, float]:
    """Publish for ``seconds``, wait for all acks, and return the measured values.

    ``window``: maximum number of messages without an ack. ``each``: only every ``each``-th message requests an ack.
    """
    plain, asking = (dialect.publish(subject.encode(), b"x" * size_bytes, inbox) for inbox in (b"", INBOX))
    step = each if each > 1 else min(_BLOCK, window)
    block = plain * (each - 1) + asking if each > 1 else asking * step
    acks, sent, times = AckCounter(dialect), 0, []
    with open_nats(port, INBOX, _SILENCE_S) as connection:
        began = time.perf_counter()
        end = began + seconds
        while (send_time_s := time.perf_counter()) < end or acks.acked * each < sent:
            while send_time_s < end and sent + step - acks.acked * each <= window:
                connection.sendall(block)
                sent += step
            acks.receive(connection)
            times.append(time.perf_counter() - send_time_s)
        took_s = time.perf_counter() - began
    times.sort()
    latency = {f"p{p}_ms": times[len(times) * p // 100] * 1000 for p in (50, 99)} if window == 1 else {}
    return {"acked": sent, "took_s": took_s, "cpu_s": time.process_time(), **latency}


def publish_at_rate(port: int, subject: str, seconds: float, size_bytes: int, rate: float) -> dict[str, float]:
    """Publish ``rate`` messages per second for ``seconds``, wait for the acks, and return the measured values."""
    name, size_bytes = subject.encode(), max(size_bytes, SMALLEST_BYTES)
    plain = b"PUB %s %s.x %d\r\n%s\r\n" % (name, _STAMPED_INBOX, size_bytes, b"x" * size_bytes)
    padding, acks, stamped_acks, sent = b"x" * (size_bytes - SMALLEST_BYTES), AckCounter(), StampedAcks(), 0
    with open_nats(port, _STAMPED_INBOX + b".*", _LEFT_S) as connection:
        began = time.monotonic()
        end, total = began + seconds, int(rate * seconds)
        while acks.acked < total and (now := time.monotonic()) < end + _LEFT_S:
            due = min(int((now - began) * rate), total) - sent
            if due > 0:
                due_ns = int((began + (sent + 1) / rate) * 1e9)
                stamped = b"PUB %s %s.%019d %d\r\nT%019d%s\r\n" % (name, _STAMPED_INBOX, due_ns, size_bytes, due_ns, padding)
                connection.settimeout(_LEFT_S)
                connection.sendall(stamped + plain * (due - 1))
                sent += due
            connection.settimeout(max(min(began + (sent + 1) / rate, now + _TICK_S) - time.monotonic(), _TICK_S / 10))
            try:
                received = acks.receive(connection)
            except TimeoutError:
                continue
            stamped_acks.add(received, time.monotonic_ns())
        took_s = time.monotonic() - began
    figures = {"acked": acks.acked, "took_s": took_s, "cpu_s": time.process_time(), "asked_per_s": rate}
    return figures | quantiles(stamped_acks.times_ns, "ack_")


def answer(port: int, subject: str) -> None:
    """Acknowledge every message on ``subject`` until the process is killed. ``port``: port of the local nats-server."""
    asking = re.compile(rb"MSG %s 1 (_INBOX\S+) \d" % re.escape(subject.encode()))
    with open_nats(port, subject.encode()) as connection:
        print("go", flush=True)
        tail = b""
        while received := connection.recv(1 << 20):
            data = tail + received
            requests = Counter(asking.findall(data))
            requests.subtract(asking.findall(tail))
            replies = (b"PUB %s %d\r\n%s\r\n" % (inbox, len(_ANSWER), _ANSWER) * count for inbox, count in requests.items())
            connection.sendall(b"".join(replies))
            if b"PING\r\n" in received:
                connection.sendall(b"PONG\r\n")
            tail = data[-_LONGEST_BYTES:]


def main(words: list[str]) -> None:
    """Run one of the processes and print its values (see the module docstring)."""
    kind, port, subject, *more = words
    if kind == "answer":
        answer(int(port), subject)
    elif kind == "publish":
        seconds, size_bytes, window, each, dialect = (*more, *("1", "plain")[len(more) - 3 :])
        sizes = int(size_bytes), int(window), int(each)
        print(json.dumps(publish(int(port), subject, float(seconds), *sizes, DIALECTS[dialect])))
    elif kind == "open-loop":
        seconds, size_bytes, rate = more
        print(json.dumps(publish_at_rate(int(port), subject, float(seconds), int(size_bytes), float(rate))))
    else:
        raise SystemExit(f"Unknown process {kind}. Use publish, open-loop or answer.")


if __name__ == "__main__":
    main(sys.argv[1:])
