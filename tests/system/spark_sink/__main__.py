"""``python -m tests.system.spark_sink [--rounds 20] [--minutes M] [--seed 1]``: a streaming query is killed -9.

A producer fills a stream; the query (``query.py``: a driver, two executors, a shuffle in the plan) writes every record of it to another
one. Each round kills, while a micro-batch is written: an executor; the driver with all that it started; or an executor and then the
driver; every second round a leader of the target as well. What was killed comes back, the query from its checkpoint. Right is: the
target holds each record of the source once. Exit code 1 otherwise.

A driver whose Python worker did not start within the ten seconds that Spark has for it (a busy machine) ends; it is started again like
one that was killed, and counted. After M minutes no round begins any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from pathlib import Path

from liftpy.client import Client
from sidecar.dev.cluster import DevCluster
from tests.system import spark_rounds
from tests.system.spark_driver import SparkDriver, children, kill_process, until
from tests.system.spark_rounds import Outcome, Rounds

SOURCE, TARGET = "sink-in", "sink-out"
PARTITIONS = 3
_MOMENT_S = 60.0
_EXECUTOR = "CoarseGrainedExecutorBackend"
_KINDS = ("executor", "driver", "both")


class Query(SparkDriver):
    """The driver of ``query.py``."""

    def __init__(self, url: str, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.system.spark_sink.query", url, SOURCE, TARGET, str(folder)]
        super().__init__(command, folder, folder / "checkpoint")

    def executors(self) -> list[int]:
        """Their pids."""
        return [pid for pid, command in children(self.pid).items() if _EXECUTOR in command and "java" in command.split()[0]]


class Sinking:
    """Rounds of the query."""

    def __init__(self, rounds: Rounds, query: Query, seed: int) -> None:
        self.rounds = rounds
        self._query = query
        self._rng = random.Random(seed)

    async def strike(self, number: int) -> None:
        """One round."""
        query, kind, kills = self._query, _KINDS[number % len(_KINDS)], self.rounds.outcome.kills

        grown = await self.rounds.look()

        async def writes() -> bool:
            """Something of a micro-batch is stored, and it is not committed."""
            nonlocal grown
            if not query.in_the_middle or (kind != "driver" and not query.executors()):
                grown = await self.rounds.look()
                return False
            return await self.rounds.look() > grown

        with contextlib.suppress(TimeoutError):
            await until(writes, _MOMENT_S)
        node = await self.rounds.kill_leader(TARGET, number % PARTITIONS) if number % 2 else None
        if kind != "driver" and (pids := query.executors()):
            kill_process(self._rng.choice(pids))
            kills["executor"] += 1
            await asyncio.sleep(self._rng.random() * 0.5)
        if kind != "executor":
            await self.rounds.kill_driver()
            query.start()
        before = await self.rounds.look()
        if node is not None:
            await asyncio.to_thread(node.start)
            await asyncio.to_thread(node.wait_ready)
        await self.rounds.grown(before, TARGET)

    async def judge(self) -> None:
        """What the target holds."""
        held: Counter[int] = Counter()
        for place in range(PARTITIONS):
            async for record in self.rounds.client.consume(TARGET, place, until="end"):
                held[int(record.value or b"-1")] += 1
        self.rounds.outcome.count(held)


async def run(rounds: int, seed: int, minutes: float = 0.0) -> Outcome:
    """All of it."""

    async def begin(cluster: DevCluster, client: Client, folder: Path) -> Sinking:
        await client.create_stream(SOURCE, "data.sink.in", partitions=2)
        await client.create_stream(TARGET, "data.sink.out", partitions=PARTITIONS)
        query = Query(cluster.nats_url, folder)

        async def written() -> int:
            return sum([(await client.bounds(TARGET, place)).high_watermark + 1 for place in range(PARTITIONS)])

        return Sinking(Rounds(cluster, client, query, SOURCE, Outcome(), written), query, seed)

    return await spark_rounds.run(begin, rounds, minutes)


def main() -> int:
    """See the docstring above."""
    given = spark_rounds.parser(__doc__).parse_args()
    return spark_rounds.verdict(asyncio.run(run(given.rounds, given.seed, given.minutes)))


if __name__ == "__main__":
    sys.exit(main())
