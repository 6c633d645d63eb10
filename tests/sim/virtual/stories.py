"""The story of every history: start a cluster, make streams, publish and read under faults, heal, and check that all is well."""

from __future__ import annotations

import asyncio

import liftpy
from tests.sim.virtual.scheduler import NS_PER_S
from tests.sim.virtual.world import World


async def tell(world: World) -> None:
    """From the first start to the last check."""
    for node in world.nodes:
        node.start()
    if not await world.until("all nodes are ready", lambda: all(node.is_ready for node in world.nodes), 60):
        return
    async with liftpy.connect(list(world.nats.urls)) as client:
        await client.create_stream("orders", "shop.orders")
        for number in range(20):
            ack = await client.publish("orders", b"%d" % number)
            world.scheduler.trace("acked", ack.offset)
        count = 0
        async for record in client.consume("orders", start="earliest", until="end"):
            count += 1
            world.scheduler.trace("read", record.offset, record.value)
        if count != 20:
            world.scheduler.violated(f"read {count}")
    await asyncio.sleep(1)
    assert NS_PER_S
