"""Test clients while a deposed metadata leader answers them: it does not know the newest streams and partitions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from liftpy.client import Client, GroupOptions, ProducerOptions, PublishOptions, QueueOptions
from liftpy.client.metadata_requests import ClusterState, MetadataRequests
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.batch import Record
from liftpy.errors import NotFoundError
from liftpy.nats.transport import NoRespondersError
from liftpy.service import Service
from liftpy.testing.memory import MemoryCluster, memory_cluster
from sidecar.node.jetstream_reads import StatelessReads

NEW_ONLY = [b"new 0", b"new 1"]
Behind = Callable[[], Awaitable[None]]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster() as made:
        await asyncio.to_thread(made.serve_groups)
        yield made


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as made:
        await made.create_stream("orders", "orders")
        yield made


@pytest.fixture
def behind(client: Client, monkeypatch: pytest.MonkeyPatch) -> Behind:
    """Return a function. After its call, requests that are not linearizable get the answers of that moment."""

    async def freeze() -> None:
        stream, describe, state = MetadataRequests.stream, MetadataRequests.describe, await client.admin.describe_cluster()

        async def old_stream(self: MetadataRequests, name: str, *, linearizable: bool = False) -> StreamImage:
            return await stream(self, name, linearizable=True) if linearizable else state.stream(name)

        async def old_state(self: MetadataRequests, *, linearizable: bool = False) -> ClusterState:
            return await describe(self, linearizable=True) if linearizable else state

        monkeypatch.setattr(MetadataRequests, "stream", old_stream)
        monkeypatch.setattr(MetadataRequests, "describe", old_state)

    return freeze


async def add_partition(client: Client) -> None:
    await client.admin.add_partitions("orders", 2)
    await client.publish("orders", b"old", partition=1)


async def publish_new(client: Client) -> None:
    for partition in range(2):
        await client.publish("orders", b"new %d" % partition, partition=partition)


async def until_deleted(client: Client, stream: str) -> None:
    """Wait until no node answers reads of a deleted stream any more."""
    async with asyncio.timeout(20):
        with contextlib.suppress(NotFoundError):
            while True:
                await client.consume(stream, until="end").begin()


async def publish_plain(client: Client, subject: str) -> None:
    """Publish until a node answers, as an application without liftpy does. It does not know the uid of the stream."""
    async with asyncio.timeout(20):
        stored = b""
        while not stored:
            with contextlib.suppress(NoRespondersError):
                stored = await client.transport.request(subject, b"new", timeout_s=1)


async def test_consume_many_from_new_skips_old_records_of_every_partition(client: Client, behind: Behind) -> None:
    await behind()
    await add_partition(client)
    async with client.consume_many("orders", start="new") as many, asyncio.timeout(20):
        await publish_new(client)
        assert sorted([(await anext(aiter(many))).record.value or b"" for _ in range(2)]) == NEW_ONLY


async def test_consume_many_skips_a_stream_of_a_pattern_that_was_just_deleted(client: Client) -> None:
    for name in ("pay-1", "pay-2"):
        await client.create_stream(name, name)
        await client.publish(name, name.encode())
    listed = await client.admin.describe_cluster()
    await client.admin.delete_stream("pay-1")
    await until_deleted(client, "pay-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamDirectory, "newest_streams", AsyncMock(return_value=listed.streams()))
        async with client.consume_many("pay-*", until="end") as many:
            assert [record.value async for _, _, record in many] == [b"pay-2"]
            assert set(await many.positions()) == {("pay-2", 0)}


async def test_group_from_new_skips_old_records_of_every_partition(client: Client, behind: Behind) -> None:
    await behind()
    await add_partition(client)
    options = GroupOptions(start="new")
    async with client.group("billing", ["orders"], options=options) as group, asyncio.timeout(20):
        while len((await client.groups.describe("billing")).positions) < 2:
            await asyncio.sleep(0.01)
        await publish_new(client)
        assert sorted([(await anext(group)).value or b"" for _ in range(2)]) == NEW_ONLY


async def test_queue_from_new_skips_old_records_of_every_partition(client: Client, behind: Behind) -> None:
    await behind()
    await add_partition(client)
    options = QueueOptions(start="new")
    async with client.queue("orders", "workers", options=options) as queue, asyncio.timeout(20):
        assert await queue.take(10, timeout_s=0) == []
        await publish_new(client)
        assert sorted([(await anext(queue)).record.value or b"" for _ in range(2)]) == NEW_ONLY


@pytest.mark.parametrize("how", ["consume_many", "group", "queue", "cursor", "stream"])
async def test_client_finds_a_stream_that_was_just_created(client: Client, behind: Behind, how: str) -> None:
    await behind()
    await client.create_stream("new", "new")
    calls: dict[str, Callable[[], Any]] = {
        "consume_many": lambda: client.consume_many("new"),
        "group": lambda: client.group("billing", ["new"]),
        "queue": lambda: client.queue("new", "workers"),
        "cursor": lambda: client.cursor("nightly", "new"),
    }
    if how == "stream":
        assert (await client.stream("new")).name == "new"
    else:
        async with calls[how]():
            pass


@pytest.mark.parametrize("how", ["publisher", "cursor", "JetStream"])
async def test_client_finds_a_partition_that_another_client_just_added(
    cluster: MemoryCluster, client: Client, behind: Behind, how: str
) -> None:
    await behind()
    await add_partition(client)
    async with cluster.client() as other:
        if how == "publisher":
            async with other.publisher("orders", 1) as publisher:
                assert (await (await publisher.send(b"new"))).offset == 1
        elif how == "cursor":
            async with other.cursor("nightly", "orders") as cursor:
                await cursor.commit(1, partition=1)
        else:
            reads = StatelessReads(other, "liftpy")
            assert [answer.payload async for answer in reads.answer("DIRECT.GET.orders:1", b'{"seq": 1}')] == [b"old"]


@pytest.fixture
async def stale_client(client: Client, behind: Behind) -> Client:
    """Return a client whose controller knows ``orders`` as it was before it was deleted and created again with two partitions."""
    await behind()
    await client.admin.delete_stream("orders")
    await client.create_stream("orders", "orders", partitions=2)
    return Client(client.transport, client._streams.requests.subjects, owns_connection=False)


async def _publish(client: Client, partition: int) -> None:
    await client.publish("orders", b"new", partition=partition, timeout_s=8)


async def _send(client: Client, partition: int) -> None:
    async with client.publisher("orders", partition, options=PublishOptions(patience_s=8)) as publisher:
        await (await publisher.send(b"new"))


async def _produce(client: Client, partition: int) -> None:
    async with client.producer("orders", options=ProducerOptions(patience_s=8)) as producer:
        await (await producer.send(b"new", partition=partition))


@pytest.mark.parametrize("partition", [0, 1], ids=["known partition", "new partition"])
@pytest.mark.parametrize("publish", [_publish, _send, _produce])
async def test_client_publishes_to_a_recreated_stream(
    stale_client: Client, publish: Callable[[Client, int], Awaitable[None]], partition: int
) -> None:
    async with asyncio.timeout(20):
        await publish(stale_client, partition)
        assert [record.value async for record in stale_client.consume("orders", partition, until="end")] == [b"new"]


class _Echo(Service):
    def on_record(self, record: Record) -> None:
        self.reply(record, record.value or b"")


async def test_client_sends_a_service_command_to_a_recreated_stream(cluster: MemoryCluster, stale_client: Client) -> None:
    await asyncio.to_thread(cluster.serve, _Echo, "echo", "orders")
    async with asyncio.timeout(20):
        assert (await stale_client.services.call("echo", "orders", b"new", partition=0, timeout_s=8)).value == b"new"


async def test_producer_continues_although_a_controller_names_an_older_stream(
    cluster: MemoryCluster, client: Client, behind: Behind
) -> None:
    await behind()
    await client.admin.delete_stream("orders")
    await client.create_stream("orders", "orders", replicas=1)
    async with client.producer("orders") as producer, asyncio.timeout(30):
        assert (await (await producer.send(b"first"))).offset == 0
        node = await asyncio.to_thread(cluster.kill_leader, "orders")
        second = await producer.send(b"second")
        await asyncio.sleep(1.0)  # the client finds no leader, and asks for the address
        await asyncio.to_thread(cluster.start, node)
        assert (await second).offset == 1


async def test_cursor_of_a_recreated_stream_commits_and_reads(client: Client, behind: Behind) -> None:
    await behind()
    await client.admin.delete_stream("orders")
    await client.create_stream("orders", "orders")
    await publish_plain(client, "orders")
    async with client.cursor("nightly", "orders") as cursor:
        await cursor.commit(1)
        assert await cursor.fetch() == 1


async def test_admin_deletes_records_of_the_stream_with_the_newest_uid(client: Client, behind: Behind) -> None:
    await behind()
    await client.admin.delete_stream("orders")
    uid = (await client.create_stream("orders", "orders")).uid
    await publish_plain(client, "orders")
    assert await client.admin.truncate_before("orders", 0, 1, uid=uid) == 1
    with pytest.raises(NotFoundError, match="deleted and created again"):
        await client.admin.truncate_before("orders", 0, 1, uid="0001")
