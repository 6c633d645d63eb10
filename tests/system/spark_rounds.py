"""What rounds that kill a Spark query have in common: numbers that are fed, leaders that die, the verdict on what came out."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from liftpy.client import Client, ProducerOptions, connect
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from sidecar.dev.cluster import DevCluster
from tests.system.spark_driver import SparkDriver, until

AHEAD = 60_000
"""Records that the source has and the query has not written, at most: three micro-batches."""
ROUND_S = 600.0
"""A round that takes longer has failed; a busy machine takes minutes to start a driver."""
_TOGETHER = 500
_TAIL = 6000


@dataclass(slots=True)
class Outcome:
    """``records``: that were fed. ``lost``, ``twice``: of them, in what came out. ``strange``: others there. ``kills``: what was
    killed, how often. ``commits``: of the query. ``repeated``: micro-batches that a killed driver had begun and not committed.
    ``rounds``: that were run. ``too_slow``: drivers that ended because the machine was."""

    records: int = 0
    lost: int = 0
    twice: int = 0
    strange: int = 0
    commits: int = 0
    repeated: int = 0
    rounds: int = 0
    too_slow: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0

    def count(self, held: Counter[int]) -> None:
        """Take the verdict on the numbers that came out, and how often each did."""
        self.lost += sum(n not in held for n in range(self.records))
        self.twice += sum(count - 1 for count in held.values())
        self.strange += sum(not 0 <= n < self.records for n in held)

    @property
    def right(self) -> bool:
        """Whether each record is there once."""
        return bool(self.records) and not (self.lost or self.twice or self.strange)


class Rounds:
    """``source``: the stream that is fed. ``driver``: of the query. ``written``: how many records came out."""

    def __init__(
        self,
        cluster: DevCluster,
        client: Client,
        driver: SparkDriver,
        source: str,
        outcome: Outcome,
        written: Callable[[], Awaitable[int]],
    ) -> None:
        self.cluster = cluster
        self.client = client
        self.driver = driver
        self.outcome = outcome
        self._source = source
        self._written = written
        self._stop = asyncio.Event()
        self.reached = 0
        """Records that came out, as last looked at."""

    async def feed(self) -> None:
        """Numbers, each once, AHEAD of what came out, until it is told to stop."""
        options = ProducerOptions(buffer_records=5000)
        async with self.client.producer(self._source, id="feeder", options=options, partitioner="round-robin") as producer:
            number = 0
            while not self._stop.is_set():
                if number < self.reached + AHEAD:
                    await producer.send_many([b"%d" % n for n in range(number, number + _TOGETHER)])
                    number += _TOGETHER
                    await asyncio.sleep(0.02)
                else:
                    await self.look()
                    await asyncio.sleep(0.2)
            await producer.flush()
            self.outcome.records = number

    async def look(self) -> int:
        """How many records came out; as at the last look while that can't be said."""
        with contextlib.suppress(LiftError):
            self.reached = await self._written()
        return self.reached

    async def grown(self, before: int, stream: str) -> None:
        """Wait until more than ``before`` came out, and the stream is whole."""

        async def holds() -> bool:
            return await self.whole(stream) and await self.look() > before

        await self.wait(holds)

    async def kill_leader(self, stream: str, partition: int) -> Any:
        """Its node, dead."""
        known = await self.client.stream(stream)
        node = self.cluster.nodes[known.partitions[partition].leader]
        await asyncio.to_thread(node.kill)
        self.outcome.kills["leader"] += 1
        return node

    async def kill_driver(self) -> None:
        """And begin it again."""
        self.outcome.repeated += self.driver.in_the_middle
        await asyncio.to_thread(self.driver.kill)
        self.outcome.kills["driver"] += 1

    async def whole(self, stream: str) -> bool:
        """Whether all replicas of the stream are in sync."""
        with contextlib.suppress(LiftError):
            return all(len(p.isr) == 3 and p.leader for p in (await self.client.stream(stream)).partitions)
        return False

    async def wait(self, condition: Callable[[], Awaitable[bool]], timeout_s: float = ROUND_S) -> None:
        """Until it holds. A driver that had no time to start is started again; one that has ended otherwise is a RuntimeError."""

        async def holds() -> bool:
            self.outcome.too_slow += await asyncio.to_thread(self.driver.goes_on)
            return await condition()

        await until(holds, timeout_s)

    async def began(self) -> bool:
        """Whether anything came out."""
        return await self.look() > 0

    async def all_there(self) -> bool:
        """Whether all that was fed came out."""
        return await self.look() >= self.outcome.records and not self.driver.in_the_middle

    async def state(self, stream: str) -> str:
        """What is there, for who looks at a round that did not end."""
        found = f"{self.reached} came out, {self.driver.state}"
        with contextlib.suppress(LiftError):
            places = (await self.client.stream(stream)).partitions
            found += f"; {stream}: " + ", ".join(f"leader {place.leader or 'none'} ISR {len(place.isr)}" for place in places)
        return found

    def stop_feeding(self) -> None:
        """No more records."""
        self._stop.set()


class Struck(Protocol):
    """Rounds of one kind of query."""

    rounds: Rounds

    async def strike(self, number: int) -> None:
        """One round."""

    async def judge(self) -> None:
        """What came out, into the outcome."""


Begun = Callable[[DevCluster, Client, Path], Awaitable[Struck]]


async def run(begin: Begun, rounds: int, minutes: float) -> Outcome:
    """Run all of it. ``begin``: makes the streams."""
    began = time.monotonic()
    with DevCluster(3) as cluster, tempfile.TemporaryDirectory(prefix="liftpy-rounds-", ignore_cleanup_errors=True) as name:
        async with connect(cluster.nats_url, cluster.namespace) as client:
            struck = await begin(cluster, client, Path(name))
            common = struck.rounds
            feeding = asyncio.create_task(common.feed())
            try:
                await asyncio.to_thread(common.driver.start)
                await common.wait(common.began)
                for number in range(rounds):
                    if minutes and time.monotonic() > began + 60 * minutes:
                        break
                    await asyncio.wait_for(struck.strike(number), ROUND_S)
                    common.outcome.rounds += 1
                    kills = ", ".join(f"{count} {what}" for what, count in sorted(common.outcome.kills.items()))
                    passed_s = time.monotonic() - began
                    print(f"{number + 1} of {rounds}, {passed_s:.0f} s: {common.reached} out; killed: {kills}", flush=True)
                common.stop_feeding()
                await feeding
                await common.wait(common.all_there)
                await asyncio.to_thread(common.driver.kill)
                common.outcome.commits = len(common.driver.names("commits"))
                await struck.judge()
            except (RuntimeError, TimeoutError):
                print(common.driver.log_path.read_text(errors="replace")[-_TAIL:])
                for known in await client.admin.list_streams():
                    print(await common.state(known.name))
                raise
            finally:
                await asyncio.to_thread(common.driver.kill)
                await end_tasks([feeding])
    common.outcome.took_s = time.monotonic() - began
    return common.outcome


def parser(text: str | None) -> argparse.ArgumentParser:
    """Of the options that all take."""
    made = argparse.ArgumentParser(description=text)
    made.add_argument("--rounds", type=int, default=20)
    made.add_argument("--minutes", type=float, default=0.0, help="After them no round begins; 0: all do.")
    made.add_argument("--seed", type=int, default=1)
    return made


def verdict(outcome: Outcome) -> int:
    """Printed; the exit code."""
    print(outcome)
    print("each record once" if outcome.right else "WRONG")
    sys.stdout.flush()
    return 0 if outcome.right else 1
