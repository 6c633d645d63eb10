"""Test the wire encoding against the published vectors, and bytes that are not frames."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2, replication_pb2
from liftpy.core.wire.envelope import ChecksumError, MessageType
from liftpy.errors import ProtocolError
from tests.each import each

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
