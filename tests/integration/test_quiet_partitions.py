"""Quiet partitions of real nodes: not fetched, looked after all the same, and as quick as ever when something comes."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.envelope import MessageType
from sidecar.dev.cluster import DevCluster
from tests.integration.conftest import QUICK, close_bench, open_bench, show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

PARTITIONS = 12


@pytest.fixture
def three() -> Iterator[DevCluster]:
    with DevCluster(3, settings={**QUICK, "LIFTPY_REPLICATION_IDLE_POLLS_BEFORE_QUIET": "2"}, on_line=show) as running:
        yield running


def quiet_partitions(status_url: str) -> int:
    """As a node's metrics tell it."""
    with urllib.request.urlopen(f"{status_url}/metrics", timeout=5) as answer:
        found = re.search(r"^liftpy_partitions_quiet (\d+)", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


async def test_idle_partition_sends_no_fetches_but_detects_dead_replicas(three: DevCluster, stream_name: str) -> None:
    bench = await open_bench(three)
    await bench.create(stream_name, partitions=PARTITIONS)
    subjects = [f"data.{stream_name}" + (f".{number}" if number else "") for number in range(PARTITIONS)]
    for subject in subjects:
        await bench.publish_acked(subject, [b"one"])

    async def all_are_quiet() -> bool:
        found = [await bench.client.admin.node_status(node) for node in three.nodes]
        phases = [p["phase"] for status in found for p in status["partitions"] if p["role"] == "FOLLOWER"]
        return phases == ["FOLLOWER_QUIET"] * (2 * PARTITIONS)

    await bench.until(all_are_quiet, "all followers are quiet")
    fetches: list[str] = []
    asked_for: dict[tuple[str, int], int] = {}

    async def fetched(message: Any) -> None:
        fetches.append(message.subject)

    async def asked(message: Any) -> None:
        kind, body = envelope.decode(message.data)
        assert kind is MessageType.QUIET_FETCHES, kind
        question = frames.parse(body, pb.QuietFetches)
        for fetch in question.fetches:
            asked_for[question.replicaID, fetch.partition] = asked_for.get((question.replicaID, fetch.partition), 0) + 1

    listening = [
        await bench.nc.subscribe("liftpy.*.*.replicate", cb=fetched),
        await bench.nc.subscribe("liftpy.notify.*", cb=asked),
    ]

    async def often() -> bool:
        return len(asked_for) == 2 * PARTITIONS and min(asked_for.values()) >= 3

    await bench.until(often, "every follower's fetch was asked for three times")
    assert fetches == []
    assert await all_are_quiet()
    counts = [await asyncio.to_thread(quiet_partitions, node.status_url) for node in three.nodes.values()]
    assert sum(counts) == 2 * PARTITIONS
    for subscription in listening:
        await subscription.unsubscribe()

    for subject in subjects:
        assert await bench.publish_acked(subject, [b"two"], timeout_s=2) == [2]
    await bench.until(all_are_quiet, "all followers are quiet again")
    victim = three.nodes["n3"]
    await asyncio.to_thread(victim.kill)

    async def led_by_others() -> bool:
        found = (await bench.client.stream(stream_name)).partitions
        return all(p.leader in ("n1", "n2") and set(p.isr) == {"n1", "n2"} for p in found)

    await bench.until(led_by_others, "nobody counts on the node that was killed", 10)
    for subject in subjects:
        await bench.publish_acked(subject, [b"three"])
    victim.start()
    await asyncio.to_thread(victim.wait_ready)
    await bench.until(all_are_quiet, "all is quiet once more")
    found = (await bench.client.stream(stream_name)).partitions
    assert all(set(p.isr) == {"n1", "n2", "n3"} for p in found)
    await close_bench(bench)
