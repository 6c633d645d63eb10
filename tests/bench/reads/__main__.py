"""How long readers wait when something is wrong: ``python -m tests.bench.reads [--short]``; exit code 1 if a gate is missed.

Three real nodes. Fresh reads, each with a Consumer of its own, while a follower is paused (it stays in the ISR's queue group for as
long as NATS holds its connection): p99. And a reader that follows, from a follower: how long records that are acknowledged have not
reached it, after its node was killed, and after the nats-server was started anew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Awaitable, Callable

from liftpy.client import BatchSlice, Client, Consumer, PublishAck, PublishOptions, connect
from liftpy.client.progress import ReadProgress
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster

GATE_S = 1.0
STREAM, SUBJECT = "reads", "data.reads"
_PERIOD_S = 0.01


async def fresh_reads(client: Client, cluster: DevCluster, count: int) -> list[float]:
    """Seconds that each of ``count`` reads from the beginning to the end took while a follower is paused."""
    partition = (await client.stream(STREAM)).partitions[0]
    paused = cluster.nodes[next(node for node in partition.isr if node != partition.leader)]
    paused.send(signal.SIGSTOP)
    took = []
    try:
        for _ in range(count):
            began = time.perf_counter()
            got = [record.offset async for record in client.consume(STREAM, until="end")]
            took.append(time.perf_counter() - began)
            if not got:
                raise SystemExit("a read got nothing")
    finally:
        paused.send(signal.SIGCONT)
    return sorted(took)


class Follower:
    """Reads on for ever, from ``node`` as long as that answers. ``delays``: (moment, how long the newest record had been committed)."""

    def __init__(self, consumer: Consumer, node: str, acked: dict[int, float]) -> None:
        self.consumer = consumer
        self.node = node
        self.delays: list[tuple[float, float]] = []
        self._acked = acked
        self._arrived = asyncio.Event()
        self.reader = consumer._reader
        self._fetch = self.reader.fetch
        self.reader.fetch = self._noted  # type: ignore[method-assign]
        self.task = asyncio.create_task(self.run())

    async def _noted(self, progress: ReadProgress) -> list[BatchSlice]:
        if not self.delays:
            self.reader.node = self.node
        found = await self._fetch(progress)
        self.node = progress.node
        return found

    async def run(self) -> None:
        """Note each arrival: how long its first record, and every one since the arrival before, had been acknowledged."""
        async for piece in self.consumer.batches():
            now = time.monotonic()
            oldest = min((self._acked.get(offset, now) for offset in piece.offsets().tolist()), default=now)
            self.delays.append((now, now - oldest))
            self._arrived.set()

    async def steady(self) -> None:
        """Wait until records come all the time."""
        while len(self.delays) < 30:
            self._arrived.clear()
            await self._arrived.wait()

    async def gap(self, since: float, observed_s: float = 2.0) -> float:
        """The longest that a committed record was not there, from ``since`` on, looked at for ``observed_s`` after the next one."""
        try:
            async with asyncio.timeout(30):
                while self.delays[-1][0] <= since + 0.1:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return 30.0
        await asyncio.sleep(observed_s)  # not for a condition: what is measured is what happens meanwhile
        return max(delay for moment, delay in self.delays if moment > since)


async def _publish(client: Client, acked: dict[int, float]) -> None:
    def answered(future: asyncio.Future[PublishAck]) -> None:
        if not future.cancelled() and future.exception() is None:
            acked[future.result().offset] = time.monotonic()

    publisher = await client.publisher(STREAM, options=PublishOptions(timeout_s=1.0))
    while True:
        with contextlib.suppress(LiftError):
            (await publisher.send(b"x" * 100)).add_done_callback(answered)
        await asyncio.sleep(_PERIOD_S)


async def _with_follower(
    cluster: DevCluster, strike: Callable[[DevCluster, str], Awaitable[float]], heal: Callable[[DevCluster, str], None]
) -> float:
    async with await connect(cluster.nats_url) as client, await connect(cluster.nats_url) as reading:
        acked: dict[int, float] = {}
        publishing = asyncio.create_task(_publish(client, acked))
        partition = (await client.stream(STREAM)).partitions[0]
        wanted = next(node for node in partition.isr if node != partition.leader)
        follower = Follower(reading.consume(STREAM, start="new"), wanted, acked)
        async with asyncio.timeout(30):
            await follower.steady()
        node = follower.node
        gap_s = await follower.gap(await strike(cluster, node))
        for task in (publishing, follower.task):
            task.cancel()
        await asyncio.gather(publishing, follower.task, return_exceptions=True)
        await asyncio.to_thread(heal, cluster, node)
        while len((await client.stream(STREAM)).partitions[0].isr) < len(cluster.nodes):
            await asyncio.sleep(0.05)
        return gap_s


async def _kill(cluster: DevCluster, node: str) -> float:
    began = time.monotonic()
    await asyncio.to_thread(cluster.nodes[node].kill)
    return began


def _start(cluster: DevCluster, node: str) -> None:
    cluster.nodes[node].start()
    cluster.nodes[node].wait_ready()


async def _restart_nats(cluster: DevCluster, node: str) -> float:
    assert cluster.nats is not None
    await asyncio.to_thread(cluster.nats.restart)
    return time.monotonic()


async def measure(short: bool, gate_s: float) -> bool:
    """Print the figures; return whether every gate is met."""
    reads, rounds = (25, 1) if short else (100, 5)
    with DevCluster(3) as cluster:
        async with await connect(cluster.nats_url) as client:
            await client.create_stream(STREAM, SUBJECT)
            for number in range(50):
                await client.publish(STREAM, b"%d" % number)
            took = await fresh_reads(client, cluster, reads)
        p99_s = took[min(len(took) - 1, len(took) * 99 // 100)]
        print(f"fresh reads, one follower paused: {reads} reads, p50 {took[len(took) // 2]:.3f} s, p99 {p99_s:.3f} s")
        killed = [await _with_follower(cluster, _kill, _start) for _ in range(rounds)]
        print(f"a reader's gap after its follower was killed: {', '.join(f'{gap:.2f}' for gap in killed)} s")
        restarted = [await _with_follower(cluster, _restart_nats, lambda *_: None) for _ in range(rounds)]
        print(f"a reader's gap after the nats-server came back: {', '.join(f'{gap:.2f}' for gap in restarted)} s")
    return max(p99_s, *killed, *restarted) <= gate_s


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer reads, one round of each")
    parser.add_argument(
        "--gate", type=float, default=GATE_S, metavar="S", help="what nobody may wait longer than  [%(default)s]"
    )
    given = parser.parse_args()
    sys.exit(0 if asyncio.run(measure(given.short, given.gate)) else 1)


if __name__ == "__main__":
    main()
