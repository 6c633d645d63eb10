"""Test compacted streams with replicas that are down and slow readers: no deleted key returns [D30], no key is missed [R11].

Readers that are slower than the deletes notice it [R12].
"""

from __future__ import annotations

import pytest

from liftpy.client import Client, ReadOptions
from liftpy.config import StreamConfig
from liftpy.core.wire.batch import Record
from liftpy.errors import TombstonesMissedError
from liftpy.testing.memory import MemoryCluster, memory_cluster

SMALL = StreamConfig(segment_bytes=4096, compaction=True, dedup_window_s=0, delete_retention_s=0.001)
PADDING = bytes(400)


async def _fill(client: Client, records: int = 30) -> None:
    """So that what was published before lies in sealed segments."""
    for number in range(records):
        await client.publish("keys", b"%d" % number + PADDING, key=b"filler%d" % (number % 3))


async def _records(client: Client, node: str = "") -> list[Record]:
    return [record async for record in client.consume("keys", until="end", options=ReadOptions(node=node))]


async def _isr(client: Client) -> set[str]:
    (partition,) = (await client.stream("keys")).partitions
    return set(partition.isr)


async def test_follower_down_longer_than_the_delete_retention_has_no_deleted_key_after_its_return() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("keys", "data.keys", config=SMALL)
        await client.publish("keys", b"old", key=b"a")
        leader = cluster.leader("keys")
        away = next(node for node in cluster.nodes if node != leader)
        cluster.kill(away)
        while away in await _isr(client):
            await client.publish("keys", b"x", key=b"b")
        await client.publish("keys", None, key=b"a")
        await _fill(client)
        while any(record.key == b"a" for record in await _records(client, cluster.leader("keys"))):
            cluster.keep_house()
        cluster.start(away)
        while away not in await _isr(client):
            await client.publish("keys", b"x", key=b"b")
        assert [record.value for record in await _records(client, away) if record.key == b"a"] == []
        newest = {record.key: record.value for record in await _records(client, cluster.leader("keys"))}
        assert {record.key: record.value for record in await _records(client, away)} == newest


async def _rewritten_while_read(cluster: MemoryCluster, client: Client) -> None:
    """All keys are written again, and what they superseded is gone, on all nodes."""
    for number in range(40):
        await client.publish("keys", b"new" + PADDING, key=b"k%d" % (number % 20))
    await _fill(client)
    cluster.keep_house()


async def test_consumer_with_an_end_fixed_before_a_compaction_reads_every_key() -> None:
    keys = {b"k%d" % number for number in range(20)}
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("keys", "data.keys", config=SMALL)
        for key in sorted(keys):
            await client.publish("keys", b"old" + PADDING, key=key)
        consumer = client.consume("keys", until="end")
        bounds = await consumer.begin()
        await _rewritten_while_read(cluster, client)
        assert keys <= {record.key async for record in consumer}
        pieces = client.read_range("keys", 0, bounds.log_start_offset, bounds.end_offset)
        assert keys <= {record.key async for piece in pieces for record in piece.records()}
        exact = client.read_range("keys", 0, bounds.log_start_offset, bounds.end_offset, exact=True)
        assert max([piece.last_offset async for piece in exact], default=-1) < bounds.end_offset


async def _delete_while_read(cluster: MemoryCluster, client: Client) -> None:
    """Key ``a``, whose value was read, is deleted, and compaction drops value and tombstone on all nodes."""
    await client.publish("keys", None, key=b"a")
    await _fill(client)
    while any(record.key == b"a" for record in await _records(client)):
        cluster.keep_house()


async def test_consumer_until_end_slower_than_the_delete_retention_raises_tombstones_missed_error() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("keys", "data.keys", config=SMALL)
        await client.publish("keys", b"old", key=b"a")
        await _fill(client)
        slow = client.consume("keys", until="end", options=ReadOptions(max_bytes=4096, read_ahead=1))
        assert (await slow.getone()).key == b"a"  # type: ignore[union-attr]
        await _delete_while_read(cluster, client)
        with pytest.raises(TombstonesMissedError, match=r"keys/0.*Read again from the start"):
            [record async for record in slow]
        await slow.seek("earliest")
        assert all([record.key != b"a" async for record in slow])


async def test_endless_consumer_slower_than_the_delete_retention_reports_missed_tombstones() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("keys", "data.keys", config=SMALL)
        await client.publish("keys", b"old", key=b"a")
        await _fill(client)
        follower = client.consume("keys", options=ReadOptions(max_bytes=4096, read_ahead=1))
        assert (await follower.getone()).key == b"a"  # type: ignore[union-attr]
        assert not follower.has_missed_tombstones
        await _delete_while_read(cluster, client)
        last = (await client.bounds("keys")).high_watermark
        async for record in follower:
            assert record.key != b"a"
            if record.offset == last:
                break
        assert follower.has_missed_tombstones
        await follower.seek("earliest")
        assert (await follower.getone()) is not None
        assert not follower.has_missed_tombstones
