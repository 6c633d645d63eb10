"""Drills in a quiet cluster: an operator stops a node, and a leader loses one of its connections. Publishers notice little of it."""

from __future__ import annotations

import asyncio
import random

from liftpy.client import Client
from tests.simulation.world.checks.figures import metrics_of, values
from tests.simulation.world.checks.logs import workers_of
from tests.simulation.world.load.clients import Model, Place
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.node_process import NodeProcess
from tests.simulation.world.world import World

_PLACE: Place = ("orders", 0)
_STOP_S = 1.5
"""Maximum time from SIGTERM to the end of the process in a quiet cluster, in seconds."""
_SUCCESSOR_S = 0.5
"""Time after the end of a node within which all others know another metadata leader, in seconds. An election takes longer."""
_PAUSE_S = 1.5
"""Longest time between two acks while a node stops, in seconds. A failover takes longer."""
_LOST_LINK_PAUSE_S = 15.0
"""Longest time between two acks after a leader has lost a connection, in seconds. The connection stays away for longer."""
_LINK_AWAY_S = 20.0
_SLOW_FLUSH_NS = NS_PER_S * 3 // 2
_SLOW_FLUSHES = 20
"""Number of delayed flushes, some of which may be flushes of directories or of the metadata journal."""
_COUNTED_S = 2.0
"""Time after a publish until its flush has ended and is counted, in seconds. A replica outside the ISR delays no ack."""
_READY_S = 60.0
_PUBLISH_EVERY_S = 0.1


class Acks:
    """Publishes to one partition, one message after another, and measures the longest time between two acks."""

    def __init__(self, world: World, model: Model) -> None:
        self._world = world
        self._model = model
        self._number = 0
        self._longest_s = 0.0
        self._last_s = world.scheduler.passed_s

    @property
    def longest_s(self) -> float:
        """Longest time without an ack until now, in seconds."""
        return max(self._longest_s, self._world.scheduler.passed_s - self._last_s)

    async def run(self, client: Client) -> None:
        """Publish until the task is cancelled."""
        while True:
            self._number += 1
            await self._model.call("publish in a drill", client.publish(_PLACE[0], b"drill-%d" % self._number, partition=0))
            self._longest_s, self._last_s = self.longest_s, self._world.scheduler.passed_s
            await asyncio.sleep(_PUBLISH_EVERY_S)


async def drill(world: World, model: Model) -> None:
    """Stop the metadata leader and another node, delay a flush, then cut one connection of a leader."""
    draw = random.Random(f"drill {world.seed}")
    groups = {one.name: one.node.group for one in world.nodes if one.node is not None}
    controller = next((name for name, group in groups.items() if group is not None and group.leader == name), "")
    others = [node.name for node in world.nodes if node.name != controller]
    async with world.connect() as client:
        for name in [*([controller] if controller else []), draw.choice(others)]:
            await _stop(world, model, client, next(node for node in world.nodes if node.name == name))
        replicas = {worker.node_id for worker in workers_of(world)[_PLACE]}
        await _delay_flush(world, model, client, draw.choice([node for node in world.nodes if node.name in replicas]))
        await _lose_link(world, model, client, draw.choice(("ingest", "replication")))


async def _stop(world: World, model: Model, client: Client, node: NodeProcess) -> None:
    loop, count = asyncio.get_running_loop(), len(node.exits)
    acks = Acks(world, model)
    publishing = asyncio.create_task(acks.run(client))
    await asyncio.sleep(0.1)
    began_s = loop.time()
    node.terminate()
    await world.until(f"{node.name} stops", lambda: len(node.exits) > count, 15.0)
    if (took_s := loop.time() - began_s) > _STOP_S or node.exits[-1]:
        world.scheduler.violated(f"{node.name} has stopped with {node.exits[-1]} after {took_s:.2f} s")
    others = [one.node for one in world.nodes if one is not node and one.node is not None]
    await world.until(
        f"another node than {node.name} is metadata leader",
        lambda: all(one.group is not None and one.group.leader not in ("", node.name) for one in others),
        _SUCCESSOR_S,
    )
    await world.until(f"{node.name} is ready", lambda: node.is_ready, _READY_S)
    if (pause_s := acks.longest_s) > _PAUSE_S:
        world.scheduler.violated(f"no ack for {pause_s:.2f} s while {node.name} stopped")
    publishing.cancel()


async def _delay_flush(world: World, model: Model, client: Client, node: NodeProcess) -> None:
    """Delay flushes of a node until it reports a slow one. Publishes may be acked before the delayed flush has ended."""
    for number in range(_SLOW_FLUSHES):
        node.disk.delay_ns = _SLOW_FLUSH_NS
        await model.call("publish to a slow disk", client.publish(_PLACE[0], b"slow-%d" % number, partition=0))
        await asyncio.sleep(_COUNTED_S)
        if sum(values([await metrics_of(client, node.name)], "incidents_total", "slow_flush")):
            return
        await asyncio.sleep(_SLOW_FLUSH_NS / NS_PER_S / 10)
    world.scheduler.violated(f"{node.name} has not counted a slow flush")


async def _lose_link(world: World, model: Model, client: Client, kind: str) -> None:
    """Take one connection from the leader of a partition. Another node leads it before the connection returns."""
    leader = next(
        (one.node_id for one in workers_of(world)[_PLACE] if one.state is not None and one.state.leader == one.node_id), ""
    )
    acks = Acks(world, model)
    publishing = asyncio.create_task(acks.run(client))
    await asyncio.sleep(0.1)
    world.nats.refuse(f"liftpy-{leader}-{kind}")
    await asyncio.sleep(_LINK_AWAY_S)
    if (pause_s := acks.longest_s) > _LOST_LINK_PAUSE_S:
        world.scheduler.violated(f"no ack for {pause_s:.2f} s, because the leader {leader} had no connection for {kind}")
    world.nats.refuse("")
    publishing.cancel()
