"""How fast a stream is archived: ``python -m tests.bench.spark.bench_archive [--records N] [--value-bytes B] [--runs R]``.

A node serves N records of B bytes from memory over a real nats-server on this machine, two partitions, two Spark tasks. In turn, each
into a folder of its own, up to what is committed, all columns, zstd: ``archive`` (tasks write the files), and the same records through
the JVM into Parquet by Spark's own streaming sink. Medians of the runs after one that warms up, and their ratio. Start and end of a
query are in both figures; so is the flush of each file in the first.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from liftpy.spark.pipelines.archive import ArchivePlan, archive
from liftpy.spark.session import local_session
from sidecar.dev.nats_server import NatsServer
from tests.bench.spark.filling import STREAM, fill
from tests.fake_node import fake_node_in_thread


def through_the_jvm(spark: Any, url: str, folder: Path) -> None:
    """Spark's own sink."""
    frame = spark.readStream.format("liftpy").options(nats=url, startingOffsets="earliest", includeHeaders="true").load(STREAM)
    writer = frame.writeStream.format("parquet").option("compression", "zstd")
    query = writer.option("checkpointLocation", str(folder / "c")).trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()


def main() -> None:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4000, help="records of a record batch")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    records = given.records - given.records % (2 * given.batch)
    took: dict[str, list[float]] = {"archive": [], "through the JVM": []}
    with NatsServer() as nats, fake_node_in_thread(nats.url) as node, tempfile.TemporaryDirectory() as name:
        fill(node, records, given.value_bytes, given.batch)
        spark = local_session("bench", fast_start=False)
        try:
            for number, (kind, seconds) in itertools.product(range(given.runs + 1), took.items()):
                folder = Path(name) / f"{kind[0]}{number}"
                began_s = time.perf_counter()
                if kind == "archive":
                    plan = ArchivePlan(streams=(STREAM,), table=str(folder), source={"nats": nats.url})
                    assert archive(spark, plan) == records
                else:
                    through_the_jvm(spark, nats.url, folder)
                seconds.append(time.perf_counter() - began_s)
        finally:
            spark.stop()
    medians = {kind: statistics.median(seconds[1:]) for kind, seconds in took.items()}
    for kind, median in medians.items():
        size = records * given.value_bytes / median / 1e6
        runs = ", ".join(f"{seconds:.2f}" for seconds in took[kind])
        print(f"{kind:16} {records / median:12,.0f} records/s {size:8.1f} MB/s of values; runs {runs} s")
    print(f"ratio {medians['through the JVM'] / medians['archive']:.2f}")


if __name__ == "__main__":
    main()
