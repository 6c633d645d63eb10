"""``python -m tests.system.spark_archive [--rounds 20]``: ``liftpy spark archive`` is killed -9 in the middle of micro-batches.

A producer fills a stream of two partitions, the command archives it into a Delta table. Each round kills the command with all that it
started: while its tasks write files; as soon as the table has a micro-batch and Spark's checkpoint has not; or at any moment. Every
second round a leader of the stream dies as well. What was killed comes back, the archive from its checkpoint. Right is: the table holds
each record once, at the offset that it has in the stream, and its folder holds no other file once the orphans are removed. Exit code 1
otherwise.
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

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from liftpy.client import Client, ProducerOptions, connect
from liftpy.client.ending import end_tasks
from liftpy.errors import LiftError
from liftpy.spark.pipelines.naming import DATA, batch_mark, end_mark
from liftpy.spark.pipelines.opening import state_of, table_at
from liftpy.spark.pipelines.orphans import find_orphans, remove_orphans
from liftpy.strict_json import load_json
from sidecar.dev.cluster import DevCluster
from tests.system.spark_driver import SparkDriver, until

STREAM = "archived"
PARTITIONS = 2
AHEAD = 60_000
"""Records that the stream has and the table has not, at most: three micro-batches."""
_TOGETHER = 500
_BATCH_RECORDS = 20_000
_KINDS = ("writing", "committed", "any")


@dataclass(slots=True)
class Outcome:
    """``records``: in the stream. ``lost``, ``twice``: of them, in the table. ``strange``: others there, or at another offset.
    ``kills``: of which kind, and of leaders. ``untold``: times that the table had a micro-batch, and the checkpoint of the dead not.
    ``unfinished``: kills at which files were half written. ``orphans``: files that were removed; ``stray``: that were left behind."""

    records: int = 0
    lost: int = 0
    twice: int = 0
    strange: int = 0
    untold: int = 0
    unfinished: int = 0
    orphans: int = 0
    stray: int = 0
    commits: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0

    @property
    def right(self) -> bool:
        """Whether each record is there once, and nothing else."""
        return bool(self.records) and not (self.lost or self.twice or self.strange or self.stray)


class Archive(SparkDriver):
    """``liftpy spark archive``, and what it leaves on the disk."""

    def __init__(self, url: str, folder: Path) -> None:
        self.table = folder / "table"
        options = ["--table", str(self.table), "--nats", url, "--every", "0", "--batch-records", str(_BATCH_RECORDS)]
        options += ["--master", "local[2]", "--orphan-age", "0.5", "--json"]
        command = [sys.executable, "-c", "from sidecar.cli.main import main; main()", "spark", "archive", STREAM, *options]
        super().__init__(command, folder, self.table / "_checkpoint")

    @property
    def version_count(self) -> int:
        """Of the table."""
        log = self.table / "_delta_log"
        return len(list(log.glob("*.json"))) if log.is_dir() else 0

    @property
    def half_written(self) -> bool:
        """Whether there are files that are not whole."""
        return any(self.table.glob(f"{DATA}/*/*/.*.tmp"))

    def ends(self) -> int:
        """Records that the table has, by its marks."""
        state = table_at(self.table).state(end_mark(STREAM, place) for place in range(PARTITIONS))
        return 0 if state is None else sum(state.marks.values())

    def untold(self) -> bool:
        """Whether the table has a micro-batch that the checkpoint has not."""
        begun, committed = self.names("offsets"), self.names("commits")
        if not begun:
            return False
        query = load_json((self.table / "_checkpoint" / "metadata").read_text())["id"]
        state = table_at(self.table).state([batch_mark(query)])
        return state is not None and state.marks.get(query, -1) > (committed[-1] if committed else -1)


class Run:
    """``rounds`` rounds on a cluster of three nodes."""

    def __init__(self, cluster: DevCluster, client: Client, archive: Archive, seed: int) -> None:
        self._cluster = cluster
        self._client = client
        self._archive = archive
        self._rng = random.Random(seed)
        self._stop = asyncio.Event()
        self.outcome = Outcome()

    async def feed(self) -> None:
        """Numbers, each once, AHEAD of what is archived, until it is told to stop."""
        options = ProducerOptions(buffer_records=5000)
        async with self._client.producer(STREAM, id="feeder", options=options, partitioner="round-robin") as producer:
            number = 0
            while not self._stop.is_set():
                if number < await asyncio.to_thread(self._archive.ends) + AHEAD:
                    await producer.send_many([b"%d" % n for n in range(number, number + _TOGETHER)])
                    number += _TOGETHER
                else:
                    await asyncio.sleep(0.1)
            await producer.flush()
            self.outcome.records = number

    async def grown(self, before: int) -> None:
        """The table has more than ``before``, and the stream is whole."""

        async def there() -> bool:
            if self._archive.ended:
                raise RuntimeError("the archive has ended")
            with contextlib.suppress(LiftError):
                stream = await self._client.stream(STREAM)
                return all(len(p.isr) == 3 and p.leader for p in stream.partitions) and self._archive.ends() > before
            return False

        await until(there)

    async def strike(self, number: int) -> None:
        """One round."""
        archive, kind = self._archive, _KINDS[number % len(_KINDS)]
        versions, pause_s, began_s = archive.version_count, self._rng.random() * 3, time.monotonic()

        async def moment() -> bool:
            if kind == "writing":
                return archive.half_written
            if kind == "committed":
                return archive.version_count > versions
            return time.monotonic() > began_s + pause_s

        with contextlib.suppress(TimeoutError):
            await until(moment, 120.0)
        archive.kill()
        outcome = self.outcome
        outcome.unfinished += archive.half_written
        outcome.untold += archive.untold()
        outcome.kills[kind] += 1
        node = None
        if number % 2:
            stream = await self._client.stream(STREAM)
            node = self._cluster.nodes[stream.partitions[number // 2 % PARTITIONS].leader]
            await asyncio.to_thread(node.kill)
            outcome.kills["leader"] += 1
        before = archive.ends()
        archive.start()
        if node is not None:
            await asyncio.to_thread(node.start)
            await asyncio.to_thread(node.wait_ready)
        await self.grown(before)

    async def finish(self, feeding: asyncio.Task[None]) -> None:
        """Everything that was fed is archived."""
        self._stop.set()
        await feeding

        async def all_there() -> bool:
            if self._archive.ended:
                raise RuntimeError("the archive has ended")
            return self._archive.ends() >= self.outcome.records and not self._archive.in_the_middle

        await until(all_there)

    def judge(self) -> None:
        """What the table holds, offset by offset, and what lies in its folder."""
        outcome, table = self.outcome, table_at(self._archive.table)
        outcome.commits = self._archive.version_count
        orphans = find_orphans(table, 0.0)
        remove_orphans(orphans)
        outcome.orphans += len(orphans.files)
        state = state_of(table)
        lying = {str(path) for path in self._archive.table.glob(f"{DATA}/*/*/*")}
        outcome.stray = len(lying ^ set(state.files))
        rows = pa.concat_tables([pq.read_table(file, columns=["partition", "offset", "value"]) for file in state.files])
        held = Counter(int(value) for value in rows["value"].to_pylist())
        outcome.lost = sum(n not in held for n in range(outcome.records))
        outcome.twice = sum(count - 1 for count in held.values())
        outcome.strange = sum(not 0 <= n < outcome.records for n in held)
        for place in range(PARTITIONS):
            offsets = rows.filter(pc.equal(rows["partition"], place))["offset"].sort().to_pylist()
            outcome.strange += sum(a != b for a, b in zip(offsets, range(len(offsets)), strict=True))


async def run(rounds: int, seed: int) -> Outcome:
    """All of it."""
    began = time.monotonic()
    with DevCluster(3) as cluster, tempfile.TemporaryDirectory(prefix="liftpy-archive-", ignore_cleanup_errors=True) as folder:
        archive = Archive(cluster.nats_url, Path(folder))
        async with connect(cluster.nats_url, cluster.namespace) as client:
            await client.create_stream(STREAM, "data.archived", partitions=PARTITIONS)
            running = Run(cluster, client, archive, seed)
            feeding = asyncio.create_task(running.feed())
            archive.start()
            try:
                await running.grown(0)
                for number in range(rounds):
                    await running.strike(number)
                    kills = ", ".join(f"{count} {what}" for what, count in sorted(running.outcome.kills.items()))
                    print(f"{number + 1} of {rounds}: {archive.ends()} archived; killed: {kills}", flush=True)
                await running.finish(feeding)
                await asyncio.to_thread(archive.kill)
                running.judge()
            except (RuntimeError, TimeoutError):
                print((Path(folder) / "spark.log").read_text()[-6000:])
                raise
            finally:
                await asyncio.to_thread(archive.kill)
                await end_tasks([feeding])
    running.outcome.took_s = time.monotonic() - began
    return running.outcome


def main() -> int:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    outcome = asyncio.run(run(given.rounds, given.seed))
    print(outcome)
    print("each record once" if outcome.right else "WRONG")
    return 0 if outcome.right else 1


if __name__ == "__main__":
    sys.exit(main())
