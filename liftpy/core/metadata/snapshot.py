"""The snapshot: a header and the compressed image, for controllers that restore and nodes that join.

Layout, big endian: magic ``LFTI`` (4) | version, 2 (2) | codec, 1: zstd (2) | index of the image (8) | size of the
serialized image (8) | CRC-32C of header bytes 0-24 and the body (4) | body. Nothing is unpickled [M13].
"""

from __future__ import annotations

import struct

import crc32c
import zstandard
from google.protobuf.message import DecodeError

from liftpy.core.metadata.codec import image_from_bytes, image_to_bytes
from liftpy.core.metadata.features import FIRST
from liftpy.core.metadata.image import ClusterImage
from liftpy.errors import CorruptionError, IncompatibleVersionError, InvariantError, LiftError, UnknownFormatError

MAGIC = b"LFTI"
VERSION = 2
_OF_LEVEL_1 = 1
"""Snapshot format version that was never released. Its images have no feature level."""
MAX_IMAGE_SIZE_BYTES = 1 << 30
_CODEC_ZSTD = 1
_LEVEL = 1
_HEAD = struct.Struct(">4sHHQQ")
_CRC = struct.Struct(">I")
HEADER_SIZE_BYTES = _HEAD.size + _CRC.size


def encode_snapshot(image: ClusterImage, *, operations: bool = True) -> bytes:
    """Return the snapshot of ``image``. It may run in a thread during further applies, because the image is frozen."""
    data = image_to_bytes(image, operations=operations)
    body = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    head = _HEAD.pack(MAGIC, VERSION, _CODEC_ZSTD, image.index, len(data))
    return head + _CRC.pack(crc32c.crc32c(body, crc32c.crc32c(head))) + body


def decode_snapshot(data: bytes) -> ClusterImage:
    """Decode the image of a snapshot.

    Raise CorruptionError for damage, UnknownFormatError for another version [S11], and IncompatibleVersionError for unknown
    fields.
    """
    if len(data) < HEADER_SIZE_BYTES or data[:4] != MAGIC:
        raise CorruptionError(
            "The metadata snapshot is not a snapshot file: it is too short, or its magic bytes are wrong. "
            "Follow docs/runbooks/controllers-lost.md."
        )
    _, version, codec, index, size_bytes = _HEAD.unpack_from(data)
    if version == _OF_LEVEL_1:
        raise UnknownFormatError(
            f"The metadata snapshot has version {version}, but this version of liftpy reads {VERSION}. Run "
            f"`liftpy upgrade finalize` with the version that wrote it, up to feature level {FIRST}, and upgrade then."
        )
    if version != VERSION or codec != _CODEC_ZSTD:
        raise UnknownFormatError(
            f"The metadata snapshot has version {version}, codec {codec}, but this version reads {VERSION}. Upgrade liftpy."
        )
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    body = data[HEADER_SIZE_BYTES:]
    if crc32c.crc32c(body, crc32c.crc32c(data[: _HEAD.size])) != crc:
        raise CorruptionError(
            "The metadata snapshot is damaged: its checksum does not match. Follow docs/runbooks/controllers-lost.md."
        )
    if size_bytes > MAX_IMAGE_SIZE_BYTES:
        raise CorruptionError(
            f"The metadata snapshot is damaged: it claims {size_bytes} bytes, the maximum is {MAX_IMAGE_SIZE_BYTES}. Follow "
            "docs/runbooks/controllers-lost.md."
        )
    try:
        # what is compressed says for itself how large it is, and that is what zstandard allocates
        if zstandard.frame_content_size(body) not in (size_bytes, -1):
            raise CorruptionError(
                "The metadata snapshot is damaged: its size differs from its header. Follow docs/runbooks/controllers-lost.md."
            )
        image = image_from_bytes(zstandard.ZstdDecompressor().decompress(body, max_output_size=size_bytes))
    except IncompatibleVersionError:
        raise
    except (zstandard.ZstdError, DecodeError, ValueError, KeyError, LiftError) as error:
        raise CorruptionError(
            f"The metadata snapshot is damaged: it cannot be decoded: {error}. Follow docs/runbooks/controllers-lost.md."
        ) from error
    if image.index != index:
        raise InvariantError(
            f"The metadata snapshot is damaged: its header has index {index}, but its image has {image.index}. Follow "
            "docs/runbooks/controllers-lost.md."
        )
    return image
