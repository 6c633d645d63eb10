"""``python -m tests.system.spark_source [--rounds 2]``: what Spark reads while all moves is what the log holds, each record once.

On a cluster of four nodes a producer feeds a stream, and a reader of ours follows each partition: what it sees is the log. A streaming
query reads the same from the beginning to the end, and is stopped and resumes from its checkpoint in each round; batch jobs of many
small tasks read the whole again and again. Meanwhile, in each round: a leader is killed -9 and comes back; partitions are added; all
partitions move to other nodes; retention deletes. Then streams are deleted and made again under two queries over a pattern: one is to
end with [NOT_FOUND], one with ``onRecreated=earliest`` is to read the new stream from its beginning, and the other stream on.

Right is: the query has each record of the log once; each batch job has what was committed when it began, or ends with [DATA_LOSS] and
only while retention deletes. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from liftpy.client import Client, connect
from liftpy.config import StreamConfig
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from liftpy.spark.session import local_session
from sidecar.dev.cluster import DevCluster
from tests.system.spark_driver import until
from tests.system.spark_source.judge import Reach, Row, complaints

STREAM, MADE_AGAIN, BESIDE = "kept", "pattern-a", "pattern-b"
PARTITIONS, REPLICAS, NODES = 2, 3, 4
_RATE, _TOGETHER = 800, 100
_TASK_RECORDS = "1000"
_LEFT_RECORDS = 3000
"""Of a partition, by retention, from the first round on."""
_STEP_S = 180.0


class Query:
    """A streaming query, and the rows of its micro-batches."""

    def __init__(self, spark: Any, folder: Path, options: dict[str, str]) -> None:
        self._frame = spark.readStream.format("liftpy").options(**options, startingOffsets="earliest").load()
        self._folder = folder
        self._batches: dict[int, list[tuple[str, Row]]] = {}
        self._query: Any = None

    def start(self) -> None:
        """Begin, or go on from the checkpoint."""
        rows = self._frame.select("stream", "partition", "offset", "value")
        writer = rows.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._folder))
        self._query = writer.trigger(processingTime="200 milliseconds").start()

    def _take(self, frame: Any, number: int) -> None:
        self._batches[number] = [(r[0], (r[1], r[2], bytes(r[3]))) for r in frame.collect()]

    def stop(self) -> None:
        """Wherever it is."""
        self._query.stop()

    def rows(self, stream: str) -> list[Row]:
        """Of all micro-batches."""
        return [row for number in sorted(self._batches) for name, row in self._batches[number] if name == stream]

    def counted(self, stream: str) -> int:
        """How many rows there are."""
        return len(self.rows(stream))

    @property
    def failure(self) -> str:
        """What it ended with, '' while it runs."""
        error = None if self._query is None else self._query.exception()
        return "" if error is None else str(error)


class Log:
    """What a reader of ours sees of STREAM: the values of each partition by offset, from 0 on."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.values: dict[int, list[bytes]] = {}
        self._readers: list[asyncio.Task[None]] = []

    def follow(self, partitions: int) -> None:
        """All of them."""
        for partition in range(len(self.values), partitions):
            self.values[partition] = []
            self._readers.append(asyncio.create_task(self._read(partition)))

    async def _read(self, partition: int) -> None:
        held = self.values[partition]
        async for record in self._client.consume(STREAM, partition, start="earliest"):
            assert record.offset == len(held), f"the reader got offset {record.offset} after {len(held) - 1}"
            held.append(record.value or b"")

    async def close(self) -> None:
        """Stop reading."""
        await end_tasks(self._readers)


