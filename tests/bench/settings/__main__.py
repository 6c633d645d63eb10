"""Compare settings: ``python -m tests.bench.settings [--rounds R] [--seconds S]``.

Each line is a cluster of three nodes with one setting changed. It has the latency of one message at a time, the rates of 64 and
4,000 messages in flight with acks, the CPU of the nodes per record at 4,000 in flight, the CPU of an idle cluster, and the memory
of one node. The clusters run one after the other. Figures are medians of the rounds. Run nothing else on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from liftpy.client import connect
from liftpy.config import AckPolicy, FlushPolicy, StreamConfig
from sidecar.bench.cases import all_cpu_s
from sidecar.dev.cluster import DevCluster

_STREAM = "bench"
_SIZE_BYTES = 100
_IDLE_S = 5.0


@dataclass(frozen=True)
class Case:
    """A cluster with one changed setting. ``name``: the setting. ``node``: settings of the nodes. ``stream``: those of the stream."""

    name: str
    node: Mapping[str, str] = field(default_factory=dict)
    stream: StreamConfig = field(default_factory=StreamConfig)
    replicas: int = 3


CASES = (
    Case("defaults"),
    Case("--replicas 1", replicas=1),
    Case("--ack-policy leader", stream=StreamConfig(ack_policy=AckPolicy.LEADER)),
    Case("--flush interval:100ms", stream=StreamConfig(flush=FlushPolicy.parse("interval:100ms"))),
    Case("--flush none", stream=StreamConfig(flush=FlushPolicy.parse("none"))),
    Case("--failover-standby", stream=StreamConfig(failover_standby=True)),
    Case("replication.batch_max_bytes = 64 KiB", {"LIFTPY_REPLICATION_BATCH_MAX_BYTES": str(64 * 1024)}),
    Case("workers = 2", {"LIFTPY_WORKERS": "2"}),
    Case("memory_limit_bytes = 128 MiB", {"LIFTPY_MEMORY_LIMIT_BYTES": str(128 * 1024 * 1024)}),
    Case("replication.heartbeat_interval_s = 0.5", {"LIFTPY_REPLICATION_HEARTBEAT_INTERVAL_S": "0.5"}),
)


def _publish(port: int, seconds: float, window: int) -> dict[str, float]:
    words = ["-m", "sidecar.bench.load", "publish", str(port), _STREAM, str(seconds), str(_SIZE_BYTES), str(window)]
    run = subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children."""
    own = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024
    return own + sum(map(_memory_bytes, _children(pid)))


def _children(pid: int) -> list[int]:
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for children in found for child in children]


def _family(pid: int) -> list[int]:
    return [pid, *(member for child in _children(pid) for member in _family(child))]


def measure(case: Case, seconds: float, idle_s: float = _IDLE_S) -> dict[str, float]:
    """Start a cluster with the settings of ``case``, and return its figures.

    It publishes for ``seconds`` with each window. Then it waits for ``idle_s`` seconds, and measures the idle nodes as long.
    """
    with DevCluster(3, settings=case.node) as cluster:
        assert cluster.nats is not None

        async def create() -> None:
            async with await connect(cluster.nats_url) as client:
                await client.create_stream(_STREAM, _STREAM, config=case.stream, replicas=case.replicas)

        asyncio.run(create())
        port = cluster.nats.port
        _publish(port, seconds / 2, 1000)
        one, some = _publish(port, seconds, 1), _publish(port, seconds, 64)
        nodes = [member for node in cluster.nodes.values() for member in _family(node.pid)]
        before = all_cpu_s(nodes)
        many = _publish(port, seconds, 4000)
        many_cpu_s = all_cpu_s(nodes) - before
        time.sleep(idle_s)
        before, began = all_cpu_s(nodes), time.monotonic()
        time.sleep(idle_s)
        return {
            "p50_ms": one["p50_ms"],
            "per_s_64": some["acked"] / some["took_s"],
            "per_s_4000": many["acked"] / many["took_s"],
            "cpu_us": many_cpu_s / many["acked"] * 1e6,
            "idle_percent": (all_cpu_s(nodes) - before) / (time.monotonic() - began) * 100,
            "memory_mib": max(_memory_bytes(node.pid) for node in cluster.nodes.values()) / 2**20,
        }


def rows(rounds: int, seconds: float, cases: tuple[Case, ...] = CASES) -> list[tuple[str, dict[str, float]]]:
    """Return the name of each case with the medians of its figures."""
    found: dict[str, list[dict[str, float]]] = {case.name: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            found[case.name].append(measure(case, seconds))
    return [
        (name, {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}) for name, runs in found.items()
    ]


def main() -> None:
    """Parse the options, and print the table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.settings", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each run (default: %(default)s)")
    options = parser.parse_args()
    print("| setting | one at a time, p50 | 64 in flight | 4,000 in flight | CPU per record | idle | memory of a node |")
    print("|---|---|---|---|---|---|---|")
    for name, of in rows(options.rounds, options.seconds):
        print(
            f"| `{name}` | {of['p50_ms']:.2f} ms | {of['per_s_64']:,.0f}/s | {of['per_s_4000']:,.0f}/s | {of['cpu_us']:.1f} us "
            f"| {of['idle_percent']:.1f} % | {of['memory_mib']:.0f} MiB |"
        )


if __name__ == "__main__":
    main()
