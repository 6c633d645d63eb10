"""Test frames between the processes of a node: a frame with a changed byte is rejected."""

from __future__ import annotations

import pytest

from liftpy.core.wire import worker_frames
from liftpy.core.wire.worker_frames import HEAD_BYTES, Frame, FrameKind, FrameReader, encode
from liftpy.errors import ProtocolError

FRAMES = [
    Frame(FrameKind.SETUP, 0, b"{}"),
    Frame(FrameKind.HEARTBEAT_ANSWERED, (1 << 64) - 1, b""),
    Frame(FrameKind.ENTRY, 7, b"x" * 300),
]
BYTES = b"".join(encode(*frame) for frame in FRAMES)


@pytest.mark.parametrize("piece", [1, 7, HEAD_BYTES, len(BYTES)])
def test_worker_frames_are_decoded_for_any_split_of_the_bytes(piece: int) -> None:
    reader, found = FrameReader(), []
    for start in range(0, len(BYTES), piece):
        found += list(reader.feed(BYTES[start : start + piece]))
    assert found == FRAMES


def test_worker_frame_that_is_truncated_is_not_delivered() -> None:
    for end in range(len(encode(*FRAMES[2]))):
        assert list(FrameReader().feed(encode(*FRAMES[2])[:end])) == []


def test_worker_frame_with_any_changed_byte_is_rejected() -> None:
    """A length that has grown waits for more, and what comes is then no frame."""
    whole = encode(*FRAMES[2])
    for place in range(len(whole)):
        for flip in (1, 0x80):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            assert _is_noticed(bytes(damaged)), place


def _is_noticed(damaged: bytes) -> bool:
    reader = FrameReader()
    try:
        for more in (damaged, *[bytes(1 << 20)] * 65):
            assert list(reader.feed(more)) == []
    except ProtocolError:
        return True
    return False


def test_worker_frame_above_the_size_limit_is_rejected_by_sender_and_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_frames, "MOST_BODY_BYTES", 100)
    monkeypatch.setattr(worker_frames, "MOST_IMAGE_BYTES", 200)
    assert list(FrameReader().feed(encode(FrameKind.IMAGE, 0, bytes(200))))
    assert list(FrameReader().feed(encode(FrameKind.STATUS_REQUEST, 0, bytes(100))))
    for kind, size in ((FrameKind.IMAGE, 201), (FrameKind.STATUS_REQUEST, 101)):
        with pytest.raises(ProtocolError, match="bytes"):
            encode(kind, 0, bytes(size))
    large = encode(FrameKind.IMAGE, 0, bytes(150))
    small = bytearray(large)
    small[8] = FrameKind.STATUS_REQUEST
    with pytest.raises(ProtocolError, match="150 between"):  # said by its head, before it is read
        list(FrameReader().feed(bytes(small[:HEAD_BYTES])))


def test_worker_frame_of_an_unknown_kind_is_rejected() -> None:
    with pytest.raises(ProtocolError, match="kind 99"):
        list(FrameReader().feed(encode(99)))  # type: ignore[arg-type]
