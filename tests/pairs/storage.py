"""Features of a stream's storage."""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

from liftpy.config import Codec, CommitPolicy, FlushPolicy
from liftpy.core.wire.filters import Filter
from liftpy.errors import OffsetOutOfRangeError
from tests.pairs.feature import Feature
from tests.pairs.model import WRITING_ERRORS, Outcome, Sent
from tests.pairs.world import World

DELETE_RETENTION_S = 300.0
RETENTION_RECORDS = 20
RETENTION_AGE_S = 1200.0
PER_SUBJECT = 25


class Compaction(Feature):
    """Older values of a key go, tombstones after a while."""

    name, kind = "compaction", "storage"
    settings: ClassVar = {"compaction": True, "delete_retention_s": DELETE_RETENTION_S}

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 25)
        if rng.random() < 0.6:
            world.pass_time(DELETE_RETENTION_S + 60)  # also past the window of message ids
            await world.write(rng, 25)
        await world.keep_house()

    async def check(self, world: World) -> None:
        world.pass_time(DELETE_RETENTION_S + 60)
        for _ in range(2):
            await world.keep_house()


class Retention(Feature):
    """The newest so many records stay."""

    name, kind = "retention", "storage"
    settings: ClassVar = {"retention_records": RETENTION_RECORDS}

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 60)
        await world.keep_house()


class RetentionByAge(Feature):
    """Records of a certain age go."""

    name, kind = "retention-age", "storage"
    settings: ClassVar = {"retention_age_s": RETENTION_AGE_S}

    async def act(self, world: World, rng: random.Random) -> None:
        world.pass_time(RETENTION_AGE_S / 2 + 10)
        await world.write(rng, 20)
        await world.keep_house()


class MaxPerSubject(Feature):
    """Of each subject the newest so many stay."""

    name, kind = "max-per-subject", "storage"
    settings: ClassVar = {"max_per_subject": PER_SUBJECT}

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 30)
        if rng.random() < 0.5:
            world.pass_time(150)  # past the window of message ids
        await world.keep_house()


class Purge(Feature):
    """An operator removes the records of a key or of a subject."""

    name, kind = "purge", "storage"

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 10)
        partition = rng.randrange(world.partitions)
        by_subject = rng.random() < 0.2
        keys = () if by_subject else (world.a_key(rng),)
        subjects = (world.subject,) if by_subject else ()
        uid = world.uid
        side = world.any_stream(rng)
        if side != world.stream:
            world.side_losses.add(side)
            await world.client.admin.purge(side, 0, subjects=(world.side_streams[side],))
        end = await world.client.admin.purge(world.stream, partition, keys=keys, subjects=subjects)
        world.model.purges.append((uid, partition, Filter(subjects, keys), end))
        if rng.random() < 0.5:
            world.pass_time(150)
        await world.keep_house()


class Truncate(Feature):
    """An operator deletes the records before an offset."""

    name, kind = "truncate", "storage"

    async def act(self, world: World, rng: random.Random) -> None:
        partition = rng.randrange(world.partitions)
        bounds = await world.client.bounds(world.stream, partition)
        at = rng.randint(bounds.log_start_offset, bounds.end_offset)
        side = world.any_stream(rng)
        if side != world.stream:
            world.side_losses.add(side)
            await world.client.admin.truncate_before(side, 0, (await world.client.bounds(side)).end_offset)
        key = world.uid, partition
        world.model.truncated[key] = max(at, world.model.truncated.get(key, 0))
        try:
            await world.client.admin.truncate_before(world.stream, partition, at)
        except OffsetOutOfRangeError:
            assert world.recreations, "truncate: an offset that was in range is out of range"
        await world.keep_house()


class MessageIds(Feature):
    """A message id that is sent again is answered with the first offset."""

    name, kind = "message-ids", "storage"

    def __init__(self) -> None:
        self._known: list[tuple[Sent, int, float]] = []

    async def act(self, world: World, rng: random.Random) -> None:
        for _ in range(6):
            partition = rng.randrange(world.partitions)
            sent = world.new("ids", rng, key=world.a_key(rng) if rng.random() < 0.5 else None)
            await world.publish(sent, partition, msg_id=sent.id)
            self._known.append((sent, partition, world.jumped_s))
        for sent, partition, jumped_s in rng.sample(self._known, min(8, len(self._known))):
            await self._again(world, sent, partition, jumped_s)

    async def _again(self, world: World, sent: Sent, partition: int, jumped_s: float) -> None:
        if world.jumped_s != jumped_s or sent.outcome is Outcome.REJECTED or sent.uids != {world.uid}:
            return  # outside the window, or never stored, or stored elsewhere
        uid, before = world.uid, sent.outcome
        try:
            publisher = await world.publisher(partition)
            ack = await publisher.publish(sent.value, key=sent.key, msg_id=sent.id)
        except WRITING_ERRORS as error:
            if before is Outcome.ACKED and getattr(error, "reason", "") == "INCORRECT_OFFSET" and world.is_same(uid):
                world.model.violate(f"message id {sent.id}, stored at {sent.offset}, is not known any more: {error}")
            return
        if world.uid != uid or world.jumped_s != jumped_s or (await world.image()).uid != uid:
            sent.uids.add(world.uid)
            return
        if before is Outcome.ACKED and (not ack.duplicate or ack.offset != sent.offset):
            world.model.violate(f"message id {sent.id}, stored at {sent.offset}, was answered with {ack}")
        world.model.acked(sent, ack.partition, ack.offset)

    async def check(self, world: World) -> None:
        for sent, partition, jumped_s in self._known:
            await self._again(world, sent, partition, jumped_s)


