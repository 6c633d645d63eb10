"""Test the stream address of a publisher: deleted, recreated and moved streams, and acks of other streams [A9]."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from liftpy.client import Client, PublishOptions, ReadOptions
from liftpy.config import AckPolicy
from liftpy.core.metadata.codec import image_from_pb
from liftpy.core.metadata.describe import describer
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, NotFoundError, OutcomeUnknownError, UnavailableError
from liftpy.nats.transport import Transport

_Ack = client_pb2.Ack
_names = count()


class Node:
    """A metadata group and the leader of all streams. It has the streams by name and the stored messages by uid."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.namespace = f"addresses{next(_names)}"
        self.streams: dict[str, pb.Stream] = {}
        self.stored: dict[str, list[client_pb2.Message]] = {}
        self.described = 0
        self.kinds: set[str] = set()
        self.silent = False
        self.has_no_metadata = False
        """True if the metadata group does not answer."""
        self.listening: dict[str, Any] = {}

    async def start(self) -> Node:
        await self.transport.connection.subscribe(Subjects(self.namespace).info(), cb=self.on_control)
        await self.transport.settle()
        return self

    async def make(self, name: str, uid: str, place: str = "", ack: str = "") -> None:
        partition = pb.Partition(
            partition=0, replicas=["n1"], isr=["n1"], leader="n1", leaderEpoch=1, epoch=1, status=pb.ONLINE
        )
        subject = f"{self.namespace}-data.{place or name}"
        config = pb.StreamConfig(ackPolicy=ack)
        self.streams[name] = pb.Stream(name=name, uid=uid, subject=subject, partitions=[partition], config=config)
        self.stored[uid] = []

        async def on_publish(message: Any) -> None:
            if (reply := self.answer(name, uid, message.data)) is not None and not self.silent and message.reply:
                await message.respond(frames.encode(reply))

        self.listening[name] = await self.transport.connection.subscribe(subject, cb=on_publish)
        await self.transport.settle()

    async def delete(self, name: str) -> None:
        del self.streams[name]
        await self.listening.pop(name).unsubscribe()
        await self.transport.settle()

    def answer(self, name: str, uid: str, data: bytes) -> _Ack:
        published = frames.decode(data, client_pb2.Message)
        ours = (published.stream, published.streamUid or uid) == (name, uid)
        if not ours:
            return _Ack(stream=name, streamUid=uid, ackError=_Ack.WRONG_STREAM, detail="addressed to another")
        self.stored[uid].append(published)
        return _Ack(stream=name, streamUid=uid, offset=len(self.stored[uid]) - 1, leaderEpoch=1)

    async def on_control(self, message: Any) -> None:
        request = frames.decode(message.data, pb.ControlRequest)
        self.described += 1
        if self.has_no_metadata:
            return
        self.kinds.add(request.WhichOneof("request") or "")
        description = describer(request)
        assert description is not None
        answer = description(image_from_pb(pb.Image(index=1, streams=list(self.streams.values()))))
        answer.operationId = request.operationId
        await message.respond(frames.encode(answer))

    def values(self, uid: str) -> list[bytes]:
        return [message.value for message in self.stored[uid]]


@pytest.fixture
async def node(server_side: Transport) -> Node:
    return await Node(server_side).start()


@pytest.fixture
async def client(transport: Transport, node: Node) -> AsyncIterator[Client]:
    async with Client(transport, Subjects(node.namespace), owns_connection=False) as client, asyncio.timeout(20):
        yield client


async def test_publish_to_a_cached_subject_of_a_deleted_stream_stores_nothing_in_its_new_stream(
    client: Client, node: Node
) -> None:
    await node.make("a", "u1")
    await client.publish("a", b"1")
    await node.delete("a")
    await node.make("b", "u2", place="a")
    with pytest.raises(NotFoundError, match="no stream 'a'"):
        await client.publish("a", b"2")
    with pytest.raises(NotFoundError):
        await client.publish("a", b"3")
    with pytest.raises(NotFoundError):
        await client.publish("a", b"4", ack=AckPolicy.NONE)
    assert node.values("u2") == []


@pytest.mark.parametrize("place", ["a", "elsewhere"])
async def test_publisher_of_a_recreated_stream_stores_every_later_message_once(client: Client, node: Node, place: str) -> None:
    await node.make("a", "u1")
    async with client.publisher("a", options=PublishOptions(timeout_s=30)) as publisher:
        await publisher.publish(b"old")
        await node.delete("a")
        await node.make("a", "u2", place=place)
        if place != "a":
            await node.make("b", "u9", place="a")
        futures = [await publisher.send(b"%d" % i) for i in range(50)]
        await publisher.flush()
    assert sorted(f.result().offset for f in futures) == list(range(50))
    assert sorted(node.values("u2")) == sorted(b"%d" % i for i in range(50))


async def test_publish_without_ack_with_a_stream_uid_is_not_stored_in_a_recreated_stream(client: Client, node: Node) -> None:
    await node.make("a", "u1")
    async with client.publisher("a") as publisher:
        await publisher.post(b"1", addressed=True)
        await publisher.flush()
        await node.transport.settle()
        assert node.values("u1") == [b"1"]
        await node.delete("a")
        await node.make("a", "u2")
        await publisher.post(b"2", addressed=True)
        await publisher.flush()
        await node.transport.settle()
        assert node.values("u2") == []


