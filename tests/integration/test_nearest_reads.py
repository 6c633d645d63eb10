"""A reader that stands in a rack reads from a replica there, on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.client import ReadEvent, ReadOptions
from liftpy.client.closest_replica import this_host

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


async def test_consumer_near_a_rack_is_answered_by_the_follower_in_that_rack(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)

    async def whole() -> bool:
        return len(await bench.isr(stream_name)) == 3 and await bench.ready(stream_name)

    await bench.until(whole, "all nodes are in sync")
    await bench.publish_acked(f"data.{stream_name}", [b"%d" % n for n in range(20)])
    leader = await bench.leader(stream_name)
    follower = sorted(await bench.isr(stream_name) - {leader})[0]

    async def level() -> bool:
        return (await bench.replica(follower, stream_name))["high_watermark"] == 19

    await bench.until(level, "the follower knows what is committed: one that is behind the reader is passed over")
    await bench.client.admin.set_node(follower, rack="near")

    async def answered_there() -> bool:
        """A reader that learns too late where nodes are (a second is its bound) reads from any."""
        told: list[ReadEvent] = []
        consumer = bench.client.consume(stream_name, until="end", options=ReadOptions(near="near", on_event=told.append))
        assert [record.value async for record in consumer] == [b"%d" % n for n in range(20)]
        return {event.node for event in told if event.records} == {follower}

    try:
        await bench.until(answered_there, "the follower in the reader's rack answers")
        hosts = {node.host for node in (await bench.client.admin.describe_cluster()).image.nodes.values()}
        assert hosts == {this_host()} != {""}
    finally:
        await bench.client.admin.reset_node(follower, rack=True)
