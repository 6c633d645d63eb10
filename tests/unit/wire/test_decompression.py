"""Test decompression bombs: decompression allocates at most what the batch header declares and a batch may hold [L7]."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import crc32c
import lz4.block
import pytest
import zstandard

from liftpy.config import Codec
from liftpy.core.wire.batch import MAX_BATCH_BYTES, RecordBatch, build_batch, parse_batch
from liftpy.errors import CorruptionError
from tests.each import each

MIB = 1 << 20


def forged(body: bytes, codec: Codec, body_size_bytes: int) -> RecordBatch:
    """A batch with a right CRC whose header says ``body_size_bytes`` of ``body``."""
    batch = bytearray(build_batch([b"x"])[:64]) + body
    batch[7] = codec.value
    struct.pack_into("<I", batch, 8, len(batch))
    struct.pack_into("<I", batch, 56, body_size_bytes)
    struct.pack_into("<I", batch, 0, crc32c.crc32c(bytes(batch[4:])))
    return parse_batch(bytes(batch))


def without_size(data: bytes) -> bytes:
    """A zstd frame that does not say how much is in it."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(data) + compressor.flush()


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(batch: RecordBatch) -> None:
    with pytest.raises(CorruptionError, match="offset 0"):
        batch.body()


BOMB_BYTES = 256 * MIB


def zstd(size_bytes: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(size_bytes))


def lz4_block(size_bytes: int) -> bytes:
    return lz4.block.compress(bytes(size_bytes), store_size=False)


@each(
    ("codec", "make", "says"),
    [
        pytest.param(Codec.ZSTD, lambda: zstd(BOMB_BYTES), 1000, id="zstd bomb, small header"),
        pytest.param(Codec.ZSTD, lambda: zstd(BOMB_BYTES), MAX_BATCH_BYTES, id="zstd bomb, largest header"),
        pytest.param(Codec.ZSTD, lambda: without_size(bytes(BOMB_BYTES)), 1000, id="zstd bomb without its size"),
        pytest.param(Codec.ZSTD, lambda: without_size(bytes(999)), 1000, id="zstd without its size, one byte short"),
        pytest.param(Codec.ZSTD, lambda: zstd(10), 1000, id="zstd, too short"),
        pytest.param(Codec.LZ4, lambda: lz4_block(64 * MIB), 1000, id="lz4 bomb"),
        pytest.param(Codec.LZ4, lambda: lz4_block(1000), MAX_BATCH_BYTES, id="lz4, too short"),
        pytest.param(Codec.LZ4, lambda: b"\xff" * 100, 1000, id="lz4 garbage"),
        pytest.param(Codec.ZSTD, lambda: b"\xff" * 100, 1000, id="zstd garbage"),
    ],
)
def test_decompression_allocates_no_more_than_the_header_declares(codec: Codec, make: Callable[[], bytes], says: int) -> None:
    batch = forged(make(), codec, says)
    assert peak_bytes(lambda: refused(batch)) < 2 * MIB


@pytest.mark.parametrize("body", [zstd(1000), without_size(bytes(1000))], ids=["with its size", "without its size"])
def test_zstd_frame_with_or_without_its_size_is_decompressed(body: bytes) -> None:
    assert forged(body, Codec.ZSTD, 1000).body() == bytes(1000)
