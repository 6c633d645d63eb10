"""Publishers, producers, groups, queues and cursors open and close in the same way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from liftpy.client import Client
from liftpy.errors import NotFoundError
from liftpy.testing.memory import memory_cluster

OPENERS: dict[str, Callable[[Any], Any]] = {
    "publisher": lambda client: client.publisher("orders"),
    "producer": lambda client: client.producer("orders"),
    "group": lambda client: client.group("billing", ["orders"]),
    "queue": lambda client: client.queue("orders", "packers"),
    "cursor": lambda client: client.cursor("nightly", "orders"),
}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as client:
        yield client


@pytest.mark.parametrize("kind", OPENERS)
async def test_client_objects_open_in_an_async_with_block_or_with_await(client: Client, kind: str) -> None:
    await client.create_stream("orders", "shop.orders")
    async with OPENERS[kind](client) as in_block:
        pass
    opened = await OPENERS[kind](client)
    assert type(opened) is type(in_block)
    async with opened as same:
        assert same is opened
    await opened.close()


@pytest.mark.parametrize("kind", OPENERS)
async def test_client_objects_of_a_missing_stream_raise_not_found_on_open(client: Client, kind: str) -> None:
    with pytest.raises(NotFoundError):
        async with OPENERS[kind](client):
            pytest.fail("It opened.")
    with pytest.raises(NotFoundError):
        await OPENERS[kind](client)


@pytest.mark.parametrize("kind", OPENERS)
def test_sync_client_objects_open_in_a_with_block_or_with_a_call(kind: str) -> None:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")
        with OPENERS[kind](client) as in_block:
            pass
        opened = OPENERS[kind](client)
        assert type(opened) is type(in_block)
        opened.close()
