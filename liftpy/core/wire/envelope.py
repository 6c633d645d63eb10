"""The envelope: the header of every payload on a ``<ns>`` subject, and of an enveloped publish.

Layout, big endian: magic ``B9 0E 43 B4`` (4) | version 0 (1) | header length 8, or 12 with a CRC (1) | flags, bit 0:
CRC-32C present, bit 1: an address of 16 bytes comes before the payload, covered by the CRC (1) | message type (1) |
[CRC-32C of everything after the header (4)] | [address] | payload. An answer has an address only if the request asked
for one (``frames.address``). Source: the published Liftbridge envelope. ``tests/vectors/wire.json`` has vectors.

Ordinary envelopes are the most frequent ones: a value without key and headers, with or without a message id, for one
partition and ack policy. They differ only in the value, the id and the CRC. So both sides build and parse them from
constant parts, which are the bytes of a protobuf ``Message``. protobuf itself handles all other forms.

Runs: a publisher that numbers its messages under one inbox (``X.0``, ``X.1``...) says so in them (``Message.runs``).
Then one Ack answers consecutive messages of the inbox [A1, A8]. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from operator import eq

import crc32c

from liftpy.config import AckPolicy
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import ConfigError, ProtocolError

MAGIC = b"\xb9\x0e\x43\xb4"
VERSION = 0
HEADER_SIZE_BYTES = 8
CRC_HEADER_SIZE_BYTES = 12
ADDRESS_SIZE_BYTES = 16
_FLAG_CRC, _FLAG_ADDRESS = 1, 2
_HEADER = struct.Struct(">4sBBBB")
_CRC = struct.Struct(">I")

Buffer = bytes | bytearray | memoryview
POLICIES = {AckPolicy.LEADER: client_pb2.LEADER, AckPolicy.ALL: client_pb2.ALL, AckPolicy.NONE: client_pb2.NONE}
LONGEST_ID_BYTES = 100
"""Maximum length of a message id in an ordinary envelope, in bytes. Its length fields have one byte each."""
_VALUE = b"\x1a"
"""The tag of ``Message.value``."""
_SHORT = [bytes([size]) for size in range(128)]
_MARKS = [b"\x4a%c\x0a\x0bNats-Msg-Id\x12%c" % (size + 15, size) for size in range(LONGEST_ID_BYTES + 1)]
"""Bytes before a message id of this length, as the only header of a ``Message``."""
_MARK_BYTES = len(_MARKS[0])
_LONGEST_VARINT = 5
_crc = crc32c.crc32c
MAX_DIGITS = 18
"""Maximum number of digits of a number in a reply."""
_FASTER = 4
_ZERO = ord("0")


class MessageType(IntEnum):
    """Type of a message in an envelope. 0-14 are those of the Liftbridge protocol, the others are liftpy's."""

    PUBLISH = 0
    ACK = 1
    REPLICATION_REQUEST = 2
    REPLICATION_RESPONSE = 3
    LEADER_EPOCH_OFFSET_REQUEST = 6
    LEADER_EPOCH_OFFSET_RESPONSE = 7
    PROPAGATED_REQUEST = 8
    PROPAGATED_RESPONSE = 9
    SERVER_INFO_REQUEST = 10
    SERVER_INFO_RESPONSE = 11
    PARTITION_STATUS_REQUEST = 12
    PARTITION_STATUS_RESPONSE = 13
    PARTITION_NOTIFICATION = 14
    REPLICATION_REFUSAL = 15
    LEADER_NOTICE = 16
    READ_REQUEST = 17
    READ_RESPONSE = 18
    CONTROL_REQUEST = 19
    CONTROL_RESPONSE = 20
    FEED_ENTRY = 21
    FEED_SNAPSHOT_REQUEST = 22
    FEED_SNAPSHOT_RESPONSE = 23
    STATUS_REQUEST = 24
    STATUS_RESPONSE = 25
    BATCH_PUBLISH = 26
    STEP_ASIDE = 27
    LEADER_QUESTION = 28
    LEADER_TESTIMONY = 29
    REPLICATION_PIECE = 30
    RAFT_FRAME = 31
    SERVICE_HELLO = 32
    JOIN_LOG = 33
    SERVICE_ACK = 34
    SERVICE_REFUSAL = 35
    QUIET_FETCHES = 36
    QUIET_FETCHES_ANSWER = 37
    SERVICE_REPORT = 38
    SNAPSHOT_REQUEST = 39
    PEER_SNAPSHOT_REQUEST = 44
    PEER_SNAPSHOT_ANSWER = 45
    STATE_REQUEST = 46
    STATE_RESPONSE = 47


