from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import crc32c
import pytest

from liftpy.client import Client, ReadOptions
from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import Consumer, PartitionReader
from liftpy.client.progress import ReadProgress
from liftpy.config import Codec
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    ClientClosedError,
    CorruptionError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from liftpy.nats.transport import Transport
from liftpy.testing.memory import memory_cluster
from tests.batches import build_batch

_Error = client_pb2.ReadResponse.Error
_numbers = count()


class Replica:
    """A scripted replica with the values v0, v1... ``high_watermark`` is inclusive."""

    def __init__(self, transport: Transport, subjects: Subjects, name: str, leader: str = "n1") -> None:
        self.transport, self.subjects, self.name, self.leader = transport, subjects, name, leader
        self.batches: list[bytes] = []
        self.high_watermark = -1
        self.log_start = 0
        self.uid = "u1"
        self.asked: list[client_pb2.ReadRequest] = []
        self.answers = True
        self.losing = 0
        """So many requests are not answered."""
        self.damage = False
        self.grown = asyncio.Event()
        self.subscriptions: list[Any] = []

    async def start(self) -> Replica:
        subscribe, read = self.transport.connection.subscribe, self.subjects.read("s", 0)
        self.subscriptions = [
            await subscribe(read, queue=read, cb=self.on_request),
            await subscribe(self.subjects.read_from("s", 0, self.name), cb=self.on_request),
        ]
        await self.transport.settle()
        return self

    async def stop(self) -> None:
        for subscription in self.subscriptions:
            await subscription.unsubscribe()
        await self.transport.settle()

    def grow(self, records: int, batch_records: int = 10, epoch: int = 1) -> None:
        for _ in range(0, records, batch_records):
            base = parse_batch(self.batches[-1]).next_offset if self.batches else 0
            values = [f"v{i}".encode() for i in range(base, base + batch_records)]
            self.batches.append(build_batch(values, base_offset=base, leader_epoch=epoch, timestamp_ns=base * 1000))
            self.high_watermark = base + batch_records - 1
        self.grown.set()

    async def on_request(self, message: Any) -> None:
        request = frames.decode(message.data, client_pb2.ReadRequest)
        self.asked.append(request)
        if self.losing:
            self.losing -= 1
        elif self.answers:
            await message.respond(await self.answer(request))

    async def answer(self, request: client_pb2.ReadRequest) -> bytes:
        if request.waitMs and request.offset > self.high_watermark and not request.boundsOnly:
            self.grown.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.grown.wait(), request.waitMs / 1000)
        head = client_pb2.ReadResponse(
            streamUid=self.uid,
            node=self.name,
            leader=self.leader,
            leaderEpoch=1,
            highWatermark=self.high_watermark,
            logStartOffset=self.log_start,
            nextOffset=request.offset,
        )
        body = b""
        if request.streamUid not in ("", self.uid):
            head.error = _Error.WRONG_STREAM
        elif request.minHighWatermark > self.high_watermark:
            head.error = _Error.NOT_READY
        elif request.boundsOnly:
            if request.byTimestamp:
                head.nextOffset = next(
                    (b.base_offset for b in map(parse_batch, self.batches) if b.timestamp_ns >= request.timestamp),
                    self.high_watermark + 1,
                )
        elif request.offset < self.log_start:
            head.error = _Error.OFFSET_OUT_OF_RANGE
        else:
            body, head.nextOffset = self.take(request)
        return frames.read_response_header(head) + (body[:-1] + b"!" if self.damage and body else body)

    def take(self, request: client_pb2.ReadRequest) -> tuple[bytes, int]:
        body, following = b"", request.offset
        for raw in self.batches:
            batch = parse_batch(raw)
            fits = not body or len(body) + len(raw) <= request.maxBytes
            if request.offset < batch.next_offset and batch.last_offset <= self.high_watermark and fits:
                body, following = body + raw, batch.next_offset
        return body, following


@pytest.fixture
def subjects() -> Subjects:
    return Subjects(f"reads{next(_numbers)}")


