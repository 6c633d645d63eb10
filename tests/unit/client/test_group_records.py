"""A group member returns records one by one: what it commits, and what another member receives."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from liftpy.client import BatchSlice, Client, ConsumedRecord, GroupOptions, GroupRejectedError, ProducerOptions
from liftpy.client import group as group_module
from liftpy.client.consumer import PartitionReader
from liftpy.client.group import Group
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.groups import commands
from liftpy.errors import ConfigError, CorruptionError, NotFoundError
from liftpy.testing.memory import memory_cluster
from tests.until import until

COUNT = 10
BY_HAND = GroupOptions(auto_commit_s=0)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        async with client.producer("orders") as producer:
            await producer.send_many([b"%d" % number for number in range(COUNT)])
        yield client


async def offsets_until(group: Group, last: int) -> list[int]:
    found = []
    async for record in group:
        found.append(record.offset)
        if record.offset == last:
            break
    return found


async def test_group_iteration_returns_records_with_stream_and_partition(client: Client) -> None:
    async with client.group("billing", ["orders"]) as group:
        record = await anext(group)
        stream, partition, inner = record
        assert (record.stream, record.partition, record.offset, record.value) == ("orders", 0, 0, b"0")
        assert (stream, partition, inner.value, record.key, record.headers) == ("orders", 0, b"0", None, ())
        assert copy.copy(record) == pickle.loads(pickle.dumps(record)) == record
        assert await offsets_until(group, COUNT - 1) == list(range(1, COUNT))


async def test_group_with_too_many_streams_raises_and_a_running_one_reads_the_known_streams(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MAX_STREAMS", 1)
    monkeypatch.setattr(group_module, "STREAMS_S", 0.02)
    async with asyncio.timeout(30), client.group("billing", ["*"]) as group:
        assert (await anext(group)).offset == 0
        await client.create_stream("more", "shop.more")
        while not group.counters["refused"]:
            assert (await anext(group)).stream == "orders"
            await client.publish("orders", b"x")
        with pytest.raises(GroupRejectedError, match=r"\* matches 2 streams with 2 partitions.*Use several groups"):
            await client.group("mailing", ["*"])


async def test_group_commit_stores_the_position_after_the_returned_records(client: Client) -> None:
    async with client.group("billing", ["orders"], options=BY_HAND) as group:
        await offsets_until(group, 3)
        await group.commit()
        await offsets_until(group, 6)
    async with client.group("billing", ["orders"], options=BY_HAND) as group:
        assert await offsets_until(group, COUNT - 1) == list(range(4, COUNT))
        await group.commit()
    assert list((await client.groups.describe("billing")).positions.values()) == [COUNT]


async def test_group_close_commits_all_records_but_the_last_returned_one(client: Client) -> None:
    async with client.group("billing", ["orders"]) as group:
        await offsets_until(group, 5)
    async with client.group("billing", ["orders"]) as group:
        assert (await anext(group)).offset == 5


async def test_group_without_automatic_commits_redelivers_uncommitted_records_after_a_rebalance(client: Client) -> None:
    await client.create_stream("pairs", "shop.pairs", partitions=2)
    for partition in range(2):
        await client.publish("pairs", b"%d" % partition, partition=partition)
    async with asyncio.timeout(30), client.group("billing", ["pairs"], options=BY_HAND) as first:
        assert {(await anext(first)).partition for _ in range(2)} == {0, 1}
        rest = asyncio.create_task(anext(first))  # finishes both records
        async with client.group("billing", ["pairs"], options=BY_HAND) as second:
            record = await anext(second)
            assert (record.value, record.offset) == (b"%d" % record.partition, 0)
        rest.cancel()


async def test_group_batches_after_a_record_iteration_begin_at_the_next_record(client: Client) -> None:
    async with client.group("billing", ["orders"], options=BY_HAND) as group:
        await offsets_until(group, 3)
        batch = await anext(group.batches())
        assert batch.slice.offsets().tolist() == list(range(4, COUNT))
        await group.commit()
    assert list((await client.groups.describe("billing")).positions.values()) == [COUNT]


async def test_group_take_after_a_record_iteration_begins_at_the_next_record(client: Client) -> None:
    async with asyncio.timeout(20), client.group("billing", ["orders"], options=BY_HAND) as group:
        await offsets_until(group, 3)
        part = await group.take()
        assert part is not None
        assert part.slice.offsets().tolist() == list(range(4, COUNT))
        await group.commit()
        assert list((await client.groups.describe("billing")).positions.values()) == [4], "the batch is not finished"
        group.finished(part)
        await group.commit()
    assert list((await client.groups.describe("billing")).positions.values()) == [COUNT]


async def test_group_into_after_a_record_iteration_copies_the_rest_of_the_batch(client: Client) -> None:
    await client.create_stream("bills", "shop.bills")
    async with asyncio.timeout(20), client.group("billing", ["orders"]) as group:
        await offsets_until(group, 3)
        copying = asyncio.create_task(group.into("bills", lambda record: [(record.key, record.value)]))
        records = client.consume("bills").records()
        values = [(await anext(records)).value for _ in range(4, COUNT)]
        copying.cancel()
    assert values == [b"%d" % number for number in range(4, COUNT)]


async def test_group_record_slice_attribute_raises_with_a_hint_to_group_batches(client: Client) -> None:
    async with client.group("billing", ["orders"]) as group:
        record = await anext(group)
        with pytest.raises(AttributeError, match=r"iterate over group\.batches"):
            _ = record.slice  # type: ignore[attr-defined]


async def test_group_returns_batches_of_all_partitions_in_turn(client: Client) -> None:
    await client.create_stream("parted", "shop.parted", partitions=3)
    async with client.producer("parted", options=ProducerOptions(batch_records=1)) as producer:
        for partition in range(3):
            await producer.send_many([b"%d" % number for number in range(100)], partition=partition)
    async with asyncio.timeout(30), client.group("billing", ["parted"], options=BY_HAND) as group:
        turns = [(await anext(group.batches())).key.partition for _ in range(300)]
    assert sorted(turns) == [0] * 100 + [1] * 100 + [2] * 100
    first_end = min(299 - turns[::-1].index(partition) for partition in range(3))
    common = turns[max(map(turns.index, range(3))) + 3 : first_end]  # all partitions have records
    assert all(len({*common[at : at + 3]}) == 3 for at in range(len(common) - 2)), turns


async def test_group_with_a_filter_commits_its_position_over_filtered_records(client: Client) -> None:
    async with client.producer("orders") as producer:
        await producer.send(b"wanted", key=b"k")
        await producer.flush()
        await producer.send_many([b"x"] * 5)
    options = GroupOptions(auto_commit_s=0, keys=(b"k",))
    async with asyncio.timeout(30), client.group("billing", ["orders"], options=options) as group:
        async for record in group:
            assert (record.offset, record.value) == (COUNT, b"wanted")
            break
        offset = -1
        while offset != COUNT + 6:
            await group.commit()
            (offset,) = (await client.groups.describe("billing")).positions.values()


async def test_group_continues_with_other_streams_when_one_is_deleted(client: Client) -> None:
    await client.create_stream("more", "shop.more")
    await client.publish("more", b"x")
    async with asyncio.timeout(60), client.group("billing", ["*"]) as group:
        found = {record.stream for record in [await anext(group) for _ in range(COUNT + 1)]}
        assert found == {"orders", "more"}
        await client.admin.delete_stream("more")
        await client.publish("orders", b"last")
        assert (await anext(group)).value == b"last"


async def test_group_at_an_undecodable_batch_raises_and_keeps_its_position(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def records_of(stream: str, partition: int, piece: BatchSlice) -> Iterator[ConsumedRecord]:
        raise CorruptionError("it does not decompress")

    async with client.group("billing", ["orders"], options=BY_HAND) as group:
        with monkeypatch.context() as patch:
            patch.setattr(group_module, "records_of", records_of)
            for _ in range(2):
                with pytest.raises(CorruptionError):
                    await anext(group)
                await group.commit()
        assert (await anext(group)).offset == 0
    with pytest.raises(NotFoundError):  # without a committed position, the group ends with its last member
        await client.groups.describe("billing")


def drop(held: list[Group]) -> None:
    held.clear()
    gc.collect()


async def test_group_dropped_without_close_warns_and_leaves_no_task(client: Client) -> None:
    before = asyncio.all_tasks()
    held = [await client.group("billing", ["orders"])]
    await offsets_until(held[0], COUNT - 1)
    with pytest.warns(ResourceWarning, match="group billing was not closed"):
        drop(held)
    async with asyncio.timeout(20):
        await until(lambda: asyncio.all_tasks() <= before, "the end of the tasks")


async def test_group_that_only_a_waiting_task_uses_continues(client: Client) -> None:
    """asyncio has only a weak reference to a task. A member must not end with the task that uses it."""
    received: list[int] = []

    async def read() -> None:
        async with client.group("billing", ["orders"]) as group:
            async for record in group:
                received.append(record.offset)

    asyncio.create_task(read(), name="reader")  # noqa: RUF006
    async with asyncio.timeout(20):
        await until(lambda: len(received) == COUNT, "the first records")
        gc.collect()
        await client.publish("orders", b"later")
        await until(lambda: len(received) == COUNT + 1, "a later record")
        (reader,) = [task for task in asyncio.all_tasks() if task.get_name() == "reader"]
        reader.cancel()
        await asyncio.wait([reader])


@pytest.mark.parametrize("by_batch", [False, True])
async def test_group_iteration_in_a_second_task_raises_and_the_first_one_gets_every_record(
    client: Client, *, by_batch: bool
) -> None:
    async with asyncio.timeout(30), client.group("billing", ["orders"], options=BY_HAND) as group:
        offsets: list[int] = []

        async def read() -> None:
            if by_batch:
                async for batch in group.batches():
                    offsets.extend(record.offset for record in batch.slice.records())
            else:
                async for record in group:
                    offsets.append(record.offset)

        first = asyncio.create_task(read())
        await until(lambda: len(offsets) == COUNT)
        with pytest.raises(ConfigError, match=r"already read by another task.*one member per task"):
            await read()
        await client.publish("orders", b"last")
        await until(lambda: offsets == list(range(COUNT + 1)))
        await group.close()
        await first


async def test_group_iteration_in_another_task_after_a_canceled_wait_continues(client: Client) -> None:
    async with asyncio.timeout(30), client.group("billing", ["orders"]) as group:
        await offsets_until(group, COUNT - 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(group), 0.05)
        await client.publish("orders", b"last")
        assert (await asyncio.create_task(anext(group))).offset == COUNT


async def test_group_close_ends_the_reads_while_the_application_has_the_group(client: Client) -> None:
    before = asyncio.all_tasks()
    group = await client.group("billing", ["orders"])
    assert (await anext(group)).offset == 0
    await group.close()
    assert [task.get_name() for task in asyncio.all_tasks() - before if task.get_name().startswith("read ")] == []


async def test_group_commit_after_the_member_has_lost_the_partition_raises_once(client: Client) -> None:
    async with asyncio.timeout(30):
        group = await client.group("billing", ["orders"], instance="a", options=BY_HAND)
        batch = await anext(aiter(group.batches()))
        async with client.group("billing", ["orders"], instance="a", options=BY_HAND) as successor:
            await until(lambda: group.owned == [])
            with pytest.raises(
                GroupRejectedError, match=r"records of orders/0 were not committed.*receives these records again"
            ):
                await group.commit()
            await group.commit()
            part = await successor.take()
            assert part is not None
            assert part.slice.first_offset == batch.slice.first_offset == 0
        await group.close()


async def test_group_commit_after_close_raises_if_a_returned_record_is_not_committed(client: Client) -> None:
    async with asyncio.timeout(30):
        for is_last_one_committed in (False, True):
            async with client.group("billing", ["orders"], options=BY_HAND) as group:
                assert await offsets_until(group, 2) == [0, 1, 2]
                if is_last_one_committed:
                    await group.commit()
            if is_last_one_committed:
                await group.commit()
            else:
                with pytest.raises(GroupRejectedError, match=r"not committed, because this member is closed.*before close"):
                    await group.commit()


@pytest.mark.parametrize("count", [1, 2])
async def test_group_continues_a_partition_that_only_nodes_report_as_deleted(
    client: Client, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async with asyncio.timeout(30), client.group("billing", ["orders"]) as group:
        await offsets_until(group, COUNT - 1)
        real, reports = PartitionReader.fetch, 0

        async def fetch(reader: PartitionReader, *arguments: Any, **named: Any) -> Any:
            nonlocal reports
            if reader.stream == "orders" and reports < count:
                reports += 1
                raise NotFoundError("orders/0 was deleted")
            return await real(reader, *arguments, **named)

        monkeypatch.setattr(PartitionReader, "fetch", fetch)
        for offset in range(COUNT, COUNT + 3):
            await client.publish("orders", b"later")
            assert (await anext(group)).offset == offset
        assert reports == count


async def test_group_commits_while_the_metadata_group_is_silent(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "STREAMS_S", 0.0)
    asked = asyncio.Event()

    async def never(*_: Any, **__: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(StreamDirectory, "list_streams", never)
    options = GroupOptions(auto_commit_s=0.1)
    async with asyncio.timeout(30), client.group("billing", ["orders"], options=options) as group:
        await asked.wait()
        await offsets_until(group, 3)
        while list((await client.groups.describe("billing")).positions.values()) != [3]:
            await asyncio.sleep(0.01)


async def test_group_commit_does_not_pass_a_batch_that_is_not_finished(client: Client) -> None:
    async with client.producer("orders") as producer:
        for _ in range(2):
            await producer.send_many([b"later"] * 5)
            await producer.flush()
    async with asyncio.timeout(30), client.group("billing", ["orders"], options=BY_HAND) as group:
        parts = [part for _ in range(3) if (part := await group.take()) is not None]
        starts = [part.slice.first_offset for part in parts]
        assert starts[0] == 0 < starts[1] < starts[2]
        positions = []
        for finished in (parts[1], parts[0], parts[0], parts[2]):
            group.finished(finished)
            await group.commit()
            positions.append(list((await client.groups.describe("billing")).positions.values()))
        end = parts[2].slice.last_offset + 1
        assert positions == [[], [starts[2]], [starts[2]], [end]]
