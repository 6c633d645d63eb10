"""``python -m tests.system.queues [--records 1000000] [--workers 20] [--kill-every 1.0] [--node-every 10]``: exit 1 where it is wrong.

Workers of one queue, each a process, take the records of a stream and acknowledge them in pieces; one of them is killed -9 every second
and another begins, and now and then the node that coordinates the queue. Right is: every record is acknowledged, none is given after an
acknowledgement that was confirmed, and what a dead worker had comes again when its wait is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from liftpy.client import Client, connect
from liftpy.core.groups.commands import partition_of
from liftpy.core.wire.subjects import GROUPS_STREAM
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster
from tests.system.queues.judge import Verdict, judged
from tests.system.queues.process import work

STREAM, GROUP = "jobs", "workers"
PARTITIONS = 4
SAY_EVERY_S = 10.0
PATIENCE_S = 120.0
"""Without anything acknowledged."""


@dataclass(frozen=True)
class Plan:
    """``kill_every_s``, ``node_every_s``: 0: never. ``most_kills``, ``most_nodes``: then no more. ``slack_s``: so much longer than
    ``wait_s`` a record may be away whose worker is dead: while no node coordinates, and until somebody asks again."""

    records: int
    workers: int
    kill_every_s: float
    node_every_s: float
    wait_s: float
    batch: int
    size_bytes: int
    seed: int
    most_kills: int = 1_000_000
    most_nodes: int = 1_000_000
    slack_s: float = 30.0


class Crew:
    """The workers' processes, and the files that they write."""

    def __init__(self, url: str, folder: Path, plan: Plan) -> None:
        self._url, self._folder, self._plan = url, folder, plan
        self._forking = multiprocessing.get_context("forkserver")  # a worker is there in no time, whatever the machine does
        self._forking.set_forkserver_preload(["__main__", work.__module__])
        self._processes: dict[Path, BaseProcess] = {}
        self.started = 0
        self.killed = 0

    def start(self) -> None:
        """One more."""
        self.started += 1
        plan, file = self._plan, self._folder / f"w{self.started}"
        given = (self._url, STREAM, GROUP, file, plan.batch, plan.wait_s, plan.seed + self.started)
        process = self._processes[file] = self._forking.Process(target=work, args=given)
        process.start()

    def kill(self, rng: Random) -> bool:
        """kill -9 of one that was given something; whether there was one."""
        busy = [file for file in self._processes if file.exists() and '"given"' in _begin_of(file)]
        if not busy:
            return False
        process = self._processes.pop(rng.choice(busy))
        process.kill()
        process.join()
        self.killed += 1
        return True

    def end(self) -> None:
        """All of them; those that ended by themselves are an error."""
        ended = [process.exitcode for process in self._processes.values() if process.exitcode is not None]
        for process in self._processes.values():
            process.kill()
            process.join()
        if ended:
            raise SystemExit(f"workers have ended by themselves: {ended}")

    def lines(self) -> Iterator[dict[str, Any]]:
        """All that was said; of a worker that was killed the last line may be half."""
        for file in self._folder.iterdir():
            for line in file.read_text(encoding="utf-8").splitlines():
                with suppress(json.JSONDecodeError):
                    yield json.loads(line)


