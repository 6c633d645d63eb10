"""Converts replication frames to values and back, and checks their addresses.

Only this module knows that requests are protobuf and responses are binary.

Every ``decode_*`` takes a complete NATS payload. It raises ProtocolError, including EnvelopeError, for bytes that are
not the expected frame, and no other error. Values are the generated protobuf messages, except ReplicationResponse. Its
payload is 8 bytes LeaderEpoch, 8 bytes HW (big endian, two's complement) and then record batches.

Addresses: a request names its stream and partition, and an answer also names its request. The receiver drops a message
for another partition or request. NATS delivers a message by its subject, which no CRC-32C of a frame covers. So a
relay, a broken tool, or a process that repeats a frame can deliver it to the wrong receiver. The address finds
mistakes. It is no signature.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import crc32c
from google.protobuf.message import DecodeError, Message

from liftpy.core.base.ids import quote
from liftpy.core.wire import envelope
from liftpy.core.wire._pb import client_pb2, cluster_pb2, replication_pb2, service_pb2
from liftpy.core.wire.chunking import Piece
from liftpy.core.wire.envelope import EnvelopeError, MessageType
from liftpy.errors import ProtocolError

_RESPONSE = struct.Struct(">Qq")
_LENGTH = struct.Struct(">I")
_PIECE = struct.Struct(">QqIII")
PIECE_OVERHEAD_BYTES = envelope.CRC_HEADER_SIZE_BYTES + envelope.ADDRESS_SIZE_BYTES + _PIECE.size
RESPONSE_HEADER_SIZE_BYTES = _RESPONSE.size

_TYPES: dict[type[Message], MessageType] = {
    client_pb2.Message: MessageType.PUBLISH,
    client_pb2.BatchPublish: MessageType.BATCH_PUBLISH,
    client_pb2.Ack: MessageType.ACK,
    client_pb2.ReadRequest: MessageType.READ_REQUEST,
    replication_pb2.ReplicationRequest: MessageType.REPLICATION_REQUEST,
    replication_pb2.ReplicationRefusal: MessageType.REPLICATION_REFUSAL,
    replication_pb2.LeaderEpochOffsetRequest: MessageType.LEADER_EPOCH_OFFSET_REQUEST,
    replication_pb2.LeaderEpochOffsetResponse: MessageType.LEADER_EPOCH_OFFSET_RESPONSE,
    replication_pb2.StateRequest: MessageType.STATE_REQUEST,
    replication_pb2.StateResponse: MessageType.STATE_RESPONSE,
    replication_pb2.PartitionNotification: MessageType.PARTITION_NOTIFICATION,
    replication_pb2.LeaderNotice: MessageType.LEADER_NOTICE,
    replication_pb2.QuietFetches: MessageType.QUIET_FETCHES,
    replication_pb2.QuietFetchesAnswer: MessageType.QUIET_FETCHES_ANSWER,
    replication_pb2.StepAside: MessageType.STEP_ASIDE,
    replication_pb2.LeaderQuestion: MessageType.LEADER_QUESTION,
    replication_pb2.LeaderTestimony: MessageType.LEADER_TESTIMONY,
    cluster_pb2.ControlRequest: MessageType.CONTROL_REQUEST,
    cluster_pb2.ControlResponse: MessageType.CONTROL_RESPONSE,
    cluster_pb2.FeedEntry: MessageType.FEED_ENTRY,
    cluster_pb2.FeedSnapshotRequest: MessageType.FEED_SNAPSHOT_REQUEST,
    cluster_pb2.FeedSnapshotResponse: MessageType.FEED_SNAPSHOT_RESPONSE,
    service_pb2.ServiceHello: MessageType.SERVICE_HELLO,
    service_pb2.JoinLog: MessageType.JOIN_LOG,
    service_pb2.ServiceAck: MessageType.SERVICE_ACK,
    service_pb2.ServiceRefusal: MessageType.SERVICE_REFUSAL,
    service_pb2.ServiceReport: MessageType.SERVICE_REPORT,
    service_pb2.SnapshotRequest: MessageType.SNAPSHOT_REQUEST,
    service_pb2.PeerSnapshotRequest: MessageType.PEER_SNAPSHOT_REQUEST,
    service_pb2.PeerSnapshotAnswer: MessageType.PEER_SNAPSHOT_ANSWER,
}

M = TypeVar("M", bound=Message)
Chunks = Sequence[envelope.Buffer]
_YES = b"yes"
_LONGEST = 20
"""Maximum number of digits of a time in nanoseconds since 1970. A 64-bit number has no more."""
_ADDRESS = struct.Struct(">QII")


@dataclass(frozen=True, slots=True)
class ReplicationPiece:
    """Answer of a leader to a fetch whose next batch does not fit into one message.

    Layout, big endian: 8 bytes LeaderEpoch, 8 bytes HW, then 4 bytes each: CRC-32C of the batch, its size, and the
    position of the following bytes.
    """

    leader_epoch: int
    high_watermark: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class ReplicationResponse:
    """A leader's answer to a fetch. ``batches``: consecutive record batches, empty when the follower has all records."""

    leader_epoch: int
    high_watermark: int
    batches: memoryview


