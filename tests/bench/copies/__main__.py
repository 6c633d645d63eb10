"""What a copy costs those who publish: ``python -m tests.bench.copies``; exit code 1 if p99 rises by more than half.

Four real nodes. A load at a fixed, moderate rate runs all the time, on partitions that all four hold and lead. In turns nothing else
happens, and one partition of another stream, which nobody publishes to, is moved to the node that does not hold it: its log is copied,
taken in, and deleted where it was. The time to an ack (ALL) counts from when the message is sent, and messages are sent when they are
due, whatever was answered before. Both kinds of turn are equally long; the ratio is of all rounds together, and the rounds' own are
printed beside.

Everything shares the cores of one machine, so the CPU of each process is printed as well: what a copy takes from the cores, it takes
from the load, however fast the disks are.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import nats

from liftpy.client import Client, connect
from liftpy.client.placement_plans import PlacementOptions
from liftpy.config import StreamConfig
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.subjects import data_subject
from sidecar.bench.cases import cpu_s
from sidecar.dev.cluster import DevCluster

LOAD, LOAD_SUBJECT = "load", "data.load"
BULK, BULK_SUBJECT = "bulk", "data.bulk"
NODES = ("n1", "n2", "n3", "n4")
GATE = 1.5
_LOAD_BYTES, _BULK_BYTES = 1000, 10_000
_PARTITIONS = 4
_POLL_S = 0.1
_LEAST_S = 1.0
_PATIENCE_S = 300.0


@dataclass(slots=True)
class Turn:
    """What one turn was like. ``acks_s``: times to the acks, ascending; ``cpu``: seconds of a core per second, by process."""

    took_s: float
    acks_s: list[float]
    cpu: dict[str, float]


@dataclass(slots=True)
class Kind:
    """All turns with a copy, or without."""

    turns: list[Turn] = field(default_factory=list)

    def at(self, part: float) -> float:
        """Quantile of the times to the acks, s."""
        return quantile(sorted(itertools.chain.from_iterable(turn.acks_s for turn in self.turns)), part)

    def cpu(self) -> dict[str, float]:
        """Of a core, by process: the median of the turns."""
        return {name: statistics.median(turn.cpu[name] for turn in self.turns) for name in self.turns[0].cpu}


def quantile(ascending: Sequence[float], part: float) -> float:
    """Of values in order; 0: there are none."""
    return ascending[min(len(ascending) - 1, int(part * len(ascending)))] if ascending else 0.0


class Publisher:
    """Sends at ``rate`` a second, whatever is answered; notes (when it was sent, how long the ack took)."""

    def __init__(self, url: str, rate: float) -> None:
        self._url = url
        self._period_s = 1 / rate
        self._sent: dict[int, float] = {}
        self.acked: list[tuple[float, float]] = []
        self.refused = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        connection = await nats.connect(self._url)
        inbox = connection.new_inbox()
        await connection.subscribe(f"{inbox}.*", cb=self._answered)
        subjects = [data_subject(LOAD_SUBJECT, number) for number in range(_PARTITIONS)]
        payload, due = b"x" * _LOAD_BYTES, time.monotonic()
        try:
            for number in itertools.count():
                due += self._period_s
                await asyncio.sleep(max(due - time.monotonic(), 0))
                self._sent[number] = time.monotonic()
                await connection.publish(subjects[number % _PARTITIONS], payload, reply=f"{inbox}.{number}")
        finally:
            await connection.close()

    async def _answered(self, message: Any) -> None:
        sent = self._sent.pop(int(message.subject.rpartition(".")[2]))
        if b'"seq"' in message.data:
            self.acked.append((sent, time.monotonic() - sent))
        else:
            self.refused += 1

    async def acks_s(self, begin: float, end: float) -> list[float]:
        """Times to the acks of all that was sent from ``begin`` to ``end``, ascending; waits for the last of them."""
        async with asyncio.timeout(_PATIENCE_S):
            while any(begin <= sent <= end for sent in self._sent.values()):
                await asyncio.sleep(_POLL_S)
        return sorted(took for sent, took in self.acked if begin <= sent <= end)


class Bench:
    """``go`` does all of it."""

    client: Client
    bulk: StreamImage
    publisher: Publisher

    def __init__(self, rounds: int, copy_bytes: int, rate: float, settings: dict[str, str]) -> None:
        self._rounds = rounds
        self._copy_bytes = copy_bytes
        self._rate = rate
        self._cluster = DevCluster(len(NODES), settings=settings)
        self.quiet, self.copying = Kind(), Kind()

    async def go(self) -> None:
        """The whole run."""
        try:
            await asyncio.to_thread(self._cluster.start)
            async with await connect(self._cluster.nats_url) as self.client:
                await self._open()
                self.publisher = Publisher(self._cluster.nats_url, self._rate)
                publishing = asyncio.create_task(self.publisher.run())
                await self._turn(self._wait(_LEAST_S))
                for _ in range(self._rounds):
                    self.copying.turns.append(copied := await self._turn(self._move()))
                    self.quiet.turns.append(await self._turn(self._wait(copied.took_s)))
                if publishing.done() or self.publisher.refused:
                    raise SystemExit(f"the load has ended, or was refused {self.publisher.refused} times")
                publishing.cancel()
                await asyncio.wait([publishing])
        finally:
            await asyncio.to_thread(self._cluster.stop)

    async def _open(self) -> None:
        places = tuple(
            (number, tuple(NODES[(number + turn) % len(NODES)] for turn in range(3))) for number in range(_PARTITIONS)
        )
        config = StreamConfig(min_isr=2)
        for name, subject, partitions in ((LOAD, LOAD_SUBJECT, _PARTITIONS), (BULK, BULK_SUBJECT, 1)):
            place = PlacementOptions(policy="manual", assignment=places[:partitions])
            await self.client.create_stream(name, subject, partitions=partitions, config=config, placement=place)
        async with self.client.publisher(BULK) as publisher:
            for _ in range(self._copy_bytes // _BULK_BYTES):
                await publisher.publish(b"x" * _BULK_BYTES)
            await publisher.flush()

    async def _turn(self, step: Any) -> Turn:
        assert self._cluster.nats is not None
        pids = {name: node.pid for name, node in self._cluster.nodes.items()}
        pids |= {"nats-server": self._cluster.nats.pid, "publisher": os.getpid()}
        before, began = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
        await step
        now = time.monotonic()
        cpu = {name: (cpu_s(pid) - before[name]) / (now - began) for name, pid in pids.items()}
        return Turn(now - began, await self.publisher.acks_s(began, now), cpu)

    async def _wait(self, seconds: float) -> None:
        """What is measured is this time itself; it looks at the cluster as the other kind of turn does."""
        async with asyncio.timeout(seconds + _PATIENCE_S):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await self._partition()
                await asyncio.sleep(_POLL_S)

    async def _move(self) -> None:
        """The last replica goes to the node that holds none."""
        now = await self._partition()
        spare = next(node for node in NODES if node not in now.replicas)
        await self.client.admin.reassign(await self.client.stream(BULK), 0, (*now.replicas[:2], spare))
        began = time.monotonic()
        async with asyncio.timeout(_PATIENCE_S):
            while (now := await self._partition()).target or spare not in now.replicas or time.monotonic() < began + _LEAST_S:
                await asyncio.sleep(_POLL_S)

    async def _partition(self) -> Any:
        return (await self.client.admin.describe_cluster()).image.streams[BULK].partitions[0]


def rows(bench: Bench, copy_bytes: int) -> dict[str, Any]:
    """The figures: times in ms, CPU in percent of a core."""
    found: dict[str, Any] = {}
    for name, kind in (("quiet", bench.quiet), ("copying", bench.copying)):
        quantiles = {f"p{100 * part:g}_ms": round(1000 * kind.at(part), 2) for part in (0.5, 0.99, 0.999)}
        cpu = {process: round(100 * share, 1) for process, share in kind.cpu().items()}
        found[name] = {"acks": sum(len(turn.acks_s) for turn in kind.turns), **quantiles, "cpu": cpu}
    pairs = zip(bench.quiet.turns, bench.copying.turns, strict=True)
    found["ratio"] = {
        **{f"p{100 * part:g}": round(bench.copying.at(part) / bench.quiet.at(part), 2) for part in (0.5, 0.99, 0.999)},
        "p99 of each round": [round(quantile(copy.acks_s, 0.99) / quantile(quiet.acks_s, 0.99), 2) for quiet, copy in pairs],
    }
    found["copied_mb_per_s"] = round(copy_bytes / 1e6 / statistics.median(turn.took_s for turn in bench.copying.turns), 1)
    return found


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.copies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--mb", type=float, default=200.0, help="that one copy has")
    parser.add_argument("--rate", type=float, default=300.0, help="publishes a second")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the nodes: copy_duty_cycle=0.5"
    )
    parser.add_argument("--short", action="store_true", help="little data: only shows that everything runs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rounds, mb = (1, 1.0) if given.short else (given.rounds, given.mb)
    settings = {f"LIFTPY_REPLICATION_{name.upper()}": value for name, _, value in (one.partition("=") for one in given.set)}
    copy_bytes = round(mb * 1e6)
    bench = Bench(rounds, copy_bytes, given.rate, settings)
    asyncio.run(bench.go())
    found = rows(bench, copy_bytes)
    if given.json:
        print(json.dumps(found))
    else:
        for name, figures in found.items():
            print(f"{name}: {figures}")
    return 0 if given.short or found["ratio"]["p99"] <= GATE else 1


if __name__ == "__main__":
    sys.exit(main())
