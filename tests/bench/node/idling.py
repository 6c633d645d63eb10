"""What idle coordinators of groups and queues cost: ``python -m tests.bench.node --idle N --groups [--rounds R] [--window-s S]``.

Two clusters of three nodes idle at the same time, and so under the same load; both hold a stream of N partitions, in one of them a
group and a queue were used, so that each node has coordinators. The CPU of all processes of each (nodes and nats-server) is taken
over the same windows.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from liftpy.client import Client, connect
from liftpy.config import AckPolicy
from sidecar.bench.cases import all_cpu_s
from sidecar.dev.cluster import DevCluster

STREAM = "idle"
_QUIET_S = 15.0
"""Until every follower has waited for nothing ten times."""


@dataclass(frozen=True, slots=True)
class Window:
    """CPU, of a core, of all processes of a cluster without and with coordinators over one window."""

    without: float
    groups: float

    @property
    def ratio(self) -> float:
        """What coordinators make of it; 1: nothing."""
        return self.groups / self.without


def pids(cluster: DevCluster) -> list[int]:
    """Of all processes of ``cluster``."""
    assert cluster.nats is not None
    return [cluster.nats.pid, *(node.pid for node in cluster.nodes.values())]


async def fill(client: Client, cluster: DevCluster, partitions: int) -> None:
    """The stream that idles, open on every node."""
    await client.create_stream(STREAM, STREAM, partitions=partitions)
    while min([len((await client.admin.node_status(node))["partitions"]) for node in cluster.nodes]) < partitions:
        await asyncio.sleep(0.2)


async def use_groups(client: Client, cluster: DevCluster) -> int:
    """A record that a group has read and committed and one that a queue has given and acknowledged; nobody stays. Return how many
    coordinators run then."""
    await client.publish(STREAM, b"x", ack=AckPolicy.ALL)
    async with client.group("readers", [STREAM]) as group:
        await asyncio.wait_for(anext(group.batches()), 30)
        await group.commit()
    async with client.queue(STREAM, "workers") as queue:
        for job in await queue.take(1, timeout_s=30):
            await job.ack()
    running = [len((await client.admin.node_status(node))["coordinators"]) for node in cluster.nodes]
    return sum(running)


async def windows(partitions: int, rounds: int, window_s: float, quiet_s: float = _QUIET_S) -> tuple[int, list[Window]]:
    """How many coordinators ran, and the windows."""
    with contextlib.ExitStack() as stack:
        plain, groups = (stack.enter_context(DevCluster(3)) for _ in range(2))
        async with await connect(plain.nats_url) as client:
            await fill(client, plain, partitions)
            await client.publish(STREAM, b"x", ack=AckPolicy.ALL)
        async with await connect(groups.nats_url) as client:
            await fill(client, groups, partitions)
            count = await use_groups(client, groups)
        await asyncio.sleep(quiet_s)
        both = {"without": pids(plain), "groups": pids(groups)}
        found = []
        for _ in range(rounds):
            before = {name: all_cpu_s(of) for name, of in both.items()}
            await asyncio.sleep(window_s)
            used: Mapping[str, float] = {name: (all_cpu_s(of) - before[name]) / window_s for name, of in both.items()}
            found.append(Window(used["without"], used["groups"]))
        return count, found


async def bench(partitions: int, rounds: int, window_s: float) -> None:
    """Print it."""
    count, found = await windows(partitions, rounds, window_s)
    for one in found:
        print(f"without {one.without * 100:.2f} %, with {one.groups * 100:.2f} % of a core: {one.ratio:.3f} x", flush=True)
    without, groups = (statistics.fmean(getattr(one, name) for one in found) for name in ("without", "groups"))
    print(
        f"{partitions} idle partitions, {count} coordinators on 3 nodes, {rounds} windows of {window_s:g} s, CPU of all processes:"
        f" without {without * 100:.2f} %, with {groups * 100:.2f} % of a core: {groups / without:.3f} x"
    )