def encode(message: Message) -> bytes:
    """Return the envelope of a protobuf message, without a CRC. The class of the message determines its type."""
    return envelope.encode(_TYPES[type(message)], message.SerializeToString(deterministic=True))


def seal(message: Message) -> bytes:
    """Return the envelope of a protobuf message with a CRC-32C, as nodes and clients send it."""
    return envelope.encode(_TYPES[type(message)], message.SerializeToString(deterministic=True), crc=True)


def decode(frame: bytes | memoryview, expected: type[M]) -> M:
    """Return the protobuf message of class ``expected`` in the envelope ``frame``. Raises ProtocolError for anything else."""
    _, payload = envelope.decode(frame, _TYPES[expected])
    return parse(payload, expected)


def parse(payload: bytes | memoryview, expected: type[M]) -> M:
    """Return the protobuf message of class ``expected`` in ``payload``, bytes without an envelope. Raises ProtocolError."""
    try:
        return expected.FromString(bytes(payload))
    except (DecodeError, ValueError) as error:
        raise ProtocolError(f"Cannot decode a {expected.__name__}: {error}. Check that all versions are compatible.") from None


def replication_response_header(
    leader_epoch: int, high_watermark: int, chunks: Chunks | None = None, address: bytes = b""
) -> bytes:
    """Return the beginning of a ReplicationResponse: envelope and 16 bytes with epoch and HW. The caller sends its batches after it.

    ``chunks``: the batches, for an envelope with a CRC-32C. None: no CRC. ``address``: address of the fetch, if that requested
    one.
    """
    return _head(MessageType.REPLICATION_RESPONSE, _RESPONSE.pack(leader_epoch, high_watermark), chunks, address)


def _head(message_type: MessageType, head: bytes, chunks: Chunks | None, address: bytes = b"") -> bytes:
    if chunks is None:
        return envelope.header(message_type) + head
    return envelope.checked_header(message_type, head, chunks, address)


def decode_replication_response(frame: bytes | memoryview) -> ReplicationResponse:
    """Parse a ReplicationResponse with its envelope. Its batches are not decoded. Raises ProtocolError."""
    _, payload = envelope.decode(frame, MessageType.REPLICATION_RESPONSE)
    return parse_replication_response(payload)


def parse_replication_response(payload: memoryview) -> ReplicationResponse:
    """Return the ReplicationResponse in ``payload``, bytes without an envelope. Raises ProtocolError."""
    if len(payload) < RESPONSE_HEADER_SIZE_BYTES:
        raise ProtocolError(
            f"A ReplicationResponse needs at least 16 bytes after its envelope, but it has {len(payload)}. "
            "Check the versions of the nodes."
        )
    leader_epoch, high_watermark = _RESPONSE.unpack_from(payload)
    return ReplicationResponse(leader_epoch, high_watermark, payload[RESPONSE_HEADER_SIZE_BYTES:])


def replication_piece_header(leader_epoch: int, high_watermark: int, piece: Piece, address: bytes = b"") -> bytes:
    """Return the beginning of a ReplicationPiece: envelope with a CRC-32C, and header. The caller sends the data of ``piece`` after it.

    It has at most PIECE_OVERHEAD_BYTES. ``address``: address of the fetch, if that requested one.
    """
    head = _PIECE.pack(leader_epoch, high_watermark, piece.crc, piece.total_bytes, piece.position)
    return envelope.checked_header(MessageType.REPLICATION_PIECE, head, (piece.data,), address)


def decode_replication_piece(frame: bytes | memoryview) -> ReplicationPiece:
    """Return the ReplicationPiece in the envelope ``frame``. Raises ProtocolError for anything else."""
    return parse_replication_piece(envelope.decode(frame, MessageType.REPLICATION_PIECE)[1])


def parse_replication_piece(payload: memoryview) -> ReplicationPiece:
    """Return the ReplicationPiece in ``payload``, bytes without an envelope. Raises ProtocolError."""
    if len(payload) < _PIECE.size:
        raise ProtocolError(
            f"A ReplicationPiece needs at least {_PIECE.size} bytes after its envelope, but it has {len(payload)}. Check the "
            "versions of the nodes."
        )
    leader_epoch, high_watermark, crc, total_bytes, position = _PIECE.unpack_from(payload)
    return ReplicationPiece(leader_epoch, high_watermark, Piece(crc, total_bytes, position, payload[_PIECE.size :]))


def piece_in(head: client_pb2.ReadResponse, body: memoryview) -> Piece | None:
    """Return the piece of a batch in a ReadResponse with header ``head`` and content ``body``. None: it has whole batches.

    Raises ProtocolError.
    """
    return Piece(head.pieceCrc, head.pieceTotal, head.piecePosition, body) if head.pieceTotal else None


