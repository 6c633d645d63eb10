"""Test the checksum of Raft frames: a changed frame or a frame on another subject is rejected."""

from __future__ import annotations

import pytest

from liftpy.errors import ProtocolError
from sidecar.quorum.codec import seal, unseal

FRAME = bytes(range(100))


def test_raft_frame_with_a_valid_checksum_is_returned_unchanged() -> None:
    for to, sender in (("n1", "n2"), ("x" * 64, "y" * 64), ("n1", "n")):
        assert unseal(to, sender, seal(to, sender, FRAME)) == FRAME


def test_raft_frame_with_any_flipped_bit_is_rejected() -> None:
    sealed = seal("n1", "n2", FRAME)
    for at in range(len(sealed)):
        for bit in range(8):
            changed = sealed[:at] + bytes([sealed[at] ^ 1 << bit]) + sealed[at + 1 :]
            if at == 6 and bit:
                continue  # flags without a meaning
            with pytest.raises(ProtocolError):
                unseal("n1", "n2", changed)
    for end in range(len(sealed)):
        with pytest.raises(ProtocolError):
            unseal("n1", "n2", sealed[:end])


@pytest.mark.parametrize(
    ("to", "sender"), [("n2", "n1"), ("n1", "n3"), ("n3", "n2"), ("n1", "n22"), ("n", "n2"), ("n1.n2", "")]
)
def test_raft_frame_received_on_another_subject_is_rejected(to: str, sender: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        unseal(to, sender, seal("n1", "n2", FRAME))
    assert caught.value.reason == "subject"
