"""Test the fast envelope encoder: it writes the bytes of protobuf."""

from __future__ import annotations

import pytest

from liftpy.client.encode_publish import envelope_of, headers_with_conditions
from liftpy.config import AckPolicy
from liftpy.core.wire.envelope import FastEnvelope
from liftpy.errors import ConfigError
from tests.each import each


# ---- envelopes -----------------------------------------------------------------------------------------------------------------
@each("uid", ["u1", ""])
@each("partition", [0, 7, 300])
@each("ack", [AckPolicy.ALL, AckPolicy.LEADER])
@each("runs", [True, False])
def test_fast_envelope_encoder_writes_the_same_bytes_as_protobuf(uid: str, partition: int, ack: AckPolicy, runs: bool) -> None:
    ordinary = FastEnvelope("orders", partition, uid, ack, runs=runs)
    assert ordinary.uid_and_policy == (uid, ack)
    for value in (b"x", b"\0\1\2", b"a" * 127, b"a" * 128, b"b" * 16_384, b"c" * 70_000):
        for msg_id in ("", "m", "abc.17", "q" * 100):
            headers = headers_with_conditions(None, msg_id, None) if msg_id else None
            wanted = envelope_of("orders", partition, uid, value, None, headers, ack, runs=runs)
            assert ordinary.envelope(value, msg_id.encode()) == wanted
            assert ordinary.opened(wanted) == (value, msg_id.encode())


def test_fast_envelope_encoder_rejects_an_invalid_ack_policy() -> None:
    with pytest.raises(ConfigError, match=r"ack 'all'\. Use an AckPolicy"):
        FastEnvelope("orders", 0, "u", "all")  # type: ignore[arg-type]
