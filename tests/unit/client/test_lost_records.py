"""Test readers of a partition that has lost committed records in an unclean election [C11, R6, Q8]."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from liftpy.client import Client, GroupOptions, Position, QueueOptions
from liftpy.client.multi_consumer import Place
from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.errors import ConfigError, LogTruncatedError
from liftpy.testing.memory import MemoryCluster, memory_cluster
from tests.until import until

Losing = tuple[Client, Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]]


async def lose_records(cluster: MemoryCluster, client: Client, work: Callable[[], Awaitable[Any]]) -> None:
    """Elect a replica that lacks the records 3 to 7, and publish two new ones. ``work`` runs before the records are lost."""
    (partition,) = (await client.stream("jobs")).partitions
    (follower,) = set(partition.replicas) - {partition.leader}
    await publish(client, 3)
    await asyncio.to_thread(cluster.kill, follower)
    await publish(client, 5)
    await work()
    await asyncio.to_thread(cluster.kill, partition.leader)
    await asyncio.to_thread(cluster.start, follower)
    await client.admin.elect_leader("jobs", 0, follower, unclean=True)
    await asyncio.to_thread(cluster.leader, "jobs")
    await publish(client, 2)


async def publish(client: Client, count: int) -> None:
    for _ in range(count):
        await client.publish("jobs", b"v")


@pytest.fixture
async def losing() -> AsyncIterator[Losing]:
    async with memory_cluster() as cluster, cluster.client() as client:
        await asyncio.to_thread(cluster.serve_groups)
        await client.create_stream("jobs", "jobs", replicas=2, config=StreamConfig(min_isr=1))
        yield client, partial(lose_records, cluster, client)


async def test_queue_take_after_delivered_records_were_lost_raises_log_truncated_error(losing: Losing) -> None:
    client, lose = losing
    async with client.queue("jobs", "w") as queue, asyncio.timeout(60):

        async def ack_all() -> None:
            for _ in range(8):
                await (await anext(queue)).ack()

        await lose(ack_all)
        for _ in range(2):
            with pytest.raises(LogTruncatedError) as error:
                await queue.take(10)
            assert error.value.end_offset == 3
    with pytest.raises(LogTruncatedError, match=r"from offset 5 on, .* up to offset 8"):
        await client.queue("jobs", "w")
    await client.queues.delete("w")
    await client.groups.reset("w", {(await client.stream("jobs")).key(0): error.value.end_offset})
    async with client.queue("jobs", "w") as queue:
        assert [job.record.offset for job in await queue.take(10)] == [3, 4]


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
async def test_queue_take_by_a_worker_that_read_nothing_raises_log_truncated_error_after_the_log_grew_again(
    losing: Losing, ordered: bool
) -> None:
    client, lose = losing
    options = QueueOptions(order_by_key=ordered)

    async def ack_all() -> None:
        async with client.queue("jobs", "w", options=options) as queue, asyncio.timeout(60):
            for _ in range(8):
                await (await anext(queue)).ack()

    async with client.queue("jobs", "w", options=options) as idle, asyncio.timeout(60):
        await lose(ack_all)
        await publish(client, 10)  # the log is longer than before
        for queue in (idle, await client.queue("jobs", "w", options=options)):
            for _ in range(2):
                with pytest.raises(LogTruncatedError, match="up to offset 8") as error:
                    await queue.take(10)
                assert error.value.end_offset == 3
        await client.queues.delete("w")
        await client.groups.reset("w", {(await client.stream("jobs")).key(0): error.value.end_offset})
        assert [job.record.offset for job in await queue.take(20)] == [*range(3, 15)]
        await queue.close()


async def test_queue_take_after_an_unclean_election_that_lost_no_delivered_record_continues(losing: Losing) -> None:
    client, lose = losing

    async def ack_three() -> None:
        async with client.queue("jobs", "w") as queue, asyncio.timeout(60):
            await queue.ack(await queue.take(3))

    await lose(ack_three)
    async with client.queue("jobs", "w") as queue, asyncio.timeout(60):
        assert [job.record.offset for job in await queue.take(10)] == [3, 4]


async def test_queue_take_of_returned_records_that_were_lost_raises_log_truncated_error(losing: Losing) -> None:
    client, lose = losing
    async with client.queue("jobs", "w") as queue, client.queue("jobs", "w") as other, asyncio.timeout(60):

        async def return_some() -> None:
            jobs = await queue.take(8)
            await queue.ack(jobs[:6])
            await queue.nack(jobs[6:])

        await lose(return_some)
        with pytest.raises(LogTruncatedError):
            await other.take(10)


async def test_consumer_that_waits_at_the_end_raises_log_truncated_error_when_records_are_lost(losing: Losing) -> None:
    client, lose = losing
    consumer = client.consume("jobs", start="new")
    await lose(consumer.begin)
    with pytest.raises(LogTruncatedError) as error:
        async with asyncio.timeout(60):
            await anext(consumer.records())
    assert error.value.end_offset == 3


@pytest.mark.parametrize("options", [GroupOptions(start="new"), GroupOptions(keys=[b"k"])], ids=["new", "filtered"])
async def test_group_that_passed_lost_records_raises_log_truncated_error_in_the_next_member(
    losing: Losing, options: GroupOptions
) -> None:
    client, lose = losing
    key = (await client.stream("jobs")).key(0)

    async def pass_over() -> None:
        async with client.group("g", ["jobs"], options=options) as group, asyncio.timeout(60):
            reading = asyncio.create_task(group.take())
            while (await client.groups.describe("g")).positions.get(key) != 8:
                if group.owned:
                    await group.commit()
                await asyncio.sleep(0.01)
            reading.cancel()

    await lose(pass_over)
    await publish(client, 10)  # the log is longer than before
    async with client.group("g", ["jobs"], options=options) as group, asyncio.timeout(60):
        with pytest.raises(LogTruncatedError) as error:
            await anext(group)
    assert error.value.end_offset == 3


async def test_consume_many_from_positions_after_lost_records_raises_log_truncated_error(losing: Losing) -> None:
    """The consumer has fetched a slice that it has not returned, and its position is before this slice."""
    client, lose = losing
    positions: dict[Place, Position] = {}

    await client.create_stream("other", "other")
    for _ in range(10):
        await client.publish("other", b"v")

    async def read_some() -> None:
        returned, stream = Counter[str](), ""
        async with client.consume_many("jobs", "other", until="end") as many, asyncio.timeout(60):
            while returned["jobs"] < 4 or stream != "other":
                stream = (await many.next()).stream  # type: ignore[union-attr]
                returned[stream] += 1
            await until(lambda: "next of jobs/0" not in {task.get_name() for task in asyncio.all_tasks()})
            positions.update(await many.positions())
        assert positions["jobs", 0].offset == returned["jobs"]

    await lose(read_some)
    await publish(client, 10)  # the log is longer than before
    with pytest.raises(LogTruncatedError) as error:
        async with client.consume_many("jobs", positions=positions) as many, asyncio.timeout(60):
            await many.next()
    assert error.value.end_offset == 3


async def test_cursor_at_a_committed_offset_after_lost_records_raises_log_truncated_error(losing: Losing) -> None:
    client, lose = losing

    async def commit_offset() -> None:
        async with client.cursor("nightly", "jobs") as cursor, asyncio.timeout(60):
            async for record in await cursor.consume():
                if record.offset == 4:
                    await cursor.commit(record.offset + 1)
                    break

    await lose(commit_offset)
    await publish(client, 10)  # the log is longer than before
    async with client.cursor("nightly", "jobs") as cursor, asyncio.timeout(60):
        with pytest.raises(LogTruncatedError) as error:
            await anext((await cursor.consume()).records())
        assert error.value.end_offset == 3


@pytest.mark.parametrize("by", ["group", "queue", "queue that had a position", "cursor", "commit", "position"])
async def test_position_set_by_hand_above_lost_records_raises_log_truncated_error(losing: Losing, by: str) -> None:
    client, lose = losing
    key = (await client.stream("jobs")).key(0)

    async def set_position() -> None:
        if by == "cursor":
            await client.cursors.set("w", {key: 5})
        elif by == "position":
            reading = client.consume("jobs")
            while (await reading.getone()).offset < 4:  # type: ignore[union-attr]
                """The position is after the record with the offset 4."""
            await client.cursors.set("w", {key: await reading.position()})
        elif by == "commit":
            await (await client.cursor("w", "jobs")).commit(5)
        elif by == "queue that had a position":
            async with client.queue("jobs", "w") as queue, asyncio.timeout(60):
                await queue.ack(await queue.take(1))
            await client.groups.reset("w", {key: 5})
        else:
            await client.groups.reset("w", {key: 5})

    async def read_on() -> None:
        if by.startswith("queue"):
            async with client.queue("jobs", "w") as queue:
                await queue.take(10)
        elif by == "group":
            async with client.group("w", ["jobs"]) as group:
                await anext(group)
        else:
            await anext((await (await client.cursor("w", "jobs")).consume()).records())

    await lose(set_position)
    await publish(client, 10)  # the log is longer than before
    with pytest.raises(LogTruncatedError) as error:
        async with asyncio.timeout(60):
            await read_on()
    assert error.value.end_offset == 3


async def test_group_reset_of_a_stream_that_does_not_exist_sets_the_position(losing: Losing) -> None:
    client, _ = losing
    key = PartitionKey("gone", "0-1", 0)
    await client.groups.reset("w", {key: 7})
    assert (await client.groups.describe("w")).positions == {key: 7}


async def test_group_reset_to_a_position_of_another_stream_raises_config_error(losing: Losing) -> None:
    client, _ = losing
    with pytest.raises(ConfigError, match="another stream"):
        await client.groups.reset("w", {(await client.stream("jobs")).key(0): Position("0-1", 4, 2)})
