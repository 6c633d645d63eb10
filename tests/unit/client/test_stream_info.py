"""Test the descriptions of streams and partitions that the client returns."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from liftpy.client import Client, PartitionStatus
from liftpy.config import StreamConfig
from liftpy.testing.memory import memory_cluster


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as client:
        yield client


async def test_stream_info_contains_the_fields_of_the_stream_and_its_partitions(client: Client) -> None:
    config = StreamConfig(retention_age_s=3600)
    created = await client.create_stream("orders", "shop.orders", partitions=2, replicas=3, config=config)
    found = await client.stream("orders")
    assert (found.name, found.uid, found.subject, found.config.retention_age_s) == ("orders", created.uid, "shop.orders", 3600)
    assert (found.partition_count, found.replica_count, found.waiting) == (2, 3, 0)
    for number, partition in enumerate(found.partitions):
        assert partition.partition == number
        assert partition.status is PartitionStatus.ONLINE
        assert partition.leader in partition.isr
        assert sorted(partition.replicas) == ["n1", "n2", "n3"]
    assert [stream.name for stream in await client.admin.list_streams()] == ["orders"]
    assert "image" not in repr(found)
    assert "state" not in repr(found)


async def test_stream_info_deprecated_field_warns_and_returns_the_value(client: Client) -> None:
    await client.create_stream("orders", "shop.orders")
    found = await client.stream("orders")
    with pytest.warns(DeprecationWarning, match=r"PartitionInfo\.purges is now PartitionInfo\.state\.purges"):
        assert found.partitions[0].purges == ()  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"StreamInfo\.commits_by_quorum is now"):
        assert found.commits_by_quorum is False  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'StreamInfo' object has no attribute 'colour'"):
        _ = found.colour  # type: ignore[attr-defined]
