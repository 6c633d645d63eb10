"""Test clients in a process that is suspended for longer than their time limits: they continue afterwards.

A test suspends the event loop of the client, while the cluster runs in its own thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from liftpy.client import Client, ProducerOptions, PublishOptions, ReadOptions
from liftpy.client import queue as queue_module
from liftpy.testing.memory import MemoryCluster, memory_cluster

SUSPENDED_S = 2.5
IMPATIENT = ReadOptions(patience_s=0.5, wait_s=0.2, answer_timeout_s=0.3)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster() as made:
        yield made


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as made:
        await made.create_stream("orders", "orders")
        await made.publish("orders", b"0")
        yield made


async def suspend(cluster: MemoryCluster, *, reconnects: bool = False) -> None:
    """Suspend this process. ``reconnects``: the NATS server closes all connections in this time."""
    await asyncio.sleep(0.05)
    if reconnects:
        cluster.restart_nats()
    time.sleep(SUSPENDED_S)  # noqa: ASYNC251


@pytest.mark.parametrize("reconnects", [False, True])
@pytest.mark.parametrize("how", ["consume", "consume_many"])
async def test_consumer_in_a_suspended_process_continues(
    cluster: MemoryCluster, client: Client, how: str, reconnects: bool
) -> None:
    consumer = client.consume("orders", start="new", options=IMPATIENT)
    many = client.consume_many("orders", start="new", options=IMPATIENT)
    async with many, asyncio.timeout(30):
        await consumer.begin()
        reading = asyncio.create_task(consumer.getone() if how == "consume" else many.next_record())
        await suspend(cluster, reconnects=reconnects)
        await client.publish("orders", b"1")
        record = await reading
    assert record is not None


@pytest.mark.parametrize("how", ["publisher", "producer"])
async def test_publish_in_a_suspended_process_gets_its_ack(cluster: MemoryCluster, client: Client, how: str) -> None:
    async with (
        client.publisher("orders", options=PublishOptions(patience_s=0.5, timeout_s=0.5)) as publisher,
        client.producer("orders", options=ProducerOptions(patience_s=1, attempt_s=0.5)) as producer,
        asyncio.timeout(30),
    ):
        await publisher.publish(b"1")
        await (await producer.send(b"2"))
        sent = await (publisher if how == "publisher" else producer).send(b"3")
        await asyncio.sleep(0)
        time.sleep(SUSPENDED_S)  # noqa: ASYNC251
        assert (await sent).offset == 3


async def test_queue_worker_in_a_suspended_process_continues(
    cluster: MemoryCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "_COMMAND_S", 0.5)
    async with client.queue("orders", "workers") as queue, asyncio.timeout(30):
        taking = asyncio.create_task(queue.take(1))
        for _ in range(40):
            await asyncio.sleep(0)
        time.sleep(SUSPENDED_S)  # noqa: ASYNC251
        assert [job.record.value for job in await taking] == [b"0"]