def read_response_header(head: client_pb2.ReadResponse, chunks: Chunks | None = None) -> bytes:
    """Return the beginning of a ReadResponse: envelope, length and ``head``. The caller sends its batches after it.

    ``chunks``: the batches, for an envelope with a CRC-32C. None: no CRC.
    """
    body = head.SerializeToString()
    return _head(MessageType.READ_RESPONSE, _LENGTH.pack(len(body)) + body, chunks)


def batch_publish(head: client_pb2.BatchPublish, batch: bytes) -> bytes:
    """Return the envelope of a BatchPublish: ``head``, then one record ``batch``."""
    body = head.SerializeToString()
    return b"".join((envelope.header(MessageType.BATCH_PUBLISH), _LENGTH.pack(len(body)), body, batch))


def decode_batch_publish(frame: bytes | memoryview) -> tuple[client_pb2.BatchPublish, memoryview]:
    """Return the header and the record batch of a BatchPublish. The batch is a view into ``frame``, and is not checked yet.

    Raises ProtocolError.
    """
    return _parse_headed(frame, MessageType.BATCH_PUBLISH, client_pb2.BatchPublish)


def decode_read_response(frame: bytes | memoryview) -> tuple[client_pb2.ReadResponse, memoryview]:
    """Return the header of a ReadResponse, and its batches as a view into ``frame``. Raises ProtocolError for anything else."""
    return _parse_headed(frame, MessageType.READ_RESPONSE, client_pb2.ReadResponse)


def _parse_headed(frame: bytes | memoryview, kind: MessageType, expected: type[M]) -> tuple[M, memoryview]:
    _, payload = envelope.decode(frame, kind)
    if len(payload) < _LENGTH.size:
        raise ProtocolError(
            f"A {expected.__name__} needs at least 4 bytes after its envelope. Check the versions of the nodes."
        )
    end = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    if end > len(payload):
        raise ProtocolError(f"The header of a {expected.__name__} is longer than its frame. Check the versions of the nodes.")
    return parse(payload[_LENGTH.size : end], expected), payload[end:]


# ---- presence --------------------------------------------------------------------------------------------------------


def encode_presence(wall_ns: int) -> bytes:
    """Return the answer to a probe whether a node is connected: ``yes``, a blank, and ``wall_ns`` in digits.

    Older versions send only ``yes``. They check only that an answer arrives, so they accept both forms. ``wall_ns``: wall clock
    of the node, in nanoseconds since 1970.
    """
    return b"%s %d" % (_YES, wall_ns)


def decode_presence(answer: bytes) -> int | None:
    """Return the wall clock in the answer of a probed node, in nanoseconds since 1970. None: the answer has none."""
    yes, _, digits = bytes(answer).partition(b" ")
    is_valid = yes == _YES and 0 < len(digits) <= _LONGEST and digits.isdigit()
    return int(digits) if is_valid else None


# ---- addresses -------------------------------------------------------------------------------------------------------


class MisdirectedError(EnvelopeError):
    """The frame is for another partition or another request. Ignore it: the right one may still arrive."""

    code = "MISDIRECTED"

    def __init__(self, text: str) -> None:
        super().__init__(text, "addressee")


def address(uid: str, partition: int, request_id: int) -> bytes:
    """Return the address of a request (16 bytes). A binary answer repeats it, so that the receiver can check it.

    The address is big endian: request id (8 bytes), partition (4), CRC-32C of the stream's uid (4). In an answer to a fetch it
    comes first in the payload (``envelope``, flag bit 1). Protobuf messages have fields for it (``streamUid`` or ``stream``,
    ``partition``, ``requestId``).
    """
    return _ADDRESS.pack(request_id, partition, _uid_sum(uid))


@lru_cache(4096)
def _uid_sum(uid: str) -> int:
    return crc32c.crc32c(uid.encode())


def check_partition_address(message: Any, partition: int, **expected: object) -> None:
    """Raise MisdirectedError unless ``message`` has this ``partition`` and the values in ``expected`` (field name -> value).

    Messages of older versions without a partition are accepted.
    """
    if not message.HasField("partition"):
        return
    for name, value in {"partition": partition, **expected}.items():
        received = getattr(message, name)
        if received != value:
            raise MisdirectedError(
                f"Received a {type(message).__name__} for {name} {_short_text(received)}, expected {_short_text(value)}"
            )


def _short_text(value: object) -> str:
    return quote(value) if isinstance(value, str) else str(value)


def check_answer_address(received: bytes, expected: bytes) -> None:
    """Raise MisdirectedError unless ``received``, the address in an answer, is ``expected``, the address of the request."""
    if received != expected:
        raise MisdirectedError("Received the answer to another fetch request. It is dropped.")
