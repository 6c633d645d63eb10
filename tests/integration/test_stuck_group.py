"""A consumer group stands still: its node says so in its metrics, and what the runbook ``group-stuck`` says gets it on again."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from liftpy.client import GroupOptions, connect
from tests import fork_server
from tests.integration.conftest import Bench

pytestmark = pytest.mark.processes


async def lags(bench: Bench, group: str) -> dict[str, float]:
    """Metric -> figure, as all nodes show it of the group: a coordinator leads on one of them."""
    found: dict[str, float] = {}
    for node in bench.cluster.nodes.values():
        text = await asyncio.to_thread(_metrics, f"{node.status_url}/metrics")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("group") == group:
                    assert sample.name not in found, "two nodes lead its coordinator"
                    found[sample.name.removeprefix("liftpy_group_lag_")] = sample.value
    return found


def _metrics(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


async def run_liftpy(bench: Bench, *words: str) -> str:
    """What the command says; it must succeed."""
    command = [sys.executable, "-c", "from sidecar.cli.main import main; main()", *words, "--nats", bench.cluster.nats_url]
    done = await asyncio.to_thread(fork_server.run, command, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


async def test_consumer_group_blocked_at_a_record_shows_its_lag_and_recovers_by_the_runbook(
    bench: Bench, stream_name: str
) -> None:
    name, group = stream_name, f"stuck-{stream_name}"
    await bench.create(name, partitions=2)

    async def feed(count: int) -> None:
        for number in range(2 * count):
            await bench.client.publish(name, b"v", partition=number % 2)

    async def behind(records: int, seconds: float = 0.0) -> dict[str, float]:
        found = await lags(bench, group)
        return found if found.get("records") == records and found["seconds"] >= seconds else {}

    async def places() -> dict[int, dict[str, Any]]:
        shown = json.loads(await run_liftpy(bench, "group", "show", group, "--json"))
        return {at["partition"]: at for at in shown["positions"]}

    async def reads_until(end: int) -> None:
        async with asyncio.timeout(30), connect(bench.cluster.nats_url) as client, client.group(group, [name]) as members:
            ends: dict[int, int] = {}
            async for part in members.batches():
                ends[part.key.partition] = part.slice.last_offset
                await members.commit()
                if list(ends.values()) == [end - 1] * 2:
                    return

    await feed(3)
    await reads_until(3)
    await bench.until(lambda: behind(0), "it has read all")
    async with connect(bench.cluster.nats_url) as client:
        stuck = await client.group(group, [name], options=GroupOptions(auto_commit_s=0))
        await feed(4)
        await anext(stuck)  # and then it waits for something else, for ever
        first = await bench.until(lambda: behind(8, 0.1), "its lag is shown")
        await bench.until(lambda: behind(8, first["seconds"] + 1.5), "which grows older")
        assert {number: (at["position"], at["lag"]) for number, at in (await places()).items()} == {0: (3, 4), 1: (3, 4)}
        await stuck.close()  # the runbook: stop it, and another goes on
    await run_liftpy(bench, "group", "reset", group, "--stream", name, "--partition", "0", "--to", "5", "--yes")
    await bench.until(lambda: behind(6), "the first two of one partition are passed over")
    await reads_until(7)
    assert await bench.until(lambda: behind(0), "it has read all again") == {"records": 0, "seconds": 0}
