"""The frames of append journals: one checksum and one flush for several records. Pure.

Two journals use these frames: ``epoch_promises.py`` and ``sidecar/quorum/journal.py``. Little endian::

    frame   u32 CRC-32C of the rest   u32 size of the body   body
"""

from __future__ import annotations

import struct

import crc32c

_HEAD = struct.Struct("<II")
_SIZE = struct.Struct("<I")
FRAME_HEAD_BYTES = _HEAD.size


def seal_frame(body: bytes) -> bytes:
    """Return the frame that contains ``body``."""
    sized = _SIZE.pack(len(body)) + body
    return _SIZE.pack(crc32c.crc32c(sized)) + sized


def frame_at(data: bytes | memoryview, position: int) -> memoryview | None:
    """Return the body of the frame at ``position`` of ``data``. None: the frame is incomplete or damaged."""
    start = position + FRAME_HEAD_BYTES
    if start > len(data):
        return None
    crc, size_bytes = _HEAD.unpack_from(data, position)
    end = start + size_bytes
    if end > len(data):
        return None
    view = memoryview(data)
    return view[start:end] if crc32c.crc32c(view[position + _SIZE.size : end]) == crc else None
