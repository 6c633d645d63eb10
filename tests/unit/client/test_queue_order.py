"""Test queue workers with order per key and the real coordinator in a cluster in memory [Q7]."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from liftpy.client import Client, Job, QueueOptions
from liftpy.client import queue as module
from liftpy.client.group_admin import GroupRejectedError

ORDERED = QueueOptions(order_by_key=True, ack_wait_s=600)


@pytest.fixture
def client(queue_client: Client) -> Client:
    return queue_client


async def fill(client: Client, keys: str, first: int = 0) -> None:
    """Publish one record per character, with the character as key. '-' means no key."""
    async with client.publisher("jobs") as publisher:
        for number, key in enumerate(keys, first):
            await publisher.send(b"%d" % number, key=None if key == "-" else key.encode())


def numbers(jobs: list[Job]) -> list[int]:
    return [int(job.record.value or b"") for job in jobs]


async def test_ordered_queue_dead_letter_unblocks_its_key(client: Client) -> None:
    await fill(client, "aa")
    options = QueueOptions(order_by_key=True, ack_wait_s=600, max_deliveries=1, dead_letters="dead")
    async with client.queue("jobs", "w", options=options) as queue:
        (bad,) = await queue.take(10)
        await bad.reject("broken")
        assert numbers(await queue.take(10)) == [1]
        assert [record.value async for record in client.consume("dead", until="end")] == [b"0"]


async def test_ordered_queue_with_many_workers_delivers_all_records_in_key_order(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key windows of the workers are smaller than the number of their records."""
    monkeypatch.setattr(module, "_AHEAD", 3)
    keys = "aaaaaaaaaaaaaaab-cbca" * 4
    await fill(client, keys)
    done: dict[str, list[int]] = defaultdict(list)
    left = set(range(len(keys)))
    options = QueueOptions(order_by_key=True, ahead=4)

    async def work(number: int) -> None:
        async with client.queue("jobs", "w", options=options) as queue:
            while left:
                for job in await queue.take(4, timeout_s=0.02):
                    at = job.record.offset
                    if at % 7 == number and job.deliveries == 1:
                        await job.nack()
                        continue
                    done[keys[at]].append(at)
                    left.discard(at)
                    await job.ack()

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(number) for number in range(3)))
    for key in "abc":
        assert done[key] == [at for at, name in enumerate(keys) if name == key]
    assert sorted(done["-"]) == [at for at, name in enumerate(keys) if name == "-"]


async def test_queue_workers_with_different_order_settings_are_rejected(client: Client) -> None:
    await fill(client, "ab")
    async with client.queue("jobs", "w", options=ORDERED) as one, client.queue("jobs", "w") as other:
        jobs = await one.take(1)
        with pytest.raises(GroupRejectedError, match="in order of keys"):
            await other.take(1, timeout_s=0.0)
        await one.ack(jobs)
        assert numbers(await other.take(2)) == [1], "where nothing is out it may change"
        with pytest.raises(GroupRejectedError, match="in any order"):
            await one.take(1, timeout_s=0.0)


async def test_ordered_queue_skips_records_removed_by_retention(client: Client) -> None:
    for number, key in enumerate((b"a", b"a", b"b", b"b", None)):
        await client.publish("jobs", b"%d" % number, key=key)
    async with client.queue("jobs", "w", options=ORDERED) as queue:
        assert numbers(await queue.take(1)) == [0]
        await client.admin.truncate_before("jobs", 0, 2)
        async with asyncio.timeout(30):
            while (await client.bounds("jobs")).log_start_offset < 2:
                await asyncio.sleep(0.01)
        assert numbers(await queue.take(10)) == [2, 4], "b waits for nobody that is gone"