_BY_NUMBER: dict[int, MessageType] = {message_type.value: message_type for message_type in MessageType}
"""Message types by number. A call of ``MessageType`` takes longer than this lookup."""


class EnvelopeError(ProtocolError):
    """The frame is not an envelope of the expected type. The text says why. The sender is the cause."""

    code = "ENVELOPE"

    def __init__(self, text: str, reason: str = "envelope") -> None:
        super().__init__(text)
        self.reason = reason


class ChecksumError(EnvelopeError):
    """The CRC-32C of an envelope is wrong.

    The content was changed in the network, so no part of it can be trusted, not even its reply subject.
    """

    code = "CHECKSUM"

    def __init__(self, text: str) -> None:
        super().__init__(text, "checksum")


def sealed_payload(frame: bytes | memoryview, expected: MessageType) -> memoryview:
    """Return the payload of an envelope of the type ``expected`` that must have a CRC. Raises the errors of ``decode``."""
    payload = decode(frame, expected)[1]
    if frame[6] & _FLAG_ADDRESS:
        raise EnvelopeError("This message must not have a stream address. Check the version of its sender.")
    if len(frame) - len(payload) != CRC_HEADER_SIZE_BYTES or not frame[6] & _FLAG_CRC:
        raise EnvelopeError("The envelope has no CRC-32C, but this message needs one. Check the version of its sender.")
    return payload


def is_of(frame: bytes | memoryview, message_type: MessageType) -> bool:
    """Return whether the header of ``frame`` has this message type. The frame may still be invalid."""
    return len(frame) >= HEADER_SIZE_BYTES and frame[7] == message_type


def header(message_type: MessageType) -> bytes:
    """Return the 8 header bytes of an envelope without a CRC, for payloads that are sent in pieces."""
    return _HEADER.pack(MAGIC, VERSION, HEADER_SIZE_BYTES, 0, message_type)


def checked_header(message_type: MessageType, head: bytes, chunks: Iterable[Buffer] = (), address: bytes = b"") -> bytes:
    """Return the beginning of an envelope with a CRC: header of 12 bytes, ``address`` and ``head``. The CRC also covers ``chunks``.

    ``chunks``: rest of the payload, which the caller sends after it. ``address``: 16 bytes of the request that this message
    answers, or none.
    """
    flags = _FLAG_CRC
    if address:
        flags, head = _FLAG_CRC | _FLAG_ADDRESS, address + head
    crc = crc32c.crc32c(head)
    for chunk in chunks:
        crc = crc32c.crc32c(chunk, crc)
    return _HEADER.pack(MAGIC, VERSION, CRC_HEADER_SIZE_BYTES, flags, message_type) + _CRC.pack(crc) + head


def encode(message_type: MessageType, payload: bytes, *, crc: bool = False) -> bytes:
    """Return an envelope of this type around ``payload``.

    ``crc``: True to add a CRC-32C, which also finds damage by relays and tools that TCP checksums do not find.
    """
    return checked_header(message_type, payload) if crc else header(message_type) + payload


def decode(frame: bytes | memoryview, expected: MessageType | None = None) -> tuple[MessageType, memoryview]:
    """Return type and payload (a view into ``frame``) of an envelope. Raises EnvelopeError for anything else.

    ``expected``: the only accepted type. None: any.
    """
    message_type, _, payload = decode_addressed(frame, expected)
    return message_type, payload


