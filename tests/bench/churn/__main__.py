"""Readers and publishers that come and go: ``python -m tests.bench.churn [--seconds S] [--short]``; exit code 1 if something grows.

One process, one client that stays, three real nodes. Every second consumers are opened and left by break, by a cancelled wait, by an
exception, by dropping them; publishers with messages in flight are closed or cancelled; whole clients connect and close, on connections
of their own and on one that is shared; requests are broken off. Then tasks, descriptors, subscriptions and callbacks must be back
where they were at the beginning of each look, and memory must not grow over the second half of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from nats.aio.client import Client as NatsConnection

from liftpy.client import Client, PublishOptions, ReadOptions, connect
from liftpy.errors import LiftError
from liftpy.nats.transport import open_connection
from sidecar.dev.cluster import DevCluster

STREAM = "churn"
_GROWTH_BYTES = 24 * 1024 * 1024
"""What memory may grow by between the first look and the last: an allocator's moods, no leak of every second."""


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _read(client: Client, how: int, rng: random.Random) -> None:
    consumer = client.consume(STREAM, start="earliest" if how % 2 else "latest", options=ReadOptions(wait_s=0.3))
    left = rng.randrange(1, 40)
    async for _ in consumer.batches() if how % 3 else consumer.records():
        left -= 1
        if left <= 0:
            if how % 5 == 0:
                raise LookupError
            break
    if how % 7 == 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(anext(aiter(client.consume(STREAM, start="new"))), 0.05)


async def _write(client: Client, how: int, rng: random.Random) -> None:
    publisher = await client.publisher(STREAM, options=PublishOptions(window=16))
    try:
        for _ in range(rng.randrange(1, 60)):
            await publisher.send(bytes(rng.randrange(2000)))
        if how % 2:
            await publisher.flush()
    finally:
        await publisher.close()


async def _visit(url: str, shared: NatsConnection, how: int, rng: random.Random) -> None:
    async with await connect(shared if how % 2 else url) as client:
        await client.bounds(STREAM)
        await client.publish(STREAM, b"visit")
        await _read(client, how, rng)


async def _broken_off(work: Any, after_s: float) -> None:
    with contextlib.suppress(LiftError, LookupError, TimeoutError):
        async with asyncio.timeout(after_s):
            await work


def _where(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    return f" at {stack[-1].f_code.co_qualname}:{stack[-1].f_lineno}" if stack else ""


def _standing(client: Client, shared: NatsConnection) -> dict[str, int]:
    transport = client._transport
    own = transport.connection
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "subscriptions": len(own._subs) + len(shared._subs),
        "requests": transport.waiting_count,
        "callbacks": len(transport._on_close) + len(transport._on_denial) + len(shared._ps.denials),
    }


async def _settled(client: Client, shared: NatsConnection, before: dict[str, int]) -> dict[str, int]:
    """How things stand when nothing moves any more, or after 5 s."""
    give_up = time.monotonic() + 5
    while (now := _standing(client, shared)) != before and time.monotonic() < give_up:
        await asyncio.sleep(0.02)
    return now


async def churn(cluster: DevCluster, seconds: float, rng: random.Random) -> list[str]:
    """Run for ``seconds``; return what has grown."""
    grown: list[str] = []
    shared = await open_connection(cluster.nats_url, name="shared")
    async with await connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, "data.churn")
        for number in range(50):
            await client.publish(STREAM, b"%d" % number)
        async with await connect(shared) as first:  # so that the shared connection has what it keeps
            await first.bounds(STREAM)
        before = await _settled(client, shared, {})
        memory: list[int] = []
        rounds, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            works: list[Any] = [_read(client, rounds + i, rng) for i in range(6)]
            works += [_write(client, rounds + i, rng) for i in range(4)]
            works += [_visit(cluster.nats_url, shared, rounds + i, rng) for i in range(2)]
            async with asyncio.timeout(20):  # nothing that is broken off may hang
                await asyncio.gather(*(_broken_off(work, rng.choice((0.002, 0.02, 0.1, 0.5, 1.0))) for work in works))
            rounds += 1
            if rounds % 10 == 0 or time.monotonic() >= end:
                now = await _settled(client, shared, before)
                grown += [f"round {rounds}: {name} {before[name]} -> {now[name]}" for name in now if now[name] > before[name]]
                if now["tasks"] > before["tasks"]:
                    grown.append(", ".join(sorted(task.get_name() + _where(task) for task in asyncio.all_tasks())))
                gc.collect()
                memory.append(rss_bytes())
        second_half = memory[len(memory) // 2 :]
        if second_half[-1] - second_half[0] > _GROWTH_BYTES:
            grown.append(f"memory {second_half[0] >> 20} -> {second_half[-1] >> 20} MiB over the second half")
        shown = [size >> 20 for size in memory][:: max(1, len(memory) // 10)]
        print(f"{rounds} rounds of 12 in {seconds:.0f} s, began with {before}; memory over time: {shown} MiB")
    await shared.close()
    return grown


def main() -> None:
    """Churn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--short", action="store_true", help="four seconds")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with DevCluster(3) as cluster:
        grown = asyncio.run(churn(cluster, 4.0 if given.short else given.seconds, random.Random(given.seed)))
    print(*grown, sep="\n", end="\n" if grown else "")
    sys.exit(1 if grown else 0)


if __name__ == "__main__":
    main()