class Pausing(Feature):
    """Partitions take nothing for a while."""

    name, kind = "pause", "storage"

    async def act(self, world: World, rng: random.Random) -> None:
        stream = world.any_stream(rng)
        await world.client.admin.pause(stream, resume_on_publish=rng.random() < 0.4)
        await asyncio.sleep(0.02)
        await world.write(rng, 4)
        if rng.random() < 0.7:
            await world.client.admin.resume(stream)

    async def quiet(self, world: World) -> None:
        for stream in (world.stream, *world.side_streams):
            await world.client.admin.resume(stream)


class ReadOnly(Feature):
    """The stream takes nothing for a while."""

    name, kind = "read-only", "storage"

    async def act(self, world: World, rng: random.Random) -> None:
        side = world.any_stream(rng)
        if side == world.stream:
            await world.altered(read_only=True)
            await world.write(rng, 3)
            await world.altered(read_only=False)
        else:
            await world.client.admin.alter_stream(side, read_only=True)
            await world.write(rng, 3)
            await world.client.admin.alter_stream(side, read_only=False)

    async def quiet(self, world: World) -> None:
        await world.altered(read_only=False)


class Standby(Feature):
    """Followers buffer publishes too, and the next leader goes on with them."""

    name, kind = "standby", "storage"
    settings: ClassVar = {"failover_standby": True}

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.writing(rng, 15), world.changing:
            if not world.away:
                await transfer(world, rng)


async def transfer(world: World, rng: random.Random) -> None:
    """Move the leadership of a partition to a follower."""
    partition = rng.randrange(world.partitions)
    node = await world.follower(rng, partition)
    if node:
        await world.client.admin.elect_leader(world.stream, partition, node)


class Quota(Feature):
    """The stream takes so many records a second."""

    name, kind = "quota", "storage"
    settings: ClassVar = {"quota_records_per_s": 400}
    writes = 40


class Compression(Feature):
    """Batches are compressed, or not, from one moment on."""

    name, kind = "codec", "storage"
    settings: ClassVar = {"codec": Codec.ZSTD}
    writes = 20


class AddedPartitions(Feature):
    """The stream gets more partitions while it is used."""

    name, kind, acts = "added-partitions", "storage", 2

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 4)
        uid = world.uid
        image = await world.client.admin.add_partitions(world.stream, world.partitions + 1, uid=uid)
        if world.is_same(uid):
            world.partitions = len(image.partitions)
        await world.write(rng, 12)


class Majority(Feature):
    """A majority of the replicas commits."""

    name, kind = "majority", "storage"
    settings: ClassVar = {"commit_policy": CommitPolicy.QUORUM}
    writes = 10


class FlushInterval(Feature):
    """Logs are flushed every few milliseconds."""

    name, kind = "flush-interval", "storage"
    settings: ClassVar = {"flush": FlushPolicy.parse("interval:20")}
    writes = 15


class MaxMessage(Feature):
    """The largest message is made smaller and larger."""

    name, kind = "max-message", "storage"

    async def act(self, world: World, rng: random.Random) -> None:
        await world.altered(max_message_bytes=rng.choice((150, 300)))
        sent = world.new("large", rng)
        sent.value = sent.id.encode() + b"|" + bytes(1000)
        uid = world.uid
        await world.publish(sent, rng.randrange(world.partitions))
        if sent.outcome is Outcome.ACKED and world.is_same(uid):
            world.model.violate(f"{sent.id} of 1,000 bytes was stored in a stream of {world.config.max_message_bytes} at most")
        await world.write(rng, 5)
        await world.altered(max_message_bytes=0)

    async def quiet(self, world: World) -> None:
        await world.altered(max_message_bytes=0)


FEATURES: tuple[type[Feature], ...] = (
    Compaction, Retention, RetentionByAge, MaxPerSubject, Purge, Truncate, MessageIds, Pausing, ReadOnly, Standby, Quota, Compression,
    AddedPartitions, Majority, FlushInterval, MaxMessage,
)  # fmt: skip
