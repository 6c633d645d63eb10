"""Test cursors with the real coordinator in a cluster in memory: rejected commits, groups and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from liftpy.client import Client
from liftpy.client import cursor as module
from liftpy.client.group_admin import GroupRejectedError
from liftpy.client.positions import Position
from liftpy.core.wire._pb import group_pb2
from liftpy.errors import ConfigError, NotFoundError
from liftpy.testing.memory import memory_cluster


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as made:
        await asyncio.to_thread(cluster.serve_groups)
        await made.create_stream("orders", "orders", partitions=2)
        for number in range(10):
            await made.publish("orders", b"%d" % number)
        yield made


async def test_cursor_commit_is_rejected_after_an_operator_set_or_deleted_the_cursor(client: Client) -> None:
    cursor = await client.cursor("nightly", "orders")
    await cursor.commit(5)
    key = (await client.stream("orders")).key(0)
    await client.cursors.set("nightly", {key: 2})
    with pytest.raises(GroupRejectedError):
        await cursor.commit(9)
    assert (await client.cursors.list(), await client.groups.list()) == (["nightly"], [])
    assert await client.cursors.describe("nightly") == {key: 2}
    again = await client.cursor("nightly", "orders")
    await client.cursors.delete("nightly")
    with pytest.raises(GroupRejectedError):
        await again.commit(9)
    assert (await again.fetch(), await client.cursors.list()) == (None, [])
    third = await client.cursor("nightly", "orders")
    with pytest.raises(GroupRejectedError):
        await again.commit(9)
    await third.commit(1)
    with pytest.raises(NotFoundError):
        await client.cursors.describe("weekly")
    await client.cursors.set("weekly", {key: 4})
    assert await (await client.cursor("weekly", "orders")).fetch() == 4


async def test_cursor_with_the_name_of_a_group_is_rejected(client: Client) -> None:
    await client.cursor("nightly", "orders")
    async with client.queue("orders", "nightly") as queue:
        with pytest.raises(GroupRejectedError, match="that of a cursor"):
            await queue.take(1, timeout_s=0.0)
    async with client.queue("orders", "workers") as queue:
        await queue.ack(await queue.take(1))
        with pytest.raises(GroupRejectedError, match="that of a group"):
            await client.cursor("workers", "orders")
        for refused in (client.cursors.describe, client.cursors.delete):
            with pytest.raises(NotFoundError, match="not a cursor"):
                await refused("workers")


async def test_group_methods_with_the_name_of_a_cursor_are_rejected_and_change_nothing(client: Client) -> None:
    """They deleted the cursor, or moved it and fenced its holder."""
    key = (await client.stream("orders")).key(0)
    async with client.cursor("nightly", "orders") as cursor:
        await cursor.commit(5)
        for work in (client.groups.describe("nightly"), client.groups.delete("nightly")):
            with pytest.raises(NotFoundError, match="'nightly' is a cursor, not a consumer group"):
                await work
        with pytest.raises(GroupRejectedError, match="'nightly' is a cursor, not a consumer group"):
            await client.groups.reset("nightly", {key: 0})
        await cursor.commit(6)
    assert await client.cursors.describe("nightly") == {key: 6}


async def test_cursor_of_a_missing_partition_or_an_old_stream_is_rejected(client: Client) -> None:
    with pytest.raises(NotFoundError):
        await client.cursor("nightly", "nothing")
    cursor = await client.cursor("nightly", "orders")
    await cursor.commit(5)
    with pytest.raises(ConfigError, match="2 partitions"):
        await cursor.fetch(2)
    with pytest.raises(ConfigError, match="an older stream"):
        await cursor.commit(Position("1-1", 7))
    await client.admin.delete_stream("orders")
    await client.create_stream("orders", "orders")
    again = await client.cursor("nightly", "orders")
    assert await again.fetch() is None
    await again.commit(1)


async def test_cursor_commit_with_an_unknown_rejection_code_raises_group_rejected(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = await client.cursor("nightly", "orders")

    async def answered(*_: Any) -> Any:
        return group_pb2.GroupAnswer(code=99, detail="new")  # type: ignore[arg-type]

    monkeypatch.setattr(module, "ask_coordinator", answered)
    with pytest.raises(GroupRejectedError, match="Cursor nightly: the"):
        await cursor.commit(1)


async def test_cursor_of_a_recreated_stream_is_rejected_until_reopened(client: Client) -> None:
    cursor = await client.cursor("nightly", "orders")
    await cursor.commit(5)
    reading = await cursor.consume(until="end")
    await client.admin.delete_stream("orders")
    for use in (cursor.commit(6), cursor.fetch(), cursor.consume()):
        with pytest.raises(NotFoundError):
            await use
    await client.create_stream("orders", "orders", partitions=2)
    for number in range(10):
        await client.publish("orders", b"new %d" % number, partition=number % 2)
    for use in (cursor.commit(6), cursor.commit(1, partition=1), cursor.fetch(), cursor.consume(), cursor.consume(1)):
        with pytest.raises(NotFoundError, match="created again"):
            await use
    with pytest.raises(NotFoundError):
        _ = [record async for record in reading]
    again = await client.cursor("nightly", "orders")
    assert [record.offset async for record in await again.consume(until="end")] == [0, 1, 2, 3, 4]
    await again.commit(3)
    assert await again.fetch() == 3
