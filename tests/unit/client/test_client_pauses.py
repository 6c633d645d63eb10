"""Test ``client.admin.pause`` and ``client.admin.resume`` on a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from liftpy.client import Client
from liftpy.core.base.partition import Pause
from liftpy.errors import ConfigError, NotFoundError, PublishRejectedError, StaleRequestError
from liftpy.testing.memory import memory_cluster


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as made:
        await made.create_stream("orders", "orders", partitions=3)
        yield made


async def pauses(client: Client) -> list[Pause]:
    return [p.pause for p in (await client.stream("orders")).partitions]


async def until(client: Client, *wanted: Pause) -> None:
    while await pauses(client) != list(wanted):
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [({}, Pause.UNTIL_RESUMED), ({"resume_on_publish": True}, Pause.UNTIL_PUBLISH), ({"resume_all": True}, Pause.UNTIL_PUBLISH_TO_ANY),
     ({"resume_on_publish": True, "resume_all": True}, Pause.UNTIL_PUBLISH_TO_ANY)],
)  # fmt: skip
async def test_admin_pause_sets_the_requested_pause_mode(how: dict[str, bool], wanted: Pause, client: Client) -> None:
    decided = await client.admin.pause("orders", [1, 2, 1], **how)
    assert [p.pause for p in decided.partitions] == await pauses(client) == [Pause.NOT_PAUSED, wanted, wanted]
    await client.admin.resume("orders", iter([2]))
    await until(client, Pause.NOT_PAUSED, wanted, Pause.NOT_PAUSED)
    await client.admin.resume("orders")
    await until(client, *[Pause.NOT_PAUSED] * 3)


async def test_admin_pause_of_a_missing_partition_or_stream_raises_and_changes_nothing(client: Client) -> None:
    uid = (await client.stream("orders")).uid
    with pytest.raises(NotFoundError, match="there is no partition orders/3: it has 3"):
        await client.admin.pause("orders", [0, 3])
    for wrong in ({"stream": "other"}, {"stream": "orders", "uid": "of before"}):
        for ask in (client.admin.pause, client.admin.resume):
            with pytest.raises(NotFoundError):
                await ask(**wrong)
    for partitions in ([], [-1], [1 << 31]):
        with pytest.raises(ConfigError):
            await client.admin.pause("orders", partitions)
    with pytest.raises(StaleRequestError):
        await client.admin.pause("orders", config_version=3)
    assert await pauses(client) == [Pause.NOT_PAUSED] * 3
    await client.admin.pause("orders", [0], uid=uid, config_version=0)
    assert await pauses(client) == [Pause.UNTIL_RESUMED, Pause.NOT_PAUSED, Pause.NOT_PAUSED]


async def publish_on(client: Client) -> None:
    while True:
        await client.publish("orders", b"?")


async def produce(client: Client, value: bytes, partition: int) -> None:
    async with client.producer("orders", id="p") as producer:
        await producer.send(value, partition=partition)


async def test_producer_on_a_paused_partition_is_rejected_until_resume(client: Client) -> None:
    await client.admin.pause("orders", [0])
    with pytest.raises(PublishRejectedError, match="PAUSED"):
        await publish_on(client)  # the leader hears of it a moment later
    with pytest.raises(PublishRejectedError, match="PAUSED"):
        await produce(client, b"refused", 0)
    await produce(client, b"another partition", 1)
    await client.admin.resume("orders")
    await until(client, *[Pause.NOT_PAUSED] * 3)
    await produce(client, b"taken", 0)
    stored = [record.value async for record in client.consume("orders", until="end")]
    assert (stored.count(b"taken"), stored.count(b"refused")) == (1, 0)


async def test_producer_record_resumes_a_partition_that_is_paused_until_publish(client: Client) -> None:
    for _ in range(3):
        await client.admin.pause("orders", [0], resume_on_publish=True)
        async with client.producer("orders", id="p") as producer:
            for number in range(20):
                await producer.send(b"%d" % number, partition=0)
            await producer.flush()
    await client.admin.pause("orders", [0], resume_on_publish=True)
    won = await asyncio.gather(
        *(client.publish("orders", b"%d" % n, expected_last=59) for n in range(5)), return_exceptions=True
    )
    assert sum(not isinstance(answer, BaseException) for answer in won) == 1, won
    assert [record.offset async for record in client.consume("orders", until="end")] == list(range(61))
