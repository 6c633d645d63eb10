"""What of Spark's reading is ours, without a JVM: ``python -m tests.bench.spark.bench_reader [--records N] [--rounds N] [--nodes N]``.

The reader as a task runs it, into Arrow batches, from segment files of the same host and over NATS, in turns; then what the driver does
for a micro-batch: ``reportLatestOffset``, ``latestOffset`` and ``partitions``, as Spark calls them. Medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from liftpy.spark.range_reader import FILES, counts
from liftpy.spark.source import LiftDataSource
from tests.bench.spark.systems import Ours, Shape

HOWS = {"files": "files", "NATS": "leader"}
"""What it is called -> the option ``readFrom``."""
_PAUSE_S = 0.25
"""Between two micro-batches: Spark has more to do than the driver's part."""


def read(ours: Ours, shape: Shape, how: str) -> tuple[float, float]:
    """(records a second, us of CPU for each) of one task for each partition, one after the other."""
    source = LiftDataSource({"nats": ours.url, "stream": shape.name, "readfrom": HOWS[how]})
    reader = source.reader(source.schema())
    plan, from_files = reader.partitions(), counts[FILES]
    cpu_s, began = time.process_time(), time.perf_counter()
    batches: Any = (batch for planned in plan for batch in reader.read(planned))
    records = sum(batch.num_rows for batch in batches)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    if records != shape.records or counts[FILES] - from_files != (records if how == "files" else 0):
        raise SystemExit(f"{records} of {shape.records} records, {counts[FILES] - from_files} of them from files")
    return records / took_s, cpu_s / records * 1e6


def plan(ours: Ours, shape: Shape, most: int) -> dict[str, float]:
    """Medians of what the driver's calls for a micro-batch of ``most`` records take, ms."""
    options = {"nats": ours.url, "stream": shape.name, "startingoffsets": "earliest", "maxoffsetspertrigger": str(most)}
    source = LiftDataSource(options)
    reader: Any = source.streamReader(source.schema())
    start = reader.initialOffset()
    took: dict[str, list[float]] = {"reportLatestOffset": [], "latestOffset": [], "partitions": []}
    while start[shape.name]["0"] * shape.partitions < shape.records:
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
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark.bench_reader", description=__doc__)
    parser.add_argument("--records", type=int, default=800_000, help="of 100 B; of 1 KB a quarter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=1)
    given = parser.parse_args()
    with ExitStack() as stack:
        ours = Ours(stack, given.nodes, local_file_reads=True)
        shapes = [Shape(100, given.records, 1), Shape(1000, given.records // 4, 1)]
        for shape in shapes:
            ours.fill(shape)
            found: dict[str, list[tuple[float, float]]] = {}
            for _ in range(given.rounds):
                for how in HOWS:
                    found.setdefault(how, []).append(read(ours, shape, how))
            for how, runs in found.items():
                rate, cpu_us = (statistics.median(column) for column in zip(*runs, strict=True))
                print(f"{shape.size_bytes} B from {how:<6} {rate:>12,.0f} records/s {cpu_us:>7.2f} us of CPU each")
        for name, took_ms in plan(ours, shapes[0], max(1, given.records // 8)).items():
            print(f"a micro-batch's {name:<20} {took_ms:.1f} ms")


if __name__ == "__main__":
    main()
