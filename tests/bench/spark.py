"""Measure the reader of the Spark source without a JVM: ``python -m tests.bench.spark [--records N] [--rounds N] [--nodes N]``.

The command reads all records into Arrow batches, as a task does. It alternates between segment files of the same host and NATS.
Then it measures the calls of the driver for a micro-batch: ``reportLatestOffset``, ``latestOffset`` and ``partitions``. Figures are
medians.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from liftpy.client import connect
from liftpy.spark.range_reader import FILES, counts
from liftpy.spark.source import LiftDataSource
from sidecar.dev.cluster import DevCluster

READ_FROM = {"files": "files", "NATS": "leader"}
"""Name in the output, and value of the option ``readFrom``."""
_BATCH_BYTES = 400_000
_PAUSE_S = 0.25
"""Pause between two micro-batches. Spark does the rest of its work in this time."""


async def fill(url: str, stream: str, records: int, size_bytes: int) -> None:
    """Store random records, acknowledged."""
    noise = random.Random(1)
    per_batch = _BATCH_BYTES // size_bytes
    async with connect(url) as client:
        await client.create_stream(stream, stream)
        async with client.producer(stream) as producer:
            for first in range(0, records, per_batch):
                count = min(per_batch, records - first)
                await producer.send_many([noise.randbytes(size_bytes) for _ in range(count)], partition=0)


def read(url: str, stream: str, records: int, source_of_bytes: str) -> tuple[float, float]:
    """Return records per second, and microseconds of CPU per record, of one task."""
    source = LiftDataSource({"nats": url, "stream": stream, "readfrom": READ_FROM[source_of_bytes]})
    reader = source.reader(source.schema())
    plan, from_files = reader.partitions(), counts[FILES]
    cpu_s, began = time.process_time(), time.perf_counter()
    batches: Any = (batch for planned in plan for batch in reader.read(planned))
    found = sum(batch.num_rows for batch in batches)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    from_files = counts[FILES] - from_files
    if found != records or from_files != (records if source_of_bytes == "files" else 0):
        raise SystemExit(f"{found} of {records} records, {from_files} of them from files")
    return found / took_s, cpu_s / found * 1e6


def plan_micro_batches(url: str, stream: str, records: int, most: int) -> dict[str, float]:
    """Return the median duration in milliseconds of each call of the driver for a micro-batch of ``most`` records."""
    options = {"nats": url, "stream": stream, "startingoffsets": "earliest", "maxoffsetspertrigger": str(most)}
    source = LiftDataSource(options)
    reader: Any = source.streamReader(source.schema())
    start = reader.initialOffset()
    took: dict[str, list[float]] = {"reportLatestOffset": [], "latestOffset": [], "partitions": []}
    while start[stream]["0"] < records:
        marks = [time.perf_counter()]
        reader.reportLatestOffset()
        marks.append(time.perf_counter())
        end = reader.latestOffset(start, ReadMaxRows(most))
        marks.append(time.perf_counter())
        reader.partitions(start, end)
        marks.append(time.perf_counter())
        for name, before, after in zip(took, marks, marks[1:], strict=False):
            took[name].append((after - before) * 1000)
        start = end
        time.sleep(_PAUSE_S)
    return {name: statistics.median(each) for name, each in took.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark", description=__doc__)
    parser.add_argument("--records", type=int, default=800_000, help="of 100 B; of 1 KB a quarter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=1)
    given = parser.parse_args()
    with DevCluster(given.nodes, settings={"LIFTPY_LOCAL_FILE_READS": "true"}) as cluster:
        url = cluster.nats_url
        for size_bytes, records in ((100, given.records), (1000, given.records // 4)):
            stream = f"b{size_bytes}"
            asyncio.run(fill(url, stream, records, size_bytes))
            found: dict[str, list[tuple[float, float]]] = {}
            for _ in range(given.rounds):
                for name in READ_FROM:
                    found.setdefault(name, []).append(read(url, stream, records, name))
            for name, runs in found.items():
                rate, cpu_us = (statistics.median(column) for column in zip(*runs, strict=True))
                print(f"{size_bytes} B from {name:<6} {rate:>12,.0f} records/s {cpu_us:>7.2f} us of CPU each")
        for name, took_ms in plan_micro_batches(url, "b100", given.records, max(1, given.records // 8)).items():
            print(f"micro-batch: {name:<20} {took_ms:.1f} ms")


if __name__ == "__main__":
    main()