def decode_addressed(frame: bytes | memoryview, expected: MessageType | None = None) -> tuple[MessageType, bytes, memoryview]:
    """Return type, address and payload of an envelope. b"": it has no address. Raises the errors of ``decode``.

    ``expected``: the only accepted type. None: any.
    """
    view = memoryview(frame)
    if len(view) < HEADER_SIZE_BYTES:
        raise EnvelopeError(
            f"The message has {len(view)} bytes, less than an envelope header. Check the version of its sender.", "no envelope"
        )
    magic, version, header_size_bytes, flags, number = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise EnvelopeError(
            "The message is not a liftpy envelope: its magic number is missing. Check the version of its sender.", "no envelope"
        )
    if version != VERSION:
        raise EnvelopeError(
            f"The envelope has version {version}, but this version reads {VERSION}. Upgrade liftpy.",
            "version",
        )
    if not HEADER_SIZE_BYTES <= header_size_bytes <= len(view):
        raise EnvelopeError(
            f"The envelope has an invalid header length {header_size_bytes}, outside 8..{len(view)}. Check "
            "the version of its sender."
        )
    payload = view[header_size_bytes:]
    if flags & _FLAG_CRC:
        if header_size_bytes != CRC_HEADER_SIZE_BYTES:
            raise EnvelopeError(
                f"The envelope has a CRC flag, but a header of {header_size_bytes} bytes instead of {CRC_HEADER_SIZE_BYTES}. "
                "Check the version of its sender."
            )
        if _CRC.unpack_from(view, HEADER_SIZE_BYTES)[0] != crc32c.crc32c(payload):
            raise ChecksumError(
                "The CRC-32C of the message does not match its payload. It was damaged on its way, or written by a "
                "faulty client."
            )
    address = b""
    if flags & _FLAG_ADDRESS:
        if not flags & _FLAG_CRC or len(payload) < ADDRESS_SIZE_BYTES:
            raise EnvelopeError(
                f"The envelope has an address, so it needs a CRC-32C and {ADDRESS_SIZE_BYTES} bytes. Check "
                "the version of its sender."
            )
        address, payload = bytes(payload[:ADDRESS_SIZE_BYTES]), payload[ADDRESS_SIZE_BYTES:]
    message_type = _BY_NUMBER.get(number)
    if message_type is None:
        raise EnvelopeError(
            f"The envelope has the unknown message type {number}. Upgrade liftpy.",
            "message type",
        )
    if expected is not None and message_type is not expected:
        raise EnvelopeError(
            f"The message has type {message_type.name}, but {expected.name} was expected. Check the version of its sender.",
            "message type",
        )
    return message_type, address, payload


_HEAD = encode(MessageType.PUBLISH, b"", crc=True)[:HEADER_SIZE_BYTES]


class FastEnvelope:
    """Builds and parses envelopes of the most frequent form, to one stream, uid and partition with one ack policy.

    ``runs``: True if the sender numbers its messages, so that one Ack can answer several of them.
    """

    def __init__(self, stream: str, partition: int, uid: str, ack: AckPolicy, *, runs: bool = False) -> None:
        self.uid_and_policy = uid, ack
        """Uid and policy for which this object was made. Others need another object."""
        self.runs = runs
        if ack not in POLICIES:
            raise ConfigError(f"Invalid ack {ack!r}. Use an AckPolicy.")
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
        """Return an envelope with ``value``. ``msg_id``: at most LONGEST_ID_BYTES, b"" for none."""
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
        """Return (value, message id) of an envelope of this form. b"": the envelope has no message id.

        Return None if ``payload`` has another form or a wrong CRC.
        """
        before, after, at = self._before, self._after, CRC_HEADER_SIZE_BYTES
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
    """Return a size in ``payload`` at position ``at``, and the position after it. If it is invalid, return a size that no payload
    has.
    """
    size = 0
    for place, digit in enumerate(payload[at : at + _LONGEST_VARINT]):
        size |= (digit & 127) << 7 * place
        if digit < 128:
            return size, at + place + 1
    return len(payload), at


# ---- runs: one Ack for several messages ------------------------------------------------------------------------------


def run_end(replies: Sequence[bytes], start: int, end: int) -> int:
    """Return the exclusive end of the run of reply subjects that begins at index ``start``.

    A run has one inbox and ascending numbers without a gap, and its records have consecutive offsets in one batch. One Ack to
    the first message can answer it. An Ack to ``X.n`` with ``recordCount`` k and ``offset`` o answers ``X.n`` to ``X.n+k-1``,
    whose records are at o to o+k-1. Every other answer is for one message: a rejection, a duplicate, or a message that a new
    leader recognized.

    The result is at most ``end``, and ``start`` + 1 if no run begins there.

    Worked example: replies ``X.7 X.8 Y.9 X.10 X.12`` at offsets 50 to 54 get Acks to ``X.7`` (50, 2 records), ``Y.9``, ``X.10``
    and ``X.12``.
    """
    inbox, number = split_numbered_reply(replies[start])
    if number < 0:
        return start + 1
    place, step = start + 1, 1
    while place < end:
        run = list(replies[place : min(place + step, end)])
        wanted = _names(inbox, number + place - start, len(run))
        if run != wanted:
            return place + list(map(eq, run, wanted)).index(False)
        place, step = place + len(run), step * _FASTER
    return end


def split_numbered_reply(reply: bytes) -> tuple[bytes, int]:
    """Return (inbox, number) of a reply subject that ends with a number. -1: the number is missing or has another form."""
    inbox, _, digits = reply.rpartition(b".")
    if not inbox or not digits.isdigit() or len(digits) > MAX_DIGITS or (digits[0] == _ZERO and len(digits) > 1):
        return b"", -1
    return inbox, int(digits)


def _names(inbox: bytes, number: int, how_many: int) -> list[bytes]:
    name = inbox.replace(b"%", b"%%") + b".%d"
    return [*map(name.__mod__, range(number, number + how_many))]
