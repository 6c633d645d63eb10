"""``python -m tests.system.spark_sink.inputs [--failures 20]``: what is before the sink fails, and Spark runs the task again.

``--failures 0`` runs only the query that gets another number of tasks.

One Spark session, four attempts for each task. In each round a streaming query copies a stream into a new one. The first attempt of
its task fails somewhere in its input: a Python function at a random batch, or behind the last one, at once or after a while; or an
expression of the JVM. Right is: the query ends well, and the target holds each record of the source once. Then a query over a shuffle
fails on four cores and is run again on one, at Spark's own settings, which gives it another number of tasks: it has to say so, and to
store nothing. On four cores again it goes on, and each record is there once. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from liftpy.client import connect
from liftpy.spark.session import local_session
from sidecar.dev.cluster import DevCluster

SOURCE, COUNT, TASK_BATCHES = "inputs-in", 60_000, 6
VALUE_BYTES = 200
"""Random bytes, which a shuffle can't compress. Adaptive execution makes one task of a shuffle below 1 MB."""
SCHEMA = "key binary, value binary"
_END_S = 300.0
_TOO_SLOW, _TRIES = "Python worker failed to connect back", 8
"""Spark gives a Python worker ten seconds to start; a query that ends so on a busy machine is started again."""


def fails_at(number: int, sleep_s: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: the first attempt fails before batch ``number``; -1: behind the last one."""

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        first = context is not None and context.attemptNumber() == 0
        for at, batch in enumerate(batches):
            if first and at == number:
                time.sleep(sleep_s)
                raise RuntimeError("as if something before the sink had failed")
            yield batch
        if first and number < 0:
            time.sleep(sleep_s)
            raise RuntimeError("as if something before the sink had failed")

    return failing


def fails_once_in_the_jvm(frame: Any, marker: Path, offset: int) -> Any:
    """An expression of the JVM that fails at the record ``offset``, until ``marker`` is there."""
    from pyspark.sql import functions as f

    @f.udf("boolean")
    def is_bad(at: int) -> bool:
        if at != offset or marker.exists():
            return False
        marker.write_text("failed once")
        return True

    failing = f.when(is_bad("offset"), f.raise_error(f.lit("as if an expression had failed"))).otherwise(f.col("value"))
    return frame.select("key", failing.cast("binary").alias("value"))


class Copies:
    """Queries that copy SOURCE. ``wrong``: what is not as it should be."""

    def __init__(self, cluster: DevCluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self.wrong: list[str] = []

    async def fill(self) -> None:
        """The source, of one partition."""
        async with connect(self._cluster.nats_url, self._cluster.namespace) as client:
            await client.create_stream(SOURCE, "data.inputs.in")
            async with client.producer(SOURCE) as producer:
                for start in range(0, COUNT, 500):
                    numbers = range(start, start + 500)
                    values = [b"%d " % n + random.Random(n).randbytes(VALUE_BYTES) for n in numbers]
                    await producer.send_many(values, keys=[b"k%d" % (n % 97) for n in numbers])

    async def make(self, target: str) -> None:
        """A stream to write to."""
        async with connect(self._cluster.nats_url, self._cluster.namespace) as client:
            await client.create_stream(target, f"data.{target}", partitions=2)

    async def held(self, target: str) -> Counter[bytes | None]:
        """What is in it."""
        async with connect(self._cluster.nats_url, self._cluster.namespace) as client:
            return Counter([r.value for place in range(2) async for r in client.consume(target, place, until="end")])

    def frame(self, spark: Any) -> Any:
        """The source."""
        options = {"nats": self._cluster.nats_url, "startingOffsets": "earliest"}
        return spark.readStream.format("liftpy").options(**options).load(SOURCE)

    def run(self, frame: Any, target: str) -> str:
        """Copy ``frame`` to its end; what it failed with."""
        checkpoint = str(self._folder / target)
        writing = frame.writeStream.format("liftpy").options(nats=self._cluster.nats_url, checkpointLocation=checkpoint)
        said = ""
        for _ in range(_TRIES):
            query = writing.trigger(availableNow=True).start(target)
            try:
                return "" if query.awaitTermination(_END_S) else "it does not end"
            except Exception as error:
                said = str(error)
            if _TOO_SLOW not in said:
                break
        return said

    def judge(self, what: str, target: str, failure: str) -> None:
        """Note what is wrong."""
        held = asyncio.run(self.held(target))
        lost, twice = COUNT - len(held), sum(held.values()) - len(held)
        print(f"{what}: {sum(held.values())} rows, {len(held)} distinct{', ' + failure[-300:] if failure else ''}", flush=True)
        if failure or lost or twice:
            self.wrong.append(f"{what}: {lost} lost, {twice} twice, {failure[-600:]}")


def upstream_failures(copies: Copies, count: int, seed: int, folder: Path) -> None:
    """``count`` queries whose input fails once."""
    rng = random.Random(seed)
    spark = local_session("liftpy inputs", "local[2,4]", settings=_settings(folder))
    for number in range(count):
        target, frame = f"copy-{number}", copies.frame(spark).coalesce(1)
        asyncio.run(copies.make(target))
        if number % 4 == 3:
            offset = rng.choice((0, COUNT // 2, COUNT - 1, rng.randrange(COUNT)))
            what, failing = f"an expression at {offset}", fails_once_in_the_jvm(frame, folder / f"failed-{number}", offset)
        else:
            at, sleep_s = rng.choice((-1, 0, 1, rng.randrange(TASK_BATCHES))), rng.choice((0, 0, 1))
            what = f"a Python function at batch {at}, {sleep_s} s before it"
            failing = frame.select("key", "value").mapInArrow(fails_at(at, sleep_s), SCHEMA)
        copies.judge(f"{number}: {what}", target, copies.run(failing, target))
    spark.stop()


def other_tasks(copies: Copies, folder: Path) -> None:
    """A shuffle that fails on four cores, and is run again on one, and on four."""

    def bomb(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            time.sleep(15)
            raise RuntimeError("as if task 0 had failed before its first row")
        yield from batches

    asyncio.run(copies.make("copy-tasks"))
    said: list[str] = []
    rows: list[int] = []
    for master in ("local[4]", "local[1]", "local[1]", "local[4]"):
        settings = {**_settings(folder), "spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "200"}
        spark = local_session("liftpy tasks", master, settings=settings)
        frame = (
            copies.frame(spark)
            .select("key", "value")
            .repartition("key")
            .mapInArrow(bomb if not said else lambda batches: batches, SCHEMA)
        )
        said.append(copies.run(frame, "copy-tasks"))
        spark.stop()
        held = asyncio.run(copies.held("copy-tasks"))
        rows.append(sum(held.values()))
    codes = ["TASKS_CHANGED" if "[TASKS_CHANGED]" in text else text[-300:] or "ended well" for text in said]
    print(f"local[4], local[1] twice, local[4]: {rows} rows, {len(held)} distinct; {codes}", flush=True)
    if (
        codes[1:] != ["TASKS_CHANGED", "TASKS_CHANGED", "ended well"]
        or not rows[0]
        or rows[1:] != [rows[0], rows[0], COUNT]
        or len(held) != COUNT
    ):
        copies.wrong.append(f"another number of tasks: {rows} rows, {len(held)} distinct of {COUNT}; {codes}")


def _settings(folder: Path) -> dict[str, str]:
    return {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}


def main() -> int:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given, began = parser.parse_args(), time.monotonic()
    with DevCluster(3) as cluster, tempfile.TemporaryDirectory(prefix="liftpy-inputs-", ignore_cleanup_errors=True) as name:
        copies = Copies(cluster, Path(name))
        asyncio.run(copies.fill())
        if given.failures:
            upstream_failures(copies, given.failures, given.seed, Path(name))
        other_tasks(copies, Path(name))
    print(f"{given.failures} failures upstream, {time.monotonic() - began:.0f} s")
    print("\n".join(copies.wrong) or "all is right")
    return 1 if copies.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