@pytest.fixture
async def client(nats_url: str, transport: Transport, subjects: Subjects) -> AsyncIterator[Client]:
    async with Client(transport, subjects, owns_connection=False) as client:
        yield client


@pytest.fixture
async def leader(server_side: Transport, subjects: Subjects) -> Replica:
    return await Replica(server_side, subjects, "n1").start()


QUICK = ReadOptions(max_bytes=4096, wait_s=0.05, answer_timeout_s=20, patience_s=60)
SHORT = replace(QUICK, patience_s=1.0)
"""For what is to be given up."""


async def values(records: AsyncIterator[Any], limit: int = 10**9) -> list[bytes]:
    found = []
    async for record in records:
        found.append(record.value)
        if len(found) == limit:
            break
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # the condition is the client's, it sets no event
            await asyncio.sleep(0)


def expected(start: int, end: int) -> list[bytes]:
    return [f"v{i}".encode() for i in range(start, end)]


async def test_consumer_stops_at_the_high_watermark_and_resumes_when_the_high_watermark_advances(
    client: Client, leader: Replica
) -> None:
    leader.grow(30)
    leader.high_watermark = 19
    consumer = client.consume("s", options=QUICK)
    records = aiter(consumer)
    assert await values(records, 20) == expected(0, 20)
    records = aiter(client.consume("s", start=20, options=QUICK))
    following = asyncio.create_task(values(records, 15))
    await until(lambda: len([a for a in leader.asked if a.offset == 20 and not a.boundsOnly]) >= 2)  # it asks, and asks again
    assert not following.done()
    leader.high_watermark = 29
    leader.grow(10)
    assert await following == expected(20, 35)


async def test_consumer_without_long_polls_pauses_between_requests_at_the_end(client: Client, leader: Replica) -> None:
    leader.grow(10)
    records = aiter(client.consume("s", options=ReadOptions(wait_s=0)))
    assert await values(records, 10) == expected(0, 10)
    following, before = asyncio.create_task(values(records, 10)), len(leader.asked)
    began_s = asyncio.get_running_loop().time()
    await until(lambda: len(leader.asked) >= before + 6)
    assert asyncio.get_running_loop().time() - began_s > 0.2
    leader.grow(10)
    assert await following == expected(10, 20)


async def test_consumer_offset_outside_the_log_raises_out_of_range_without_a_reset(client: Client, leader: Replica) -> None:
    leader.grow(50)
    leader.log_start = 20
    for start in (19, 51):
        with pytest.raises(OffsetOutOfRangeError, match=r"outside 20\.\.50"):
            await values(aiter(client.consume("s", start=start, options=QUICK)))
    consumer = client.consume("s", start="earliest", options=QUICK)
    await consumer.begin()
    leader.log_start = 40  # retention passes by
    with pytest.raises(OffsetOutOfRangeError):
        await values(aiter(consumer))


async def test_consumer_until_end_stops_at_the_high_watermark_of_the_leader(
    client: Client, leader: Replica, server_side: Transport
) -> None:
    leader.grow(100)
    laggard = await Replica(server_side, leader.subjects, "n2").start()
    laggard.grow(50)
    for _ in range(8):  # whichever of the two is asked first
        assert (await client.bounds("s")).high_watermark == 99
    assert await values(aiter(client.consume("s", until="end", options=QUICK))) == expected(0, 100)


async def test_consumer_whose_replica_stops_continues_on_another_replica(
    client: Client, leader: Replica, server_side: Transport
) -> None:
    leader.grow(2000)
    other = await Replica(server_side, leader.subjects, "n2").start()
    other.grow(2000)
    records = aiter(client.consume("s", until="end", options=ReadOptions(max_bytes=4096, answer_timeout_s=0.2, read_ahead=1)))
    first = await values(records, 100)
    records = aiter(client.consume("s", start=100, until="end", options=ReadOptions(max_bytes=4096, answer_timeout_s=0.2)))
    head = [await anext(records) for _ in range(10)]
    leader.answers = False
    rest = await values(records)
    assert first + [r.value for r in head] + rest == expected(0, 2000)
    assert other.asked


