"""Throughput, ack latency and idle cost of three real nodes: ``python -m tests.bench.node [--short] [--idle PARTITIONS]``.

A publisher process writes plain ``PUB`` as fast as the nats-server takes it. The clock begins when that process is connected and is
told to go (its own start would be most of what a short run measures), and stops at the ack (ALL) of the last publish: all that came
before it is committed then, and its number tells whether any is missing. CPU is of each process, user and system, per record. With
``--idle`` instead: the CPU of nodes that hold that many idle partitions, three replicas each, over 15 s;
with ``--groups`` too, what coordinators of groups cost while they idle (``idling.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from asyncio.subprocess import PIPE

import nats

from liftpy.client import Client, connect
from liftpy.config import StreamConfig
from sidecar.bench.cases import cpu_s
from sidecar.dev.cluster import DevCluster
from tests.bench.node import idling
from tests.bench.node.publisher import BLOCK

_FEWEST_ACKS = 100
"""Fewer say little of a median."""


async def throughput(cluster: DevCluster, count: int, size_bytes: int, stored: int) -> int:
    """Print records/s until ``count`` more are committed, and the CPU per record; return how many are stored then, of ``stored``."""
    assert cluster.nats is not None
    pids = {**{name: node.pid for name, node in cluster.nodes.items()}, "nats-server": cluster.nats.pid}
    words = [sys.executable, "-m", "tests.bench.node.publisher", str(cluster.nats.port), str(count), str(size_bytes)]
    publisher = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE)
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    if not await publisher.stdout.readline():
        raise SystemExit("the publisher did not start")
    before, began = {name: cpu_s(pid) for name, pid in pids.items()}, time.perf_counter()
    publisher.stdin.write(b"go\n")
    sequence = await publisher.stdout.readline()
    took_s = time.perf_counter() - began
    if await publisher.wait() or int(sequence) - stored != count:
        raise SystemExit(
            f"{count} publishes, of which {int(sequence or stored) - stored} were stored before the last one's ack"
        )
    cost = ", ".join(f"{name} {(cpu_s(pid) - before[name]) / count * 1e6:.2f}" for name, pid in pids.items())
    rate = count / took_s
    print(f"{size_bytes:>5} B: {rate:>9,.0f} records/s, {rate * size_bytes / 1e6:.0f} MB/s committed; CPU us/record: {cost}")
    return int(sequence)


async def latency(cluster: DevCluster, count: int) -> None:
    """Print how long a publish waits for its ack (ALL), one at a time."""
    connection = await nats.connect(cluster.nats_url)
    times_ms = []
    for _ in range(count):
        began = time.perf_counter()
        await connection.request("bench", b"x" * 100, timeout=5)
        times_ms.append((time.perf_counter() - began) * 1000)
    times_ms.sort()
    print(f"ack latency (ALL, flushed on 3): p50 {times_ms[count // 2]:.2f} ms, p99 {times_ms[count * 99 // 100]:.2f} ms")
    await connection.close()


async def idle(client: Client, cluster: DevCluster, partitions: int) -> None:
    """Print what ``partitions`` idle partitions cost each node."""
    began = time.perf_counter()
    await client.create_stream("idle", "idle", partitions=partitions)
    while min([len((await client.admin.node_status(node))["partitions"]) for node in cluster.nodes]) < partitions:
        await asyncio.sleep(0.2)
    print(f"{partitions} partitions are open on every node after {time.perf_counter() - began:.1f} s")
    await asyncio.sleep(15)  # until every follower has waited for nothing ten times: the partitions are quiet then
    before, began = {name: cpu_s(node.pid) for name, node in cluster.nodes.items()}, time.perf_counter()
    await asyncio.sleep(15)
    took_s = time.perf_counter() - began
    cost = ", ".join(f"{name} {(cpu_s(node.pid) - before[name]) / took_s * 100:.1f} %" for name, node in cluster.nodes.items())
    print(f"idle, of a core: {cost}")


async def bench(partitions: int, *, scale: float = 1.0, standby: bool = False) -> None:
    """All of it; ``scale`` shortens it. ``standby``: the followers listen too."""
    with DevCluster(3) as cluster:
        async with await connect(cluster.nats_url) as client:
            if partitions:
                await idle(client, cluster, partitions)
                return
            await client.create_stream("bench", "bench", config=StreamConfig(failover_standby=standby))
            stored = 0
            for count, size_bytes in ((1_000_000, 100), (200_000, 1000), (50_000, 10_000)):
                stored = await throughput(cluster, max(int(count * scale), BLOCK), size_bytes, stored)
            await latency(cluster, max(int(500 * scale), _FEWEST_ACKS))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="little data: only shows that everything runs")
    parser.add_argument("--idle", type=int, default=0, metavar="PARTITIONS")
    parser.add_argument("--standby", action="store_true", help="the followers of the stream listen too")
    parser.add_argument(
        "--groups", action="store_true", help="with --idle: what coordinators that idle cost, beside a cluster without"
    )
    parser.add_argument("--rounds", type=int, default=6, help="windows of --groups")
    parser.add_argument("--window-s", type=float, default=15.0, help="of --groups, each")
    options = parser.parse_args()
    if options.groups:
        asyncio.run(idling.bench(max(options.idle, 1), options.rounds, options.window_s))
        return
    asyncio.run(bench(options.idle, scale=0.02 if options.short else 1.0, standby=options.standby))


if __name__ == "__main__":
    main()
