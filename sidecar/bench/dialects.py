"""Message formats of the systems over NATS, and how their acks are recognized.

Messages are built without protobuf, so that the publisher costs as little as possible.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

_ENVELOPE = struct.Struct(">4sBBBB")
_MAGIC, _PUBLISH, _ACK = b"\xb9\x0e\x43\xb4", 0, 1
_REFUSED = re.compile(rb"\x50[\x01-\x7f]\r\n")
"""Beginning of the field ackError, the last one of an ack. It is absent if the value is 0.

No other one-byte field is at the end of an ack.
"""


def open_nats(port: int, subscription: bytes, timeout_s: float | None = None) -> socket.socket:
    """Return a socket to the local nats-server at ``port``, subscribed to ``subscription`` with the id 1."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.recv(4096)
    connection.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % subscription)
    while b"PONG" not in connection.recv(4096):
        pass
    return connection


class Dialect(NamedTuple):
    """Message format of one system.

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
