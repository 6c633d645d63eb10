"""Floods: bounded memory, publishers told, and work as before afterwards."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.dev.cluster import DevCluster
from tests.integration.conftest import Bench, close_bench, open_bench, show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def tight() -> Iterator[DevCluster]:
    """Nodes with room for few publishes."""
    settings = {"LIFTPY_REPLICATION_INGEST_QUEUE_RECORDS": "200", "LIFTPY_REPLICATION_INGEST_QUEUE_BYTES": "100000"}
    with DevCluster(3, settings=settings, on_line=show) as running:
        yield running


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def test_flood_of_publishes_is_answered_with_acks_or_429_within_a_memory_bound(
    tight: DevCluster, stream_name: str
) -> None:
    bench = await open_bench(tight)
    try:
        await _flood(bench, stream_name)
    finally:
        await close_bench(bench)


async def _flood(bench: Bench, name: str) -> None:
    await bench.create(name)
    subject = f"data.{name}"
    leader = bench.cluster.nodes[await bench.leader(name)]
    before = resident_bytes(leader.pid)
    inbox = bench.nc.new_inbox()
    answers: Counter[Any] = Counter()
    sequences: list[int] = []

    async def answered(message: Any) -> None:
        said = json.loads(message.data)
        answers[said.get("error", {}).get("code", "ok")] += 1
        if "error" not in said:
            sequences.append(said["seq"])

    await bench.nc.subscribe(f"{inbox}.*", cb=answered)
    total = 20_000
    for number in range(total):
        await bench.nc.publish(subject, b"x" * 500, reply=f"{inbox}.{number}")

    async def all_answered() -> bool:
        assert sum(answers.values()) == total, (answers, await bench.replica(leader.node_id, name))
        return True

    await bench.until(all_answered, "every publish is answered")
    assert set(answers) == {"ok", 429}
    assert resident_bytes(leader.pid) - before < 64 * 1024 * 1024
    report = await bench.replica(leader.node_id, name)
    assert report["overloaded"] == answers[429]
    assert report["waiting_acks"] == 0
    assert sorted(sequences) == list(range(1, answers["ok"] + 1))
    assert await bench.publish_acked(subject, [b"after"]) == [answers["ok"] + 1]
    await asyncio.gather(*(bench.values_on(node, name, answers["ok"] + 1) for node in bench.cluster.nodes))
