"""Memory of idle partitions: ``python -m tests.bench.memory [--partitions N] [--lines N] [--processes] [--short]``.

Three nodes run in this process. They open a few partitions, then N more with three replicas each. The benchmark prints the bytes of
Python objects that each replica needs, by line of the code that allocates them, by module and by class. Memory that grows with the
number of records or readers is not part of it: the partitions are empty and idle.

With ``--processes`` it prints the resident memory of three real nodes instead, without partitions and with N.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

from liftpy.client import connect
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from sidecar.node.node import Node
from sidecar.runtime.settings import NodeSettings

NODES = ("n1", "n2", "n3")
_FIRST = 10
"""Partitions that are opened before the first look, so that what all partitions share is there already."""
_PATIENCE_S = 300.0
_ROOT = Path(__file__).parents[3]


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


async def _create(url: str, nodes: list[Node], stream: str, partitions: int, settle_s: float) -> None:
    """Create ``stream``, and wait until each of its partitions has a leader."""
    held = [node.partitions for node in nodes if node.partitions is not None]
    before = sum(len(one.led_partitions()) for one in held)
    async with await connect(url) as client, asyncio.timeout(_PATIENCE_S):
        await client.create_stream(stream, stream, partitions=partitions, ready_s=0)
        while (
            sum(len(one.led_partitions()) for one in held) < before + partitions
            or min(map(len, held)) < partitions
            or any(one.opening_count for one in held)
        ):
            await asyncio.sleep(0.1)
    await asyncio.sleep(settle_s)


def _classes() -> Counter[str]:
    """Return the objects that the garbage collector knows, by class. The function first unfreezes those that it does not examine."""
    gc.unfreeze()
    gc.collect()
    return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())


def _place(path: str) -> str:
    """``path`` relative to the checkout, or the last two parts of another path."""
    found = Path(path)
    return str(found.relative_to(_ROOT)) if found.is_relative_to(_ROOT) else "/".join(found.parts[-2:])


async def by_cause(partitions: int, lines: int, settle_s: float) -> float:
    """Print what one replica needs, by cause. Return the bytes of its Python objects."""
    replicas = partitions * len(NODES)
    with NatsServer() as server, tempfile.TemporaryDirectory() as folder:
        nodes = [Node(NodeSettings(name, Path(folder) / name, nats=(server.url,), controllers=NODES)) for name in NODES]
        await asyncio.gather(*(node.start() for node in nodes))
        await _create(server.url, nodes, "first", _FIRST, settle_s)
        classes = _classes()
        tracemalloc.start()
        await _create(server.url, nodes, "idle", partitions, settle_s)
        more = _classes()
        snapshot = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(False, __file__),))
        tracemalloc.stop()
        for node in nodes:
            node.request_stop(transfer_leaderships=False)
        await asyncio.gather(*(node.stop() for node in nodes))
    more.subtract(classes)
    found = snapshot.statistics("lineno")
    total = sum(one.size for one in found) / replicas
    for one in found[:lines]:
        frame = one.traceback[0]
        print(f"{one.size / replicas:8.0f} B {one.count / replicas:7.2f} blocks  {_place(frame.filename)}:{frame.lineno}")
    print("by module:")
    for one in snapshot.statistics("filename")[:lines]:
        print(f"{one.size / replicas:8.0f} B {one.count / replicas:7.2f} blocks  {_place(one.traceback[0].filename)}")
    print("objects by class:")
    for name, count in more.most_common(lines):
        print(f"{count / replicas:10.2f}  {name}")
    print(f"{total:,.0f} B in {sum(one.count for one in found) / replicas:,.0f} blocks per replica, {partitions} partitions")
    return total


async def of_processes(partitions: int, settle_s: float) -> None:
    """Print the resident memory of three real nodes without partitions and with ``partitions``."""
    with DevCluster(len(NODES)) as cluster:
        async with await connect(cluster.nats_url) as client, asyncio.timeout(_PATIENCE_S):
            await asyncio.sleep(settle_s)
            empty = {name: rss_bytes(node.pid) for name, node in cluster.nodes.items()}
            await client.create_stream("idle", "idle", partitions=partitions, ready_s=0)
            while min([len((await client.admin.node_status(node))["partitions"]) for node in cluster.nodes]) < partitions:
                await asyncio.sleep(0.5)
            await asyncio.sleep(settle_s)
            full = {name: rss_bytes(node.pid) for name, node in cluster.nodes.items()}
    for name, size_bytes in full.items():
        more = (size_bytes - empty[name]) / partitions
        print(
            f"{name}: empty {empty[name] / 1e6:.1f} MB, {partitions} partitions {size_bytes / 1e6:.1f} MB, {more:,.0f} B each"
        )


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description=__doc__)
    parser.add_argument("--partitions", type=int, default=0, metavar="N", help="default 200, or 1000 with --processes")
    parser.add_argument("--lines", type=int, default=40, help="rows of each table")
    parser.add_argument("--processes", action="store_true", help="resident memory of three real nodes")
    parser.add_argument("--short", action="store_true", help="few partitions: only shows that everything runs")
    options = parser.parse_args()
    settle_s = 0.5 if options.short else 12.0
    partitions = options.partitions or (20 if options.short else 1000 if options.processes else 200)
    if options.processes:
        asyncio.run(of_processes(partitions, settle_s))
    else:
        asyncio.run(by_cause(partitions, options.lines, settle_s))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
