"""Test that the client stops fetching while the application reads no records of 1 MB."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import Consumer, PartitionReader, ReadOptions
from liftpy.client.positions import Bounds
from liftpy.client.progress import ReadProgress
from liftpy.config import Codec
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import RecordBatch, parse_header
from tests.batches import build_batch

MIB = 1 << 20
RECORDS, PER_BATCH = 400, 2
OPTIONS = ReadOptions(read_ahead=4)


class Partition(PartitionReader):
    """A partition in memory with records of 1 MiB. ``sent_bytes`` counts the answered bytes."""

    def __init__(self, values: list[bytes]) -> None:
        self.stream, self.partition, self.options, self.node = "s", 0, OPTIONS, ""
        self._transport: Any = self
        self.fetches, self.sent_bytes = 0, 0
        self.batches = [
            build_batch(
                [values[(n + i) % len(values)] for i in range(PER_BATCH)], base_offset=n, leader_epoch=1, codec=Codec.ZSTD
            )
            for n in range(0, RECORDS, PER_BATCH)
        ]

    def must_be_usable(self) -> None:
        pass

    def on_close(self, callback: Any) -> Any:
        return lambda: None

    async def bounds(self, *_: Any, **__: Any) -> tuple[Bounds, int]:
        return Bounds("u", "n", "n", 1, 0, RECORDS - 1), 0

    async def fetch(self, progress: ReadProgress) -> list[BatchSlice]:
        await asyncio.sleep(0)
        self.fetches += 1
        request = progress.request(MIB, 0)
        body, first = b"", request.offset // PER_BATCH
        for batch in self.batches[first:]:
            if body and len(body) + len(batch) > request.maxBytes:
                break
            body += batch
        head = client_pb2.ReadResponse(
            streamUid="u", node="n", leader="n", leaderEpoch=1, highWatermark=RECORDS - 1, nextOffset=RECORDS
        )
        self.sent_bytes += len(body)
        return progress.accept(frames.read_response_header(head) + body)


def values(kind: str) -> list[bytes]:
    """Return values of 1 MiB. ``small`` ones compress well. ``large`` ones do not, so a message has one batch."""
    return [bytes(MIB)] if kind == "small" else [random.Random(n).randbytes(MIB) for n in range(3)]


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def held() -> int:
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("how", ["records", "batches"])
async def test_consumer_memory_stays_constant_while_the_application_does_not_read(
    kind: str, how: str, monkeypatch: pytest.MonkeyPatch, traced: None
) -> None:
    decompressed = 0
    body = RecordBatch.body

    def counted(batch: RecordBatch) -> memoryview:
        nonlocal decompressed
        found = body(batch)
        decompressed += len(found)
        return found

    monkeypatch.setattr(RecordBatch, "body", counted)
    partition = Partition(values(kind))
    of_a_batch = parse_header(memoryview(partition.batches[0])).body_size_bytes
    reading: Any = getattr(Consumer(partition, "earliest", None), how)()
    before = held()
    first = await anext(reading)
    if how == "batches":
        assert len(first.values()) == PER_BATCH
    await settle()
    stalled_at = partition.fetches
    assert stalled_at <= OPTIONS.read_ahead + 2  # ready, one that waits for room, and the one that is read
    assert decompressed == of_a_batch  # of what is kept ready nothing is
    sent_bytes, now = partition.sent_bytes, held()
    assert now - before <= sent_bytes + 4 * of_a_batch
    for _ in range(3):
        await settle()
    assert (partition.fetches, decompressed) == (stalled_at, of_a_batch)
    assert held() <= now + MIB // 4
    seen, most = [first], 0
    offsets = [first.offset] if how == "records" else first.offsets().tolist()
    while len(offsets) < 60:
        seen[:] = [await anext(reading)]
        offsets += [seen[0].offset] if how == "records" else [*seen[0].offsets().tolist()][: len(seen[0].values())]
        most = max(most, held() - before)
    assert offsets == list(range(len(offsets)))
    in_flight = max(sent_bytes, (OPTIONS.read_ahead + 2) * (MIB + len(partition.batches[0])))
    assert most <= in_flight + 5 * of_a_batch  # and it stays so while it is read
    await reading.aclose()
    assert decompressed <= (len(offsets) // PER_BATCH + 1) * of_a_batch
