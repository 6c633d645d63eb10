"""Test that a canceled close of a group member or a queue worker continues, and that a second close waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from liftpy.client import Client, GroupOptions
from liftpy.core.groups.commands import decode_command
from liftpy.testing.memory import memory_cluster


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Return a client of a cluster with ten records in the stream ``orders``."""
    async with memory_cluster() as cluster, cluster.client() as made:
        await asyncio.to_thread(cluster.serve_groups)
        await made.create_stream("orders", "orders")
        async with made.publisher("orders") as publisher:
            for number in range(10):
                await publisher.send(b"%d" % number)
        yield made


class SlowCoordinator:
    """Holds the commands with the field ``kind`` until ``answer`` is set. ``asked``: set when one has come."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.asked, self.answer, real = asyncio.Event(), asyncio.Event(), client.services.call

        async def call(service: str, stream: str, command: bytes, **how: Any) -> Any:
            if decode_command(command).HasField(kind):
                self.asked.set()
                await self.answer.wait()
            return await real(service, stream, command, **how)

        monkeypatch.setattr(client.services, "call", call)


async def close_twice(closable: Any, coordinator: SlowCoordinator) -> None:
    """Cancel a close that waits for the coordinator, and close again."""
    first = asyncio.create_task(closable.close())
    async with asyncio.timeout(20):
        await coordinator.asked.wait()
        first.cancel()
        second = asyncio.create_task(closable.close())
        await asyncio.sleep(0.05)
        assert not second.done()
        coordinator.answer.set()
        await second
    assert first.cancelled()


@pytest.mark.parametrize("kind", ["commit", "leave"])
async def test_group_close_after_a_canceled_close_commits_and_leaves(
    client: Client, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    group = await client.group("billing", ["orders"], options=GroupOptions(auto_commit_s=3600))
    async with asyncio.timeout(20):
        part = await group.take()
    assert part is not None
    group.finished(part)
    await close_twice(group, SlowCoordinator(client, monkeypatch, kind))
    found = await client.groups.describe("billing")
    assert (found.members, list(found.positions.values())) == ((), [10])


async def test_queue_close_after_a_canceled_close_returns_prefetched_records(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await client.queue("orders", "workers")
    waiting = asyncio.create_task(queue.take(10))
    async with asyncio.timeout(20):
        coordinator = SlowCoordinator(client, monkeypatch, "take")
        await coordinator.asked.wait()
        waiting.cancel()  # its records become prefetched ones
        coordinator.answer.set()
    await close_twice(queue, SlowCoordinator(client, monkeypatch, "settle"))
    async with client.queue("orders", "workers") as other:
        assert [job.record.offset for job in await other.take(10)] == list(range(10))