class Run:
    """All of it. ``wrong``: what is not as it should be; ``jobs``: batch jobs, by how they ended."""

    def __init__(self, cluster: DevCluster, client: Client, spark: Any, folder: Path) -> None:
        self._cluster, self._client, self._spark, self._folder = cluster, client, spark, folder
        self._log = Log(client)
        self._options = {"nats": cluster.nats_url, "patience": "60"}
        self._query = Query(spark, folder / "kept", {**self._options, "subscribe": STREAM, "maxOffsetsPerTrigger": "5000"})
        self._fed = 0
        self._stop = asyncio.Event()
        self.wrong: list[str] = []
        self.jobs: Counter[str] = Counter()
        self.strikes: Counter[str] = Counter()

    async def go(self, rounds: int) -> None:
        """Everything."""
        config = StreamConfig(segment_bytes=65_536, min_isr=2)
        await self._client.create_stream(STREAM, "data.kept", partitions=PARTITIONS, replicas=REPLICAS, config=config)
        self._log.follow(PARTITIONS)
        feeding = asyncio.create_task(self._feed())
        try:
            await asyncio.to_thread(self._query.start)
            for number in range(rounds):
                await self._during("a leader is killed", self._kill_leader(number))
                await self._during("partitions are added", self._add_partition())
                await self._during("partitions move", self._move())
                await asyncio.to_thread(self._query.stop)
                await asyncio.to_thread(self._query.start)
                self.strikes["the query is stopped and goes on"] += 1
                await self._until("the query has nearly all", self._nearly_all)
                await self._during("retention deletes", self._delete(), may_lose=True)
            self._stop.set()
            await feeding
            await self._check_query()
        finally:
            await end_tasks([feeding])
            await self._log.close()
            await asyncio.to_thread(self._query.stop)
        await self._recreate()

    # ---- strikes -----------------------------------------------------------------------------------------------------
    async def _kill_leader(self, number: int) -> None:
        stream = await self._client.stream(STREAM)
        node = self._cluster.nodes[stream.partitions[number % PARTITIONS].leader]
        await asyncio.to_thread(node.kill)
        await self._until("another one leads", lambda: self._led(node.node_id))
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(node.wait_ready)
        await self._until("all are in sync", self._whole)

    async def _led(self, dead: str) -> bool:
        return all(p.leader and p.leader != dead for p in (await self._client.stream(STREAM)).partitions)

    async def _whole(self) -> bool:
        partitions = (await self._client.stream(STREAM)).partitions
        return all(p.leader and set(p.isr) == set(p.replicas) and not p.target for p in partitions)

    async def _add_partition(self) -> None:
        grown = await self._client.admin.add_partitions(STREAM, len(self._log.values) + 1)
        self._log.follow(len(grown.partitions))

    async def _move(self) -> None:
        """Each partition leaves one node for the one that has none of it."""
        stream = await self._client.stream(STREAM)
        for p in stream.partitions:
            spare = next(node for node in self._cluster.nodes if node not in p.replicas)
            await self._client.admin.reassign(stream, p.partition, (spare, *p.replicas[: REPLICAS - 1]))
        await self._until("they have moved", self._whole)

    async def _delete(self) -> None:
        starts = await self._starts()
        await self._client.admin.alter_stream(STREAM, retention_records=_LEFT_RECORDS)

        async def deleted() -> bool:
            return any(now > starts.get(place, now) for place, now in (await self._starts()).items())

        await self._until("retention has deleted", deleted)

    # ---- reading -----------------------------------------------------------------------------------------------------
    async def _during(self, what: str, strike: Awaitable[None], *, may_lose: bool = False) -> None:
        """Batch jobs, one after another, from before the strike until after it."""
        began = time.monotonic()
        striking = asyncio.ensure_future(strike)
        jobs = 0
        try:
            while not striking.done() or not jobs:
                await self._batch(what, may_lose=may_lose)
                jobs += 1
            await striking
        finally:
            await end_tasks([striking])
        self.strikes[what] += 1
        if self._query.failure:
            raise RuntimeError(f"the query has ended: {self._query.failure}")
        print(f"{what}: {time.monotonic() - began:.1f} s, {jobs} batch jobs, {self._fed} records fed", flush=True)

    async def _batch(self, what: str, *, may_lose: bool) -> None:
        starts, ends = await self._starts(), {place: len(values) for place, values in self._log.values.items()}
        try:
            rows = await asyncio.to_thread(self._read_all)
        except Exception as error:
            if not (may_lose and "[DATA_LOSS]" in str(error)):
                self.wrong.append(f"{what}: a batch job ended with {str(error)[:600]}")
            self.jobs["[DATA_LOSS]" if "[DATA_LOSS]" in str(error) else "another error"] += 1
            return
        least = await self._starts()
        await self._seen(rows)
        reach = {place: Reach(least[place], end, starts.get(place, 0)) for place, end in ends.items() if place in least}
        self.wrong += [f"{what}: a batch job: {text}" for text in complaints(rows, self._log.values, reach)]
        self.jobs["right"] += 1

    def _read_all(self) -> list[Row]:
        frame = self._spark.read.format("liftpy").options(**self._options, maxRecordsPerPartition=_TASK_RECORDS).load(STREAM)
        return [(r[0], r[1], bytes(r[2])) for r in frame.select("partition", "offset", "value").collect()]

    async def _seen(self, rows: list[Row]) -> None:
        """Wait until the reader has what Spark has read."""
        ends = {partition: offset + 1 for partition, offset, _ in sorted(rows)}
        self._log.follow(max(ends, default=0) + 1)

        async def there() -> bool:
            return all(len(self._log.values[place]) >= end for place, end in ends.items())

        await self._until("the reader has as much", there)

    async def _starts(self) -> dict[int, int]:
        """Where each partition's log begins."""
        return {place: (await self._client.bounds(STREAM, place)).log_start_offset for place in list(self._log.values)}

    async def _feed(self) -> None:
        async with self._client.producer(STREAM, id="feeder", partitioner="round-robin") as producer:
            while not self._stop.is_set():
                await producer.send_many([b"%d" % n for n in range(self._fed, self._fed + _TOGETHER)])
                self._fed += _TOGETHER
                await asyncio.sleep(_TOGETHER / _RATE)
            await producer.flush()

    # ---- the query ---------------------------------------------------------------------------------------------------
    async def _nearly_all(self) -> bool:
        return self._query.counted(STREAM) >= self._fed - _LEFT_RECORDS

    async def _check_query(self) -> None:
        """It has all that was fed, each once, where the log has it."""

        async def all_there() -> bool:
            if self._query.failure:
                raise RuntimeError(f"the query has ended: {self._query.failure}")
            return self._query.counted(STREAM) >= self._fed <= sum(map(len, self._log.values.values()))

        await self._until("the query has all", all_there)
        log = self._log.values
        told = Counter(value for values in log.values() for value in values)
        if told != Counter(b"%d" % n for n in range(self._fed)):
            self.wrong.append("the log does not have what was fed, each once")
        reach = {place: Reach(0, len(values)) for place, values in log.items()}
        self.wrong += [f"the query: {text}" for text in complaints(self._query.rows(STREAM), log, reach)]

    async def _recreate(self) -> None:
        """A stream is deleted and made again under two queries over a pattern."""
        options = {**self._options, "subscribePattern": "pattern-.*"}
        refuses = Query(self._spark, self._folder / "refuses", options)
        takes = Query(self._spark, self._folder / "takes", {**options, "onRecreated": "earliest"})
        log: dict[str, list[bytes]] = {}
        for name in (MADE_AGAIN, BESIDE):
            await self._make(name, log, "old")
        for query in (refuses, takes):
            await asyncio.to_thread(query.start)

        async def both() -> bool:
            return all(query.counted(name) == len(log[name]) for query in (refuses, takes) for name in log)

        await self._until("both have all", both)
        await self._client.admin.delete_stream(MADE_AGAIN)
        old, log[MADE_AGAIN] = log[MADE_AGAIN], []
        await self._make(MADE_AGAIN, log, "new")
        await self._make(BESIDE, log, "more")

        async def taken() -> bool:
            return takes.counted(MADE_AGAIN) >= len(old) + len(log[MADE_AGAIN]) and takes.counted(BESIDE) >= len(log[BESIDE])

        await self._until("the other one has the new", taken)
        await self._until("one has ended", lambda: _true(bool(refuses.failure)))
        if "[NOT_FOUND]" not in refuses.failure:
            self.wrong.append(f"the query over a stream made again ended with {refuses.failure[:600]}")
        if takes.failure:
            self.wrong.append(f"the query that takes it has ended: {takes.failure[:600]}")
        rows = takes.rows(MADE_AGAIN)
        for part, held in ((rows[: len(old)], old), (rows[len(old) :], log[MADE_AGAIN])):
            self.wrong += [f"made again: {text}" for text in complaints(part, {0: held}, {0: Reach(0, len(held))})]
        beside = log[BESIDE]
        found = complaints(takes.rows(BESIDE), {0: beside}, {0: Reach(0, len(beside))})
        self.wrong += [f"beside one that was made again: {text}" for text in found]
        await asyncio.to_thread(takes.stop)
        self.strikes["a stream is made again"] += 1

    async def _make(self, name: str, log: dict[str, list[bytes]], what: str) -> None:
        await self._client.create_stream(name, f"data.{name}", exist_ok=True)
        values = [b"%s %d" % (what.encode(), n) for n in range(500)]
        async with self._client.producer(name) as producer:
            await producer.send_many(values)
        log[name] = [*log.get(name, []), *values]

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        async def answered() -> bool:
            try:
                return await holds()
            except LiftError:  # who is asked has just died
                return False

        try:
            await until(answered, _STEP_S)
        except TimeoutError as error:
            raise RuntimeError(f"{what}: not within {_STEP_S:g} s") from error


async def _true(value: bool) -> bool:
    return value


async def run(rounds: int) -> Run:
    """All of it."""
    with (
        DevCluster(NODES) as cluster,
        tempfile.TemporaryDirectory(prefix="liftpy-source-", ignore_cleanup_errors=True) as name,
    ):
        settings = {"spark.sql.warehouse.dir": f"{name}/warehouse", "spark.local.dir": f"{name}/local"}
        spark = await asyncio.to_thread(local_session, "liftpy source", settings=settings)
        try:
            async with connect(cluster.nats_url, cluster.namespace) as client:
                running = Run(cluster, client, spark, Path(name))
                await running.go(rounds)
                return running
        finally:
            await asyncio.to_thread(spark.stop)


def main() -> int:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    began = time.monotonic()
    done = asyncio.run(run(parser.parse_args().rounds))
    print(f"strikes: {dict(done.strikes)}; batch jobs: {dict(done.jobs)}; {time.monotonic() - began:.0f} s")
    print("\n".join(done.wrong) or "all is right")
    return 1 if done.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
