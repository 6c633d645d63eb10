"""What applications rely on, as bodies that run on the cluster in memory and on a real one alike.

A case takes a ``Place`` and fails where what it sees is not what a user was promised. Each makes streams of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client as NatsConnection

from liftpy.client import Client, ProducerOptions, PublishOptions, ReadOptions, positions_from
from liftpy.client.sync import SyncClient
from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.base.partition import Pause
from liftpy.errors import (
    AlreadyExistsError,
    ConfigError,
    InvalidNameError,
    NotFoundError,
    OffsetOutOfRangeError,
    PublishRejectedError,
    UnavailableError,
)


@dataclass(frozen=True, slots=True)
class Place:
    """``name``: that no other case uses. ``connect``: another client of the same cluster."""

    client: Client
    nc: NatsConnection
    name: str
    connect: Callable[[], AbstractAsyncContextManager[Client]]
    waiting: Callable[[], AbstractContextManager[SyncClient]]
    """The same without asyncio; calls of it belong into a thread."""

    async def read(self, stream: str = "", **how: Any) -> list[Any]:
        """What is committed now."""
        return [record async for record in self.client.consume(stream or self.name, **{"until": "end", **how})]

    async def values(self, stream: str = "", **how: Any) -> list[bytes | None]:
        """The values of it."""
        return [record.value for record in await self.read(stream, **how)]


Case = Callable[[Place], Awaitable[None]]
CASES: list[Case] = []


def case(body: Case) -> Case:
    CASES.append(body)
    return body


@asynccontextmanager
async def refused(error: type[Exception], *words: str) -> AsyncIterator[None]:
    with pytest.raises(error) as caught:
        yield
    for word in words:
        said = f"{getattr(caught.value, 'reason', '')} {caught.value}"
        assert word in said, f"{said} does not say {word!r}"


# ---- publishing ------------------------------------------------------------------------------------------------------------
@case
async def what_is_acked_is_read_back_in_order(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    async with place.client.publisher(place.name, options=PublishOptions(window=512)) as publisher:
        sent = [await publisher.send(b"%d" % i, key=b"k%d" % i, headers={"n": b"%d" % i}) for i in range(3000)]
    assert [ack.result().offset for ack in sent] == list(range(3000))
    records = await place.read()
    assert [record.value for record in records] == [b"%d" % i for i in range(3000)]
    assert (records[17].key, records[17].headers, records[17].offset) == (b"k17", (("n", b"17"),), 17)
    assert [record.timestamp_ns for record in records] == sorted(record.timestamp_ns for record in records)


@case
async def tombstones_empty_values_and_empty_keys_are_three_things(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    for key, value in ((b"a", b""), (b"a", None), (b"", b"v"), (None, None)):
        await place.client.publish(place.name, value, key=key)
    async with place.client.publisher(place.name) as publisher:
        await publisher.post(None, key=b"posted")
    await place.client.publish(place.name, b"last")
    found = [(r.key, r.value) for r in await place.read()]
    assert found == [(b"a", b""), (b"a", None), (b"", b"v"), (None, None), (b"posted", None), (None, b"last")]


@case
async def headers_come_back_as_they_were_given(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    await place.client.publish(place.name, b"v", headers=[("h", "1"), ("g", b"2"), ("h", b"\xff")], msg_id="mine")
    (record,) = await place.read()
    assert record.headers == (("h", b"1"), ("g", b"2"), ("h", b"\xff"), ("Nats-Msg-Id", b"mine"))
    assert (record.header("h"), record.header_values("h"), record.header("x")) == (b"1", [b"1", b"\xff"], None)


@case
async def a_publish_that_expects_another_stream_is_rejected_at_once(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    async with asyncio.timeout(10):  # not the patience of 30 s
        async with refused(PublishRejectedError, "WRONG_STREAM"):
            await place.client.publish(place.name, b"x", headers={"Nats-Expected-Stream": "another"})
        async with refused(PublishRejectedError, "WRONG_STREAM"):
            await place.client.services.call("s", place.name, b"x", headers={"Nats-Expected-Stream": "another"}, timeout_s=30)
    assert await place.values() == []


@case
async def keys_of_a_filter_may_be_any_kind_of_bytes(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    for number in range(6):
        await place.client.publish(place.name, b"%d" % number, key=b"k%d" % (number % 3))
    keys: list[Any] = [bytearray(b"k0"), memoryview(b"k2")]
    assert await place.values(keys=keys) == [b"0", b"2", b"3", b"5"]
    assert (await place.client.admin.purge(place.name, 0, keys=keys)) is not None


@case
async def a_message_id_is_stored_once(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    acks = [await place.client.publish(place.name, b"v%d" % n, msg_id=f"id{n // 2}") for n in range(6)]
    assert [(ack.offset, ack.duplicate) for ack in acks if ack] == [(n // 2, n % 2 == 1) for n in range(6)]
    assert await place.values() == [b"v0", b"v2", b"v4"]


@case
async def a_publish_is_bound_to_the_last_offset(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}", config=StreamConfig(optimistic_concurrency=True))
    for number in range(3):
        await place.client.publish(place.name, b"%d" % number, expected_last=number - 1)
    for wrong in (-1, 1, 7):
        async with refused(PublishRejectedError, "INCORRECT_OFFSET"):
            await place.client.publish(place.name, b"late", expected_last=wrong)
    assert await place.values() == [b"0", b"1", b"2"]


@case
async def each_ack_policy_tells_what_it_promises(place: Place) -> None:
    stream = await place.client.create_stream(place.name, f"data.{place.name}", partitions=2)
    for partition in (0, 1):
        for offset, ack in enumerate((AckPolicy.ALL, AckPolicy.LEADER)):
            told = await place.client.publish(place.name, b"x", partition=partition, ack=ack)
            assert told is not None
            assert (told.stream, told.partition, told.offset) == (place.name, partition, offset)
            assert told.leader_epoch == stream.partitions[partition].leader_epoch
    assert await place.client.publish(place.name, b"none", ack=AckPolicy.NONE) is None
    await place.client.publish(place.name, b"behind it")
    assert await place.values() == [b"x", b"x", b"none", b"behind it"]


@case
async def what_is_too_large_is_refused(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}", config=StreamConfig(max_message_bytes=1000))
    for size_bytes in (1001, 2 << 20):
        async with refused(PublishRejectedError, "TOO_LARGE"):
            await place.client.publish(place.name, bytes(size_bytes))
    ack = await place.client.publish(place.name, b"fits")
    assert ack is not None
    assert ack.offset == 0


@case
async def a_large_message_travels_whole(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    large = bytes(range(256)) * 3600
    for _ in range(3):
        await place.client.publish(place.name, large)
    assert await place.values() == [large] * 3


# ---- producers -------------------------------------------------------------------------------------------------------------
@case
async def a_producer_stores_each_record_once_and_fences_who_was_there(place: Place) -> None:
    await place.client.create_stream(place.name, f"sub.{place.name}", partitions=2)
    keys, values = [b"key %d" % n for n in range(300)], [b"%d" % n for n in range(300)]
    async with place.client.producer(place.name, id="p") as first:
        acks = await (await first.send_many(values, keys=keys))
        assert sum(ack.record_count for ack in acks) == 300
        async with place.client.producer(place.name, id="p") as second:
            assert sum(second.next_sequence(partition) for partition in range(2)) == 300
            await second.send(b"more", partition=1)
            await second.flush()
            await first.send(b"too late", partition=1)
            async with refused(PublishRejectedError, "PRODUCER_FENCED"):
                await first.flush()
    async with place.client.producer(place.name, id="p", options=ProducerOptions(begin="repeat")) as again:
        await again.send_many(values, keys=keys)
    found = [await place.read(partition=partition) for partition in range(2)]
    assert sorted(r.value for r in [*found[0], *found[1]]) == sorted([*values, b"more"])
    for records in found:
        sent = [record.key for record in records if record.key is not None]
        assert sent == sorted(sent, key=keys.index)


# ---- consumers -------------------------------------------------------------------------------------------------------------
@case
async def consumers_begin_and_end_where_they_say(place: Place) -> None:
    client = place.client
    await client.create_stream(place.name, f"data.{place.name}")
    assert await place.values() == []
    await client.publish(place.name, b"0")
    following = asyncio.create_task(place.values(start="earliest", until=49))
    only_new = client.consume(place.name, start="new", until=49)
    await only_new.begin()
    async with client.publisher(place.name) as publisher:
        for number in range(1, 100):
            await publisher.send(b"%d" % number)
    every = [b"%d" % n for n in range(100)]
    assert await following == every[:50]
    assert [r.value async for r in only_new] == every[1:50]
    assert await place.values(start="latest") == every[99:]
    assert await place.values(start=90) == every[90:]
    assert await place.values(start="-3") == every[97:]
    assert await place.values(start=timedelta(hours=1)) == every
    assert await place.values(start=10, until=19) == every[10:20]
    assert await place.values(start=0, until=0) == every[:1]
    assert await place.values(start=0, backwards=True) == every[:1]
    async with refused(OffsetOutOfRangeError):
        await place.values(start=101)
    bounds = await client.bounds(place.name)
    assert (bounds.log_start_offset, bounds.high_watermark) == (0, 99)


@case
async def a_stored_position_goes_on_behind_the_record(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    for number in range(10):
        await place.client.publish(place.name, b"%d" % number)
    consumer = place.client.consume(place.name)
    first = await consumer.getmany(4)
    stored = str(await consumer.position())
    rest = await place.read(start=stored)
    assert [r.offset for r in [*first, *rest]] == list(range(10))


@case
async def only_what_fits_and_the_newest_first(place: Place) -> None:
    name = place.name
    await place.client.create_stream(name, f"data.{name}.>")
    for country in ("eu", "us", "eu"):
        async with place.client.publisher(name, subject=f"data.{name}.{country}") as publisher:
            for number in range(20):
                await publisher.send(b"%d" % number, key=b"k%d" % (number % 4))
    every = [(r.offset, r.subject, r.key) for r in await place.read()]
    assert [r.offset for r in await place.read(backwards=True)] == list(range(59, -1, -1))
    for how in ({"subjects": [f"data.{name}.us"]}, {"keys": [b"k1", b"k3"]}, {"subjects": ["*.*.eu"], "keys": [b"k2"]}):
        fitting = [
            offset
            for offset, subject, key in every
            if (not how.get("subjects") or subject.endswith(how["subjects"][0][-2:]))
            and (not how.get("keys") or key in how["keys"])
        ]
        assert 0 < len(fitting) < 60
        assert [r.offset for r in await place.read(**how)] == fitting
        assert [r.offset for r in await place.read(backwards=True, **how)] == fitting[::-1]
    async with refused(ConfigError, "Name one subject (subject=, --subject)"):
        await place.client.publisher(name)


@case
async def a_planned_range_is_the_same_from_every_replica(place: Place) -> None:
    stream = await place.client.create_stream(place.name, f"data.{place.name}")
    assert len(stream.partitions[0].replicas) == 3
    async with place.client.publisher(place.name) as publisher:
        for number in range(1000):
            await publisher.send(b"%d" % number)
    for node in stream.partitions[0].replicas:
        options = ReadOptions(node=node, max_bytes=4096)
        pieces = [p async for p in place.client.read_range(place.name, 0, 123, 877, uid=stream.uid, options=options)]
        assert [v for p in pieces for v in p.values()] == [b"%d" % n for n in range(123, 877)]


@case
async def several_streams_are_read_as_one(place: Place) -> None:
    client, name = place.client, place.name
    await client.create_stream(f"{name}-a", f"data.{name}.a", partitions=2)
    for partition in (0, 1):
        await client.publish(f"{name}-a", b"a%d" % partition, partition=partition)
    async with client.consume_many(f"{name}-*", until="end") as many:
        found = [(stream, partition, record.value) async for stream, partition, record in many]
        stored = await many.positions_text()
    assert sorted(found) == [(f"{name}-a", 0, b"a0"), (f"{name}-a", 1, b"a1")]
    await client.create_stream(f"{name}-b", f"data.{name}.b")
    await client.publish(f"{name}-b", b"b")
    async with client.consume_many(f"{name}-*", until="end", positions=positions_from(stored)) as many:
        assert [(stream, record.value) async for stream, _, record in many] == [(f"{name}-b", b"b")]


@case
async def truncated_records_are_an_error_and_no_silent_reset(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    for number in range(20):
        await place.client.publish(place.name, b"%d" % number)
    start = await place.client.admin.truncate_before(place.name, 0, 7)
    assert 0 < start <= 7
    while (await place.client.bounds(place.name)).log_start_offset < start:
        await asyncio.sleep(0.01)
    async with refused(OffsetOutOfRangeError):
        await place.values(start=0)
    assert await place.values() == [b"%d" % n for n in range(start, 20)]


@case
async def purged_records_are_gone_and_their_offsets_stay(place: Place) -> None:
    client, name = place.client, place.name
    await client.create_stream(name, f"data.{name}.>", config=StreamConfig(dedup_window_s=0.0))
    for number in range(12):
        await place.nc.request(f"data.{name}.{'ab'[number % 2]}", b"%d" % number, 30)
    with pytest.raises(ConfigError):
        await client.admin.purge(name, 0)
    async with refused(OffsetOutOfRangeError):
        await client.admin.purge(name, 0, subjects=["x"], before=99)
    assert await client.admin.purge(name, 0, subjects=[f"data.{name}.a"], before=8, dry_run=True) == 8
    assert not (await client.stream(name)).partitions[0].state.purges
    assert await client.admin.purge(name, 0, subjects=[f"data.{name}.a"], before=8) == 8
    while (await client.stream(name)).partitions[0].state.purges:
        await asyncio.sleep(0.05)
    found = await place.read()
    assert [(record.offset, record.value) for record in found] == [(n, b"%d" % n) for n in range(12) if n % 2 or n >= 8]
    stays = await place.read(subjects=[f"data.{name}.a"])
    assert [record.offset for record in stays] == [8, 10]
    assert [record.offset for record in await place.read(start=2)] == [3, 5, 7, 8, 9, 10, 11]


async def is_read_only(place: Place) -> bool:
    try:
        await place.client.publish(place.name, b"?")
    except PublishRejectedError as error:
        return error.reason == "READ_ONLY"
    return False


async def refused_as_paused(place: Place, partition: int = 0) -> bool:
    try:
        await place.client.publish(place.name, b"?", partition=partition)
    except PublishRejectedError as error:
        return error.reason == "PAUSED"
    return False


@case
async def what_is_paused_takes_nothing_until_it_is_resumed(place: Place) -> None:
    client, name = place.client, place.name
    await client.create_stream(name, f"data.{name}", partitions=2)
    await client.publish(name, b"before")
    paused = await client.admin.pause(name, [0])
    assert [p.pause for p in paused.partitions] == [Pause.UNTIL_RESUMED, Pause.NOT_PAUSED]
    while not await refused_as_paused(place):  # the leader hears of it a moment later
        pass
    assert not await refused_as_paused(place, 1)
    end = (await client.bounds(name)).end_offset
    async with refused(PublishRejectedError, "PAUSED"):
        await client.publish(name, b"meanwhile")
    again = await client.admin.pause(name, [0])
    assert again.partitions == (await client.stream(name)).partitions == paused.partitions, "nothing is to be done"
    assert (await place.values())[0] == b"before", "reading goes on"
    assert (await client.bounds(name)).end_offset == end
    resumed = await client.admin.resume(name)
    assert [p.pause for p in resumed.partitions] == [Pause.ENDING, Pause.NOT_PAUSED]
    while await refused_as_paused(place):
        pass
    while (await client.stream(name)).partitions[0].pause is not Pause.NOT_PAUSED:  # its leader says that it takes publishes
        await asyncio.sleep(0.01)
    for partitions in ([2], [0, 7]):
        async with refused(NotFoundError, "no partition"):
            await client.admin.pause(name, partitions)
    async with refused(NotFoundError, "no stream"):
        await client.admin.resume("nobody-knows-it")
    async with refused(ConfigError, "The list of partitions is empty"):
        await client.admin.pause(name, [])
    async with refused(ConfigError, "-1"):
        await client.admin.pause(name, [-1])


@case
async def a_publish_resumes_what_is_paused_until_then(place: Place) -> None:
    client, name = place.client, place.name
    await client.create_stream(name, f"data.{name}", partitions=3)
    for how in ({"resume_on_publish": True}, {"resume_all": True}):
        await client.publish(name, b"before", partition=1)
        paused = await client.admin.pause(name, **how)
        assert all(p.pause.until_publish for p in paused.partitions)
        first = await client.publish(name, b"first", partition=1)
        assert first is not None
        assert not first.duplicate
        while (stream := await client.stream(name)).partitions[1].pause is not Pause.NOT_PAUSED:
            await client.publish(name, b"more", partition=1)  # the leader may have heard of the pause after the first
        others = [p.pause.until_publish for p in stream.partitions]
        assert others == ([True, False, True] if "resume_on_publish" in how else [False] * 3)
        await client.admin.resume(name)


# ---- administration --------------------------------------------------------------------------------------------------------
@case
async def a_stream_is_made_listed_enlarged_altered_and_deleted(place: Place) -> None:
    client, name = place.client, place.name
    stream = await client.create_stream(name, f"data.{name}", partitions=2)
    assert (stream.name, stream.subject, len(stream.partitions)) == (name, f"data.{name}", 2)
    assert all(len(p.replicas) == 3 and sorted(p.replicas) == sorted(p.isr) for p in stream.partitions)
    assert name in [s.name for s in await client.admin.list_streams()]
    assert len((await client.admin.add_partitions(name, 4)).partitions) == 4
    ack = await client.publish(name, b"x", partition=3)
    assert ack is not None
    altered = await client.admin.alter_stream(name, read_only=True)
    assert altered.config.read_only
    while not await is_read_only(place):  # the leader hears of it a moment later
        pass
    await client.admin.alter_stream(name, read_only=False)
    while await is_read_only(place):
        pass
    async with refused(NotFoundError):
        await client.admin.delete_stream(name, "another-uid")
    await client.admin.delete_stream(name, stream.uid)
    async with refused(NotFoundError, "no stream"):
        await client.stream(name)


@case
async def one_that_is_there_already_is_told_apart(place: Place) -> None:
    client, name = place.client, place.name
    config = StreamConfig(retention_age_s=86_400, min_isr=2)
    made = [await client.create_stream(name, f"data.{name}", replicas=3, config=config, exist_ok=True) for _ in range(2)]
    assert made[0].uid == made[1].uid
    async with refused(AlreadyExistsError):
        await client.create_stream(name, f"data.{name}")
    async with refused(AlreadyExistsError, "min_isr is 2, not 0"):
        await client.create_stream(name, f"data.{name}", config=StreamConfig(retention_age_s=86_400), exist_ok=True)
    async with refused(ConfigError, "overlap"):
        await client.create_stream(f"{name}x", f"data.{name}")


@case
async def a_stream_that_wants_more_nodes_waits_for_them(place: Place) -> None:
    waits = await place.client.create_stream(place.name, f"data.{place.name}", replicas=9, ready_s=0)
    assert (waits.waiting, waits.partitions) == (1, ())
    async with refused(UnavailableError, "insufficient-nodes"):
        await place.client.admin.until_ready(waits, 0.3)


@case
async def a_stream_made_again_is_another_stream(place: Place) -> None:
    client, name = place.client, place.name
    first = await client.create_stream(name, f"data.{name}")
    await client.publish(name, b"old")
    consumer = client.consume(name, options=ReadOptions(patience_s=30, wait_s=0.2))
    await consumer.begin()
    await client.admin.delete_stream(name)
    second = await client.create_stream(name, f"data.{name}")
    assert second.uid != first.uid
    await client.publish(name, b"new")
    async with refused(NotFoundError, f"uid {first.uid} was deleted and created again"):
        await anext(aiter(consumer))
    assert await place.values() == [b"new"]


@case
async def bad_input_is_told_at_the_edge(place: Place) -> None:
    client, name = place.client, place.name
    for wrong in ("", "a b", "a.b", "a/b", "x" * 300):
        async with refused(InvalidNameError):
            await client.create_stream(wrong, f"data.{name}")
    for subject in ("", "a..b", "_INBOX.x", "liftpy.info"):
        async with refused(ConfigError):
            await client.create_stream(name, subject)
    for wrong_count in ({"partitions": -1}, {"partitions": 1 << 40}, {"replicas": -1}):
        async with refused(ConfigError):
            await client.create_stream(name, f"data.{name}", **wrong_count)
    async with refused(NotFoundError):
        await client.publish(name, b"to nobody")
    async with refused(NotFoundError):
        await place.values()
    await client.create_stream(name, f"data.{name}")
    async with refused(NotFoundError, "no partition 5"):
        await client.publish(name, b"x", partition=5)
    async with refused(ConfigError):
        await client.admin.alter_stream(name, no_such_setting=1)
    async with refused(ConfigError):
        await place.values(start="yesterday")


@case
async def the_cluster_describes_itself(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    state = await place.client.admin.describe_cluster(linearizable=True)
    assert sorted(state.image.nodes) == ["n1", "n2", "n3"] == sorted(state.image.live_nodes())
    assert state.metadata_leader in state.image.nodes
    assert state.stream(place.name).partitions[0].leader in state.image.nodes


@case
async def a_leadership_moves_and_nothing_is_lost(place: Place) -> None:
    client, name = place.client, place.name
    stream = await client.create_stream(name, f"data.{name}")
    before = await client.publish(name, b"before")
    new_leader = next(node for node in stream.partitions[0].replicas if node != stream.partitions[0].leader)
    moved = await client.admin.elect_leader(name, 0, new_leader)
    assert moved.leader_epoch > stream.partitions[0].leader_epoch
    after = await client.publish(name, b"after")
    assert before is not None
    assert after is not None
    assert (after.offset, after.leader_epoch > before.leader_epoch) == (1, True)
    assert (await client.bounds(name)).leader == new_leader
    assert await place.values() == [b"before", b"after"]


# ---- plain NATS and JetStream ------------------------------------------------------------------------------------------------
@case
async def plain_nats_messages_are_stored_with_subject_and_headers(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}.>")
    await place.nc.publish(f"data.{place.name}.a.b", b"plain", headers={"colour": "red"})
    await place.nc.flush()
    async with place.client.publisher(place.name, subject=f"data.{place.name}.c") as publisher:
        await publisher.publish(b"acked")
    records = await place.read()
    assert sorted((r.value, r.subject) for r in records) == [
        (b"acked", f"data.{place.name}.c"),
        (b"plain", f"data.{place.name}.a.b"),
    ]
    assert next(r.headers for r in records if r.value == b"plain") == (("colour", b"red"),)


@case
async def jetstream_publishers_are_answered_in_their_form(place: Place) -> None:
    name = place.name
    await place.client.create_stream(name, f"data.{name}", config=StreamConfig(optimistic_concurrency=True))
    js = place.nc.jetstream(timeout=30)
    head = {"Nats-Expected-Last-Sequence": "0"}
    first = await js.publish(f"data.{name}", b"one", headers={**head, "Nats-Msg-Id": "m1"})
    assert (first.stream, first.seq, bool(first.duplicate)) == (name, 1, False)
    again = await js.publish(f"data.{name}", b"one", headers={**head, "Nats-Msg-Id": "m1"})
    assert (again.seq, again.duplicate) == (1, True)
    with pytest.raises(nats.js.errors.APIError) as caught:
        await js.publish(f"data.{name}", b"wrong", headers=head)
    assert (caught.value.code, caught.value.err_code) == (400, 10071)
    with pytest.raises(nats.js.errors.APIError) as caught:
        await js.publish(f"data.{name}", b"x", headers={"Nats-Expected-Stream": "another"})
    assert caught.value.err_code == 10060
    answer = await place.nc.request(f"data.{name}", b"two", timeout=30, headers={"Nats-Expected-Last-Sequence": "1"})
    assert json.loads(answer.data)["seq"] == 2
    assert await place.values() == [b"one", b"two"]


@case
async def nobody_listens_where_no_stream_is(place: Place) -> None:
    with pytest.raises(nats.errors.NoRespondersError):
        await place.nc.request(f"data.{place.name}", b"x", timeout=30)


@case
async def subscriptions_beside_the_streams_work_as_ever(place: Place) -> None:
    name, heard = place.name, []
    await place.client.create_stream(name, f"data.{name}.*")

    async def answer(message: Any) -> None:
        heard.append((message.subject, message.data))
        await message.respond(b"served")

    await place.nc.subscribe(f"serve.{name}.>", cb=answer)
    for _ in range(2):
        await place.nc.subscribe(f"shared.{name}", "workers", cb=answer)
    plain = await place.nc.subscribe(f"data.{name}.x")
    assert (await place.nc.request(f"serve.{name}.a.b", b"1", timeout=30)).data == b"served"
    assert (await place.nc.request(f"shared.{name}", b"2", timeout=30)).data == b"served"
    async with place.client.publisher(name, subject=f"data.{name}.x") as publisher:
        await publisher.post(b"both")
        await publisher.publish(b"acked")
    assert (await plain.next_msg(timeout=30)).data == b"both"
    await plain.unsubscribe()
    assert heard == [(f"serve.{name}.a.b", b"1"), (f"shared.{name}", b"2")]
    assert await place.values() == [b"both", b"acked"]


@case
async def two_clients_see_the_same(place: Place) -> None:
    await place.client.create_stream(place.name, f"data.{place.name}")
    async with place.connect() as other:
        reading = asyncio.create_task(anext(aiter(other.consume(place.name))))
        await place.client.publish(place.name, b"across")
        assert (await reading).value == b"across"
    with pytest.raises(Exception, match="closed"):
        await other.publish(place.name, b"after the end")