async def test_consumer_retries_a_damaged_answer_on_other_replicas_and_raises_if_all_are_damaged(
    client: Client, leader: Replica, server_side: Transport
) -> None:
    leader.grow(100)
    leader.damage = True
    assert client.counters == {}
    with pytest.raises(CorruptionError, match="CRC-32C"):
        await values(aiter(client.consume("s", until="end", options=SHORT)))
    assert client.counters["damaged answers"] > 0
    other = await Replica(server_side, leader.subjects, "n2").start()
    other.grow(100)
    patient = ReadOptions(patience_s=60, answer_timeout_s=0.3)
    assert await values(aiter(client.consume("s", until="end", options=patient))) == expected(0, 100)


@pytest.mark.parametrize("by_records", [True, False])
async def test_consumer_rejects_and_counts_a_decompression_bomb(client: Client, leader: Replica, by_records: bool) -> None:
    leader.grow(10)
    bomb = bytearray(build_batch([bytes(1 << 20)], base_offset=10, leader_epoch=1, codec=Codec.ZSTD))
    struct.pack_into("<I", bomb, 56, 4096)  # the size of its body
    struct.pack_into("<I", bomb, 0, crc32c.crc32c(bytes(bomb[4:])))
    leader.batches.append(bytes(bomb))
    leader.high_watermark = 10
    consumer = client.consume("s", until="end", options=QUICK)
    seen: list[bytes | None] = []

    async def read() -> None:
        if by_records:
            async for record in consumer:
                seen.append(record.value)
        else:
            async for piece in consumer.batches():
                seen.extend(piece.values())

    with pytest.raises(CorruptionError, match="Cannot decompress the batch at offset 10"):
        await read()
    assert seen == expected(0, 10)
    assert client.counters == {"batches that do not decompress": 1}


async def test_consumer_without_responders_raises_unavailable_after_patience_s(client: Client) -> None:
    with pytest.raises(UnavailableError, match="No responders"):
        await values(aiter(client.consume("s", options=ReadOptions(patience_s=0.2))))


async def test_partition_reader_requests_the_leader_after_an_answer_of_a_lagging_replica(
    client: Client, leader: Replica, server_side: Transport, subjects: Subjects
) -> None:
    behind = await Replica(server_side, subjects, "n2").start()
    leader.grow(20)
    await leader.subscriptions[0].unsubscribe()  # of the queue group only n2 is left
    await leader.transport.settle()
    pieces = [piece async for piece in client.read_range("s", 0, 0, 20, uid="u1", options=QUICK)]
    assert [v for piece in pieces for v in piece.values()] == expected(0, 20)
    assert len(behind.asked) == 1


async def test_partition_reader_with_a_lagging_leader_reads_from_another_replica(
    client: Client, leader: Replica, server_side: Transport, subjects: Subjects
) -> None:
    other = await Replica(server_side, subjects, "n2").start()
    other.grow(20)
    await leader.subscriptions[0].unsubscribe()  # so that the queue group leads to n2 whenever anybody is asked
    await leader.transport.settle()
    options = ReadOptions(max_bytes=4096, wait_s=0.05, answer_timeout_s=20, patience_s=60)
    reader = PartitionReader(client.transport, subjects, "s", 0, options)
    reader.node = "n1"
    pieces = await reader.fetch(ReadProgress("s", 0, 0, 20, uid="u1", floor_high_watermark=19))
    assert [v for piece in pieces for v in piece.values()] == expected(0, 20)
    assert len(leader.asked) == 1


