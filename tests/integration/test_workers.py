"""Nodes of several processes: one incarnation, which ends with the first of its processes; status is whole; N may change."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from liftpy.client import Client, connect
from liftpy.core.observe.history import NAMES, rows_of
from liftpy.core.observe.trace_context import TraceContext, traceparent
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster, DevNode
from tests.integration.collector import Collector
from tests.integration.conftest import QUICK, show
from tests.until import block_until

PARTITIONS = 4
EACH = 25


def status(node: DevNode) -> dict[str, Any]:
    with urllib.request.urlopen(f"{node.status_url}/status", timeout=10) as answer:
        return dict(json.load(answer))


def metric(node: DevNode, name: str) -> float:
    with urllib.request.urlopen(f"{node.status_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def full_isrs_in_history(node: DevNode) -> float:
    """Partitions with a full ISR, as the plots of the cluster's page last show them."""
    with urllib.request.urlopen(f"{node.status_url}/api/history.json?step=1", timeout=10) as answer:
        rows = rows_of(json.load(answer))
    assert rows is not None
    return max((value for value in rows.columns[NAMES.index("isr_full")] if value == value), default=0.0)


def worker_pid(node: DevNode, number: int = 1) -> int:
    return int(status(node)["workers"][number]["pid"])


def is_gone(pid: int) -> bool:
    """Whether there is no such process, or only what its parent has not asked for yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


async def traces_are_switched(client: Client, write: Callable[[str], object], collector: Collector) -> None:
    """On, off and on again, in all processes of a node that runs."""
    wanted = {f"append orders/{partition}" for partition in range(PARTITIONS)}
    on = f'metrics_streams = ["orders"]\nrack = "b"\ntrace = "otlp"\ntrace_endpoint = "{collector.url}"'
    for number, text in enumerate((on, 'metrics_streams = ["orders"]\nrack = "b"', on)):
        write(text)
        assert await client.admin.reload_settings("n1") == {"applied": ["trace", "trace_endpoint"], "wait": ["rack"]}
        sender = TraceContext(0xAB0 + number, 1, 1)
        async with asyncio.timeout(60):
            while text == on and not wanted <= collector.of(sender.trace_id).keys():  # worker processes are told a moment later
                await publish(client, "traced", {"traceparent": traceparent(sender)})
                await asyncio.sleep(0.1)


async def publish(client: Client, value: str, headers: dict[str, bytes] | None = None) -> None:
    """To each partition, until it is acknowledged."""
    for partition in range(PARTITIONS):
        while True:
            try:
                await client.publish("orders", value.encode(), partition=partition, headers=headers)
            except LiftError:
                await asyncio.sleep(0.05)
            else:
                break


async def records(client: Client) -> list[set[str]]:
    """What is committed, by partition."""
    return [
        {(record.value or b"").decode() async for record in client.consume("orders", partition, start="earliest", until="end")}
        for partition in range(PARTITIONS)
    ]


def figures_are_those_of_the_report(node: DevNode) -> None:
    """What is kept by change in two processes is what a look at each of their partitions shows, once nothing happens any more."""

    def both() -> tuple[dict[str, float], dict[str, float]]:
        rows = status(node)["partitions"]
        led = [row for row in rows if row["role"] == "LEADER"]
        shown = {
            **{f'partitions{{role="{role.lower()}"}}': sum(row["role"] == role for row in rows) for role in ("LEADER", "FOLLOWER")},
            "log_size_bytes": sum(row["log_bytes"] for row in rows), "acks_waiting": sum(row["waiting_acks"] for row in rows),
            "partitions_under_replicated": sum(len(row["isr"]) < len(row["replicas"]) for row in led),
            "uncommitted_records": sum(row["newest_offset"] - row["high_watermark"] for row in led),
            "standby_buffer_bytes": sum(row["standby"]["held_bytes"] for row in rows),
        }  # fmt: skip
        return shown, {name: metric(node, f"liftpy_{name}") for name in shown}

    block_until(lambda: (found := both())[0] == found[1], f"figures are not those of partitions: {both()}")


async def counters_outlive_their_stream(client: Client, nodes: list[DevNode]) -> None:
    """What was counted in both processes of each node stays when the partitions go."""
    names = (
        "liftpy_ingest_records_total",
        "liftpy_ingest_bytes_total",
        "liftpy_log_flushes_total",
        "liftpy_ack_duration_seconds_count",
    )

    async def counted() -> list[float]:
        return [await asyncio.to_thread(metric, node, name) for node in nodes for name in names]

    await client.create_stream("gone", "gone", partitions=PARTITIONS, replicas=3)
    for partition in range(PARTITIONS):
        await client.publish("gone", b"x", partition=partition)
    before = await counted()
    assert sum(before[:: len(names)]) == PARTITIONS * (EACH + 1)
    await client.admin.delete_stream("gone")
    for node in nodes:
        await asyncio.to_thread(
            block_until, lambda node=node: len(status(node)["partitions"]) == PARTITIONS, "its partitions stay"
        )
    after = await counted()
    assert all(now >= then for now, then in zip(after, before, strict=True)), (before, after)
    assert sum(after[:: len(names)]) == PARTITIONS * (EACH + 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3, settings={**QUICK, "LIFTPY_WORKERS": "2"}, on_line=show) as running:
        yield running


async def test_cluster_of_nodes_with_two_processes_each_stores_and_returns_all_records(cluster: DevCluster) -> None:
    client = await connect([cluster.nats_url])
    try:
        await client.create_stream("orders", "orders", partitions=PARTITIONS, replicas=3)
        for number in range(EACH):
            await publish(client, f"v{number}")
        expected = {f"v{number}" for number in range(EACH)}
        assert await records(client) == [expected] * PARTITIONS
        nodes = list(cluster.nodes.values())
        for node in nodes:
            told = await asyncio.to_thread(status, node)
            assert [row["partition"] for row in told["partitions"]] == list(range(PARTITIONS))
            assert [(one["worker"], one["partitions"]) for one in told["workers"]] == [(0, 2), (1, 2)], "replicas in both"
            assert told["nats"]["connected"]
        led = [await asyncio.to_thread(metric, node, "liftpy_ingest_records_total") for node in nodes]
        assert sum(led) == PARTITIONS * EACH, "both processes' counts"
        await asyncio.to_thread(
            block_until, lambda: full_isrs_in_history(nodes[0]) == PARTITIONS, "the plots lack partitions of worker processes"
        )
        await counters_outlive_their_stream(client, nodes)
        for node in nodes:
            await asyncio.to_thread(figures_are_those_of_the_report, node)

        victim = cluster.nodes["n1"]
        first, child = victim.pid, await asyncio.to_thread(worker_pid, victim)
        os.kill(child, signal.SIGKILL)
        await asyncio.to_thread(block_until, lambda: not victim.running, "a node outlives its worker")
        assert "exit code 1" in victim.end_reason
        assert is_gone(first)
        await publish(client, "while it was down")
        victim.start()
        await asyncio.to_thread(victim.wait_ready)

        still = cluster.nodes["n2"]
        child = await asyncio.to_thread(worker_pid, still)
        os.kill(child, signal.SIGSTOP)
        await publish(client, "while one stood still")  # others lead what it led
        await asyncio.to_thread(block_until, lambda: not still.running, "a node outlives the silence of its worker")
        assert is_gone(child)
        still.start()
        await asyncio.to_thread(still.wait_ready)
        expected |= {"while it was down", "while one stood still"}
        assert await records(client) == [expected] * PARTITIONS
        for node in nodes:  # others lead by now, ISRs have shrunk and grown
            await asyncio.to_thread(figures_are_those_of_the_report, node)
    finally:
        await client.close()


@pytest.mark.long
async def test_node_with_two_processes_has_all_records_after_a_kill_and_with_other_worker_counts(tmp_path: Path) -> None:
    file = tmp_path / "n1.toml"
    file.write_text("")
    with DevCluster(1, settings={**QUICK, "LIFTPY_WORKERS": "2"}, on_line=show) as running:
        node = running.nodes["n1"]
        node._command += ["--config", str(file)]
        client = await connect([running.nats_url])
        try:
            await client.create_stream("orders", "orders", partitions=PARTITIONS)
            await publish(client, "first")
            child = await asyncio.to_thread(worker_pid, node)
            node.send(signal.SIGKILL)
            await asyncio.to_thread(block_until, lambda: not node.running, "it was killed")
            for count in ("1", "3"):
                node._environment["LIFTPY_WORKERS"] = count
                node.start()  # at once: the lock of a worker that is about to end is waited for
                await asyncio.to_thread(node.wait_ready)
                assert is_gone(child)
                await publish(client, f"with {count}")
                if count == "1":
                    assert await asyncio.to_thread(node.terminate) == 0
            assert await records(client) == [{"first", "with 1", "with 3"}] * PARTITIONS
            assert len((await asyncio.to_thread(status, node))["workers"]) == 3
            file.write_text('metrics_streams = ["orders"]\nrack = "b"')
            assert await client.admin.reload_settings("n1") == {"applied": ["metrics_streams"], "wait": ["rack"]}
            await publish(client, "once more")
            labelled = lambda: metric(node, 'liftpy_ingest_records_total{stream="orders"}')  # noqa: E731
            await asyncio.to_thread(block_until, lambda: labelled() > 0, "all processes have read the settings again")
            assert labelled() == await asyncio.to_thread(metric, node, "liftpy_ingest_records_total")
            with Collector() as collector:
                await traces_are_switched(client, file.write_text, collector)
            file.write_text("metrics_streams = []\nrack = 1.5\nnonsense = 1")
            assert "nonsense" in (await client.admin.reload_settings("n1"))["error"]
            assert await asyncio.to_thread(node.terminate) == 0
            said = json.loads((running.data / "n1" / "node").read_bytes().partition(b"\n")[2])
            assert said["clean_incarnation"] == said["incarnation"] == 3
        finally:
            await client.close()
