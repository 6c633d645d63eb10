"""Test the access of a client to internal streams, and the creation of the stream of groups, in a cluster in memory."""

from __future__ import annotations

import asyncio
import json

import pytest

from liftpy.client import stream_directory
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.multi_consumer import selects
from liftpy.client.partition_sender import ProducerOptions
from liftpy.client.stream_directory import StreamDirectory
from liftpy.client.write_epoch import Round
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import ByteArray, RecordColumns
from liftpy.core.wire.subjects import GROUPS_STREAM, Subjects, data_subject
from liftpy.errors import ConfigError, InvalidNameError, NotFoundError, PublishRejectedError
from liftpy.testing.memory import memory_cluster


@pytest.mark.parametrize(
    ("names", "stream", "selected"),
    [
        (["*"], "orders", True),
        (["*"], "_groups", False),
        (["?groups"], "_groups", False),
        (["_*"], "_groups", True),
        (["_*"], "orders", False),
        (["_groups"], "_groups", True),
        (["orders", "_gr*"], "_groups", True),
    ],
)
def test_stream_pattern_matches_an_internal_stream_only_by_its_full_name(names: list[str], stream: str, selected: bool) -> None:
    assert selects(names)(stream) is selected


async def test_groups_stream_is_created_by_the_first_client_that_needs_it() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        assert await client.groups.list() == []
        for asked in (client.groups.describe("billing"), client.groups.delete("billing")):
            with pytest.raises(NotFoundError, match="billing"):
                await asked
        assert await client.admin.list_streams(internal=True) == [], "who only looks has nothing made"
        made, again = await asyncio.gather(client.groups.stream(), other.groups.stream())
        assert made.uid == again.uid
        assert (made.subject, len(made.partitions), made.replica_count) == ("liftpy-groups", 3, 3)
        assert await client.admin.list_streams() == []
        assert [stream.name for stream in await client.admin.list_streams(internal=True)] == [GROUPS_STREAM]


async def test_producer_of_an_internal_stream_is_rejected_by_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        made = await client.groups.stream()
        requests = MetadataRequests(client.transport, Subjects(cluster.namespace), 5.0)

        async def open_it(round: Round | None) -> None:
            options = ProducerOptions(patience_s=5.0)
            opening = StreamDirectory(requests).open_producer(GROUPS_STREAM, id="sink", source=round, options=options)
            async with opening as producer:
                await producer.send_columns(RecordColumns(ByteArray.of([b"junk"])), partition=0)

        for round in (None, Round("query", 0, 0)):
            with pytest.raises(InvalidNameError, match="internal"):
                await open_it(round)
            with monkeypatch.context() as patched:
                patched.setattr(stream_directory, "check_published", lambda stream: stream)  # a client that does not look
                with pytest.raises(PublishRejectedError, match="stream _groups is internal"):
                    await open_it(round)
        for place in made.partitions:
            assert (await client.bounds(GROUPS_STREAM, place.partition)).high_watermark == -1


@pytest.mark.parametrize("value", [b"junk", b"", envelope.MAGIC + b"\x00junk"])
async def test_nats_message_without_envelope_on_the_subject_of_the_groups_stream_is_rejected(value: bytes) -> None:
    """[A22]."""
    async with memory_cluster() as cluster, cluster.client() as client, cluster.nats() as nc:
        made = await client.groups.stream()
        await client.bounds(GROUPS_STREAM, 0)  # answered when the leader has subscribed
        subject = data_subject(made.subject, 0)
        await nc.publish(subject, value)
        for headers in (None, {"Nats-Msg-Id": "a"}):
            answer = json.loads((await nc.request(subject, value, timeout=30, headers=headers)).data)
            assert "stream _groups is internal" in answer["error"]["description"]
        assert (await client.bounds(GROUPS_STREAM, 0)).high_watermark == -1


@pytest.mark.parametrize("with_uid", [False, True])
@pytest.mark.parametrize("headers", [None, {"Nats-Msg-Id": "a"}])
async def test_envelope_without_stream_on_the_subject_of_the_groups_stream_is_rejected(
    with_uid: bool, headers: dict[str, str] | None
) -> None:
    """[A22]."""
    async with memory_cluster() as cluster, cluster.client() as client, cluster.nats() as nc:
        made = await client.groups.stream()
        await client.bounds(GROUPS_STREAM, 0)  # answered when the leader has subscribed
        subject = data_subject(made.subject, 0)
        message = client_pb2.Message(
            offset=-1, value=b"command", streamUid=made.uid if with_uid else "", ackPolicy=client_pb2.ALL
        )
        await nc.publish(subject, frames.encode(message), headers=headers)
        answer = await nc.request(subject, frames.encode(message), timeout=30, headers=headers)
        ack = frames.decode(answer.data, client_pb2.Ack)
        assert (ack.ackError, "stream _groups is internal" in ack.detail) == (client_pb2.Ack.UNSUPPORTED, True)
        assert (await client.bounds(GROUPS_STREAM, 0)).high_watermark == -1


async def test_client_publish_or_change_of_an_internal_stream_raises_unless_allowed() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        made = await client.groups.stream()
        for publishing in (client.publish(GROUPS_STREAM, b"x"), client.publisher(GROUPS_STREAM)):
            with pytest.raises(InvalidNameError, match="internal"):
                await publishing
        with pytest.raises(InvalidNameError, match="internal"):
            await client.producer(GROUPS_STREAM)
        for changing in (
            client.admin.delete_stream(GROUPS_STREAM),
            client.create_stream("_mine", "mine"),
            client.admin.alter_stream(GROUPS_STREAM, retention_bytes=1),
            client.admin.add_partitions(GROUPS_STREAM, 8),
        ):
            with pytest.raises(ConfigError, match="--internal"):
                await changing
        assert (await client.stream(GROUPS_STREAM)).uid == made.uid
        assert (await client.bounds(GROUPS_STREAM, 0)).end_offset == 0, "it is read as any other"
        client.admin.allow_internal()
        await client.admin.delete_stream(GROUPS_STREAM)
        with pytest.raises(NotFoundError):
            await client.stream(GROUPS_STREAM)


async def test_group_reset_before_the_group_has_a_member_sets_its_positions() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await asyncio.to_thread(cluster.serve_groups)
        orders = await client.create_stream("orders", "orders")
        key = PartitionKey("orders", orders.uid, 0)
        for name in ("billing", "mailing", "counting", "archiving"):  # in different partitions
            await client.groups.reset(name, {key: 7})
            assert (await client.groups.describe(name)).positions == {key: 7}
        assert [group.name for group in await client.groups.list()] == ["archiving", "billing", "counting", "mailing"]
        assert len({group.partition for group in await client.groups.list()}) > 1
        await client.groups.delete("billing")
        with pytest.raises(NotFoundError):
            await client.groups.describe("billing")
        many = {PartitionKey("orders", orders.uid, number): number for number in range(2500)}  # several commands
        await client.groups.reset("billing", many)
        assert (await client.groups.describe("billing")).positions == many
