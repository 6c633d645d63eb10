"""``python -m tests.system.spark_archive [--rounds 20] [--minutes M]``: ``liftpy spark archive`` is killed -9 mid batch.

A producer fills a stream of two partitions, the command archives it into a Delta table. Each round kills the command with all that it
started: while its tasks write files; as soon as the table has a micro-batch and Spark's checkpoint has not; or at any moment. Every
second round a leader of the stream dies as well. What was killed comes back, the archive from its checkpoint. Right is: the table holds
each record once, at the offset that it has in the stream, and its folder holds no other file once the orphans are removed. Exit code 1
otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from liftpy.client import Client
from liftpy.core.base.strict_json import load_json
from liftpy.spark.pipelines.archive import find_orphans, remove_orphans
from liftpy.spark.pipelines.tables import DATA, batch_mark, end_mark, state_of, table_at
from liftpy.spark.session import FAST_START
from sidecar.dev.cluster import DevCluster
from tests.system import spark_rounds
from tests.system.spark_driver import SparkDriver, until
from tests.system.spark_rounds import Rounds

STREAM = "archived"
PARTITIONS = 2
_BATCH_RECORDS = 20_000
_KINDS = ("writing", "committed", "any")
_MOMENT_S = 60.0


@dataclass(slots=True)
class Outcome(spark_rounds.Outcome):
    """``untold``: times that the table had a micro-batch, and the checkpoint of the dead not. ``unfinished``: kills at which files were
    half written. ``orphans``: files that were removed in the end; ``stray``: that were left behind."""

    untold: int = 0
    unfinished: int = 0
    orphans: int = 0
    stray: int = 0

    @property
    def right(self) -> bool:
        """Whether each record is there once, and nothing else."""
        return bool(self.records) and not (self.lost or self.twice or self.strange or self.stray)


class Archive(SparkDriver):
    """``liftpy spark archive``, and what it leaves on the disk."""

    def __init__(self, url: str, folder: Path) -> None:
        self.table = folder / "table"
        options = ["--table", str(self.table), "--nats", url, "--trigger-interval", "0", "--batch-records", str(_BATCH_RECORDS)]
        options += ["--master", "local[2]", "--orphan-age", "0.5", "--json"]
        for setting in (f"spark.driver.extraJavaOptions={FAST_START}", f"spark.local.dir={folder}"):
            options += ["--conf", setting]
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


class Archiving:
    """Rounds of the archive."""

    def __init__(self, rounds: Rounds, archive: Archive, outcome: Outcome, seed: int) -> None:
        self.rounds = rounds
        self._archive = archive
        self._outcome = outcome
        self._rng = random.Random(seed)

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
            await until(moment, _MOMENT_S)
        await self.rounds.kill_driver()
        self._outcome.unfinished += archive.half_written
        self._outcome.untold += archive.untold()
        self._outcome.kills[kind] += 1
        node = await self.rounds.kill_leader(STREAM, number // 2 % PARTITIONS) if number % 2 else None
        before = await self.rounds.look()
        archive.start()
        if node is not None:
            await asyncio.to_thread(node.start)
            await asyncio.to_thread(node.wait_ready)
        await self.rounds.grown(before, STREAM)

    async def judge(self) -> None:
        """What the table holds, offset by offset, and what lies in its folder."""
        outcome, table = self._outcome, table_at(self._archive.table)
        orphans = find_orphans(table, 0.0)
        remove_orphans(orphans)
        outcome.orphans += len(orphans.files)
        state = state_of(table)
        lying = {str(path) for path in self._archive.table.glob(f"{DATA}/*/*/*")}
        outcome.stray = len(lying ^ set(state.files))
        rows = pa.concat_tables([pq.read_table(file, columns=["partition", "offset", "value"]) for file in state.files])
        outcome.count(Counter(int(value) for value in rows["value"].to_pylist()))
        for place in range(PARTITIONS):
            offsets = rows.filter(pc.equal(rows["partition"], place))["offset"].sort().to_pylist()
            outcome.strange += sum(a != b for a, b in zip(offsets, range(len(offsets)), strict=True))


async def run(rounds: int, seed: int, minutes: float = 0.0) -> spark_rounds.Outcome:
    """All of it."""

    async def begin(cluster: DevCluster, client: Client, folder: Path) -> Archiving:
        await client.create_stream(STREAM, "data.archived", partitions=PARTITIONS)
        archive, outcome = Archive(cluster.nats_url, folder), Outcome()

        async def written() -> int:
            return await asyncio.to_thread(archive.ends)

        return Archiving(Rounds(cluster, client, archive, STREAM, outcome, written), archive, outcome, seed)

    return await spark_rounds.run(begin, rounds, minutes)


def main() -> int:
    """See the docstring above."""
    given = spark_rounds.parser(__doc__).parse_args()
    return spark_rounds.verdict(asyncio.run(run(given.rounds, given.seed, given.minutes)))


if __name__ == "__main__":
    sys.exit(main())
