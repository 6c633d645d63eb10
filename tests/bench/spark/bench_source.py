"""How fast Spark reads a stream: ``python tests/bench/spark/bench_source.py [--records N] [--value-bytes B] [--batch R]``.

A node serves N records of B bytes from memory over a real nats-server on this machine (so disks and replication are not part of
the figures); two partitions, two Spark tasks. Beside it: the reader without Spark, two columns instead of all, and Spark's own
scan of the same rows in Parquet. Each figure is the median of the runs after one that warms up. Prints lines, or ``--json``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from liftpy.spark.options import SourceOptions
from liftpy.spark.session import local_session
from liftpy.spark.source import LiftReader
from liftpy.testing.fake_node import FakeNode, fake_node_in_thread
from liftpy.wire.batch import build_batch
from sidecar.dev.embedded import NatsServer

STREAM = "bench"


def fill(node: FakeNode, records: int, value_bytes: int, batch_records: int) -> None:
    source = random.Random(1)
    keys = [b"%08d" % i for i in range(batch_records)]
    for log in node.add_stream(STREAM, partitions=2).partitions:
        for base in range(0, records // 2, batch_records):
            noise = source.randbytes(value_bytes * batch_records)  # new for each batch, or Parquet would store a dictionary
            values = [noise[i * value_bytes : (i + 1) * value_bytes] for i in range(batch_records)]
            log.append(build_batch(values, keys=keys, base_offset=base, leader_epoch=1, timestamp_ns=base))


class Bench:
    def __init__(self, records: int, value_bytes: int, runs: int) -> None:
        self.records, self.value_bytes, self.runs = records, value_bytes, runs
        self.figures: dict[str, dict[str, float]] = {}

    def measure(self, name: str, expected: int, call: Callable[[], int]) -> None:
        seconds: list[float] = []
        for _ in range(self.runs + 1):
            start = time.perf_counter()
            assert call() == expected, name
            seconds.append(time.perf_counter() - start)
        median = statistics.median(seconds[1:])
        self.figures[name] = {
            "records_per_s": round(self.records / median),
            "value_mb_per_s": round(self.records * self.value_bytes / median / 1e6, 1),
            "first_run_s": round(seconds[0], 2),
        }

    def reader_alone(self, url: str) -> int:
        reader = LiftReader(SourceOptions.parse({"nats": url, "stream": STREAM}))
        return sum(batch.num_rows for partition in reader.partitions() for batch in reader.read(partition))


def run(bench: Bench, url: str, folder: Path) -> None:
    bench.measure("reader alone, one thread", bench.records, lambda: bench.reader_alone(url))
    spark = local_session("bench", fast_start=False)

    def frame(**options: str) -> Any:
        return spark.read.format("liftpy").options(nats=url, stream=STREAM, **options).load()

    def total(of: Any) -> int:
        return int(of.selectExpr("sum(length(value))").collect()[0][0])

    size_bytes = bench.records * bench.value_bytes
    try:
        bench.measure("spark sum(length(value))", size_bytes, lambda: total(frame()))
        bench.measure("spark count, columns=offset,timestamp", bench.records, lambda: frame(columns="offset,timestamp").count())
        parquet = str(folder / "parquet")
        frame().write.parquet(parquet, compression="none")
        bench.measure("spark sum(length(value)) of parquet", size_bytes, lambda: total(spark.read.parquet(parquet)))
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4000, help="records of a record batch")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    records = given.records - given.records % (2 * given.batch)
    bench = Bench(records, given.value_bytes, given.runs)
    with NatsServer() as nats, fake_node_in_thread(nats.url) as node, tempfile.TemporaryDirectory() as folder:
        fill(node, records, given.value_bytes, given.batch)
        run(bench, nats.url, Path(folder))
    if given.json:
        print(json.dumps(bench.figures))
    else:
        for name, figures in bench.figures.items():
            print(f"{name:40} " + "  ".join(f"{key} {value:,}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
