"""Test that the parser without protobuf returns the same as protobuf for any bytes."""

from __future__ import annotations

import random

import pytest

from liftpy.config import AckPolicy
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.envelope import LONGEST_ID_BYTES, FastEnvelope

FORM = FastEnvelope("orders", 3, "u1", AckPolicy.ALL, runs=True)
_CRC_END = envelope.CRC_HEADER_SIZE_BYTES


def message(payload: bytes) -> client_pb2.Message:
    return frames.decode(payload, client_pb2.Message)


def resealed(payload: bytes) -> bytes:
    return envelope.encode(envelope.MessageType.PUBLISH, payload[_CRC_END:], crc=True)


def test_fast_envelope_parser_of_any_bytes_agrees_with_protobuf() -> None:
    rng = random.Random(3)
    opened = 0
    for _ in range(6000):
        value, msg_id = rng.randbytes(rng.choice((1, 5, 126, 128, 300))), rng.choice((b"", b"m.1", b"q" * LONGEST_ID_BYTES))
        payload = bytearray(FORM.envelope(value, msg_id))
        for _ in range(rng.choice((0, 1, 1, 2))):
            at = rng.choice((rng.randrange(_CRC_END, len(payload)), rng.randrange(len(payload))))
            if rng.random() < 0.3:
                del payload[at : at + rng.choice((1, 2, 17))]
            else:
                payload[at : at + rng.choice((0, 1))] = bytes([rng.choice((0, 1, 0x1A, 0x4A, 0x80, 0xFF, rng.randrange(256)))])
        frame = bytes(payload) if rng.random() < 0.3 else resealed(bytes(payload))
        found = FORM.opened(frame)
        if found is None:
            continue
        opened += 1
        read = message(frame)
        headers = [(header.name, header.value) for header in read.headers]
        assert (read.value, headers) == (found[0], [("Nats-Msg-Id", found[1])] if found[1] else [])
        assert (read.stream, read.partition, read.streamUid, read.ackPolicy, read.runs) == (
            "orders",
            3,
            "u1",
            client_pb2.ALL,
            True,
        )
        assert (read.key, read.keyed, read.tombstone, read.offset, read.ackInbox, read.correlationId) == (
            b"",
            False,
            False,
            -1,
            "",
            "",
        )
    assert opened > 1000


@pytest.mark.parametrize("msg_id", [b"", b"m.1", b"q" * LONGEST_ID_BYTES])
def test_fast_envelope_parser_returns_a_value_of_any_size_and_its_message_id(msg_id: bytes) -> None:
    for size in (0, 1, 127, 128, 300, 16_383, 16_384, 1 << 21):
        assert FORM.opened(FORM.envelope(bytes(size), msg_id)) == (bytes(size), msg_id)


def test_fast_envelope_parser_rejects_a_truncated_envelope() -> None:
    whole = FORM.envelope(b"v" * 200, b"m.7")
    assert all(FORM.opened(whole[:end]) is None for end in range(len(whole)))
    assert FORM.opened(whole + b"\0") is None


def test_fast_envelope_parser_rejects_an_envelope_for_another_partition() -> None:
    others = [
        FastEnvelope("other", 3, "u1", AckPolicy.ALL, runs=True),
        FastEnvelope("orders", 4, "u1", AckPolicy.ALL, runs=True),
        FastEnvelope("orders", 3, "u2", AckPolicy.ALL, runs=True),
        FastEnvelope("orders", 3, "", AckPolicy.ALL, runs=True),
        FastEnvelope("orders", 3, "u1", AckPolicy.LEADER, runs=True),
        FastEnvelope("orders", 3, "u1", AckPolicy.ALL),
    ]
    for msg_id in (b"", b"m.7"):
        for other in others:
            assert FORM.opened(other.envelope(b"v", msg_id)) is None
            assert other.opened(FORM.envelope(b"v", msg_id)) is None
