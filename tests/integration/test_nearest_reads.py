"""A reader that stands in a rack reads from a replica there, on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.client import ReadEvent, ReadOptions
from liftpy.client.this_host import this_host

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


async def test_a_follower_in_the_rack_answers(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)

    async def whole() -> bool:
        return len(await bench.isr(stream_name)) == 3 and await bench.ready(stream_name)

    await bench.until(whole, "all nodes are in sync")
    await bench.publish_acked(f"data.{stream_name}", [b"%d" % n for n in range(20)])
    leader = await bench.leader(stream_name)
    follower = sorted(await bench.isr(stream_name) - {leader})[0]
    told: list[ReadEvent] = []
    await bench.client.set_node(follower, rack="near")
    try:
        consumer = bench.client.consume(stream_name, until="end", options=ReadOptions(near="near", on_event=told.append))
        assert [record.value async for record in consumer] == [b"%d" % n for n in range(20)]
        hosts = {node.host for node in (await bench.client.describe_cluster()).image.nodes.values()}
        assert hosts == {this_host()} != {""}
    finally:
        await bench.client.reset_node(follower, rack=True)
    # it may be behind the leader for a moment, and is then passed over; here it has had the time of an ack
    assert {event.node for event in told if event.records} <= {follower, leader}
    assert any(event.node == follower for event in told)