async def test_consumer_with_an_until_time_ends_before_later_records(client: Client, leader: Replica) -> None:
    leader.grow(100)  # batches of ten, stamped with their first offset in us
    past = datetime.fromtimestamp(35e-6, UTC)
    assert await values(aiter(client.consume("s", until=past))) == expected(0, 40)
    assert await values(aiter(client.consume("s", start=60, until=past))) == []
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    began = asyncio.get_running_loop().time()
    assert await values(aiter(client.consume("s", start=95, until=soon, options=QUICK))) == expected(95, 100)
    assert asyncio.get_running_loop().time() - began >= 0.25
    later, got = client.consume("s", until=datetime.now(UTC) + timedelta(days=1), options=QUICK), list[bytes]()
    reading = asyncio.create_task(_take(later, got, by_batch=True, limit=10**6, how="end"))
    await until(lambda: len(got) == 100)
    tomorrow = round((datetime.now(UTC) + timedelta(days=2)).timestamp() * 1e9)
    for stamp in (1, tomorrow):  # the first that is stamped later ends it
        leader.batches.append(build_batch([b"x"], base_offset=leader.high_watermark + 1, leader_epoch=1, timestamp_ns=stamp))
        leader.high_watermark += 1
        leader.grown.set()
    await asyncio.wait_for(reading, 10)
    assert got == [*expected(0, 100), b"x"]


async def test_consumer_close_ends_its_read_ahead_requests(client: Client, leader: Replica) -> None:
    leader.grow(3000)
    before = asyncio.all_tasks()
    batches = client.consume("s", options=ReadOptions(max_bytes=4096, read_ahead=2)).batches()
    await anext(batches)
    for _ in range(200):  # long enough for a reader without a bound to run to the end
        await leader.transport.connection.flush()
    asked = [a for a in leader.asked if not a.boundsOnly]
    assert len(asked) <= 5
    await batches.aclose()
    assert not {t for t in asyncio.all_tasks() - before if t.get_name().startswith("read s/0")}


async def _take(consumer: Consumer, got: list[bytes], by_batch: bool, limit: int, how: str) -> None:
    """Read with ``consumer`` until ``limit`` more records are in ``got``. Then leave the iteration as ``how`` says."""
    end = len(got) + limit
    async for item in consumer.batches() if by_batch else consumer:
        got += [value or b"" for value in item.values()] if isinstance(item, BatchSlice) else [item.value or b""]
        if len(got) >= end and how == "raise":
            raise LookupError
        if len(got) >= end and how == "break":
            break


async def test_partition_reader_without_an_answer_requests_another_replica(
    client: Client, leader: Replica, server_side: Transport
) -> None:
    leader.grow(20)
    mute = await Replica(server_side, leader.subjects, "n2").start()
    mute.answers = False
    patient = ReadOptions(answer_timeout_s=10, patience_s=60, wait_s=0)  # of forty questions half go to the silent one first
    async with asyncio.timeout(60):
        for _ in range(20):  # whichever of the two is asked first
            assert await values(aiter(client.consume("s", until="end", options=patient))) == expected(0, 20)
    assert mute.asked
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("ask ") and not task.cancelling()]


async def test_partition_reader_pinned_to_a_node_sends_an_unanswered_request_again(client: Client, leader: Replica) -> None:
    leader.grow(20)
    leader.losing = 1
    pinned = ReadOptions(node="n1", answer_timeout_s=60, patience_s=60, wait_s=0)
    async with asyncio.timeout(30):
        assert await values(aiter(client.consume("s", until="end", options=pinned))) == expected(0, 20)
    assert leader.losing == 0


async def test_client_close_ends_running_consumers(client: Client, leader: Replica) -> None:
    leader.grow(30)
    patient = ReadOptions(wait_s=30)
    consumer = client.consume("s", options=patient)
    got: list[bytes] = []
    reading = asyncio.create_task(_take(consumer, got, by_batch=False, limit=1000, how="end"))
    await until(lambda: len(got) == 30)
    async with asyncio.timeout(30):
        client.transport.end()
        with pytest.raises(ClientClosedError):
            await reading
        with pytest.raises(ClientClosedError):
            await client.bounds("s")
    assert not any(task.get_name().startswith("read s/0") for task in asyncio.all_tasks())


async def test_consumer_of_a_server_with_small_messages_returns_every_record() -> None:
    values = [b"%d" % number * 700 for number in range(6)]
    async with memory_cluster(max_payload=3_000) as cluster, cluster.client() as client:
        await client.create_stream("orders", "orders")
        for value in values:
            await client.publish("orders", value)
        assert [record.value async for record in client.consume("orders", until="end")] == values
