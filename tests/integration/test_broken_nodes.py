"""Nodes that stop, are killed, come back: what was acknowledged stays, and everybody catches up [D1, D3, L2]."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

NODES = ("n1", "n2", "n3")


def payloads(word: str, count: int) -> list[bytes]:
    return [f"{word} {number}".encode() for number in range(count)]


async def settle(bench: Any, name: str) -> str:
    """Wait until all three are in sync; return the leader."""

    async def whole() -> bool:
        return await bench.isr(name) == set(NODES) and await bench.ready(name)

    await bench.until(whole, "all nodes are in sync")
    return str(await bench.leader(name))


async def expect_everywhere(bench: Any, name: str, acked: list[bytes]) -> None:
    """Every acknowledged payload is on every node, in the same bytes, in order; one that was sent again may be there twice."""
    total = (await bench.replica(await bench.leader(name), name))["newest_offset"] + 1
    logs = [await bench.values_on(node, name, total) for node in NODES]
    assert logs[0] == logs[1] == logs[2]
    assert list(dict.fromkeys(value for value in logs[0] if value in set(acked))) == acked


@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_a_follower_stops_and_comes_back(fragile: Any, stream_name: str, how: str) -> None:
    await fragile.create(stream_name)
    subject = f"data.{stream_name}"
    leader = await settle(fragile, stream_name)
    follower = next(node for node in NODES if node != leader)
    before = (await fragile.client.node_status(follower))["incarnation"]
    acked = payloads("before", 20)
    await fragile.publish_acked(subject, acked)
    node = fragile.cluster.nodes[follower]
    code = await asyncio.to_thread(getattr(node, how))
    assert code == (0 if how == "terminate" else -signal.SIGKILL)
    more = payloads("while it is away", 20)
    await fragile.publish_acked(subject, more)
    assert follower not in await fragile.isr(stream_name)
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.wait_ready)
    await settle(fragile, stream_name)
    assert (await fragile.client.node_status(follower))["incarnation"] > before
    last = payloads("after", 5)
    await fragile.publish_acked(subject, last)
    await expect_everywhere(fragile, stream_name, acked + more + last)


@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_the_leader_stops_and_comes_back(fragile: Any, stream_name: str, how: str) -> None:
    await fragile.create(stream_name)
    subject = f"data.{stream_name}"
    leader = await settle(fragile, stream_name)
    epoch = (await fragile.client.stream(stream_name)).partitions[0].leader_epoch
    acked = payloads("before", 20)
    await fragile.publish_acked(subject, acked)
    node = fragile.cluster.nodes[leader]
    await asyncio.to_thread(getattr(node, how))
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.wait_ready)
    await settle(fragile, stream_name)
    assert (await fragile.client.stream(stream_name)).partitions[0].leader_epoch > epoch
    last = payloads("after", 20)
    await fragile.publish_acked(subject, last)
    await expect_everywhere(fragile, stream_name, acked + last)


async def test_all_nodes_are_killed_at_once_and_come_back(fragile: Any, stream_name: str) -> None:
    await fragile.create(stream_name)
    subject = f"data.{stream_name}"
    await settle(fragile, stream_name)
    acked = payloads("before", 50)
    await fragile.publish_acked(subject, acked)
    for node in fragile.cluster.nodes.values():
        node.send(signal.SIGKILL)
    for node in fragile.cluster.nodes.values():
        await asyncio.to_thread(node.kill)
    for node in fragile.cluster.nodes.values():
        node.start()
    for node in fragile.cluster.nodes.values():
        await asyncio.to_thread(node.wait_ready)
    await settle(fragile, stream_name)
    last = payloads("after", 5)
    await fragile.publish_acked(subject, last)
    await expect_everywhere(fragile, stream_name, acked + last)


async def test_a_paused_follower_leaves_the_isr_and_heals(fragile: Any, stream_name: str) -> None:
    await fragile.create(stream_name)
    subject = f"data.{stream_name}"
    leader = await settle(fragile, stream_name)
    follower = next(node for node in reversed(NODES) if node != leader)
    fragile.cluster.nodes[follower].send(signal.SIGSTOP)
    try:
        acked = payloads("while it is paused", 30)
        await fragile.publish_acked(subject, acked)
        assert follower not in await fragile.isr(stream_name)
    finally:
        fragile.cluster.nodes[follower].send(signal.SIGCONT)
    await settle(fragile, stream_name)
    await expect_everywhere(fragile, stream_name, acked)


async def test_nats_goes_away_and_comes_back(fragile: Any, stream_name: str) -> None:
    await fragile.create(stream_name)
    subject = f"data.{stream_name}"
    await settle(fragile, stream_name)
    acked = payloads("before", 20)
    await fragile.publish_acked(subject, acked)
    server = fragile.cluster.nats
    server.kill()
    await asyncio.to_thread(server.resume)
    last = payloads("after", 20)
    await fragile.publish_acked(subject, last)
    await settle(fragile, stream_name)
    await expect_everywhere(fragile, stream_name, acked + last)
    for node in NODES:
        status = await fragile.client.node_status(node)
        assert status["nats"]["reconnects"] >= 1
        assert status["nats"]["errors"]["disconnected"] >= 1
