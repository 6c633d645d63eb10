"""``python -m tests.bench.page [--rounds N] [--slice SECONDS]``: what eight viewers of the page cost three nodes, and a sample.

Slices with and without the eight come in turns, in the order a b b a, on one cluster: throughput of 128 publishers that wait for their
acks, and the latency of acks at a steady rate that the machine bears. Shown are the medians of the slices and of the pairs' quotients.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from statistics import median
from typing import Any

from liftpy.client import Client, connect
from liftpy.history import History
from sidecar.dev.cluster import DevCluster
from sidecar.status.sampler import Sampler
from tests.unit.node.test_metrics import a_reporter, a_worker

PUBLISHERS = 128
STEADY_PER_S = 400
VIEWERS = 8
PARTITIONS = 6


def sample_us(count: int) -> float:
    """Of a node with so many led partitions: the median of a sample, all its slices together."""
    now_s, took = [5000.0], []
    sampler = Sampler(History(), a_reporter([a_worker(partition=n) for n in range(count)]), lambda: now_s[0], lambda: now_s[0])
    for _ in range(200):
        now_s[0] += 1
        began = time.perf_counter()
        list(sampler.sample())
        took.append(time.perf_counter() - began)
    return median(took) * 1e6


async def throughput(client: Client, slice_s: float) -> float:
    """Acks a second."""
    done, ends = 0, time.monotonic() + slice_s

    async def publish(partition: int) -> None:
        nonlocal done
        while time.monotonic() < ends:
            await client.publish("orders", b"x" * 200, partition=partition)
            done += 1

    await asyncio.gather(*(publish(number % PARTITIONS) for number in range(PUBLISHERS)))
    return done / slice_s


async def latency(client: Client, slice_s: float) -> float:
    """p99 of acks at a steady rate, in s."""
    took: list[float] = []

    async def publish(partition: int) -> None:
        began = time.monotonic()
        await client.publish("orders", b"x" * 200, partition=partition)
        took.append(time.monotonic() - began)

    running, began = [], time.monotonic()
    for number in range(round(slice_s * STEADY_PER_S)):
        await asyncio.sleep(max(0.0, began + number / STEADY_PER_S - time.monotonic()))
        running.append(asyncio.ensure_future(publish(number % PARTITIONS)))
    await asyncio.gather(*running)
    return sorted(took)[round(len(took) * 0.99) - 1]


async def watch(url: str, heard: list[int]) -> None:
    """One who looks, without a browser: each object is read and thrown away."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    writer.write(b"GET /api/live?view=cluster HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        while line := await reader.readline():
            heard[0] += line.startswith(b"data: ")
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def viewers(url: str, heard: list[int]) -> Any:
    """Eight of them, each of whom has heard something."""
    tasks = [asyncio.ensure_future(watch(url, heard)) for _ in range(VIEWERS)]
    before = heard[0]
    async with asyncio.timeout(30):
        while heard[0] < before + VIEWERS:
            await asyncio.sleep(0.05)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measured(cluster: DevCluster, rounds: int, slice_s: float) -> None:
    """All slices, and what comes of them."""
    url, heard = next(iter(cluster.nodes.values())).status_url, [0]
    async with connect(cluster.nats_url, cluster.namespace) as client:
        await client.create_stream("orders", "shop.orders", partitions=PARTITIONS, replicas=3)
        await throughput(client, 3.0)
        for name, measure, unit in (
            ("acks a second", throughput, 1.0),
            (f"ack p99 at {STEADY_PER_S} a second, ms", latency, 1e3),
        ):
            found: dict[bool, list[float]] = {False: [], True: []}
            for number in range(rounds):
                for watched in (False, True) if number % 2 == 0 else (True, False):
                    async with viewers(url, heard) if watched else contextlib.nullcontext():
                        found[watched].append(await measure(client, slice_s) * unit)
            quotients = [b / a for a, b in zip(found[False], found[True], strict=True)]
            least, half, most = (f"{(value - 1) * 100:+.1f} %" for value in (min(quotients), median(quotients), max(quotients)))
            print(
                f"{name}: without {median(found[False]):.1f}, with {VIEWERS} viewers {median(found[True]):.1f}; "
                f"pairs: median {half}, from {least} to {most}"
            )
    print(f"objects sent to viewers: {heard[0]}")


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--slice", type=float, default=6.0)
    given = parser.parse_args()
    for count in (3, 60, 300, 1000, 10_000):
        print(f"a sample of {count} partitions: {sample_us(count):.0f} us")
    with DevCluster(3) as cluster:
        asyncio.run(measured(cluster, given.rounds, given.slice))


if __name__ == "__main__":
    main()
