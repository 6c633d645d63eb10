"""Ordinary envelopes: of a value without key and headers, with or without a message id, for one partition and ack policy. Pure.

What a client sends by the thousand differs in its value, its id and its CRC alone. So both sides put it together from, and take it
apart by, parts that stay the same: the very bytes that protobuf makes of a ``Message``. Whatever has another form is for protobuf.
"""

from __future__ import annotations

import crc32c

from liftpy.config import AckPolicy
from liftpy.errors import ConfigError
from liftpy.wire import envelope
from liftpy.wire._pb import client_pb2

POLICIES = {AckPolicy.LEADER: client_pb2.LEADER, AckPolicy.ALL: client_pb2.ALL, AckPolicy.NONE: client_pb2.NONE}
LONGEST_ID_BYTES = 100
"""Of an id in an ordinary envelope: its sizes have one byte each."""
_VALUE = b"\x1a"
"""The tag of ``Message.value``."""
_SHORT = [bytes([size]) for size in range(128)]
_MARKS = [b"\x4a%c\x0a\x0bNats-Msg-Id\x12%c" % (size + 15, size) for size in range(LONGEST_ID_BYTES + 1)]
"""What stands before a message id of that size, as the one header of a ``Message``."""
_MARK_BYTES = len(_MARKS[0])
_HEAD = envelope.encode(envelope.MessageType.PUBLISH, b"", crc=True)[: envelope.HEADER_SIZE_BYTES]
_LONGEST_VARINT = 5
_crc = crc32c.crc32c


class Ordinary:
    """Of one stream, uid, partition and ack policy; ``runs``: whether its sender counts its messages (``liftpy/wire/runs.py``)."""

    def __init__(self, stream: str, partition: int, uid: str, ack: AckPolicy, *, runs: bool = False) -> None:
        self.made_for = uid, ack
        """For another uid or policy another one is made."""
        self.runs = runs
        if ack not in POLICIES:
            raise ConfigError(f"ack is an AckPolicy, not {ack!r}")
        value, name = b"\0\1\2", "\3"
        parts = client_pb2.Message(
            offset=-1, value=value, stream=stream, streamUid=uid, partition=partition, ackPolicy=POLICIES[ack], runs=runs
        )
        marked = client_pb2.Message()
        marked.CopyFrom(parts)
        marked.headers.add(name=name)
        whole, with_header = parts.SerializeToString(), marked.SerializeToString()
        at, header = whole.index(_VALUE + b"\3" + value), b"\x4a\3\x0a\1\3"
        self._before, self._between = whole[:at] + _VALUE, with_header[at + 2 + len(value) : with_header.index(header)]
        self._after = with_header[with_header.index(header) + len(header) :]
        self._plain_after = self._between + self._after

    def envelope(self, value: bytes, msg_id: bytes) -> bytes:
        """``value``: some bytes. ``msg_id``: at most LONGEST_ID_BYTES, b"": none."""
        size = len(value)
        if msg_id:
            body = b"%b%b%b%b%b%b%b" % (
                self._before, _SHORT[size] if size < 128 else _varint(size), value, self._between, _MARKS[len(msg_id)], msg_id,
                self._after,
            )  # fmt: skip
        else:
            body = b"%b%b%b%b" % (self._before, _SHORT[size] if size < 128 else _varint(size), value, self._plain_after)
        return b"%b%b%b" % (_HEAD, _crc(body).to_bytes(4), body)

    def opened(self, payload: bytes) -> tuple[bytes, bytes] | None:
        """(value, message id or b"") of an envelope of this form; None: it has another one, or its CRC is wrong."""
        before, after, at = self._before, self._after, envelope.CRC_HEADER_SIZE_BYTES
        if not (payload.startswith(_HEAD) and payload.startswith(before, at) and payload.endswith(after)):
            return None
        at += len(before)
        end = len(payload) - len(after)
        if at >= end:
            return None
        size = payload[at]
        at += 1
        if size >= 128:
            size, at = _read_varint(payload, at - 1)
        value_at, at = at, at + size
        if not payload.startswith(self._between, at):
            return None
        value, at, msg_id = payload[value_at:at], at + len(self._between), b""
        if at != end:
            id_at = at + _MARK_BYTES
            if not 0 < end - id_at <= LONGEST_ID_BYTES or not payload.startswith(_MARKS[end - id_at], at):
                return None
            msg_id = payload[id_at:end]
        return (value, msg_id) if payload[8:12] == _crc(payload[12:]).to_bytes(4) else None


def _varint(size: int) -> bytes:
    digits = bytearray()
    while size >= 128:
        digits.append(size & 127 | 128)
        size >>= 7
    digits.append(size)
    return bytes(digits)


def _read_varint(payload: bytes, at: int) -> tuple[int, int]:
    """A size, and where it ends; one that no payload has, where it is none."""
    size = 0
    for place, digit in enumerate(payload[at : at + _LONGEST_VARINT]):
        size |= (digit & 127) << 7 * place
        if digit < 128:
            return size, at + place + 1
    return len(payload), at
