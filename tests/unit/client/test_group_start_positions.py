"""Test the start positions of a group in streams that change while the group runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from liftpy.client import Client, GroupOptions
from liftpy.client import group as module
from liftpy.client.group import Group
from liftpy.core.groups.commands import decode_command
from liftpy.core.metadata.image import StreamImage
from liftpy.errors import UnavailableError
from liftpy.testing.memory import memory_cluster


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as made:
        await asyncio.to_thread(cluster.serve_groups)
        await made.create_stream("orders", "orders")
        yield made


async def taken(group: Group, count: int) -> list[bytes | None]:
    """Return the values of at least ``count`` next records, and commit them."""
    found: list[bytes | None] = []
    async with asyncio.timeout(40):
        while len(found) < count:
            found += [record.value for record in (await anext(group.batches())).slice.records()]
        await group.commit()
    return found


async def committed(client: Client) -> dict[tuple[str, int], int]:
    return {(key.stream, key.partition): at for key, at in (await client.groups.describe("billing")).positions.items()}


async def until_begun(client: Client, group: Group) -> None:
    """Wait until ``group`` has committed a start position after the first record."""
    async with asyncio.timeout(40):
        while not group.owned or await committed(client) != {("orders", 0): 1}:
            await asyncio.sleep(0)


async def test_group_with_start_new_reads_added_partitions_from_their_first_record(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.publish("orders", b"old")
    options = GroupOptions(start="new", auto_commit_s=0)
    async with client.group("billing", ["orders", "pay-*"], options=options) as group:
        await until_begun(client, group)
        await client.admin.add_partitions("orders", 2)
        await client.publish("orders", b"added", partition=1)
        await client.create_stream("pay-1", "pay-1")
        await client.publish("pay-1", b"made")
        monkeypatch.setattr(module, "STREAMS_S", 0.0)  # now it notices
        assert sorted(await taken(group, 2)) == [b"added", b"made"]
        assert await committed(client) == {("orders", 0): 1, ("orders", 1): 1, ("pay-1", 0): 1}


async def test_group_reads_a_recreated_stream_with_fewer_records_from_its_first_record(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await client.publish("orders", b"%d" % number)
    async with client.group("billing", ["orders"], options=GroupOptions(auto_commit_s=0)) as group:
        assert await taken(group, 5) == [b"0", b"1", b"2", b"3", b"4"]
    listed, real = await client.admin.list_streams(), client.admin.list_streams
    await client.admin.delete_stream("orders")
    await client.create_stream("orders", "orders")
    await client.publish("orders", b"new")

    async def stale_at_first() -> list[StreamImage]:
        monkeypatch.setattr(client.admin, "list_streams", real)
        return listed

    monkeypatch.setattr(client.admin, "list_streams", stale_at_first)
    async with client.group("billing", ["orders"], options=GroupOptions(auto_commit_s=0)) as group:
        assert await taken(group, 1) == [b"new"]


async def test_group_commit_excludes_records_that_were_fetched_but_not_returned(client: Client) -> None:
    await client.publish("orders", b"given")
    options = GroupOptions(auto_commit_s=0)
    async with client.group("billing", ["orders"], options=options) as group, asyncio.timeout(40):
        part = await group.take()
        assert part is not None
        await client.publish("orders", b"fetched")
        group.finished(part)
        for _ in range(20):  # the next record comes during one of them
            await group.commit()
            await asyncio.sleep(0.005)
    async with client.group("billing", ["orders"], options=options) as group:
        assert await taken(group, 1) == [b"fetched"]


async def test_group_with_start_new_commits_its_start_before_delivering_records(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, real, tried = GroupOptions(start="new", auto_commit_s=0), client.services.call, asyncio.Event()

    async def once_unanswered(service: str, stream: str, command: bytes, **how: Any) -> Any:
        if not tried.is_set() and decode_command(command).HasField("commit"):
            await client.publish("orders", b"new")
            tried.set()
            raise UnavailableError("no ack arrived")
        return await real(service, stream, command, **how)

    monkeypatch.setattr(client.services, "call", once_unanswered)
    async with asyncio.timeout(40):
        async with client.group("billing", ["orders"], options=options) as group:
            part = await group.take()  # and nothing of it is committed
            assert part is not None
        async with client.group("billing", ["orders"], options=options) as group:
            assert await taken(group, 1) == [b"new"]


async def test_group_member_that_joins_after_added_partitions_reads_them_from_their_first_record(client: Client) -> None:
    """The first member does not yet know the added partitions."""
    options = GroupOptions(start="new", auto_commit_s=0)
    await client.publish("orders", b"old")
    async with client.group("billing", ["orders"], options=options) as first, asyncio.timeout(40):
        await until_begun(client, first)
        await client.admin.add_partitions("orders", 2)
        await client.publish("orders", b"added", partition=1)
        async with client.group("billing", ["orders"], options=options) as second:
            assert await taken(second, 1) == [b"added"]
