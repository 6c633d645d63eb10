"""Test a consumer of several partitions: order, completeness, stored positions, new streams, pauses and limits."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import ManyConsumer, Position, ReadOptions, positions_from
from liftpy.client import multi_consumer as module
from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import Consumer, ReadEvent
from liftpy.client.multi_consumer import Place, bounded_ahead, selects
from liftpy.errors import (
    ConfigError,
    CorruptionError,
    InvalidNameError,
    NotFoundError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from liftpy.testing.memory import memory_cluster
from tests.unit.client.memory_node import Node, consumer
from tests.until import until


class Streams:
    """Nodes by (stream, partition)."""

    def __init__(self, **partitions: int) -> None:
        self.nodes: dict[Place, Node] = {}
        self.begun: list[tuple[Place, Any, int]] = []
        for stream, count in partitions.items():
            self.add(stream, count)

    def add(self, stream: str, count: int = 1, records: int = 20) -> None:
        for partition in range(count):
            node = self.nodes[stream, partition] = Node()
            for number in range(records):
                node.append(b"%s/%d/%d" % (stream.encode(), partition, number))

    def many(self, *names: str, start: Any = "earliest", until: Any = "end", positions: Any = None) -> ManyConsumer:
        directory: Any = self
        return ManyConsumer(directory, names, start, until, positions)

    async def list_streams(self) -> list[Any]:
        return [SimpleNamespace(name=name, uid="u1", partitions=[SimpleNamespace(partition=n)]) for name, n in self.nodes]

    async def newest_streams(self) -> list[Any]:
        return await self.list_streams()

    def consume(self, stream: str, partition: int, start: Any, until: Any, *, options: ReadOptions, **_: Any) -> Any:
        self.begun.append(((stream, partition), start, options.read_ahead * options.max_bytes))
        return consumer(self.nodes[stream, partition], start, until)


def keys_of(stream: str, partition: int, numbers: range) -> list[bytes]:
    return [b"%s/%d/%d" % (stream.encode(), partition, number) for number in numbers]


async def test_consume_many_reads_all_matching_partitions_each_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 6 << 20)
    streams = Streams(orders=3, pay_eu=1, pay_us=2, other=1)
    found: dict[Place, list[bytes | None]] = {}
    async with streams.many("orders", "pay_*") as many:
        assert many.places == [("orders", 0), ("orders", 1), ("orders", 2), ("pay_eu", 0), ("pay_us", 0), ("pay_us", 1)]
        async for stream, partition, record in many:
            found.setdefault((stream, partition), []).append(record.key)
    assert found == {place: keys_of(*place, range(20)) for place in many.places}
    assert {ahead for _, _, ahead in streams.begun} == {1 << 20}


async def test_consume_many_resumes_from_stored_positions_without_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams(orders=2)
    for node in streams.nodes.values():
        node.append(*(b"late %d" % number for number in range(10)))
    seen: list[tuple[Place, int]] = []
    positions: dict[Place, Position] | None = None
    while True:  # three records by each of many consumers, from what the one before has stored
        before = len(seen)
        async with streams.many("orders", positions=positions) as many:
            for _ in range(2):
                async for stream, partition, record in many:
                    seen.append(((stream, partition), record.offset))
                    if (len(seen) - before) % 3 == 0:
                        break
            positions = positions_from(await many.positions_text())
        if len(seen) == before:
            break
    assert sorted(seen) == [(("orders", partition), offset) for partition in range(2) for offset in range(30)]
    assert positions == {("orders", 0): Position("u1", 30, 1), ("orders", 1): Position("u1", 30, 1)}


async def test_consume_many_reads_a_new_stream_from_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.02)
    streams = Streams(orders=1)
    seen: dict[Place, int] = {}
    async with streams.many("orders", "new-*", start="new", until=None) as many, asyncio.timeout(20):
        reading = many.batches()
        streams.add("new-1", 1)
        streams.nodes["orders", 0].append(b"x")
        while seen.get(("new-1", 0), 0) < 20 or ("orders", 0) not in seen:
            taken = await anext(reading)
            seen[taken.stream, taken.partition] = seen.get((taken.stream, taken.partition), 0) + taken.slice.record_count
    assert seen == {("orders", 0): 1, ("new-1", 0): 20}
    assert [(place, start) for place, start, _ in streams.begun] == [(("orders", 0), "new"), (("new-1", 0), "earliest")]


async def _value(many: ManyConsumer) -> bytes | None:
    return (await anext(aiter(many))).record.value


async def test_consume_many_continues_without_a_deleted_stream_of_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.05)
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        for name in ("pay-1", "pay-2"):
            await client.create_stream(name, name)
            await client.publish(name, b"old")
        async with client.consume_many("pay-*") as many:
            assert [await _value(many) for _ in range(2)] == [b"old", b"old"]
            await client.admin.delete_stream("pay-1")
            coming = asyncio.create_task(_value(many))
            await until(lambda: many.places == [("pay-2", 0)])
            await client.publish("pay-2", b"next")
            assert await coming == b"next"
            assert set(await many.lag()) == {("pay-2", 0)}
            await client.create_stream("pay-1", "pay-1")
            await client.publish("pay-1", b"created again")
            assert await _value(many) == b"created again"
            assert {place: at.offset for place, at in (await many.positions()).items()} == {("pay-1", 0): 1, ("pay-2", 0): 2}


async def test_consume_many_raises_not_found_error_when_a_named_stream_is_deleted() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        for name in ("pay-1", "pay-2"):
            await client.create_stream(name, name)
        async with client.consume_many("pay-1", "pay-*") as many:
            await client.admin.delete_stream("pay-1")
            with pytest.raises(NotFoundError):
                await anext(aiter(many))


async def test_consume_many_with_until_ends_when_all_streams_of_a_pattern_are_deleted() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        await client.create_stream("pay-1", "pay-1")
        await client.publish("pay-1", b"first")
        async with client.consume_many("pay-*", until=1000) as many:
            assert await _value(many) == b"first"
            await client.admin.delete_stream("pay-1")
            assert [record async for record in many] == []
            assert many.places == []


async def test_consume_many_reads_a_stream_created_again_since_the_stored_position_from_its_first_record() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        await client.create_stream("pay-1", "pay-1")
        await client.publish("pay-1", b"old")
        async with client.consume_many("pay-*", until="end") as many:
            assert await _value(many) == b"old"
            stored = positions_from(await many.positions_text())
        await client.admin.delete_stream("pay-1")
        await client.create_stream("pay-1", "pay-1")
        await client.publish("pay-1", b"new 0")
        await client.publish("pay-1", b"new 1")
        async with client.consume_many("pay-*", positions=stored) as many:
            assert [await _value(many) for _ in range(2)] == [b"new 0", b"new 1"]
        with pytest.raises(NotFoundError):
            async with client.consume_many("pay-1", positions=stored):
                pass


async def test_consume_many_resumes_at_its_position_if_a_reported_deletion_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.02)
    streams = Streams(orders=1)
    node = streams.nodes["orders", 0]
    answer = node.request

    async def wrong(*_: Any) -> bytes:
        monkeypatch.setattr(node, "request", answer)
        raise NotFoundError("The stream does not exist.")

    async with streams.many("orders*", until=None) as many, asyncio.timeout(20):
        seen = [(await anext(aiter(many))).record.offset for _ in range(20)]
        monkeypatch.setattr(node, "request", wrong)
        coming = asyncio.create_task(many.next_record())
        await until(lambda: node.request == answer)
        node.append(b"next")
        record = await coming
        assert record is not None
        assert [*seen, record.record.offset] == list(range(21))
        assert (await many.positions())["orders", 0].offset == 21


async def test_consume_many_with_short_timeouts_reads_on_during_a_slow_stream_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.0)
    streams = Streams(orders=1)
    real = streams.list_streams

    async def slow(**how: Any) -> list[Any]:
        await asyncio.sleep(0.05)
        return await real(**how)

    monkeypatch.setattr(streams, "list_streams", slow)
    async with streams.many("orders") as many, asyncio.timeout(5):
        record = None
        while record is None:
            with suppress(TimeoutError):
                record = await asyncio.wait_for(many.next_record(), 0.01)
        assert record.record.key == b"orders/0/0"


@pytest.mark.parametrize("how", ["fails", "is silent"])
async def test_consume_many_reads_the_known_partitions_while_the_stream_lookup_fails(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.01)
    streams, asked = Streams(orders=1), 0

    async def list_streams() -> Any:
        nonlocal asked
        asked += 1
        if how == "is silent":
            await asyncio.get_running_loop().create_future()
        raise UnavailableError("no metadata group")

    async with streams.many("orders", start="new", until=None) as many, asyncio.timeout(20):
        monkeypatch.setattr(streams, "list_streams", list_streams)
        reading = 0
        while not asked or reading < 3:
            streams.nodes["orders", 0].append(b"x")
            assert await many.next() is not None
            reading += bool(asked)


@pytest.mark.parametrize("what", ["lag", "positions"])
async def test_consume_many_answers_while_another_task_adds_a_partition(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.0)
    streams = Streams(orders=2)
    each = what.removesuffix("s")
    real = getattr(Consumer, each)

    async with streams.many("orders*") as many:

        async def slow(self: Consumer) -> Any:
            if ("orders_new", 0) not in streams.nodes:
                streams.add("orders_new")
                await many.next()
            return await real(self)

        monkeypatch.setattr(Consumer, each, slow)
        assert set(await getattr(many, what)()) >= {("orders", 0), ("orders", 1)}
        assert ("orders_new", 0) in many.places


async def test_consume_many_repeats_a_failed_first_stream_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(orders=1)
    many = streams.many("orders", start="new", until=None)
    lacking = streams.many("orders", "lacking", start="new")
    real, outcomes = streams.list_streams, [UnavailableError("no metadata group"), asyncio.CancelledError()]

    async def list_streams() -> Any:
        if outcomes:
            raise outcomes.pop(0)
        return await real()

    monkeypatch.setattr(streams, "list_streams", list_streams)
    for error in list(outcomes):
        with pytest.raises(type(error)):
            await many.next()
    coming = asyncio.create_task(many.next())
    async with many:
        while not many.places:
            await asyncio.sleep(0.001)
        await many.lag()
        streams.nodes["orders", 0].append(b"late")
        taken = await asyncio.wait_for(coming, 20)
    assert taken is not None
    assert [record.key for record in taken.slice.records()] == [b"late"]
    for _ in range(2):
        with pytest.raises(NotFoundError, match="No stream matches lacking"):
            await asyncio.wait_for(lacking.next(), 20)


@pytest.mark.parametrize("at", ["a look", "a slice", "nothing"])
async def test_consume_many_close_ends_a_wait_in_another_task(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, gate = Streams(orders=1), asyncio.Event()
    many = streams.many("orders", start="new", until=None)
    real = streams.list_streams

    async def list_streams() -> Any:
        await gate.wait()
        return await real()

    if at == "a look":
        monkeypatch.setattr(streams, "list_streams", list_streams)
    if at == "nothing":
        many.pause(("orders", 0))
    before, waiting = asyncio.all_tasks(), asyncio.create_task(many.next())
    async with asyncio.timeout(20):
        while not (at == "a look" or many.places):
            await asyncio.sleep(0)
        for _ in range(20):  # turns of the loop, until it waits for a record
            await asyncio.sleep(0)
        await many.aclose()
        gate.set()
        assert await waiting is None
        await until(lambda: asyncio.all_tasks() == before, "the end of the tasks")


async def test_consume_many_at_a_corrupt_record_raises_and_keeps_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(orders=1)
    real, broken = module.records_of, CorruptionError("it does not decompress")

    def records_of(stream: str, partition: int, piece: BatchSlice) -> Any:
        if piece.first_offset == 1:
            raise broken
        return real(stream, partition, piece)

    monkeypatch.setattr(module, "records_of", records_of)
    async with streams.many("orders") as many:
        assert (await anext(aiter(many)))[2].offset == 0
        for _ in range(2):
            with pytest.raises(CorruptionError):
                await anext(aiter(many))
            assert (await many.positions())["orders", 0].offset == 1
        assert (await anext(many.batches())).slice.first_offset == 1
        assert (await many.positions())["orders", 0].offset == 2


async def test_consume_many_returns_no_records_of_a_paused_partition_until_resume() -> None:
    streams = Streams(orders=2)
    async with streams.many("orders") as many, asyncio.timeout(20):
        many.pause(("orders", 0))
        reading = many.batches()
        assert [(await anext(reading)).partition for _ in range(20)] == [1] * 20
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(reading)
        assert (await many.lag())["orders", 0] == 20
        many.resume(("orders", 0))
        assert [taken.partition async for taken in many.batches()] == [0] * 20


async def test_consume_many_read_by_two_tasks_raises_config_error() -> None:
    streams = Streams(orders=2)
    async with streams.many("orders") as many:
        many.pause(*many.places)
        waiting = asyncio.create_task(many.next())
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="already read by"):
            await anext(many.batches())
        waiting.cancel()
        await asyncio.wait([waiting])
        many.resume(*many.places)
        assert await many.next() is not None
    streams.nodes["orders", 1].log.log_start_offset = 10
    at = {("orders", 1): Position("u1", 3, 1)}
    with pytest.raises(OffsetOutOfRangeError):
        async with streams.many("orders", positions=at):
            pass
    async with streams.many("orders", start=15) as many:
        node = streams.nodes["orders", 1]
        node.log.log_start_offset = 18
        with pytest.raises(OffsetOutOfRangeError):
            _ = [taken async for taken in many.batches()]


async def test_consume_many_returns_batches_of_all_partitions_in_turn() -> None:
    streams = Streams(orders=3)
    async with streams.many("orders") as many:
        turns = [taken.partition async for taken in many.batches()]
    assert sorted(turns) == [0] * 20 + [1] * 20 + [2] * 20
    assert all(len({*turns[at : at + 3]}) == 3 for at in range(6, 51, 3)), turns


async def test_consume_many_rejects_invalid_streams_and_positions() -> None:
    streams = Streams(orders=1)
    for wrong, error in (((), ConfigError), (("a b",), InvalidNameError)):
        with pytest.raises(error):
            streams.many(*wrong)
    with pytest.raises(NotFoundError, match="No stream matches nosuch"):
        async with streams.many("orders", "nosuch"):
            pass
    async with streams.many("nothing-*") as none:
        assert none.places == []
    for text in ("", "[]", '{"orders": 5}', '{"orders": {"x": "p1.u1.5.1"}}', '{"orders": {"0": "5"}}'):
        with pytest.raises(ConfigError, match="position"):
            positions_from(text)
    assert selects(["pay-?"])("pay-1")
    assert not selects(["pay-?"])("pay-10")


async def test_consume_many_rejects_too_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARTITIONS", 2)
    streams = Streams(orders=3)
    with pytest.raises(ConfigError, match="partitions for"):
        async with streams.many("orders"):
            pass


@pytest.mark.parametrize(
    ("ahead", "depth", "size"), [(64 << 20, 4, 1 << 20), (3 << 20, 3, 1 << 20), (65_536, 1, 65_536), (10, 1, 4096)]
)
def test_consume_many_divides_the_prefetch_limit_among_partitions(ahead: int, depth: int, size: int) -> None:
    bounded = bounded_ahead(ReadOptions(), ahead)
    assert (bounded.read_ahead, bounded.max_bytes) == (depth, size)


async def test_consume_many_positions_and_lag_do_not_count_fetched_records_also_after_close() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(20):
        await client.create_stream("orders", "shop.orders", partitions=3)
        async with client.producer("orders") as producer:
            for partition in range(3):
                await producer.send_many([b"%d" % number for number in range(5)], partition=partition)
        answers: list[ReadEvent] = []
        many = client.consume_many("orders", until="end", options=ReadOptions(on_event=answers.append))
        async with many:
            _, first, _ = await anext(aiter(many))
            await until(lambda: len(answers) == 3, "an answer of each partition")
            for _ in range(10):
                await asyncio.sleep(0)
            expected = {("orders", partition): int(partition == first) for partition in range(3)}
            assert {place: at.offset for place, at in (await many.positions()).items()} == expected
            assert await many.lag() == {place: 5 - offset for place, offset in expected.items()}
        positions = await many.positions()
        assert {place: at.offset for place, at in positions.items()} == expected
        assert len([record async for record in many]) == 14
        async with client.consume_many("orders", until="end", positions=positions) as again:
            assert len([record async for record in again]) == 14


async def test_consume_many_after_an_interrupted_loop_returns_the_rest_of_the_slice() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(20):
        await client.create_stream("orders", "shop.orders")
        async with client.producer("orders") as producer:
            for _ in range(2):
                await producer.send_many([b"%d" % number for number in range(5)], partition=0)
                await producer.flush()
        async with client.consume_many("orders", until="end") as many:
            for offset in range(2):
                assert (await anext(aiter(many))).record.offset == offset
            rest = await many.next()
            assert rest is not None
            assert rest.slice.offsets().tolist() == [2, 3, 4]
            assert (await many.positions())["orders", 0].offset == 5
            assert [record.record.offset async for record in many] == [5, 6, 7, 8, 9]
            assert await many.next() is None


async def test_consume_many_dropped_without_close_leaves_no_task() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(20):
        await client.create_stream("orders", "shop.orders", partitions=3)
        await client.publish("orders", b"1")
        before = asyncio.all_tasks()
        async for _ in client.consume_many("orders"):
            break
        gc.collect()
        await until(lambda: asyncio.all_tasks() == before, "the end of the tasks")