async def test_publisher_ignores_an_ack_of_the_stream_before_its_recreation(client: Client, node: Node) -> None:
    await node.make("a", "u1")
    publisher = await client.publisher("a", options=PublishOptions(timeout_s=0.2))
    node.answer = lambda name, uid, data: _Ack(stream=name, streamUid="u0", offset=7)  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknownError, match="came from an older stream of this name"):
        await publisher.publish(b"x")
    assert publisher.foreign_answers == 1
    assert client.counters == {"acks by somebody else": 1}
    await publisher.close()


async def test_publisher_after_an_ack_timeout_looks_up_the_stream_and_resends_nothing(client: Client, node: Node) -> None:
    await node.make("a", "u1")
    publisher = await client.publisher("a", options=PublishOptions(timeout_s=0.2))
    node.silent = True
    with pytest.raises(OutcomeUnknownError):
        await publisher.publish(b"maybe")
    await node.delete("a")
    await node.make("a", "u2", place="elsewhere")
    node.silent = False
    while not node.described:
        await asyncio.sleep(0.01)
    with contextlib.suppress(OutcomeUnknownError, UnavailableError):
        await publisher.publish(b"next")
    assert node.values("u1") == [b"maybe"]
    assert node.values("u2") == [b"next"]
    await publisher.close()


async def test_client_opens_publishers_of_a_known_stream_while_its_refresh_has_no_answer(client: Client, node: Node) -> None:
    await node.make("a", "u1")
    publisher = await client.publisher("a", options=PublishOptions(timeout_s=0.2))
    before, node.silent, node.has_no_metadata = node.described, True, True
    with pytest.raises(OutcomeUnknownError):
        await publisher.publish(b"maybe")
    while node.described == before:
        await asyncio.sleep(0.01)
    node.silent = False
    async with asyncio.timeout(5), client.publisher("a") as other:
        await other.publish(b"next")
    assert node.values("u1") == [b"maybe", b"next"]
    await publisher.close()


async def test_client_calls_without_an_answer_of_the_metadata_group_end_at_their_timeout(client: Client, node: Node) -> None:
    node.has_no_metadata = True
    async with asyncio.timeout(10):
        for call in (client.publish("a", b"1", timeout_s=0.2), client.services.call("bank", "a", b"1", timeout_s=0.2)):
            with pytest.raises(UnavailableError, match=r"Cannot look up stream a.* within 0\.2 s"):
                await call
        node.has_no_metadata = False
        await node.make("a", "u1")
        assert (await client.publish("a", b"1", timeout_s=5)).offset == 0


async def test_concurrent_publishes_to_a_deleted_stream_send_at_most_four_lookups(client: Client, node: Node) -> None:
    await node.make("a", "u1")
    await client.publish("a", b"1")
    await node.delete("a")
    before = node.described
    told = await asyncio.gather(*(client.publish("a", b"x") for _ in range(300)), return_exceptions=True)
    assert {type(error) for error in told} == {NotFoundError}
    assert node.described - before <= 4


async def test_publish_or_read_of_a_missing_stream_or_partition_raises_not_found(client: Client, node: Node) -> None:
    await node.make("a", "u1")
    began = asyncio.get_running_loop().time()
    for ask in (
        lambda: client.publish("nowhere", b"x"),
        lambda: client.publish("a", b"x", partition=1),
        lambda: client.bounds("nowhere"),
        lambda: client.bounds("a", 3),
        lambda: anext(aiter(client.consume("nowhere"))),
        lambda: anext(client.consume("a", 3, start=4).batches()),
        lambda: anext(client.read_range("a", 3, 0, 4)),
    ):
        with pytest.raises(NotFoundError):
            await ask()  # type: ignore[operator]
    assert asyncio.get_running_loop().time() - began < 3
    with pytest.raises(ConfigError, match="partition = -1"):
        await client.publish("a", b"x", partition=-1)
    with pytest.raises(UnavailableError, match="No responders"):  # the stream is there, it has no leader
        await client.bounds("a", options=ReadOptions(patience_s=0.3))


async def test_publisher_with_a_given_subject_sends_no_lookup_until_the_stream_is_deleted(client: Client, node: Node) -> None:
    await node.make("a", "u1")
    publisher = await client.publisher("a", subject=f"{node.namespace}-data.a")
    assert await publisher.publish(b"1")
    assert node.described == 0
    await node.delete("a")
    await node.make("b", "u2", place="a")
    with pytest.raises(NotFoundError):
        await publisher.publish(b"2")
    assert node.values("u2") == []
    await publisher.close()


async def test_publisher_of_a_stream_without_acks_raises_a_config_error(client: Client, node: Node) -> None:
    await node.make("a", "u1")
    publisher = await client.publisher("a", options=PublishOptions(timeout_s=0.3))
    await publisher.publish(b"1")
    await node.delete("a")
    with pytest.raises(NotFoundError):
        await publisher.publish(b"2")
    await node.make("a", "u2", ack="none")
    with pytest.raises(ConfigError, match="ack policy none"):
        await publisher.publish(b"3")
    await publisher.close()
