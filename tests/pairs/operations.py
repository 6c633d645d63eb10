"""Operations and faults."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.pairs.feature import Feature
from tests.pairs.storage import transfer
from tests.pairs.world import NODES, World


class Transfer(Feature):
    """The leadership of a partition moves by command."""

    name, kind = "transfer", "operations"

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            if not world.away:
                writing = asyncio.create_task(world.write(rng, 10))
                await transfer(world, rng)
                await writing


class MoveReplica(Feature):
    """A replica moves to another node."""

    name, kind, acts = "move-replica", "operations", 2

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            if world.away:
                return
            await world.write(rng, 5)
            partition = rng.randrange(world.partitions)
            image = await world.image()
            nodes = sorted(world.cluster.nodes)
            replicas = sorted(rng.sample(nodes, min(len(image.partitions[partition].replicas), NODES)))
            await world.client.reassign(image, partition, replicas)
            await world.write(rng, 10)
            await self._arrived(world, partition, replicas)

    async def _arrived(self, world: World, partition: int, replicas: list[str]) -> None:
        uid = world.uid

        async def there() -> bool:
            image = await world.image()
            return image.uid != uid or sorted(image.partitions[partition].replicas) == replicas

        await world.until(there, f"the replicas of partition {partition} are on {replicas}")


class AddReplica(Feature):
    """The stream gets more replicas, then fewer."""

    name, kind, acts = "add-replica", "operations", 2

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            if world.away:
                return
            await world.write(rng, 10)
            wanted = NODES if world.replicas != NODES else NODES - 1
            uid = world.uid
            await world.altered(wanted)
            await world.write(rng, 10)

            async def there() -> bool:
                image = await world.image()
                return image.uid != uid or all(len(p.isr) == wanted == len(p.replicas) for p in image.partitions)

            await world.until(there, f"every partition has {wanted} replicas in sync")


class RestartNode(Feature):
    """A node ends and starts."""

    name, kind = "restart-node", "operations"

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            if not world.away:
                await world.kill(rng.choice(sorted(world.cluster.running)))
                await world.write(rng, 5)
                await world.bring_back()


class RestartAll(Feature):
    """All nodes end, and start."""

    name, kind, acts = "restart-all", "operations", 2

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            if world.away:
                return
            for node in sorted(world.cluster.running):
                await world.kill(node)
            await world.bring_back()


class Recreate(Feature):
    """The stream is deleted and made again under its name."""

    name, kind, acts = "recreate", "operations", 1

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 10)
        async with world.changing:
            await world.bring_back()
            await world.recreate()
        await world.write(rng, 10)


class Alter(Feature):
    """Settings of the stream change while it is used."""

    name, kind = "alter", "operations"

    async def act(self, world: World, rng: random.Random) -> None:
        change: dict[str, Any] = rng.choice(
            ({"segment_age_s": 60.0}, {"retention_bytes": 1 << 40}, {"max_held_s": 5.0}, {"quota_records_per_s": 1000})
        )
        await world.altered(**change)
        await world.write(rng, 5)


class KilledLeader(Feature):
    """The leader of a partition is killed while it takes records; it comes back later."""

    name, kind = "killed-leader", "faults"

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            await world.bring_back()
            writing = asyncio.create_task(world.write(rng, 15))
            await world.kill(await world.leader(rng.randrange(world.partitions)))
            await writing
            if rng.random() < 0.3:
                await world.bring_back()


class FollowerAway(Feature):
    """A follower reaches nobody for a while, and comes back."""

    name, kind = "follower-away", "faults"

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            await world.bring_back()
            node = await world.follower(rng, rng.randrange(world.partitions))
            leaders = {partition.leader for partition in (await world.image()).partitions}
            if node and node not in leaders:
                await world.isolate(node)
        await world.write(rng, 10)


class LostMessages(Feature):
    """Messages to leaders, and acknowledgements, get lost."""

    name, kind, processes = "lost-messages", "faults", False

    async def act(self, world: World, rng: random.Random) -> None:
        world.lose_messages(0.25, rng.randrange(1 << 30))
        try:
            await world.write(rng, 12)
        finally:
            world.lose_messages(0.0, 0)

    async def quiet(self, world: World) -> None:
        world.lose_messages(0.0, 0)


class FullDisk(Feature):
    """The disk of a node is full for a while."""

    name, kind, processes = "full-disk", "faults", False

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            await world.bring_back()
            await world.fill_disk(rng.choice(sorted(world.cluster.running)))
        await world.write(rng, 20)


class LostLogs(Feature):
    """A node comes back without its logs."""

    name, kind, processes = "lost-logs", "faults", False

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            if world.away or not await world.is_in_sync():
                return
            await world.lose_logs(rng.choice(sorted(world.cluster.running)))
            await world.write(rng, 5)
            await world.bring_back()
            await world.until(world.is_in_sync, "a node that lost its logs has copied them")


class NatsRestart(Feature):
    """The NATS server ends and starts."""

    name, kind = "nats-restart", "faults"

    async def act(self, world: World, rng: random.Random) -> None:
        writing = asyncio.create_task(world.write(rng, 10))
        await asyncio.sleep(0)
        await asyncio.to_thread(world.cluster.restart_nats)
        await writing


FEATURES: tuple[type[Feature], ...] = (
    Transfer, MoveReplica, AddReplica, RestartNode, RestartAll, Recreate, Alter, KilledLeader, FollowerAway, LostMessages, FullDisk,
    LostLogs, NatsRestart,
)  # fmt: skip
