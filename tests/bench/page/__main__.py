"""``python -m tests.bench.page [--rounds N] [--slice SECONDS]``: what eight viewers of the page cost three nodes, and a sample.
``python -m tests.bench.page --partitions 1000``: pages of a stream of so many, on three nodes: how fast, how large, in a browser too.

Slices with and without the eight come in turns, in the order a b b a, on one cluster: throughput of 128 publishers that wait for their
acks, and the latency of acks at a steady rate that the machine bears. Shown are the medians of the slices and of the pairs' quotients;
and, since others' work moves both by far more than the page does, what the nodes used of the processor, for an ack and in a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import os
import shutil
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from liftpy.client import Client, connect
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.observe.history import History
from sidecar.dev.cluster import DevCluster
from sidecar.status.sampler import Sampler
from tests.bench.metrics.__main__ import Partitions
from tests.unit.status.test_metrics import a_reporter, a_worker

PUBLISHERS = 128
STEADY_PER_S = 400
VIEWERS = 8
PARTITIONS = 6


def sample_us(count: int, busy: int) -> float:
    """Of a node with so many led partitions, something having happened in ``busy``: the median CPU of a sample, all its slices."""
    now_s, took = [5000.0], []
    reporter, workers = a_reporter([]), [a_worker(partition=n) for n in range(count)]
    reporter.partitions = held = Partitions(workers)
    sampler = Sampler(History(), reporter, lambda: now_s[0], lambda: now_s[0])
    for _ in range(100):
        now_s[0] += 1
        held.counts.changed_partitions.update(workers[:busy])
        began = time.process_time()
        list(sampler.sample())
        took.append(time.process_time() - began)
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


async def watch(url: str, heard: list[int], view: str = "cluster") -> None:
    """One who looks, without a browser: each object is read and thrown away."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    writer.write(f"GET /api/live?view={view} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
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
    pids = [node.pid for node in cluster.nodes.values()]
    async with connect(cluster.nats_url, cluster.namespace) as client:
        await client.create_stream("orders", "shop.orders", partitions=PARTITIONS, replicas=3)
        compare("% of a core of the nodes, nothing published", await idle(pids, url, heard, rounds, slice_s))
        await throughput(client, 3.0)
        for name, measure, unit in (
            ("acks a second", throughput, 1.0),
            (f"ack p99 at {STEADY_PER_S} a second, ms", latency, 1e3),
        ):
            found: dict[bool, list[float]] = {False: [], True: []}
            used: dict[bool, list[float]] = {False: [], True: []}
            for number in range(rounds):
                for watched in (False, True) if number % 2 == 0 else (True, False):
                    async with viewers(url, heard) if watched else contextlib.nullcontext():
                        before_s = cpu_s(pids)
                        found[watched].append(await measure(client, slice_s) * unit)
                        acks = found[watched][-1] * slice_s if measure is throughput else STEADY_PER_S * slice_s
                        used[watched].append((cpu_s(pids) - before_s) / acks * 1e6)
            compare(name, found)
            compare("  us of CPU of the nodes an ack", used)
    print(f"objects sent to viewers: {heard[0]}")


async def idle(pids: list[int], url: str, heard: list[int], rounds: int, slice_s: float) -> dict[bool, list[float]]:
    """What the nodes use while nothing is published: in % of a core, without and with viewers."""
    used: dict[bool, list[float]] = {False: [], True: []}
    await asyncio.sleep(slice_s)
    for number in range(rounds):
        for watched in (False, True) if number % 2 == 0 else (True, False):
            async with viewers(url, heard) if watched else contextlib.nullcontext():
                before_s = cpu_s(pids)
                await asyncio.sleep(slice_s)
                used[watched].append((cpu_s(pids) - before_s) / slice_s * 100)
    return used


def compare(name: str, found: dict[bool, list[float]]) -> None:
    """Say what came without and with viewers."""
    quotients = [b / a for a, b in zip(found[False], found[True], strict=True)]
    least, half, most = (f"{(value - 1) * 100:+.1f} %" for value in (min(quotients), median(quotients), max(quotients)))
    print(
        f"{name}: without {median(found[False]):.1f}, with {VIEWERS} viewers {median(found[True]):.1f}; "
        f"pairs: median {half}, from {least} to {most}"
    )


def fetched(url: str) -> tuple[float, int]:
    """(seconds, bytes) of an answer."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        size = len(answer.read())
    return time.perf_counter() - began, size


def cpu_s(pids: list[int]) -> float:
    """Of these processes, since they began."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


async def many(cluster: DevCluster, partitions: int, look_s: float = 10.0) -> None:
    """Pages of a stream with so many partitions: first on their own, then watched by one."""
    async with connect(cluster.nats_url, cluster.namespace) as client:
        await client.create_stream("many", "shop.many", partitions=partitions, replicas=3, ready_s=0)
        async with asyncio.timeout(300):
            while any(one.status is not PartitionStatus.ONLINE for one in (await client.stream("many")).partitions):
                await asyncio.sleep(1.0)
        url = next(iter(cluster.nodes.values())).status_url
        for path in ("/stream/many", "/api/stream/many.json", "/node/n1", "/", "/events"):
            took, size = [], 0
            for _ in range(5):
                await asyncio.sleep(1.1)  # what was asked within a second is not asked again
                one_s, size = await asyncio.to_thread(fetched, url + path)
                took.append(one_s)
            print(f"{path}: {median(took) * 1e3:.0f} ms, {max(took) * 1e3:.0f} at most, {size / 1024:.0f} KiB")
        pids = [node.pid for node in cluster.nodes.values()]
        heard, used = [0], []
        for watched in (False, True, True, False):
            task = asyncio.ensure_future(watch(url, heard, "stream/many")) if watched else None
            await asyncio.sleep(2.0)
            before = cpu_s(pids)
            await asyncio.sleep(look_s)
            used.append((cpu_s(pids) - before) / look_s * 100)
            if task is not None:
                task.cancel()
        quiet, busy = (used[0] + used[3]) / 2, (used[1] + used[2]) / 2
        print(f"three nodes: {quiet:.1f} % of a core unwatched, {busy:.1f} % while one looks at the stream's page")
        await in_a_browser(f"{url}/stream/many")


async def in_a_browser(url: str) -> None:
    """How long it takes until the page is there, and until its first live figures are."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        print("left out: no chromium, or no Playwright")
        return
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page()
        for _ in range(3):
            began = time.perf_counter()
            await page.goto(url)
            there_s = time.perf_counter() - began
            while not await page.evaluate("document.getElementById('live').textContent.startsWith('live')"):
                await asyncio.sleep(0.02)
            live_s = time.perf_counter() - began
            rows = await page.evaluate("document.querySelectorAll('table[data-rows] tbody tr').length")
            print(f"in a browser: {rows} rows, there after {there_s:.2f} s, live after {live_s:.2f} s")
        await browser.close()


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--slice", type=float, default=6.0)
    given = parser.parse_args()
    if given.partitions:
        with DevCluster(3, settings={"LIFTPY_REPLICATION_EVENTS_STREAM": "true"}) as cluster:
            asyncio.run(many(cluster, given.partitions))
        return
    for count in (3, 60, 300, 1000, 10_000):
        busy = (0, count // 10, count)
        print(
            f"a sample of {count} partitions, {busy} of them busy: {', '.join(f'{sample_us(count, one):.0f}' for one in busy)} us"
        )
    with DevCluster(3) as cluster:
        asyncio.run(measured(cluster, given.rounds, given.slice))


if __name__ == "__main__":
    main()
