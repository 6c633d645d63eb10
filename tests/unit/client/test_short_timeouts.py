"""Test calls with a short timeout on a cluster in memory: the next call returns the records that arrived."""

from __future__ import annotations

import asyncio
import time

from liftpy.client import Client, Consumer
from liftpy.testing.memory import memory_cluster

RECORDS = 20


async def filled(client: Client) -> None:
    await client.create_stream("orders", "orders")
    async with client.publisher("orders") as publisher:
        for number in range(RECORDS):
            await publisher.send(b"%d" % number)


async def test_consumer_getone_with_timeout_zero_returns_every_record() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await filled(client)
        consumer, found = client.consume("orders"), list[int]()
        async with asyncio.timeout(30):
            while len(found) < RECORDS:
                if (record := await consumer.getone(0)) is not None:
                    found.append(record.offset)
        assert found == list(range(RECORDS))
        assert (await consumer.position()).offset == RECORDS


async def test_consumer_closed_during_its_start_leaves_no_task() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await filled(client)
        before = asyncio.all_tasks()
        consumer: Consumer = client.consume("orders")
        records = consumer.records()
        try:
            async with asyncio.timeout(0):
                await anext(records)
        except TimeoutError:
            pass
        await records.aclose()
        async with asyncio.timeout(30):
            while asyncio.all_tasks() - before:
                await asyncio.sleep(0.01)


def test_sync_consumer_getmany_with_timeout_zero_returns_every_record() -> None:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "orders")
        for number in range(RECORDS):
            client.publish("orders", b"%d" % number)
        consumer, found, until_s = client.consume("orders"), list[int](), time.monotonic() + 30
        while len(found) < RECORDS and time.monotonic() < until_s:
            found += [record.offset for record in consumer.getmany(7, 0)]
        assert found == list(range(RECORDS))
