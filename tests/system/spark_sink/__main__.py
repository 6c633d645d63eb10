"""``python -m tests.system.spark_sink [--rounds 20] [--minutes M] [--seed 1]``: a streaming query is killed -9.

A producer fills a stream; the query (``query.py``: a driver, two executors, a shuffle in the plan) writes every record of it to another
one. Each round kills, while a micro-batch is written: an executor; the driver with all that it started; or an executor and then the
driver; every second round a leader of the target as well. What was killed comes back, the query from its checkpoint. Right is: the
target holds each record of the source once. Exit code 1 otherwise.

A driver whose Python worker did not start within the ten seconds that Spark has for it (a busy machine) ends; it is started again like
one that was killed, and counted. After M minutes no round begins any more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from liftpy.client import Client, ProducerOptions, connect
from liftpy.client.ending import end_tasks
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster
from tests.system.spark_driver import SparkDriver, children, kill_process, until

SOURCE, TARGET = "sink-in", "sink-out"
PARTITIONS = 3
AHEAD = 60_000
"""Records that the source has and the target has not, at most: three micro-batches."""
_TOGETHER = 500
_TOO_SLOW = "Python worker failed to connect back"
_TAIL_BYTES = 8000
_MOST_RESTARTS = 20
_EXECUTOR = "CoarseGrainedExecutorBackend"
_KINDS = ("executor", "driver", "both")


@dataclass(slots=True)
class Outcome:
    """``records``: in the source. ``lost``, ``twice``: of them, in the target. ``strange``: others there. ``kills``: what was killed,
    how often. ``batches``: commits of the query. ``repeated``: micro-batches that a killed driver had begun and not committed.
    ``rounds``: that were run; ``too_slow``: drivers that ended because the machine was."""

    records: int = 0
    lost: int = 0
    twice: int = 0
    strange: int = 0
    repeated: int = 0
    batches: int = 0
    rounds: int = 0
    too_slow: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0

    @property
    def right(self) -> bool:
        """Whether each record is there once."""
        return bool(self.records) and not (self.lost or self.twice or self.strange)


class Query(SparkDriver):
    """The driver of ``query.py``."""

    def __init__(self, url: str, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.system.spark_sink.query", url, SOURCE, TARGET, str(folder)]
        super().__init__(command, folder, folder / "checkpoint")

    @property
    def was_too_slow(self) -> bool:
        """Whether it has ended because Spark waited ten seconds for a Python worker of its own."""
        return self.ended and _TOO_SLOW in (self.folder / "spark.log").read_text(errors="replace")[-_TAIL_BYTES:]

    def executors(self) -> list[int]:
        """Their pids."""
        return [pid for pid, command in children(self.pid).items() if _EXECUTOR in command and "java" in command.split()[0]]


class Run:
    """``rounds`` rounds on a cluster of three nodes."""

    def __init__(self, cluster: DevCluster, client: Client, query: Query, seed: int) -> None:
        self._cluster = cluster
        self._client = client
        self._query = query
        self._rng = random.Random(seed)
        self._written = 0
        """In the target, as last looked at."""
        self.outcome = Outcome()
        self._stop = asyncio.Event()

    async def feed(self) -> None:
        """Numbers, each once, AHEAD of what is written, until it is told to stop."""
        options = ProducerOptions(buffer_records=5000)
        async with self._client.producer(SOURCE, id="feeder", options=options, partitioner="round-robin") as producer:
            number = 0
            while not self._stop.is_set():
                if number < self._written + AHEAD:
                    await producer.send_many([b"%d" % n for n in range(number, number + _TOGETHER)])
                    number += _TOGETHER
                await asyncio.sleep(0.02)
            await producer.flush()
            self.outcome.records = number

    async def _end(self) -> int:
        self._written = sum([(await self._client.bounds(TARGET, place)).high_watermark + 1 for place in range(PARTITIONS)])
        return self._written

    async def _goes_on(self) -> None:
        """Start the query again if the machine was too slow for it. Raises RuntimeError where it has ended otherwise."""
        if not self._query.ended:
            return
        if not self._query.was_too_slow or self.outcome.too_slow >= _MOST_RESTARTS:
            raise RuntimeError(f"the query has ended: see {self._query.folder / 'spark.log'}")
        self.outcome.too_slow += 1
        await asyncio.to_thread(self._query.kill)  # its executors
        self._query.start()

    async def _grown(self, before: int) -> None:
        """More is there than ``before``, and the target is whole."""

        async def there() -> bool:
            await self._goes_on()
            with contextlib.suppress(LiftError):
                stream = await self._client.stream(TARGET)
                return all(len(p.isr) == 3 and p.leader for p in stream.partitions) and await self._end() > before
            return False

        await until(there)

    async def strike(self, number: int) -> None:
        """One round."""
        query, kind = self._query, _KINDS[number % len(_KINDS)]
        grown = await self._end()

        async def writes() -> bool:
            """Something of a micro-batch is stored, and it is not committed."""
            nonlocal grown
            if not query.in_the_middle or (kind != "driver" and not query.executors()):
                with contextlib.suppress(LiftError):
                    grown = await self._end()
                return False
            with contextlib.suppress(LiftError):
                return await self._end() > grown
            return False

        with contextlib.suppress(TimeoutError):
            await until(writes, 120.0)
        node = None
        if number % 2:
            stream = await self._client.stream(TARGET)
            node = self._cluster.nodes[stream.partitions[number % PARTITIONS].leader]
            await asyncio.to_thread(node.kill)
            self.outcome.kills["leader"] += 1
        if kind != "driver" and (pids := query.executors()):
            kill_process(self._rng.choice(pids))
            self.outcome.kills["executor"] += 1
            await asyncio.sleep(self._rng.random() * 0.5)
        if kind != "executor":
            self.outcome.repeated += query.in_the_middle
            await asyncio.to_thread(query.kill)
            self.outcome.kills["driver"] += 1
            query.start()
        before = await self._end_or(grown)
        if node is not None:
            await asyncio.to_thread(node.start)
            await asyncio.to_thread(node.wait_ready)
        await self._grown(before)

    async def _end_or(self, known: int) -> int:
        with contextlib.suppress(LiftError):
            return await self._end()
        return known

    async def finish(self) -> None:
        """Everything that was fed is written; then what the target holds is counted."""
        self._stop.set()

    async def judge(self) -> None:
        """What the target holds, once it has all, or nothing more comes."""
        outcome = self.outcome

        async def all_there() -> bool:
            await self._goes_on()
            with contextlib.suppress(LiftError):
                return await self._end() >= outcome.records and not self._query.in_the_middle
            return False

        with contextlib.suppress(TimeoutError):
            await until(all_there)
        outcome.batches = len(self._query.names("commits"))
        held: Counter[int] = Counter()
        for place in range(PARTITIONS):
            async for record in self._client.consume(TARGET, place, until="end"):
                held[int(record.value or b"-1")] += 1
        outcome.lost = sum(n not in held for n in range(outcome.records))
        outcome.twice = sum(count - 1 for count in held.values())
        outcome.strange = sum(not 0 <= n < outcome.records for n in held)


async def run(rounds: int, seed: int, minutes: float = 0.0) -> Outcome:
    """All of it."""
    began = time.monotonic()
    with DevCluster(3) as cluster, tempfile.TemporaryDirectory(prefix="liftpy-sink-", ignore_cleanup_errors=True) as folder:
        query = Query(cluster.nats_url, Path(folder))
        async with connect(cluster.nats_url, cluster.namespace) as client:
            await client.create_stream(SOURCE, "data.sink.in", partitions=2)
            await client.create_stream(TARGET, "data.sink.out", partitions=PARTITIONS)
            running = Run(cluster, client, query, seed)
            feeding = asyncio.create_task(running.feed())
            query.start()
            try:
                await running._grown(0)
                for number in range(rounds):
                    if minutes and time.monotonic() > began + 60 * minutes:
                        break
                    await running.strike(number)
                    running.outcome.rounds += 1
                    kills = ", ".join(f"{count} {what}" for what, count in sorted(running.outcome.kills.items()))
                    print(f"{number + 1} of {rounds}: {await running._end_or(0)} written; killed: {kills}", flush=True)
                await running.finish()
                await feeding
                await running.judge()
            except (RuntimeError, TimeoutError):
                print((Path(folder) / "spark.log").read_text()[-6000:])
                raise
            finally:
                await asyncio.to_thread(query.kill)
                await end_tasks([feeding])
    running.outcome.took_s = time.monotonic() - began
    return running.outcome


def main() -> int:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0.0, help="After them no round begins; 0: all do.")
    given = parser.parse_args()
    outcome = asyncio.run(run(given.rounds, given.seed, given.minutes))
    print(outcome)
    print("each record once" if outcome.right else "WRONG")
    return 0 if outcome.right else 1


if __name__ == "__main__":
    sys.exit(main())
