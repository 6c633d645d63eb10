"""Message formats of the systems over NATS, and how their acks are recognized.

Bytes only, made and found without protobuf: the publisher is to cost as little as it can.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NamedTuple

_ENVELOPE = struct.Struct(">4sBBBB")
_MAGIC, _PUBLISH, _ACK = b"\xb9\x0e\x43\xb4", 0, 1
_REFUSED = re.compile(rb"\x50[\x01-\x7f]\r\n")
"""Last field of an ack, ackError, which is absent if it is 0. No other one-byte field is at the end of an ack."""


class Dialect(NamedTuple):
    """Format of one system.

    ``message``: encodes a value and the ack inbox (b'': none). ``by_reply``: NATS carries the inbox. ``ack``: bytes that each
    ack has once.
    """

    message: Callable[[bytes, bytes], bytes]
    by_reply: bool
    ack: bytes
    refused: Callable[[bytes], object]

    def publish(self, subject: bytes, value: bytes, inbox: bytes = b"") -> bytes:
        """Return the protocol line with its payload."""
        payload = self.message(value, inbox)
        reply = b" " + inbox if self.by_reply and inbox else b""
        return b"PUB %s%s %d\r\n%s\r\n" % (subject, reply, len(payload), payload)


def field(number: int, value: bytes) -> bytes:
    """Return a field of a protobuf message: bytes, a text, or a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def number_field(number: int, value: int) -> bytes:
    """Return a field that is a number from 0 on."""
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """Return a number from 0 on, seven bits a byte."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def enveloped(kind: int, payload: bytes) -> bytes:
    """Return an envelope without a checksum."""
    return _ENVELOPE.pack(_MAGIC, 0, _ENVELOPE.size, 0, kind) + payload


def _of_liftbridge(value: bytes, inbox: bytes) -> bytes:
    """Encode a message for Liftbridge that is acknowledged when all in-sync replicas have it, as liftpy does."""
    asked = field(10, inbox) + number_field(12, 1) if inbox else number_field(12, 2)
    return enveloped(_PUBLISH, field(3, value) + asked)


PLAIN = Dialect(lambda value, _: value, True, b'"seq"', lambda data: b'"error"' in data)
"""Answer of liftpy and JetStream: ``{"stream":..., "seq":...}``, or an ``error``."""
LIFTBRIDGE = Dialect(_of_liftbridge, False, enveloped(_ACK, b""), _REFUSED.search)
DIALECTS = {"plain": PLAIN, "liftbridge": LIFTBRIDGE}
