"""Compression of a batch's body. What decompresses is bounded by what the batch's header says, before a byte of it is made: the bytes
are somebody else's, and 8 KB can stand for gigabytes."""

from __future__ import annotations

import lz4.block
import zstandard

from liftpy.config import Codec
from liftpy.errors import CorruptionError

_LZ4_RATIO = 255
"""Bytes that one byte of an LZ4 block decompresses to, at most."""
_LZ4_SLACK_BYTES = 64
_WINDOW_BYTES = 1 << 27
"""Window of a zstd frame: the largest that its usual levels write."""


def compress(body: bytes, codec: Codec) -> bytes:
    """``body`` by LZ4 or zstd."""
    if codec is Codec.LZ4:
        return bytes(lz4.block.compress(body, store_size=False))
    return zstandard.ZstdCompressor(level=3).compress(body)


def decompress(stored: memoryview, codec: Codec, size_bytes: int) -> bytes:
    """The ``size_bytes`` that ``stored`` stands for. Raises CorruptionError if it stands for more or fewer, or for nothing."""
    try:
        if codec is Codec.LZ4:
            if size_bytes > len(stored) * _LZ4_RATIO + _LZ4_SLACK_BYTES:
                raise CorruptionError(f"{len(stored)} bytes by LZ4 can't be {size_bytes}")
            body = bytes(lz4.block.decompress(stored, uncompressed_size=size_bytes))
        else:
            body = _zstd(stored, size_bytes)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, MemoryError) as error:
        raise CorruptionError(f"they do not decompress: {error}") from None
    if len(body) != size_bytes:
        raise CorruptionError(f"they decompress to {len(body)} bytes or more, its header says {size_bytes}")
    return body


def _zstd(stored: memoryview, size_bytes: int) -> bytes:
    """Of a frame that names its size all, if it is that size; of one that does not, ``size_bytes`` and one more at most."""
    named = zstandard.frame_content_size(stored)
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    if named < 0:
        with reader.stream_reader(stored) as stream:
            return stream.read(size_bytes + 1)
    if named != size_bytes:
        raise CorruptionError(f"their frame says {named} bytes, the batch's header {size_bytes}")
    return reader.decompress(stored, max_output_size=size_bytes)
