"""Producers on the cluster in memory: their state outlives leaders, replicas, restarts and the records that it was made from."""

from __future__ import annotations

import pytest

from liftpy.client import Client, ProducerOptions
from liftpy.config import StreamConfig
from liftpy.errors import PublishRejectedError
from liftpy.testing.memory import memory_cluster
from liftpy.testing.memory.cluster import MemoryCluster

STANDBY = StreamConfig(failover_standby=True, min_isr=2)


async def another_leader(cluster: MemoryCluster, client: Client, how: str) -> None:
    """Give the leadership of ``s`` to another node: by a planned transfer or by a kill."""
    before = cluster.leader("s")
    if how == "kill":
        cluster.kill(before)
    else:
        (state,) = (await client.stream("s")).partitions
        await client.elect_leader("s", 0, next(node for node in state.isr if node != before))
    cluster.leader("s", other_than=before)


@pytest.mark.parametrize("how", ["transfer", "kill"])
async def test_producer_on_stream_with_standby_goes_on_after_leader_changes(how: str) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", replicas=3, config=STANDBY)
        async with client.producer("s", id="p") as producer:
            await (await producer.send(b"0"))
            await another_leader(cluster, client, how)
            for number in range(1, 4):
                await (await producer.send(b"%d" % number))
        assert [r.value async for r in client.consume("s", until="end")] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("how", ["transfer", "kill"])
async def test_newest_of_two_processes_goes_on_after_leader_changes(how: str) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", replicas=3, config=STANDBY)
        old = await client.producer("s", id="p")
        await (await old.send(b"old"))
        async with client.producer("s", id="p") as new:
            await (await new.send(b"new 0"))
            await another_leader(cluster, client, how)
            await (await new.send(b"new 1"))
            with pytest.raises(PublishRejectedError) as caught:
                await (await old.send(b"late"))
            assert caught.value.reason == "PRODUCER_FENCED"
            await (await new.send(b"new 2"))
        await old.close()
        assert [r.value async for r in client.consume("s", until="end")] == [b"old", b"new 0", b"new 1", b"new 2"]
