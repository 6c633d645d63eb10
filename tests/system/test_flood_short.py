"""The short form of ``python -m tests.system.flood``: load costs nobody the leadership, the ISR, or a message [A11].

And plain publishes wait for an ISR that is long enough again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from liftpy.client import Client, connect
from liftpy.config import StreamConfig
from sidecar.dev.cluster import DevCluster
from tests.system.flood.__main__ import flood

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

HELD = "held"
SENT = 2000


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3, on_line=lambda node, line: print(f"{node} | {line}")) as running:
        yield running


@pytest.mark.long
async def test_flood_of_publishes_is_stored_without_a_leader_or_isr_change(cluster: DevCluster) -> None:
    outcome = await flood(cluster, 900_000, flush="always", size_bytes=100, publishers=6, per_second=0, min_isr=2)
    assert outcome.calm, outcome.text()
    assert (outcome.lost, outcome.dropped, outcome.stored) == (0, {}, 900_000), outcome.text()


async def _partition(client: Client, node: str) -> dict[str, Any]:
    """What a node says of the partition of ``HELD``; ``heard``: messages that have reached the node's ingest connection."""
    report = await client.admin.node_status(node, timeout_s=5)
    found = next(p for p in report["partitions"] if p["stream"] == HELD)
    return {**found, "heard": report["connections"]["ingest"]["in_msgs"]}


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + 30
    while not await condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        await asyncio.sleep(0.05)


async def test_publishes_without_reply_below_min_isr_are_stored_when_the_isr_grows(cluster: DevCluster) -> None:
    async with await connect(cluster.nats_url) as client:
        await client.create_stream(HELD, HELD, config=StreamConfig(min_isr=3))
        leader = (await client.stream(HELD)).partitions[0].leader
        follower = next(node for name, node in cluster.nodes.items() if name != leader)

        async def short() -> bool:
            return len((await _partition(client, leader))["isr"]) == 2

        async def stored() -> bool:
            found = [await _partition(client, name) for name in cluster.nodes]
            assert not any(p["dropped"] for p in found)
            return all(p["high_watermark"] == SENT - 1 for p in found)

        follower.kill()
        await _until(short, "the ISR is short")
        before = (await _partition(client, leader))["heard"]

        async def held() -> bool:  # a question about it overtakes a publish: they come by different connections
            found = await _partition(client, leader)
            assert found["newest_offset"] == -1
            return found["held_bytes"] > 0 and found["heard"] == before + SENT

        for number in range(SENT):
            await client._transport.publish(HELD, b"%d" % number)
        await client._transport.settle()
        await _until(held, "everything is held")
        follower.start()
        follower.wait_ready()
        await _until(stored, "everything that was held is stored")
