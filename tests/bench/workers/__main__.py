"""Acked publishes a second by how many processes a node has: ``python -m tests.bench.workers [--nodes 1|3] [--workers 1,2]``.

One nats-server, a stream of PARTITIONS partitions with a replica on every node, and one publisher process for each partition, each with
WINDOW unanswered publishes. Rounds alternate between the numbers of processes; each is a new cluster. Told are medians: records a
second, microseconds of CPU that a record costs the nodes, nats-server and the publishers, and of the nodes' processes the one that is
busiest, by which the machine's cores would have it: a process is one core at most, so 1 s over its cost is what the node could serve
with a core for each of its processes and for what is beside it (``on_paper``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import urllib.request
from dataclasses import asdict, dataclass

from liftpy.client import connect
from sidecar.bench.cases import cpu_s, measured_together
from sidecar.dev.cluster import DevCluster

STREAM = "w"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one round. Costs in us of CPU for each record."""

    workers: int
    records_per_s: float
    nodes_us: float
    busiest_us: float
    nats_us: float
    publishers_us: float
    on_paper: float
    """Records a second that the busiest process could serve if it had a core of its own."""
    cores: float
    """That all of it took."""


def _pids(cluster: DevCluster) -> list[int]:
    found = []
    for node in cluster.nodes.values():
        with urllib.request.urlopen(f"{node.status_url}/status", timeout=30) as answer:
            told = json.load(answer)
        found += [one["pid"] for one in told.get("workers", ())] or [node.pid]
    return found


async def _create(cluster: DevCluster, partitions: int, nodes: int) -> None:
    client = await connect([cluster.nats_url])
    try:
        await client.create_stream(STREAM, STREAM, partitions=partitions, replicas=nodes)
        for partition in range(partitions):
            await client.publish(STREAM, b"first", partition=partition)
    finally:
        await client.close()


def measure(asked: argparse.Namespace, workers: int) -> Measured:
    """One round on a cluster of its own."""
    with DevCluster(asked.nodes, settings={"LIFTPY_WORKERS": str(workers)}) as cluster:
        asyncio.run(_create(cluster, asked.partitions, asked.nodes))
        assert cluster.nats is not None
        port, pids = cluster.nats_url.rsplit(":", 1)[1], [*_pids(cluster), cluster.nats.pid]
        subjects = [STREAM, *(f"{STREAM}.{number}" for number in range(1, asked.partitions))]
        words = [str(asked.seconds), str(asked.size), str(asked.window)]
        commands = [[sys.executable, "-m", "sidecar.bench.publisher", port, subject, *words] for subject in subjects]
        before = [cpu_s(pid) for pid in pids]
        found = measured_together(commands, None, pids)
        *nodes_s, nats_s = (cpu_s(pid) - spent for pid, spent in zip(pids, before, strict=True))
    acked, took_s = sum(one["acked"] for one in found), max(one["took_s"] for one in found)
    publishers_s = sum(one["cpu_s"] for one in found)
    us = 1e6 / acked
    return Measured(
        workers=workers,
        records_per_s=round(acked / took_s),
        nodes_us=round(sum(nodes_s) * us, 2),
        busiest_us=round(max(nodes_s) * us, 2),
        nats_us=round(nats_s * us, 2),
        publishers_us=round(publishers_s * us, 2),
        on_paper=round(acked / max(nodes_s)),
        cores=round((sum(nodes_s) + nats_s + publishers_s) / took_s, 2),
    )


def main() -> int:
    """Alternate, and tell medians."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.workers", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3))
    parser.add_argument("--workers", default="1,2", help="numbers of processes, comma separated")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--size", type=int, default=100, help="bytes")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    counts = [int(count) for count in asked.workers.split(",")]
    found: dict[int, list[Measured]] = {count: [] for count in counts}
    for number in range(asked.rounds):
        for count in counts if number % 2 == 0 else reversed(counts):
            one = measure(asked, count)
            found[count].append(one)
            print(f"round {number}: {json.dumps(asdict(one))} load {os.getloadavg()[0]:.1f}", flush=True)
    for count, rounds in found.items():
        medians = {name: statistics.median(asdict(one)[name] for one in rounds) for name in asdict(rounds[0])}
        print(f"{asked.nodes} nodes, {count} processes each: {json.dumps(medians)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
