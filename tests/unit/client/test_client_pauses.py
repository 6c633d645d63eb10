"""Test ``client.admin.pause`` and ``client.admin.resume`` on a cluster in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from liftpy.client import Client
from liftpy.core.base.partition import Pause
from liftpy.errors import ConfigError, NotFoundError, StaleRequestError
from liftpy.testing.memory import memory_cluster


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as made:
        await made.create_stream("orders", "orders", partitions=3)
        yield made


async def pauses(client: Client) -> list[Pause]:
    return [p.pause for p in (await client.stream("orders")).partitions]


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
