"""Test ``group.into`` in a cluster in memory: each record is copied once, despite failures of members and leaders."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from liftpy.client import Client, GroupOptions, Source
from liftpy.client.batch_view import GroupBatch
from liftpy.client.group import MOST_IN_HAND, Group, GroupCopy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import Record
from liftpy.core.wire.partitioner import partition_of
from liftpy.errors import ConfigError, PublishRejectedError
from liftpy.testing.memory import MemoryCluster, memory_cluster

SOURCES, TARGETS = 2, 3
SHORT = GroupOptions(session_s=3.0, auto_commit_s=0.05)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster() as made, made.client() as client:
        await client.create_stream("orders", "orders", partitions=SOURCES)
        await client.create_stream("bills", "bills", partitions=TARGETS)
        yield made


def bills(record: Record) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Return none, one or two output records for a source record."""
    yield from made_of(record.value or b"")


def made_of(value: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return the output values for a source value."""
    number = int(value.partition(b".")[2])
    for each in range(number % 3):
        yield b"%d" % (number % 17 + each), value + b".%d" % each


async def feed(client: Client, first: int, count: int) -> None:
    for partition in range(SOURCES):
        async with client.publisher("orders", partition) as publisher:
            for number in range(first, first + count):
                await publisher.send(b"%d.%d" % (partition, number))


def wanted(count: int) -> list[list[list[bytes]]]:
    """Return the expected values: target partition -> source partition -> values in order."""
    found: list[list[list[bytes]]] = [[[] for _ in range(SOURCES)] for _ in range(TARGETS)]
    for source in range(SOURCES):
        for number in range(count):
            for key, value in made_of(b"%d.%d" % (source, number)):
                found[partition_of(key, TARGETS)][source].append(value)
    return found


async def copied(client: Client) -> list[list[list[bytes]]]:
    """Return the stored values: target partition -> source partition -> values in order."""
    found: list[list[list[bytes]]] = [[[] for _ in range(SOURCES)] for _ in range(TARGETS)]
    for target in range(TARGETS):
        async for record in client.consume("bills", target, until="end"):
            value = record.value or b""
            found[target][int(value.partition(b".")[0])].append(value)
    return found


async def until_copied(client: Client, count: int) -> None:
    """Wait until the number of stored values is the expected number. Then compare the values."""
    right = wanted(count)
    total = sum(len(values) for sources in right for values in sources)
    async with asyncio.timeout(40):
        while sum([(await client.bounds("bills", target)).high_watermark + 1 for target in range(TARGETS)]) < total:
            await asyncio.sleep(0.01)
    assert await copied(client) == right


async def copying(client: Client, options: GroupOptions = SHORT) -> tuple[Group, asyncio.Task[None]]:
    group = await client.group("billing", ["orders"], options=options)
    return group, asyncio.create_task(group.into("bills", bills))


async def end(group: Group, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await group.close()


async def test_group_into_copies_each_record_once_while_members_and_leaders_fail(cluster: MemoryCluster) -> None:
    async with cluster.client() as client:
        await feed(client, 0, 60)
        first = await copying(client)
        await until_copied(client, 60)
        async with cluster.client() as dying:
            second = await copying(dying)
            while not second[0].owned:
                await asyncio.sleep(0.01)
            assert len(second[0].owned) == 1
            await feed(client, 60, 40)
            cluster.kill_leader("bills", 1)
            await until_copied(client, 100)
            await feed(client, 100, 40)  # in the middle of which a member is gone without a word
        second[1].cancel()
        cluster.heal()
        await feed(client, 140, 10)
        await until_copied(client, 150)
        await end(*first)
        await feed(client, 150, 10)
        third = await copying(client)
        await until_copied(client, 160)
        await end(*third)
        assert sorted((await client.groups.describe("billing")).positions.values()) == [160, 160]


async def test_group_into_without_committed_positions_skips_records_already_in_the_target(cluster: MemoryCluster) -> None:
    """The group never committed a position."""
    async with cluster.client() as client:
        await feed(client, 0, 50)
        group, task = await copying(client, GroupOptions(session_s=3.0, auto_commit_s=0))
        await until_copied(client, 50)
        await end(group, task)
        await feed(client, 50, 50)
        again = await copying(client)
        await until_copied(client, 100)
        await end(*again)


async def test_group_into_with_a_fenced_producer_opens_a_new_producer(cluster: MemoryCluster) -> None:
    async with cluster.client() as client:
        await feed(client, 0, 20)
        group, task = await copying(client)
        await until_copied(client, 20)
        for key in group.owned:
            generation = group.generation_of(key)
            assert generation is not None
            source = Source("orders", key.partition, generation)
            name = f"billing/orders-{key.partition}/{key.uid}"
            await (await client.producer("bills", id=name, source=source)).close()
        await feed(client, 20, 30)
        await until_copied(client, 50)
        assert group.counters["copied anew"] >= 1
        await end(group, task)


async def close(client: Client, how: str) -> None:
    """Make the target reject all publishes."""
    await (client.admin.pause("bills") if how == "PAUSED" else client.admin.alter_stream("bills", read_only=True))


async def reopen(client: Client, how: str) -> None:
    await (client.admin.resume("bills") if how == "PAUSED" else client.admin.alter_stream("bills", read_only=False))


async def until_refused(group: Group, times: int) -> None:
    async with asyncio.timeout(40):
        while group.counters["target closed"] < times:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("how", "before"), [("PAUSED", 20), ("READ_ONLY", 20), ("PAUSED", 0)])
async def test_group_into_a_paused_or_readonly_target_waits_and_copies_each_record_once(
    cluster: MemoryCluster, how: str, before: int
) -> None:
    async with cluster.client() as client:
        await feed(client, 0, before)
        group, task = await copying(client)
        await until_copied(client, before)
        await close(client, how)
        await feed(client, before, 20)
        await until_refused(group, 2 * SOURCES)
        await feed(client, before + 20, 10)
        assert max((await client.groups.describe("billing")).positions.values(), default=0) <= before + 1
        await reopen(client, how)
        await until_copied(client, before + 30)
        assert not task.done()
        await end(group, task)


async def test_group_into_a_target_paused_too_long_raises_and_commits_only_copied_records(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftpy.client.group._FAREWELLS", 0.2)
    async with cluster.client() as client:
        await feed(client, 0, 20)
        group, task = await copying(client)
        await until_copied(client, 20)
        await client.admin.pause("bills")
        await feed(client, 20, 20)
        with pytest.raises(PublishRejectedError, match=r"bills has taken nothing of orders/\d.* for 0\.6 s: .*PAUSED") as told:
            async with asyncio.timeout(40):
                await task
        assert told.value.reason == "PAUSED"
        assert group.counters["target closed"] >= 2
        await group.close()
        assert max((await client.groups.describe("billing")).positions.values(), default=0) <= 21
        await client.admin.resume("bills")
        again = await copying(client)
        await until_copied(client, 40)
        await end(*again)


async def test_group_into_a_stream_that_the_group_reads_or_with_an_async_function_raises_config_error(
    cluster: MemoryCluster,
) -> None:
    """A group of a pattern copied its own results again and again."""

    async def async_bill(*_: object) -> list[tuple[bytes | None, bytes | None]]:
        return []

    async with cluster.client() as client:
        await feed(client, 0, 3)
        async with client.group("billing", ["orders", "b*"], options=SHORT) as group:
            with pytest.raises(ConfigError, match=r"Group billing reads stream bills itself \(b\*\)"):
                await group.into("bills", bills)
            wrong: list[dict[str, Any]] = [{"transform": async_bill}, {"transform": bills, "partition_for": async_bill}]
            for functions in wrong:
                with pytest.raises(ConfigError, match="Use a function without async"):
                    await group.into("others", **functions)
        assert await copied(client) == wanted(0)


async def test_group_into_raises_an_error_of_the_transform_function(cluster: MemoryCluster) -> None:
    def fails(record: Record) -> Iterator[tuple[bytes | None, bytes | None]]:
        yield None, record.value
        raise ArithmeticError("no such bill")

    async with cluster.client() as client:
        await feed(client, 0, 3)
        async with client.group("billing", ["orders"], options=SHORT) as group:
            with pytest.raises(ArithmeticError, match="no such bill"):
                await group.into("bills", fails)
        assert await copied(client) == wanted(0)


async def test_group_into_called_again_after_an_error_copies_each_record_once(cluster: MemoryCluster) -> None:
    failing = {(partition, 7) for partition in range(SOURCES)}

    def fails_once(record: Record) -> Iterator[tuple[bytes | None, bytes | None]]:
        place = int((record.value or b"").partition(b".")[0]), record.offset
        if place in failing:
            failing.clear()
            raise ArithmeticError("no such bill")
        yield from bills(record)

    async with cluster.client() as client:
        await feed(client, 0, 20)
        group = await client.group("billing", ["orders"], options=SHORT)
        with pytest.raises(ArithmeticError, match="no such bill"):
            await group.into("bills", fails_once)
        task = asyncio.create_task(group.into("bills", fails_once))
        await until_copied(client, 20)
        await feed(client, 20, 10)
        await until_copied(client, 30)
        await end(group, task)


@pytest.mark.parametrize("steps", range(3))
async def test_group_into_canceled_twice_returns_each_uncopied_record_from_take(cluster: MemoryCluster, steps: int) -> None:
    """The second cancellation arrives while the first one closes the producers."""
    options = GroupOptions(session_s=3.0, auto_commit_s=0)
    async with cluster.client() as client, client.group("billing", ["orders"], options=options) as group:
        for first in range(0, 60, 20):
            await feed(client, first, 20)
        taken = asyncio.Event()

        def first_bill(record: Record) -> Iterator[tuple[bytes | None, bytes | None]]:
            taken.set()
            return bills(record)

        task = asyncio.create_task(group.into("bills", first_bill))
        async with asyncio.timeout(30):
            await taken.wait()
        for _ in range(2):
            task.cancel()
            for _ in range(steps):
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        found: list[list[int]] = [[] for _ in range(SOURCES)]
        async with asyncio.timeout(30):
            while [offsets[-1:] for offsets in found] != [[59]] * SOURCES:
                part = await group.take()
                assert part is not None
                found[part.key.partition] += part.slice.offsets().tolist()
        assert found == [list(range(60))] * SOURCES


async def test_group_into_copies_records_without_key_to_the_partition_number_of_the_source(cluster: MemoryCluster) -> None:
    async with cluster.client() as client:
        await feed(client, 0, 3)
        async with client.group("billing", ["orders"], options=SHORT) as group:
            task = asyncio.create_task(group.into("bills", lambda record: [(None, record.value)]))
            async with asyncio.timeout(30):
                while [(await client.bounds("bills", target)).high_watermark for target in range(TARGETS)] != [2, 2, -1]:
                    await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class LateGroup:
    """A group member that gets records of a partition only after it has lost the partition."""

    name = "billing"

    def __init__(self, count: int) -> None:
        self.counters: Counter[str] = Counter()
        self._left = count

    async def take(self) -> GroupBatch | None:
        self._left -= 1
        await asyncio.sleep(0)
        return GroupBatch(PartitionKey("orders", "u1", 0), 1, None) if self._left >= 0 else None  # type: ignore[arg-type]

    def finished(self, part: GroupBatch) -> None: ...

    def generation_of(self, key: PartitionKey) -> int | None:
        return None


async def test_group_copy_with_a_lost_partition_drops_its_batches_and_continues() -> None:
    group = LateGroup(3 * MOST_IN_HAND)
    copy = GroupCopy(None, group, "bills", bills, partition_for=None, options=None, session_s=3.0)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        await copy.run()
    assert copy.in_hand == 0
