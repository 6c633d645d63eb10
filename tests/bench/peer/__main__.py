"""liftpy beside JetStream: ``python -m tests.bench.peer [--clients] [--seconds S] [--rounds N] [--json]``.

Three systems in turn, each with three replicas on this machine: liftpy as it comes (flushed on the in-sync replicas before the ack),
JetStream with ``sync_interval: always`` (the same promise) and JetStream as it comes (written, flushed within two minutes: a power
cut may take what was acknowledged). Publishes with an ack for each, by one publisher that is the same for all; then a replay from
the first record on, record by record, with each system's own Python client. Beside them liftpy's producer, whose counterpart is
JetStream's fastest case of that size; and single messages through a client library, an ack for each, whose counterpart is nats-py's
``js.publish_async``: what they cost the client's process, and all processes together. Figures are medians of the rounds; the ratio
is to JetStream with the same promise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import nats.js.api

from liftpy.client import connect
from sidecar.dev.cluster import DevCluster
from tests.bench.node.__main__ import cpu_s
from tests.bench.peer.jetstream import JetStreamCluster

CASES = ((100, 1), (100, 64), (100, 4000), (1000, 4000))
"""(bytes of a message, messages that may be unanswered)"""
OURS, SAFE, AS_IT_COMES = "liftpy", "JetStream, sync always", "JetStream as it comes"
REPLAY = "replay"
PRODUCERS = tuple((size_bytes, how) for size_bytes in (100, 1000) for how in ("one", "many"))
"""(bytes of a record, one by one or many at a time)"""
CLIENTS = {OURS: ("publisher", "ids", "gather"), SAFE: ("nats-py",), AS_IT_COMES: ("nats-py",)}
"""What ``tests.bench.peer.client`` is to do with each system."""
_CLIENT_CASE = (100, 4000)
_FETCH = 1000

Replay = Callable[[str, float], Awaitable[int]]
"""(url, seconds) -> records read of ``bench``"""


async def replay_ours(url: str, seconds: float) -> int:
    """The client's records, one by one."""
    count, end = 0, time.perf_counter() + seconds
    async with await connect(url) as client:
        async for _ in client.consume("bench", start="earliest", until="end"):
            count += 1
            if not count % _FETCH and time.perf_counter() >= end:
                break
    return count


async def replay_jetstream(url: str, seconds: float) -> int:
    """A pull consumer's messages, one by one."""
    count, end = 0, time.perf_counter() + seconds
    connection = await nats.connect(url)
    stream = connection.jetstream()
    stored = (await stream.stream_info("bench")).state.messages
    config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
    subscription = await stream.pull_subscribe("bench", stream="bench", config=config)
    while count < stored and time.perf_counter() < end:
        for _ in await subscription.fetch(min(_FETCH, stored - count), timeout=5):
            count += 1
    await connection.close()
    return count


async def publisher(port: int, seconds: float, size_bytes: int, window: int) -> dict[str, float]:
    """One run of the publisher, in a process of its own."""
    words = [sys.executable, "-m", "tests.bench.peer.publisher", str(port), "bench", str(seconds), str(size_bytes), str(window)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    return await _found(process)


async def _found(process: asyncio.subprocess.Process) -> dict[str, float]:
    printed, _ = await process.communicate()
    if process.returncode:
        raise SystemExit("the publisher failed")
    found: dict[str, float] = json.loads(printed)
    return found


async def producers(port: int, seconds: float) -> list[dict[str, Any]]:
    """Our producer, in a process of its own."""
    found = []
    for size_bytes, how in PRODUCERS:
        words = [sys.executable, "-m", "tests.bench.peer.producer", str(port), "bench", str(seconds), str(size_bytes), how]
        run = await _found(await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE))
        figures = {"records_per_s": run["acked"] / run["took_s"], "cpu_us": run["cpu_s"] / run["acked"] * 1e6}
        found.append({"system": OURS, "case": producer_case(size_bytes, how), **figures})
    return found


