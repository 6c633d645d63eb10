"""Test reads of one replica in a cluster in memory: large batches, removed replicas, consecutive blocks."""

from __future__ import annotations

import asyncio

import pytest

from liftpy.client import Client
from liftpy.client.replica_reads import BatchBlocks, ReplicaAddress, ReplicaReads, ReplicaUnavailableError
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import NotFoundError
from liftpy.testing.memory import memory_cluster

NODES = ("n1", "n2", "n3")


def reads(client: Client, uid: str, node: str, patience_s: float = 10.0) -> ReplicaReads:
    address = ReplicaAddress(stream="orders", uid=uid, partition=0, node=node, patience_s=patience_s)
    return ReplicaReads(client.transport, Subjects(), address)


async def test_spark_replica_read_joins_a_batch_that_arrives_in_several_messages() -> None:
    async with memory_cluster(max_payload=65_536) as cluster, cluster.client() as client:
        uid = (await client.create_stream("orders", "data.orders")).uid
        values = [b"%d" % number + bytes(61_400) for number in range(20)]
        await asyncio.gather(*(client.publish("orders", value) for value in values))
        found = {}
        for node in NODES:
            one = reads(client, uid, node)
            assert (await one.bounds(19)).high_watermark == 19
            batches, next_offset = await one.batches(0)
            while next_offset < 20:
                more, next_offset = await one.batches(next_offset)
                batches += more
            assert max(batch.header.size_bytes for batch in batches) > 65_536 - 4096, "more than a message has room for"
            assert sorted(value or b"" for batch in batches for value in batch.values()) == sorted(values)
            found[node] = await BatchBlocks(one, 0, from_log_start=True).block(20)
        assert len({block.digest for block in found.values()}) == 1
        assert all((block.records, block.end_offset, block.is_whole) == (20, 20, True) for block in found.values())


async def test_spark_replica_read_blocks_of_any_size_contain_each_batch_once() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        uid = (await client.create_stream("orders", "data.orders")).uid
        for number in range(20):
            await client.publish("orders", b"%d" % number)
        await reads(client, uid, "n2").bounds(19)
        for cuts in ([20], [5, 20], [1, 2, 3, 19, 20]):
            blocks, one = [], BatchBlocks(reads(client, uid, "n2"), 0, from_log_start=True)
            blocks = [await one.block(end) for end in cuts]
            assert sum(block.records for block in blocks) == 20
            assert [block.records for block in blocks] == [end - start for start, end in zip([0, *cuts], cuts, strict=False)]
        later = await BatchBlocks(reads(client, uid, "n2"), 7).block(9)
        assert (later.records, later.epochs) == (2, [(1, 7)])
        async with client.producer("orders") as producer:
            await producer.send_many([b"%d" % number for number in range(20, 30)])
        await reads(client, uid, "n2").bounds(29)
        for start, records in ((20, 10), (23, 0)):
            block = await BatchBlocks(reads(client, uid, "n2"), start).block(30)
            assert block.records == records, "a batch is of the block in which it begins"


async def test_spark_replica_read_of_a_recreated_stream_raises_not_found() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        uid = (await client.create_stream("orders", "data.orders")).uid
        await client.publish("orders", b"a")
        cluster.kill("n3")
        gone = reads(client, uid, "n3", patience_s=0.2)
        with pytest.raises(ReplicaUnavailableError):
            await gone.bounds()
        block = await BatchBlocks(gone, 0).block(1)
        assert (block.is_whole, block.records, block.away != "") == (False, 0, True)
        with pytest.raises(ReplicaUnavailableError, match="NOT_READY"):
            await reads(client, uid, "n1", patience_s=0.2).bounds(500)
        with pytest.raises(NotFoundError):
            await reads(client, "another", "n1").bounds()
