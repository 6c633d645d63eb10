"""Operations and faults."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

from tests.pairs.feature import Feature
from tests.pairs.storage import transfer
from tests.pairs.world import NODES, World


class Change(Feature):
    """Nodes, replicas or leaders change, one change at a time. ``heals``: a node that is away is brought back first; else nothing
    happens while one is away."""

    kind = "operations"
    heals: ClassVar[bool] = False

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.changing:
            if self.heals:
                await world.bring_back()
            if not world.away:
                await self.change(world, rng)
        await world.write(rng, self.writes)

    async def change(self, world: World, rng: random.Random) -> None:
        """Change something, with all nodes there at first."""
        raise NotImplementedError


class Transfer(Change):
    """The leadership of a partition moves by command."""

    name = "transfer"

    async def change(self, world: World, rng: random.Random) -> None:
        async with world.writing(rng, 10):
            await transfer(world, rng)


class MoveReplica(Change):
    """A replica moves to another node."""

    name, acts = "move-replica", 2

    async def change(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 5)
        partition = rng.randrange(world.partitions)
        image = await world.image()
        nodes = sorted(world.cluster.nodes)
        replicas = sorted(rng.sample(nodes, min(len(image.partitions[partition].replicas), NODES)))
        await world.client.admin.reassign(image, partition, replicas)
        await world.write(rng, 10)
        await world.until_image(
            lambda image: sorted(image.partitions[partition].replicas) == replicas,
            f"the replicas of partition {partition} are on {replicas}",
        )


class AddReplica(Change):
    """The stream gets more replicas, then fewer."""

    name, acts = "add-replica", 2

    async def change(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 10)
        wanted = NODES if world.replicas != NODES else NODES - 1
        await world.altered(wanted)
        await world.write(rng, 10)
        await world.until_image(
            lambda image: all(len(p.isr) == wanted == len(p.replicas) for p in image.partitions),
            f"every partition has {wanted} replicas in sync",
        )


class RestartNode(Change):
    """A node ends and starts."""

    name = "restart-node"

    async def change(self, world: World, rng: random.Random) -> None:
        await world.kill(rng.choice(sorted(world.cluster.running)))
        await world.write(rng, 5)
        await world.bring_back()


class RestartAll(Change):
    """All nodes end, and start."""

    name, acts = "restart-all", 2

    async def change(self, world: World, rng: random.Random) -> None:
        for node in sorted(world.cluster.running):
            await world.kill(node)
        await world.bring_back()


class Recreate(Change):
    """The stream is deleted and made again under its name."""

    name, acts, heals, writes = "recreate", 1, True, 10

    async def act(self, world: World, rng: random.Random) -> None:
        await world.write(rng, 10)
        await super().act(world, rng)

    async def change(self, world: World, rng: random.Random) -> None:
        await world.recreate()


class Alter(Feature):
    """Settings of the stream change while it is used."""

    name, kind = "alter", "operations"

    async def act(self, world: World, rng: random.Random) -> None:
        change: dict[str, Any] = rng.choice(
            (
                {"segment_age_s": 60.0},
                {"retention_bytes": 1 << 40},
                {"min_isr_hold_timeout_s": 5.0},
                {"quota_records_per_s": 1000},
            )
        )
        await world.altered(**change)
        await world.write(rng, 5)


class KilledLeader(Change):
    """The leader of a partition is killed while it takes records; it comes back later."""

    name, kind, heals = "killed-leader", "faults", True

    async def change(self, world: World, rng: random.Random) -> None:
        async with world.writing(rng, 15):
            await world.kill(await world.leader(rng.randrange(world.partitions)))
        if rng.random() < 0.3:
            await world.bring_back()


class FollowerAway(Change):
    """A follower reaches nobody for a while, and comes back."""

    name, kind, heals, writes = "follower-away", "faults", True, 10

    async def change(self, world: World, rng: random.Random) -> None:
        node = await world.follower(rng, rng.randrange(world.partitions))
        leaders = {partition.leader for partition in (await world.image()).partitions}
        if node and node not in leaders:
            await world.isolate(node)


class LostMessages(Feature):
    """Messages to leaders, and acknowledgements, get lost."""

    name, kind = "lost-messages", "faults"

    async def act(self, world: World, rng: random.Random) -> None:
        world.lose_messages(0.25, rng.randrange(1 << 30))
        try:
            await world.write(rng, 12)
        finally:
            world.lose_messages(0.0, 0)


class FullDisk(Change):
    """The disk of a node is full for a while."""

    name, kind, heals, writes = "full-disk", "faults", True, 20

    async def change(self, world: World, rng: random.Random) -> None:
        await world.fill_disk(rng.choice(sorted(world.cluster.running)))


class LostLogs(Change):
    """A node comes back without its logs."""

    name, kind = "lost-logs", "faults"

    async def change(self, world: World, rng: random.Random) -> None:
        if not await world.is_in_sync():
            return
        await world.lose_logs(rng.choice(sorted(world.cluster.running)))
        await world.write(rng, 5)
        await world.bring_back()
        await world.until(world.is_in_sync, "a node that lost its logs has copied them")


class NatsRestart(Feature):
    """The NATS server ends and starts."""

    name, kind = "nats-restart", "faults"

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.writing(rng, 10):
            await asyncio.to_thread(world.cluster.restart_nats)


FEATURES: tuple[type[Feature], ...] = (
    Transfer, MoveReplica, AddReplica, RestartNode, RestartAll, Recreate, Alter, KilledLeader, FollowerAway, LostMessages, FullDisk,
    LostLogs, NatsRestart,
)  # fmt: skip