def _begin_of(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return lines.read(4096)


async def fill(client: Client, plan: Plan) -> dict[int, int]:
    """The stream; partition -> how many records it has."""
    await client.create_stream(STREAM, STREAM, partitions=PARTITIONS)
    async with client.producer(STREAM) as producer:
        for done in range(0, plan.records, 1000):
            await producer.send_many([b"x" * plan.size_bytes] * min(1000, plan.records - done))
    return {number: (await client.bounds(STREAM, number)).end_offset for number in range(PARTITIONS)}


async def done(client: Client, ends: dict[int, int]) -> int:
    """How many records the coordinator knows to be acknowledged."""
    found = await client.groups.describe(GROUP)
    return sum(queue.acknowledged_below + queue.acknowledged for queue in found.queues if queue.key.partition in ends)


async def coordinator(client: Client) -> str:
    """The node that has the queue."""
    home = await client.stream(GROUPS_STREAM)
    return home.partitions[partition_of(GROUP, len(home.partitions))].leader


class Kills:
    """Who is killed when."""

    def __init__(self, cluster: DevCluster, crew: Crew, plan: Plan) -> None:
        self._cluster, self._crew, self._plan = cluster, crew, plan
        self._rng = Random(plan.seed)
        self.nodes = 0

    async def workers(self) -> None:
        """One after the other."""
        while self._crew.killed < self._plan.most_kills:
            await asyncio.sleep(self._plan.kill_every_s)
            if self._crew.kill(self._rng):
                self._crew.start()

    async def coordinators(self, client: Client) -> None:
        """The same; the node comes back before the next one."""
        while self.nodes < self._plan.most_nodes:
            await asyncio.sleep(self._plan.node_every_s)
            with suppress(LiftError):
                name = await coordinator(client)
                if not name:
                    continue
                self._cluster.nodes[name].kill()
                self.nodes += 1
                await asyncio.sleep(self._rng.random() * 4)
                self._cluster.nodes[name].start()
                await asyncio.to_thread(self._cluster.nodes[name].wait_ready)


async def run(cluster: DevCluster, folder: Path, plan: Plan) -> Verdict:
    """Fill, work, kill, judge; prints what came of it."""
    crew = Crew(cluster.nats_url, folder, plan)
    kills = Kills(cluster, crew, plan)
    async with connect(cluster.nats_url) as client:
        ends = await fill(client, plan)
        began = time.monotonic()
        for _ in range(plan.workers):
            crew.start()
        wanted = [(plan.kill_every_s, kills.workers()), (plan.node_every_s, kills.coordinators(client))]
        tasks = [asyncio.create_task(body) if every_s else body.close() for every_s, body in wanted]
        try:
            await _worked_off(client, ends)
        finally:
            for task in tasks:
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
            crew.end()
        took_s = time.monotonic() - began
    verdict = judged(crew.lines(), ends, plan.wait_s, plan.slack_s)
    again = verdict.again_s
    shares = ", ".join(
        f"{name} {np.percentile(again, share):.1f} s" for name, share in (("p50", 50), ("p99", 99), ("max", 100)) if len(again)
    )
    print(
        f"{verdict.records} records in {took_s:.0f} s ({verdict.records / took_s:,.0f}/s), {crew.killed} of {crew.started} workers and "
        f"{kills.nodes} coordinators killed; {verdict.given - verdict.records} givings more than records: again after {shares or '-'}",
        flush=True,
    )
    return verdict


async def _worked_off(client: Client, ends: dict[int, int]) -> None:
    """Return when everything is acknowledged; SystemExit where nothing goes on."""
    before, since = -1, time.monotonic()
    began_s = said_s = since
    while before < sum(ends.values()):
        await asyncio.sleep(0.25)
        with suppress(LiftError):
            now = await done(client, ends)
            if now != before:
                before, since = now, time.monotonic()
            if time.monotonic() - said_s >= SAY_EVERY_S:
                said_s = time.monotonic()
                print(f"{said_s - began_s:6.0f} s: {now} acknowledged", flush=True)
        if time.monotonic() - since > PATIENCE_S:
            raise SystemExit(f"{before} of {sum(ends.values())} are acknowledged, and no more for {PATIENCE_S:g} s")


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.queues", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--kill-every", type=float, default=1.0, help="seconds between two workers' ends; 0: none")
    parser.add_argument("--node-every", type=float, default=10.0, help="seconds between two coordinators' ends; 0: none")
    parser.add_argument("--wait", type=float, default=10.0, help="ack_wait_s")
    parser.add_argument("--batch", type=int, default=500, help="records that a worker takes at a time")
    parser.add_argument("--size", type=int, default=100, help="bytes of a record")
    parser.add_argument(
        "--slack", type=float, default=30.0, help="seconds longer than --wait that a dead worker's records may be away"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    plan = Plan(
        records=given.records, workers=given.workers, kill_every_s=given.kill_every, node_every_s=given.node_every,
        wait_s=given.wait, batch=given.batch, size_bytes=given.size, seed=given.seed,
        slack_s=given.slack,
    )  # fmt: skip
    with DevCluster(3) as cluster, tempfile.TemporaryDirectory(prefix="liftpy-queues-") as folder:
        verdict = asyncio.run(run(cluster, Path(folder), plan))
    for text in verdict.wrong[:10]:
        print(f"VIOLATION: {text}", flush=True)
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
