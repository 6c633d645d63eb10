"""Test the memory of a read whose answer has some KB and decompresses to hundreds of MB [L7]."""

from __future__ import annotations

import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from liftpy.client.batch_view import BatchSlice, one_by_one
from liftpy.client.iteration import Fetch, Iteration, ReadAhead
from liftpy.client.progress import MAX_DECOMPRESSED_BYTES, ReadProgress
from liftpy.config import Codec
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch, parse_header
from tests.batches import build_batch

MIB = 1 << 20
BATCHES = 200


class Home:
    def must_be_usable(self) -> None:
        pass

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def log() -> list[bytes]:
    value = bytes(MIB)
    return [build_batch([value], base_offset=n, leader_epoch=1, codec=Codec.ZSTD) for n in range(BATCHES)]


def answer(batches: list[bytes], request: client_pb2.ReadRequest) -> bytes:
    """Return all batches from the requested offset on, as a node does."""
    head = client_pb2.ReadResponse(streamUid="u", node="n1", highWatermark=BATCHES - 1, nextOffset=BATCHES, leader="n1")
    return frames.read_response_header(head) + b"".join(batches[request.offset :])


async def test_consumer_of_a_compressed_answer_keeps_one_decompressed_batch_in_memory() -> None:
    batches = log()
    assert sum(map(len, batches)) < 55_000
    progress = ReadProgress("s", 0, 0, BATCHES)

    async def fetch() -> list[BatchSlice] | None:
        return None if progress.done else progress.accept(answer(batches, progress.request(MIB, 0)))

    def begin() -> Awaitable[Fetch]:
        async def begun() -> Fetch:
            return fetch

        return begun()

    reading = Iteration(ReadAhead("s/0", Home(), 4, begin), BatchSlice.records)
    tracemalloc.start()
    try:
        offsets = []
        async for record in reading:
            assert record.value is not None
            assert len(record.value) == MIB
            offsets.append(record.offset)
            del record
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert offsets == list(range(BATCHES))
    assert peak_bytes < 16 * MIB


def test_partition_reader_above_the_decompression_limit_requests_the_remaining_batches() -> None:
    batches = log()
    progress = ReadProgress("s", 0, 0, BATCHES)
    offsets: list[int] = []
    while not progress.done:
        pieces = progress.accept(answer(batches, progress.request(MIB, 0)))
        assert 0 < sum(piece.batch.header.body_size_bytes for piece in pieces) <= MAX_DECOMPRESSED_BYTES
        offsets += [offset for piece in pieces for offset in piece.offsets().tolist()]
    assert offsets == list(range(BATCHES))


def test_partition_reader_returns_a_batch_above_the_decompression_limit_alone() -> None:
    large = build_batch([bytes(MAX_DECOMPRESSED_BYTES - MIB), bytes(4)], codec=Codec.ZSTD, leader_epoch=1)
    batches = [large, build_batch([bytes(2 * MIB)], base_offset=2, codec=Codec.ZSTD, leader_epoch=1)]
    assert parse_header(memoryview(large)).body_size_bytes < MAX_DECOMPRESSED_BYTES
    progress = ReadProgress("s", 0, 0, 3)
    head = client_pb2.ReadResponse(streamUid="u", node="n1", highWatermark=2, nextOffset=3, leader="n1")
    assert [p.record_count for p in progress.accept(frames.read_response_header(head) + b"".join(batches))] == [2]
    assert [p.record_count for p in progress.accept(frames.read_response_header(head) + b"".join(batches))] == [1]


def test_spark_row_builder_decompresses_one_batch_at_a_time() -> None:
    rows = pytest.importorskip("liftpy.spark.range_reader")
    pieces = [piece for data in log() for piece in [BatchSlice.between(parse_batch(data), 0, None)] if piece]
    builder = rows.RowBuilder("s", 0, ("offset", "value"))
    tracemalloc.start()
    try:
        count = sum(batch.num_rows for batch in builder.batches(one_by_one(pieces)))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == BATCHES
    assert peak_bytes < 80 * MIB
