"""Test envelopes and frames: fields, vectors, damage and addresses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import crc32c
import pytest

from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2, replication_pb2
from liftpy.core.wire.chunking import PIECE_BYTES, Piece, requested_bytes, room_bytes
from liftpy.core.wire.decode_errors import by_reason, counter_name
from liftpy.core.wire.envelope import ChecksumError, EnvelopeError, MessageType
from liftpy.core.wire.frames import MisdirectedError, check_partition_address
from liftpy.core.wire.headers import pairs_of
from liftpy.errors import ConfigError, ProtocolError
from tests.each import each

ADDRESS = bytes(range(16))


def frame(flags: int, body: bytes, *, size: int | None = None, crc: bytes | None = None) -> bytes:
    """An envelope of type ACK whose header is as long as its flags need."""
    with_crc = bool(flags & 1)
    length = (12 if with_crc else 8) if size is None else size
    head = envelope.MAGIC + bytes((0, length, flags, MessageType.ACK))
    return head + ((crc32c.crc32c(body).to_bytes(4, "big") if crc is None else crc) if with_crc else b"") + body


def test_envelope_with_each_flag_is_decoded() -> None:
    assert envelope.decode_addressed(frame(0, b"body")) == (MessageType.ACK, b"", b"body")
    assert envelope.decode_addressed(frame(1, b"body")) == (MessageType.ACK, b"", b"body")
    assert envelope.decode_addressed(frame(3, ADDRESS + b"body")) == (MessageType.ACK, ADDRESS, b"body")
    assert envelope.decode_addressed(frame(3, ADDRESS)) == (MessageType.ACK, ADDRESS, b"")
    assert envelope.decode_addressed(frame(4, b"body")) == (MessageType.ACK, b"", b"body"), "a flag of a later version"
    assert envelope.decode_addressed(frame(0, b"later" + b"body", size=13)) == (MessageType.ACK, b"", b"body")
    assert envelope.checked_header(MessageType.ACK, b"he", (b"ad", b"er"), ADDRESS) + b"ader" == frame(3, ADDRESS + b"header")


@each(
    ("wrong", "reason"),
    [
        (frame(2, ADDRESS + b"body"), "envelope"), (frame(3, ADDRESS[:-1]), "envelope"), (frame(1, b"body", crc=b"none"), "checksum"),
        (frame(1, b"body", size=8), "envelope"), (frame(1, b"body", size=13), "envelope"), (frame(0, b"", size=9), "envelope"),
        (frame(0, b"", size=7), "envelope"), (frame(0, b"")[:7], "no envelope"), (b"x" + frame(0, b"")[1:], "no envelope"),
        (envelope.MAGIC + b"\1\x08\0\1", "version"), (envelope.MAGIC + b"\0\x08\0\xff", "message type"),
    ],
)  # fmt: skip
def test_invalid_envelope_is_rejected_with_the_reason(wrong: bytes, reason: str) -> None:
    with pytest.raises(EnvelopeError) as raised:
        envelope.decode_addressed(wrong)
    assert (raised.value.reason, isinstance(raised.value, ChecksumError)) == (reason, reason == "checksum")


def test_envelope_that_requires_a_crc_is_rejected_without_a_valid_one() -> None:
    assert envelope.sealed_payload(frame(1, b"body"), MessageType.ACK) == b"body"
    for wrong, text in (
        (frame(0, b"body"), "The envelope has no CRC-32C, but this message needs one."),
        (frame(0, b"abcd" + b"body", size=12), "The envelope has no CRC-32C, but this message needs one."),
        (frame(3, ADDRESS + b"body"), "This message must not have a stream address."),
    ):
        with pytest.raises(EnvelopeError, match=f"^{text}"):
            envelope.sealed_payload(wrong, MessageType.ACK)
    with pytest.raises(EnvelopeError, match="ACK, but PUBLISH was expected"):
        envelope.sealed_payload(frame(1, b"body"), MessageType.PUBLISH)


# ---- addresses ----------------------------------------------------------------------------------------------------------------
def test_message_for_another_partition_stream_or_request_is_rejected() -> None:
    request = replication_pb2.ReplicationRefusal(partition=3, streamUid="u1", requestId=5)
    check_partition_address(request, 3, streamUid="u1", requestId=5)
    for partition, said, text in (
        (4, {}, "Received a ReplicationRefusal for partition 3, expected 4"),
        (3, {"streamUid": "u2"}, "Received a ReplicationRefusal for streamUid 'u1', expected 'u2'"),
        (3, {"streamUid": "u1", "requestId": 6}, "Received a ReplicationRefusal for requestId 5, expected 6"),
    ):
        with pytest.raises(MisdirectedError, match=f"^{text}"):
            check_partition_address(request, partition, **said)
    check_partition_address(replication_pb2.ReplicationRefusal(requestId=5), 4, requestId=6)
    check_partition_address(replication_pb2.ReplicationRefusal(partition=0), 0)
    with pytest.raises(MisdirectedError):
        check_partition_address(replication_pb2.ReplicationRefusal(partition=0), 1)


# ---- pieces --------------------------------------------------------------------------------------------------------------------
def test_read_response_fragment_encoded_and_decoded_is_equal() -> None:
    data = memoryview(b"some bytes")
    head = client_pb2.ReadResponse(pieceCrc=71, pieceTotal=72, piecePosition=3)
    assert frames.piece_in(head, data) == Piece(71, 72, 3, data)
    assert frames.piece_in(client_pb2.ReadResponse(pieceCrc=71), data) is None
    with pytest.raises(ProtocolError, match="batch: bytes 3 to 13"):
        frames.piece_in(client_pb2.ReadResponse(pieceCrc=71, pieceTotal=12, piecePosition=3), data)


@pytest.mark.parametrize(
    ("payload", "overhead", "asked", "room"),
    [
        (1 << 20, 100, 1, (1 << 20) - 100),
        (8 << 20, 100, 1, PIECE_BYTES),
        (8 << 20, 100, 2 << 20, 2 << 20),
        (120, 100, 5000, 64),
    ],
)
def test_response_size_limit_is_the_lower_of_max_payload_and_request(
    payload: int, overhead: int, asked: int, room: int
) -> None:
    assert room_bytes(payload, overhead, asked) == room


@pytest.mark.parametrize(
    ("wanted", "payload", "requested"),
    [(5000, 1 << 20, 5000), (2 << 20, 1 << 20, (1 << 20) - 4096), (5000, 1000, 500), (10, 1 << 20, 64), (5000, 100, 64)],
)
def test_reader_requests_as_many_bytes_as_fit_into_one_answer(wanted: int, payload: int, requested: int) -> None:
    assert requested_bytes(wanted, payload) == requested


# ---- names, subjects, rights -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [[(7, b"x")], [(None, b"x")], [(b"name", b"x")], [("a",)], ["ab", "c"], 7])
def test_header_name_that_is_not_text_is_rejected(given: Any) -> None:
    with pytest.raises(ConfigError):
        pairs_of(given)


def test_frame_decoder_counts_rejected_frames_by_reason() -> None:
    assert counter_name(ChecksumError("x")) == "refused: checksum"
    assert counter_name(MisdirectedError("x")) == "refused: addressee"
    assert counter_name(ConfigError("x")) == f"refused: {ProtocolError.reason}"
    counters = {"refused: a": 1, "metadata: refused: b": 2, "other: refused: c": 3, "refused": 4, "d": 5}
    assert by_reason(counters) == {"a": 1, "metadata: b": 2}


VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "wire.json").read_text())


def _encode(vector: dict) -> bytes:
    fields = {k: v for k, v in vector.items() if k not in ("what", "hex", "crc", "hw", "value")}
    match vector["what"]:
        case "ReplicationRequest":
            return frames.encode(replication_pb2.ReplicationRequest(**fields))
        case "ReplicationResponse header only":
            return frames.replication_response_header(vector["leaderEpoch"], vector["hw"])
        case "LeaderEpochOffsetRequest":
            return frames.encode(replication_pb2.LeaderEpochOffsetRequest(**fields))
        case "LeaderEpochOffsetResponse":
            return frames.encode(replication_pb2.LeaderEpochOffsetResponse(**fields))
        case "PartitionNotification":
            return frames.encode(replication_pb2.PartitionNotification(**fields))
        case "Publish":
            message = client_pb2.Message(value=vector["value"].encode())
            return envelope.encode(MessageType.PUBLISH, message.SerializeToString(), crc=vector["crc"])
    raise AssertionError(vector["what"])


@each("vector", VECTORS["vectors"])
def test_wire_encoding_matches_the_published_vectors(vector: dict) -> None:
    assert _encode(vector).hex() == vector["hex"]


@each("vector", VECTORS["vectors"])
def test_wire_decoding_matches_the_published_vectors(vector: dict) -> None:
    frame = bytes.fromhex(vector["hex"])
    if vector["what"].startswith("ReplicationResponse"):
        response = frames.decode_replication_response(frame)
        assert (response.leader_epoch, response.high_watermark, len(response.batches)) == (
            vector["leaderEpoch"],
            vector["hw"],
            0,
        )
        return
    if vector["what"] == "Publish":
        assert frames.decode(frame, client_pb2.Message).value == vector["value"].encode()
        return
    message = frames.decode(frame, getattr(replication_pb2, vector["what"]))
    for name, value in vector.items():
        if name not in ("what", "hex"):
            assert getattr(message, name) == value


@each("vector", VECTORS["bad"])
def test_invalid_frames_are_rejected(vector: dict) -> None:
    frame = bytes.fromhex(vector["hex"])
    parse = frames.decode_replication_response if vector["why"].startswith("response") else envelope.decode
    with pytest.raises(ProtocolError):
        parse(frame)


def test_sealed_frame_with_any_change_is_rejected() -> None:
    """All but the message type, which is that of another frame then, and what says that there is a CRC."""
    frame = frames.seal(client_pb2.ReadRequest(offset=5, streamUid="u"))
    for at in (*range(5), *range(8, len(frame))):
        for bit in range(8):
            changed = bytearray(frame)
            changed[at] ^= 1 << bit
            with pytest.raises(ProtocolError):
                frames.decode(bytes(changed), client_pb2.ReadRequest)
    whole = b"".join((frames.read_response_header(client_pb2.ReadResponse(nextOffset=3), (b"one", b"two")), b"one", b"two"))
    assert bytes(frames.decode_read_response(whole)[1]) == b"onetwo"
    for at in range(8, len(whole)):
        with pytest.raises(ChecksumError):
            frames.decode_read_response(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