async def clients(system: str, port: int, seconds: float, pids: list[int]) -> list[dict[str, Any]]:
    """Single messages through a client library, in a process of its own. ``pids``: of the system's processes."""
    found, (size_bytes, window) = [], _CLIENT_CASE
    for how in CLIENTS[system]:
        words = [
            sys.executable,
            "-m",
            "tests.bench.peer.client",
            str(port),
            "bench",
            str(seconds),
            str(size_bytes),
            str(window),
            how,
        ]
        before = sum(map(cpu_s, pids))
        run = await _found(await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE))
        all_s = run["cpu_s"] + sum(map(cpu_s, pids)) - before
        figures = {"records_per_s": run["acked"] / run["took_s"], "cpu_us": run["cpu_s"] / run["acked"] * 1e6}
        figures |= {"all_cpu_us": all_s / run["acked"] * 1e6, "grown_mb": run["grown_mb"]}
        found.append({"system": system, "case": client_case(how), **figures})
    return found


def client_case(how: str) -> str:
    """Its name."""
    return f"{_CLIENT_CASE[0]} B, {how}"


def producer_case(size_bytes: int, how: str) -> str:
    """Its name."""
    return f"{size_bytes} B, producer, {how}"


async def cases(system: str, port: int, seconds: float, replay: Replay) -> list[dict[str, Any]]:
    """All cases of one system."""
    await publisher(port, min(seconds, 1.0), 100, 4000)  # warm; the replay reads this first
    found = []
    for size_bytes, window in CASES:
        run = await publisher(port, seconds, size_bytes, window)
        figures = {"records_per_s": run["acked"] / run["took_s"], **{k: v for k, v in run.items() if k.endswith("_ms")}}
        found.append({"system": system, "case": f"{size_bytes} B, window {window}", **figures})
    began = time.perf_counter()
    count = await replay(f"nats://127.0.0.1:{port}", seconds)
    found.append({"system": system, "case": REPLAY, "records_per_s": count / (time.perf_counter() - began)})
    return found


async def rows(seconds: float, rounds: int, *, only_clients: bool = False) -> list[dict[str, Any]]:
    """The median of each figure: one row for each system and case."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        found = []
        with DevCluster(3) as ours:
            assert ours.nats is not None
            async with await connect(ours.nats_url) as client:
                await client.create_stream("bench", "bench")
            if not only_clients:
                found += await cases(OURS, ours.nats.port, seconds, replay_ours)
                found += await producers(ours.nats.port, seconds)
            pids = [ours.nats.pid, *(node.pid for node in ours.nodes.values())]
            found += await clients(OURS, ours.nats.port, seconds, pids)
        for system in (SAFE, AS_IT_COMES):
            with JetStreamCluster(sync_always=system == SAFE) as peer:
                await peer.create("bench", "bench")
                if not only_clients:
                    found += await cases(system, peer.port, seconds, replay_jetstream)
                found += await clients(system, peer.port, seconds, peer.pids)
        for row in found:
            runs.setdefault((row["system"], row["case"]), []).append(row)
    return [
        {k: v if k in ("system", "case") else statistics.median(row[k] for row in same) for k, v in same[0].items()}
        for same in runs.values()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", action="store_true", help="single messages through a client library, and nothing else")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    found = asyncio.run(rows(given.seconds, given.rounds, only_clients=given.clients))
    if given.json:
        print(json.dumps(found))
        return
    peers = {row["case"]: row["records_per_s"] for row in found if row["system"] == SAFE}
    theirs = peers[client_case("nats-py")]
    peers |= {client_case(how): theirs for how in CLIENTS[OURS]}
    for size_bytes, how in () if given.clients else PRODUCERS:
        of_size = [rate for case, rate in peers.items() if case.startswith(f"{size_bytes} B, window")]
        peers[producer_case(size_bytes, how)] = max(of_size)
    for row in found:
        ratio = row["records_per_s"] / peers[row["case"]]
        latency = f"  p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms" if "p50_ms" in row else ""
        if "cpu_us" in row:
            latency = f"  {row['cpu_us']:.2f} us of the client's CPU each, {1e6 / row['cpu_us']:,.0f} a second and core"
        if "all_cpu_us" in row:
            latency += f"; {row['all_cpu_us']:.2f} us of all processes'; its memory grew by {row['grown_mb']:.1f} MB"
        print(f"{row['system']:<23} {row['case']:<20} {row['records_per_s']:>9,.0f} records/s {ratio:>6.2f} x {SAFE}{latency}")


if __name__ == "__main__":
    main()
